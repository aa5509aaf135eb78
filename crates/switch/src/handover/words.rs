//! The ring by which another worker learns what was handed over, in order: short frames by value, and how
//! many described ones come next.
//!
//! It has one writer and one reader, and is a row of words. An entry is a word with its kind and, of a
//! frame, its origin, its offload if it has one, and its bytes. Entries follow each other without a gap, so
//! that a frame of 60 bytes is ten words: little more than a cache line that one CPU writes and another one
//! reads.
//!
//! The writer is not notified of what was read. A frame's place comes back when the reader is done with it,
//! which is after it read the entry and all entries before it. So of what was written behind the last frame
//! that came back there are no more entries than places, and [`WORDS`] are more than those need.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use vmlane_port::{HEAD, MAX_HEAD, Offload, TxFrame};
use vmlane_wire::ethernet::Tci;

use super::PLACES;
use super::origin::Origin;
use crate::Slot;

/// Words of a cache line.
const LINE: usize = 8;
const LINES: usize = 1024;
/// Words of the ring.
const WORDS: usize = LINES * LINE;
/// Words of an entry in front of its bytes, at most, and of the longest one.
const FRONT: usize = 3;
const LONGEST: usize = FRONT + HEAD / size_of::<u64>();

// Each entry has a place: a frame by value its own, a run of descriptions that of its first one. One more is
// being written.
const _: () = assert!((PLACES + 1) * LONGEST <= WORDS && HEAD.is_multiple_of(size_of::<u64>()));

/// So many lines ahead, the CPU is asked for what is written or read next.
const AHEAD: usize = 4;

#[repr(align(64))]
#[derive(Default)]
struct Line([AtomicU64; LINE]);

type Words = Box<[Line; LINES]>;

/// A number that one CPU writes, in a line of its own and its neighbour's.
#[repr(align(128))]
#[derive(Default)]
struct Apart(AtomicUsize);

/// What both have.
#[derive(Default)]
struct Ring {
    /// Made with the first entry: most pairs of many workers never have one.
    words: OnceLock<Words>,
    /// Words that were ever published.
    tail: Apart,
}

#[inline]
fn line(words: &Words, at: usize) -> &Line {
    #[expect(clippy::indexing_slicing, reason = "the remainder is a line's number")]
    &words[at / LINE % LINES]
}

#[inline]
fn word(words: &Words, at: usize) -> &AtomicU64 {
    #[expect(clippy::indexing_slicing, reason = "the remainder is a word's number")]
    &line(words, at).0[at % LINE]
}

#[cold]
fn make() -> Words {
    let lines: Box<[Line]> = (0..LINES).map(|_| Line::default()).collect();
    lines.try_into().unwrap_or_else(|_| unreachable!("so many were made"))
}

/// A frame as it travels, but for its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    pub len: usize,
    pub origin: Origin,
    pub offload: Offload,
    pub tag: Option<Tci>,
    pub verified: bool,
}

/// An entry.
pub enum Entry {
    /// The next frame is this one; [`Reader::read`] reads its bytes.
    Value(Value),
    /// The next so many frames are described.
    Described(usize),
}

// The first word: bytes, tag, flags, the kind of the offload. Zero bytes: descriptions, and how many.
const TAG_AT: u32 = 16;
const TAGGED: u64 = 1 << 32;
const VERIFIED: u64 = 1 << 33;
const OUTER_SUM: u64 = 1 << 34;
const KIND_AT: u32 = 40;
const COUNT_AT: u32 = 32;
const CHECKSUM: u64 = 1;
const SEGMENT: u64 = 2;
const TUNNEL: u64 = 3;

/// Two numbers as a word.
#[inline]
fn pair(a: u16, b: u16) -> u64 {
    u64::from(a) | u64::from(b) << 16
}

impl Value {
    /// Its first and, if it has one, its last word in front of its bytes.
    #[inline]
    fn words(&self) -> (u64, Option<u64>) {
        let tag = self.tag.map_or(0, |tag| TAGGED | u64::from(tag.0) << TAG_AT);
        let first = self.len as u64 | tag | if self.verified { VERIFIED } else { 0 };
        let (kind, numbers) = match self.offload {
            Offload::None => return (first, None),
            Offload::Checksum { start, field } => (CHECKSUM, pair(start, field)),
            Offload::Segment { header, mss } => (SEGMENT, pair(header, mss)),
            Offload::Tunnel { header, mss, outer_sum } => {
                let sum = if outer_sum { OUTER_SUM } else { 0 };
                return (first | sum | TUNNEL << KIND_AT, Some(pair(header, mss)));
            }
        };
        (first | kind << KIND_AT, Some(numbers))
    }

    /// Does a word follow that one and the lender?
    #[inline]
    fn has_offload(first: u64) -> bool {
        first >> KIND_AT != 0
    }

    #[inline]
    fn of_words(first: u64, origin: Origin, numbers: u64) -> Value {
        let (a, b) = (numbers as u16, (numbers >> 16) as u16);
        let offload = match first >> KIND_AT {
            CHECKSUM => Offload::Checksum { start: a, field: b },
            SEGMENT => Offload::Segment { header: a, mss: b },
            TUNNEL => Offload::Tunnel { header: a, mss: b, outer_sum: first & OUTER_SUM != 0 },
            _ => Offload::None,
        };
        Value {
            len: usize::from(first as u16),
            origin,
            offload,
            tag: (first & TAGGED != 0).then_some(Tci((first >> TAG_AT) as u16)),
            verified: first & VERIFIED != 0,
        }
    }
}

impl Origin {
    #[inline]
    fn word(self) -> u64 {
        pair(self.slot, self.owner) | u64::from(self.attachment) << 32
    }

    #[inline]
    fn of_word(word: u64) -> Origin {
        Origin { slot: word as Slot, owner: (word >> 16) as u16, attachment: (word >> 32) as u32 }
    }
}

/// The worker's end that hands over.
pub struct Writer {
    ring: Arc<Ring>,
    /// Words written.
    at: usize,
    /// Those published.
    published: usize,
    /// Where the last entry is, if it is an unpublished run of descriptions, and how long that is.
    run: Option<(usize, u64)>,
}

/// The other worker's end.
pub struct Reader {
    ring: Arc<Ring>,
    at: usize,
    /// Words that were published when it was last polled.
    tail: usize,
}

/// An empty ring.
pub fn ring() -> (Writer, Reader) {
    let ring = Arc::new(Ring::default());
    let reader = Reader { ring: ring.clone(), at: 0, tail: 0 };
    (Writer { ring, at: 0, published: 0, run: None }, reader)
}

impl Writer {
    /// Can a frame travel by value? All of it was copied when it was fetched.
    #[inline]
    pub fn takes(tx: &TxFrame<'_>) -> bool {
        let len = tx.head.len();
        len == tx.len() && (size_of::<u64>()..=HEAD).contains(&len)
    }

    /// A frame that [can](Self::takes) goes by value.
    #[inline]
    pub fn write(&mut self, origin: Origin, tx: &TxFrame<'_>) {
        let TxFrame { head, offload, tag, verified, .. } = *tx;
        let (first, numbers) = Value { len: head.len(), origin, offload, tag, verified }.words();
        let words = self.ring.words.get_or_init(make);
        let mut at = self.at;
        let mut put = |value| {
            word(words, at).store(value, Ordering::Relaxed);
            at = at.wrapping_add(1);
        };
        put(first);
        put(origin.word());
        numbers.into_iter().for_each(&mut put);
        let (whole, rest) = head.as_chunks();
        whole.iter().for_each(|bytes| put(u64::from_le_bytes(*bytes)));
        // A word that is stored in parts and loaded as one waits for all stores before it, those to this ring
        // among them.
        if let (false, Some(last)) = (rest.is_empty(), head.last_chunk()) {
            put(u64::from_le_bytes(*last) >> (u64::BITS - 8 * rest.len() as u32));
        }
        // The other CPU has had the lines that are next.
        for ahead in self.at / LINE + AHEAD..at / LINE + AHEAD {
            vmlane_mem::prefetch_value_write(line(words, ahead * LINE), 1);
        }
        (self.at, self.run) = (at, None);
    }

    /// The next frame is one that is described.
    #[inline]
    pub fn describe(&mut self) {
        let words = self.ring.words.get_or_init(make);
        let (at, count) = self.run.map_or((self.at, 1), |(at, count)| (at, count + 1));
        word(words, at).store(count << COUNT_AT, Ordering::Relaxed);
        self.at = at.wrapping_add(1);
        self.run = Some((at, count));
    }

    /// Lets the other worker see what was written. True if there was anything.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if !self.has_unpublished() {
            return false;
        }
        self.run = None;
        self.published = self.at;
        self.ring.tail.0.store(self.at, Ordering::Release);
        true
    }

    /// Is the last entry, which was not published yet, a run of descriptions?
    #[inline]
    pub fn is_described(&self) -> bool {
        self.run.is_some()
    }

    #[inline]
    pub fn has_unpublished(&self) -> bool {
        self.at != self.published
    }
}

impl Reader {
    /// Is anything there that was not read?
    #[inline]
    pub fn has_entries(&self) -> bool {
        self.ring.tail.0.load(Ordering::Acquire) != self.at
    }

    /// What is there now is returned by [`Self::next`] from here on.
    #[inline]
    pub fn poll(&mut self) {
        self.tail = self.ring.tail.0.load(Ordering::Acquire);
    }

    /// The next entry. A frame's bytes are to be [read](Self::read) before the one behind it.
    #[inline]
    pub fn next(&mut self) -> Option<Entry> {
        if self.at == self.tail {
            return None;
        }
        let words = self.ring.words.get()?;
        let mut at = self.at;
        let mut get = || {
            let value = word(words, at).load(Ordering::Relaxed);
            at = at.wrapping_add(1);
            value
        };
        let first = get();
        let entry = if first as u16 == 0 {
            Entry::Described((first >> COUNT_AT) as usize)
        } else {
            let origin = Origin::of_word(get());
            let numbers = if Value::has_offload(first) { get() } else { 0 };
            Entry::Value(Value::of_words(first, origin, numbers))
        };
        self.at = at;
        Some(entry)
    }

    /// Leaves the bytes of a frame out whose entry was the last one.
    #[cold]
    pub fn skip(&mut self, len: usize) {
        self.at = self.at.wrapping_add(len.div_ceil(size_of::<u64>()));
    }

    /// The bytes of a frame whose entry was the last one.
    #[inline]
    pub fn read(&mut self, len: usize, head: &mut [u8; MAX_HEAD]) {
        let Some(words) = self.ring.words.get() else { return };
        let before = self.at;
        for to in head.as_chunks_mut().0.iter_mut().take(len.div_ceil(size_of::<u64>())) {
            *to = word(words, self.at).load(Ordering::Relaxed).to_le_bytes();
            self.at = self.at.wrapping_add(1);
        }
        for ahead in before / LINE + AHEAD..=self.at / LINE + AHEAD {
            vmlane_mem::prefetch_value(line(words, ahead * LINE), 1);
        }
    }
}

#[cfg(test)]
mod tests;
