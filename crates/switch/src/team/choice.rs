//! Which members of a team are in use, and which of them serves a sender: decisions without any switch.

use arrayvec::ArrayVec;

use super::MOST_MEMBERS;

/// Members, a bit for each.
pub type Members = u8;

const _: () = assert!(MOST_MEMBERS <= Members::BITS as usize);

/// Is member number `at` one of them?
#[inline]
pub fn has(members: Members, at: u8) -> bool {
    members >> at & 1 != 0
}

/// What came of reading the links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// A member that was in use is not any more, because its link is down.
    pub lost: bool,
    /// Another one is in use now.
    pub gained: bool,
    /// One of those was up before.
    pub back: bool,
}

/// The members that are in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Members in all, the preferred ones first.
    all: u8,
    /// How many are in use at once, at most: those after them are on standby.
    wanted: u8,
    failback: bool,
    in_use: ArrayVec<u8, MOST_MEMBERS>,
    /// Those whose link has ever been up.
    known: Members,
}

impl Choice {
    /// Of `all` members, `wanted` of them at once; none is up yet.
    pub fn new(all: usize, wanted: usize, failback: bool) -> Choice {
        let all = all.min(MOST_MEMBERS) as u8;
        Choice {
            all,
            wanted: wanted.clamp(1, MOST_MEMBERS) as u8,
            failback,
            in_use: ArrayVec::new(),
            known: 0,
        }
    }

    /// The members whose links are up are these now.
    pub fn update(&mut self, up: Members) -> Change {
        let before = self.in_use.clone();
        let lost = before.iter().any(|&at| !has(up, at));
        let known = self.known;
        let new = up & !known;
        self.known |= up;
        if self.failback {
            self.in_use.clear();
        } else {
            self.in_use.retain(|at| has(up, *at));
        }
        // One that has come back waits until another one fails; one that is up for the first time does not.
        let all_may = self.failback || lost || self.in_use.is_empty();
        for at in 0..self.all {
            let may = has(up, at) && (all_may || has(new, at)) && !self.in_use.contains(&at);
            if may && self.in_use.len() < usize::from(self.wanted) {
                self.in_use.push(at);
            }
        }
        self.in_use.sort_unstable();
        let gained = || self.in_use.iter().filter(|at| !before.contains(at));
        Change { lost, gained: gained().next().is_some(), back: gained().any(|&at| has(known, at)) }
    }

    /// Was no member ever up?
    pub fn is_new(&self) -> bool {
        self.known == 0
    }

    /// Would member number `at` be in use if all were up?
    pub fn prefers(&self, at: u8) -> bool {
        at < self.wanted
    }

    /// Is member number `at` in use?
    #[inline]
    pub fn is_in_use(&self, at: u8) -> bool {
        self.in_use.contains(&at)
    }

    /// The member for a sender with this number; None: no link is up. Senders of a member that fails are
    /// spread over those that took its place, or over all others; the rest stay where they are.
    #[inline]
    pub fn place(&self, number: usize) -> Option<u8> {
        let wanted = usize::from(self.wanted);
        let (home, of_home) = (number % wanted, number / wanted);
        if self.in_use.contains(&(home as u8)) {
            return Some(home as u8);
        }
        let instead = self.in_use.partition_point(|at| usize::from(*at) < wanted);
        let instead = self.in_use.get(instead..).filter(|standby| !standby.is_empty());
        let instead = instead.unwrap_or(&self.in_use);
        instead.get(of_home % instead.len().max(1)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(choice: &Choice, senders: usize) -> Vec<Option<u8>> {
        (0..senders).map(|number| choice.place(number)).collect()
    }

    fn counts(choice: &Choice, senders: usize) -> Vec<usize> {
        let places = places(choice, senders);
        (0..4).map(|at| places.iter().filter(|place| **place == Some(at)).count()).collect()
    }

    #[test]
    fn senders_are_spread_evenly_and_only_those_of_a_failed_member_move() {
        let mut choice = Choice::new(4, 4, true);
        assert_eq!(choice.place(3), None);
        assert_eq!(choice.update(0b1111), Change { lost: false, gained: true, back: false });
        assert_eq!(counts(&choice, 24), [6, 6, 6, 6]);
        let before = places(&choice, 24);
        assert_eq!(choice.update(0b1101), Change { lost: true, gained: false, back: false });
        assert_eq!(counts(&choice, 24), [8, 0, 8, 8]);
        let moved = before.iter().zip(places(&choice, 24)).filter(|(before, after)| *before != after);
        assert!(moved.clone().all(|(before, _)| *before == Some(1)) && moved.count() == 6);
        assert_eq!(choice.update(0b1111), Change { lost: false, gained: true, back: true });
        assert_eq!(places(&choice, 24), before, "back where they were");
        choice.update(0);
        assert_eq!(choice.place(0), None);
    }

    #[test]
    fn a_member_on_standby_takes_the_place_of_one_that_fails() {
        let mut choice = Choice::new(4, 2, true);
        choice.update(0b1111);
        assert_eq!(counts(&choice, 8), [4, 4, 0, 0]);
        choice.update(0b1110);
        assert_eq!(counts(&choice, 8), [0, 4, 4, 0]);
        choice.update(0b1100);
        assert_eq!(counts(&choice, 8), [0, 0, 4, 4]);
        choice.update(0b1000);
        assert_eq!(counts(&choice, 8), [0, 0, 0, 8]);
        choice.update(0b1111);
        assert_eq!(counts(&choice, 8), [4, 4, 0, 0]);
    }

    #[test]
    fn without_failback_a_member_waits_until_another_one_fails() {
        let mut order = Choice::new(2, 1, false);
        order.update(0b11);
        assert_eq!(order.place(5), Some(0));
        assert_eq!(order.update(0b10), Change { lost: true, gained: true, back: true });
        assert_eq!(order.update(0b11), Change { lost: false, gained: false, back: false }, "it stays");
        assert_eq!(order.place(5), Some(1));
        assert_eq!(order.update(0b01), Change { lost: true, gained: true, back: true });
        assert_eq!(order.place(5), Some(0));
        // A team of two in use at once.
        let mut both = Choice::new(2, 2, false);
        assert!(both.update(0b01).gained && both.update(0b11).gained, "attached one after the other");
        both.update(0b10);
        both.update(0b11);
        assert_eq!(counts(&both, 8), [0, 8, 0, 0]);
        both.update(0);
        both.update(0b11);
        assert_eq!(counts(&both, 8), [4, 4, 0, 0], "after none was up, all are taken");
    }

    #[test]
    fn an_explicit_order_uses_the_first_that_is_up() {
        let mut choice = Choice::new(3, 1, true);
        for (up, first) in [(0b100, 2), (0b110, 1), (0b111, 0), (0b110, 1), (0b010, 1)] {
            choice.update(up);
            assert!(places(&choice, 9).iter().all(|place| *place == Some(first)), "{up:b}");
        }
    }
}
