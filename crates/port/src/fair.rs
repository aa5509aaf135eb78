//! How places that several share are given out, so that none of them can use up all.

use std::collections::HashMap;
use std::hash::Hash;

/// May one that has `own` of `total` places, of which `used` are taken, take another? As long as it has fewer
/// than are free: n that take all they can get have 1/(n + 1) of the places each, and as many stay free for
/// the others.
#[inline]
pub fn may_take(own: usize, used: usize, total: usize) -> bool {
    own < total.saturating_sub(used)
}

/// Places that several share, by [`may_take`], and how many each of them has.
#[derive(Debug)]
pub struct SharedPlaces<K> {
    /// No entry is zero.
    of: HashMap<K, usize>,
    used: usize,
    total: usize,
}

impl<K: Eq + Hash> SharedPlaces<K> {
    /// So many places, none of them taken.
    pub fn new(total: usize) -> SharedPlaces<K> {
        SharedPlaces { of: HashMap::new(), used: 0, total }
    }

    /// How many `user` has.
    pub fn of(&self, user: &K) -> usize {
        self.of.get(user).copied().unwrap_or(0)
    }

    /// How many are taken.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Could `user` take another one?
    pub fn has_room(&self, user: &K) -> bool {
        may_take(self.of(user), self.used, self.total)
    }

    /// `user` takes another one, if it may.
    pub fn take(&mut self, user: K) -> bool {
        let may = self.has_room(&user);
        if may {
            *self.of.entry(user).or_default() += 1;
            self.used += 1;
        }
        may
    }

    /// `user` gives one back that it has.
    pub fn give_back(&mut self, user: &K) {
        let Some(count) = self.of.get_mut(user) else { return };
        *count -= 1;
        self.used -= 1;
        if *count == 0 {
            self.of.remove(user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_take_all_they_can_get_leave_as_much_as_each_has() {
        for greedy in 1..10 {
            let mut places = SharedPlaces::new(1000);
            while (0..greedy).filter(|&user| places.take(user)).count() > 0 {}
            let share = 1000 / (greedy + 1);
            assert!((0..greedy).all(|user| places.of(&user).abs_diff(share) <= 1), "{greedy}");
            assert!(1000 - places.used() >= share, "{greedy}");
            assert!(places.take(greedy), "one that has none gets one");
        }
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let mut places = SharedPlaces::new(4);
        assert_eq!([places.take(1), places.take(1), places.take(1)], [true, true, false]);
        places.give_back(&1);
        places.give_back(&2);
        assert_eq!((places.of(&1), places.used()), (1, 1));
        assert!(places.has_room(&1) && places.take(2) && places.take(1));
        assert!(!places.has_room(&2), "one place is left, and it has one");
        assert!(places.has_room(&3));
    }
}
