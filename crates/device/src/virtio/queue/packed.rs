//! Packed rings (virtio 1.2, section 2.8).

use std::sync::atomic::{Ordering, fence};

use vmlane_mem::{MemoryMap, Window};
use vmlane_wire::virtio::{desc, event, passes};

use super::area::Area;
use super::chain::{BadRing, Broken, Cursor, Index, NEAR, Segment, Taken};
use super::record::Record;
use super::table::{Reader, push};
use crate::virtio::vhost::RingSetup;

/// Bit of a position: the wrap counter.
const WRAP: u16 = 1 << 15;
/// Bytes of an event suppression structure; its halves.
const EVENT: usize = 4;
const OFF_WRAP: usize = 0;
const FLAGS: usize = 2;

#[derive(Debug)]
pub struct Packed {
    size: Index,
    ring: Window,
    driver: Area,
    device: Area,
    event_index: bool,
    /// Where the next completion goes.
    used: Index,
    /// The first completion since the last publication: where and what. It is stored last, and hides
    /// all others until then.
    held: Option<(u16, u64)>,
    /// With a record: all of them, until they are published. Until then the ring is not touched.
    noted: Vec<(u16, u64)>,
    /// Where completions are visible up to.
    published: Index,
    fresh: bool,
    record: Option<Record>,
}

impl Packed {
    pub fn new(
        setup: &RingSetup,
        position: u32,
        event_index: bool,
        memory: &MemoryMap,
    ) -> Result<Packed, BadRing> {
        let size = setup.size;
        let used = Cursor((position >> 16) as u16);
        if position as u16 & !WRAP >= size || used.0 & !WRAP >= size {
            return Err(BadRing::Position(position));
        }
        if !setup.descriptors.is_multiple_of(desc::SIZE as u64) {
            return Err(BadRing::Unaligned(setup.descriptors));
        }
        Ok(Packed {
            size: Index::new(size),
            ring: memory.window(setup.descriptors, desc::SIZE * usize::from(size), true)?,
            driver: Area::new(memory, setup.driver, EVENT, 4)?,
            device: Area::new(memory, setup.device, EVENT, 4)?,
            event_index,
            used: Index::new(used.0),
            held: None,
            noted: Vec::with_capacity(if setup.record.is_some() { size.into() } else { 0 }),
            published: Index::new(used.0),
            fresh: true,
            record: setup.record.clone(),
        })
    }

    pub fn used_position(&self) -> u16 {
        self.used.get()
    }

    #[inline]
    fn forward(&self, at: Cursor, count: u16) -> Cursor {
        let index = (at.0 & !WRAP) + count;
        // A chain is no longer than the ring.
        let size = self.size.get();
        if index >= size {
            Cursor((index - size) | (at.0 & WRAP ^ WRAP))
        } else {
            Cursor(index | at.0 & WRAP)
        }
    }

    /// The second word of the descriptor at `at`, if the driver has made it available.
    #[inline]
    fn available(&self, at: Cursor) -> Option<u64> {
        let word = self.ring.load_half(usize::from(at.0 & !WRAP), true);
        let flags = (word >> 48) as u16;
        let wrap = at.0 & WRAP != 0;
        ((flags & desc::AVAIL != 0) == wrap && (flags & desc::USED != 0) != wrap).then_some(word)
    }

    #[inline]
    pub fn is_there(&self, at: Cursor) -> bool {
        self.available(at).is_some()
    }

    #[inline]
    pub fn read(
        &mut self,
        at: Cursor,
        segments: &mut Vec<Segment>,
        mut reader: Reader<'_>,
    ) -> Result<Option<Taken>, Broken> {
        let Some(mut word) = self.available(at) else { return Ok(None) };
        let begin = segments.len();
        let mut here = at;
        for count in 1..=self.size.get() {
            let index = usize::from(here.0 & !WRAP);
            let addr = self.ring.load_half(index, false);
            let (len, id, flags) = (word as u32, (word >> 32) as u16, (word >> 48) as u16);
            if flags & desc::INDIRECT != 0 {
                if flags & desc::NEXT != 0 || count > 1 {
                    return Err(Broken::Table);
                }
                reader.listed(addr, len, segments, begin)?;
            } else {
                push(segments, begin, Segment { addr, len, writable: flags & desc::WRITE != 0 })?;
            }
            here = self.forward(here, 1);
            if flags & desc::NEXT == 0 {
                return Ok(Some(Taken::new(id, count, at, here)));
            }
            // The first descriptor is made available last, so the others are there.
            word = self.ring.load_half(usize::from(here.0 & !WRAP), true);
        }
        Err(Broken::Loop)
    }

    /// The chain at `at` if it is a single descriptor; see [`super::Queue::read_single`].
    #[inline]
    pub fn read_single(&mut self, at: Cursor) -> Option<(Taken, Segment)> {
        let word = self.available(at)?;
        let addr = self.ring.load_half(usize::from(at.0 & !WRAP), false);
        let (len, id, flags) = (word as u32, (word >> 32) as u16, (word >> 48) as u16);
        let taken = Taken::new(id, 1, at, self.forward(at, 1));
        let segment = Segment { addr, len, writable: flags & desc::WRITE != 0 };
        (flags & (desc::NEXT | desc::INDIRECT) == 0).then_some((taken, segment))
    }

    /// Calls `touch` with address and length of a buffer that is likely to be read soon. It is loaded again
    /// when its turn comes.
    #[inline]
    pub fn lookahead(&self, at: Cursor, mut touch: impl FnMut(u64, u32)) {
        let ahead = usize::from(self.forward(at, NEAR.min(self.size.get())).0 & !WRAP);
        touch(self.ring.load_half(ahead, false), self.ring.load_half(ahead, true) as u32);
    }

    #[inline]
    pub fn complete(&mut self, id: u16, count: u16, len: u32) {
        let used = Cursor(self.used.get());
        let index = used.0 & !WRAP;
        let mut flags = if used.0 & WRAP != 0 { desc::AVAIL | desc::USED } else { 0 };
        if len > 0 {
            flags |= desc::WRITE;
        }
        let word = u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48;
        if let Some(record) = &self.record {
            record.note(self.noted.len(), index, word);
            self.noted.push((index, word));
        } else if self.held.is_none() {
            self.held = Some((index, word));
        } else {
            self.store(index, word);
        }
        let next = self.forward(used, count);
        self.used.set(next.0);
    }

    #[inline]
    fn store(&self, index: u16, word: u64) {
        self.ring.store_u64(desc::SIZE * usize::from(index) + 8, word);
    }

    #[inline]
    pub fn unshown(&self) -> Option<(usize, u64)> {
        let record = self.record.as_ref().filter(|_| !self.noted.is_empty())?;
        Some(record.packed_word(self.used.get(), self.published.get(), self.noted.len() as u16))
    }

    #[inline]
    pub fn publish(&mut self) -> bool {
        let [old, new] = [self.published, self.used].map(|place| Cursor(place.get()));
        if self.record.is_some() {
            if self.noted.is_empty() {
                return false;
            }
            self.publish_noted(old, new);
        } else {
            let Some((index, word)) = self.held.take() else { return false };
            self.store(index, word);
        }
        self.published.set(new.0);
        fence(Ordering::SeqCst);
        let word = self.driver.load_u32(OFF_WRAP);
        let (off_wrap, flags) = (word as u16, (word >> 16) as u16 & 3);
        let fresh = self.fresh;
        if fresh {
            self.fresh = false;
        }
        match flags {
            event::ENABLE => true,
            event::AT if self.event_index => fresh || self.passes(off_wrap, new, old),
            // Reserved values promise nothing: better one notice too many.
            event::AT | 3 => true,
            _ => false,
        }
    }

    /// The first one last: it makes the others visible.
    fn publish_noted(&mut self, old: Cursor, new: Cursor) {
        let Some(record) = &self.record else { return };
        record.packed(new.0, old.0, self.noted.len() as u16);
        for &(index, word) in self.noted.iter().rev() {
            self.store(index, word);
        }
        record.packed(new.0, new.0, 0);
        self.noted.clear();
    }

    /// Was the descriptor `off_wrap` completed between `old` and `new`?
    fn passes(&self, off_wrap: u16, new: Cursor, old: Cursor) -> bool {
        let new_index = new.0 & !WRAP;
        // Positions of this lap are from 0 on, those of the last one below.
        let of = |position: u16| {
            let index = position & !WRAP;
            if (position ^ new.0) & WRAP != 0 { index.wrapping_sub(self.size.get()) } else { index }
        };
        passes(of(off_wrap), new_index, of(old.0))
    }

    pub fn suppress_kicks(&mut self) {
        self.device.store_u16(FLAGS, event::DISABLE);
    }

    pub fn listen(&mut self, next: Cursor) {
        if self.event_index {
            self.device.store_u16(OFF_WRAP, next.0);
            self.device.store_u16(FLAGS, event::AT);
        } else {
            self.device.store_u16(FLAGS, event::ENABLE);
        }
    }
}
