//! A sender's pace: no message before its time, and no burst to make up for a late one that lasts longer
//! than a moment.

use std::time::{Duration, Instant};

/// How far behind its plan a sender may fall and still catch up.
const DEBT: Duration = Duration::from_millis(10);
/// Shorter waits spin: the kernel's sleeps are longer than asked by about this much.
const SPIN: Duration = Duration::from_micros(60);

pub struct Pace {
    /// Seconds for each byte; none: as fast as it goes.
    per_byte: Option<f64>,
    next: Instant,
}

impl Pace {
    pub fn new(start: Instant, rate_bps: Option<u64>) -> Pace {
        Pace { per_byte: rate_bps.map(|rate| 8.0 / rate.max(1) as f64), next: start }
    }

    /// Waits until `bytes` may be sent, but not beyond `end`.
    pub fn wait(&mut self, bytes: usize, end: Instant) {
        let Some(per_byte) = self.per_byte else { return };
        let due = self.next;
        let now = Instant::now();
        let from = if now > due + DEBT { now } else { due };
        // A day is more than any test lasts, and no overflow.
        self.next = from + Duration::from_secs_f64((bytes as f64 * per_byte).min(86_400.0));
        let until = due.min(end);
        let left = until.saturating_duration_since(now);
        if left > SPIN {
            std::thread::sleep(left - SPIN);
        }
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_and_the_end_is_not_slept_through() {
        let start = Instant::now();
        let mut pace = Pace::new(start, Some(8_000_000)); // a byte a microsecond
        let end = start + Duration::from_secs(3600);
        (0..20).for_each(|_| pace.wait(1000, end));
        assert!(start.elapsed() >= Duration::from_millis(19), "19 gaps of 1 ms");
        let mut slow = Pace::new(start, Some(1));
        slow.wait(1 << 20, end);
        slow.wait(1, Instant::now());
        let mut none = Pace::new(start, None);
        none.wait(usize::MAX, end);
    }

    #[test]
    fn a_late_sender_does_not_burst() {
        let start = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
        let mut pace = Pace::new(start, Some(8_000));
        let end = Instant::now() + Duration::from_secs(3600);
        let before = Instant::now();
        pace.wait(20, end); // its time was long ago
        pace.wait(1, end);
        assert!(before.elapsed() >= Duration::from_millis(15), "20 bytes take 20 ms at 1000 bytes/s");
    }
}
