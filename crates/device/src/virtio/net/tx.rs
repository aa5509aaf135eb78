//! One transmit ring: frames are gathered from chains, described, and completed in ring order.

use vmlane_mem::{MemoryMap, lines_ahead};
use vmlane_port::{
    DropReason, FrameInFlight, FramesInFlight, MAX_FRAME, Overhead, PortStats, TxFrame, VnetHeader,
};
use vmlane_wire::ethernet::{HEADER, TAG};

use super::rx::{LONG_HEADER, behind_own_line};
use crate::virtio::queue::{Broken, Cursor, Queue, Segment, Taken};

/// Frames of one ring that may be in flight at once.
const LOOKAHEAD: usize = 256;
/// Frames that are left out in one poll, at most.
const MAX_SKIPS: usize = 64;

/// What was negotiated, as far as it concerns frames that the guest sends.
#[derive(Clone, Copy, Debug)]
pub struct TxRules {
    /// Bytes of the header in front of a frame.
    pub header: usize,
    /// Bytes of the longest frame that is not segmented, two in-band tags included.
    pub frame: usize,
    pub checksum: bool,
    pub tso4: bool,
    pub tso6: bool,
    pub uso: bool,
}

impl TxRules {
    pub fn longest(mtu: u16) -> usize {
        usize::from(mtu) + HEADER + 2 * TAG
    }
}

/// A chain that was taken and is not completed.
#[derive(Clone, Copy, Debug)]
struct Pending {
    taken: Taken,
    finished: bool,
}

/// One transmit ring.
#[derive(Debug)]
pub struct TxQueue {
    pub queue: Queue,
    /// Number of the virtqueue.
    pub ring: usize,
    memory: MemoryMap,
    /// Each with which frame of the ring it is, counted from the first ever.
    in_flight: FramesInFlight<u64>,
    /// Chains from the first that is not completed on; frame n is at n modulo their number.
    pending: Box<[Option<Pending>]>,
    first: u64,
    next: u64,
    segments: Vec<Segment>,
    pub broken: bool,
    /// Descriptors read in vain.
    overhead: Overhead,
    /// Frames were left out; no flush will be asked for because of them.
    pub skipped: bool,
}

impl TxQueue {
    pub fn new(queue: Queue, ring: usize, memory: &MemoryMap, overhead: Overhead) -> TxQueue {
        let pending = vec![None; usize::from(queue.size()).next_power_of_two()].into_boxed_slice();
        TxQueue {
            queue,
            ring,
            memory: memory.clone(),
            in_flight: FramesInFlight::new(memory.clone(), false, LOOKAHEAD),
            pending,
            first: 0,
            next: 0,
            segments: Vec::with_capacity(64),
            broken: false,
            overhead,
            skipped: false,
        }
    }

    /// Frames that may be in flight at once.
    pub fn lookahead(&self) -> usize {
        self.pending.len().min(LOOKAHEAD)
    }

    /// Does a frame wait?
    #[inline]
    pub fn waits(&self) -> bool {
        !self.broken && self.queue.is_there(self.queue.next)
    }

    /// Lends the next frame: its slot. An invalid frame is counted and completed.
    #[inline]
    pub fn fetch(&mut self, rules: &TxRules, stats: &PortStats) -> Result<Option<u16>, Broken> {
        for _ in 0..MAX_SKIPS {
            if self.broken || self.next - self.first >= self.pending.len() as u64 {
                return Ok(None);
            }
            self.segments.clear();
            let single = self.queue.read_single(self.queue.next);
            let read = match single {
                Some((taken, _)) => Ok(Some(taken)),
                None => self.queue.read(self.queue.next, &mut self.segments),
            };
            let taken = match read {
                Ok(Some(taken)) => taken,
                Ok(None) => return Ok(None),
                Err(broken) => {
                    self.broken = true;
                    stats.drop(DropReason::BadDescriptor);
                    return Err(broken);
                }
            };
            let Some(slot) = self.in_flight.take() else { return Ok(None) };
            self.queue.next = taken.next();
            let Some((frame, number)) = self.in_flight.get_mut(slot) else { return Ok(None) };
            let near = &frame.spans;
            self.queue.lookahead(taken.next(), |addr, len| {
                let (addr, len) = behind_own_line((addr, len as usize), rules.header);
                near.prefetch(addr, lines_ahead(addr, len));
            });
            *number = self.next;
            *Self::at(&mut self.pending, self.next) = Some(Pending { taken, finished: false });
            self.next += 1;
            let segments = match &single {
                Some((_, segment)) => std::slice::from_ref(segment),
                None => &self.segments,
            };
            match gather(segments, frame, &self.memory, rules) {
                Ok(()) => {
                    // One is the header's.
                    self.overhead.add(segments.len().saturating_sub(1 + frame.spans.pieces()));
                    return Ok(Some(slot));
                }
                Err(reason) => {
                    self.overhead.add(1 + segments.len());
                    stats.drop(reason);
                    self.finish(slot);
                    self.skipped = true;
                }
            }
        }
        Ok(None)
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "masked by the length, a power of two")]
    fn at(pending: &mut [Option<Pending>], number: u64) -> &mut Option<Pending> {
        let mask = pending.len() - 1;
        &mut pending[number as usize & mask]
    }

    #[inline]
    pub fn frame(&self, slot: u16) -> TxFrame<'_> {
        self.in_flight.frame(slot)
    }

    #[inline]
    pub fn finish(&mut self, slot: u16) {
        let Some((_, number)) = self.in_flight.get_mut(slot) else { return };
        if let Some(pending) = Self::at(&mut self.pending, *number) {
            pending.finished = true;
        }
        self.in_flight.give_back(slot);
    }

    /// Completes what can be completed in ring order. True if the driver wants to be notified.
    #[inline]
    pub fn flush(&mut self) -> bool {
        self.skipped = false;
        while self.first != self.next {
            let place = Self::at(&mut self.pending, self.first);
            let Some(Pending { taken, finished: true }) = *place else { break };
            *place = None;
            self.queue.complete(taken.id(), taken.count(), 0);
            self.first += 1;
        }
        self.queue.publish()
    }

    /// The first chain that is not completed.
    fn oldest(&mut self) -> Cursor {
        let first = if self.first == self.next { None } else { *Self::at(&mut self.pending, self.first) };
        first.map_or(self.queue.next, |pending| pending.taken.at())
    }
}

impl Drop for TxQueue {
    fn drop(&mut self) {
        self.flush();
        let oldest = self.oldest();
        self.queue.leave(oldest);
    }
}

/// Takes the header and the private copy of the first bytes, and checks the offload.
#[inline]
fn gather(
    segments: &[Segment],
    frame: &mut FrameInFlight,
    memory: &MemoryMap,
    rules: &TxRules,
) -> Result<(), DropReason> {
    frame.spans.clear();
    let mut header = [0; LONG_HEADER];
    let mut words = None;
    let mut have = 0;
    let mut len = 0usize;
    for segment in segments {
        if segment.writable {
            return Err(DropReason::BadDescriptor);
        }
        let bytes = segment.len as usize;
        let here = bytes.min(rules.header - have);
        if have == 0 && bytes >= LONG_HEADER {
            words = frame.spans.near_words(segment.addr);
        }
        if words.is_some() {
            have += here;
        } else if here > 0 {
            let part = header.get_mut(have..have + here).ok_or(DropReason::BadLength)?;
            memory.read(segment.addr, part).map_err(|_| DropReason::BadAddress)?;
            have += here;
        }
        let rest = bytes - here;
        len = len.saturating_add(rest);
        if len > MAX_FRAME {
            return Err(DropReason::BadLength);
        }
        if rest > 0 {
            let addr = segment.addr.checked_add(here as u64).ok_or(DropReason::BadAddress)?;
            frame.spans.push(addr, rest).map_err(|_| DropReason::BadAddress)?;
        }
    }
    if have < rules.header || len < HEADER {
        return Err(DropReason::BadLength);
    }
    let header = match words {
        Some((first, second)) => VnetHeader::from_words(first, second as u16),
        None => {
            let [a, b, c, d, e, f, g, h, i, j, ..] = header;
            VnetHeader::from_bytes(&[a, b, c, d, e, f, g, h, i, j])
        }
    };
    if !header.is_segmented() && len > rules.frame {
        return Err(DropReason::BadLength);
    }
    frame.keep_offload(&header, rules.checksum, [rules.tso4, rules.tso6, rules.uso])
}
