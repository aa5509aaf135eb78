//! The driver's side of a split ring (virtio 1.2, section 2.7) whose descriptors are tied to buffers.
//!
//! The peer can write to all of the ring at any time, so only what it has to write is ever read: the used
//! ring, each word once for each decision. Which buffers it has, what they were described as and how far the
//! ring came is known here.

use std::sync::atomic::{Ordering, fence};

use vmlane_mem::Window;
use vmlane_wire::virtio::{NO_NOTICE, desc};

use super::memory::{Areas, BUFFER, Buffers, RING};

/// Offsets in either half: flags, the index, the entries.
const FLAGS: usize = 0;
const INDEX: usize = 2;
const ENTRIES: usize = 4;
const MASK: u16 = RING - 1;
const _: () = assert!(RING.is_power_of_two());

/// How the peer broke the rules of a ring. The uplink connects anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("it gave back {0} buffers at once, more than it had")]
    Index(u16),
    #[error("it gave back buffer {0}, which it did not have")]
    Buffer(u32),
    #[error("it reports {0} bytes written to a buffer of {BUFFER}")]
    Length(u32),
    #[error("it reports a frame of {0} buffers, more than it had")]
    Buffers(u16),
    /// A fault of ours in serving the port.
    #[error("the port failed")]
    Fault,
}

/// A buffer that the peer gave back, and the bytes that it reports to have written.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    pub id: u16,
    pub len: u32,
}

/// One ring.
#[derive(Debug)]
pub struct Ring {
    descriptors: Window,
    available: Window,
    used: Window,
    /// By buffer: the peer has it.
    with_peer: Box<[bool]>,
    /// How many of them it has.
    count: u16,
    /// Length and flags of each descriptor, and the entry of each place of the available ring, as last
    /// stored. What stays as it was is not stored again: the peer's copy of the cache line stays good.
    described: Box<[u64]>,
    places: Box<[u16]>,
    /// Buffers made available, and those of them that the peer may know of.
    posted: u16,
    published: u16,
    /// The used index as last loaded, and how far it was followed.
    seen: u16,
    taken: u16,
    /// Up to where buffers were prefetched.
    prefetched: u16,
}

impl Ring {
    /// A ring that no peer has seen yet, with none of its buffers available.
    pub fn new(areas: Areas, buffers: &Buffers) -> Ring {
        let Areas { descriptors, available, used } = areas;
        for id in 0..RING {
            descriptors.store_pair(id.into(), [buffers.address(id), 0]);
        }
        let ring = Ring {
            descriptors,
            available,
            used,
            with_peer: vec![false; RING.into()].into(),
            count: 0,
            described: vec![0; RING.into()].into(),
            places: vec![0; RING.into()].into(),
            posted: 0,
            published: 0,
            seen: 0,
            taken: 0,
            prefetched: 0,
        };
        ring.quiet();
        ring
    }

    /// How many buffers the peer has.
    #[inline]
    pub fn with_peer(&self) -> u16 {
        self.count
    }

    /// Makes a buffer available: `len` bytes from its first one on, to be written by the peer or to be read.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "masked by the length of the ring")]
    pub fn post(&mut self, id: u16, len: u32, writable: bool) {
        let at = usize::from(id & MASK);
        let flags = if writable { desc::WRITE } else { 0 };
        let word = u64::from(len) | u64::from(flags) << 32;
        if self.described[at] != word {
            self.described[at] = word;
            self.descriptors.store_u64(at * desc::SIZE + 8, word);
        }
        let place = usize::from(self.posted & MASK);
        if self.places[place] != id {
            self.places[place] = id;
            self.available.store_u16(ENTRIES + 2 * place, id);
        }
        self.posted = self.posted.wrapping_add(1);
        self.with_peer[at] = true;
        self.count += 1;
    }

    /// Has anything been posted that the peer does not know of?
    #[inline]
    pub fn is_unpublished(&self) -> bool {
        self.posted != self.published
    }

    /// Shows the peer what was posted. True if it wants a notification.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if !self.is_unpublished() {
            return false;
        }
        self.available.store_u16(INDEX, self.posted);
        self.published = self.posted;
        // The peer stores what it wants and then loads the index: one of the two loads sees the other's
        // store.
        fence(Ordering::SeqCst);
        self.used.load_u16(FLAGS) & NO_NOTICE == 0
    }

    /// A fresh poll: has the peer given something back?
    #[inline]
    pub fn is_used(&self) -> bool {
        self.used.load_u16(INDEX) != self.taken
    }

    /// Are `count` buffers there that were given back?
    #[inline]
    pub fn poll_used(&mut self, count: u16) -> Result<bool, Broken> {
        if self.seen.wrapping_sub(self.taken) >= count {
            return Ok(true);
        }
        self.seen = self.used.load_u16(INDEX);
        let there = self.seen.wrapping_sub(self.taken);
        if there > self.count { Err(Broken::Index(there)) } else { Ok(there >= count) }
    }

    /// The next buffer that was given back, of those that [`Self::poll_used`] has counted. It is still the
    /// peer's.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "compared with the length of the ring")]
    pub fn peek(&self) -> Result<Used, Broken> {
        let entry = ENTRIES + 8 * usize::from(self.taken & MASK);
        let (id, len) = (self.used.load_u32(entry), self.used.load_u32(entry + 4));
        match u16::try_from(id) {
            Ok(id) if id < RING && self.with_peer[usize::from(id)] => Ok(Used { id, len }),
            _ => Err(Broken::Buffer(id)),
        }
    }

    /// Takes the buffer that [`Self::peek`] has just found.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "masked by the length of the ring")]
    pub fn take(&mut self, used: Used) {
        self.with_peer[usize::from(used.id & MASK)] = false;
        self.count -= 1;
        self.taken = self.taken.wrapping_add(1);
    }

    /// Prefetches the buffers that were given back next: calls `touch` with their numbers and bytes, to
    /// be fetched. Each is prefetched once; nothing about them is certain.
    #[inline]
    pub fn lookahead(&mut self, most: u16, mut touch: impl FnMut(usize, usize)) {
        let until = self.seen.wrapping_sub(self.taken).min(most);
        let mut ahead = self.prefetched.wrapping_sub(self.taken);
        if ahead > most {
            // Behind what was taken.
            ahead = 0;
        }
        while ahead < until {
            let entry = ENTRIES + 8 * usize::from(self.taken.wrapping_add(ahead) & MASK);
            touch(self.used.load_u32(entry) as usize, self.used.load_u32(entry + 4) as usize);
            ahead += 1;
        }
        self.prefetched = self.taken.wrapping_add(ahead);
    }

    /// Asks the peer to announce what it gives back. A full fence and a fresh poll must follow.
    pub fn listen(&self) {
        self.available.store_u16(FLAGS, 0);
    }

    /// Tells the peer that it need not announce anything.
    pub fn quiet(&self) {
        self.available.store_u16(FLAGS, NO_NOTICE);
    }
}
