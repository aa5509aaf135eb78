//! The connections of one device, so that the next daemon knows who is connected to whom.

use std::sync::Arc;

use super::file::Kept;
use super::layout::book::{FIRST, PLACE, PLACES};
use super::layout::{self as at, lanes};
use super::transaction::Transaction;

/// Which connections a book is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With other virtio-vsock guests.
    Table,
    /// With all others.
    Links,
}

/// A connection as one VM sees it: its port, the peer, the peer's port, the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Known {
    pub port: u32,
    pub peer: u32,
    pub peer_port: u32,
    pub kind: u16,
}

/// What is noted of a connection, as one VM sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub known: Known,
    pub client: bool,
    pub established: bool,
    /// Flags of SHUTDOWN: what it has announced, and what it was sent. The latter of connections with no
    /// virtio guest alone.
    pub shut: u32,
    pub notified: u32,
    /// Where such a connection's counts are (`lanes.rs`).
    pub place: usize,
}

/// Bits of an entry's second word: the peer, the type, flags, a place.
const KIND: u32 = 32;
const SHUT: u32 = 40;
const NOTIFIED: u32 = 44;
const CLIENT: u64 = 1 << 48;
const ESTABLISHED: u64 = 1 << 49;
const LANE: u32 = 50;
const LANE_MASK: usize = (1 << 13) - 1;
const _: () = assert!(lanes::PLACES <= LANE_MASK + 1);
const LIVE: u64 = 1 << 63;

impl Entry {
    fn words(&self) -> [u64; 2] {
        let Known { port, peer, peer_port, kind } = self.known;
        let flags =
            if self.client { CLIENT } else { 0 } | if self.established { ESTABLISHED } else { 0 } | LIVE;
        let kind = u64::from(kind as u8) << KIND;
        let shut = u64::from(self.shut & 0xf) << SHUT | u64::from(self.notified & 0xf) << NOTIFIED;
        let place = (self.place as u64) << LANE;
        [u64::from(port) | u64::from(peer_port) << 32, u64::from(peer) | kind | shut | place | flags]
    }

    fn of([ports, rest]: [u64; 2]) -> Option<Entry> {
        let kind = u16::from((rest >> KIND) as u8);
        let known = Known { port: ports as u32, peer: rest as u32, peer_port: (ports >> 32) as u32, kind };
        let (client, established) = (rest & CLIENT != 0, rest & ESTABLISHED != 0);
        let [shut, notified] = [SHUT, NOTIFIED].map(|at| (rest >> at) as u32 & 0xf);
        let place = (rest >> LANE) as usize & LANE_MASK;
        (rest & LIVE != 0).then_some(Entry { known, client, established, shut, notified, place })
    }
}

#[derive(Debug)]
pub struct Book {
    kept: Arc<Kept>,
    base: usize,
    /// Places that were used and are free, and how many were ever used.
    free: Vec<u32>,
    used: u32,
}

impl Book {
    /// The book of this kind, and what a previous daemon noted there, with its places.
    pub fn open(kept: Arc<Kept>, kind: Kind) -> (Book, Vec<(u32, Entry)>) {
        let base = match kind {
            Kind::Table => at::TABLE,
            Kind::Links => at::LINKS,
        };
        let used = kept.window.load_u64(base).min(PLACES.into()) as u32;
        let mut book = Book { kept, base, free: Vec::new(), used };
        let mut entries = Vec::new();
        for place in 0..used {
            let words = [0, 8].map(|word| book.kept.window.load_u64(book.at(place) + word));
            match Entry::of(words) {
                Some(entry) => entries.push((place, entry)),
                None => book.free.push(place),
            }
        }
        (book, entries)
    }

    pub fn is_of(&self, kept: &Arc<Kept>) -> bool {
        Arc::ptr_eq(&self.kept, kept)
    }

    fn at(&self, place: u32) -> usize {
        self.base + FIRST + place as usize * PLACE
    }

    /// Notes a connection. Returns its place; none is left if it has none.
    pub fn add(&mut self, transaction: &Transaction, entry: &Entry) -> Option<u32> {
        let place = self.free.pop().or_else(|| self.extend(transaction))?;
        let [ports, _] = entry.words();
        transaction.set(&self.kept, self.at(place), ports);
        self.change(transaction, place, entry);
        Some(place)
    }

    fn extend(&mut self, transaction: &Transaction) -> Option<u32> {
        let place = Some(self.used).filter(|&place| place < PLACES)?;
        self.used += 1;
        transaction.set(&self.kept, self.base, self.used.into());
        Some(place)
    }

    /// Something of it has changed, but not its ports.
    pub fn change(&self, transaction: &Transaction, place: u32, entry: &Entry) {
        let [_, rest] = entry.words();
        transaction.set(&self.kept, self.at(place) + 8, rest);
    }

    pub fn remove(&mut self, transaction: &Transaction, place: u32) {
        transaction.set(&self.kept, self.at(place) + 8, 0);
        self.free.push(place);
    }
}
