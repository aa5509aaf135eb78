//! In-flight tracking: what a ring's next owner must know if this one dies, in memory that the VMM keeps.
//!
//! Chains are completed in the order of the ring, so what is not completed follows from how far the
//! completions came. A split ring shows that itself. A packed one does not, and its completions overwrite
//! the chains: so they are noted here before the ring is touched, and the next daemon finishes what was
//! begun, or finds that it was not. The head of a record is that of `QueueRegionSplit` and
//! `QueueRegionPacked` in QEMU's `docs/interop/vhost-user.rst`; the entries behind it are our own.

use std::sync::Arc;

use vmlane_mem::Window;

/// Offsets, both layouts: 0 while nothing was recorded; the ring's size.
const VERSION: usize = 8;
const SIZE: usize = 10;
/// Split: the index of the used ring.
const SPLIT_USED: usize = 14;
/// Packed: one word with the next completion's place, the one before the publication under way, their laps,
/// and how many completions that publication has.
const PACKED_USED: usize = 16;
/// Packed: completions, each its place and its descriptor's second word.
const ENTRIES: usize = 32;
const ENTRY: usize = 32;
/// Who recorded. Other back ends have 1 here, and other entries.
const THIS: u16 = 0x4c56;
/// Bit of a place: the lap's wrap counter.
const WRAP: u16 = 1 << 15;

/// Bytes of one ring's record: a header and an entry a descriptor, in the larger of the two layouts.
pub const fn bytes(size: u16) -> usize {
    (32 + 32 * size as usize).next_multiple_of(64)
}

/// One ring's record.
#[derive(Clone, Debug)]
pub struct Record {
    window: Arc<Window>,
    at: usize,
    own: bool,
}

impl Record {
    /// The record number `ring` in memory for rings of `size`; None: it has no such one.
    pub fn new(window: &Arc<Window>, ring: usize, size: u16) -> Option<Record> {
        let (at, len) = (ring.checked_mul(bytes(size))?, bytes(size));
        let inside = at.checked_add(len).is_some_and(|end| end <= window.len());
        inside.then(|| Record { window: window.clone(), at, own: false })
    }

    /// One in memory of our own, which is written in order with what leads to it: before its ring is shown.
    pub fn of_ours(window: &Arc<Window>, at: usize) -> Record {
        Record { window: window.clone(), at, own: true }
    }

    /// Is it in memory of our own?
    pub fn is_own(&self) -> bool {
        self.own
    }

    /// Was something recorded, for a ring of this size?
    pub fn is_of(&self, size: u16) -> bool {
        self.window.load_u16(self.at + VERSION) == THIS && self.window.load_u16(self.at + SIZE) == size
    }

    /// The ring was stopped in order: nothing is to be recovered.
    pub fn forget(&self) {
        self.window.store_u16(self.at + VERSION, 0);
    }

    /// Recording begins.
    pub(super) fn begin(&self, features: u64, size: u16) {
        self.forget();
        self.window.store_u64(self.at, features);
        self.window.store_u16(self.at + SIZE, size);
    }

    pub(super) fn valid(&self) {
        self.window.store_u16(self.at + VERSION, THIS);
    }

    pub(super) fn split(&self, used: u16) {
        self.window.store_u16(self.at + SPLIT_USED, used);
    }

    /// The index of the used ring as it was noted.
    pub(super) fn split_used(&self) -> u16 {
        self.window.load_u16(self.at + SPLIT_USED)
    }

    /// What [`Self::split`] will store: the word that this is part of, and where.
    pub(super) fn split_word(&self, used: u16) -> (usize, u64) {
        let at = self.at + VERSION;
        (at, self.window.load_u64(at) & (u64::MAX >> 16) | u64::from(used) << 48)
    }

    /// What [`Self::packed`] will store, and where.
    pub(super) fn packed_word(&self, new: u16, old: u16, count: u16) -> (usize, u64) {
        (self.at + PACKED_USED, word(new, old, count))
    }

    /// Completion number `at` of the next publication.
    pub(super) fn note(&self, at: usize, place: u16, word: u64) {
        let entry = self.at + ENTRIES + ENTRY * at;
        self.window.store_u64(entry, place.into());
        self.window.store_u64(entry + 8, word);
    }

    /// What was noted: place and word.
    pub(super) fn noted(&self, at: usize) -> (u16, u64) {
        let entry = self.at + ENTRIES + ENTRY * at;
        (self.window.load_u64(entry) as u16, self.window.load_u64(entry + 8))
    }

    /// `count` completions that were noted are about to be published, from the place `old` to before `new`.
    /// None: nothing is under way, and `new` is next.
    pub(super) fn packed(&self, new: u16, old: u16, count: u16) {
        self.window.store_u64(self.at + PACKED_USED, word(new, old, count));
    }

    /// What [`Self::packed`] stored.
    pub(super) fn places(&self) -> (u16, u16, u16) {
        let word = self.window.load_u64(self.at + PACKED_USED);
        let lap = |shift: u32| if word >> shift & 1 != 0 { WRAP } else { 0 };
        (word as u16 & !WRAP | lap(32), (word >> 16) as u16 & !WRAP | lap(40), (word >> 48) as u16)
    }
}

fn word(new: u16, old: u16, count: u16) -> u64 {
    let lap = |place: u16| u64::from(place >> 15);
    let index = |place: u16| u64::from(place & !WRAP);
    index(new) | index(old) << 16 | lap(new) << 32 | lap(old) << 40 | u64::from(count) << 48
}
