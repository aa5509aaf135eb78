//! Ends that announce bytes by a file are watched by the worker that turns their stream.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use vmlane_port::{Side, StreamEnd, Streams};
use vmlane_stream::{Settings, Workers};
use vmlane_testkit::wait_until;

use crate::common::{Bytes, OtherSide, end};

/// A program that announces bytes at a socket.
#[derive(Default)]
struct Program {
    bytes: Bytes,
    /// How often its doorbell was answered, and whether it gave it up.
    answered: AtomicUsize,
    gave_up: AtomicBool,
}

impl OtherSide for Program {
    fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    fn answer(&self, doorbell: &UnixStream) -> bool {
        let _ = rustix::net::recv(doorbell, &mut [0; 64], rustix::net::RecvFlags::DONTWAIT);
        self.answered.fetch_add(1, SeqCst);
        !self.gave_up.load(SeqCst)
    }
}

/// A program, the file by which it announces, and its end of a stream.
fn program() -> (Arc<Program>, UnixStream, StreamEnd) {
    let (doorbell, theirs) = UnixStream::pair().unwrap();
    let program = Arc::new(Program::default());
    let end = end(&program, Some(doorbell));
    (program, theirs, end)
}

fn ring(doorbell: &UnixStream) {
    rustix::io::write(doorbell, &[0]).unwrap();
}

#[test]
fn an_announcement_wakes_the_stream_without_another_thread() {
    let workers = Workers::start(Settings { spin: Duration::ZERO, ..Settings::default() }).unwrap();
    let ((a, a_doorbell, a_end), (b, b_doorbell, b_end)) = (program(), program());
    workers.join([a_end, b_end]);
    for (from, to, doorbell) in [(&a, &b, &a_doorbell), (&b, &a, &b_doorbell)] {
        for round in 1..=10 {
            let parks = workers.stats().parks.get();
            wait_until("the worker sleeps", || workers.stats().parks.get() > parks);
            from.bytes.stored.store(10, SeqCst);
            ring(doorbell);
            wait_until("the bytes move", || to.bytes.got.load(SeqCst) == 10 * round);
        }
        assert!(from.answered.load(SeqCst) >= 10);
    }
    let stats = workers.stats();
    assert_eq!((stats.lost_notices.get(), stats.still_senders.get()), (0, 0), "the safety net moved them");
}

#[test]
fn a_doorbell_that_serves_no_more_is_not_watched_nor_is_that_of_an_end_that_left() {
    let workers = Workers::start(Settings { spin: Duration::ZERO, ..Settings::default() }).unwrap();
    let ((a, a_doorbell, a_end), (b, b_doorbell, b_end)) = (program(), program());
    let stream = workers.join([a_end, b_end]);
    a.gave_up.store(true, SeqCst);
    ring(&a_doorbell);
    wait_until("it is answered", || a.answered.load(SeqCst) == 1);
    // The other end's announcement is answered after this one would have been.
    ring(&a_doorbell);
    ring(&b_doorbell);
    wait_until("the other one is answered", || b.answered.load(SeqCst) > 0);
    assert_eq!(a.answered.load(SeqCst), 1);
    workers.leave(&[(stream, Side::B)]);
    let answered = b.answered.load(SeqCst);
    // Its socket is closed.
    assert!(rustix::net::send(&b_doorbell, &[0], rustix::net::SendFlags::NOSIGNAL).is_err());
    workers.leave(&[(stream, Side::A)]);
    assert_eq!(b.answered.load(SeqCst), answered);
}

#[test]
fn each_worker_has_a_heartbeat_of_its_own() {
    let settings = Settings { workers: 2, spin: Duration::ZERO, ..Settings::default() };
    let workers = Workers::start(settings).unwrap();
    assert_eq!(workers.heartbeats().len(), 2);
    wait_until("each has begun a round", || workers.heartbeats().iter().all(|beat| beat.read().rounds > 0));
}
