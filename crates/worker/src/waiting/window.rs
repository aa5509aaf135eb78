//! How long a worker spins and yields before it naps or sleeps: longer when that was worth it, shorter when
//! not, and hardly at all while others want its core.

use std::time::{Duration, Instant};

/// The window shrinks to this part of its limit at most.
const LEAST: u32 = 8;
/// A sleep of so many windows at full length would not have been saved by polling a little longer.
const LONG: u32 = 16;
/// A core that comes back so late from a yield is wanted by others: it is contended. They would have it for a
/// whole slice after each round; who sleeps is scheduled as soon as it is notified. So for a while the worker
/// sleeps as soon as it is idle.
const LATE: Duration = Duration::from_micros(50);
/// The same where little had moved: the core may be gone for as long as a guest takes for an answer, which is
/// then found at once. Who has the core for longer has not waited for the worker.
const LATE_AFTER_FEW: Duration = Duration::from_micros(300);
/// Bytes that are more than a question or an answer.
pub const MUCH: u64 = 4 << 10;
const CONTENDED: Duration = Duration::from_millis(50);
/// The window of ports while the core is contended: what comes back at once is still caught.
const CONTENDED_WINDOW: Duration = Duration::from_micros(5);

/// The window in which a worker spins and yields; never longer than configured.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    longest: Duration,
    length: Duration,
    /// The last round that was followed by a yield.
    yielded: Option<Instant>,
    /// Others want the core until then.
    contended_until: Option<Instant>,
    /// Bytes that had moved when it was last idle, and what of them moved since it was idle before.
    moved: u64,
    at_once: u64,
}

impl Window {
    /// Begins with the longest window.
    pub fn new(longest: Duration) -> Window {
        Window { longest, length: longest, yielded: None, contended_until: None, moved: 0, at_once: MUCH }
    }

    #[inline]
    pub fn is_contended(&self, now: Instant) -> bool {
        self.contended_until.is_some_and(|until| now < until)
    }

    /// How long a port is polled after the last thing that moved.
    #[inline]
    pub fn of_ports(&self, contended: bool) -> Duration {
        if contended { CONTENDED_WINDOW.min(self.length) } else { self.length }
    }

    /// The worker has moved `moved` bytes in all, and nothing moves any more. A thread that never calls this
    /// counts as one that moves much.
    #[inline]
    pub fn became_idle(&mut self, moved: u64) {
        self.at_once = moved.saturating_sub(std::mem::replace(&mut self.moved, moved));
    }

    /// The worker has polled again: did its core come back late?
    #[inline]
    pub fn resumed(&mut self, now: Instant) {
        let late = if self.at_once < MUCH { LATE_AFTER_FEW } else { LATE };
        if let Some(yielded) = self.yielded.take()
            && now.saturating_duration_since(yielded) > late
        {
            self.contended_until = Some(now + CONTENDED);
        }
    }

    /// Does a worker go on that has been idle for `idle`? `yields`: not without offering its core.
    pub fn is_open(&self, now: Instant, idle: Duration, yields: bool) -> bool {
        self.is_within(idle) && !(yields && self.is_contended(now))
    }

    /// Has a worker been idle for less than the window?
    #[inline]
    pub fn is_within(&self, idle: Duration) -> bool {
        idle < self.length
    }

    /// The core is offered to others now.
    pub fn yields(&mut self, now: Instant) {
        self.yielded = Some(now);
    }

    /// Something moved after naps, `idle` after what had moved before.
    pub fn napped(&mut self, idle: Duration) {
        self.adapt(idle < self.longest, idle >= self.longest * 2);
    }

    /// The worker slept for `length`; `notified`: not until its limit was over.
    pub fn slept(&mut self, length: Duration, notified: bool) {
        self.adapt(notified && length < self.longest, length >= self.longest * LONG);
    }

    fn adapt(&mut self, grows: bool, shrinks: bool) {
        self.yielded = None;
        if grows {
            self.length = (self.length * 2).min(self.longest);
        } else if shrinks {
            self.length = (self.length / 2).max(self.longest / LEAST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_micros(500);

    fn of_ports(window: &Window, now: Instant) -> Duration {
        window.of_ports(window.is_contended(now))
    }

    #[test]
    fn the_window_shrinks_while_nothing_comes_and_grows_when_polling_would_have_helped() {
        let mut window = Window::new(MOST);
        assert_eq!(window.length, MOST);
        for _ in 0..100 {
            window.slept(Duration::from_millis(100), false);
        }
        assert_eq!(window.length, MOST / 8);
        window.slept(Duration::from_millis(100), true);
        assert_eq!(window.length, MOST / 8, "a longer window would not have caught it");
        for times in [4, 2, 1, 1] {
            window.slept(Duration::from_micros(100), true);
            assert_eq!(window.length, MOST / times);
        }
        window.slept(Duration::from_millis(2), true);
        assert_eq!(window.length, MOST, "neither worth it nor in vain");
    }

    #[test]
    fn where_something_comes_now_and_then_the_window_shrinks_too() {
        let mut window = Window::new(MOST);
        (0..9).for_each(|_| window.napped(2 * MOST));
        assert_eq!(window.length, MOST / 8);
        window.napped(MOST);
        assert_eq!(window.length, MOST / 8, "neither worth it nor in vain");
        (0..2).for_each(|_| window.napped(MOST / 5));
        assert_eq!(window.length, MOST / 2);
    }

    #[test]
    fn a_core_that_others_want_is_left_to_them_for_a_while() {
        let mut window = Window::new(MOST);
        let start = Instant::now();
        assert!(window.is_open(start, Duration::ZERO, true));
        window.yields(start);
        let late = start + 2 * LATE;
        window.resumed(late);
        assert!(!window.is_open(late, 2 * LATE, true), "its core came back late");
        assert_eq!(of_ports(&window, late), CONTENDED_WINDOW);
        assert_eq!(of_ports(&window, late + CONTENDED), MOST);
        assert!(window.is_open(late, Duration::ZERO, false), "a few rounds are free");
        assert!(window.is_open(late + CONTENDED, Duration::ZERO, true), "and only for a while");
    }

    #[test]
    fn between_questions_and_answers_a_core_may_be_gone_for_longer() {
        let start = Instant::now();
        // Whether a core that comes back after so long is taken for contended, where so many bytes had moved
        // by each idle round.
        let is_contended = |moved: &[u64], after: Duration| {
            let mut window = Window::new(MOST);
            moved.iter().for_each(|moved| window.became_idle(*moved));
            window.yields(start);
            window.resumed(start + after);
            of_ports(&window, start + after) == CONTENDED_WINDOW
        };
        assert!(is_contended(&[], 2 * LATE));
        assert!(is_contended(&[100, MUCH + 100], 2 * LATE));
        assert!(!is_contended(&[MUCH, MUCH + 100], 2 * LATE), "only the last of them counts");
        assert!(!is_contended(&[100, 200, 300], LATE_AFTER_FEW));
        assert!(is_contended(&[100, 200], 2 * LATE_AFTER_FEW));
    }
}
