//! Before a worker arms and sleeps, every port has delivered what it withheld.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use vmlane_mem::{MapRequest, MemoryMap, Pages, memfd};
use vmlane_port::{Budget, End, PortFault, RingSlice, StreamEnd, StreamPort, Streams};
use vmlane_stream::{Settings, Workers};

const RING: usize = 64 << 10;

/// What the test and a port share.
#[derive(Default)]
struct Guest {
    /// Bytes that it has for the stream, and those that it got.
    stored: AtomicUsize,
    got: AtomicUsize,
    /// Notices that may not go yet, and those that went.
    withheld: AtomicUsize,
    heard: AtomicUsize,
    too_early: AtomicBool,
    /// Times that the port was asked to deliver them.
    asked: AtomicUsize,
}

/// A port that announces bytes only when the stream falls asleep, and then not before its time.
struct Late {
    pages: Pages,
    guest: Arc<Guest>,
}

impl StreamPort for Late {
    fn readable(&mut self) -> Result<usize, PortFault> {
        Ok(self.guest.stored.load(SeqCst))
    }

    fn source(&self) -> RingSlice<'_> {
        RingSlice { pages: &self.pages, base: 0, size: RING, at: 0 }
    }

    fn consume(&mut self, len: usize) -> Result<(), PortFault> {
        self.guest.stored.fetch_sub(len, SeqCst);
        Ok(())
    }

    fn publish_room(&mut self) -> Result<(), PortFault> {
        Ok(())
    }

    fn arm_readable(&mut self) -> Result<bool, PortFault> {
        Ok(self.readable()? == 0)
    }

    fn writable(&mut self) -> Result<usize, PortFault> {
        Ok(RING)
    }

    fn sink(&self) -> RingSlice<'_> {
        self.source()
    }

    fn keep_free(&self) -> usize {
        0
    }

    fn produce(&mut self, len: usize) -> Result<(), PortFault> {
        self.guest.got.fetch_add(len, SeqCst);
        Ok(())
    }

    fn arm_writable(&mut self) -> Result<bool, PortFault> {
        Ok(true)
    }

    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        let guest = &self.guest;
        if guest.got.load(SeqCst) > 0 && guest.withheld.load(SeqCst) + guest.heard.load(SeqCst) == 0 {
            guest.withheld.store(1, SeqCst);
        }
        Ok(())
    }

    fn notify_both(&mut self) {}

    fn withholds(&mut self) -> bool {
        self.guest.asked.fetch_add(1, SeqCst);
        if !self.guest.too_early.load(SeqCst) {
            self.guest.heard.fetch_add(self.guest.withheld.swap(0, SeqCst), SeqCst);
        }
        self.guest.withheld.load(SeqCst) > 0
    }

    fn end(&mut self, _end: End) {}
}

fn end(guest: &Arc<Guest>) -> StreamEnd {
    let fd = memfd("late", RING as u64).unwrap();
    let request = MapRequest { guest: 0, len: RING as u64, offset: 0, fd, writable: true };
    let map = MemoryMap::default().map(request).unwrap();
    let pages = map.pages((0..RING as u64).step_by(4096), 12).unwrap();
    let port = Box::new(Late { pages, guest: guest.clone() });
    StreamEnd { port, budget: Arc::new(Budget::new(0)), slow: false }
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}: it never happens");
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn what_a_stream_withholds_when_it_falls_asleep_is_delivered_before_its_worker_sleeps() {
    let workers = Workers::start(Settings { spin: Duration::ZERO, ..Settings::default() }).unwrap();
    let (sender, receiver) = (Arc::new(Guest::default()), Arc::new(Guest::default()));
    sender.stored.store(10, SeqCst);
    receiver.too_early.store(true, SeqCst);
    workers.join([end(&sender), end(&receiver)]);
    wait_for("the stream falls asleep", || workers.stats().sleeps.get() > 0);
    assert_eq!(receiver.withheld.load(SeqCst), 1);
    let parks = workers.stats().parks.get();
    let asked = receiver.asked.load(SeqCst);
    wait_for("the worker asks again", || receiver.asked.load(SeqCst) > asked + 100);
    assert_eq!(workers.stats().parks.get(), parks, "the worker slept with a notice withheld");
    receiver.too_early.store(false, SeqCst);
    wait_for("the notice is delivered", || receiver.heard.load(SeqCst) == 1);
    wait_for("the worker sleeps", || workers.stats().parks.get() > parks);
}

#[test]
fn a_worker_that_never_sleeps_delivers_what_was_withheld_too() {
    let workers = Workers::start(Settings { poll: true, ..Settings::default() }).unwrap();
    let (sender, receiver) = (Arc::new(Guest::default()), Arc::new(Guest::default()));
    sender.stored.store(10, SeqCst);
    workers.join([end(&sender), end(&receiver)]);
    wait_for("the notice is delivered", || receiver.heard.load(SeqCst) == 1);
}
