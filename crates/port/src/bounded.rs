//! Queues that outlive a call. Each has a bound that applies to all who fill it, so none grows with what
//! strangers do.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

/// A queue with room for so much. What there is no room for comes back to its sender.
#[derive(Debug)]
pub struct Bounded<T> {
    items: VecDeque<(T, usize)>,
    used: usize,
    most: usize,
}

impl<T> Bounded<T> {
    /// An empty one, with room for `most`: items, or what they weigh.
    pub fn new(most: usize) -> Bounded<T> {
        Bounded { items: VecDeque::new(), used: 0, most }
    }

    /// Adds an item that weighs 1.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        self.push_weighing(1, item)
    }

    /// Adds an item that weighs so much.
    pub fn push_weighing(&mut self, weight: usize, item: T) -> Result<(), T> {
        if !self.has_room(weight) {
            return Err(item);
        }
        self.used += weight;
        self.items.push_back((item, weight));
        Ok(())
    }

    /// Is there room for an item that weighs so much?
    pub fn has_room(&self, weight: usize) -> bool {
        weight <= self.most.saturating_sub(self.used)
    }

    /// The item that has waited longest.
    pub fn front(&self) -> Option<&T> {
        self.items.front().map(|(item, _)| item)
    }

    /// Takes the item that has waited longest.
    pub fn pop(&mut self) -> Option<T> {
        let (item, weight) = self.items.pop_front()?;
        self.used -= weight;
        Some(item)
    }

    /// Keeps the items for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.items.retain(|(item, _)| keep(item));
        self.used = self.items.iter().map(|(_, weight)| weight).sum();
    }

    /// Removes all items.
    pub fn clear(&mut self) {
        self.items.clear();
        self.used = 0;
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Does none wait?
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

/// A queue that has each of its items once: numbers of entries of a table. It is as long as that, where
/// entries that are removed from the table are removed here, too.
#[derive(Debug)]
pub struct Distinct<T> {
    /// What waits, and items that were removed.
    order: VecDeque<T>,
    waiting: HashSet<T>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Distinct<T> {
        Distinct { order: VecDeque::new(), waiting: HashSet::new() }
    }
}

impl<T: Copy + Eq + Hash> Distinct<T> {
    /// Adds an item, unless it waits already.
    pub fn push(&mut self, item: T) {
        if self.waiting.insert(item) {
            self.order.push_back(item);
        }
    }

    /// Takes the item that has waited longest.
    pub fn pop(&mut self) -> Option<T> {
        loop {
            let item = self.order.pop_front()?;
            if self.waiting.remove(&item) {
                return Some(item);
            }
        }
    }

    /// Removes an item, if it waits.
    pub fn remove(&mut self, item: &T) {
        self.waiting.remove(item);
        // Once in as many calls as there are items to examine.
        if self.order.len() > 2 * self.waiting.len() + 16 {
            let mut kept = HashSet::new();
            self.order.retain(|item| self.waiting.contains(item) && kept.insert(*item));
        }
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Does none wait?
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_bound_comes_back() {
        let mut queue = Bounded::new(2);
        assert_eq!([queue.push(1), queue.push(2), queue.push(3)], [Ok(()), Ok(()), Err(3)]);
        assert_eq!((queue.pop(), queue.push(4)), (Some(1), Ok(())));
        queue.retain(|&item| item != 2);
        assert_eq!((queue.front(), queue.len()), (Some(&4), 1));
        let mut bytes = Bounded::new(10);
        assert_eq!(bytes.push_weighing(7, "seven"), Ok(()));
        assert_eq!(bytes.push_weighing(4, "four"), Err("four"));
        assert!(bytes.has_room(3) && !bytes.has_room(4));
        bytes.clear();
        assert!(bytes.is_empty() && bytes.has_room(10) && !bytes.has_room(usize::MAX));
    }

    #[test]
    fn each_item_waits_once_in_the_order_in_which_it_came() {
        let mut queue = Distinct::default();
        [7, 8, 7].into_iter().for_each(|item| queue.push(item));
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.pop(), Some(7));
        queue.push(7);
        queue.remove(&8);
        assert_eq!([queue.pop(), queue.pop()], [Some(7), None]);
        assert!(queue.is_empty());
    }

    #[test]
    fn items_that_come_and_are_removed_leave_nothing() {
        let mut queue = Distinct::default();
        queue.push(0);
        for item in 1..100_000 {
            queue.push(item);
            queue.remove(&item);
            queue.push(item);
            queue.remove(&item);
        }
        assert!(queue.order.len() < 100, "{}", queue.order.len());
        assert_eq!([queue.pop(), queue.pop()], [Some(0), None]);
    }
}
