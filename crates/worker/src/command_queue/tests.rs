//! Every order of a caller, a second one, and a worker that takes, panics, or ends.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::*;
use crate::model::{deadlocks, variant};
use crate::sync::thread;

/// What the worker's thread does with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Carries it out.
    Done,
    /// Panics in it, and goes on.
    Panics,
    /// Panics in it, and the thread ends.
    Dies,
}

struct Command {
    fate: Fate,
    _answer: Answer,
}

type Queue = CommandQueue<Command>;

/// The worker's thread ends however it likes: the queue is closed.
struct Closes(Arc<Queue>);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn serve(queue: &Arc<Queue>, closes: bool) {
    let _closes = closes.then(|| Closes(queue.clone()));
    let mut commands = Vec::new();
    loop {
        if queue.parking().is_notified() {
            queue.parking().acknowledge();
            let go_on = queue.take(&mut commands);
            for command in commands.drain(..) {
                match command.fate {
                    Fate::Done => drop(command),
                    // Unwinds as a panic does, without a message.
                    Fate::Panics => drop(catch_unwind(AssertUnwindSafe(move || {
                        let _held = command;
                        resume_unwind(Box::new(()))
                    }))),
                    Fate::Dies => return,
                }
            }
            if !go_on {
                return;
            }
        }
        queue.parking().prepare_sleep();
        let sleeps = !queue.parking().is_notified();
        if sleeps {
            queue.parking().file().poll();
        }
        queue.parking().finish_sleep(sleeps);
    }
}

fn ask(queue: &Queue, fate: Fate) -> Result<(), Refused> {
    let calls = Calls::new();
    let asked = queue.call(|()| Some(Command { fate, _answer: calls.answer() }));
    calls.wait();
    asked
}

/// One worker with one place, a caller beside this one.
fn all_are_answered(first: Fate, second: Fate, closes: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(1);
    model.check(move || {
        let queue = Arc::new(Queue::with_places(Parking::new().unwrap(), 1));
        let worker = queue.clone();
        let worker = thread::spawn(move || serve(&worker, closes));
        let other = queue.clone();
        let other = thread::spawn(move || ask(&other, second));
        let asked = ask(&queue, first);
        let other = other.join().unwrap();
        if ![first, second].contains(&Fate::Dies) {
            assert_eq!((asked, other), (Ok(()), Ok(())));
        }
        queue.stop();
        worker.join().unwrap();
        assert_eq!(ask(&queue, Fate::Done), Err(Refused), "the thread has ended");
    });
}

#[test]
fn callers_are_answered_whether_commands_are_done_or_panic() {
    all_are_answered(Fate::Done, Fate::Done, true);
    all_are_answered(Fate::Panics, Fate::Done, true);
}

#[test]
fn callers_are_answered_when_the_thread_ends_under_them() {
    all_are_answered(Fate::Dies, Fate::Done, true);
}

#[test]
#[ignore = "fails, and is run by the next one"]
fn broken() {
    assert_eq!(variant(), "a thread ends without closing its queue");
    all_are_answered(Fate::Dies, Fate::Done, false);
}

#[test]
fn the_model_finds_the_caller_that_a_dead_thread_leaves_waiting() {
    assert!(deadlocks("command_queue::tests::broken", "a thread ends without closing its queue"));
}

/// A state that is signalled at most once until it is taken.
#[derive(Default)]
struct Signalled(bool);

impl Shared<u32> for Signalled {
    fn taken(&mut self, _: &mut [u32]) {
        self.0 = false;
    }
}

#[test]
fn a_post_that_waits_already_is_merged_and_one_that_was_taken_is_not() {
    loom::model(|| {
        let queue = Arc::new(CommandQueue::<u32, Signalled>::new(Parking::new().unwrap()));
        let post =
            |number| queue.post(|state| ((!std::mem::replace(&mut state.0, true)).then_some(number), ()));
        post(1);
        post(2);
        let mut taken = Vec::new();
        queue.parking().acknowledge();
        assert!(queue.take(&mut taken));
        assert_eq!(taken, [1]);
        taken.clear();
        post(3);
        queue.stop();
        queue.parking().acknowledge();
        assert!(!queue.take(&mut taken));
        assert_eq!(taken, [3]);
    });
}

/// Two queues of one worker: whichever is asked, and in whatever order, the worker takes both and sleeps
/// through neither.
#[test]
fn a_worker_with_two_queues_sleeps_through_neither() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(1);
    model.check(|| {
        let parking = Arc::new(Parking::new().unwrap());
        let queues = [0, 1].map(|_| Arc::new(Queue::with_places(parking.clone(), 1)));
        let own = queues.clone();
        let worker = thread::spawn(move || {
            let (mut commands, mut taken) = (Vec::new(), 0);
            while taken < 2 {
                if parking.is_notified() {
                    parking.acknowledge();
                    for queue in &own {
                        queue.take(&mut commands);
                        taken += commands.drain(..).count();
                    }
                    continue;
                }
                parking.prepare_sleep();
                let sleeps = !parking.is_notified();
                if sleeps {
                    parking.file().poll();
                }
                parking.finish_sleep(sleeps);
            }
        });
        let callers = queues.map(|queue| thread::spawn(move || ask(&queue, Fate::Done)));
        for caller in callers {
            assert_eq!(caller.join().unwrap(), Ok(()));
        }
        worker.join().unwrap();
    });
}
