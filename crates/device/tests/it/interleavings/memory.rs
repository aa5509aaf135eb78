//! The engine's memory in the model: every access to something shared is taken from a tape, and the
//! first one that the tape does not hold yet suspends the engine.
//!
//! A turn of the engine depends on nothing but its plain state and the results of its accesses. So
//! the engine can be stopped before any access: it is unwound, and later run again from the start of
//! the turn with the results so far. The tape never touches shared state; the explorer performs the
//! access that was wanted, once, and appends its result.
//!
//! Stores wait in a store buffer, as they may on every CPU: until a fence or an atomic operation, but
//! past one load at most. With the fences of the rules this never shows.

use std::panic::resume_unwind;
use std::sync::Arc;

use parking_lot::Mutex;
use vmlane_mem::{MapRequest, MemoryMap, Pages, memfd};
use vmlane_port::PortFault;
use vmlane_port::byte_ring::{Reading, Writing};
use vmlane_port::queue_pair::{Notice, OtherSide, Protocol, QueueMemory};

use super::world::Message;

/// Where data begin in a ring's pages.
const BASE: usize = 64;

/// One access to what the engine shares with the guests. Only A writes to the engine and only B reads
/// from it, so each kind belongs to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    LoadTailOfA,
    LoadHeadOfB,
    StoreHeadForA(u8),
    StoreTailForB(u8),
    Notify(Message),
    /// Older protocol: has A announced that it waits for room? Taken by looking.
    TakeAWaits,
    /// Older protocol: has B announced that it waits for bytes?
    TakeBWaits,
}

impl Access {
    /// The access without its value.
    fn kind(self) -> Access {
        match self {
            Access::StoreHeadForA(_) => Access::StoreHeadForA(0),
            Access::StoreTailForB(_) => Access::StoreTailForB(0),
            other => other,
        }
    }
}

/// What the engine is unwound with when the tape is at its end. Not a panic: no hook sees it.
pub struct Suspended;

#[derive(Default)]
struct Tape {
    results: Vec<u8>,
    at: usize,
    path: Vec<Access>,
    wanted: Option<Access>,
    buffered: Vec<Access>,
    /// A load has passed what is buffered; one has done so in this call.
    passed: bool,
    reordered: bool,
}

struct Shared {
    tape: Mutex<Tape>,
    ring_a: Pages,
    ring_b: Pages,
}

/// The memory of both guests' queue pairs.
#[derive(Clone)]
pub struct ModelMemory {
    shared: Arc<Shared>,
    protocol: Protocol,
    /// Broken engines: kinds of notices that are not sent, and fences that do nothing.
    pub mute: u8,
    pub fences: bool,
}

impl ModelMemory {
    pub fn new(protocol: Protocol) -> ModelMemory {
        let fd = memfd("interleavings", 2 * 4096).unwrap();
        let request = MapRequest { guest: 0, len: 2 * 4096, offset: 0, fd, writable: true };
        let map = MemoryMap::default().map(request).unwrap();
        let page = |addr| map.pages(std::iter::once(addr), 12).unwrap();
        let shared = Shared { tape: Mutex::default(), ring_a: page(0), ring_b: page(4096) };
        ModelMemory { shared: Arc::new(shared), protocol, mute: 0, fences: true }
    }

    /// Puts in a tape. A's ring holds its offsets plus one, B's holds zeros.
    pub fn rewind(&self, results: &[u8], size: u8) {
        *self.shared.tape.lock() = Tape { results: results.to_vec(), ..Tape::default() };
        let marks: Vec<u8> = (1..=size).collect();
        self.shared.ring_a.write(BASE, &marks);
        self.shared.ring_b.write(BASE, &vec![0; usize::from(size)]);
    }

    /// The access that suspended the engine. All results before it were asked for.
    pub fn wanted(&self) -> Access {
        let tape = self.shared.tape.lock();
        assert_eq!(tape.at, tape.results.len(), "the engine did not repeat itself");
        tape.wanted.unwrap()
    }

    /// The accesses whose results were asked for, without values.
    pub fn path(&self) -> Vec<Access> {
        self.shared.tape.lock().path.clone()
    }

    /// Has a load passed a store in this call?
    pub fn reordered(&self) -> bool {
        self.shared.tape.lock().reordered
    }

    /// B's ring: at each offset the mark of the byte that was copied there.
    pub fn copied(&self, size: u8) -> Vec<u8> {
        let mut marks = vec![0; usize::from(size)];
        self.shared.ring_b.read(BASE, &mut marks);
        marks
    }

    /// Buffered stores reach memory.
    pub fn drain(&self) {
        let mut tape = self.shared.tape.lock();
        tape.passed = false;
        let buffered = std::mem::take(&mut tape.buffered);
        drop(tape);
        for store in buffered {
            self.access(store);
        }
    }

    fn access(&self, access: Access) -> u8 {
        let mut tape = self.shared.tape.lock();
        match tape.results.get(tape.at).copied() {
            Some(result) => {
                tape.at += 1;
                tape.path.push(access.kind());
                result
            }
            None => {
                tape.wanted = Some(access);
                drop(tape);
                resume_unwind(Box::new(Suspended))
            }
        }
    }

    fn load(&self, access: Access) -> u64 {
        if self.shared.tape.lock().passed {
            self.drain();
        }
        let result = self.access(access);
        let mut tape = self.shared.tape.lock();
        tape.passed = !tape.buffered.is_empty();
        tape.reordered |= tape.passed;
        result.into()
    }

    fn swap(&self, access: Access) -> bool {
        self.drain();
        self.access(access) != 0
    }

    fn store(&self, access: Access) {
        let mut tape = self.shared.tape.lock();
        tape.buffered.push(access);
        tape.passed = false;
    }
}

impl OtherSide for ModelMemory {}

impl QueueMemory for ModelMemory {
    fn load_tail(&self) -> u64 {
        self.load(Access::LoadTailOfA)
    }

    fn load_head(&self) -> u64 {
        self.load(Access::LoadHeadOfB)
    }

    fn store_tail(&self, tail: u64) {
        self.store(Access::StoreTailForB(tail as u8));
    }

    fn store_head(&self, head: u64) {
        self.store(Access::StoreHeadForA(head as u8));
    }

    fn fence(&self) {
        if self.fences {
            self.drain();
        }
    }

    fn rings(&self) -> (&Pages, &Pages, usize) {
        (&self.shared.ring_a, &self.shared.ring_b, BASE)
    }

    fn notify(&self, notice: Notice) {
        self.drain();
        if self.mute & notice as u8 == 0 {
            self.access(Access::Notify(match notice {
                Notice::Wrote => Message::WroteToB,
                Notice::Read => Message::ReadToA,
                Notice::WaitingRead => Message::WaitingReadToA,
                Notice::WaitingWrite => Message::WaitingWriteToB,
            }));
        }
    }

    fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The same decisions as those of `GuestQueues`, which this stands for.
    fn check_announced(&self, reading: &Reading, writing: &Writing) -> Result<(), PortFault> {
        if self.protocol == Protocol::Pkt {
            if writing.tail != writing.head && self.swap(Access::TakeBWaits) {
                self.notify(Notice::Wrote);
            }
            let used = |size: u64| (reading.tail + size - reading.published) % size;
            let room = reading.size > 0 && used(reading.size) < reading.size - 1;
            if room && self.swap(Access::TakeAWaits) {
                self.notify(Notice::Read);
            }
        }
        Ok(())
    }

    fn wait_for(&self, notice: Notice, _index: u64) {
        self.notify(notice);
    }
}
