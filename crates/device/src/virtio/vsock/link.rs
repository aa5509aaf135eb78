//! One connection between a guest here and another endpoint: two byte rings, and a
//! [`StreamPort`] over them.
//!
//! The worker writes what the guest sent and reads what it gets; a lane's worker does the other
//! half. Each index has one writer. A side that is about to sleep says so, fences, and looks once more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use vmlane_mem::{MapRequest, MemoryMap, Pages, Spans, memfd};
use vmlane_port::{End, PortFault, RingSlice, StreamPort};

/// Bytes of each ring: what a Linux socket has by default.
pub const RING: usize = 256 << 10;
const PAGE: u32 = 12;

/// Wakes the owner of the other half.
pub trait Waker: Send + Sync {
    fn wake(&self);
}

/// One ring. Indices only grow.
#[derive(Debug)]
struct Pipe {
    pages: Pages,
    map: MemoryMap,
    base: u64,
    written: AtomicU64,
    read: AtomicU64,
}

impl Pipe {
    /// The ring that begins at `base` of `map`.
    fn new(map: &MemoryMap, base: u64) -> std::io::Result<Pipe> {
        let pages = (base..base + RING as u64).step_by(1 << PAGE);
        let pages = map.pages(pages, PAGE).map_err(std::io::Error::other)?;
        Ok(Pipe { pages, map: map.clone(), base, written: AtomicU64::new(0), read: AtomicU64::new(0) })
    }

    fn readable(&self) -> usize {
        (self.written.load(Ordering::Acquire) - self.read.load(Ordering::Acquire)) as usize
    }

    fn writable(&self) -> usize {
        RING - self.readable()
    }

    fn slice(&self, index: &AtomicU64) -> RingSlice<'_> {
        let at = index.load(Ordering::Relaxed) as usize % RING;
        RingSlice { pages: &self.pages, base: 0, size: RING, at }
    }

    fn spans(&self) -> Spans {
        let mut spans = Spans::new(self.map.clone(), true);
        // All of a map that was just made.
        let _ = spans.push(self.base, RING);
        spans
    }
}

/// Bits of [`Shared::take_ends`].
pub const FINISHED: u32 = 1;
pub const REFUSED: u32 = 2;
pub const DETACHED: u32 = 4;
pub const RESET: u32 = 8;

/// What both workers share.
pub struct Shared {
    /// What the guest sent.
    inbound: Pipe,
    /// What the guest gets.
    outbound: Pipe,
    ends: AtomicU32,
    /// The lane sleeps until it is kicked.
    asleep: AtomicBool,
    waker: Arc<dyn Waker>,
}

impl Shared {
    pub fn new(waker: Arc<dyn Waker>) -> std::io::Result<Arc<Shared>> {
        // One file for both: mappings are what runs out first.
        let len = 2 * RING as u64;
        let fd = memfd("vsock-rings", len)?;
        let request = MapRequest { guest: 0, len, offset: 0, fd, writable: true };
        let map = MemoryMap::default().map(request).map_err(std::io::Error::other)?;
        Ok(Arc::new(Shared {
            inbound: Pipe::new(&map, 0)?,
            outbound: Pipe::new(&map, RING as u64)?,
            ends: AtomicU32::new(0),
            asleep: AtomicBool::new(true),
            waker,
        }))
    }

    /// The lane's half.
    pub fn port(self: &Arc<Shared>) -> Box<dyn StreamPort> {
        Box::new(LinkPort(self.clone()))
    }

    /// Memory of the rings, for copies from and to the guest.
    pub fn spans(&self) -> [Spans; 2] {
        [self.inbound.spans(), self.outbound.spans()]
    }

    /// Where the guest's next byte goes, and for how many there is room.
    pub fn room(&self) -> (usize, usize) {
        (self.inbound.written.load(Ordering::Relaxed) as usize % RING, self.inbound.writable())
    }

    /// `len` bytes of the guest are in the ring. True if the lane must be kicked.
    pub fn sent(&self, len: usize) -> bool {
        self.inbound.written.fetch_add(len as u64, Ordering::Release);
        self.must_kick()
    }

    /// Where the bytes for the guest are, and how many.
    pub fn waiting(&self) -> (usize, usize) {
        (self.outbound.read.load(Ordering::Relaxed) as usize % RING, self.outbound.readable())
    }

    /// `len` bytes are with the guest. True if the lane must be kicked.
    pub fn delivered(&self, len: usize) -> bool {
        self.outbound.read.fetch_add(len as u64, Ordering::Release);
        self.must_kick()
    }

    fn must_kick(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }

    /// Bytes of the guest that its peer has taken, from the first on.
    pub fn taken(&self) -> u64 {
        self.inbound.read.load(Ordering::Acquire)
    }

    /// How the peer's stream ended, as far as was not asked before.
    pub fn ends(&self) -> u32 {
        self.ends.load(Ordering::Acquire)
    }
}

/// The lane's half of a connection.
struct LinkPort(Arc<Shared>);

impl LinkPort {
    fn news(&self) {
        fence(Ordering::SeqCst);
        self.0.waker.wake();
    }

    fn arm(&self) {
        self.0.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

impl StreamPort for LinkPort {
    fn readable(&mut self) -> Result<usize, PortFault> {
        Ok(self.0.inbound.readable())
    }

    fn source(&self) -> RingSlice<'_> {
        self.0.inbound.slice(&self.0.inbound.read)
    }

    fn consume(&mut self, len: usize) -> Result<(), PortFault> {
        self.0.inbound.read.fetch_add(len as u64, Ordering::Release);
        if len > 0 {
            self.news();
        }
        Ok(())
    }

    fn publish_room(&mut self) -> Result<(), PortFault> {
        Ok(())
    }

    fn arm_readable(&mut self) -> Result<bool, PortFault> {
        self.arm();
        Ok(self.0.inbound.readable() == 0)
    }

    fn writable(&mut self) -> Result<usize, PortFault> {
        Ok(self.0.outbound.writable())
    }

    fn sink(&self) -> RingSlice<'_> {
        self.0.outbound.slice(&self.0.outbound.written)
    }

    fn keep_free(&self) -> usize {
        0
    }

    fn produce(&mut self, len: usize) -> Result<(), PortFault> {
        self.0.outbound.written.fetch_add(len as u64, Ordering::Release);
        if len > 0 {
            self.news();
        }
        Ok(())
    }

    fn arm_writable(&mut self) -> Result<bool, PortFault> {
        self.arm();
        Ok(self.0.outbound.writable() == 0)
    }

    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        Ok(())
    }

    fn notify_both(&mut self) {
        self.news();
    }

    fn end(&mut self, end: End) {
        let bit = match end {
            End::Finished => FINISHED,
            End::Refused => REFUSED,
            End::Detached => DETACHED,
            End::Reset => RESET,
        };
        self.0.ends.fetch_or(bit, Ordering::Release);
        self.news();
    }
}
