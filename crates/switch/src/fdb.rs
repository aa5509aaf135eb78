//! Where a frame goes: the addresses of ports in a table by open addressing, learned ones in a bounded table
//! that ages, and for each sender the way that its last frame took.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use std::sync::Arc;
use vmlane_port::DropReason;
use vmlane_wire::ethernet::Mac;

use crate::{Slot, place_of};

/// Of an entry that is free.
const FREE: Slot = Slot::MAX;

/// An address within an isolation group, as a number.
#[inline]
pub fn key(group: u16, mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) | u64::from(group) << 48
}

/// The address in a [`key`].
pub fn unkey(key: u64) -> Mac {
    let [a, b, c, d, e, f, ..] = key.to_le_bytes();
    Mac([a, b, c, d, e, f])
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    One(Slot),
    /// All of the VLAN that want the group address.
    Group,
    /// All of the VLAN that want frames to unknown addresses.
    Unknown,
}

/// The way of a sender's last frame: the next one mostly takes it too.
#[derive(Clone, Copy, Debug, Default)]
pub struct Route {
    pub to: u64,
    pub from: u64,
    pub vlan: u16,
    pub receiver: Slot,
    /// Of the tables that it was found in.
    epoch: u64,
}

/// A sender, as far as it matters for where its frames go.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// Of a member of a team: that under which the team's addresses are kept.
    pub slot: Slot,
    pub group: u16,
    pub uplink: bool,
    /// An uplink of a team: the network may send back through it what left through another one.
    pub teamed: bool,
    pub own: Mac,
    /// Its worker has seen the frame already, and perhaps later ones.
    pub remote: bool,
}

/// What all workers of a switch have learned. They read it when a frame does not go the way of its
/// sender's last one, so its lock is hardly ever contended.
pub struct LearnedAddresses {
    table: Mutex<LearnedTable>,
    /// Counts addresses that have moved.
    moved: AtomicU64,
    started: Instant,
    seed: u64,
}

impl LearnedAddresses {
    pub fn new() -> LearnedAddresses {
        let table = LearnedTable::new();
        let seed = table.seed();
        LearnedAddresses { table: Mutex::new(table), moved: AtomicU64::new(0), started: Instant::now(), seed }
    }
}

/// Both tables.
pub struct Fdb {
    known: KnownTable,
    learned: Arc<LearnedAddresses>,
    /// Of `known`, of `learned` as far as addresses have moved, and of the ports' configuration.
    epoch: u64,
    /// Addresses that have moved, when this was last read.
    moved: u64,
    /// Seconds since the start.
    seconds: u32,
}

/// Seconds between two sweeps of addresses that were not seen for long.
const SWEEP_EVERY: u32 = 16;

impl Fdb {
    pub fn new(learned: Arc<LearnedAddresses>) -> Fdb {
        let known = KnownTable::new(std::iter::empty(), learned.seed);
        Fdb { known, learned, epoch: 1, moved: 0, seconds: 0 }
    }

    /// A round begins: addresses may have moved by what other workers have seen.
    #[inline]
    pub fn begin_round(&mut self) {
        let moved = self.learned.moved.load(Ordering::Relaxed);
        if moved != self.moved {
            self.moved = moved;
            self.epoch += 1;
        }
    }

    /// Ports have changed: their addresses, those that come first being found first.
    pub fn rebuild(&mut self, entries: impl ExactSizeIterator<Item = (u64, Slot)>) {
        self.known = KnownTable::new(entries, self.learned.seed);
        self.epoch += 1;
    }

    /// Forgets what was seen behind a port.
    pub fn forget(&mut self, slot: Slot) {
        self.learned.table.lock().forget(slot);
        // Who sends from there is learned anew, by a worker that knows the way already, too.
        self.learned.moved.fetch_add(1, Ordering::Relaxed);
    }

    /// Every learned address: its isolation group and address, its VLAN, the port it was seen behind, and
    /// the seconds since.
    pub fn learned(&self) -> Vec<(u64, u16, Slot, u32)> {
        let now = self.seconds;
        let table = self.learned.table.lock();
        let entries = table.entries.iter().filter(|entry| entry.slot != FREE);
        entries.map(|entry| (entry.key, entry.vlan, entry.slot, now.wrapping_sub(entry.last_seen))).collect()
    }

    /// Advances the clock.
    pub fn age(&mut self, now: Instant) {
        let seconds = now.duration_since(self.learned.started).as_secs() as u32;
        if seconds == self.seconds {
            return;
        }
        self.seconds = seconds;
        if seconds.is_multiple_of(SWEEP_EVERY) {
            self.learned.table.lock().age(seconds);
            self.epoch += 1;
        }
    }

    /// Changes whenever a way may lead elsewhere.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Does the way still lead where it led?
    #[inline]
    pub fn is_valid(&self, route: &Route) -> bool {
        route.epoch == self.epoch
    }

    /// Where a frame goes; `route` is its sender's, `carries` returns whether a port is in the frame's VLAN,
    /// `uplink` whether it is one. `learn`: the source is not the sender's own address.
    #[inline]
    pub fn find(
        &mut self,
        sender: Sender,
        route: &mut Route,
        [to, from]: [Mac; 2],
        (vlan, learn): (u16, bool),
        port: impl Fn(Slot) -> Option<PortInVlan>,
    ) -> Result<Destination, DropReason> {
        let keys = [key(sender.group, to), key(sender.group, from)];
        if keys == [route.to, route.from] && vlan == route.vlan && self.is_valid(route) {
            return Ok(Destination::One(route.receiver));
        }
        if sender.teamed && self.is_reflected(keys, vlan, &port) {
            return Err(DropReason::Reflected);
        }
        if learn {
            self.learn(sender, keys[1], vlan);
        }
        if to.is_multicast() {
            return Ok(Destination::Group);
        }
        let destination = self.find_unicast(sender, keys, vlan, port)?;
        if let Destination::One(receiver) = destination {
            *route = Route { to: keys[0], from: keys[1], vlan, receiver, epoch: self.epoch };
        }
        Ok(destination)
    }

    /// The same for a sender whose frames all go to the one port that `receiver` finds.
    #[inline]
    pub fn find_direct(
        &self,
        group: u16,
        route: &mut Route,
        [to, from]: [Mac; 2],
        vlan: u16,
        receiver: impl FnOnce() -> Result<Slot, DropReason>,
    ) -> Result<Destination, DropReason> {
        let (to, from) = (key(group, to), key(group, from));
        if [to, from] != [route.to, route.from] || vlan != route.vlan || !self.is_valid(route) {
            *route = Route { to, from, vlan, receiver: receiver()?, epoch: self.epoch };
        }
        Ok(Destination::One(route.receiver))
    }

    /// Does a frame that comes from outside claim to be from an address of a VM here? One from an address
    /// that a VM only used is not reflected if it is to a port here, as what a VM sends there never leaves: a
    /// VM that forges an address of the world outside cannot keep its owner's frames out, and loses it with
    /// the first of them.
    #[cold]
    fn is_reflected(
        &self,
        [to, from]: [u64; 2],
        vlan: u16,
        port: &impl Fn(Slot) -> Option<PortInVlan>,
    ) -> bool {
        let is_here = |key| self.known.find(key, |slot| port(slot).is_some()).is_some();
        is_here(from) || self.learned.table.lock().is_behind_vm(from, vlan, self.seconds) && !is_here(to)
    }

    fn learn(&mut self, sender: Sender, from: u64, vlan: u16) {
        // The address of a port is known and never learned elsewhere.
        if self.known.find(from, |_| true).is_none() {
            let mut table = self.learned.table.lock();
            if table.learn(from, vlan, sender.slot, sender.uplink, self.seconds) {
                // Routes that led to where it was are of no use.
                self.learned.moved.fetch_add(1, Ordering::Relaxed);
                self.epoch += 1;
            }
        }
    }

    fn find_unicast(
        &self,
        sender: Sender,
        [to, from]: [u64; 2],
        vlan: u16,
        port: impl Fn(Slot) -> Option<PortInVlan>,
    ) -> Result<Destination, DropReason> {
        if let Some(receiver) = self.known.find(to, |slot| port(slot).is_some()) {
            return Ok(Destination::One(receiver));
        }
        if to == key(sender.group, sender.own) {
            return Err(DropReason::NoReceiver);
        }
        let behind = self.learned.table.lock().find(to, vlan, self.seconds);
        let Some(behind) = behind else { return Ok(Destination::Unknown) };
        if behind == sender.slot {
            // Learned, it may be, from a frame that the sender's worker saw after this one.
            let later = sender.remote && to != from;
            return if later { Ok(Destination::Unknown) } else { Err(DropReason::NoReceiver) };
        }
        let reachable = port(behind).is_some_and(|found| !(sender.uplink && found.uplink));
        Ok(if reachable { Destination::One(behind) } else { Destination::Unknown })
    }
}

/// A port that is in the VLAN of the frame in hand.
#[derive(Clone, Copy, Debug)]
pub struct PortInVlan {
    pub uplink: bool,
}

/// A number whose upper bits depend on all of `key`, in a way that an odd `secret` decides. One product is
/// not enough: with one secret in 30 it puts half of a run of addresses on a few places.
#[inline]
fn mix(key: u64, secret: u64) -> u64 {
    let product = u128::from(key) * u128::from(secret);
    (product as u64 ^ (product >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
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
    #[expect(clippy::indexing_slicing, reason = "`start` and `next` stay below the number of entries")]
    pub fn new(entries: impl ExactSizeIterator<Item = (u64, Slot)>, seed: u64) -> KnownTable {
        let size = (entries.len() * 2).max(2).next_power_of_two();
        let shift = 64 - size.trailing_zeros();
        let free = Known { key: 0, slot: FREE };
        let mut table = KnownTable { entries: vec![free; size], shift, multiplier: seed | 1 };
        for (key, slot) in entries {
            let mut at = table.start(key);
            while table.entries[at].slot != FREE {
                at = table.next(at);
            }
            table.entries[at] = Known { key, slot };
        }
        table
    }

    #[inline]
    fn start(&self, key: u64) -> usize {
        (mix(key, self.multiplier) >> self.shift) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.entries.len() - 1)
    }

    /// The first port with this address that `carries` the frame's VLAN.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "`start` and `next` stay below the number of entries")]
    pub fn find(&self, key: u64, carries: impl Fn(Slot) -> bool) -> Option<Slot> {
        let mut at = self.start(key);
        loop {
            let Known { key: here, slot } = self.entries[at];
            if slot == FREE {
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
/// Addresses that may be learned in all.
pub const MOST_LEARNED: usize = WAYS * SETS;
/// Addresses that may be learned behind one port: a VM's, an uplink.
const VM_SHARE: u32 = 256;
const UPLINK_SHARE: u32 = 6144;
/// Seconds after which an address that was not seen is forgotten.
pub const AGE: u32 = 300;

/// For so many seconds after a VM has sent from an address, frames from it that come in through a team are
/// its own, sent back.
const REFLECTED: u32 = 2;

#[derive(Clone, Copy)]
struct Learned {
    key: u64,
    vlan: u16,
    slot: Slot,
    uplink: bool,
    /// Seconds since the worker started.
    last_seen: u32,
}

/// Addresses seen behind uplinks and behind ports that may forge their source.
pub struct LearnedTable {
    entries: Vec<Learned>,
    /// By slot: how many.
    shares: Vec<u32>,
    seed: u64,
}

impl LearnedTable {
    pub fn new() -> LearnedTable {
        let free = Learned { key: 0, vlan: 0, slot: FREE, uplink: false, last_seen: 0 };
        LearnedTable {
            entries: vec![free; WAYS * SETS],
            shares: Vec::new(),
            seed: RandomState::new().hash_one(0) | 1,
        }
    }

    /// A number that cannot be guessed: makes addresses that share a place hard to find.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    #[inline]
    fn set(&self, key: u64, vlan: u16) -> std::ops::Range<usize> {
        let mixed = mix(key ^ u64::from(vlan).rotate_right(12), self.seed);
        let start = (mixed >> (u64::BITS - SETS.trailing_zeros())) as usize * WAYS;
        start..start + WAYS
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "a set lies within the entries, and `shares` has every slot that they name"
    )]
    pub fn find(&self, key: u64, vlan: u16, now: u32) -> Option<Slot> {
        self.entries[self.set(key, vlan)]
            .iter()
            .find(|entry| entry.slot != FREE && entry.key == key && entry.vlan == vlan)
            .filter(|entry| now.wrapping_sub(entry.last_seen) < AGE)
            .map(|entry| entry.slot)
    }

    /// Was the address seen behind a VM's port just now? A VM that has moved to another host is seen from
    /// there, and here no more.
    #[expect(clippy::indexing_slicing, reason = "a set lies within the entries")]
    fn is_behind_vm(&self, key: u64, vlan: u16, now: u32) -> bool {
        let same = |entry: &&Learned| entry.slot != FREE && entry.key == key && entry.vlan == vlan;
        let entry = self.entries[self.set(key, vlan)].iter().find(same);
        entry.is_some_and(|entry| !entry.uplink && now.wrapping_sub(entry.last_seen) <= REFLECTED)
    }

    /// Remembers that the address was seen behind `slot`. What was seen behind an uplink does not move to a
    /// VM before it has aged: a VM cannot take over the addresses of the world outside. True if the address
    /// was known elsewhere: senders that noted the way search again.
    #[must_use]
    #[expect(
        clippy::indexing_slicing,
        reason = "a set lies within the entries, and `shares` has every slot that they name"
    )]
    pub fn learn(&mut self, key: u64, vlan: u16, slot: Slot, uplink: bool, now: u32) -> bool {
        let set = self.set(key, vlan);
        let aged = |entry: &Learned| entry.slot == FREE || now.wrapping_sub(entry.last_seen) >= AGE;
        let entries = &self.entries[set.clone()];
        let same =
            entries.iter().position(|entry| entry.slot != FREE && entry.key == key && entry.vlan == vlan);
        let way = match same {
            Some(way) if entries[way].slot == slot => {
                self.entries[set.start + way].last_seen = now;
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
        let share = place_of(&mut self.shares, slot);
        if *share >= if uplink { UPLINK_SHARE } else { VM_SHARE } {
            return false;
        }
        *share += 1;
        let entry = &mut self.entries[set.start + way];
        if entry.slot != FREE {
            self.shares[usize::from(entry.slot)] -= 1;
        }
        *entry = Learned { key, vlan, slot, uplink, last_seen: now };
        same.is_some()
    }

    /// Forgets what was seen behind a port.
    pub fn forget(&mut self, slot: Slot) {
        self.forget_if(|entry| entry.slot == slot);
    }

    /// Forgets what was not seen for long.
    pub fn age(&mut self, now: u32) {
        self.forget_if(|entry| now.wrapping_sub(entry.last_seen) >= AGE);
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a set lies within the entries, and `shares` has every slot that they name"
    )]
    fn forget_if(&mut self, old: impl Fn(&Learned) -> bool) {
        for entry in self.entries.iter_mut().filter(|entry| entry.slot != FREE) {
            if old(entry) {
                self.shares[usize::from(entry.slot)] -= 1;
                entry.slot = FREE;
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
    fn addresses_that_differ_in_their_last_byte_find_room() {
        let mut table = LearnedTable { seed: 0x9e37_79b9_7f4a_7c15, ..LearnedTable::new() };
        let keys: Vec<u64> = (0..=255).map(|last| key(0, Mac([2, 0, 0, 0, 1, last]))).collect();
        keys.iter().for_each(|&key| assert!(!table.learn(key, 0, 1, true, 0)));
        assert_eq!(keys.iter().filter(|&&key| table.find(key, 0, 0).is_some()).count(), 256);
    }

    #[test]
    fn runs_of_addresses_are_spread_whatever_the_secret_is() {
        let run = || {
            (0..20 * 256).map(|number: u32| {
                let [.., high, low] = number.to_be_bytes();
                key(0, Mac([2, 0, 0, 1, high, low]))
            })
        };
        for number in 1..=300u64 {
            let seed = RandomState::new().hash_one(number) | 1;
            let mut table = LearnedTable { seed, ..LearnedTable::new() };
            run().for_each(|key| assert!(!table.learn(key, 0, 1, true, 0)));
            // Sets of eight places with five addresses on average: a few in a hundred find theirs full.
            let found = run().filter(|&key| table.find(key, 0, 0).is_some()).count();
            assert!(found > 4900, "{found} of 5120 with {seed:#x}");
            let known = KnownTable::new(run().zip(0..).collect::<Vec<_>>().into_iter(), seed);
            let steps = |(at, key)| {
                known.entries.iter().cycle().skip(known.start(key)).position(|entry| entry.slot == at)
            };
            let most = run().enumerate().filter_map(|(at, key)| steps((at as Slot, key))).max();
            assert!(most.is_some_and(|most| most < 100), "{most:?} steps with {seed:#x}");
        }
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
