//! Faults of one VM's devices over time, and when there were too many.

use std::collections::VecDeque;
use std::time::Instant;

use vmlane_config::FaultLimit;

/// One VM's recent faults.
#[derive(Debug, Default)]
pub struct FaultRecord {
    /// The counters' sum at the last check.
    seen: u64,
    /// When each of the last ones was noticed, at most as many as the limit.
    times: VecDeque<Instant>,
}

impl FaultRecord {
    /// `seen`: faults in the counters that were noticed by a previous daemon.
    pub fn after(seen: u64) -> FaultRecord {
        FaultRecord { seen, ..FaultRecord::default() }
    }

    /// Takes the sum of the fault counters of the VM's devices. True if there were too many lately.
    pub fn add(&mut self, total: u64, limit: FaultLimit, now: Instant) -> bool {
        let new = total.saturating_sub(std::mem::replace(&mut self.seen, total));
        let most = limit.faults as usize;
        for _ in 0..new.min(u64::from(limit.faults)) {
            self.times.push_back(now);
        }
        while self.times.len() > most
            || self.times.front().is_some_and(|&time| now.duration_since(time) > limit.within)
        {
            self.times.pop_front();
        }
        most > 0 && self.times.len() >= most
    }

    /// Clears the fault history.
    pub fn clear(&mut self) {
        self.times.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMIT: FaultLimit = FaultLimit { faults: 3, within: Duration::from_secs(10) };

    #[test]
    fn so_many_within_so_long_are_too_many() {
        let begun = Instant::now();
        let second = |second| begun + Duration::from_secs(second);
        let mut record = FaultRecord::default();
        assert!(!record.add(2, LIMIT, second(0)));
        assert!(!record.add(2, LIMIT, second(1)), "no new ones");
        assert!(!record.add(3, LIMIT, second(11)), "two are too old");
        assert!(!record.add(4, LIMIT, second(12)));
        assert!(record.add(5, LIMIT, second(13)));
        record.clear();
        assert!(!record.add(5, LIMIT, second(13)), "cleared");
        assert!(record.add(u64::MAX, LIMIT, second(14)), "any number at once");
        assert!(record.times.len() <= 3);
    }

    #[test]
    fn a_limit_of_zero_is_none() {
        let mut record = FaultRecord::default();
        let limit = FaultLimit { faults: 0, ..LIMIT };
        assert!(!record.add(1_000_000, limit, Instant::now()) && record.times.is_empty());
    }
}
