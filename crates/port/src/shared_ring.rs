//! A ring in memory that this process shares with another (or with itself) as a stream port: the
//! daemon's half of a host socket. The other half is `vmlane_sock::ring`.
//!
//! The rules are those of a guest's queue pair, and so is the code: the other process is trusted as
//! little as a guest. Only how it is woken differs: a bit states whether it waits, so that one that polls
//! by itself costs no system call.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use vmlane_mem::{MapError, MapRequest, MemoryMap, Pages, Word};
use vmlane_wire::host::{INDEX_PAGE, layout, word};

use crate::queue_pair::{Notice, OtherSide, QueueMemory, QueuePairPort};
use crate::{End, PortFault, StreamAddress, StreamInfo};

/// The process behind a shared ring, as workers reach it: must not block.
pub trait RingProcess: Send + Sync {
    /// It waits, and what it waits for may be there: bytes, or (`room`) room for its own.
    fn wake(&self, room: bool);

    /// Its stream has ended in a way that is to be seen in the ring.
    fn ended(&self, end: End);

    /// It broke the rules of its ring.
    fn broke(&self);

    /// The file by which it asks to be checked: see [`StreamInfo::doorbell`].
    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// It asks to be checked. `asks` loads what it has in its ring: behind its signals, so that what it has
    /// published or announced before one of them counts. False: the file serves for that no more.
    fn answer_doorbell(&self, _asks: &dyn Fn() -> Asks) -> bool {
        false
    }

    /// Now and then, and before its stream sleeps: signals that were left in the file may have to be taken.
    fn poll_signals(&self, _asks: &dyn Fn() -> Asks) {}
}

/// What a process that asks to be checked has in its ring. The stream's end counts as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asks {
    /// It waits for bytes, which are there.
    pub bytes: bool,
    /// It waits for room, which is there.
    pub room: bool,
    /// It waits for room that is not there.
    pub blocked: bool,
    /// The `ANNOUNCED_*` bits that it has set.
    pub announced: u64,
}

/// A ring's memory, mapped.
#[derive(Clone)]
pub struct SharedMap {
    map: MemoryMap,
    size: u64,
}

impl SharedMap {
    /// Maps a ring's file with rings of `size` bytes: a power of two, from a page up.
    pub fn new(fd: OwnedFd, size: u64) -> Result<SharedMap, MapError> {
        let request = MapRequest { guest: 0, len: layout::file(size), offset: 0, fd, writable: true };
        Ok(SharedMap { map: MemoryMap::default().map(request)?, size })
    }

    /// The ring's file, mapped from address 0 on.
    pub fn memory(&self) -> &MemoryMap {
        &self.map
    }

    fn data(&self, at: u64) -> Result<Pages, MapError> {
        self.pages(at, self.size.trailing_zeros())
    }

    fn index(&self, at: u64) -> Result<Pages, MapError> {
        self.pages(at, INDEX_PAGE.trailing_zeros())
    }

    fn pages(&self, at: u64, shift: u32) -> Result<Pages, MapError> {
        let shape = MapError::Shape { guest: at, len: 1 << shift, offset: at };
        self.map.pages(std::iter::once(at), shift).map_err(|_| shape)
    }

    /// The daemon's end of it.
    pub fn port(&self, process: Arc<dyn RingProcess>) -> Result<QueuePairPort<SharedRing>, MapError> {
        let size = self.size;
        let theirs = self.index(layout::process_page(size))?;
        let ours = self.index(layout::daemon_page(size))?;
        let ring = SharedRing {
            produce: self.data(layout::PROCESS_DATA)?,
            consume: self.data(layout::daemon_data(size))?,
            process_tail: theirs.word(word::TAIL),
            process_head: theirs.word(word::HEAD),
            wants_bytes: theirs.word(word::WANTS_BYTES),
            wants_room: theirs.word(word::WANTS_ROOM),
            our_tail: ours.word(word::TAIL),
            our_head: ours.word(word::HEAD),
            ended: ours.word(word::ENDED),
            announced: theirs.word(word::ANNOUNCED),
            size,
            process,
            address: None,
        };
        Ok(QueuePairPort::new(ring, size, size))
    }

    /// How the stream has ended for the process.
    pub fn ended(&self) -> u64 {
        self.index(layout::daemon_page(self.size)).map_or(0, |page| page.load_u64(word::ENDED))
    }

    /// What the process has announced about its future.
    pub fn announced(&self) -> u64 {
        self.index(layout::process_page(self.size)).map_or(0, |page| page.load_u64(word::ANNOUNCED))
    }
}

/// See the module's text.
pub struct SharedRing {
    produce: Pages,
    consume: Pages,
    process_tail: Word,
    process_head: Word,
    wants_bytes: Word,
    wants_room: Word,
    our_tail: Word,
    our_head: Word,
    ended: Word,
    announced: Word,
    size: u64,
    process: Arc<dyn RingProcess>,
    address: Option<StreamAddress>,
}

impl SharedRing {
    /// Between whom the stream is, for captures.
    pub fn set_address(&mut self, address: StreamAddress) {
        self.address = Some(address);
    }

    fn asks(&self) -> Asks {
        let over = self.ended.load() != 0;
        let bytes = over || self.our_tail.load() != self.process_head.load();
        let full = self.process_tail.load().wrapping_add(1) % self.size == self.our_head.load();
        let wants_room = self.wants_room.load() != 0;
        Asks {
            bytes: bytes && self.wants_bytes.load() != 0,
            room: wants_room && (over || !full),
            blocked: wants_room && full && !over,
            announced: self.announced.load(),
        }
    }
}

impl QueueMemory for SharedRing {
    #[inline]
    fn load_tail(&self) -> u64 {
        self.process_tail.load()
    }

    #[inline]
    fn load_head(&self) -> u64 {
        self.process_head.load()
    }

    #[inline]
    fn store_tail(&self, tail: u64) {
        self.our_tail.store_fenced(tail);
    }

    #[inline]
    fn store_head(&self, head: u64) {
        self.our_head.store_fenced(head);
    }

    fn fence(&self) {
        // Every store of an index is a full barrier already; only the compiler is to be held back.
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    fn rings(&self) -> (&Pages, &Pages, usize) {
        (&self.produce, &self.consume, 0)
    }

    fn notify(&self, notice: Notice) {
        let room = notice == Notice::Read;
        let waits = if room { &self.wants_room } else { &self.wants_bytes };
        // Loaded behind the fenced store of the index; the process sets it before its last check.
        if waits.load() != 0 {
            self.process.wake(room);
        }
    }
}

impl OtherSide for SharedRing {
    fn info(&self) -> StreamInfo<'_> {
        StreamInfo { announces: true, address: self.address, doorbell: self.process.doorbell() }
    }

    fn check(&self) -> Result<(), PortFault> {
        self.process.poll_signals(&|| self.asks());
        if self.produce.poisoned() { Err(PortFault::memory_gone()) } else { Ok(()) }
    }

    fn end(&self, end: End) {
        self.ended.store_fenced(self.ended.load() | end.bit());
        self.process.wake(false);
        self.process.ended(end);
    }

    fn broke(&self) {
        self.process.broke();
    }

    fn answer_doorbell(&self) -> bool {
        self.process.answer_doorbell(&|| self.asks())
    }
}
