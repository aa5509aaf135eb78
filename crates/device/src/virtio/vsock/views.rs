//! What an operator may see of the virtio-vsock devices: the worker answers between two rounds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use vmlane_vsock::SocketAddress;

use super::stats::GuestStats;

/// One VM.
#[derive(Clone, Debug)]
pub struct GuestView {
    pub cid: u32,
    /// Its driver has set the device up: its rings run.
    pub ready: bool,
    /// Connections it opened.
    pub opened: usize,
    /// All of its connections.
    pub connections: usize,
    /// Those that count against what it may have: that it opened, and all with VMCI guests and the host.
    pub counted: usize,
    pub limit: usize,
    pub stats: Arc<GuestStats>,
}

/// One connection with such a VM at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    pub client: SocketAddress,
    pub server: SocketAddress,
    /// The server has answered.
    pub established: bool,
}

impl ConnectionView {
    /// As VMCI connections' states are called.
    pub fn state(&self) -> &'static str {
        if self.established { "established" } else { "requested" }
    }
}

/// How long the worker may take to answer. One that is stuck is shown as it was.
const TIMEOUT: Duration = Duration::from_millis(500);

/// A question to the worker. One at most is on its way, however many ask.
#[derive(Debug, Default)]
pub struct Question<T> {
    state: Mutex<State<T>>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct State<T> {
    asked: bool,
    /// Answers so far.
    number: u64,
    last: Arc<T>,
}

impl<T> Question<T> {
    /// The answer, or the one before if the worker gives none in time. `send`: makes the worker answer.
    pub fn ask(&self, send: impl FnOnce()) -> Arc<T> {
        let deadline = Instant::now() + TIMEOUT;
        let mut state = self.state.lock();
        let before = state.number;
        if !std::mem::replace(&mut state.asked, true) {
            send();
        }
        while state.number == before && !self.answered.wait_until(&mut state, deadline).timed_out() {}
        state.last.clone()
    }

    pub fn answer(&self, answer: T) {
        let mut state = self.state.lock();
        (state.asked, state.last) = (false, Arc::new(answer));
        state.number += 1;
        self.answered.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_does_not_answer_is_asked_once_and_shown_as_it_was() {
        let question = Question::<u32>::default();
        std::thread::scope(|scope| {
            let answers = |number| {
                let question = &question;
                move || drop(scope.spawn(move || question.answer(number)))
            };
            assert_eq!(*question.ask(answers(7)), 7);
            let mut sent = 0;
            assert_eq!([*question.ask(|| sent += 1), *question.ask(|| sent += 1)], [7, 7]);
            assert_eq!(sent, 1, "the first is still on its way");
            question.answer(8);
            assert_eq!(*question.ask(answers(9)), 9);
        });
    }
}
