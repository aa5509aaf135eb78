//! One connection between a guest here and another endpoint: two byte rings, and a [`StreamPort`] over them.
//!
//! The virtio-vsock worker has one end ([`DeviceEnd`]): it writes what the guest sent and reads what the guest gets.
//! The stream's worker has the other ([`LinkPort`]). Each index has one writer, and each end checks the other's
//! ([`vmlane_port::byte_ring`]). An end that is about to sleep says so, fences, and looks once more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use vmlane_mem::{MapRequest, MemoryMap, Pages, Spans, memfd};
use vmlane_port::byte_ring::{Reading, Writing};
use vmlane_port::{
    Bytes, End, Notifications, PortFault, RingSlice, StreamAddress, StreamInfo, StreamPort, Survival,
};

/// Bytes that each ring takes: what a Linux socket has by default.
pub const CREDIT: usize = 256 << 10;
const PAGE: u32 = 12;
/// Bytes of each ring's memory. An indexed ring keeps one byte free; copies are quick from page boundaries.
pub const RING: usize = CREDIT + (1 << PAGE);

/// Wakes the owner of the other end.
pub trait Waker: Send + Sync {
    fn wake(&self);
}

/// One ring: its memory, and the indices that its ends show each other.
#[derive(Debug)]
struct Ring {
    pages: Pages,
    /// The reader's index.
    head: AtomicU64,
    /// The writer's.
    tail: AtomicU64,
}

impl Ring {
    /// The ring that begins at `base` of `map`.
    fn new(map: &MemoryMap, base: u64) -> std::io::Result<Ring> {
        let pages = (base..base + RING as u64).step_by(1 << PAGE);
        let pages = map.pages(pages, PAGE).map_err(std::io::Error::other)?;
        Ok(Ring { pages, head: AtomicU64::new(0), tail: AtomicU64::new(0) })
    }

    /// Bytes that the reader of this ring has not taken, from a fresh look.
    fn readable(&self, end: &mut Reading) -> Result<usize, PortFault> {
        end.poll(self.tail.load(Ordering::Acquire))
    }

    fn consume(&self, end: &mut Reading, len: usize) {
        end.consume(len);
        end.published = end.cur;
        self.head.store(end.cur, Ordering::Release);
    }

    /// Bytes that the writer of this ring may add, from a fresh look.
    fn writable(&self, end: &mut Writing) -> Result<usize, PortFault> {
        end.accept(self.head.load(Ordering::Acquire))?;
        Ok(CREDIT.saturating_sub(end.used() as usize))
    }

    fn produce(&self, end: &mut Writing, len: usize) {
        end.produce(len);
        self.tail.store(end.tail, Ordering::Release);
    }

    fn slice(&self, at: u64) -> RingSlice<'_> {
        RingSlice { pages: &self.pages, base: 0, size: RING, at: at as usize }
    }
}

/// Bits of [`DeviceEnd::ends`].
pub const FINISHED: u32 = 1;
pub const REFUSED: u32 = 2;
pub const DETACHED: u32 = 4;
pub const RESET: u32 = 8;

/// What both workers share.
struct Shared {
    /// What the guest sent.
    inbound: Ring,
    /// What the guest gets.
    outbound: Ring,
    ends: AtomicU32,
    /// The stream sleeps until it is kicked.
    asleep: AtomicBool,
    waker: Arc<dyn Waker>,
}

/// Both ends of a connection's rings. `waker` wakes the owner of the device's.
pub fn rings(waker: Arc<dyn Waker>) -> std::io::Result<(DeviceEnd, LinkPort)> {
    // One file for both rings: mappings are what runs out first.
    let len = 2 * RING as u64;
    let fd = memfd("vsock-rings", len)?;
    let request = MapRequest { guest: 0, len, offset: 0, fd, writable: true };
    let map = MemoryMap::default().map(request).map_err(std::io::Error::other)?;
    let shared = Arc::new(Shared {
        inbound: Ring::new(&map, 0)?,
        outbound: Ring::new(&map, RING as u64)?,
        ends: AtomicU32::new(0),
        asleep: AtomicBool::new(true),
        waker,
    });
    let spans = |base| {
        let mut spans = Spans::new(map.clone(), true);
        // All of a map that was just made.
        let _ = spans.push(base, RING);
        spans
    };
    let size = RING as u64;
    let device = DeviceEnd {
        shared: shared.clone(),
        inbound: Writing::new(size),
        outbound: Reading::new(size),
        sent: 0,
        into: spans(0),
        from: spans(size),
    };
    Ok((
        device,
        LinkPort { shared, inbound: Reading::new(size), outbound: Writing::new(size), address: None },
    ))
}

/// The device's end of a connection's rings. One worker owns it.
pub struct DeviceEnd {
    shared: Arc<Shared>,
    inbound: Writing,
    outbound: Reading,
    /// Bytes of the guest, from the first on.
    sent: u64,
    /// Memory of the rings, for copies from and to the guest.
    pub into: Spans,
    pub from: Spans,
}

impl DeviceEnd {
    /// Where the guest's next byte goes, and for how many there is room.
    pub fn room(&mut self) -> Result<(usize, usize), PortFault> {
        let room = self.shared.inbound.writable(&mut self.inbound)?;
        Ok((self.inbound.tail as usize, room))
    }

    /// `len` bytes of the guest are in the ring. True if the stream must be kicked.
    pub fn sent(&mut self, len: usize) -> bool {
        self.shared.inbound.produce(&mut self.inbound, len);
        self.sent += len as u64;
        self.must_kick()
    }

    /// Where the bytes for the guest are, and how many.
    pub fn waiting(&mut self) -> Result<(usize, usize), PortFault> {
        let waiting = self.shared.outbound.readable(&mut self.outbound)?;
        Ok((self.outbound.cur as usize, waiting))
    }

    /// `len` bytes are with the guest. True if the stream must be kicked.
    pub fn delivered(&mut self, len: usize) -> bool {
        self.shared.outbound.consume(&mut self.outbound, len);
        self.must_kick()
    }

    fn must_kick(&self) -> bool {
        fence(Ordering::SeqCst);
        self.shared.asleep.load(Ordering::Relaxed) && self.shared.asleep.swap(false, Ordering::Relaxed)
    }

    /// Bytes of the guest that its peer has taken, from the first on.
    pub fn taken(&mut self) -> Result<u64, PortFault> {
        self.room()?;
        Ok(self.sent - self.inbound.used())
    }

    /// How the peer's stream ended, as far as it has.
    pub fn ends(&self) -> u32 {
        self.shared.ends.load(Ordering::Acquire)
    }
}

/// The stream's end of a connection's rings.
pub struct LinkPort {
    shared: Arc<Shared>,
    inbound: Reading,
    outbound: Writing,
    address: Option<StreamAddress>,
}

impl LinkPort {
    /// Its guest's connection, as the guest knows it.
    pub fn set_address(&mut self, address: StreamAddress) {
        self.address = Some(address);
    }

    /// There is something new for the device's end.
    fn notify(&self) {
        fence(Ordering::SeqCst);
        self.shared.waker.wake();
    }

    fn arm(&self) {
        self.shared.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

impl StreamPort for LinkPort {
    fn readable(&mut self) -> Result<usize, PortFault> {
        self.shared.inbound.readable(&mut self.inbound)
    }

    fn source(&self) -> RingSlice<'_> {
        self.shared.inbound.slice(self.inbound.cur)
    }

    fn consume(&mut self, len: usize) -> Result<(), PortFault> {
        self.shared.inbound.consume(&mut self.inbound, len);
        if len > 0 {
            self.notify();
        }
        Ok(())
    }

    fn arm_readable(&mut self) -> Result<bool, PortFault> {
        self.arm();
        Ok(self.readable()? == 0)
    }

    fn writable(&mut self) -> Result<usize, PortFault> {
        self.shared.outbound.writable(&mut self.outbound)
    }

    fn keep_free(&self) -> usize {
        0
    }

    fn fill(&mut self, from: Bytes<'_>, len: usize) -> Result<(), PortFault> {
        from.copy_to(self.shared.outbound.slice(self.outbound.tail), len);
        self.shared.outbound.produce(&mut self.outbound, len);
        if len > 0 {
            self.notify();
        }
        Ok(())
    }

    fn arm_writable(&mut self) -> Result<bool, PortFault> {
        self.arm();
        Ok(self.writable()? == 0)
    }

    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        Ok(())
    }

    fn end(&mut self, end: End) {
        let bit = match end {
            End::Finished => FINISHED,
            End::Refused => REFUSED,
            End::Detached => DETACHED,
            End::Reset => RESET,
        };
        self.shared.ends.fetch_or(bit, Ordering::Release);
        self.notify();
    }

    fn info(&self) -> StreamInfo<'_> {
        StreamInfo { address: self.address, ..StreamInfo::default() }
    }

    fn notifications(&mut self) -> Option<&mut dyn Notifications> {
        Some(self)
    }

    fn survival(&mut self) -> Option<&mut dyn Survival> {
        None
    }
}

impl Notifications for LinkPort {
    fn flush_deferred(&mut self) -> bool {
        false
    }

    fn notify_late(&mut self) -> Result<(), PortFault> {
        Ok(())
    }

    fn notify_both(&mut self) {
        self.notify();
    }

    fn answer_doorbell(&mut self) -> bool {
        false
    }

    fn requests(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Awake;

    impl Waker for Awake {
        fn wake(&self) {}
    }

    fn both() -> (DeviceEnd, LinkPort) {
        rings(Arc::new(Awake)).unwrap()
    }

    #[test]
    fn all_of_the_credit_fits_and_no_byte_more() {
        let (mut device, mut port) = both();
        let bytes = vec![0; CREDIT];
        for round in 0..5 {
            assert_eq!(device.room().unwrap().1, CREDIT, "round {round}");
            device.sent(CREDIT);
            assert_eq!((device.room().unwrap().1, port.readable().unwrap()), (0, CREDIT));
            assert_eq!(device.taken().unwrap(), round * CREDIT as u64);
            port.consume(CREDIT).unwrap();
            assert_eq!(port.writable().unwrap(), CREDIT);
            port.fill(Bytes::Private(&bytes), CREDIT).unwrap();
            assert!(port.arm_writable().unwrap());
            assert_eq!(device.waiting().unwrap().1, CREDIT);
            assert!(device.delivered(CREDIT), "a stream that sleeps on a full ring is kicked");
        }
    }

    #[test]
    fn an_index_outside_the_ring_is_refused() {
        let (mut device, mut port) = both();
        device.sent(10);
        port.shared.inbound.tail.store(RING as u64, Ordering::Relaxed);
        assert!(port.readable().is_err());
        device.shared.inbound.head.store(11, Ordering::Relaxed);
        assert!(device.room().is_err() && device.taken().is_err(), "more than was sent");
        device.shared.outbound.tail.store(u64::MAX, Ordering::Relaxed);
        assert!(device.waiting().is_err());
    }

    #[test]
    fn a_stream_that_sleeps_is_kicked_once() {
        let (mut device, mut port) = both();
        assert!(device.sent(1), "it sleeps from the beginning");
        assert!(!device.sent(1));
        assert!(!port.arm_readable().unwrap(), "two bytes wait");
        port.consume(2).unwrap();
        assert!(port.arm_readable().unwrap());
        assert!(device.sent(1) && !device.sent(1));
    }
}
