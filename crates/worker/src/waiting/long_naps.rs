//! Long naps of a worker whose core is contended.
//!
//! What such a worker waits for comes from a guest that waits for its core. The longer the worker is away,
//! the more it finds, and the fewer announcements and interrupts there are for a byte. But a guest whose
//! window or ring is full sends no more, however long the worker stays away. Which it is shows by trying:
//! some naps of either length, then many of the one that moved more. Few bytes are a question and its answer,
//! which are not to wait.

use std::time::{Duration, Instant};

use super::window::MUCH;

/// Their length.
const LENGTH: Duration = Duration::from_micros(150);
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

/// When a worker takes them. It reports how many bytes it has moved so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct LongNaps {
    contended: bool,
    /// Bytes that had moved when the worker last napped or slept.
    moved: u64,
    /// Whether naps are short at the moment although long ones may be worth it.
    short: bool,
    span: Option<Span>,
    /// Bytes a second that a trial of the other length has brought, and spans until the next trial.
    other: Option<f64>,
    kept: u32,
}

impl LongNaps {
    /// The clock was read.
    #[inline]
    pub fn clock(&mut self, contended: bool) {
        self.contended = contended;
        if !contended {
            self.span = None;
        }
    }

    /// The worker has nothing to do: how long its nap is. None: it waits as it does where the core is its
    /// own.
    pub fn next(&self, moved: u64) -> Option<Duration> {
        (!self.short && self.is_worth_it(moved)).then_some(LENGTH)
    }

    fn is_worth_it(&self, moved: u64) -> bool {
        self.contended && moved.saturating_sub(self.moved) >= MUCH
    }

    /// It naps or sleeps now.
    pub fn waits(&mut self, now: Instant, moved: u64) {
        let worth_it = self.is_worth_it(moved);
        self.moved = moved;
        if !worth_it {
            return;
        }
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
            self.short ^= other > rate;
            self.kept = KEPT;
        } else {
            self.other = Some(rate);
            self.short = !self.short;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(50);

    /// How many of 1,000 naps are long where a guest sends so many bytes while the worker is away.
    fn long_ones(bytes: impl Fn(Duration) -> u64) -> usize {
        let (mut naps, mut now, mut moved) = (LongNaps::default(), Instant::now(), 0);
        let nap = |_: &usize| {
            naps.clock(true);
            let length = naps.next(moved).unwrap_or(SHORT);
            naps.waits(now, moved);
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
        assert_eq!(long_ones(|_| MUCH - 1), 0);
        let mut naps = LongNaps::default();
        assert_eq!(naps.next(1 << 20), None);
        naps.clock(true);
        assert_eq!(naps.next(1 << 20), Some(LENGTH));
        naps.waits(Instant::now(), 1 << 20);
        assert_eq!(naps.next(1 << 20), None, "nothing came since");
    }

    #[test]
    fn a_pause_does_not_count_as_a_nap() {
        let (mut naps, mut now) = (LongNaps::default(), Instant::now());
        for moved in (0..100).map(|nap| nap << 20) {
            naps.clock(true);
            naps.waits(now, moved);
            now += TOO_LONG / JUDGED;
        }
        assert!(naps.next(1 << 40).is_some(), "no trial ended");
    }
}
