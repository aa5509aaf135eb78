//! The attached ports of a worker, which of them it looks at in a round, and in which order they have their turns.

use vmlane_port::Sign;

use crate::Slot;

/// A port and its owner's number. Sorted, ports of one owner lie side by side.
type Owned = (u16, Slot);

/// The ports of one owner that are awake: a part of [`Turns::awake`].
#[derive(Clone, Copy)]
struct OwnerPorts {
    start: usize,
    len: usize,
}

/// A port is awake while it is looked at in each round; else it dozes (`polled.rs`).
#[derive(Default)]
pub struct Turns {
    attached: Vec<Owned>,
    awake: Vec<Owned>,
    /// Woken in this round; they have their turns in the next one.
    waking: Vec<Owned>,
    /// Those that doze and announce nothing, with what tells that they are to be glanced at.
    silent: Vec<(Slot, Option<Sign>)>,
    /// Which of them is looked at next.
    silent_at: usize,
    /// The owners of `awake`.
    owners: Vec<OwnerPorts>,
    /// Rounds so far: whose turn comes first goes by them.
    round: usize,
}

/// How a port that dozes is found when it needs a turn.
pub enum Dozing {
    /// Its doorbell rings.
    Announces,
    /// One of these has changed; if there are none, a glance tells.
    Silent(Vec<Sign>),
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

    /// How many are awake, as of the beginning of the round.
    #[inline]
    pub fn count_awake(&self) -> usize {
        self.awake.len()
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
        self.silent.retain(|(other, _)| *other != slot);
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

    /// Those of which `dozes` says so are not looked at any more. It tells how such a port is found when it needs a turn.
    pub fn doze(&mut self, mut dozes: impl FnMut(Slot) -> Option<Dozing>) {
        let (before, silent) = (self.awake.len(), &mut self.silent);
        self.awake.retain(|&(_, slot)| match dozes(slot) {
            Some(Dozing::Silent(signs)) if signs.is_empty() => {
                silent.push((slot, None));
                false
            }
            Some(Dozing::Silent(signs)) => {
                silent.extend(signs.into_iter().map(|sign| (slot, Some(sign))));
                false
            }
            Some(Dozing::Announces) => false,
            None => true,
        });
        if self.awake.len() != before {
            self.line_up();
        }
    }

    /// Are there any that doze and announce nothing?
    pub fn any_silent(&self) -> bool {
        !self.silent.is_empty()
    }

    /// Looks at the next `count` of them, at most, going around: those that are to be glanced at, some of them twice.
    pub fn look_at_silent(&mut self, count: usize, into: &mut Vec<Slot>) {
        let len = self.silent.len();
        let start = if self.silent_at < len { self.silent_at } else { 0 };
        let count = count.min(len);
        let (before, from) = self.silent.split_at(start);
        let next = from.iter().chain(before).take(count);
        let changed = next.filter(|(_, sign)| sign.as_ref().is_none_or(Sign::has_changed));
        into.extend(changed.map(|(slot, _)| *slot));
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

    fn looked_at(turns: &mut Turns) -> Vec<Slot> {
        let mut seen = Vec::new();
        turns.look_at_silent(usize::MAX, &mut seen);
        assert_eq!(turns.any_silent(), !turns.silent.is_empty());
        seen
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

        turns.doze(|slot| match slot {
            3 => Some(Dozing::Announces),
            7 => Some(Dozing::Silent(Vec::new())),
            _ => None,
        });
        assert!(turns.any_dozes() && looked_at(&mut turns) == [7]);
        let firsts: Vec<_> = (0..4).map(|_| round(&mut turns)[0][0]).collect();
        assert_eq!(firsts.iter().filter(|&&first| first == 1).count(), 2, "{firsts:?}");
        turns.wake(2, 7);
        assert!(
            turns.awake_at(2).is_none() && looked_at(&mut turns).is_empty(),
            "it is awake in the next round"
        );
        assert_eq!(round(&mut turns).concat().len(), 3);
        turns.wake_all();
        assert!(!turns.any_dozes() && round(&mut turns).len() == 3);
    }

    #[test]
    fn those_with_signs_are_glanced_at_when_one_has_changed() {
        let (memory, _file) = vmlane_mem::Window::of_file("signs", 4096).unwrap();
        let sign = |at: usize| Sign::new(memory.word(8 * at), 1, 0);
        let mut turns = Turns::default();
        turns.set((0..4).map(|slot| (slot, slot)).collect());
        turns.doze(|slot| match slot {
            0 => Some(Dozing::Announces),
            1 => Some(Dozing::Silent(vec![sign(1)])),
            2 => Some(Dozing::Silent(vec![sign(2), sign(3)])),
            _ => None,
        });
        assert!(looked_at(&mut turns).is_empty());
        memory.store_u64(8, 2);
        assert!(looked_at(&mut turns).is_empty(), "not its bit");
        memory.store_u64(24, 1);
        assert_eq!(looked_at(&mut turns), [2]);
        memory.store_u64(8, 1);
        assert_eq!(looked_at(&mut turns), [1, 2]);
        turns.wake(2, 2);
        assert_eq!(looked_at(&mut turns), [1]);
    }

    #[test]
    fn those_that_announce_nothing_are_glanced_at_one_after_the_other() {
        let mut turns = Turns::default();
        turns.set((0..5).map(|slot| (slot, slot)).collect());
        turns.doze(|_| Some(Dozing::Silent(Vec::new())));
        let mut seen = Vec::new();
        (0..5).for_each(|_| turns.look_at_silent(3, &mut seen));
        assert_eq!(seen, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
        turns.wake_all();
        turns.look_at_silent(3, &mut seen);
        assert_eq!(seen.len(), 15);
    }
}
