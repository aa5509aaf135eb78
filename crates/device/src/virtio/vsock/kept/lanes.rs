//! Connections with what is no virtio guest: how many bytes went each way, and those of the guest that its
//! peer had no room for.
//!
//! The counts show where a connection stands that the next daemon goes on with. What the guest was sent
//! becomes valid with the rings that it reads, what was received of it with those that it wrote. What its
//! peer has taken is stored at once, after its ring has it: that ring shows what is missing. Bytes are
//! written where none lie to which valid counts refer.

use std::sync::Arc;

use vmlane_mem::{MemoryMap, Spans};
use vmlane_vsock::{HOST, SocketAddress};

use super::file::{Kept, bytes_of};
use super::layout::{self as at, lanes::PLACE};
use super::transaction::Transaction;
use crate::virtio::vsock::credit::CREDIT;

/// A word of a place. The counts are bytes since the connection began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Given to the guest.
    Sent = 0,
    /// Had from the guest in chains that were completed.
    Received = 8,
    /// Which byte of the guest lies at the beginning of the place.
    Base = 16,
    /// Taken by the peer, or fewer.
    Taken = 24,
    /// The peer's address.
    Peer = 32,
}

/// One connection's place. It is free again when this is dropped and what was done until then is valid.
pub struct Place {
    kept: Arc<Kept>,
    transaction: Arc<Transaction>,
    number: usize,
    written: usize,
    /// Its peer may outlive the daemon, too: a program of the host does not.
    counts: bool,
}

impl Place {
    /// For a new connection with `peer`. None: all are in use.
    pub fn take(kept: &Arc<Kept>, transaction: &Arc<Transaction>, peer: SocketAddress) -> Option<Place> {
        let mut places = kept.places.lock();
        places.release(transaction.commits(), kept.file());
        let free = places.used.iter().position(|used| !used);
        let number = free.unwrap_or(places.used.len());
        let mut place = places.take(number).then(|| Place::of(kept, transaction, number, 0))?;
        place.counts = peer.0 != HOST;
        // No valid word refers to it yet.
        for word in [Word::Sent, Word::Received, Word::Base, Word::Taken] {
            place.store(word, 0);
        }
        place.store(Word::Peer, u64::from(peer.0) << 32 | u64::from(peer.1));
        Some(place)
    }

    /// The place of that number, in which a previous daemon had a connection. None: it cannot have been.
    pub fn restore(kept: &Arc<Kept>, transaction: &Arc<Transaction>, number: usize) -> Option<Place> {
        let taken = kept.places.lock().take(number);
        taken.then(|| Place::of(kept, transaction, number, CREDIT))
    }

    fn of(kept: &Arc<Kept>, transaction: &Arc<Transaction>, number: usize, written: usize) -> Place {
        Place { kept: kept.clone(), transaction: transaction.clone(), number, written, counts: true }
    }

    pub fn number(&self) -> usize {
        self.number
    }

    pub fn load(&self, word: Word) -> u64 {
        self.kept.window.load_u64(self.at(word))
    }

    pub fn peer(&self) -> SocketAddress {
        let word = self.load(Word::Peer);
        ((word >> 32) as u32, word as u32)
    }

    fn at(&self, word: Word) -> usize {
        at::LANES + self.number * PLACE + word as usize
    }

    /// A word that is valid at once.
    pub fn store(&self, word: Word, value: u64) {
        self.kept.window.store_u64(self.at(word), value);
    }

    /// A word that becomes valid with the next commit.
    pub fn note(&self, word: Word, value: u64) {
        if self.counts {
            self.transaction.set(&self.kept, self.at(word), value);
        }
    }

    /// What was done becomes valid.
    pub fn commit(&self) {
        self.transaction.commit();
    }

    /// A list of pieces of the place, empty.
    pub fn bytes(&self) -> Spans {
        Spans::new(MemoryMap::of_file(&self.kept.window), true)
    }

    /// Puts `len` bytes, at most [`CREDIT`], from the offset `from` on in such a list; the place goes round.
    pub fn set(&mut self, bytes: &mut Spans, from: u64, len: usize) {
        bytes.clear();
        let begin = (from % CREDIT as u64) as usize;
        let first = len.min(CREDIT - begin);
        self.written = self.written.max((begin + len).min(CREDIT));
        for (offset, len) in [(begin, first), (0, len - first)] {
            if len > 0 {
                // Inside the file.
                let _ = bytes.push((bytes_of(self.number) + offset) as u64, len);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.kept.places.lock();
        let commits = self.transaction.commits();
        places.leaving.push((commits, self.number, self.written));
        places.release(commits, self.kept.file());
    }
}
