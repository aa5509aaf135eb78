//! Before a worker arms and sleeps, every port has delivered what it deferred.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use vmlane_port::Streams;
use vmlane_stream::{Settings, Workers};
use vmlane_testkit::wait_until;

use crate::common::{Bytes, OtherSide, end};

/// A guest that is notified of bytes only when the stream falls asleep, and then not before its time.
#[derive(Default)]
struct Guest {
    bytes: Bytes,
    /// Notices that may not go yet, and those that went.
    deferred: AtomicUsize,
    received: AtomicUsize,
    too_early: AtomicBool,
    /// Times that the port was asked to deliver them.
    asked: AtomicUsize,
}

impl OtherSide for Guest {
    fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    fn renotify(&self) {
        let none = self.deferred.load(SeqCst) + self.received.load(SeqCst) == 0;
        if self.bytes.got.load(SeqCst) > 0 && none {
            self.deferred.store(1, SeqCst);
        }
    }

    fn defers(&self) -> bool {
        self.asked.fetch_add(1, SeqCst);
        if !self.too_early.load(SeqCst) {
            self.received.fetch_add(self.deferred.swap(0, SeqCst), SeqCst);
        }
        self.deferred.load(SeqCst) > 0
    }
}

#[test]
fn what_a_stream_defers_when_it_falls_asleep_is_delivered_before_its_worker_sleeps() {
    let workers = Workers::start(Settings { spin: Duration::ZERO, ..Settings::default() }).unwrap();
    let (sender, receiver) = (Arc::new(Guest::default()), Arc::new(Guest::default()));
    sender.bytes.stored.store(10, SeqCst);
    receiver.too_early.store(true, SeqCst);
    workers.join([end(&sender, None), end(&receiver, None)]);
    wait_until("the stream falls asleep", || workers.stats().sleeps.get() > 0);
    assert_eq!(receiver.deferred.load(SeqCst), 1);
    let parks = workers.stats().parks.get();
    let asked = receiver.asked.load(SeqCst);
    wait_until("the worker asks again", || receiver.asked.load(SeqCst) > asked + 100);
    assert_eq!(workers.stats().parks.get(), parks, "the worker slept with a notice deferred");
    receiver.too_early.store(false, SeqCst);
    wait_until("the notice is delivered", || receiver.received.load(SeqCst) == 1);
    wait_until("the worker sleeps", || workers.stats().parks.get() > parks);
}

#[test]
fn a_worker_that_never_sleeps_delivers_what_was_deferred_too() {
    let workers = Workers::start(Settings { poll: true, ..Settings::default() }).unwrap();
    let (sender, receiver) = (Arc::new(Guest::default()), Arc::new(Guest::default()));
    sender.bytes.stored.store(10, SeqCst);
    workers.join([end(&sender, None), end(&receiver, None)]);
    wait_until("the notice is delivered", || receiver.received.load(SeqCst) == 1);
}
