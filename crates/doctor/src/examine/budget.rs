//! How much time an examination has, and what is left out for it.

use std::time::{Duration, Instant};

/// For what a measurement takes beside its own length, until the first one has shown it.
const OVERHEAD: Duration = Duration::from_millis(200);
/// A measurement that waited for something once is no measure of those to come.
const MOST_OVERHEAD: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Budget {
    /// No measurement begins that would end later.
    soft: Instant,
    /// Nothing is waited for any longer.
    pub hard: Instant,
    overhead: Duration,
}

impl Budget {
    pub fn begin(soft: f64, hard: f64) -> Budget {
        let now = Instant::now();
        Budget {
            soft: now + Duration::from_secs_f64(soft),
            hard: now + Duration::from_secs_f64(hard),
            overhead: OVERHEAD,
        }
    }

    /// Whether a measurement of this length can still end in time.
    pub fn allows(&self, seconds: f64) -> bool {
        Instant::now() + Duration::from_secs_f64(seconds) + self.overhead <= self.soft
    }

    /// Learns from a measurement of this length how long it really took.
    pub fn learn(&mut self, seconds: f64, took: Duration) {
        let beside = took.saturating_sub(Duration::from_secs_f64(seconds));
        self.overhead = self.overhead.max(beside.min(MOST_OVERHEAD));
    }

    /// Whether what failed just now failed for want of time.
    pub fn is_over(&self) -> bool {
        Instant::now() + Duration::from_millis(50) >= self.hard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_longer_than_it_should_leaves_less_room_for_others() {
        let mut budget = Budget::begin(10.0, 20.0);
        assert!(budget.allows(9.0) && !budget.allows(11.0) && !budget.is_over());
        budget.learn(1.0, Duration::from_secs(2));
        assert!(budget.allows(8.5) && !budget.allows(9.5));
        budget.learn(1.0, Duration::from_secs(60));
        assert!(budget.allows(8.5), "one that hung says nothing of the others");
        assert!(!Budget::begin(0.0, 0.0).allows(0.0) && Budget::begin(0.0, 0.0).is_over());
    }
}
