//! A mirror's half at its sources: copies the frames that pass there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vmlane_mem::Spans;
use vmlane_port::wrap::FrameTap;
use vmlane_port::{DropReason, Offload, PortStats, RxFrame, TxFrame};

use super::MirrorDirection;
use super::ring::{Head, Position, Ring};

/// What copies the frames of one source of a mirror.
pub struct MirrorTap {
    ring: Arc<Ring>,
    direction: MirrorDirection,
    /// Bytes of each frame that are copied.
    snap: usize,
    /// The mirror's.
    stats: Arc<PortStats>,
    /// The position + 1 of the frame that was sent last, until it is known what became of it; or 0. The
    /// worker that owns the port uses it.
    staged: AtomicU64,
}

impl MirrorTap {
    pub fn new(ring: Arc<Ring>, direction: MirrorDirection, snap: usize, stats: Arc<PortStats>) -> MirrorTap {
        MirrorTap { ring, direction, snap, stats, staged: AtomicU64::new(0) }
    }

    /// Copies a frame: its private head, then bytes of `body` from `body_at` on.
    #[inline]
    fn copy(&self, head: &[u8], (body, body_at): (&Spans, usize), mut frame: Head) -> Option<Position> {
        if frame.len > self.snap {
            // What is cut off is missing in all sums.
            (frame.len, frame.offload) = (self.snap, Offload::None);
        }
        let Some(to) = self.ring.take(frame.len) else {
            let stats: &PortStats = &self.stats;
            stats.drop(DropReason::SlowReceiver);
            return None;
        };
        let private = head.get(..frame.len.min(head.len())).unwrap_or_default();
        self.ring.write(to, 0, private);
        if frame.len > private.len() {
            self.ring.write_spans(to, private.len(), body, body_at, frame.len - private.len());
        }
        self.ring.describe(to, &frame);
        Some(to)
    }
}

impl FrameTap for MirrorTap {
    #[inline]
    fn sent(&self, frame: &TxFrame<'_>, _: u64) {
        self.settle(None);
        if !self.direction.sees_in() {
            return;
        }
        let of = Head { len: frame.len(), offload: frame.offload, tag: frame.tag };
        if let Some(at) = self.copy(frame.head, (frame.spans, frame.head.len()), of) {
            self.staged.store(at.0 + 1, Ordering::Relaxed);
        }
    }

    /// What its sender was not allowed to send, or what is no frame, is not mirrored.
    #[inline]
    fn settle(&self, dropped: Option<DropReason>) {
        let Some(at) = self.staged.load(Ordering::Relaxed).checked_sub(1).map(Position) else { return };
        self.staged.store(0, Ordering::Relaxed);
        match dropped {
            None => self.ring.publish(at),
            Some(_) => self.ring.discard(at),
        }
    }

    #[inline]
    fn received(&self, frame: &RxFrame<'_>, _: u64, dropped: Option<DropReason>) {
        if dropped.is_some() || !self.direction.sees_out() {
            return;
        }
        let offload = match (frame.aggregate, frame.partial_checksum) {
            (Some(aggregate), _) => Offload::Segment { header: aggregate.header, mss: aggregate.mss },
            (None, Some(partial)) => Offload::Checksum { start: partial.start, field: partial.field },
            (None, None) => Offload::None,
        };
        let of = Head { len: frame.len(), offload, tag: frame.tag };
        if let Some(at) = self.copy(frame.head, (frame.body, frame.body_at), of) {
            self.ring.publish(at);
        }
    }

    fn refused(&self, _: &TxFrame<'_>, _: u64, _: DropReason) {}

    fn placed(&self, _: Option<u16>) {}
}
