//! The attached ports of a worker, which of them it polls in a round, and in which order they have their
//! turns.

use vmlane_port::{BURST, Sign};
use vmlane_worker::Source;

use crate::Slot;

/// Where more ports of a worker than this are polled, each is asked for fewer frames at once.
const CROWD: usize = 64;
/// How many that are.
const CROWDED_BURST: u32 = 8;

/// A port and its owner's number. Sorted, ports of one owner lie side by side.
type Owned = (u16, Slot);

/// The ports of one owner that are polled: a part of [`Turns::polled`].
#[derive(Clone, Copy)]
struct OwnerPorts {
    start: usize,
    len: usize,
}

/// Which ports are polled in each round is decided in `polled.rs`.
#[derive(Default)]
pub struct Turns {
    attached: Vec<Owned>,
    polled: Vec<Owned>,
    /// New among them in this round; they have their turns in the next one.
    new: Vec<Owned>,
    /// Those that are not polled and announce nothing, with the words that change when they have something to
    /// do.
    silent: Vec<(Slot, Option<Sign>)>,
    /// Which of them is checked next.
    silent_at: usize,
    /// The owners of `polled`.
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
    /// These ports are attached; all are polled.
    pub fn set(&mut self, mut attached: Vec<Owned>) {
        attached.sort_unstable();
        self.attached = attached;
        self.poll_all();
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

    /// Number `at` of those that are polled, as of the beginning of the round.
    #[inline]
    pub fn polled_at(&self, at: usize) -> Option<Slot> {
        self.polled.get(at).map(|&(_, slot)| slot)
    }

    /// How many frames a port is asked for at once. What it keeps of a frame in flight is in the CPU's cache
    /// if a frame of this turn used it before; what was used in its last turn is not, where many ports have
    /// turns in between. Segments that are merged (`merges`) need the others of their burst.
    #[inline]
    pub fn burst(&self, merges: bool) -> u32 {
        if self.polled.len() > CROWD && !merges { CROWDED_BURST } else { BURST as u32 }
    }

    pub fn polled(&self) -> impl Iterator<Item = Slot> {
        self.polled.iter().map(|&(_, slot)| slot)
    }

    /// Is any port not polled?
    #[inline]
    pub fn any_unpolled(&self) -> bool {
        self.polled.len() + self.new.len() < self.attached.len()
    }

    /// A port is polled from the next round on.
    pub fn poll(&mut self, owner: u16, slot: Slot) {
        self.new.push((owner, slot));
        self.silent.retain(|(other, _)| *other != slot);
    }

    pub fn poll_all(&mut self) {
        self.polled.clone_from(&self.attached);
        self.new.clear();
        self.silent.clear();
        self.line_up();
    }

    /// Those that are new are among the others from now on.
    #[inline]
    pub fn merge(&mut self) {
        if !self.new.is_empty() {
            self.polled.append(&mut self.new);
            self.polled.sort_unstable();
            self.line_up();
        }
    }

    /// Those that have a `source` are not polled any more.
    pub fn leave_out(&mut self, mut source: impl FnMut(Slot) -> Option<Source>) {
        let (before, silent) = (self.polled.len(), &mut self.silent);
        self.polled.retain(|&(_, slot)| match source(slot) {
            Some(Source::Words(signs)) if signs.is_empty() => {
                silent.push((slot, None));
                false
            }
            Some(Source::Words(signs)) => {
                silent.extend(signs.into_iter().map(|sign| (slot, Some(sign))));
                false
            }
            Some(Source::EventFd) => false,
            None => true,
        });
        if self.polled.len() != before {
            self.line_up();
        }
    }

    /// Are there any that are not polled and announce nothing?
    pub fn any_silent(&self) -> bool {
        !self.silent.is_empty()
    }

    /// Checks the next `count` of them, at most, going around: those that have changed, some of them twice.
    pub fn take_changed(&mut self, count: usize, into: &mut Vec<Slot>) {
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
        for of_one in self.polled.chunk_by(|a, b| a.0 == b.0) {
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
            turns.begin_turn(at, count).into_iter().flatten().filter_map(|at| turns.polled_at(at)).collect()
        };
        (0..count).map(of_owner).collect()
    }

    fn changed(turns: &mut Turns) -> Vec<Slot> {
        let mut seen = Vec::new();
        turns.take_changed(usize::MAX, &mut seen);
        assert_eq!(turns.any_silent(), !turns.silent.is_empty());
        seen
    }

    #[test]
    fn owners_and_their_ports_take_turns_in_being_first_among_those_that_are_polled() {
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

        turns.leave_out(|slot| match slot {
            3 => Some(Source::EventFd),
            7 => Some(Source::Words(Vec::new())),
            _ => None,
        });
        assert!(turns.any_unpolled() && changed(&mut turns) == [7]);
        let firsts: Vec<_> = (0..4).map(|_| round(&mut turns)[0][0]).collect();
        assert_eq!(firsts.iter().filter(|&&first| first == 1).count(), 2, "{firsts:?}");
        turns.poll(2, 7);
        assert!(
            turns.polled_at(2).is_none() && changed(&mut turns).is_empty(),
            "it is polled in the next round"
        );
        assert_eq!(round(&mut turns).concat().len(), 3);
        turns.poll_all();
        assert!(!turns.any_unpolled() && round(&mut turns).len() == 3);
    }

    #[test]
    fn those_with_words_are_found_when_one_has_changed() {
        let (memory, _file) = vmlane_mem::Window::of_file("signs", 4096).unwrap();
        let sign = |at: usize| Sign::new(memory.word(8 * at), 1, 0);
        let mut turns = Turns::default();
        turns.set((0..4).map(|slot| (slot, slot)).collect());
        turns.leave_out(|slot| match slot {
            0 => Some(Source::EventFd),
            1 => Some(Source::Words(vec![sign(1)])),
            2 => Some(Source::Words(vec![sign(2), sign(3)])),
            _ => None,
        });
        assert!(changed(&mut turns).is_empty());
        memory.store_u64(8, 2);
        assert!(changed(&mut turns).is_empty(), "not its bit");
        memory.store_u64(24, 1);
        assert_eq!(changed(&mut turns), [2]);
        memory.store_u64(8, 1);
        assert_eq!(changed(&mut turns), [1, 2]);
        turns.poll(2, 2);
        assert_eq!(changed(&mut turns), [1]);
    }

    #[test]
    fn those_that_announce_nothing_are_checked_one_after_the_other() {
        let mut turns = Turns::default();
        turns.set((0..5).map(|slot| (slot, slot)).collect());
        turns.leave_out(|_| Some(Source::Words(Vec::new())));
        let mut seen = Vec::new();
        (0..5).for_each(|_| turns.take_changed(3, &mut seen));
        assert_eq!(seen, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
        turns.poll_all();
        turns.take_changed(3, &mut seen);
        assert_eq!(seen.len(), 15);
    }
}
