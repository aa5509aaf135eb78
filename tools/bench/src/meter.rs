//! Counting inside the window: from the end of the warm-up to its closing time, or to the end of the session
//! where that comes first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::sys::thread_cpu;

/// What one session saw during its window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    pub bytes: u64,
    pub transactions: u64,
    pub seconds: f64,
    /// CPU time of the session's own thread.
    pub cpu_seconds: f64,
}

/// All that a session has moved so far, warm-up included, for observers while it runs.
#[derive(Debug, Default)]
pub struct Live {
    bytes: AtomicU64,
    transactions: AtomicU64,
}

impl Live {
    /// Bytes and transactions.
    pub fn read(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.transactions.load(Ordering::Relaxed))
    }

    /// For the one thread that counts here; two of them (bidir) add up well enough for a progress line.
    fn add(&self, bytes: u64, transactions: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if transactions > 0 {
            self.transactions.fetch_add(transactions, Ordering::Relaxed);
        }
    }
}

pub struct Meter {
    opens: Instant,
    closes: Option<Instant>,
    opened: Option<(Instant, Duration)>,
    closed: Option<(Instant, Duration)>,
    bytes: u64,
    transactions: u64,
    live: Arc<Live>,
}

impl Meter {
    /// A meter that ignores everything before `opens`. To be made on the thread it measures.
    pub fn new(opens: Instant, closes: Option<Instant>, live: Arc<Live>) -> Meter {
        let now = Instant::now();
        let opened = (now >= opens).then(|| (now, thread_cpu()));
        Meter { opens, closes, opened, closed: None, bytes: 0, transactions: 0, live }
    }

    /// Counts between two borders of the test, where the time does not matter.
    #[inline]
    pub fn add(&mut self, bytes: usize, transactions: u64) {
        self.live.add(bytes as u64, transactions);
        if self.opened.is_some() && self.closed.is_none() {
            self.bytes += bytes as u64;
            self.transactions += transactions;
        }
    }

    /// Counts what was complete at `now`. Whatever ends the warm-up began within it: it opens the
    /// window and is not counted; whatever is under way at the closing time closes it and is. True if it was
    /// counted.
    pub fn count(&mut self, now: Instant, bytes: usize, transactions: u64) -> bool {
        self.live.add(bytes as u64, transactions);
        if self.closed.is_some() {
            return false;
        }
        if self.opened.is_some() {
            self.bytes += bytes as u64;
            self.transactions += transactions;
            if self.closes.is_some_and(|closes| now >= closes) {
                self.closed = Some((now, thread_cpu()));
            }
            return true;
        }
        if now >= self.opens {
            self.opened = Some((now, thread_cpu()));
        }
        false
    }

    pub fn close(self, now: Instant) -> Tally {
        let Some((opened, cpu)) = self.opened else { return Tally::default() };
        let (closed, cpu_then) = self.closed.unwrap_or_else(|| (now, thread_cpu()));
        Tally {
            bytes: self.bytes,
            transactions: self.transactions,
            seconds: closed.saturating_duration_since(opened).as_secs_f64(),
            cpu_seconds: cpu_then.saturating_sub(cpu).as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(opens: Instant, closes: Option<Instant>) -> Meter {
        Meter::new(opens, closes, Arc::default())
    }

    #[test]
    fn the_warm_up_is_not_counted() {
        let start = Instant::now();
        let opens = start + Duration::from_secs(100);
        let mut meter = meter(opens, None);
        assert!(!meter.count(start + Duration::from_secs(99), 1000, 1));
        assert!(!meter.count(opens, 10, 1)); // began in the warm-up
        assert!(meter.count(opens + Duration::from_secs(1), 5, 1));
        assert!(meter.count(opens + Duration::from_secs(2), 6, 1));
        let live = meter.live.clone();
        let tally = meter.close(opens + Duration::from_secs(4));
        assert_eq!((tally.bytes, tally.transactions, tally.seconds), (11, 2, 4.0));
        assert_eq!(live.read(), (1021, 4), "an observer sees all");
    }

    #[test]
    fn the_cool_down_is_not_counted() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut meter = meter(start, Some(at(10)));
        assert!(meter.count(at(4), 5, 0));
        assert!(meter.count(at(12), 6, 0)); // was under way when the window closed
        assert!(!meter.count(at(13), 7, 0));
        let tally = meter.close(at(20));
        assert_eq!(tally.bytes, 11);
        assert!((11.9..12.1).contains(&tally.seconds), "{tally:?}");
    }

    #[test]
    fn without_warm_up_everything_counts() {
        let now = Instant::now();
        let mut meter = meter(now, None);
        assert!(meter.count(Instant::now(), 7, 0));
        assert_eq!(meter.close(Instant::now()).bytes, 7);
    }

    #[test]
    fn a_session_that_never_got_through_its_warm_up_is_empty() {
        let now = Instant::now();
        assert_eq!(meter(now + Duration::from_secs(9), None).close(now), Tally::default());
    }
}
