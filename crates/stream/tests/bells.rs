//! Ends that announce bytes by a file are watched by the worker that turns their stream.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use vmlane_mem::{MapRequest, MemoryMap, Pages, memfd};
use vmlane_port::{Budget, End, PortFault, RingSlice, Side, StreamEnd, StreamPort, Streams};
use vmlane_stream::{Settings, Workers};

const RING: usize = 64 << 10;

/// What the test and a port share.
#[derive(Default)]
struct Program {
    /// Bytes that it has for the stream, and those that it got.
    stored: AtomicUsize,
    got: AtomicUsize,
    /// How often its doorbell was answered, and whether it keeps it.
    answered: AtomicUsize,
    keeps: AtomicBool,
}

/// A port of a program that announces bytes at a socket.
struct Rings {
    pages: Pages,
    program: Arc<Program>,
    bell: UnixStream,
}

impl StreamPort for Rings {
    fn readable(&mut self) -> Result<usize, PortFault> {
        Ok(self.program.stored.load(SeqCst))
    }

    fn source(&self) -> RingSlice<'_> {
        RingSlice { pages: &self.pages, base: 0, size: RING, at: 0 }
    }

    fn consume(&mut self, len: usize) -> Result<(), PortFault> {
        self.program.stored.fetch_sub(len, SeqCst);
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
        self.program.got.fetch_add(len, SeqCst);
        Ok(())
    }

    fn arm_writable(&mut self) -> Result<bool, PortFault> {
        Ok(true)
    }

    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        Ok(())
    }

    fn notify_both(&mut self) {}

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn answer_doorbell(&mut self) -> bool {
        let _ = rustix::net::recv(&self.bell, &mut [0; 64], rustix::net::RecvFlags::DONTWAIT);
        self.program.answered.fetch_add(1, SeqCst);
        self.program.keeps.load(SeqCst)
    }

    fn end(&mut self, _end: End) {}
}

/// A program: what it shares with its port, the file by which it announces, and its end of a stream.
fn program() -> (Arc<Program>, UnixStream, StreamEnd) {
    let fd = memfd("program", RING as u64).unwrap();
    let request = MapRequest { guest: 0, len: RING as u64, offset: 0, fd, writable: true };
    let map = MemoryMap::default().map(request).unwrap();
    let pages = map.pages((0..RING as u64).step_by(4096), 12).unwrap();
    let program = Arc::new(Program { keeps: AtomicBool::new(true), ..Program::default() });
    let (bell, theirs) = UnixStream::pair().unwrap();
    let port = Box::new(Rings { pages, program: program.clone(), bell });
    (program, theirs, StreamEnd { port, budget: Arc::new(Budget::new(0)), slow: false })
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}: it never happens");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn ring(bell: &UnixStream) {
    rustix::io::write(bell, &[0]).unwrap();
}

#[test]
fn an_announcement_wakes_the_stream_without_another_thread() {
    let workers = Workers::start(Settings { spin: Duration::ZERO, ..Settings::default() }).unwrap();
    let ([a, b], bells): ([_; 2], Vec<_>) = {
        let ((a, a_bell, a_end), (b, b_bell, b_end)) = (program(), program());
        workers.join([a_end, b_end]);
        ([a, b], vec![a_bell, b_bell])
    };
    for (from, to, bell) in [(&a, &b, &bells[0]), (&b, &a, &bells[1])] {
        for round in 1..=50 {
            let parks = workers.stats().parks.get();
            wait_for("the worker sleeps", || workers.stats().parks.get() > parks);
            from.stored.store(10, SeqCst);
            ring(bell);
            wait_for("the bytes move", || to.got.load(SeqCst) == 10 * round);
        }
        assert!(from.answered.load(SeqCst) >= 50);
    }
    let stats = workers.stats();
    assert_eq!((stats.lost_notices.get(), stats.still_senders.get()), (0, 0), "the safety net moved them");
}

#[test]
fn a_doorbell_that_serves_no_more_is_not_watched_nor_is_that_of_an_end_that_left() {
    let workers = Workers::start(Settings { spin: Duration::ZERO, ..Settings::default() }).unwrap();
    let ((a, a_bell, a_end), (b, b_bell, b_end)) = (program(), program());
    let stream = workers.join([a_end, b_end]);
    a.keeps.store(false, SeqCst);
    ring(&a_bell);
    wait_for("it is answered", || a.answered.load(SeqCst) == 1);
    // The other end's announcement is answered after this one would have been.
    ring(&a_bell);
    ring(&b_bell);
    wait_for("the other one is answered", || b.answered.load(SeqCst) > 0);
    assert_eq!(a.answered.load(SeqCst), 1);
    workers.leave(&[(stream, Side::B)]);
    let answered = b.answered.load(SeqCst);
    // Its socket is closed.
    assert!(rustix::net::send(&b_bell, &[0], rustix::net::SendFlags::NOSIGNAL).is_err());
    workers.leave(&[(stream, Side::A)]);
    assert_eq!(b.answered.load(SeqCst), answered);
}
