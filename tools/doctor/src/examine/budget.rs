//! How much time an examination has, and what is left out for it.

use std::time::{Duration, Instant};

/// What the least measurement takes beside its own length.
const BESIDE: Duration = Duration::from_millis(100);
/// What ends so late has ended for want of time.
const NEARLY: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Nothing is waited for any longer; what is not through by then is given up.
    pub until: Instant,
}

impl Budget {
    pub fn begin(seconds: f64) -> Budget {
        Budget { until: Instant::now() + Duration::from_secs_f64(seconds) }
    }

    /// Whether a measurement of this length may still come to its end.
    pub fn allows(self, seconds: f64) -> bool {
        Instant::now() + Duration::from_secs_f64(seconds) + BESIDE <= self.until
    }

    /// Whether what failed just now failed for want of time.
    pub fn is_over(self) -> bool {
        Instant::now() + NEARLY >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_end_in_time_begins() {
        let budget = Budget::begin(100.0);
        assert!(budget.allows(60.0) && !budget.allows(100.0) && !budget.is_over());
        assert!(!Budget::begin(0.0).allows(0.0) && Budget::begin(0.0).is_over());
    }
}
