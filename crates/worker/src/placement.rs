//! Which worker gets what is new.

use std::sync::atomic::{AtomicUsize, Ordering};

/// One after the other.
#[derive(Debug)]
pub struct RoundRobin {
    workers: usize,
    next: AtomicUsize,
}

impl RoundRobin {
    /// Over so many workers, one at least.
    pub fn new(workers: usize) -> RoundRobin {
        RoundRobin { workers: workers.max(1), next: AtomicUsize::new(0) }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.workers
    }

    /// The index of the worker whose turn it is.
    pub fn pick(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.workers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_gets_its_turn() {
        let placement = RoundRobin::new(3);
        assert_eq!([0; 7].map(|_| placement.pick()), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(RoundRobin::new(0).pick(), 0);
    }
}
