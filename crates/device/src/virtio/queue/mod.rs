//! Virtqueues from the device's side.
//!
//! Everything in a ring is the guest's and may change at any moment: each descriptor is loaded once,
//! and what was loaded is checked and used. Walks are bounded by the ring's size and by
//! [`MAX_SEGMENTS`], so that loops end. Nothing allocates once it has run for a while.

mod area;
mod chain;
mod packed;
mod record;
mod recover;
mod split;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vmlane_mem::MemoryMap;
use vmlane_wire::virtio::{MAX_RING, feature, split_bytes};

pub use self::chain::{BadRing, Broken, Cursor, MAX_SEGMENTS, Segment, Taken};
use self::packed::Packed;
pub use self::record::{Record, bytes as record_bytes};
pub use self::recover::recover;
use self::split::Split;
use super::log::DirtyLog;
use super::vhost::RingSetup;

#[derive(Debug)]
enum Kind {
    Split(Split),
    Packed(Packed),
}

/// One virtqueue. Completions are in the order of the chains, so that after a crash the next daemon
/// finds all that is not completed from the ring's memory alone.
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
    /// Descriptors read so far, and polls for one.
    walked: u64,
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
            walked: 0,
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
        let before = segments.len();
        let read = match kind {
            Kind::Split(ring) => ring.read(at, *next, segments, reader),
            Kind::Packed(ring) => ring.read(at, segments, reader),
        };
        self.walked += (segments.len() - before) as u64 + 1;
        read
    }

    /// The usual case, quickly: the chain at `at` if it is a single descriptor that breaks no rule. None
    /// does not mean that the ring is empty or broken; [`Self::read`] finds out.
    #[inline]
    pub fn read_single(&mut self, at: Cursor) -> Option<(Taken, Segment)> {
        let read = match &mut self.kind {
            Kind::Split(ring) => ring.read_single(at, self.next),
            Kind::Packed(ring) => ring.read_single(at),
        };
        self.walked += 2 * u64::from(read.is_some());
        read
    }

    /// Descriptors read so far, those of indirect tables included, and one for each call of [`Self::read`]:
    /// what the ring has cost the worker beside copies.
    #[inline]
    pub fn walked(&self) -> u64 {
        self.walked
    }

    /// Looks ahead from `at`, behind the chain that was read last: `touch` is given first buffers (or
    /// indirect tables) whose turn comes soon, and how long they are, to be fetched; nothing about them is
    /// certain.
    #[inline]
    pub fn lookahead(&mut self, at: Cursor, touch: impl FnMut(u64, u32)) {
        match &mut self.kind {
            Kind::Split(ring) => ring.lookahead(at, touch),
            Kind::Packed(ring) => ring.lookahead(at, touch),
        }
    }

    /// A fresh check: is there a chain at `at`?
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

    /// Makes completions visible. True if the driver wants to be notified.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let notify = match &mut self.kind {
            Kind::Split(ring) => ring.publish(),
            Kind::Packed(ring) => ring.publish(),
        };
        self.log_ring();
        notify
    }

    /// If completions are not visible yet: what the ring's record, if it has one, holds once they are, and
    /// where in its window.
    #[inline]
    pub fn unshown(&self) -> Option<(usize, u64)> {
        match &self.kind {
            Kind::Split(ring) => ring.unshown(),
            Kind::Packed(ring) => ring.unshown(),
        }
    }

    /// Is it known that the driver has examined all completions that are visible? Drivers announce it in
    /// split rings with event index alone: there they ask to be notified of the next one.
    pub fn is_notified(&self) -> bool {
        matches!(&self.kind, Kind::Split(ring) if ring.is_notified())
    }

    /// Where to note which pages of the guest's are written.
    #[inline]
    pub fn log(&self) -> Option<&DirtyLog> {
        self.log.as_ref()
    }

    /// Logs the ring itself as written.
    #[inline]
    fn log_ring(&self) {
        if let Some(log) = &self.log {
            self.written.iter().for_each(|&(addr, len)| log.mark(addr, len));
        }
    }

    /// Notifies the driver that it need not announce chains.
    pub fn suppress_kicks(&mut self) {
        match &mut self.kind {
            Kind::Split(ring) => ring.suppress_kicks(),
            Kind::Packed(ring) => ring.suppress_kicks(),
        }
        self.log_ring();
    }

    /// Asks the driver to announce its next chain. A full fence and a fresh check must follow.
    pub fn listen(&mut self) {
        match &mut self.kind {
            Kind::Split(ring) => ring.listen(self.next),
            Kind::Packed(ring) => ring.listen(self.next),
        }
        self.log_ring();
    }

    /// Stores where the next owner of the ring continues: at `first`, the first chain that is not completed.
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
