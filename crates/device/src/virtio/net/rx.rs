//! One receive ring: frames are copied into the guest's buffers, several for one if it merges them.

use vmlane_mem::{CACHE_LINE, Spans, lines_ahead};
use vmlane_port::{DropReason, Overhead, RxFrame, VnetHeader};
use vmlane_wire::ethernet::TAG;

use crate::virtio::log::DirtyLog;
use crate::virtio::queue::{Broken, Cursor, Queue, Segment, Taken};

/// Bytes of the header: with VERSION_1 or mergeable buffers, or without.
pub const LONG_HEADER: usize = 12;
pub const SHORT_HEADER: usize = 10;
/// Buffers of one frame, at most: 64 KiB in buffers of 256 bytes.
const MAX_BUFFERS: usize = 256;

/// Pieces of one packet's buffers, at most, and one chain's more.
const MAX_PIECES: usize = 1024;
/// Bytes of a piece from which on, beside two for each packet, none counts as read in vain.
const FAIR_PIECE: usize = 256;

/// What was negotiated, as far as it concerns frames that the guest gets.
#[derive(Clone, Copy, Debug)]
pub struct RxRules {
    pub header: usize,
    /// Bytes of the longest frame that is no aggregate, with an inner tag or two.
    pub frame: usize,
    pub mergeable: bool,
    /// Partial checksums and verdicts may be reported.
    pub checksum: bool,
    /// Super-frames of whatever kind.
    pub aggregates: bool,
}

/// Memory that all rings of a NIC use for the frame in hand.
#[derive(Debug)]
pub struct Scratch {
    pub header: Spans,
    pub into: Spans,
    pub segments: Vec<Segment>,
    /// Chains taken, with the bytes that each holds.
    pub chains: Vec<(Taken, u32)>,
    /// Descriptors read in vain.
    pub overhead: Overhead,
}

/// One receive ring.
#[derive(Debug)]
pub struct RxQueue {
    pub queue: Queue,
    pub ring: usize,
    /// Where the chain was to be that the last refused frame lacked.
    missing: Option<Cursor>,
    pub broken: bool,
    /// What the VMM is to be notified of.
    fault: Option<Broken>,
}

impl RxQueue {
    pub fn new(queue: Queue, ring: usize) -> RxQueue {
        RxQueue { queue, ring, missing: None, broken: false, fault: None }
    }

    /// Was the last frame refused for want of buffers?
    pub fn is_starved(&self) -> bool {
        self.missing.is_some() && !self.broken
    }

    pub fn has_room(&self) -> bool {
        !self.broken && self.queue.is_there(self.missing.unwrap_or(self.queue.next))
    }

    /// What broke the ring, once.
    pub fn take_broken(&mut self) -> Option<Broken> {
        self.fault.take()
    }

    #[cold]
    fn broke(&mut self, fault: Broken) -> DropReason {
        self.broken = true;
        self.fault = Some(fault);
        DropReason::BadReceiver
    }

    /// Copies a frame into the next buffers.
    #[inline]
    pub fn deliver(
        &mut self,
        frame: &RxFrame<'_>,
        rules: &RxRules,
        scratch: &mut Scratch,
    ) -> Result<(), DropReason> {
        if self.broken {
            return Err(DropReason::BadReceiver);
        }
        let shift = if frame.tag.is_some() { TAG } else { 0 };
        let need = rules.header + shift + frame.len();
        let single = self.single(need, rules, scratch);
        let (spare, chains) = match single {
            Some((_, addr)) => (has_own_line(addr, rules.header), 1),
            None => {
                let collected = self.collect(need, rules, scratch);
                scratch.overhead.add(scratch.segments.len().saturating_sub(2 + need / FAIR_PIECE));
                collected?;
                spread(need, rules.header, scratch)?;
                (false, scratch.chains.len())
            }
        };
        let header = if rules.checksum {
            VnetHeader::with_checksum_status(frame, shift as u16)
        } else {
            VnetHeader::default()
        };
        let (first, field) = header.to_words();
        let words = (first, u32::from(field) | (chains as u32) << 16);
        scratch.header.write_words(words, rules.header, spare);
        if rules.checksum && frame.partial_checksum.is_some() {
            // The guest sums, or sends it on as it is.
            let partial = RxFrame { partial_checksum: None, ..*frame };
            partial.write(&scratch.into, true);
        } else {
            frame.write(&scratch.into, true);
        }
        if let Some((taken, _)) = single {
            self.queue.complete(taken.id(), taken.count(), need as u32);
            self.queue.next = taken.next();
        } else {
            self.complete(need, scratch);
        }
        self.missing = None;
        let into = &scratch.into;
        self.queue.lookahead(self.queue.next, |addr, _| {
            let (addr, len) = behind_own_line((addr, need), rules.header);
            into.prefetch_write(addr, lines_ahead(addr, len));
        });
        Ok(())
    }

    /// The usual case, quickly: one buffer in one piece has room for it all. Its chain and address, or None:
    /// look closer.
    #[inline]
    fn single(&mut self, need: usize, rules: &RxRules, scratch: &mut Scratch) -> Option<(Taken, u64)> {
        if self.queue.log().is_some() {
            return None;
        }
        let (taken, piece) = self.queue.read_single(self.queue.next)?;
        let frame = piece.addr.checked_add(rules.header as u64)?;
        if !piece.writable || (piece.len as usize) < need {
            return None;
        }
        scratch.header.set(piece.addr, rules.header).ok()?;
        scratch.into.set(frame, need - rules.header).ok()?;
        Some((taken, piece.addr))
    }

    /// Completes the chains that were collected.
    fn complete(&mut self, need: usize, scratch: &Scratch) {
        if let Some(log) = self.queue.log() {
            log_pieces(log, need, &scratch.segments);
        }
        let mut left = need as u32;
        for (taken, bytes) in &scratch.chains {
            let here = left.min(*bytes);
            self.queue.complete(taken.id(), taken.count(), here);
            left -= here;
            self.queue.next = taken.next();
        }
    }

    /// Finds chains for `need` bytes; nothing is taken yet.
    #[inline]
    fn collect(&mut self, need: usize, rules: &RxRules, scratch: &mut Scratch) -> Result<(), DropReason> {
        scratch.segments.clear();
        scratch.chains.clear();
        let (mut at, mut have, mut descriptors) = (self.queue.next, 0usize, 0usize);
        while have < need {
            let begin = scratch.segments.len();
            let Some(taken) =
                self.queue.read(at, &mut scratch.segments).map_err(|fault| self.broke(fault))?
            else {
                if descriptors >= usize::from(self.queue.size()) {
                    return Err(DropReason::NoRoom);
                }
                self.missing = Some(at);
                return Err(DropReason::NoBuffers);
            };
            let pieces = scratch.segments.get(begin..).unwrap_or_default();
            if pieces.iter().any(|piece| !piece.writable) {
                return Err(DropReason::BadReceiver);
            }
            let bytes: usize = pieces.iter().map(|piece| piece.len as usize).sum();
            let first = scratch.chains.is_empty();
            if first && bytes < rules.header || bytes == 0 {
                return Err(DropReason::BadReceiver);
            }
            have = have.saturating_add(bytes);
            descriptors += usize::from(taken.count());
            scratch.chains.push((taken, u32::try_from(bytes).unwrap_or(u32::MAX)));
            at = taken.next();
            let fits = scratch.chains.len() < MAX_BUFFERS && scratch.segments.len() < MAX_PIECES;
            let more = rules.mergeable && fits;
            if have < need && !more {
                return Err(DropReason::NoRoom);
            }
        }
        Ok(())
    }
}

/// Does a header of `header` bytes at `addr` end where a cache line does, so that no byte of the frame is in
/// a line with it? DPDK's buffers are such ones. The header's content is mostly that of the last one, and
/// neither side stores it then.
#[inline]
fn has_own_line(addr: u64, header: usize) -> bool {
    addr.wrapping_add(header as u64).is_multiple_of(CACHE_LINE)
}

/// What of a buffer (guest address, bytes) is worth fetching: all of it, or what comes behind a header with a
/// line of its own, which is in this CPU's cache already.
#[inline]
pub fn behind_own_line((addr, len): (u64, usize), header: usize) -> (u64, usize) {
    let own = if has_own_line(addr, header) { header.min(len) } else { 0 };
    (addr.wrapping_add(own as u64), len - own)
}

/// The first `need` bytes of the pieces were written.
#[cold]
fn log_pieces(log: &DirtyLog, need: usize, pieces: &[Segment]) {
    let mut left = need;
    for piece in pieces {
        let here = left.min(piece.len as usize);
        log.mark(piece.addr, here);
        left -= here;
    }
}

/// Resolves the pieces: the header's bytes, and those of the frame behind it.
#[inline]
fn spread(need: usize, header: usize, scratch: &mut Scratch) -> Result<(), DropReason> {
    scratch.header.clear();
    scratch.into.clear();
    let mut before = 0;
    for piece in &scratch.segments {
        let bytes = (piece.len as usize).min(need - before);
        let of_header = bytes.min(header.saturating_sub(before));
        let bad = |_| DropReason::BadReceiver;
        if of_header > 0 {
            scratch.header.push(piece.addr, of_header).map_err(bad)?;
        }
        if bytes > of_header {
            // An address that wraps is in no memory.
            let addr = piece.addr.wrapping_add(of_header as u64);
            scratch.into.push(addr, bytes - of_header).map_err(bad)?;
        }
        before += bytes;
        if before == need {
            break;
        }
    }
    Ok(())
}
