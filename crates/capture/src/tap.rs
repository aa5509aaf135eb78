//! A point of a capture: what a worker calls with each frame that passes there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use vmlane_port::wrap::FrameTap;
use vmlane_port::{DropReason, RxFrame, TxFrame};

use crate::bpf::Packet;
use crate::filter::Filter;
use crate::ring::{Direction, Kind, MAX_RECORD, Mark, Ring, Slot};
use crate::seen::Seen;

/// One point of a capture.
pub struct Tap {
    ring: Arc<Ring>,
    point: u16,
    snap: usize,
    filter: Filter,
    /// The VLAN of frames without a tag.
    untagged: AtomicU16,
    /// The last frame that was sent, until it is known what became of it. The one worker that owns the port
    /// uses these; they are atomics because it may be another one later.
    staged: Staged,
}

/// A record that is written and not published.
#[derive(Default)]
struct Staged {
    /// Its slot + 1, or 0.
    slot: AtomicU64,
    time: AtomicU64,
    /// Length on the wire, and bytes kept.
    lens: AtomicU64,
    /// GSO size, and whether the checksum is partial.
    offload: AtomicU64,
}

impl Tap {
    /// Point number `point` of the capture that `ring` belongs to; at most `snap` bytes of each frame are
    /// recorded.
    pub fn new(ring: Arc<Ring>, point: u16, snap: usize, filter: Filter) -> Tap {
        let (untagged, staged) = (AtomicU16::new(0), Staged::default());
        Tap { ring, point, snap: snap.min(MAX_RECORD), filter, untagged, staged }
    }

    /// Takes a place in the ring for a frame that the filter lets through, and writes what is to be kept of
    /// it.
    #[inline]
    fn write(&self, frame: &Seen<'_>) -> Option<(Slot, usize)> {
        let wanted = self.filter.of_frame(frame, self.untagged.load(Ordering::Relaxed))?;
        let kept = wanted.min(self.snap).min(frame.len());
        let slot = self.ring.take(self.point, kept)?;
        frame.record(&self.ring, slot, kept);
        Some((slot, kept))
    }

    fn mark(&self, frame: &Seen<'_>, time: u64, direction: Direction, dropped: Option<DropReason>) -> Mark {
        Mark {
            time,
            len: frame.len() as u32,
            point: self.point,
            kind: Kind::Frame,
            direction,
            dropped: dropped.map_or(0, DropReason::number),
            partial_checksum: frame.partial_checksum,
            gso: frame.gso,
        }
    }

    fn add(&self, frame: &Seen<'_>, time: u64, direction: Direction, dropped: Option<DropReason>) {
        if let Some((slot, kept)) = self.write(frame) {
            self.ring.publish(slot, &self.mark(frame, time, direction, dropped), kept);
        }
    }
}

impl FrameTap for Tap {
    #[inline]
    fn sent(&self, frame: &TxFrame<'_>, time: u64) {
        self.settle(None);
        let seen = Seen::sent(frame);
        if let Some((slot, kept)) = self.write(&seen) {
            let lens = (seen.len() as u64) << 32 | kept as u64;
            self.staged.lens.store(lens, Ordering::Relaxed);
            self.staged.time.store(time, Ordering::Relaxed);
            let offload = u64::from(seen.gso) << 1 | u64::from(seen.partial_checksum);
            self.staged.offload.store(offload, Ordering::Relaxed);
            self.staged.slot.store(slot.0 + 1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn settle(&self, dropped: Option<DropReason>) {
        let Some(slot) = self.staged.slot.load(Ordering::Relaxed).checked_sub(1) else { return };
        self.staged.slot.store(0, Ordering::Relaxed);
        let lens = self.staged.lens.load(Ordering::Relaxed);
        let offload = self.staged.offload.load(Ordering::Relaxed);
        let mark = Mark {
            time: self.staged.time.load(Ordering::Relaxed),
            len: (lens >> 32) as u32,
            point: self.point,
            kind: Kind::Frame,
            direction: Direction::Out,
            dropped: dropped.map_or(0, DropReason::number),
            partial_checksum: offload & 1 != 0,
            gso: (offload >> 1) as u16,
        };
        self.ring.publish(Slot(slot), &mark, lens as u32 as usize);
    }

    #[inline]
    fn received(&self, frame: &RxFrame<'_>, time: u64, dropped: Option<DropReason>) {
        self.add(&Seen::received(frame), time, Direction::In, dropped);
    }

    fn refused(&self, frame: &TxFrame<'_>, time: u64, reason: DropReason) {
        self.add(&Seen::sent(frame), time, Direction::In, Some(reason));
    }

    fn placed(&self, vlan: Option<u16>) {
        self.untagged.store(vlan.unwrap_or(0), Ordering::Relaxed);
        self.ring.set_present(self.point, vlan.is_some());
    }
}

#[cfg(test)]
mod tests;
