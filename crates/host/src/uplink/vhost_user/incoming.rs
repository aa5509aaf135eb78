//! Frames from the peer: in flight where the peer wrote them, in as many buffers as it merged for each.

use vmlane_mem::{MemoryMap, Spans, lines_ahead};
use vmlane_port::{DropReason, FrameInFlight, MAX_FRAME, Overhead, PortStats, TxFrame, VnetHeader};
use vmlane_wire::ethernet;
use vmlane_wire::virtio::net_feature::{GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, GUEST_USO4};

use super::HEADER;
use super::memory::{BUFFER, Buffers, RING};
use super::ring::{Broken, Ring, Used};

/// Frames that may be in flight at once: at least as many buffers stay with the peer, unless frames take
/// several.
pub const LOOKAHEAD: usize = RING as usize / 2;
/// Frames that are left out in one poll, at most.
const MAX_SKIPS: usize = 64;
/// Buffers of the longest frame.
const MOST_BUFFERS: usize = (HEADER + MAX_FRAME).div_ceil(BUFFER);
/// How many buffers ahead are fetched. The peer has just written them on another CPU.
const NEAR: u16 = 8;

/// A frame in flight.
struct Slot {
    frame: FrameInFlight,
    buffers: Vec<u16>,
}

/// The ring that the peer sends by.
pub struct Incoming {
    pub ring: Ring,
    buffers: Buffers,
    /// As negotiated.
    features: u64,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Buffers read in vain.
    pub overhead: Overhead,
}

/// What a poll of the ring found.
enum Gathered {
    Nothing,
    Frame,
    /// A frame that is left out.
    Invalid(DropReason),
}

impl Incoming {
    /// A ring all of whose buffers are the peer's.
    pub fn new(mut ring: Ring, buffers: Buffers, map: &MemoryMap, features: u64) -> Incoming {
        (0..RING).for_each(|id| ring.post(id, BUFFER as u32, true));
        let slot = |_| Slot {
            frame: FrameInFlight::new(Spans::new(map.clone(), false)),
            buffers: Vec::with_capacity(MOST_BUFFERS),
        };
        Incoming {
            ring,
            buffers,
            features,
            slots: (0..LOOKAHEAD).map(slot).collect(),
            free: (0..LOOKAHEAD as u32).rev().collect(),
            overhead: Overhead::default(),
        }
    }

    /// Puts the next frame in flight: its slot. One that is not valid is counted and left out.
    #[inline]
    pub fn fetch(&mut self, stats: &PortStats) -> Result<Option<u32>, Broken> {
        for _ in 0..MAX_SKIPS {
            let Some(&number) = self.free.last() else { return Ok(None) };
            match self.gather(number)? {
                Gathered::Nothing => return Ok(None),
                Gathered::Frame => {
                    self.free.pop();
                    return Ok(Some(number));
                }
                Gathered::Invalid(reason) => {
                    stats.drop(reason);
                    let buffers = self.give_back(number);
                    self.overhead.add(1 + buffers);
                }
            }
        }
        Ok(None)
    }

    /// Takes the buffers of the next frame into a slot, and checks what the peer reports of it.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "the free list holds only numbers of slots")]
    fn gather(&mut self, number: u32) -> Result<Gathered, Broken> {
        if !self.ring.poll_used(1)? {
            return Ok(Gathered::Nothing);
        }
        let Incoming { ring, buffers, features, slots, .. } = self;
        ring.lookahead(NEAR, |id, len| buffers.prefetch(id, lines_ahead(0, len)));
        let first = ring.peek()?;
        checked(first, HEADER)?;
        let [low, high] = buffers.first_words(first.id);
        // Some back ends leave it 0 where a frame takes one.
        let count = ((high >> 16) as u16).max(1);
        if count > ring.with_peer() {
            return Err(Broken::Buffers(count));
        }
        if !ring.poll_used(count)? {
            return Ok(Gathered::Nothing);
        }
        let slot = &mut slots[number as usize];
        slot.frame.spans.clear();
        slot.buffers.clear();
        let mut next = first;
        for at in 0..count {
            let before = if at == 0 { HEADER } else { 0 };
            if at > 0 {
                next = checked(ring.peek()?, 1)?;
            }
            ring.take(next);
            slot.buffers.push(next.id);
            let (addr, len) = (buffers.address(next.id) + before as u64, next.len as usize - before);
            // All of it is memory of this port's own.
            if len > 0 && slot.frame.spans.push(addr, len).is_err() {
                return Err(Broken::Fault);
            }
        }
        let header = VnetHeader::from_words(low, high as u16);
        Ok(fill(&mut slot.frame, header, *features).err().map_or(Gathered::Frame, Gathered::Invalid))
    }

    /// The frame of a slot.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "`fetch` returned the slot")]
    pub fn frame(&self, number: u32) -> TxFrame<'_> {
        self.slots[number as usize].frame.frame()
    }

    /// The frame is done with: its buffers are available again with the next publication.
    #[inline]
    pub fn finish(&mut self, number: u32) {
        self.give_back(number);
        self.free.push(number);
    }

    /// Returns how many buffers it were.
    #[inline]
    fn give_back(&mut self, number: u32) -> usize {
        let Some(slot) = self.slots.get_mut(number as usize) else { return 0 };
        slot.buffers.iter().for_each(|&id| self.ring.post(id, BUFFER as u32, true));
        let count = slot.buffers.len();
        slot.buffers.clear();
        count
    }
}

/// A buffer with at least `least` bytes, and no more than it holds.
#[inline]
fn checked(used: Used, least: usize) -> Result<Used, Broken> {
    let fits = (least..=BUFFER).contains(&(used.len as usize));
    if fits { Ok(used) } else { Err(Broken::Length(used.len)) }
}

/// Takes the private copy of the first bytes, and checks the offload.
#[inline]
fn fill(frame: &mut FrameInFlight, header: VnetHeader, features: u64) -> Result<(), DropReason> {
    let len = frame.spans.len();
    if !(ethernet::HEADER..=MAX_FRAME).contains(&len) {
        return Err(DropReason::BadLength);
    }
    let has = |feature| features & feature != 0;
    frame.keep_offload(&header, has(GUEST_CSUM), [GUEST_TSO4, GUEST_TSO6, GUEST_USO4].map(has))
}
