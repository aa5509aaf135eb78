//! A queue pair, from its creation until both ends have left it. The rules of its two rings are in
//! `port/src/queue_pair.rs`.
//!
//! | file | what |
//! | --- | --- |
//! | `broker.rs` | how it comes about: create, attach, join |
//! | `guest_queues.rs` | the pages of a guest's end, and how the guest is notified |
//! | `restore.rs` | what is recorded of it, and how the next daemon restores it |

mod broker;
mod guest_queues;
mod restore;

use vmlane_mem::{MemoryMap, Pages};
use vmlane_port::{Side, StreamId};
use vmlane_vsock::{Call, Key};
use vmlane_wire::vmci::CID_ANY;

use super::sides::Sides;

/// In place of a stream that does not exist: calls about it lead nowhere.
const NO_STREAM: StreamId = StreamId { worker: 0, number: u64::MAX };

/// Guest address ranges that one end's pages lie in.
pub type Ranges = Vec<(u64, u64)>;

/// The pages of an end that waits for its peer.
pub struct Waiting {
    pub produce: Pages,
    pub consume: Pages,
    pub page_size: usize,
}

impl Waiting {
    /// The pages of both rings, the produce ring's `produce` pages first.
    pub fn resolve(memory: &MemoryMap, shift: u32, list: &[u64], produce: usize) -> Option<Waiting> {
        let (produce, consume) = list.split_at_checked(produce)?;
        let resolve = |list: &[u64]| memory.pages(list.iter().copied(), shift).ok();
        let page_size = 1usize.checked_shl(shift)?;
        Some(Waiting { produce: resolve(produce)?, consume: resolve(consume)?, page_size })
    }

    pub fn ranges(&self) -> Ranges {
        self.produce.guest_ranges().chain(self.consume.guest_ranges()).collect()
    }
}

pub enum PairState {
    /// The creator's pages; no peer has attached.
    Created(Box<Waiting>),
    /// Offered by the device for an endpoint of another kind; the guest has not attached.
    Offered,
    /// Both ends are in the engine's hands; `gone` ones have detached since.
    Joined { stream: StreamId, gone: Sides<bool> },
}

/// A queue pair. Sizes in bytes, from the creator's view. Side A created it, side B attached.
pub struct Pair {
    /// Names it in records; never used again.
    pub serial: u64,
    pub creator: u32,
    /// Set by [`Pairs::attach`](super::pairs::Pairs::attach) once the pair is in the table.
    pub attacher: Option<u32>,
    /// Whom the creator named: a VM, the host (then the tracked connection states who is meant), or anyone.
    pub peer: u32,
    pub flags: u32,
    pub produce_size: u64,
    pub consume_size: u64,
    pub state: PairState,
    pub ranges: Sides<Ranges>,
    /// The stream connection that offered it.
    pub connection: Option<Key>,
    /// The guest's end, if it is joined with an endpoint of another kind.
    pub call: Option<Call>,
}

impl Pair {
    pub fn bytes(&self) -> u64 {
        self.produce_size + self.consume_size
    }

    /// Bytes of the rings as `side` sees them: in which it produces, from which it consumes.
    pub fn sizes(&self, side: Side) -> (u64, u64) {
        match side {
            Side::A => (self.produce_size, self.consume_size),
            Side::B => (self.consume_size, self.produce_size),
        }
    }

    /// Which side `cid` still holds.
    pub fn side(&self, cid: u32) -> Option<Side> {
        let gone = match &self.state {
            PairState::Created(_) | PairState::Offered => Sides::new(false, true),
            PairState::Joined { gone, .. } => *gone,
        };
        if self.creator == cid && !gone.a {
            Some(Side::A)
        } else if self.attacher == Some(cid) && !gone.b {
            Some(Side::B)
        } else {
            None
        }
    }

    /// May `cid` offer it on a connection to `server`, which it knows as `known_as`?
    pub fn offered_by(&self, cid: u32, server: u32, known_as: u32) -> bool {
        matches!(self.state, PairState::Created(_))
            && self.creator == cid
            && self.connection.is_none()
            && [server, known_as, CID_ANY].contains(&self.peer)
    }

    /// The stream, once `cid` is attached as the second end.
    pub fn attached_by(&self, cid: u32) -> Option<StreamId> {
        match &self.state {
            PairState::Joined { stream, gone: Sides { b: false, .. } } if self.attacher == Some(cid) => {
                Some(*stream)
            }
            _ => None,
        }
    }
}
