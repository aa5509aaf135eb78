//! Where in a ring the other side may have gone to sleep, unnoticed.

use super::distance;

/// Values of an index that others took the place of since the other side was notified: those at which it may
/// have gone to sleep, if its own index became visible late. The last few are known exactly; of those before
/// them, how far back they reach.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unnotified {
    recent: [u64; 3],
    /// Bytes from the first of all to the index as it is; no more than a ring has.
    reach: u64,
}

/// No index.
const NONE: u64 = u64::MAX;

impl Default for Unnotified {
    fn default() -> Unnotified {
        Unnotified { recent: [NONE; 3], reach: 0 }
    }
}

impl Unnotified {
    /// `to` has taken the place of `from`, in a ring of `size`.
    #[inline]
    pub fn push(&mut self, from: u64, to: u64, size: u64) {
        let [a, b, _] = self.recent;
        self.recent = [from, a, b];
        self.reach = (self.reach + distance(from, to, size)).min(size);
    }

    /// Is `index` one of the last? Then the other side is to be notified, and knows by that of all up to
    /// there.
    #[inline]
    pub fn take(&mut self, index: u64, now: u64, size: u64) -> bool {
        let [a, b, c] = self.recent;
        (a == index || b == index || c == index) && self.forget(index, now, size)
    }

    #[cold]
    fn forget(&mut self, index: u64, now: u64, size: u64) -> bool {
        let at = self.recent.iter().position(|one| *one == index).unwrap_or(0);
        let first = at.checked_sub(1).and_then(|next| self.recent.get(next));
        self.reach = first.map_or(0, |first| distance(*first, now, size));
        self.recent.iter_mut().skip(at).for_each(|one| *one = NONE);
        true
    }

    /// The last ones alone.
    pub fn last(self) -> Unnotified {
        Unnotified { reach: 0, ..self }
    }

    /// May `index` be one of them? All are forgotten: for the time when whatever the other side has stored is
    /// visible.
    pub fn take_any(&mut self, index: u64, now: u64, size: u64) -> bool {
        let reach = std::mem::take(self).reach;
        (1..=reach).contains(&distance(index, now, size))
    }
}
