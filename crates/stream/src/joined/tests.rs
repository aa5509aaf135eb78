//! The safety net distinguishes a lost notice from a sender that stands still.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use vmlane_mem::{MapRequest, MemoryMap, Pages, memfd};
use vmlane_port::{Budget, Bytes, Notifications, PortFault, RingSlice, StreamInfo, Survival};

use super::*;

const RING: usize = 64 << 10;

/// A guest that stores without a notice.
#[derive(Default)]
struct Guest {
    stored: AtomicUsize,
    requests: AtomicU64,
    notified: AtomicUsize,
}

struct Mute {
    pages: Pages,
    guest: Arc<Guest>,
    counted: bool,
}

impl Mute {
    fn ring(&self) -> RingSlice<'_> {
        RingSlice { pages: &self.pages, base: 0, size: RING, at: 0 }
    }
}

impl StreamPort for Mute {
    fn readable(&mut self) -> Result<usize, PortFault> {
        Ok(self.guest.stored.load(Ordering::Relaxed))
    }

    fn source(&self) -> Bytes<'_> {
        Bytes::Ring(self.ring())
    }

    fn consume(&mut self, len: usize) -> Result<(), PortFault> {
        self.guest.stored.fetch_sub(len, Ordering::Relaxed);
        Ok(())
    }

    fn arm_readable(&mut self) -> Result<bool, PortFault> {
        Ok(self.readable()? == 0)
    }

    fn writable(&mut self) -> Result<usize, PortFault> {
        Ok(RING)
    }

    fn keep_free(&self) -> usize {
        0
    }

    fn fill(&mut self, from: Bytes<'_>, len: usize) -> Result<(), PortFault> {
        from.copy_to(self.ring(), len);
        Ok(())
    }

    fn arm_writable(&mut self) -> Result<bool, PortFault> {
        Ok(true)
    }

    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        Ok(())
    }

    fn end(&mut self, _end: End) {}

    fn info(&self) -> StreamInfo<'_> {
        StreamInfo::default()
    }

    fn notifications(&mut self) -> Option<&mut dyn Notifications> {
        Some(self)
    }

    fn survival(&mut self) -> Option<&mut dyn Survival> {
        None
    }
}

impl Notifications for Mute {
    fn flush_deferred(&mut self) -> bool {
        false
    }

    fn notify_late(&mut self) -> Result<(), PortFault> {
        Ok(())
    }

    fn notify_both(&mut self) {
        self.guest.notified.fetch_add(1, Ordering::Relaxed);
    }

    fn answer_doorbell(&mut self) -> bool {
        false
    }

    fn requests(&self) -> Option<u64> {
        self.counted.then(|| self.guest.requests.load(Ordering::Relaxed))
    }
}

/// A stream of two guests.
fn joined(counted: bool) -> (JoinedStream, [Arc<Guest>; 2]) {
    let guests: [Arc<Guest>; 2] = Default::default();
    let end = |guest: Arc<Guest>| {
        let fd = memfd("notices", RING as u64).unwrap();
        let request = MapRequest { guest: 0, len: RING as u64, offset: 0, fd, writable: true };
        let map = MemoryMap::default().map(request).unwrap();
        let pages = map.pages((0..RING as u64).step_by(4096), 12).unwrap();
        let port = Box::new(Mute { pages, guest, counted });
        StreamEnd { port, budget: Arc::new(Budget::new(0)), slow: false, worker: None }
    };
    (JoinedStream::new(guests.clone().map(end), Instant::now()), guests)
}

/// A stream that fell asleep before the guest stored ten bytes and notified no one.
fn asleep(counted: bool) -> (JoinedStream, Arc<Guest>) {
    let (mut stream, [guest, _]) = joined(counted);
    assert_eq!(stream.turn(RING).unwrap(), Turn::Idle);
    assert!(stream.try_sleep(RING, Instant::now()).unwrap());
    // The second inspection comes before the guest stores.
    assert_eq!(stream.inspect().unwrap(), Inspection::Quiet);
    stream.back_off(Instant::now());
    guest.stored.store(10, Ordering::Relaxed);
    (stream, guest)
}

/// Looks until the net finds something; how many it took.
fn inspections(stream: &mut JoinedStream, mut between: impl FnMut()) -> (Inspection, u32) {
    for number in 1..1000 {
        match stream.inspect().unwrap() {
            Inspection::Quiet => between(),
            found => return (found, number),
        }
    }
    panic!("nothing found in 1000 inspections");
}

#[test]
fn a_guest_that_goes_on_has_lost_its_notice() {
    let (mut stream, guest) = asleep(true);
    let request = || {
        guest.requests.fetch_add(1, Ordering::Relaxed);
    };
    assert_eq!(inspections(&mut stream, request), (Inspection::LostNotice, INSPECTIONS + 1));
    stream.notify_both();
    assert_eq!(guest.notified.load(Ordering::Relaxed), 1);
    assert_eq!(stream.turn(RING).unwrap(), Turn::Moved(10));
}

#[test]
fn a_guest_that_stands_still_has_not() {
    let (mut stream, _) = asleep(true);
    assert_eq!(inspections(&mut stream, || ()), (Inspection::Still, STILL_INSPECTIONS));
    assert_eq!(stream.turn(RING).unwrap(), Turn::Moved(10));
    // With a request at every other inspection it takes twice as many.
    let (mut stream, guest) = asleep(true);
    let mut at = 0;
    let sometimes = || {
        at += 1;
        guest.requests.fetch_add(at % 2, Ordering::Relaxed);
    };
    assert_eq!(inspections(&mut stream, sometimes), (Inspection::LostNotice, 2 * INSPECTIONS));
}

#[test]
fn one_whose_requests_are_not_counted_has_a_while() {
    let (mut stream, _) = asleep(false);
    assert_eq!(inspections(&mut stream, || ()), (Inspection::LostNotice, SLOW_INSPECTIONS + 1));
}

#[test]
fn progress_ends_a_stall_check() {
    let (mut stream, guest) = asleep(false);
    for _ in 0..50 {
        for _ in 0..SLOW_INSPECTIONS {
            assert_eq!(stream.inspect().unwrap(), Inspection::Quiet);
        }
        assert_eq!(stream.turn(RING).unwrap(), Turn::Moved(10));
        assert!(stream.try_sleep(RING, Instant::now()).unwrap());
        // The second inspection comes before the guest stores.
        assert_eq!(stream.inspect().unwrap(), Inspection::Quiet);
        stream.back_off(Instant::now());
        guest.stored.store(10, Ordering::Relaxed);
    }
}

#[test]
fn bytes_that_become_visible_just_after_it_fell_asleep_are_moved_at_a_second_inspection() {
    let (mut stream, guest) = asleep(true);
    assert_eq!(stream.next_inspection(), None, "it was inspected already");
    assert_eq!(stream.turn(RING).unwrap(), Turn::Moved(10));
    let now = Instant::now();
    assert!(stream.try_sleep(RING, now).unwrap());
    assert_eq!(stream.next_inspection(), Some(now + FIRST_INSPECTION));
    guest.stored.store(10, Ordering::Relaxed);
    assert_eq!(stream.inspect().unwrap(), Inspection::Refill);
    assert_eq!(stream.turn(RING).unwrap(), Turn::Moved(10));
    assert_eq!(guest.notified.load(Ordering::Relaxed), 0, "it needs no notice");
    // One that stays idle is examined once, and not again.
    assert!(stream.try_sleep(RING, now).unwrap());
    assert_eq!(stream.inspect().unwrap(), Inspection::Quiet);
    stream.back_off(now);
    assert_eq!(stream.next_inspection(), None);
}

#[test]
fn a_stream_that_moves_much_one_way_naps_once_before_it_is_armed() {
    let (mut stream, [a, b]) = joined(true);
    let (length, mut now) = (Duration::from_micros(100), Instant::now());
    let moves = |stream: &mut JoinedStream, guest: &Guest, bytes: usize, now: Instant| {
        guest.stored.store(bytes, Ordering::Relaxed);
        assert_eq!(stream.turn(RING).unwrap(), Turn::Moved(bytes));
        stream.moves(now);
    };
    let worth = WORTH_NAP as usize;
    for _ in 0..3 {
        moves(&mut stream, &a, worth, now);
        assert!(stream.try_nap(now, length));
        now += length / 2;
        assert!(stream.try_nap(now, length) && stream.is_napping(now), "it goes on");
        now += length;
        assert!(!stream.try_nap(now, length), "nothing came: it is to be armed now");
        moves(&mut stream, &a, 10, now);
        assert!(!stream.try_nap(now, length), "a few bytes are not worth another");
    }
    moves(&mut stream, &a, worth, now);
    moves(&mut stream, &b, 1, now);
    assert!(!stream.try_nap(now, length), "who is answered waits for the answer");
    moves(&mut stream, &b, worth, now);
    assert!(stream.try_nap(now, length), "the other way is as good");
    assert_eq!(stream.ring_size(), RING);
}
