//! Who pays for a worker's time: each party has so much of a round.

use std::sync::{Arc, Weak};

use vmlane_port::Budget;

/// The account of a party with one worker. A party is known by its [`Budget`].
pub struct Payer {
    party: Weak<Budget>,
    /// Streams that it pays for.
    pub lanes: usize,
    /// Bytes, turns counted as bytes, that it may still move in this round; below zero: it has moved more
    /// than it might, and waits.
    left: isize,
}

impl Payer {
    /// A new round: what was moved too much before is taken off.
    #[inline]
    pub fn refill(&mut self, quota: usize) {
        let quota = quota as isize;
        self.left = self.left.saturating_add(quota).min(quota);
    }

    #[inline]
    pub fn is_spent(&self) -> bool {
        self.left <= 0
    }

    #[inline]
    pub fn pay(&mut self, cost: usize) {
        self.left = self.left.saturating_sub(cost as isize);
    }
}

/// The account that a lane opened by the party with `budget` is charged to; one lane more.
pub fn find(payers: &mut Vec<Payer>, budget: &Arc<Budget>) -> usize {
    let known =
        payers.iter().position(|payer| payer.lanes > 0 && payer.party.as_ptr() == Arc::as_ptr(budget));
    let at = known.or_else(|| payers.iter().position(|payer| payer.lanes == 0)).unwrap_or(payers.len());
    if known.is_none() {
        let payer = Payer { party: Arc::downgrade(budget), lanes: 0, left: 0 };
        if at == payers.len() {
            payers.push(payer);
        } else {
            payers[at] = payer;
        }
    }
    payers[at].lanes += 1;
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_one_party_are_charged_to_one_account() {
        let (a, b) = (Arc::new(Budget::new(0)), Arc::new(Budget::new(0)));
        let mut payers = Vec::new();
        assert_eq!([&a, &b, &a].map(|budget| find(&mut payers, budget)), [0, 1, 0]);
        payers[0].lanes -= 2;
        let c = Arc::new(Budget::new(0));
        assert_eq!(find(&mut payers, &c), 0, "an account without lanes is given away");
        assert_eq!(payers.len(), 2);
    }

    #[test]
    fn more_than_a_round_is_paid_back_in_the_next_ones() {
        let mut payers = Vec::new();
        let payer = find(&mut payers, &Arc::new(Budget::new(0)));
        let payer = &mut payers[payer];
        payer.refill(100);
        payer.pay(250);
        assert!(payer.is_spent());
        payer.refill(100);
        assert!(payer.is_spent(), "50 are owed");
        payer.refill(100);
        assert!(!payer.is_spent());
        payer.refill(100);
        payer.pay(100);
        assert!(payer.is_spent(), "nothing is saved up");
    }
}
