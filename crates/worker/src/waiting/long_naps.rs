//! Long naps of a worker whose core others want.
//!
//! What such a worker waits for comes from a guest that waits for its core. The longer the worker is away, the more it finds,
//! and the fewer announcements and interrupts there are for a byte. But a guest whose window or ring is full sends no more, however
//! long the worker stays away. Which it is shows by trying: some naps of either length, then many of the one that moved more.
//! Few bytes are a question and its answer, which are not to wait.

use std::time::{Duration, Instant};

use crate::engine::Looking;

/// Their length.
const LENGTH: Duration = Duration::from_micros(150);
/// So many bytes since the last nap are worth one.
const WORTH: u64 = 4 << 10;
/// How many naps of one length are judged together.
const JUDGED: u32 = 8;
/// How often so many follow before both lengths are tried again.
const KEPT: u32 = 10;
/// Naps that took so long in all had pauses between them that had other reasons.
const TOO_LONG: Duration = Duration::from_millis(50);

/// Naps of one length that are judged together.
#[derive(Clone, Copy, Debug)]
struct Span {
    began: Instant,
    /// Bytes that the worker had moved by then.
    moved: u64,
    naps: u32,
}

/// When a worker takes them. It says how many bytes it has moved so far.
#[derive(Debug)]
pub struct LongNaps {
    core_is_wanted: bool,
    now: Instant,
    /// Bytes that had moved when the worker last rested.
    moved: u64,
    /// Whether naps are long at the moment.
    long: bool,
    span: Option<Span>,
    /// Bytes a second that a trial of the other length has brought, and spans until the next trial.
    other: Option<f64>,
    kept: u32,
}

impl Default for LongNaps {
    fn default() -> LongNaps {
        let now = Instant::now();
        LongNaps { core_is_wanted: false, now, moved: 0, long: true, span: None, other: None, kept: 0 }
    }
}

impl LongNaps {
    /// The clock was read.
    #[inline]
    pub fn clock(&mut self, now: Instant, looking: Looking) {
        self.now = now;
        self.core_is_wanted = looking.core_is_wanted;
        if !looking.core_is_wanted {
            self.span = None;
        }
    }

    /// The worker has nothing to do: how long its nap is. None: it rests as it does where the core is its own.
    pub fn next(&self, moved: u64) -> Option<Duration> {
        (self.long && self.is_worth_it(moved)).then_some(LENGTH)
    }

    fn is_worth_it(&self, moved: u64) -> bool {
        self.core_is_wanted && moved - self.moved >= WORTH
    }

    /// It naps or sleeps now.
    pub fn rests(&mut self, moved: u64) {
        let worth_it = self.is_worth_it(moved);
        self.moved = moved;
        if !worth_it {
            return;
        }
        let now = self.now;
        let span = self.span.get_or_insert(Span { began: now, moved, naps: 0 });
        if span.naps == JUDGED {
            let Span { began, moved: before, .. } =
                std::mem::replace(span, Span { began: now, moved, naps: 0 });
            let time = now.saturating_duration_since(began);
            if time < TOO_LONG {
                self.judge((moved - before) as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE));
            }
        }
        self.span.iter_mut().for_each(|span| span.naps += 1);
    }

    fn judge(&mut self, rate: f64) {
        if self.kept > 0 {
            self.kept -= 1;
        } else if let Some(other) = self.other.take() {
            self.long ^= other > rate;
            self.kept = KEPT;
        } else {
            self.other = Some(rate);
            self.long = !self.long;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(50);

    fn looking(core_is_wanted: bool) -> Looking {
        Looking { window: Duration::ZERO, core_is_wanted }
    }

    /// How many of 1,000 naps are long where a guest sends so many bytes while the worker is away.
    fn long_ones(bytes: impl Fn(Duration) -> u64) -> usize {
        let (mut naps, mut now, mut moved) = (LongNaps::default(), Instant::now(), 0);
        let nap = |_: &usize| {
            naps.clock(now, looking(true));
            let length = naps.next(moved).unwrap_or(SHORT);
            naps.rests(moved);
            // As long again as a short nap to move what came.
            now += length + SHORT;
            moved += bytes(length);
            length > SHORT
        };
        (0..1000).filter(nap).count()
    }

    #[test]
    fn a_guest_that_sends_all_the_time_gets_long_ones_and_one_that_waits_for_its_window_does_not() {
        let sends = long_ones(|away| away.as_micros() as u64 * 400);
        assert!(sends > 850, "{sends}");
        let waits = long_ones(|_| 64 << 10);
        assert!((1..150).contains(&waits), "{waits}");
    }

    #[test]
    fn a_question_and_its_answer_do_not_wait_and_nothing_does_where_the_core_is_free() {
        assert_eq!(long_ones(|_| WORTH - 1), 0);
        let mut naps = LongNaps::default();
        assert_eq!(naps.next(1 << 20), None);
        naps.clock(Instant::now(), looking(true));
        assert_eq!(naps.next(1 << 20), Some(LENGTH));
        naps.rests(1 << 20);
        assert_eq!(naps.next(1 << 20), None, "nothing came since");
    }

    #[test]
    fn a_pause_says_nothing_about_naps() {
        let (mut naps, mut now) = (LongNaps::default(), Instant::now());
        for moved in (0..100).map(|nap| nap << 20) {
            naps.clock(now, looking(true));
            naps.rests(moved);
            now += TOO_LONG / JUDGED;
        }
        assert!(naps.next(1 << 40).is_some(), "no trial ended");
    }
}
