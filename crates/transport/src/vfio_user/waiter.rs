//! How a session waits for its VMM: it sleeps, or it polls for a moment because an access is about to come.
//!
//! A vCPU waits for the answer to each access, and what that costs is mostly that threads are woken, this one
//! among them. So the thread polls while the device expects an access ([`Expected`]), offering its core to
//! others all the time. A core that comes back late is wanted: then the thread sleeps as if it expected
//! nothing, for a while.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use vmlane_device::pci::Expected;

use super::inbox::Received;

/// A core that comes back so late from a yield is wanted by others.
const LATE: Duration = Duration::from_micros(50);
/// They have it for so long.
const PAUSE: Duration = Duration::from_millis(5);

/// What a session has learned about its waits.
pub struct Waiter {
    /// The access that was expected last came in time, so a burst pays for one sleep at its beginning and one
    /// vain poll at its end.
    in_time: bool,
    /// The same of the one that was expected after an interrupt.
    prompt: bool,
    /// Others want the core until then.
    contended_until: Option<Instant>,
}

impl Waiter {
    pub fn new() -> Waiter {
        Waiter { in_time: false, prompt: true, contended_until: None }
    }

    /// Waits by `receive`, which is asked whether it may sleep itself. `sleep` returns true when an interrupt
    /// was raised meanwhile, and false when there is something to receive.
    pub fn wait(
        &mut self,
        expected: Expected,
        mut sleep: impl FnMut() -> Result<bool, Errno>,
        mut receive: impl FnMut(bool) -> Result<Received, Errno>,
    ) -> Result<Received, Errno> {
        let begun = Instant::now();
        if (expected.certain || self.in_time)
            && let Some(received) = self.poll(expected.within, &mut receive)?
        {
            self.in_time = true;
            return Ok(received);
        }
        let mut raised = None;
        while sleep()? {
            raised = Some(Instant::now());
            if self.prompt
                && let Some(received) = self.poll(expected.after_vector_0, &mut receive)?
            {
                return Ok(received);
            }
        }
        let received = receive(true);
        if !expected.within.is_zero() {
            self.in_time = begun.elapsed() < expected.within;
        }
        if let Some(raised) = raised {
            self.prompt = raised.elapsed() < expected.after_vector_0;
        }
        received
    }

    fn poll(
        &mut self,
        within: Duration,
        receive: &mut impl FnMut(bool) -> Result<Received, Errno>,
    ) -> Result<Option<Received>, Errno> {
        let begun = Instant::now();
        let mut now = begun;
        while now - begun < within && !self.is_contended(now) {
            match receive(false)? {
                Received::Nothing => std::thread::yield_now(),
                received => return Ok(Some(received)),
            }
            let yielded = std::mem::replace(&mut now, Instant::now());
            self.resumed(yielded, now);
        }
        Ok(None)
    }

    fn is_contended(&self, now: Instant) -> bool {
        self.contended_until.is_some_and(|until| now < until)
    }

    /// The core was offered to others after `yielded`, and it is back.
    fn resumed(&mut self, yielded: Instant, now: Instant) {
        if now - yielded > LATE {
            self.contended_until = Some(now + PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than a test takes.
    const LONG: Duration = Duration::from_secs(3600);

    /// What a wait did, in order: p is a poll, s a sleep, r a receiving that may sleep. `interrupts`: how
    /// often an interrupt ends a sleep; something is there for the third poll, or after the last sleep.
    fn trace(waiter: &mut Waiter, expected: Expected, interrupts: usize) -> String {
        let trace = std::cell::RefCell::new(String::new());
        let did = |what| trace.borrow_mut().push(what);
        let mut interrupts = interrupts;
        let sleep = || {
            did('s');
            interrupts = interrupts.saturating_sub(1);
            Ok(interrupts > 0)
        };
        let receive = |waits| {
            did(if waits { 'r' } else { 'p' });
            let there = waits || trace.borrow().ends_with("ppp");
            Ok(if there { Received::Bytes } else { Received::Nothing })
        };
        // A core that comes back late, on a busy machine, would end the polls.
        waiter.contended_until = None;
        assert_eq!(waiter.wait(expected, sleep, receive), Ok(Received::Bytes));
        trace.into_inner()
    }

    #[test]
    fn it_polls_for_what_is_certain_or_came_in_time_before_and_after_interrupts() {
        let nothing = Expected::default();
        let likely = Expected { within: LONG, ..nothing };
        let certain = Expected { certain: true, ..likely };
        let after = Expected { after_vector_0: LONG, ..nothing };
        let polls = |trace: String| trace.contains('p');
        for (expected, interrupts, first, second) in [
            (nothing, 0, false, false),
            // The first one came in time.
            (likely, 0, false, true),
            (certain, 0, true, true),
            (after, 2, true, true),
            (after, 1, false, false),
        ] {
            let mut waiter = Waiter::new();
            let did = [(); 2].map(|()| polls(trace(&mut waiter, expected, interrupts)));
            assert_eq!(did, [first, second], "{expected:?}, {interrupts} interrupts");
        }
    }

    #[test]
    fn what_comes_late_is_not_polled_for_again() {
        let soon = Duration::from_nanos(1);
        let (likely, after) = (
            Expected { within: soon, ..Expected::default() },
            Expected { after_vector_0: soon, ..Expected::default() },
        );
        let mut waiter = Waiter::new();
        waiter.in_time = true;
        trace(&mut waiter, likely, 0);
        trace(&mut waiter, after, 2);
        assert_eq!((waiter.in_time, waiter.prompt), (false, false));
    }

    #[test]
    fn a_core_that_comes_back_late_is_left_to_others_for_a_while() {
        let mut waiter = Waiter::new();
        let start = Instant::now();
        waiter.resumed(start, start + LATE);
        assert!(!waiter.is_contended(start + LATE));
        waiter.resumed(start, start + 2 * LATE);
        assert!(waiter.is_contended(start + PAUSE) && !waiter.is_contended(start + 2 * PAUSE));
        waiter.contended_until = Some(Instant::now() + LONG);
        assert_eq!(waiter.poll(LONG, &mut |_| Ok(Received::Nothing)), Ok(None));
    }
}
