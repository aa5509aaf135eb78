//! Panics of our own: contained, and no endless row of them.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Rounds in a row that may fail outside any port's turn before nothing good can be expected any more.
const MAX_FAULTS: u32 = 100;

/// Runs `action`; None if it panicked. What it may have left half done is the caller's to end.
#[inline]
pub fn contained<T>(action: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(action)).ok()
}

/// Counts faults that follow each other round by round.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultStreak {
    last: u64,
    count: u32,
}

impl FaultStreak {
    /// Round number `round` failed. True if too many did, one after the other.
    pub fn fault(&mut self, round: u64) -> bool {
        let follows = round.wrapping_sub(self.last) <= 1;
        self.last = round;
        self.count = if follows { self.count + 1 } else { 1 };
        self.count > MAX_FAULTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_action_and_no_more() {
        assert_eq!(contained(|| 7), Some(7));
        assert_eq!(contained(|| -> u8 { std::panic::resume_unwind(Box::new(())) }), None);
    }

    #[test]
    fn only_faults_in_a_row_are_too_many() {
        let mut streak = FaultStreak::default();
        assert!((0..1000).all(|fault| !streak.fault(fault * 2)), "every other round");
        assert!((0..99).all(|fault| !streak.fault(1999 + fault)));
        assert!(streak.fault(2098));
    }
}
