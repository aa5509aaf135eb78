//! What devices ask of the engine that moves the bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::{End, StreamPort};

/// One of the two ends of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The end that opened it.
    A = 0,
    /// The other one.
    B = 1,
}

impl Side {
    /// Both, in the order of their numbers.
    pub const BOTH: [Side; 2] = [Side::A, Side::B];

    /// The end across.
    pub fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// A stream: which worker owns it, and which one it is there. Never reused while anyone may hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    /// The worker's place among the workers.
    pub worker: u16,
    /// Its number there.
    pub number: u64,
}

/// Bytes one VM may leave behind in streams that it left before its peers had read them.
#[derive(Debug)]
pub struct Budget {
    left: AtomicUsize,
    refused: AtomicU64,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(bytes: usize) -> Budget {
        Budget { left: AtomicUsize::new(bytes), refused: AtomicU64::new(0) }
    }

    /// Takes `bytes` if that many are left.
    pub fn take(&self, bytes: usize) -> bool {
        let take = |left: usize| left.checked_sub(bytes);
        let taken = self.left.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).is_ok();
        if !taken {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Bytes that were taken are free again.
    pub fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::AcqRel);
    }

    /// How often more was asked for than there was.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }
}

/// One end to join.
pub struct StreamEnd {
    /// Its ring.
    pub port: Box<dyn StreamPort>,
    /// What bytes that it leaves behind are taken from.
    pub budget: Arc<Budget>,
    /// Its notices may take seconds to arrive; one that is missing is not lost yet.
    pub slow: bool,
    /// The worker that alone may touch what the port does, if it is one's: its place among the workers.
    pub worker: Option<u16>,
}

/// What one end has announced about the future.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shutdown {
    /// It sends no more: the peer is notified of it behind the bytes sent so far.
    Send,
    /// It reads no more: the peer is notified of it at once.
    Receive,
}

/// A stream of a previous daemon, by what its two guests and the records state.
pub struct Resumed {
    /// `None` for an end that has left.
    pub ends: [Option<StreamEnd>; 2],
    /// What an end that has left had still to give, and who pays for its being kept.
    pub left: [(Vec<u8>, Option<Arc<Budget>>); 2],
    /// How each end's bytes end, where it has announced it and its peer was not notified yet.
    pub marks: [Vec<End>; 2],
}

/// Joins stream ports. All calls return quickly; none copies.
pub trait Streams: Send + Sync {
    /// Joins two ends; bytes start to move at once. Ends that have to be with different workers are notified
    /// of a reset.
    fn join(&self, ends: [StreamEnd; 2]) -> StreamId;

    /// Restores a stream of a previous daemon. Both ends are woken: what was on its way may be lost.
    fn resume(&self, stream: Resumed) -> StreamId;

    /// Something may have changed in one of the rings.
    fn kick(&self, stream: StreamId);

    /// `side` announced that it sends or receives no more.
    fn shutdown(&self, stream: StreamId, side: Side, what: Shutdown);

    /// `side` reset the connection: its peer is notified of it behind the bytes sent so far.
    fn reset(&self, stream: StreamId, side: Side);

    /// The given ends leave. Blocks until the workers have taken what these ends had still to give
    /// and touch their memory no more; but not on the thread of an end's own worker ([`StreamEnd::worker`]).
    /// The peers are notified when they have read it all.
    fn leave(&self, ends: &[(StreamId, Side)]);
}
