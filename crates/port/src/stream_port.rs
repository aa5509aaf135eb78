//! One end of a byte stream as the engine sees it.

use std::any::Any;
use std::os::fd::BorrowedFd;

use vmlane_wire::host::ended;

use crate::{Bytes, PortFault};

/// How a stream ends for the end that stays, always behind the last byte it could get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The peer sends no more.
    Finished,
    /// The peer reads no more.
    Refused,
    /// The peer is gone.
    Detached,
    /// The peer reset the connection.
    Reset,
}

impl End {
    /// The bit by which a process finds it in its ring.
    pub fn bit(self) -> u64 {
        match self {
            End::Finished => ended::FINISHED,
            End::Refused => ended::REFUSED,
            End::Detached => ended::DETACHED,
            End::Reset => ended::RESET,
        }
    }
}

/// Between whom a stream is, as one of its ends sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamAddress {
    /// The end's own CID.
    pub cid: u32,
    /// Its own port.
    pub port: u32,
    /// The CID of its peer.
    pub peer_cid: u32,
    /// The port of its peer.
    pub peer_port: u32,
}

impl StreamAddress {
    /// As the peer sees it.
    pub fn reversed(self) -> StreamAddress {
        let StreamAddress { cid, port, peer_cid, peer_port } = self;
        StreamAddress { cid: peer_cid, port: peer_port, peer_cid: cid, peer_port: port }
    }
}

/// What is known of an end and does not change while it is joined.
#[derive(Clone, Copy, Debug)]
pub struct StreamInfo<'a> {
    /// False if the other side never announces new bytes or room: the stream must poll.
    pub announces: bool,
    /// Between whom the stream is, if this end knows. For captures.
    pub address: Option<StreamAddress>,
    /// A file that becomes readable whenever the other side announces something, if it does so by a file: the
    /// worker of the stream watches it, until [`Notifications::answer_doorbell`] states otherwise.
    pub doorbell: Option<BorrowedFd<'a>>,
}

impl Default for StreamInfo<'_> {
    fn default() -> Self {
        StreamInfo { announces: true, address: None, doorbell: None }
    }
}

/// One end of a byte stream. A worker owns it; the other side of its rings (a guest, a process) moves its
/// own indices at any time. The order of the calls: the page of [`crate::life_of_a_stream_port`].
///
/// Reading half: bytes the other side has written. Writing half: room for bytes the other side will read.
/// Indices that the other side sees may lag behind what was really consumed while the stream is awake;
/// the `arm_*` calls make them exact before it sleeps (`docs/devices/vmci.md`, rules M1 to M8).
///
/// What only some ports can do is a part of its own, which the others do not have. No method has a default: a
/// port that wraps another one ([`crate::wrap::StreamWrapper`]) would answer by it in place of that one.
pub trait StreamPort: Send + Any {
    /// Bytes that the other side has written and that are not consumed yet, from a fresh load of its index.
    fn readable(&mut self) -> Result<usize, PortFault>;

    /// Where those bytes lie.
    fn source(&self) -> Bytes<'_>;

    /// The first `len` readable bytes are copied. The other side may not see (all of) the room yet.
    fn consume(&mut self, len: usize) -> Result<(), PortFault>;

    /// Before sleeping: shows the other side all the room there is (rule M3 included), then polls once more.
    /// True if nothing is readable and the other side's next byte will wake the stream.
    fn arm_readable(&mut self) -> Result<bool, PortFault>;

    /// Bytes of room in the other side's ring, from a fresh load of its index.
    fn writable(&mut self) -> Result<usize, PortFault>;

    /// Bytes that should stay free while the stream is awake, so that the other side never sees a full ring
    /// and has no reason to announce that it made room (rule M7). One at most: it is asked for only
    /// where all the room would be filled.
    fn keep_free(&self) -> usize;

    /// Copies the first `len` of these bytes, for which there is room, into the ring, publishes them, and
    /// wakes the other side if it may be asleep. Bytes first, then the index that announces them (rule M1).
    fn fill(&mut self, from: Bytes<'_>, len: usize) -> Result<(), PortFault>;

    /// A fresh check. True if the ring is exactly full and the other side's next read will wake the stream.
    fn arm_writable(&mut self) -> Result<bool, PortFault>;

    /// Wakes a reader that may wait for more bytes than were there when it was last woken (low-water
    /// marks). Called before sleeping and every millisecond or so while bytes move.
    fn renotify_reader(&mut self) -> Result<(), PortFault>;

    /// Reports to the other side how its stream ends. All bytes before it are published.
    fn end(&mut self, end: End);

    /// Asked when the port is joined, and when a capture begins or ends.
    fn info(&self) -> StreamInfo<'_>;

    /// Of a port whose other side sleeps and is notified.
    fn notifications(&mut self) -> Option<&mut dyn Notifications>;

    /// Of a port whose rings survive the daemon.
    fn survival(&mut self) -> Option<&mut dyn Survival>;
}

/// How the other side of a port is notified, beside what [`StreamPort::fill`], [`StreamPort::consume`] and
/// the `arm_*` calls see to. Asked for when a stream is about to sleep, while it sleeps, and every
/// millisecond or so.
pub trait Notifications {
    /// Sends what is deferred, if its time has come. True while some of it is still pending: the stream's
    /// worker may not sleep.
    fn flush_deferred(&mut self) -> bool;

    /// The stream has slept for a moment, so what the other side stored before it went to sleep is visible
    /// now: wakes it if it may sleep for something that is there.
    fn notify_late(&mut self) -> Result<(), PortFault>;

    /// Wakes the other side on both halves: the safety net's repair.
    fn notify_both(&mut self);

    /// The doorbell ([`StreamInfo::doorbell`]) has rung: takes what was announced. The stream gets a turn.
    /// False: the file announces nothing from now on, and is not to be watched any more.
    fn answer_doorbell(&mut self) -> bool;

    /// Requests of any kind that the other side has made so far. One that makes some while its bytes lie
    /// there has had the time to announce them. `None` if they are not counted: its time passes as clocks go.
    fn requests(&self) -> Option<u64>;
}

/// What the next daemon must know of a port's bytes.
pub trait Survival {
    /// The other end has left these bytes for this one: they are all that the next daemon has of them.
    fn keep(&mut self, bytes: &[u8]);
}
