//! How long a worker spins and yields before it naps or sleeps: as long as that costs less than a sleep
//! would, and hardly at all while others want its core.

use std::time::{Duration, Instant};

use super::gaps::Gaps;

/// A core that comes back so late from a yield was with others.
const LATE: Duration = Duration::from_micros(50);
/// The same where little had moved: the core may be gone for as long as a guest takes for an answer, which is
/// then found at once. Who has the core for longer has not waited for the worker.
const LATE_AFTER_FEW: Duration = Duration::from_micros(300);
/// Bytes that are more than a question or an answer.
pub const MUCH: u64 = 4 << 10;
/// A core that was with others for a quarter of this time is *contended*: they would have it for a whole
/// slice after each round, while who sleeps is scheduled as soon as it is notified. So for a while the worker
/// sleeps as soon as it is idle. A program that runs now and then, for less than that, changes nothing.
const JUDGED: Duration = Duration::from_millis(8);
const CONTENDED: Duration = Duration::from_millis(50);
/// The window of ports while the core is contended: what comes back at once is still caught.
const CONTENDED_WINDOW: Duration = Duration::from_micros(5);

/// The window in which a worker spins and yields; never longer than configured.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    gaps: Gaps,
    /// The last round that was followed by a yield.
    yielded: Option<Instant>,
    /// For how long the core was with others since then.
    lost: Option<(Instant, Duration)>,
    /// Others want the core until then.
    contended_until: Option<Instant>,
    /// Bytes that had moved when it was last idle, and what of them moved since it was idle before.
    moved: u64,
    at_once: u64,
}

impl Window {
    /// Begins with the longest window; a sleep costs as much as so much spinning.
    pub fn new(longest: Duration, sleep: Duration) -> Window {
        let (yielded, lost, contended_until) = (None, None, None);
        Window { gaps: Gaps::new(longest, sleep), yielded, lost, contended_until, moved: 0, at_once: MUCH }
    }

    #[inline]
    pub fn is_contended(&self, now: Instant) -> bool {
        self.contended_until.is_some_and(|until| now < until)
    }

    /// How long a port is polled after the last thing that moved.
    #[inline]
    pub fn of_ports(&self, contended: bool) -> Duration {
        let window = self.gaps.window();
        if contended { CONTENDED_WINDOW.min(window) } else { window }
    }

    /// The worker has moved `moved` bytes in all, and nothing moves any more. A thread that never calls this
    /// counts as one that moves much.
    #[inline]
    pub fn became_idle(&mut self, moved: u64) {
        self.at_once = moved.saturating_sub(std::mem::replace(&mut self.moved, moved));
    }

    /// The worker polls again: did its core come back late?
    #[inline]
    pub fn resumed(&mut self, now: Instant) {
        let Some(yielded) = self.yielded.take() else { return };
        let late = if self.at_once < MUCH { LATE_AFTER_FEW } else { LATE };
        let away = now.saturating_duration_since(yielded);
        if away > late {
            self.lose(yielded, now, away);
        }
    }

    #[cold]
    fn lose(&mut self, from: Instant, now: Instant, away: Duration) {
        let recent = self.lost.filter(|(since, _)| now.saturating_duration_since(*since) < JUDGED);
        let (since, before) = recent.unwrap_or((from, Duration::ZERO));
        let lost = before + away;
        self.lost = Some((since, lost));
        if lost >= JUDGED / 4 {
            (self.contended_until, self.lost) = (Some(now + CONTENDED), None);
        }
    }

    /// Does a worker go on that has been idle for `idle`? `yields`: not without offering its core.
    pub fn is_open(&self, now: Instant, idle: Duration, yields: bool) -> bool {
        self.is_within(idle) && !(yields && self.is_contended(now))
    }

    /// Has a worker been idle for less than the window?
    #[inline]
    pub fn is_within(&self, idle: Duration) -> bool {
        idle < self.gaps.window()
    }

    /// The core is offered to others now.
    pub fn yields(&mut self, now: Instant) {
        self.yielded = Some(now);
    }

    /// Something moved, `idle` after what had moved before.
    #[inline]
    pub fn found(&mut self, idle: Duration) {
        self.gaps.add(idle);
    }
}

#[cfg(test)]
mod tests {
    use super::super::gaps::SLEEP;
    use super::*;

    const MOST: Duration = Duration::from_micros(500);

    fn of_ports(window: &Window, now: Instant) -> Duration {
        window.of_ports(window.is_contended(now))
    }

    /// A window whose core comes back after each of these times, one after the other.
    fn with(window: &mut Window, start: Instant, away: &[Duration]) -> Instant {
        away.iter().fold(start, |now, away| {
            window.yields(now);
            window.resumed(now + *away);
            now + *away
        })
    }

    #[test]
    fn a_core_that_others_have_for_long_is_left_to_them_for_a_while() {
        let mut window = Window::new(MOST, SLEEP);
        let start = Instant::now();
        assert!(window.is_open(start, Duration::ZERO, true));
        let late = with(&mut window, start, &[JUDGED / 4]);
        assert!(!window.is_open(late, LATE, true), "others have it");
        assert_eq!(of_ports(&window, late), CONTENDED_WINDOW);
        assert_eq!(of_ports(&window, late + CONTENDED), MOST);
        assert!(window.is_open(late, Duration::ZERO, false), "a few rounds are free");
        assert!(window.is_open(late + CONTENDED, Duration::ZERO, true), "and only for a while");
    }

    #[test]
    fn a_program_that_runs_now_and_then_changes_nothing() {
        let (slice, between) = (Duration::from_millis(1), Duration::from_millis(19));
        let (mut window, mut now) = (Window::new(MOST, SLEEP), Instant::now());
        for _ in 0..100 {
            now = with(&mut window, now, &[slice]) + between;
            assert!(!window.is_contended(now));
        }
        let often = [2 * LATE; 19];
        now = with(&mut window, now, &often);
        assert!(!window.is_contended(now), "not for long enough yet");
        now = with(&mut window, now, &[2 * LATE; 40]);
        assert!(window.is_contended(now));
    }

    #[test]
    fn between_questions_and_answers_a_core_may_be_gone_for_longer() {
        let start = Instant::now();
        // Whether a core that comes back after so long, again and again, is taken for contended, where so
        // many bytes had moved by each idle round.
        let is_contended = |moved: &[u64], after: Duration| {
            let mut window = Window::new(MOST, SLEEP);
            moved.iter().for_each(|moved| window.became_idle(*moved));
            let now = with(&mut window, start, &[after; 40]);
            of_ports(&window, now) == CONTENDED_WINDOW
        };
        assert!(is_contended(&[], 2 * LATE));
        assert!(is_contended(&[100, MUCH + 100], 2 * LATE));
        assert!(!is_contended(&[MUCH, MUCH + 100], 2 * LATE), "only the last of them counts");
        assert!(!is_contended(&[100, 200, 300], LATE_AFTER_FEW));
        assert!(is_contended(&[100, 200], 2 * LATE_AFTER_FEW));
    }
}
