//! The table of queue pairs: by handle, by the end that is left of one whose creator was reset, by serial
//! number, by VM.
//!
//! Guests change it under the hypervisor's lock, so nothing that one of them does passes over the pairs of
//! all others.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use vmlane_vsock::Key;
use vmlane_wire::vmci::{FIRST_FREE_RESOURCE, Handle};

use super::queue_pair::{Pair, PairState};

/// Names a pair whose creator was reset: the end that is left and its handle, which may mean several pairs if
/// the creator was reset several times, and the pair's serial number, which distinguishes them.
pub(super) type Orphan = (u32, (u32, u32), u64);

/// A pair, by what it is found with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairName {
    /// The one that the handle means.
    Current(Handle),
    Orphan(Orphan),
}

impl PairName {
    pub fn handle(self) -> Handle {
        match self {
            PairName::Current(handle) => handle,
            PairName::Orphan((_, (context, resource), _)) => Handle::new(context, resource),
        }
    }
}

#[derive(Default)]
pub(super) struct Pairs {
    current: HashMap<Handle, Pair>,
    /// Pairs whose creator was reset: the creator's next kernel counts its handles from the start again.
    orphans: BTreeMap<Orphan, Pair>,
    /// By serial number.
    names: HashMap<u64, PairName>,
    /// By context: the serial numbers of the pairs that it created or attached to.
    of: HashMap<u32, BTreeSet<u64>>,
    /// The last pair's.
    last_serial: u64,
    /// The last resource id given to a pair that the device offers.
    last_resource: u32,
}

impl Pairs {
    pub fn get(&self, handle: &Handle) -> Option<&Pair> {
        self.current.get(handle)
    }

    pub fn get_mut(&mut self, handle: &Handle) -> Option<&mut Pair> {
        self.current.get_mut(handle)
    }

    pub fn contains_key(&self, handle: &Handle) -> bool {
        self.current.contains_key(handle)
    }

    /// That of a new pair.
    pub fn next_serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    /// A previous daemon had a pair of this serial number.
    pub fn skip_serial(&mut self, serial: u64) {
        self.last_serial = self.last_serial.max(serial);
    }

    /// A pair in the name of `key.client` for the guest at `key.server`: both rings of `size` bytes. Returns
    /// its handle and its serial number.
    pub fn offer(&mut self, key: Key, size: u64) -> Option<(Handle, u64)> {
        let cid = key.client.0;
        // Handles of pairs that are still open are passed over; there are far fewer than numbers.
        let handle = (0..=self.current.len()).find_map(|_| {
            self.last_resource = self.last_resource.wrapping_add(1).max(FIRST_FREE_RESOURCE) % (1 << 31);
            let handle = Handle::new(cid, self.last_resource.max(FIRST_FREE_RESOURCE));
            (!self.contains_key(&handle)).then_some(handle)
        })?;
        let serial = self.next_serial();
        let pair = Pair {
            serial,
            creator: cid,
            attacher: None,
            peer: key.server.0,
            flags: 0,
            produce_size: size,
            consume_size: size,
            state: PairState::Offered,
            ranges: Default::default(),
            connection: Some(key),
            call: None,
        };
        self.insert(handle, pair);
        Some((handle, serial))
    }

    pub fn insert(&mut self, handle: Handle, pair: Pair) {
        self.remove(PairName::Current(handle));
        self.note(PairName::Current(handle), &pair);
        self.current.insert(handle, pair);
    }

    /// A pair of which only the end of `cid` is left.
    pub fn insert_orphan(&mut self, cid: u32, handle: Handle, pair: Pair) {
        let orphan = (cid, (handle.context, handle.resource), pair.serial);
        self.note(PairName::Orphan(orphan), &pair);
        self.orphans.insert(orphan, pair);
    }

    /// `cid` is the other end of a pair.
    pub fn attach(&mut self, handle: &Handle, cid: u32) {
        if let Some(pair) = self.current.get_mut(handle) {
            pair.attacher = Some(cid);
            self.of.entry(cid).or_default().insert(pair.serial);
        }
    }

    fn note(&mut self, name: PairName, pair: &Pair) {
        self.names.insert(pair.serial, name);
        for cid in [Some(pair.creator), pair.attacher].into_iter().flatten() {
            self.of.entry(cid).or_default().insert(pair.serial);
        }
    }

    pub fn named_mut(&mut self, name: PairName) -> Option<&mut Pair> {
        match name {
            PairName::Current(handle) => self.current.get_mut(&handle),
            PairName::Orphan(orphan) => self.orphans.get_mut(&orphan),
        }
    }

    pub fn remove(&mut self, name: PairName) -> Option<Pair> {
        let pair = match name {
            PairName::Current(handle) => self.current.remove(&handle),
            PairName::Orphan(orphan) => self.orphans.remove(&orphan),
        }?;
        self.names.remove(&pair.serial);
        for cid in [Some(pair.creator), pair.attacher].into_iter().flatten() {
            if let Some(own) = self.of.get_mut(&cid) {
                own.remove(&pair.serial);
                if own.is_empty() {
                    self.of.remove(&cid);
                }
            }
        }
        Some(pair)
    }

    /// Those with handles that a creator made, taken out.
    pub fn take_created_by(&mut self, cid: u32) -> Vec<(Handle, Pair)> {
        let current = |(name, pair): (PairName, &Pair)| match name {
            PairName::Current(handle) if pair.creator == cid => Some(handle),
            _ => None,
        };
        let handles: Vec<Handle> = self.of(cid).filter_map(current).collect();
        let taken = handles.into_iter();
        taken.filter_map(|handle| Some((handle, self.remove(PairName::Current(handle))?))).collect()
    }

    /// Those of which only the end of `cid` is left and that had this handle, the oldest first.
    pub fn orphans_of(&self, cid: u32, handle: Handle) -> impl DoubleEndedIterator<Item = (PairName, &Pair)> {
        let words = (handle.context, handle.resource);
        let range = self.orphans.range((cid, words, 0)..=(cid, words, u64::MAX));
        range.map(|(orphan, pair)| (PairName::Orphan(*orphan), pair))
    }

    pub fn by_serial(&self, serial: u64) -> Option<(PairName, &Pair)> {
        let name = *self.names.get(&serial)?;
        let pair = match name {
            PairName::Current(handle) => self.current.get(&handle),
            PairName::Orphan(orphan) => self.orphans.get(&orphan),
        };
        Some((name, pair?))
    }

    /// Those that a context created or attached to, whether or not it still has its end.
    pub fn of(&self, cid: u32) -> impl Iterator<Item = (PairName, &Pair)> {
        self.of.get(&cid).into_iter().flatten().filter_map(|serial| self.by_serial(*serial))
    }

    pub fn iter(&self) -> impl Iterator<Item = (PairName, &Pair)> {
        let current = self.current.iter().map(|(handle, pair)| (PairName::Current(*handle), pair));
        current.chain(self.orphans.iter().map(|(orphan, pair)| (PairName::Orphan(*orphan), pair)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(serial: u64, creator: u32) -> Pair {
        Pair {
            serial,
            creator,
            attacher: None,
            peer: 9,
            flags: 0,
            produce_size: 4096,
            consume_size: 4096,
            state: PairState::Offered,
            ranges: Default::default(),
            connection: None,
            call: None,
        }
    }

    #[test]
    fn a_serial_number_leads_to_its_pair_whatever_the_pair_is_called_meanwhile() {
        let mut pairs = Pairs::default();
        let handle = Handle::new(3, 100);
        let name = |pairs: &Pairs, serial| {
            let found = pairs.by_serial(serial)?;
            assert_eq!(found.1.serial, serial);
            Some(found.0)
        };
        let of = |pairs: &Pairs, cid| pairs.of(cid).map(|(_, pair)| pair.serial).collect::<Vec<_>>();
        pairs.insert(handle, pair(1, 3));
        pairs.attach(&handle, 9);
        pairs.insert(Handle::new(4, 100), pair(7, 4));
        assert_eq!(name(&pairs, 1), Some(PairName::Current(handle)));
        assert_eq!([3, 4, 9].map(|cid| of(&pairs, cid)), [vec![1], vec![7], vec![1]]);
        for (handle, pair) in pairs.take_created_by(3) {
            assert!(pairs.by_serial(pair.serial).is_none());
            pairs.insert_orphan(9, handle, pair);
        }
        pairs.insert(handle, pair(2, 3));
        let orphan = pairs.orphans_of(9, handle).next().map(|(name, _)| name).unwrap();
        assert_eq!(
            [1, 2].map(|serial| name(&pairs, serial)),
            [Some(orphan), Some(PairName::Current(handle))]
        );
        pairs.insert(handle, pair(3, 3));
        assert_eq!([2, 3].map(|serial| name(&pairs, serial).is_some()), [false, true], "replaced");
        assert_eq!([3, 9].map(|cid| of(&pairs, cid)), [vec![1, 3], vec![1]]);
        assert!(pairs.remove(orphan).is_some() && pairs.remove(PairName::Current(handle)).is_some());
        assert!(pairs.remove(PairName::Current(Handle::new(4, 100))).is_some());
        assert!(
            pairs.names.is_empty()
                && pairs.of.is_empty()
                && pairs.iter().next().is_none()
                && pairs.current.is_empty()
        );
    }
}
