//! How long a worker looks by itself before it sleeps: longer when that was worth it, shorter when not.

use std::time::{Duration, Instant};

use crate::engine::Looking;

/// The window shrinks to this part of its limit at most.
const LEAST: u32 = 8;
/// A sleep of so many windows at full length would not have been saved by looking a little longer.
const LONG: u32 = 16;
/// A core that comes back so late is wanted by others. They would have it for a whole slice after each look;
/// who sleeps is scheduled as soon as it is woken. So for a while the worker sleeps as soon as it is idle.
const WANTED: Duration = Duration::from_micros(50);
/// The same where little had moved: it may be gone for as long as a guest takes for an answer, which is then looked for at
/// once. Who has the core for longer has not waited for the worker.
const WANTED_BETWEEN_FEW: Duration = Duration::from_micros(300);
/// Bytes that are more than a question or an answer.
const MUCH: u64 = 4 << 10;
const POLITE: Duration = Duration::from_millis(50);
/// The window of a polite worker: what comes back at once is still caught.
const POLITE_WINDOW: Duration = Duration::from_micros(5);
/// Idle rounds spent in the CPU's pause instruction before the core is offered to others.
const PAUSES: u32 = 32;

/// The window that a worker spins for; never longer than configured.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveSpin {
    most: Duration,
    window: Duration,
    /// The last look that was followed by offering the core to others.
    offered: Option<Instant>,
    /// Others want the core until then.
    polite_until: Option<Instant>,
    /// Bytes that had moved when it was last idle, and what of them moved since it was idle before.
    moved: u64,
    at_once: u64,
}

impl AdaptiveSpin {
    /// Begins with the longest window, `most`.
    pub fn new(most: Duration) -> AdaptiveSpin {
        AdaptiveSpin { most, window: most, offered: None, polite_until: None, moved: 0, at_once: MUCH }
    }

    /// How long to look after the last thing that moved.
    #[inline]
    pub fn window(&self, now: Instant) -> Duration {
        self.looking(now).window
    }

    /// The same, and why.
    #[inline]
    pub fn looking(&self, now: Instant) -> Looking {
        let core_is_wanted = self.is_polite(now);
        let window = if core_is_wanted { POLITE_WINDOW.min(self.window) } else { self.window };
        Looking { window, core_is_wanted }
    }

    #[inline]
    fn is_polite(&self, now: Instant) -> bool {
        self.polite_until.is_some_and(|until| now < until)
    }

    /// The worker has moved `moved` bytes in all, and nothing moves any more. A thread that never calls this counts as one that
    /// moves much.
    #[inline]
    pub fn is_idle(&mut self, moved: u64) {
        self.at_once = moved.saturating_sub(std::mem::replace(&mut self.moved, moved));
    }

    /// The worker looks again: did its core come back late?
    #[inline]
    pub fn looks(&mut self, now: Instant) {
        let wanted = if self.at_once < MUCH { WANTED_BETWEEN_FEW } else { WANTED };
        if let Some(offered) = self.offered.take()
            && now.saturating_duration_since(offered) > wanted
        {
            self.polite_until = Some(now + POLITE);
        }
    }

    /// A worker that has been idle for `idle`, the last `rounds` rounds: does it look again?
    pub fn goes_on(&mut self, now: Instant, idle: Duration, rounds: u32) -> bool {
        let polite = rounds >= PAUSES && self.is_polite(now);
        idle < self.window && !polite
    }

    /// Lets a moment pass before the next look.
    pub fn pause(&mut self, now: Instant, rounds: u32) {
        if rounds < PAUSES {
            std::hint::spin_loop();
        } else {
            self.offered = Some(now);
            std::thread::yield_now();
        }
    }

    /// Something moved after naps, `idle` after what had moved before.
    pub fn napped(&mut self, idle: Duration) {
        self.offered = None;
        if idle < self.most {
            self.window = (self.window * 2).min(self.most);
        } else if idle >= self.most * 2 {
            self.window = (self.window / 2).max(self.most / LEAST);
        }
    }

    /// The worker slept for `length`; `woken` by an announcement rather than by the clock.
    pub fn slept(&mut self, length: Duration, woken: bool) {
        self.offered = None;
        if woken && length < self.most {
            self.window = (self.window * 2).min(self.most);
        } else if length >= self.most * LONG {
            self.window = (self.window / 2).max(self.most / LEAST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_micros(500);

    #[test]
    fn the_window_shrinks_while_nothing_comes_and_grows_when_looking_would_have_helped() {
        let mut spin = AdaptiveSpin::new(MOST);
        let now = Instant::now();
        assert_eq!(spin.window(now), MOST);
        for _ in 0..100 {
            spin.slept(Duration::from_millis(100), false);
        }
        assert_eq!(spin.window(now), MOST / 8);
        spin.slept(Duration::from_millis(100), true);
        assert_eq!(spin.window(now), MOST / 8, "a longer window would not have caught it");
        for times in [4, 2, 1, 1] {
            spin.slept(Duration::from_micros(100), true);
            assert_eq!(spin.window(now), MOST / times);
        }
        spin.slept(Duration::from_millis(2), true);
        assert_eq!(spin.window(now), MOST, "neither worth it nor in vain");
    }

    #[test]
    fn where_something_comes_now_and_then_the_window_shrinks_too() {
        let mut spin = AdaptiveSpin::new(MOST);
        let now = Instant::now();
        (0..9).for_each(|_| spin.napped(2 * MOST));
        assert_eq!(spin.window(now), MOST / 8);
        spin.napped(MOST);
        assert_eq!(spin.window(now), MOST / 8, "neither worth it nor in vain");
        (0..2).for_each(|_| spin.napped(MOST / 5));
        assert_eq!(spin.window(now), MOST / 2);
    }

    #[test]
    fn a_core_that_others_want_is_left_to_them_for_a_while() {
        let mut spin = AdaptiveSpin::new(MOST);
        let start = Instant::now();
        assert!(spin.goes_on(start, Duration::ZERO, 40));
        spin.pause(start, 40);
        let late = start + 2 * WANTED;
        spin.looks(late);
        assert!(!spin.goes_on(late, 2 * WANTED, 41), "its core came back late");
        assert_eq!(spin.window(late), POLITE_WINDOW);
        assert_eq!(spin.window(late + POLITE), MOST);
        assert!(spin.goes_on(late, Duration::ZERO, 0), "a few looks are free");
        assert!(spin.goes_on(late + POLITE, Duration::ZERO, 41), "and only for a while");
    }

    #[test]
    fn between_questions_and_answers_a_core_may_be_gone_for_longer() {
        let start = Instant::now();
        // Whether a core that comes back after so long is taken for wanted, where so many bytes had moved by each idle round.
        let is_wanted = |moved: &[u64], after: Duration| {
            let mut spin = AdaptiveSpin::new(MOST);
            moved.iter().for_each(|moved| spin.is_idle(*moved));
            spin.pause(start, 40);
            spin.looks(start + after);
            spin.window(start + after) == POLITE_WINDOW
        };
        assert!(is_wanted(&[], 2 * WANTED));
        assert!(is_wanted(&[100, MUCH + 100], 2 * WANTED));
        assert!(!is_wanted(&[MUCH, MUCH + 100], 2 * WANTED), "only the last of them counts");
        assert!(!is_wanted(&[100, 200, 300], WANTED_BETWEEN_FEW));
        assert!(is_wanted(&[100, 200], 2 * WANTED_BETWEEN_FEW));
    }
}
