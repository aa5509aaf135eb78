//! Frames on their way to a port that wait there, for tokens or for their time: copies, so that their senders
//! have them back.
//!
//! Their bytes lie one behind the other in a memory file of the queue's own, in the order in which they came,
//! begun anew at its end. It is made when the port is configured; nothing is allocated while frames flow.

use std::collections::VecDeque;
use std::io;

use vmlane_mem::{MapRequest, MemoryMap, Spans, copy_spans, memfd};
use vmlane_port::{Aggregate, ChecksumStatus, Layers, MAX_HEAD, PartialChecksum, RxCapabilities, RxFrame};
use vmlane_wire::ethernet::Tci;

use crate::pending::Claim;
use crate::spec::Rate;

/// How long frames wait in a full queue, at the average rate.
const DEPTH_MS: u64 = 50;
/// Bytes of the smallest queue: some super-frames.
pub const LEAST_BYTES: u64 = 192 << 10;
/// Bytes of the largest one.
pub const MOST_BYTES: u64 = 16 << 20;
/// Bytes of memory for one frame's own record: with longer frames, bytes bound the queue.
const BYTES_A_FRAME: u64 = 512;
const PAGE: u64 = 4096;
/// Owners that have frames at once: for more, memory is allocated.
const USUAL_OWNERS: usize = 64;

/// A frame that waits.
struct Held {
    /// Where its bytes begin.
    at: usize,
    /// Bytes of all of it, and of its head.
    len: usize,
    head: usize,
    tag: Option<Tci>,
    layers: Layers,
    checksum: ChecksumStatus,
    aggregate: Option<Aggregate>,
    partial_checksum: Option<PartialChecksum>,
    /// What the port could receive when the switch made the frame.
    capabilities: RxCapabilities,
    /// Whose frame it is.
    owner: u16,
}

/// What an owner has in the queue.
struct OfOwner {
    claim: Claim,
    bytes: usize,
}

/// The frames, oldest first.
pub struct FrameQueue {
    frames: VecDeque<Held>,
    /// Owners that have any.
    owners: Vec<OfOwner>,
    most_frames: usize,
    bytes: usize,
    /// Where the bytes of the next frame may go.
    end: usize,
    /// A window into the memory: a frame's bytes while it comes or goes.
    window: Spans,
    head: Box<[u8; MAX_HEAD]>,
}

impl FrameQueue {
    /// For some tens of milliseconds at the average rate.
    pub fn new(rate: &Rate) -> io::Result<FrameQueue> {
        let wanted = (rate.average / 8).saturating_mul(DEPTH_MS) / 1000;
        FrameQueue::of_bytes(wanted.clamp(LEAST_BYTES, MOST_BYTES).next_multiple_of(PAGE))
    }

    /// For so many bytes, whole pages.
    pub fn of_bytes(bytes: u64) -> io::Result<FrameQueue> {
        let fd = memfd("frames", bytes)?;
        let request = MapRequest { guest: 0, len: bytes, offset: 0, fd, writable: true };
        let memory = MemoryMap::default().map(request).map_err(io::Error::other)?;
        let most_frames = (bytes / BYTES_A_FRAME) as usize;
        Ok(FrameQueue {
            frames: VecDeque::with_capacity(most_frames),
            owners: Vec::with_capacity(USUAL_OWNERS),
            most_frames,
            bytes: bytes as usize,
            end: 0,
            window: Spans::new(memory, true),
            head: Box::new([0; MAX_HEAD]),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// How many frames wait.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// How many may wait at most.
    pub fn most_frames(&self) -> usize {
        self.most_frames
    }

    pub fn clear(&mut self) {
        self.frames.clear();
        self.owners.clear();
        self.end = 0;
    }

    /// Where `len` bytes in one piece are free.
    fn place(&self, len: usize) -> Option<usize> {
        let Some(first) = self.frames.front() else { return (len <= self.bytes).then_some(0) };
        if self.frames.len() >= self.most_frames {
            return None;
        }
        // Bytes in use reach from `first` to `end`, or to the end of memory and on from its beginning.
        if self.end > first.at {
            let behind = self.bytes - self.end >= len;
            return if behind { Some(self.end) } else { (len <= first.at).then_some(0) };
        }
        (first.at - self.end >= len).then_some(self.end)
    }

    /// Would a frame of so many bytes fit?
    pub fn fits(&self, len: usize) -> bool {
        self.place(len).is_some()
    }

    /// Bytes that a frame counts, so that many short ones fill the queue as well.
    fn counted(len: usize) -> usize {
        len.max(BYTES_A_FRAME as usize)
    }

    /// Bytes of all frames.
    pub fn used(&self) -> usize {
        self.owners.iter().map(|of| of.bytes).sum()
    }

    /// Has an owner not more than its part of a queue that is half full? Frames leave in the order in which
    /// they came, so what owners have in the queue is what they get of the port. An owner that is alone may
    /// have all.
    fn has_part(&self, claim: Claim, len: usize) -> bool {
        let own = self.owners.iter().find(|of| of.claim.owner == claim.owner).map_or(0, |of| of.bytes);
        let others = self.owners.iter().filter(|of| of.claim.owner != claim.owner);
        let others: usize = others.map(|of| usize::from(of.claim.shares)).sum();
        // At the end of the memory some room may be of no use.
        let (usable, shares) = (self.bytes / 4 * 3, usize::from(claim.shares));
        others == 0
            || self.used() < self.bytes / 2
            || (own + Self::counted(len)) * (others + shares) <= usable * shares
    }

    /// Copies a frame of an owner. False: there is no room for it.
    pub fn push(&mut self, frame: &RxFrame<'_>, capabilities: RxCapabilities, claim: Claim) -> bool {
        self.hold(frame, capabilities, claim, |window| {
            window.write(0, frame.head);
            copy_spans(window, frame.head.len(), frame.body, frame.body_at, frame.body_len);
        })
    }

    /// The same with number `bit` of its bits changed. Its checksum is that from before, and to be verified.
    pub fn push_corrupted(
        &mut self,
        frame: &RxFrame<'_>,
        capabilities: RxCapabilities,
        claim: Claim,
        bit: usize,
    ) -> bool {
        let complete = RxFrame { checksum: ChecksumStatus::Unknown, partial_checksum: None, ..*frame };
        self.hold(&complete, capabilities, claim, |window| {
            frame.write(window, false);
            let mut byte = [0];
            window.read(bit / 8, &mut byte);
            window.write(bit / 8, &byte.map(|byte| byte ^ 1 << (bit % 8)));
        })
    }

    fn hold(
        &mut self,
        frame: &RxFrame<'_>,
        capabilities: RxCapabilities,
        claim: Claim,
        copy: impl FnOnce(&Spans),
    ) -> bool {
        let (len, head) = (frame.len(), frame.head.len());
        if !self.has_part(claim, len) {
            return false;
        }
        let Some(at) = self.place(len).filter(|_| head <= MAX_HEAD) else { return false };
        // The memory is the queue's own, so it is mapped.
        if self.window.set(at as u64, len).is_err() {
            return false;
        }
        copy(&self.window);
        self.frames.push_back(Held {
            at,
            len,
            head,
            tag: frame.tag,
            layers: frame.layers,
            checksum: frame.checksum,
            aggregate: frame.aggregate,
            partial_checksum: frame.partial_checksum,
            capabilities,
            owner: claim.owner,
        });
        let bytes = Self::counted(len);
        match self.owners.iter_mut().find(|of| of.claim.owner == claim.owner) {
            Some(of) => (of.claim, of.bytes) = (claim, of.bytes + bytes),
            None => self.owners.push(OfOwner { claim, bytes }),
        }
        self.end = at + len;
        true
    }

    /// The frame that has waited longest, and what the port could receive when it came.
    pub fn front(&mut self) -> Option<(RxFrame<'_>, RxCapabilities)> {
        let held = self.frames.front()?;
        self.window.set(held.at as u64, held.len).ok()?;
        let head = self.head.get_mut(..held.head)?;
        self.window.read(0, head);
        let frame = RxFrame {
            head,
            body: &self.window,
            body_at: held.head,
            body_len: held.len - held.head,
            tag: held.tag,
            layers: held.layers,
            checksum: held.checksum,
            aggregate: held.aggregate,
            partial_checksum: held.partial_checksum,
        };
        Some((frame, held.capabilities))
    }

    /// It left the queue.
    pub fn pop(&mut self) {
        let Some(frame) = self.frames.pop_front() else { return };
        if let Some(at) = self.owners.iter().position(|of| of.claim.owner == frame.owner)
            && let Some(of) = self.owners.get_mut(at)
        {
            of.bytes = of.bytes.saturating_sub(Self::counted(frame.len));
            if of.bytes == 0 {
                self.owners.swap_remove(at);
            }
        }
        if self.frames.is_empty() {
            // Memory that was used before is warm.
            self.end = 0;
        }
    }
}
