//! Numbers that mean the same to all workers: of ports, of their owners, and of isolation groups on a switch.
//!
//! A number names one thing at a time. It is free again when what it named is gone, and when none is free, a
//! port is refused.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use vmlane_port::PortId;

use crate::spec::PortSpec;
use crate::{Slot, place_of};

/// How many ports a switch can have. [`Slot::MAX`] is no port's.
pub const MOST_PORTS: usize = Slot::MAX as usize;

/// A port was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the switch has {MOST_PORTS} ports, as many as it can have; remove VMs, NICs, uplinks or mirrors that are not needed"
)]
pub struct SwitchFull;

impl From<SwitchFull> for std::io::Error {
    fn from(full: SwitchFull) -> std::io::Error {
        std::io::Error::other(full)
    }
}

/// The numbers below [`MOST_PORTS`]: the lowest free one is given out next, so that tables by number stay
/// short.
#[derive(Default)]
struct FreeList {
    /// Those from here on were never given out.
    next: u16,
    free: BTreeSet<u16>,
}

impl FreeList {
    fn take(&mut self) -> Result<u16, SwitchFull> {
        if let Some(number) = self.free.pop_first() {
            return Ok(number);
        }
        let number = self.next;
        if usize::from(number) >= MOST_PORTS {
            return Err(SwitchFull);
        }
        self.next += 1;
        Ok(number)
    }

    fn put(&mut self, number: u16) {
        self.free.insert(number);
    }
}

/// The numbers of names that ports use; ports with the same name have the same number.
#[derive(Default)]
struct Names {
    numbers: HashMap<String, u16>,
    /// By number: its name, and the ports that use it.
    uses: Vec<(String, usize)>,
    free: FreeList,
}

impl Names {
    /// The number of a name that one more port uses.
    fn take(&mut self, name: &str) -> Result<u16, SwitchFull> {
        let number = match self.numbers.get(name) {
            Some(&number) => number,
            None => {
                let number = self.free.take()?;
                self.numbers.insert(name.to_owned(), number);
                *place_of(&mut self.uses, number) = (name.to_owned(), 0);
                number
            }
        };
        self.uses.iter_mut().skip(number.into()).take(1).for_each(|(_, count)| *count += 1);
        Ok(number)
    }

    /// A port does not use the name of this number any more.
    fn put(&mut self, number: u16) {
        let Some((name, count)) = self.uses.get_mut(usize::from(number)) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 && self.numbers.remove(name).is_some() {
            self.free.put(number);
        }
    }
}

/// The numbers of one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortNumbers {
    /// Where it is with every worker.
    pub slot: Slot,
    pub owner: u16,
    pub group: u16,
}

/// All ports' numbers, and how many ports each worker has.
pub struct Numbers {
    slots: FreeList,
    owners: Names,
    groups: Names,
    next_id: u32,
    /// By worker: its ports.
    ports: Vec<usize>,
}

/// A port goes to a worker with others of its group that has fewer than so many ports more than the one with
/// the fewest.
const BESIDE: usize = 2;

impl Numbers {
    pub fn of_workers(count: usize) -> Numbers {
        Numbers {
            slots: FreeList::default(),
            owners: Names::default(),
            groups: Names::default(),
            next_id: 0,
            ports: vec![0; count],
        }
    }

    /// The numbers of one more port.
    pub fn take(&mut self, spec: &PortSpec) -> Result<PortNumbers, SwitchFull> {
        let owner = spec.name.split_once('/').map_or(&*spec.name, |(owner, _)| owner);
        let slot = self.slots.take()?;
        // Each port with a slot uses one owner and one group, and there are as many numbers of these as
        // slots.
        Ok(PortNumbers { slot, owner: self.owners.take(owner)?, group: self.groups.take(&spec.network())? })
    }

    /// A port is gone from every worker.
    pub fn put(&mut self, of: PortNumbers) {
        self.slots.put(of.slot);
        self.owners.put(of.owner);
        self.groups.put(of.group);
    }

    /// The number of the group that a port goes to from group number `from`, which stays taken until
    /// [`Numbers::leave_group`].
    pub fn enter_group(&mut self, name: &str) -> Result<u16, SwitchFull> {
        self.groups.take(name)
    }

    pub fn leave_group(&mut self, number: u16) {
        self.groups.put(number);
    }

    /// An id that no port has, of a port of `worker`: the remainder of an id by the number of workers is its
    /// worker, so no doorbell has to be polled for it.
    pub fn id(&mut self, worker: usize, is_taken: impl Fn(PortId) -> bool) -> PortId {
        let (count, worker) = (self.ports.len().max(1) as u32, worker as u32);
        loop {
            self.next_id = if self.next_id < u32::MAX / count - 1 { self.next_id + 1 } else { 1 };
            let id = PortId(self.next_id * count + worker);
            if !is_taken(id) {
                return id;
            }
        }
    }

    /// The worker that gets one more port: of those that have ports of its group, by worker, the one with the
    /// most, unless it has many more than others; else the one with the fewest ports.
    pub fn place(&self, of_group: &[usize]) -> usize {
        let fewest = self.ports.iter().copied().min().unwrap_or(0);
        let beside = self.ports.iter().zip(of_group).enumerate();
        let beside = beside.filter(|(_, (count, of_group))| **of_group > 0 && **count < fewest + BESIDE);
        let most = beside.min_by_key(|(_, (count, of_group))| (Reverse(**of_group), **count));
        most.map(|(worker, _)| worker)
            .or_else(|| self.ports.iter().position(|&count| count == fewest))
            .unwrap_or(0)
    }

    pub fn count(&mut self, worker: usize, change: isize) {
        if let Some(count) = self.ports.get_mut(worker) {
            *count = count.saturating_add_signed(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use vmlane_wire::ethernet::Mac;

    use super::*;

    fn spec(number: usize, group: &str) -> PortSpec {
        PortSpec { group: group.into(), ..PortSpec::plain(&format!("vm-{number}/nic0"), Mac::default()) }
    }

    #[test]
    fn groups_and_owners_that_are_gone_give_their_numbers_back() {
        let mut numbers = Numbers::of_workers(1);
        let stays = numbers.take(&spec(0, "stays")).unwrap();
        for at in 1..=2 * MOST_PORTS {
            let of = numbers.take(&spec(at, &format!("group-{at}"))).unwrap();
            assert_eq!((of.slot, of.owner, of.group), (1, 1, 1));
            numbers.put(of);
        }
        assert_eq!(numbers.take(&spec(0, "stays")).unwrap(), PortNumbers { slot: 1, ..stays });
    }

    #[test]
    fn no_two_groups_have_a_number_however_many_there_are_and_a_port_too_many_is_refused() {
        let mut numbers = Numbers::of_workers(1);
        let all = (0..MOST_PORTS).map(|at| numbers.take(&spec(at, &format!("group-{at}"))).unwrap());
        let all: Vec<PortNumbers> = all.collect();
        let distinct = |which: fn(&PortNumbers) -> u16| all.iter().map(which).collect::<HashSet<_>>().len();
        assert_eq!(
            [distinct(|of| of.slot), distinct(|of| of.owner), distinct(|of| of.group)],
            [MOST_PORTS; 3]
        );
        assert_eq!(numbers.take(&spec(MOST_PORTS, "one more")), Err(SwitchFull));
        numbers.put(all[7]);
        assert_eq!(numbers.take(&spec(MOST_PORTS, "one more")), Ok(all[7]));
    }

    #[test]
    fn a_name_keeps_its_number_until_the_last_port_leaves_it() {
        let mut numbers = Numbers::of_workers(1);
        let [a, b] = [0, 1].map(|at| numbers.take(&spec(at, "shared")).unwrap());
        assert_eq!(a.group, b.group);
        numbers.put(a);
        assert_ne!(numbers.enter_group("other").unwrap(), b.group);
        numbers.leave_group(b.group);
        assert_eq!(numbers.enter_group("third").unwrap(), b.group);
    }

    #[test]
    fn ids_begin_again_at_their_end_without_those_that_are_taken_and_name_their_workers() {
        for count in [1u32, 3, 64] {
            let mut numbers = Numbers::of_workers(count as usize);
            let first = numbers.id(0, |_| false);
            numbers.next_id = u32::MAX / count - 2;
            let mut before = HashSet::from([first]);
            for at in 0..2 * count {
                let id = numbers.id((at % count) as usize, |id| before.contains(&id));
                assert_eq!(id.0 % count, at % count);
                assert!(id.0 >= count && before.insert(id));
            }
        }
    }
}
