//! Guests without fences: a Linux for one processor stores an index and loads the device's behind it with
//! nothing between but a compiler's barrier. The processor may show the store to others after it has loaded.
//! So the device may publish room that such a writer does not see before it sleeps, and not see that its ring
//! was full; the same with bytes and a reader.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use vmlane_mem::Pages;
use vmlane_port::queue_pair::{Notice, OtherSide, QueueMemory, QueuePairPort};
use vmlane_port::{Notifications, StreamPort};
use vmlane_testkit::LONGEST;

/// Bytes of a ring; it holds one less.
const SIZE: u64 = 8;

/// The four indices of a queue pair on cache lines of their own, and what the guest was notified.
#[derive(Default)]
struct Shared {
    /// The guest's.
    tail: Line,
    head: Line,
    /// The device's.
    device_tail: Line,
    device_head: Line,
    notices: Mutex<Vec<Notice>>,
    wrote: AtomicBool,
    read: AtomicBool,
}

#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

#[derive(Clone, Default)]
struct Memory(Arc<Shared>);

impl OtherSide for Memory {}

impl QueueMemory for Memory {
    fn load_tail(&self) -> u64 {
        self.0.tail.0.load(Ordering::Acquire)
    }

    fn load_head(&self) -> u64 {
        self.0.head.0.load(Ordering::Acquire)
    }

    fn store_tail(&self, tail: u64) {
        self.0.device_tail.0.store(tail, Ordering::Release);
    }

    fn store_head(&self, head: u64) {
        self.0.device_head.0.store(head, Ordering::Release);
    }

    fn fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    fn rings(&self) -> (&Pages, &Pages, usize) {
        unreachable!("no bytes are copied here")
    }

    fn notify(&self, notice: Notice) {
        match notice {
            Notice::Wrote => self.0.wrote.store(true, Ordering::Release),
            Notice::Read => self.0.read.store(true, Ordering::Release),
            _ => {}
        }
        self.0.notices.lock().unwrap().push(notice);
    }
}

impl Memory {
    fn notices(&self) -> Vec<Notice> {
        std::mem::take(&mut self.0.notices.lock().unwrap())
    }

    fn port(&self) -> QueuePairPort<Memory> {
        QueuePairPort::new(self.clone(), SIZE, SIZE)
    }
}

#[test]
fn a_writer_whose_full_ring_is_seen_late_is_notified_of_the_room_at_the_next_poll() {
    let memory = Memory::default();
    let mut port = memory.port();
    memory.0.tail.0.store(6, Ordering::Release);
    assert_eq!(port.readable().unwrap(), 6);
    // It writes the seventh byte, which makes the ring full, and sleeps; the store is not visible yet.
    port.consume(6).unwrap();
    port.publish_room().unwrap();
    assert_eq!(memory.notices(), []);
    memory.0.tail.0.store(7, Ordering::Release);
    assert_eq!((port.readable().unwrap(), memory.notices()), (1, vec![Notice::Read]));
    assert_eq!((port.readable().unwrap(), memory.notices()), (1, vec![]), "once is enough");
    // One that was notified at once, and one that writes on, are notified of nothing more.
    port.consume(1).unwrap();
    port.publish_room().unwrap();
    memory.0.tail.0.store(0, Ordering::Release);
    assert_eq!(
        (port.readable().unwrap(), port.arm_readable().unwrap(), memory.notices()),
        (1, false, vec![])
    );
}

#[test]
fn a_reader_whose_empty_ring_is_seen_late_is_notified_of_the_bytes_at_the_next_poll() {
    let polls: [fn(&mut QueuePairPort<Memory>); 3] = [
        |port| assert_eq!(port.writable().unwrap(), 5),
        |port| assert!(!port.arm_writable().unwrap()),
        |port| port.renotify_reader().unwrap(),
    ];
    for check_announced in polls {
        let memory = Memory::default();
        let mut port = memory.port();
        port.produce(3).unwrap();
        assert_eq!(memory.notices(), [Notice::Wrote]);
        // It has read all three, and sleeps; the store is not visible yet.
        port.produce(2).unwrap();
        assert_eq!(memory.notices(), []);
        memory.0.head.0.store(3, Ordering::Release);
        check_announced(&mut port);
        assert_eq!(memory.notices(), [Notice::Wrote]);
        port.writable().unwrap();
        assert_eq!(memory.notices(), [], "once is enough");
    }
}

/// Waits for `done`; false if that takes so long that it will not come any more.
fn soon(mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > LONGEST {
            return false;
        }
        // What else runs here may need the CPU.
        std::thread::yield_now();
    }
    true
}

#[test]
fn a_guest_that_was_seen_much_too_late_is_notified_once_the_stream_has_slept() {
    let memory = Memory::default();
    let mut port = memory.port();
    // Its ring was full when no byte of it was taken; the first six were, one after the other.
    memory.0.tail.0.store(6, Ordering::Release);
    for _ in 0..6 {
        port.readable().unwrap();
        port.consume(1).unwrap();
        port.publish_room().unwrap();
    }
    memory.0.tail.0.store(7, Ordering::Release);
    port.readable().unwrap();
    assert_eq!(memory.notices(), []);
    port.notify_late().unwrap();
    port.notify_late().unwrap();
    assert_eq!(memory.notices(), [Notice::Read]);
    // It read nothing of six that came one after the other, and was notified of the first.
    let mut port = Memory::port(&memory);
    memory.0.tail.0.store(0, Ordering::Release);
    port.produce(1).unwrap();
    memory.notices();
    (0..5).for_each(|_| port.produce(1).unwrap());
    memory.0.head.0.store(1, Ordering::Release);
    port.writable().unwrap();
    assert_eq!(memory.notices(), []);
    port.notify_late().unwrap();
    port.notify_late().unwrap();
    assert_eq!(memory.notices(), [Notice::Wrote]);
    // One that has read all, and one that has written nothing, are notified of nothing.
    port.produce(1).unwrap();
    memory.0.head.0.store(7, Ordering::Release);
    port.notify_late().unwrap();
    assert_eq!(memory.notices(), []);
}

/// How often a guest goes to sleep. Real threads, since only a real processor shows stores late.
const SLEEPS: u32 = 30_000;

/// One such guest at a time: each thread is to have a CPU.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a guest's thread, and `turn` of the device until that has ended; it is notified how many turns moved
/// nothing before. True if the guest slept and was not notified.
fn beside_a_guest(guest: impl FnOnce() -> bool + Send, mut turn: impl FnMut(u32) -> bool) -> bool {
    let _alone = ALONE.lock();
    std::thread::scope(|scope| {
        let guest = scope.spawn(guest);
        let mut idle = 0;
        while !guest.is_finished() {
            idle = if turn(idle) { 0 } else { idle + 1 };
            if idle > LONG {
                // The guest may want this CPU.
                std::thread::yield_now();
            }
        }
        guest.join().unwrap()
    })
}

/// Turns without a byte after which everything stored is visible.
const LONG: u32 = 1000;

/// The guest sleeps on a full ring until it is notified, whatever the ring looks like by then.
#[test]
fn a_writer_without_fences_never_sleeps_for_ever() {
    let memory = Memory::default();
    let mut port = memory.port();
    let shared = &memory.0;
    let guest = || {
        let mut tail = 0;
        (0..SLEEPS).any(|_| {
            while (tail + 1) % SIZE != shared.device_head.0.load(Ordering::Relaxed) {
                tail = (tail + 1) % SIZE;
                shared.read.store(false, Ordering::Relaxed);
                shared.tail.0.store(tail, Ordering::Release);
                // No fence here.
            }
            !soon(|| shared.read.load(Ordering::Acquire))
        })
    };
    let stuck = beside_a_guest(guest, |idle| {
        let readable = port.readable().unwrap();
        port.consume(readable).unwrap();
        port.publish_room().unwrap();
        if idle == LONG {
            port.notify_late().unwrap();
        }
        memory.notices();
        readable > 0
    });
    assert!(!stuck, "it sleeps though there is room");
}

/// The same on an empty ring.
#[test]
fn a_reader_without_fences_never_sleeps_for_ever() {
    let memory = Memory::default();
    let mut port = memory.port();
    let shared = &memory.0;
    let guest = || {
        let mut head = 0;
        (0..SLEEPS).any(|_| {
            loop {
                let tail = shared.device_tail.0.load(Ordering::Acquire);
                if tail == head {
                    break;
                }
                shared.wrote.store(false, Ordering::Relaxed);
                head = tail;
                shared.head.0.store(head, Ordering::Release);
                // No fence here.
            }
            !soon(|| shared.wrote.load(Ordering::Acquire))
        })
    };
    let stuck = beside_a_guest(guest, |idle| {
        let writable = port.writable().unwrap();
        if writable > 0 {
            port.produce(1).unwrap();
        }
        if idle == LONG {
            port.notify_late().unwrap();
        }
        memory.notices();
        writable > 0
    });
    assert!(!stuck, "it sleeps though there are bytes");
}
