//! When an interrupt is due: completions gather for each vector until it may fire.

use std::time::{Duration, Instant};

use crate::vmxnet3::setup::Moderation;
use crate::vmxnet3::vectors::Vectors;

/// The longest that static moderation holds an interrupt.
const STATIC_BOUND: Duration = Duration::from_millis(4);
/// The longest that completions of sent frames wait alone: nothing waits for them but a sender's
/// budget (Linux's small queues, a full ring) comes back only with them.
const TX_ALONE: Duration = Duration::from_micros(200);
/// As many completions of sent frames do not wait.
const TX_MANY: u32 = 32;
/// Adaptive: receive completions of one interrupt, on average, from which on interrupts keep apart, and
/// how far.
const BULK: [(u32, Duration); 2] = [(64, Duration::from_micros(60)), (16, Duration::from_micros(30))];

/// What waits for one vector.
#[derive(Debug)]
struct Line {
    vector: u8,
    rx: u32,
    tx: u32,
    /// When the oldest of them was published.
    since: Option<Instant>,
    fired: Option<Instant>,
    /// Receive completions per interrupt, times 16, over the last few.
    average: u32,
}

impl Line {
    fn is_due(&self, moderation: Moderation, now: Instant) -> bool {
        let Some(since) = self.since else { return false };
        let quiet = |at_least: Duration| {
            self.fired.is_none_or(|fired| now.saturating_duration_since(fired) >= at_least)
        };
        let waited = |at_least: Duration| now.saturating_duration_since(since) >= at_least;
        match moderation {
            Moderation::Off => true,
            Moderation::Rate(rate) => quiet(Duration::from_secs(1) / rate.max(1)),
            Moderation::Static { rx, tx } => {
                let many = self.rx > 0 && self.rx >= rx || self.tx > 0 && self.tx >= tx;
                many || quiet(STATIC_BOUND) || waited(STATIC_BOUND)
            }
            Moderation::Adaptive if self.rx == 0 => self.tx >= TX_MANY || waited(TX_ALONE),
            Moderation::Adaptive => {
                let bulk = BULK.iter().find(|(many, _)| self.average >= 16 * many);
                bulk.is_none_or(|(_, apart)| quiet(*apart))
            }
        }
    }

    fn fire(&mut self, now: Instant) {
        self.average = (3 * self.average + 16 * self.rx.min(1 << 16)) / 4;
        (self.rx, self.tx) = (0, 0);
        self.since = None;
        self.fired = Some(now);
    }
}

/// All vectors of the queues of one NIC.
#[derive(Debug)]
pub struct Moderator {
    lines: Vec<Line>,
    pub mode: Moderation,
}

/// Names a vector to its moderator.
#[derive(Clone, Copy, Debug)]
pub struct LineId(u8);

impl Moderator {
    pub fn new(mode: Moderation) -> Moderator {
        Moderator { lines: Vec::new(), mode }
    }

    /// The line of an interrupt index; queues with the same index share it.
    pub fn line(&mut self, vector: u8) -> LineId {
        if let Some(at) = self.lines.iter().position(|line| line.vector == vector) {
            return LineId(at as u8);
        }
        self.lines.push(Line { vector, rx: 0, tx: 0, since: None, fired: None, average: 0 });
        LineId(self.lines.len() as u8 - 1)
    }

    /// Receive completions were published.
    #[inline]
    pub fn received(&mut self, line: LineId, count: u32) {
        if let Some(line) = self.lines.get_mut(usize::from(line.0)) {
            line.rx += count;
        }
    }

    #[inline]
    pub fn sent(&mut self, line: LineId, count: u32) {
        if let Some(line) = self.lines.get_mut(usize::from(line.0)) {
            line.tx += count;
        }
    }

    /// Fires what is due. Returns true if something waits for its time; `fired` reports whether anything
    /// was fired (or became pending behind a mask).
    pub fn run(&mut self, vectors: &Vectors, control: impl Fn() -> u32, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        for line in &mut self.lines {
            if line.rx == 0 && line.tx == 0 {
                continue;
            }
            line.since.get_or_insert(now);
            if line.is_due(self.mode, now) {
                vectors.publish(line.vector, control());
                line.fire(now);
                outcome.fired = true;
            } else {
                outcome.held = true;
            }
        }
        outcome
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub fired: bool,
    pub held: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(rx: u32, tx: u32, now: Instant) -> Line {
        Line { vector: 0, rx, tx, since: Some(now), fired: None, average: 0 }
    }

    const MICROS: fn(u64) -> Duration = Duration::from_micros;

    #[test]
    fn the_first_after_a_quiet_time_is_never_held() {
        let now = Instant::now();
        for mode in [
            Moderation::Off,
            Moderation::Adaptive,
            Moderation::Rate(100),
            Moderation::Static { rx: 64, tx: 64 },
        ] {
            assert!(line(1, 0, now).is_due(mode, now), "{mode:?}");
        }
    }

    #[test]
    fn a_rate_keeps_interrupts_apart() {
        let now = Instant::now();
        let mut line = line(5, 0, now);
        line.fired = Some(now);
        assert!(!line.is_due(Moderation::Rate(4000), now + MICROS(249)));
        assert!(line.is_due(Moderation::Rate(4000), now + MICROS(250)));
    }

    #[test]
    fn static_counts_are_bounded_by_time() {
        let now = Instant::now();
        let mode = Moderation::Static { rx: 8, tx: 4 };
        let held = |rx, tx| Line { fired: Some(now), ..line(rx, tx, now) };
        assert!(!held(7, 3).is_due(mode, now + MICROS(3999)));
        assert!(held(8, 0).is_due(mode, now) && held(0, 4).is_due(mode, now));
        assert!(held(1, 0).is_due(mode, now + MICROS(4000)));
    }

    #[test]
    fn completions_of_sent_frames_wait_a_little() {
        let now = Instant::now();
        let alone = line(0, 1, now);
        assert!(!alone.is_due(Moderation::Adaptive, now + MICROS(199)));
        assert!(alone.is_due(Moderation::Adaptive, now + MICROS(200)));
        assert!(line(0, TX_MANY, now).is_due(Moderation::Adaptive, now));
        assert!(line(1, 1, now).is_due(Moderation::Adaptive, now));
        assert!(alone.is_due(Moderation::Off, now));
    }

    #[test]
    fn bulk_is_distinguished_from_single_frames() {
        let mut now = Instant::now();
        let mut bulk = line(0, 0, now);
        for _ in 0..8 {
            (bulk.rx, bulk.since) = (100, Some(now));
            bulk.fire(now);
        }
        (bulk.rx, bulk.since) = (1, Some(now));
        assert!(!bulk.is_due(Moderation::Adaptive, now + MICROS(59)));
        assert!(bulk.is_due(Moderation::Adaptive, now + MICROS(60)));
        for _ in 0..16 {
            now += MICROS(100);
            (bulk.rx, bulk.since) = (1, Some(now));
            bulk.fire(now);
        }
        (bulk.rx, bulk.since) = (1, Some(now));
        assert!(bulk.is_due(Moderation::Adaptive, now + MICROS(1)));
    }
}
