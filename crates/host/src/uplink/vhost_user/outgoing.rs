//! Frames to the peer: copied into buffers that lie one behind another, so that a frame of any length has one
//! descriptor.

use vmlane_mem::{MemoryMap, Spans, lines_ahead};
use vmlane_port::{DropReason, MAX_FRAME, RxFrame, VnetHeader};
use vmlane_wire::ethernet::TAG;

use super::HEADER;
use super::memory::{BUFFER, Buffers, RING};
use super::ring::{Broken, Ring};

/// How many buffers ahead are fetched.
const NEAR: u16 = 4;
const _: () = assert!((HEADER + MAX_FRAME).div_ceil(BUFFER) < RING as usize);

/// What a buffer is in use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// None, or it belongs to a frame that begins before it.
    Nothing,
    /// So many buffers from here on are the peer's.
    Sent(u16),
    /// So many from here on are free again once those before them are.
    Done(u16),
}

/// What was negotiated, as far as it concerns frames to the peer.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Bytes of the longest frame that is no super-frame.
    pub frame: usize,
    /// Partial checksums may be described.
    pub checksum: bool,
    /// Super-frames of whatever kind.
    pub aggregates: bool,
}

/// The ring that the peer receives by.
pub struct Outgoing {
    pub ring: Ring,
    buffers: Buffers,
    rules: Rules,
    /// By buffer.
    uses: Box<[Use]>,
    /// The next free buffer, and the oldest one in use, both running freely.
    head: u16,
    tail: u16,
    /// What the last refused frame lacked.
    missing: u16,
    into: Spans,
}

impl Outgoing {
    /// A ring all of whose buffers are free.
    pub fn new(ring: Ring, buffers: Buffers, map: &MemoryMap, rules: Rules) -> Outgoing {
        Outgoing {
            ring,
            buffers,
            rules,
            uses: vec![Use::Nothing; RING.into()].into(),
            head: 0,
            tail: 0,
            missing: 1,
            into: Spans::new(map.clone(), true),
        }
    }

    /// Takes back the buffers that the peer is done with, in whatever order.
    #[expect(clippy::indexing_slicing, reason = "`peek` has checked the number, and the tail is masked")]
    fn reclaim(&mut self) -> Result<(), Broken> {
        while self.ring.poll_used(1)? {
            let used = self.ring.peek()?;
            self.ring.take(used);
            let use_of = &mut self.uses[usize::from(used.id)];
            // Only buffers that frames begin with were posted.
            let Use::Sent(count) = *use_of else { return Err(Broken::Fault) };
            *use_of = Use::Done(count);
        }
        while self.tail != self.head {
            let use_of = &mut self.uses[usize::from(self.tail % RING)];
            let Use::Done(count) = *use_of else { break };
            *use_of = Use::Nothing;
            self.tail = self.tail.wrapping_add(count);
        }
        Ok(())
    }

    /// Buffers in a row for a frame: the first one's number. None: too few are free.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "masked by the number of buffers")]
    fn reserve(&mut self, count: u16) -> Result<Option<u16>, Broken> {
        let at = self.head % RING;
        // A frame does not go on at the other end.
        let left_out = if at + count > RING { RING - at } else { 0 };
        if self.free() < left_out + count {
            self.reclaim()?;
        }
        if self.free() < left_out + count {
            self.missing = left_out + count;
            return Ok(None);
        }
        if left_out > 0 {
            self.uses[usize::from(at)] = Use::Done(left_out);
        }
        let first = (at + left_out) % RING;
        self.uses[usize::from(first)] = Use::Sent(count);
        self.head = self.head.wrapping_add(left_out + count);
        Ok(Some(first))
    }

    #[inline]
    fn free(&self) -> u16 {
        RING - self.head.wrapping_sub(self.tail)
    }

    /// Takes sent buffers back. True: the frame that was refused last could go now, or an ordinary one.
    pub fn reclaim_room(&mut self) -> Result<bool, Broken> {
        self.reclaim()?;
        Ok(self.free() >= self.missing)
    }

    /// Copies a frame into free buffers.
    #[inline]
    pub fn deliver(&mut self, frame: &RxFrame<'_>) -> Result<Result<(), DropReason>, Broken> {
        let shift = if frame.tag.is_some() { TAG } else { 0 };
        let bytes = shift + frame.len();
        let fits = match frame.aggregate {
            Some(_) => self.rules.aggregates,
            None => frame.len() <= self.rules.frame,
        };
        if !fits || bytes > MAX_FRAME {
            return Ok(Err(DropReason::TooLong));
        }
        let count = (HEADER + bytes).div_ceil(BUFFER) as u16;
        let Some(first) = self.reserve(count)? else { return Ok(Err(DropReason::NoBuffers)) };
        self.missing = 1;
        if self.into.set(self.buffers.address(first) + HEADER as u64, bytes).is_err() {
            return Err(Broken::Fault);
        }
        let mut header = [0; HEADER];
        if self.rules.checksum {
            let [of_frame @ .., _, _] = &mut header;
            *of_frame = VnetHeader::of(frame, shift as u16).to_bytes();
        }
        self.buffers.write(first, &header);
        if self.rules.checksum && frame.partial_checksum.is_some() {
            // The peer sums, or sends it on as it is.
            let partial = RxFrame { partial_checksum: None, ..*frame };
            partial.write(&self.into, true);
        } else {
            frame.write(&self.into, true);
        }
        self.ring.post(first, (HEADER + bytes) as u32, false);
        // The peer has read them on another CPU.
        let soon = usize::from(self.head.wrapping_add(NEAR) % RING);
        self.buffers.prefetch_write(soon, lines_ahead(0, HEADER + bytes));
        Ok(Ok(()))
    }
}
