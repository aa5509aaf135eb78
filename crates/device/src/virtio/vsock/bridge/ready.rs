//! Which links of a guest something happened to: marked by any thread, looked for by one.

use std::sync::atomic::{AtomicU64, Ordering};

/// Links of a word, words of a set.
const WORD: usize = u64::BITS as usize;

/// Numbers below [`ReadySet::PLACES`]. To mark one and to find the next marked one takes the same time however many
/// there are.
pub struct ReadySet {
    /// Bit n: something may be marked in word n.
    words_marked: AtomicU64,
    words: [AtomicU64; WORD],
}

impl ReadySet {
    /// How many numbers there are.
    pub const PLACES: usize = WORD * WORD;

    pub fn new() -> ReadySet {
        ReadySet { words_marked: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; WORD] }
    }

    /// Marks a number.
    pub fn mark(&self, number: u16) {
        let (at, bit) = (usize::from(number) / WORD, usize::from(number) % WORD);
        if let Some(word) = self.words.get(at) {
            word.fetch_or(1 << bit, Ordering::AcqRel);
            self.words_marked.fetch_or(1 << at, Ordering::AcqRel);
        }
    }

    /// Is none marked?
    pub fn is_empty(&self) -> bool {
        self.words_marked.load(Ordering::Acquire) == 0
    }

    /// The next marked number from `from` on, the first ones following the last; it is marked no longer.
    pub fn take(&self, from: u16) -> Option<u16> {
        let (first, bit) = (usize::from(from) / WORD % WORD, usize::from(from) % WORD);
        // The word where it begins has its turn twice: for what is behind `from`, and for what is before it.
        for (turn, at) in (first..=first + WORD).enumerate() {
            let at = at % WORD;
            if self.words_marked.load(Ordering::Acquire) & 1 << at == 0 {
                continue;
            }
            let mask = if turn == 0 { u64::MAX << bit } else { u64::MAX };
            let Some(word) = self.words.get(at) else { continue };
            let marked = word.load(Ordering::Acquire) & mask;
            if marked != 0 {
                let bit = marked.trailing_zeros() as usize;
                let left = word.fetch_and(!(1 << bit), Ordering::AcqRel) & !(1 << bit);
                if left == 0 {
                    self.forget_word(at, word);
                }
                return Some((at * WORD + bit) as u16);
            }
            if mask == u64::MAX {
                self.forget_word(at, word);
            }
        }
        None
    }

    /// A word in which nothing seems to be marked; who marks something at this moment does so before it marks the word.
    fn forget_word(&self, at: usize, word: &AtomicU64) {
        self.words_marked.fetch_and(!(1 << at), Ordering::AcqRel);
        if word.load(Ordering::Acquire) != 0 {
            self.words_marked.fetch_or(1 << at, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_set_and_each_is_found_in_turn(
            marks in prop::collection::vec(0..ReadySet::PLACES as u16, 0..100),
            from in 0..ReadySet::PLACES as u16,
        ) {
            let set = ReadySet::new();
            marks.iter().for_each(|&number| set.mark(number));
            let want: BTreeSet<u16> = marks.into_iter().collect();
            let turns = want.range(from..).chain(want.range(..from));
            let (mut next, mut found) = (from, Vec::new());
            while let Some(number) = set.take(next) {
                found.push(number);
                next = (number + 1) % ReadySet::PLACES as u16;
            }
            prop_assert_eq!(found, turns.copied().collect::<Vec<_>>());
            prop_assert!(set.is_empty());
        }
    }

    #[test]
    fn marks_of_another_thread_are_all_found() {
        let set = ReadySet::new();
        let numbers = || (0..20_000u32).map(|at| (at * 37 % ReadySet::PLACES as u32) as u16);
        let mut found = BTreeSet::new();
        std::thread::scope(|scope| {
            let marker = scope.spawn(|| numbers().for_each(|number| set.mark(number)));
            while !marker.is_finished() {
                found.extend(set.take(0));
            }
            found.extend(std::iter::from_fn(|| set.take(0)));
        });
        assert!(set.is_empty());
        assert_eq!(found, numbers().collect());
    }
}
