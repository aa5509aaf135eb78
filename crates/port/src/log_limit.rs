//! A limit on log lines that a guest, a peer or a stranger can cause.

use std::time::{Duration, Instant};

/// At most one line a second; the rest is counted and reported with the next line.
#[derive(Debug, Default)]
pub struct LogLimit {
    last: Option<Instant>,
    held_back: u64,
}

impl LogLimit {
    const PERIOD: Duration = Duration::from_secs(1);

    /// How many lines were held back since the last one, if one may be written now.
    pub fn allow(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) < LogLimit::PERIOD) {
            self.held_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_gives_one_line() {
        let mut limit = LogLimit::default();
        let begun = Instant::now();
        assert_eq!(limit.allow(), Some(0));
        let more: Vec<u64> = (0..100).filter_map(|_| limit.allow()).collect();
        assert!(more.len() as u64 <= begun.elapsed().as_secs(), "one a second: {more:?}");
        assert_eq!(limit.held_back + more.iter().sum::<u64>() + more.len() as u64, 100);
    }
}
