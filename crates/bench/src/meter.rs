//! Counting inside the window: from the end of the warm-up to the end of the session.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What one session saw during its window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    pub bytes: u64,
    pub transactions: u64,
    pub seconds: f64,
    /// CPU time of the session's own thread.
    pub cpu_seconds: f64,
}

pub struct Meter {
    opens: Instant,
    opened: Option<(Instant, Duration)>,
    bytes: u64,
    transactions: u64,
}

impl Meter {
    /// A meter that ignores everything before `opens`. To be made on the thread it measures.
    pub fn new(opens: Instant) -> Meter {
        let now = Instant::now();
        let opened = (now >= opens).then(|| (now, thread_cpu()));
        Meter { opens, opened, bytes: 0, transactions: 0 }
    }

    /// Counts what was complete at `now`. Whatever ends the warm-up began within it: it opens the
    /// window and is not counted. True if it was counted.
    pub fn count(&mut self, now: Instant, bytes: usize, transactions: u64) -> bool {
        if self.opened.is_some() {
            self.bytes += bytes as u64;
            self.transactions += transactions;
            return true;
        }
        if now >= self.opens {
            self.opened = Some((now, thread_cpu()));
        }
        false
    }

    pub fn close(self, now: Instant) -> Tally {
        let Some((opened, cpu)) = self.opened else { return Tally::default() };
        Tally {
            bytes: self.bytes,
            transactions: self.transactions,
            seconds: now.saturating_duration_since(opened).as_secs_f64(),
            cpu_seconds: thread_cpu().saturating_sub(cpu).as_secs_f64(),
        }
    }
}

/// User and system time of the calling thread. Per thread rather than per process, because one server
/// process serves many clients and each must see its own share.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_is_not_counted() {
        let start = Instant::now();
        let opens = start + Duration::from_secs(100);
        let mut meter = Meter::new(opens);
        assert!(!meter.count(start + Duration::from_secs(99), 1000, 1));
        assert!(!meter.count(opens, 10, 1)); // began in the warm-up
        assert!(meter.count(opens + Duration::from_secs(1), 5, 1));
        assert!(meter.count(opens + Duration::from_secs(2), 6, 1));
        let tally = meter.close(opens + Duration::from_secs(4));
        assert_eq!((tally.bytes, tally.transactions, tally.seconds), (11, 2, 4.0));
    }

    #[test]
    fn without_warm_up_everything_counts() {
        let now = Instant::now();
        let mut meter = Meter::new(now);
        assert!(meter.count(Instant::now(), 7, 0));
        assert_eq!(meter.close(Instant::now()).bytes, 7);
    }

    #[test]
    fn a_session_that_never_got_through_its_warm_up_is_empty() {
        let now = Instant::now();
        assert_eq!(Meter::new(now + Duration::from_secs(9)).close(now), Tally::default());
    }
}
