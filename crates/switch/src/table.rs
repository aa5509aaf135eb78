//! Where an address is: known ports by open addressing, learned ones in a bounded table that ages.

use std::hash::{BuildHasher, RandomState};

use vmlane_wire::ethernet::Mac;

/// A slot of the worker's list of ports.
pub type Slot = u16;
const NOBODY: Slot = Slot::MAX;

/// An address within an isolation group, as a number.
#[inline]
pub fn key(group: u16, mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) | u64::from(group) << 48
}

#[derive(Clone, Copy)]
struct Known {
    key: u64,
    slot: Slot,
}

/// The addresses of ports. Made anew on every change.
pub struct KnownTable {
    entries: Vec<Known>,
    shift: u32,
    multiplier: u64,
}

impl KnownTable {
    /// Entries that come first are found first.
    pub fn new(entries: impl ExactSizeIterator<Item = (u64, Slot)>, seed: u64) -> KnownTable {
        let size = (entries.len() * 2).max(2).next_power_of_two();
        let shift = 64 - size.trailing_zeros();
        let free = Known { key: 0, slot: NOBODY };
        let mut table = KnownTable { entries: vec![free; size], shift, multiplier: seed | 1 };
        for (key, slot) in entries {
            let mut at = table.start(key);
            while table.entries[at].slot != NOBODY {
                at = table.next(at);
            }
            table.entries[at] = Known { key, slot };
        }
        table
    }

    #[inline]
    fn start(&self, key: u64) -> usize {
        (key.wrapping_mul(self.multiplier) >> self.shift) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.entries.len() - 1)
    }

    /// The first port with this address that `carries` the frame's VLAN.
    #[inline]
    pub fn find(&self, key: u64, carries: impl Fn(Slot) -> bool) -> Option<Slot> {
        let mut at = self.start(key);
        loop {
            let Known { key: here, slot } = self.entries[at];
            if slot == NOBODY {
                return None;
            }
            if here == key && carries(slot) {
                return Some(slot);
            }
            at = self.next(at);
        }
    }
}

/// Learned addresses: sets of this many.
const WAYS: usize = 8;
const SETS: usize = 1024;
/// Addresses that may be learned behind one port: a VM's, an uplink.
const VM_SHARE: u32 = 256;
const UPLINK_SHARE: u32 = 6144;
/// Seconds after which an address that was not heard of is forgotten.
pub const AGE: u32 = 300;

#[derive(Clone, Copy)]
struct Learned {
    key: u64,
    vlan: u16,
    slot: Slot,
    uplink: bool,
    /// Seconds since the worker started.
    heard: u32,
}

/// Addresses heard behind uplinks and behind ports that may forge their source.
pub struct LearnedTable {
    entries: Vec<Learned>,
    /// By slot: how many.
    shares: Vec<u32>,
    seed: u64,
}

impl LearnedTable {
    pub fn new() -> LearnedTable {
        let free = Learned { key: 0, vlan: 0, slot: NOBODY, uplink: false, heard: 0 };
        LearnedTable {
            entries: vec![free; WAYS * SETS],
            shares: Vec::new(),
            seed: RandomState::new().hash_one(0) | 1,
        }
    }

    /// A number nobody can guess: makes addresses that share a place hard to find.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    #[inline]
    fn set(&self, key: u64, vlan: u16) -> std::ops::Range<usize> {
        let mixed = (key ^ u64::from(vlan).rotate_right(12)).wrapping_mul(self.seed);
        let start = (mixed >> 32) as usize % SETS * WAYS;
        start..start + WAYS
    }

    #[inline]
    pub fn find(&self, key: u64, vlan: u16, now: u32) -> Option<Slot> {
        self.entries[self.set(key, vlan)]
            .iter()
            .find(|entry| entry.slot != NOBODY && entry.key == key && entry.vlan == vlan)
            .filter(|entry| now.wrapping_sub(entry.heard) < AGE)
            .map(|entry| entry.slot)
    }

    /// Remembers that the address was heard behind `slot`. What was heard behind an uplink does not move
    /// to a VM before it has aged: a VM cannot take over the addresses of the world outside. True if the address
    /// was known elsewhere: whoever noted where it is looks again.
    #[must_use]
    pub fn learn(&mut self, key: u64, vlan: u16, slot: Slot, uplink: bool, now: u32) -> bool {
        let set = self.set(key, vlan);
        let aged = |entry: &Learned| entry.slot == NOBODY || now.wrapping_sub(entry.heard) >= AGE;
        let entries = &self.entries[set.clone()];
        let same =
            entries.iter().position(|entry| entry.slot != NOBODY && entry.key == key && entry.vlan == vlan);
        let way = match same {
            Some(way) if entries[way].slot == slot => {
                self.entries[set.start + way].heard = now;
                return false;
            }
            Some(way) if entries[way].uplink && !uplink && !aged(&entries[way]) => return false,
            Some(way) => way,
            // None free: nothing is learned. What is known stays known.
            None => match entries.iter().position(aged) {
                Some(way) => way,
                None => return false,
            },
        };
        if self.shares.len() <= usize::from(slot) {
            self.shares.resize(usize::from(slot) + 1, 0);
        }
        if self.shares[usize::from(slot)] >= if uplink { UPLINK_SHARE } else { VM_SHARE } {
            return false;
        }
        self.shares[usize::from(slot)] += 1;
        let entry = &mut self.entries[set.start + way];
        if entry.slot != NOBODY {
            self.shares[usize::from(entry.slot)] -= 1;
        }
        *entry = Learned { key, vlan, slot, uplink, heard: now };
        same.is_some()
    }

    /// Forgets what was heard behind a port.
    pub fn forget(&mut self, slot: Slot) {
        self.forget_if(|entry| entry.slot == slot);
    }

    /// Forgets what was not heard of for long.
    pub fn age(&mut self, now: u32) {
        self.forget_if(|entry| now.wrapping_sub(entry.heard) >= AGE);
    }

    fn forget_if(&mut self, old: impl Fn(&Learned) -> bool) {
        for entry in self.entries.iter_mut().filter(|entry| entry.slot != NOBODY) {
            if old(entry) {
                self.shares[usize::from(entry.slot)] -= 1;
                entry.slot = NOBODY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_known_port_that_carries_the_vlan_is_found() {
        let entries = [(7, 1), (7, 2), (9, 3)];
        let table = KnownTable::new(entries.into_iter(), 0x9e37_79b9_7f4a_7c15);
        assert_eq!(table.find(7, |_| true), Some(1));
        assert_eq!(table.find(7, |slot| slot == 2), Some(2));
        assert_eq!(table.find(9, |_| true), Some(3));
        assert_eq!(table.find(8, |_| true), None);
        assert_eq!(table.find(7, |_| false), None);
    }

    #[test]
    fn learned_addresses_age_move_and_are_bounded() {
        let mut table = LearnedTable { seed: 0x9e37_79b9_7f4a_7c15, ..LearnedTable::new() };
        assert!(!table.learn(5, 10, 1, false, 0));
        assert_eq!(table.find(5, 10, AGE - 1), Some(1));
        assert_eq!(table.find(5, 11, 0), None);
        assert_eq!(table.find(5, 10, AGE), None);
        assert!(table.learn(5, 10, 2, true, 1) && !table.learn(5, 10, 2, true, 1));
        assert_eq!(table.find(5, 10, 2), Some(2), "moved to the uplink");
        assert!(!table.learn(5, 10, 1, false, 3));
        assert_eq!(table.find(5, 10, 3), Some(2), "a VM does not take what an uplink has");
        assert!(table.learn(5, 10, 1, false, 1 + AGE));
        assert_eq!(table.find(5, 10, 1 + AGE), Some(1));
        table.forget(1);
        assert_eq!(table.find(5, 10, 1 + AGE), None);
        (0..10_000).for_each(|key| assert!(!table.learn(key, 0, 3, false, 1)));
        let known = (0..10_000).filter(|&key| table.find(key, 0, 1).is_some()).count();
        assert_eq!(known, VM_SHARE as usize);
        table.age(1 + AGE);
        (0..100).for_each(|key| assert!(!table.learn(key, 0, 3, false, 400)));
        assert!(table.find(50, 0, 400).is_some());
    }
}
