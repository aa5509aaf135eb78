//! The attached ports of a worker, which of them it looks at in a round, and in which order they have their turns.

use crate::Slot;

/// A port and its owner's number. Sorted, ports of one owner lie side by side.
type Owned = (u16, Slot);

/// The ports of one owner that are awake: a part of [`Turns::awake`].
#[derive(Clone, Copy)]
struct OwnerPorts {
    start: usize,
    len: usize,
}

/// A port is awake while it is looked at in each round; else it dozes (`doze.rs`).
#[derive(Default)]
pub struct Turns {
    attached: Vec<Owned>,
    awake: Vec<Owned>,
    /// Woken in this round; they have their turns in the next one.
    waking: Vec<Owned>,
    /// Those that doze and announce nothing.
    silent: Vec<Slot>,
    /// Which of them is glanced at next.
    silent_at: usize,
    /// The owners of `awake`.
    owners: Vec<OwnerPorts>,
    /// Rounds so far: whose turn comes first goes by them.
    round: usize,
}

/// `at + by`, begun anew at `len`; both are smaller than that.
#[inline]
fn rotated(at: usize, by: usize, len: usize) -> usize {
    let sum = at + by;
    if sum < len { sum } else { sum - len }
}

impl Turns {
    /// These ports are attached; all are awake.
    pub fn set(&mut self, mut attached: Vec<Owned>) {
        attached.sort_unstable();
        self.attached = attached;
        self.wake_all();
    }

    /// All attached ports.
    pub fn attached(&self) -> impl Iterator<Item = Slot> {
        self.attached.iter().map(|&(_, slot)| slot)
    }

    /// Number `at` of them.
    #[inline]
    pub fn attached_at(&self, at: usize) -> Option<Slot> {
        self.attached.get(at).map(|&(_, slot)| slot)
    }

    pub fn count_attached(&self) -> usize {
        self.attached.len()
    }

    /// Number `at` of those that are awake, as of the beginning of the round.
    #[inline]
    pub fn awake_at(&self, at: usize) -> Option<Slot> {
        self.awake.get(at).map(|&(_, slot)| slot)
    }

    pub fn awake(&self) -> impl Iterator<Item = Slot> {
        self.awake.iter().map(|&(_, slot)| slot)
    }

    /// Does any port doze?
    #[inline]
    pub fn any_dozes(&self) -> bool {
        self.awake.len() + self.waking.len() < self.attached.len()
    }

    /// A port that dozed is awake from the next round on.
    pub fn wake(&mut self, owner: u16, slot: Slot) {
        self.waking.push((owner, slot));
        self.silent.retain(|&other| other != slot);
    }

    pub fn wake_all(&mut self) {
        self.awake.clone_from(&self.attached);
        self.waking.clear();
        self.silent.clear();
        self.line_up();
    }

    /// Those that were woken are among the others from now on.
    #[inline]
    pub fn merge(&mut self) {
        if !self.waking.is_empty() {
            self.awake.append(&mut self.waking);
            self.awake.sort_unstable();
            self.line_up();
        }
    }

    /// Those of which `dozes` says so are not looked at any more. It tells whether such a port announces what it does.
    pub fn doze(&mut self, mut dozes: impl FnMut(Slot) -> Option<bool>) {
        let (before, silent) = (self.awake.len(), &mut self.silent);
        self.awake.retain(|&(_, slot)| {
            let dozes = dozes(slot);
            if dozes == Some(false) {
                silent.push(slot);
            }
            dozes.is_none()
        });
        if self.awake.len() != before {
            self.line_up();
        }
    }

    /// Number `at` of those that doze and announce nothing.
    pub fn silent_at(&self, at: usize) -> Option<Slot> {
        self.silent.get(at).copied()
    }

    /// The next `count` of them, at most, going around.
    pub fn next_silent(&mut self, count: usize, into: &mut Vec<Slot>) {
        let len = self.silent.len();
        let start = if self.silent_at < len { self.silent_at } else { 0 };
        let count = count.min(len);
        into.extend(self.silent.iter().cycle().skip(start).take(count));
        self.silent_at = if len == 0 { 0 } else { (start + count) % len };
    }

    fn line_up(&mut self) {
        self.owners.clear();
        for of_one in self.awake.chunk_by(|a, b| a.0 == b.0) {
            let start = self.owners.last().map_or(0, |last| last.start + last.len);
            self.owners.push(OwnerPorts { start, len: of_one.len() });
        }
    }

    /// A round begins. Returns how many owners have turns in it.
    pub fn begin_round(&mut self) -> usize {
        self.round = self.round.wrapping_add(1);
        self.owners.len()
    }

    /// Owner number `at` of `count` in this round has its turn: where its ports are, and which is first.
    pub fn begin_turn(&self, at: usize, count: usize) -> Option<impl Iterator<Item = usize> + use<>> {
        let OwnerPorts { start, len } = *self.owners.get(rotated(self.round % count, at, count))?;
        let first = if len == 1 { 0 } else { self.round % len };
        Some((0..len).map(move |at| start + rotated(first, at, len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ports in the order of their turns, an owner's in brackets.
    fn round(turns: &mut Turns) -> Vec<Vec<Slot>> {
        turns.merge();
        let count = turns.begin_round();
        let of_owner = |at| {
            turns.begin_turn(at, count).into_iter().flatten().filter_map(|at| turns.awake_at(at)).collect()
        };
        (0..count).map(of_owner).collect()
    }

    #[test]
    fn owners_and_their_ports_take_turns_in_being_first_among_those_that_are_awake() {
        let mut turns = Turns::default();
        turns.set(vec![(9, 5), (2, 1), (2, 7), (4, 3)]);
        let rounds: Vec<_> = (0..6).map(|_| round(&mut turns)).collect();
        let firsts: Vec<_> = rounds.iter().map(|round| round[0][0]).collect();
        for owner in [[1, 7].as_slice(), &[3], &[5]] {
            assert_eq!(firsts.iter().filter(|first| owner.contains(first)).count(), 2, "{rounds:?}");
        }
        let shared: Vec<_> =
            rounds.iter().flatten().filter(|ports| ports.len() == 2).map(|two| two[0]).collect();
        assert_eq!(shared.iter().filter(|&&first| first == 1).count(), 3, "{rounds:?}");

        turns.doze(|slot| (slot == 3 || slot == 7).then_some(slot == 3));
        assert!(turns.any_dozes() && turns.silent_at(0) == Some(7) && turns.silent_at(1).is_none());
        let firsts: Vec<_> = (0..4).map(|_| round(&mut turns)[0][0]).collect();
        assert_eq!(firsts.iter().filter(|&&first| first == 1).count(), 2, "{firsts:?}");
        turns.wake(2, 7);
        assert!(turns.awake_at(2).is_none() && turns.silent_at(0).is_none(), "it is awake in the next round");
        assert_eq!(round(&mut turns).concat().len(), 3);
        turns.wake_all();
        assert!(!turns.any_dozes() && round(&mut turns).len() == 3);
    }

    #[test]
    fn those_that_announce_nothing_are_glanced_at_one_after_the_other() {
        let mut turns = Turns::default();
        turns.set((0..5).map(|slot| (slot, slot)).collect());
        turns.doze(|_| Some(false));
        let mut seen = Vec::new();
        (0..5).for_each(|_| turns.next_silent(3, &mut seen));
        assert_eq!(seen, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
        turns.wake_all();
        turns.next_silent(3, &mut seen);
        assert_eq!(seen.len(), 15);
    }
}
