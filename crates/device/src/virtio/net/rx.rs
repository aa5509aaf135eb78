//! One receive ring: packets are copied into the guest's buffers, several for one if it merges them.

use vmlane_mem::Spans;
use vmlane_port::{DropReason, MAX_HEAD, Refusal, RxFrame, VnetHeader};
use vmlane_wire::ethernet::TAG;

use crate::virtio::log::DirtyLog;
use crate::virtio::queue::{Broken, Cursor, Queue, Segment, Taken, lines_ahead};

/// Bytes of the header: with VERSION_1 or mergeable buffers, or without.
pub const LONG_HEADER: usize = 12;
pub const SHORT_HEADER: usize = 10;
/// Buffers of one packet, at most: 64 KiB in buffers of 256 bytes.
const MAX_BUFFERS: usize = 256;

/// What was negotiated, as far as it concerns frames that the guest gets.
#[derive(Clone, Copy, Debug)]
pub struct RxRules {
    pub header: usize,
    /// Bytes of the longest frame that is no aggregate, with an inner tag or two.
    pub frame: usize,
    pub mergeable: bool,
    /// Partial checksums and verdicts may be told.
    pub checksum: bool,
    /// Super-frames of whatever kind.
    pub aggregates: bool,
}

/// Memory that all rings of a NIC use for the packet in hand.
#[derive(Debug)]
pub struct Bench {
    pub header: Spans,
    pub into: Spans,
    pub segments: Vec<Segment>,
    /// Chains taken, with the bytes that each holds.
    pub chains: Vec<(Taken, u32)>,
    pub scratch: Box<[u8; MAX_HEAD]>,
}

/// Why a packet was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    Refused(Refusal),
    Broken(Broken),
}

impl From<Refusal> for Undelivered {
    fn from(refusal: Refusal) -> Undelivered {
        Undelivered::Refused(refusal)
    }
}

impl From<Broken> for Undelivered {
    fn from(broken: Broken) -> Undelivered {
        Undelivered::Broken(broken)
    }
}

/// One receive ring.
#[derive(Debug)]
pub struct RxQueue {
    pub queue: Queue,
    pub ring: usize,
    /// Where the chain was to be that the last refused packet lacked.
    missing: Option<Cursor>,
    pub broken: bool,
}

impl RxQueue {
    pub fn new(queue: Queue, ring: usize) -> RxQueue {
        RxQueue { queue, ring, missing: None, broken: false }
    }

    /// Was the last packet refused for want of buffers?
    pub fn is_starved(&self) -> bool {
        self.missing.is_some() && !self.broken
    }

    pub fn has_room(&self) -> bool {
        !self.broken && self.queue.is_there(self.missing.unwrap_or(self.queue.next))
    }

    /// Copies a packet into the next buffers.
    #[inline]
    pub fn deliver(
        &mut self,
        packet: &RxFrame<'_>,
        rules: &RxRules,
        bench: &mut Bench,
    ) -> Result<(), Undelivered> {
        if self.broken {
            return Err(Refusal::Drop(DropReason::BadReceiver).into());
        }
        let shift = if packet.tag.is_some() { TAG } else { 0 };
        let need = rules.header + shift + packet.len();
        self.collect(need, rules, bench)?;
        spread(need, rules.header, bench)?;
        let header = if rules.checksum {
            VnetHeader::with_checksum_status(packet, shift as u16)
        } else {
            VnetHeader::default()
        };
        let mut bytes = [0; LONG_HEADER];
        bytes[..SHORT_HEADER].copy_from_slice(&header.to_bytes());
        bytes[SHORT_HEADER..].copy_from_slice(&(bench.chains.len() as u16).to_le_bytes());
        bench.header.write(0, &bytes[..rules.header]);
        if rules.checksum && packet.partial_checksum.is_some() {
            // The guest sums, or sends it on as it is.
            let partial = RxFrame { partial_checksum: None, ..*packet };
            partial.write(&bench.into, true, &mut bench.scratch);
        } else {
            packet.write(&bench.into, true, &mut bench.scratch);
        }
        if let Some(log) = self.queue.log() {
            log_pieces(log, need, &bench.segments);
        }
        let mut left = need as u32;
        for (taken, bytes) in &bench.chains {
            let here = left.min(*bytes);
            self.queue.complete(taken.id, taken.count, here);
            left -= here;
            self.queue.next = taken.next;
        }
        self.missing = None;
        let into = &bench.into;
        self.queue.look_ahead(self.queue.next, |addr, _| into.prefetch_write(addr, lines_ahead(need)));
        Ok(())
    }

    /// Finds chains for `need` bytes; nothing is taken yet.
    #[inline]
    fn collect(&mut self, need: usize, rules: &RxRules, bench: &mut Bench) -> Result<(), Undelivered> {
        bench.segments.clear();
        bench.chains.clear();
        let (mut at, mut have, mut descriptors) = (self.queue.next, 0usize, 0usize);
        while have < need {
            let begin = bench.segments.len();
            let Some(taken) = self.queue.read(at, &mut bench.segments)? else {
                if descriptors >= usize::from(self.queue.size()) {
                    return Err(Refusal::Drop(DropReason::NoRoom).into());
                }
                self.missing = Some(at);
                return Err(Refusal::Full.into());
            };
            let pieces = &bench.segments[begin..];
            if pieces.iter().any(|piece| !piece.writable) {
                return Err(Refusal::Drop(DropReason::BadReceiver).into());
            }
            let bytes: usize = pieces.iter().map(|piece| piece.len as usize).sum();
            let first = bench.chains.is_empty();
            if first && bytes < rules.header || bytes == 0 {
                return Err(Refusal::Drop(DropReason::BadReceiver).into());
            }
            have = have.saturating_add(bytes);
            descriptors += usize::from(taken.count);
            bench.chains.push((taken, u32::try_from(bytes).unwrap_or(u32::MAX)));
            at = taken.next;
            let more = rules.mergeable && bench.chains.len() < MAX_BUFFERS;
            if have < need && !more {
                return Err(Refusal::Drop(DropReason::NoRoom).into());
            }
        }
        Ok(())
    }
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
fn spread(need: usize, header: usize, bench: &mut Bench) -> Result<(), Undelivered> {
    bench.header.clear();
    bench.into.clear();
    let mut before = 0;
    for piece in &bench.segments {
        let bytes = (piece.len as usize).min(need - before);
        let of_header = bytes.min(header.saturating_sub(before));
        let bad = |_| Undelivered::Refused(Refusal::Drop(DropReason::BadReceiver));
        if of_header > 0 {
            bench.header.push(piece.addr, of_header).map_err(bad)?;
        }
        if bytes > of_header {
            // An address that wraps is in nobody's memory.
            let addr = piece.addr.wrapping_add(of_header as u64);
            bench.into.push(addr, bytes - of_header).map_err(bad)?;
        }
        before += bytes;
        if before == need {
            break;
        }
    }
    Ok(())
}
