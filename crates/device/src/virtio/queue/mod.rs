//! Virtqueues from the device's side.
//!
//! Everything in a ring is the guest's and may change at any moment: each descriptor is loaded once,
//! and what was loaded is checked and used. Walks are bounded by the ring's size and by
//! [`MAX_SEGMENTS`], so that loops end. Nothing allocates once it has run for a while.

mod area;
mod packed;
mod record;
mod split;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vmlane_mem::{Fault, MemoryMap};
use vmlane_wire::virtio::{MAX_RING, desc, feature, split_bytes};

use self::packed::Packed;
pub use self::record::{Record, bytes as record_bytes};
use self::split::Split;
use super::log::DirtyLog;
use super::vhost::RingSetup;

/// Pieces of one chain, indirect tables included. Linux uses at most a few dozen.
pub const MAX_SEGMENTS: usize = 1024;

/// A piece of guest memory that a descriptor names; nothing says yet that it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub addr: u64,
    pub len: u32,
    /// The device may write it; it may read it otherwise.
    pub writable: bool,
}

/// A place in a ring: where a chain starts. A free-running index in split rings; in packed ones the
/// descriptor's number, and the wrap counter in bit 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(pub u16);

/// A chain that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// What its completion names.
    pub id: u16,
    /// Descriptors of the ring that it takes.
    pub count: u16,
    pub at: Cursor,
    pub next: Cursor,
}

/// A ring that cannot be. It is not looked at any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("more chains are available than the ring holds")]
    Index,
    #[error("descriptor {0} does not exist")]
    Descriptor(u16),
    #[error("a chain without end")]
    Loop,
    #[error("a chain of more than {MAX_SEGMENTS} pieces")]
    Long,
    #[error("an indirect table where none may be, or of an impossible size")]
    Table,
    #[error(transparent)]
    Memory(#[from] Fault),
}

/// Why a ring cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRing {
    #[error("a ring of {0} descriptors")]
    Size(u16),
    #[error("part of a ring at {0:#x}, which is not aligned")]
    Unaligned(u64),
    #[error("position {0:#x} is outside the ring")]
    Position(u32),
    #[error(transparent)]
    Memory(#[from] Fault),
}

/// Chains that are looked ahead: for their buffers, and for their descriptors. The driver has just written
/// both on another CPU.
const NEAR: u16 = 8;
const FAR: u16 = 16;

/// Cache lines of a buffer of `len` bytes worth fetching before its turn comes: all of a frame of the usual MTU,
/// which otherwise waits for memory line by line; of more only where headers are, since the CPU itself fetches
/// ahead in long copies.
pub fn lines_ahead(len: usize) -> usize {
    const LINE: usize = 64;
    const SHORT: usize = 2048;
    // One more: a frame mostly begins in the middle of a line.
    if len > SHORT { 2 } else { len.div_ceil(LINE) + 1 }
}

#[derive(Debug)]
enum Kind {
    Split(Split),
    Packed(Packed),
}

/// One virtqueue. Completions are in the order of the chains, so that whoever takes the ring over
/// after a crash finds all that is not completed from the ring's memory alone.
#[derive(Debug)]
pub struct Queue {
    kind: Kind,
    size: u16,
    /// Where the next chain is taken from.
    pub next: Cursor,
    memory: MemoryMap,
    indirect: bool,
    /// An indirect table, read once.
    table: Vec<u8>,
    position: Arc<AtomicU32>,
    log: Option<DirtyLog>,
    /// What of the ring the device writes: address and bytes.
    written: [(u64, usize); 2],
}

impl Queue {
    /// The ring of `setup`, from its position on.
    pub fn new(setup: &RingSetup, features: u64, memory: &MemoryMap) -> Result<Queue, BadRing> {
        let size = setup.size;
        if size == 0 || size > MAX_RING {
            return Err(BadRing::Size(size));
        }
        let position = setup.position.load(Ordering::Acquire);
        let event_index = features & feature::EVENT_INDEX != 0;
        let (kind, next) = if features & feature::PACKED != 0 {
            let packed = Packed::new(setup, position, event_index, memory)?;
            (Kind::Packed(packed), Cursor(position as u16))
        } else {
            (Kind::Split(Split::new(setup, position, event_index, memory)?), Cursor(position as u16))
        };
        let packed = features & feature::PACKED != 0;
        if let Some(record) = &setup.record {
            record.begin(features, size);
            match &kind {
                Kind::Split(ring) => record.split(ring.used_index()),
                Kind::Packed(ring) => record.packed(ring.used_position(), ring.used_position(), 0),
            }
            record.valid();
        }
        Ok(Queue {
            kind,
            size,
            next,
            memory: memory.clone(),
            indirect: features & feature::INDIRECT != 0,
            table: Vec::new(),
            position: setup.position.clone(),
            log: setup.log.clone(),
            written: written(setup, packed),
        })
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    /// Reads the chain at `at`, which is [`Self::next`] or the `next` of a chain just read: its pieces
    /// are added to `segments`. None: no chain is there yet.
    #[inline]
    pub fn read(&mut self, at: Cursor, segments: &mut Vec<Segment>) -> Result<Option<Taken>, Broken> {
        let Queue { kind, memory, indirect, table, next, .. } = self;
        let reader = table::Reader { memory, allowed: *indirect, table };
        match kind {
            Kind::Split(ring) => ring.read(at, *next, segments, reader),
            Kind::Packed(ring) => ring.read(at, segments, reader),
        }
    }

    /// Looks ahead from `at`, behind the chain that was read last: `touch` is told of first buffers (or indirect
    /// tables) whose turn comes soon, and how long they are, to be fetched; nothing about them is certain.
    #[inline]
    pub fn look_ahead(&mut self, at: Cursor, touch: impl FnMut(u64, u32)) {
        match &mut self.kind {
            Kind::Split(ring) => ring.look_ahead(at, touch),
            Kind::Packed(ring) => ring.look_ahead(at, touch),
        }
    }

    /// A fresh look: is there a chain at `at`?
    #[inline]
    pub fn is_there(&self, at: Cursor) -> bool {
        match &self.kind {
            Kind::Split(ring) => ring.is_there(at),
            Kind::Packed(ring) => ring.is_there(at),
        }
    }

    /// Completes a chain into which `len` bytes were written. Not visible before [`Self::publish`].
    #[inline]
    pub fn complete(&mut self, id: u16, count: u16, len: u32) {
        match &mut self.kind {
            Kind::Split(ring) => ring.complete(id, len),
            Kind::Packed(ring) => ring.complete(id, count, len),
        }
    }

    /// Makes completions visible. True if the driver wants to be told.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let tell = match &mut self.kind {
            Kind::Split(ring) => ring.publish(),
            Kind::Packed(ring) => ring.publish(),
        };
        self.log_ring();
        tell
    }

    /// Where to note which pages of the guest's are written.
    #[inline]
    pub fn log(&self) -> Option<&DirtyLog> {
        self.log.as_ref()
    }

    /// The device has written somewhere in the ring.
    #[inline]
    fn log_ring(&self) {
        if let Some(log) = &self.log {
            self.written.iter().for_each(|&(addr, len)| log.mark(addr, len));
        }
    }

    /// The driver need not announce chains.
    pub fn quiet(&mut self) {
        match &mut self.kind {
            Kind::Split(ring) => ring.quiet(),
            Kind::Packed(ring) => ring.quiet(),
        }
        self.log_ring();
    }

    /// Asks the driver to announce its next chain. A full fence and a fresh look must follow.
    pub fn listen(&mut self) {
        match &mut self.kind {
            Kind::Split(ring) => ring.listen(self.next),
            Kind::Packed(ring) => ring.listen(self.next),
        }
        self.log_ring();
    }

    /// Leaves behind where the next owner goes on: at `first`, the first chain that is not completed.
    pub fn leave(&mut self, first: Cursor) {
        let upper = match &self.kind {
            Kind::Split(_) => 0,
            Kind::Packed(ring) => u32::from(ring.used_position()) << 16,
        };
        self.position.store(upper | u32::from(first.0), Ordering::Release);
    }
}

/// The parts of a ring that the device writes.
fn written(setup: &RingSetup, packed: bool) -> [(u64, usize); 2] {
    let [descriptors, _, used] = split_bytes(setup.size);
    if packed {
        [(setup.descriptors, descriptors), (setup.device, 4)]
    } else {
        [(setup.device, used), (0, 0)]
    }
}

/// User Mode Linux begins packed rings at 0 without the mark of the first lap (arch/um/drivers/virtio_uml.c,
/// vu_setup_vq). After a whole lap, which that position would mean, the first descriptor has the device's mark;
/// where it does not, the ring is at its beginning.
fn first_lap(setup: &RingSetup, features: u64, memory: &MemoryMap) -> Option<u32> {
    const BEGIN: u32 = 1 << 15 | 1 << 31;
    if features & feature::PACKED == 0 || setup.position.load(Ordering::Acquire) != 0 {
        return None;
    }
    let mut flags = [0; 2];
    memory.read(setup.descriptors.checked_add(14)?, &mut flags).ok()?;
    (u16::from_le_bytes(flags) & desc::USED == 0).then_some(BEGIN)
}

/// Where a ring whose owner died goes on, if its record says so: a position as SET_VRING_BASE has it. The
/// record and the ring are the VMM's and the guest's: what comes out is checked by [`Queue::new`].
pub fn recover(setup: &RingSetup, features: u64, memory: &MemoryMap) -> Option<u32> {
    let Some(record) = setup.record.as_ref().filter(|record| record.is_of(setup.size)) else {
        return first_lap(setup, features, memory);
    };
    if features & feature::PACKED == 0 {
        let mut index = [0; 2];
        memory.read(setup.device.checked_add(2)?, &mut index).ok()?;
        return Some(u16::from_le_bytes(index).into());
    }
    const WRAP: u16 = 1 << 15;
    let (new, old, count) = record.places();
    let (index, lap) = (old & !WRAP, old & WRAP != 0);
    if index >= setup.size || new & !WRAP >= setup.size || count > setup.size {
        return None;
    }
    let ring = memory.window(setup.descriptors, desc::SIZE * usize::from(setup.size), true).ok()?;
    // The device's mark at the old place, whatever the driver has put there since: it was published.
    let published = |word: u64| (word >> 48) as u16 & desc::USED != 0;
    if count > 0 && published(ring.load_half(index.into(), true)) != lap {
        // Some may have been stored, but not the first one, which comes last.
        for at in (0..usize::from(count)).rev() {
            let (place, word) = record.noted(at);
            if place >= setup.size {
                return None;
            }
            ring.store_u64(desc::SIZE * usize::from(place) + 8, word);
        }
    }
    record.packed(new, new, 0);
    Some(u32::from(new) | u32::from(new) << 16)
}
