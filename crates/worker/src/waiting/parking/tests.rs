//! Every order of a worker that goes to sleep and a thread that has something for it. A lost wake-up is
//! a deadlock of the model: the worker sleeps for ever.

use super::*;
use crate::model::{deadlocks, variant};
use crate::sync::{Arc, thread};

/// What the worker does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worker {
    Right,
    /// It polls before it is marked asleep, and not again.
    PollsTooEarly,
    /// It is marked asleep without a fence.
    NoFence,
    /// It acknowledges after it has polled.
    AcknowledgesLate,
}

/// What the other thread does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    Right,
    /// It checks whether the worker sleeps without a fence after publishing.
    NoFence,
    /// It checks before it publishes.
    ChecksTooEarly,
}

/// Something that an engine's ports share with other threads.
#[derive(Default)]
struct Ring {
    written: AtomicBool,
}

struct Model {
    parking: Parking,
    ring: Ring,
}

impl Model {
    fn sleep_until_written(&self, how: Worker) {
        while !self.ring.written.load(Ordering::Acquire) {
            match how {
                Worker::NoFence => self.parking.asleep.store(true, Ordering::Relaxed),
                Worker::PollsTooEarly => {}
                _ => self.parking.prepare_sleep(),
            }
            let ready = self.ring.written.load(Ordering::Relaxed);
            if how == Worker::PollsTooEarly {
                self.parking.prepare_sleep();
            }
            if !ready {
                self.sleep();
            } else {
                self.parking.finish_sleep(false);
            }
        }
    }

    fn sleep(&self) {
        self.parking.file().poll();
        self.parking.finish_sleep(true);
    }

    fn write(&self, how: Other) {
        match how {
            Other::Right => {
                self.ring.written.store(true, Ordering::Release);
                self.parking.wake();
            }
            Other::NoFence => {
                self.ring.written.store(true, Ordering::Release);
                if self.parking.asleep.load(Ordering::Relaxed) {
                    self.parking.file.raise();
                }
            }
            Other::ChecksTooEarly => {
                let asleep = self.parking.asleep.load(Ordering::Relaxed);
                self.ring.written.store(true, Ordering::Release);
                if asleep {
                    self.parking.file.raise();
                }
            }
        }
    }

    /// As a command queue: what is notified is acknowledged, then taken.
    fn take_until(&self, how: Worker) {
        loop {
            if self.parking.is_notified() {
                if how != Worker::AcknowledgesLate {
                    self.parking.acknowledge();
                }
                let taken = self.ring.written.load(Ordering::Acquire);
                if how == Worker::AcknowledgesLate {
                    self.parking.acknowledge();
                }
                if taken {
                    return;
                }
            }
            self.parking.prepare_sleep();
            if self.parking.is_notified() {
                self.parking.finish_sleep(false);
            } else {
                self.sleep();
            }
        }
    }
}

/// Tries every order: the worker always sees what was written.
fn holds(worker: Worker, other: Other) {
    loom::model(move || {
        let model = Arc::new(Model { parking: Parking::new().unwrap(), ring: Ring::default() });
        let sleeper = model.clone();
        let thread = thread::spawn(move || sleeper.sleep_until_written(worker));
        model.write(other);
        thread.join().unwrap();
    });
}

#[test]
fn a_worker_that_sleeps_by_the_rules_is_always_woken() {
    holds(Worker::Right, Other::Right);
}

/// Two notifications, of which only the second one is behind what the worker is to take.
fn notifications_hold(worker: Worker) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let model = Arc::new(Model { parking: Parking::new().unwrap(), ring: Ring::default() });
        let sleeper = model.clone();
        let thread = thread::spawn(move || sleeper.take_until(worker));
        model.parking.notify();
        model.ring.written.store(true, Ordering::Release);
        model.parking.notify();
        thread.join().unwrap();
    });
}

#[test]
fn a_notification_is_acknowledged_before_anything_is_taken() {
    notifications_hold(Worker::Right);
}

#[test]
#[ignore = "fails, and is run by the next one"]
fn broken() {
    match &*variant() {
        "worker polls too early" => holds(Worker::PollsTooEarly, Other::Right),
        "worker without fence" => holds(Worker::NoFence, Other::Right),
        "other without fence" => holds(Worker::Right, Other::NoFence),
        "other checks too early" => holds(Worker::Right, Other::ChecksTooEarly),
        "late acknowledgement" => notifications_hold(Worker::AcknowledgesLate),
        variant => panic!("{variant}?"),
    }
}

#[test]
fn the_model_finds_the_wake_up_that_a_missing_or_misplaced_step_loses() {
    for variant in [
        "worker polls too early",
        "worker without fence",
        "other without fence",
        "other checks too early",
        "late acknowledgement",
    ] {
        assert!(deadlocks("waiting::parking::tests::broken", variant), "{variant}: no wake-up is lost");
    }
}
