//! Split rings (virtio 1.2, section 2.7).

use std::sync::atomic::{Ordering, fence};

use vmlane_mem::{MemoryMap, Window};
use vmlane_wire::virtio::{NO_NOTICE, desc, passes, split_bytes};

use super::area::Area;
use super::chain::{BadRing, Broken, Cursor, FAR, Index, NEAR, Segment, Taken};
use super::record::Record;
use super::table::{Reader, push};
use crate::virtio::vhost::RingSetup;

/// Offsets in either half: flags, the index, the entries.
const FLAGS: usize = 0;
const INDEX: usize = 2;
const ENTRIES: usize = 4;
/// Entries of the used ring in a cache line.
const USED_A_LINE: u16 = 8;

#[derive(Debug)]
pub struct Split {
    size: Index,
    descriptors: Window,
    available: Area,
    used: Area,
    event_index: bool,
    /// The driver's index as last loaded.
    seen: Index,
    /// Completions written, completions visible.
    written: Index,
    published: Index,
    /// Nothing was published yet: the driver may wait for what was before.
    fresh: bool,
    record: Option<Record>,
    /// Up to where buffers were prefetched.
    touched: Index,
}

impl Split {
    pub fn new(
        setup: &RingSetup,
        position: u32,
        event_index: bool,
        memory: &MemoryMap,
    ) -> Result<Split, BadRing> {
        let size = setup.size;
        if !size.is_power_of_two() {
            return Err(BadRing::Size(size));
        }
        let next = u16::try_from(position).map_err(|_| BadRing::Position(position))?;
        if !setup.descriptors.is_multiple_of(desc::SIZE as u64) {
            return Err(BadRing::Unaligned(setup.descriptors));
        }
        let [descriptors, available, used] = split_bytes(size);
        let used = Area::new(memory, setup.device, used, 4)?;
        let written = used.load_u16(INDEX);
        Ok(Split {
            size: Index::new(size),
            descriptors: memory.window(setup.descriptors, descriptors, false)?,
            available: Area::new(memory, setup.driver, available, 2)?,
            used,
            event_index,
            seen: Index::new(next),
            written: Index::new(written),
            published: Index::new(written),
            fresh: true,
            record: setup.record.clone(),
            touched: Index::new(next),
        })
    }

    /// The index of the used ring.
    pub fn used_index(&self) -> u16 {
        self.published.get()
    }

    #[inline]
    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size.get() - 1))
    }

    #[inline]
    pub fn is_there(&self, at: Cursor) -> bool {
        self.available.load_u16(INDEX) != at.0
    }

    #[inline]
    pub fn read(
        &mut self,
        at: Cursor,
        first: Cursor,
        segments: &mut Vec<Segment>,
        mut reader: Reader<'_>,
    ) -> Result<Option<Taken>, Broken> {
        if at.0 == self.seen.get() {
            let seen = self.available.load_u16(INDEX);
            self.seen.set(seen);
            if seen.wrapping_sub(first.0) > self.size.get() {
                return Err(Broken::Index);
            }
            if at.0 == seen {
                return Ok(None);
            }
        }
        let id = self.available.load_u16(ENTRIES + 2 * self.slot(at.0));
        let begin = segments.len();
        let mut index = id;
        let size = self.size.get();
        for count in 1..=size {
            if index >= size {
                return Err(Broken::Descriptor(index));
            }
            let addr = self.descriptors.load_half(index.into(), false);
            let word = self.descriptors.load_half(index.into(), true);
            let (len, flags, next) = (word as u32, (word >> 32) as u16, (word >> 48) as u16);
            if flags & desc::INDIRECT != 0 {
                if flags & desc::NEXT != 0 {
                    return Err(Broken::Table);
                }
                reader.chained(addr, len, segments, begin)?;
            } else {
                push(segments, begin, Segment { addr, len, writable: flags & desc::WRITE != 0 })?;
            }
            if flags & desc::NEXT == 0 {
                return Ok(Some(Taken::new(id, count, at, Cursor(at.0.wrapping_add(1)))));
            }
            index = next;
        }
        Err(Broken::Loop)
    }

    /// The chain at `at` if it is a single descriptor; see [`super::Queue::read_single`].
    #[inline]
    pub fn read_single(&mut self, at: Cursor, first: Cursor) -> Option<(Taken, Segment)> {
        let size = self.size.get();
        if at.0 == self.seen.get() {
            let seen = self.available.load_u16(INDEX);
            if at.0 == seen || seen.wrapping_sub(first.0) > size {
                return None;
            }
            self.seen.set(seen);
        }
        let id = self.available.load_u16(ENTRIES + 2 * self.slot(at.0));
        if id >= size {
            return None;
        }
        let addr = self.descriptors.load_half(id.into(), false);
        let word = self.descriptors.load_half(id.into(), true);
        let (len, flags) = (word as u32, (word >> 32) as u16);
        let taken = Taken::new(id, 1, at, Cursor(at.0.wrapping_add(1)));
        let segment = Segment { addr, len, writable: flags & desc::WRITE != 0 };
        (flags & (desc::NEXT | desc::INDIRECT) == 0).then_some((taken, segment))
    }

    /// Looks ahead from `at`, behind the chain that was read last: has the CPU fetch descriptors, and calls
    /// `touch` with the addresses and lengths of first buffers. Each is loaded again when its turn comes.
    #[inline]
    pub fn lookahead(&mut self, at: Cursor, mut touch: impl FnMut(u64, u32)) {
        if at.0.is_multiple_of(USED_A_LINE) {
            // Completions are in the order of the chains.
            let next = at.0.wrapping_add(USED_A_LINE);
            self.used.prefetch_write(ENTRIES + 8 * self.slot(next));
        }
        let there = self.seen.get().wrapping_sub(at.0);
        if there > FAR {
            let id = self.available.load_u16(ENTRIES + 2 * self.slot(at.0.wrapping_add(FAR)));
            self.descriptors.prefetch(usize::from(id) * desc::SIZE);
        }
        let want = there.min(NEAR);
        let mut have = self.touched.get().wrapping_sub(at.0);
        if have > NEAR {
            // Behind, or of another lap.
            have = 0;
        }
        while have < want {
            let id = self.available.load_u16(ENTRIES + 2 * self.slot(at.0.wrapping_add(have)));
            if id < self.size.get() {
                let len = self.descriptors.load_half(id.into(), true) as u32;
                touch(self.descriptors.load_half(id.into(), false), len);
            }
            have += 1;
        }
        self.touched.set(at.0.wrapping_add(have));
    }

    #[inline]
    pub fn complete(&mut self, id: u16, len: u32) {
        let written = self.written.get();
        let entry = ENTRIES + 8 * self.slot(written);
        self.used.store_u32(entry, id.into());
        self.used.store_u32(entry + 4, len);
        self.written.set(written.wrapping_add(1));
    }

    #[inline]
    pub fn unshown(&self) -> Option<(usize, u64)> {
        let record = self.record.as_ref().filter(|_| self.published.get() != self.written.get())?;
        Some(record.split_word(self.written.get()))
    }

    #[inline]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published.get(), self.written.get());
        if old == new {
            return false;
        }
        self.used.store_u16(INDEX, new);
        if let Some(record) = &self.record {
            record.split(new);
        }
        self.published.set(new);
        // The driver stores what it wants and then loads the index: one of the two loads sees the
        // other's store.
        fence(Ordering::SeqCst);
        let fresh = self.fresh;
        if fresh {
            self.fresh = false;
        }
        if self.event_index {
            let event = self.available.load_u16(ENTRIES + 2 * usize::from(self.size.get()));
            fresh || passes(event, new, old)
        } else {
            self.available.load_u16(FLAGS) & NO_NOTICE == 0
        }
    }

    /// Has the driver examined all completions that are visible? Unknown, and so false, without event index.
    pub fn is_notified(&self) -> bool {
        let event = || self.available.load_u16(ENTRIES + 2 * usize::from(self.size.get()));
        self.event_index && event() == self.published.get()
    }

    pub fn suppress_kicks(&mut self) {
        // With event index the flags are not examined; a chain that is behind the event already
        // announces nothing until the index has come around.
        if !self.event_index {
            self.used.store_u16(FLAGS, NO_NOTICE);
        }
    }

    pub fn listen(&mut self, next: Cursor) {
        if self.event_index {
            self.used.store_u16(ENTRIES + 8 * usize::from(self.size.get()), next.0);
        } else {
            self.used.store_u16(FLAGS, 0);
        }
    }
}
