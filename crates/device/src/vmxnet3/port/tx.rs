//! One transmit queue: packets are gathered from descriptors, lent, and completed in ring order.

use std::collections::VecDeque;

use vmlane_mem::{MemoryMap, Spans, Window};
use vmlane_port::{HEAD, Lent, MAX_FRAME, MAX_HEAD, Offload, PortStats, Reason};
use vmlane_wire::ethernet::Tci;
use vmlane_wire::vmxnet3::desc::{TxCompletion, TxDesc, error};

use super::counters;
use super::offload::{TxRules, spoken_of};
use super::ring::{CompletionRing, Place, TxCommands};
use crate::vmxnet3::setup::{QueueCounters, TxSetup};

/// Frames of one queue that may be lent at once.
const LOOK_AHEAD: usize = 256;
/// Descriptors of one packet. Most drivers use at most 32; the rest is generosity.
const MAX_DESCRIPTORS: usize = 256;
/// Packets that are left out in one look, at most.
const MAX_SKIPS: usize = 64;

/// A lent frame. The slot that was last in use is used next: its memory is warm.
#[derive(Debug)]
struct Slot {
    head: [u8; MAX_HEAD],
    head_len: usize,
    spans: Spans,
    offload: Offload,
    tag: Option<Tci>,
    /// Which packet of the queue it is, counted from the first ever.
    number: u64,
}

/// A packet that was taken from the ring and is not completed yet.
#[derive(Debug)]
struct Taken {
    /// Its last descriptor.
    end: u16,
    wants_completion: bool,
    done: bool,
}

/// Where a packet ends, and how long it is.
struct Extent {
    end: Place,
    wants_completion: bool,
    len: usize,
}

/// A descriptor that cannot be stopped the queue, with this error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped(pub u32);

/// One transmit queue.
#[derive(Debug)]
pub struct TxQueue {
    commands: TxCommands,
    completions: CompletionRing,
    memory: MemoryMap,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Packets in ring order, from the first that is not completed on.
    order: VecDeque<Taken>,
    /// Number of the first of `order`.
    first: u64,
    stopped: bool,
    pub vector: u8,
    pub descriptor: Window,
}

impl TxQueue {
    pub fn new(setup: TxSetup, memory: &MemoryMap) -> TxQueue {
        let packets = usize::from(setup.commands.size);
        TxQueue {
            commands: TxCommands::new(setup.commands),
            completions: CompletionRing::new(setup.completions),
            memory: memory.clone(),
            slots: Vec::with_capacity(LOOK_AHEAD),
            free: Vec::with_capacity(LOOK_AHEAD),
            order: VecDeque::with_capacity(packets),
            first: 0,
            stopped: false,
            vector: setup.vector,
            descriptor: setup.descriptor,
        }
    }

    /// Does a packet wait?
    #[inline]
    pub fn waits(&self) -> bool {
        !self.stopped && self.commands.is_posted(self.commands.head)
    }

    /// Lends the next packet: its slot. What makes no sense is counted and completed.
    #[inline]
    pub fn fetch(
        &mut self,
        rules: &TxRules,
        stats: &PortStats,
        counters: &QueueCounters,
    ) -> Result<Option<u16>, Stopped> {
        for _ in 0..MAX_SKIPS {
            if !self.waits() || self.order.len() == usize::from(self.commands.size()) {
                return Ok(None);
            }
            let Some(slot) = self.free_slot() else { return Ok(None) };
            let (extent, lent) = match gather(&self.commands, &mut self.slots[usize::from(slot)], rules) {
                Ok(gathered) => gathered,
                Err(stopped) => {
                    self.free.push(slot);
                    self.stopped = true;
                    stats.drop(Reason::BadDescriptor);
                    return Err(stopped);
                }
            };
            let Extent { end, wants_completion, .. } = extent;
            self.order.push_back(Taken { end: end.index, wants_completion, done: lent.is_err() });
            self.commands.head = self.commands.next(end);
            match lent {
                Ok(()) => {
                    let number = self.first + self.order.len() as u64 - 1;
                    let slot_ref = &mut self.slots[usize::from(slot)];
                    slot_ref.number = number;
                    counters::sent(counters, &slot_ref.head, extent.len, slot_ref.offload);
                    return Ok(Some(slot));
                }
                Err(reason) => {
                    self.free.push(slot);
                    stats.drop(reason);
                    counters::tx_error(counters);
                }
            }
        }
        Ok(None)
    }

    fn free_slot(&mut self) -> Option<u16> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = self.slots.len();
        if slot == LOOK_AHEAD {
            return None;
        }
        self.slots.push(Slot {
            head: [0; MAX_HEAD],
            head_len: 0,
            spans: Spans::new(self.memory.clone(), false),
            offload: Offload::None,
            tag: None,
            number: 0,
        });
        Some(slot as u16)
    }

    #[inline]
    pub fn lent(&self, slot: u16) -> Lent<'_> {
        let slot = &self.slots[usize::from(slot)];
        Lent { head: &slot.head[..slot.head_len], spans: &slot.spans, offload: slot.offload, tag: slot.tag }
    }

    #[inline]
    pub fn finish(&mut self, slot: u16) {
        let number = self.slots[usize::from(slot)].number;
        self.order[(number - self.first) as usize].done = true;
        self.free.push(slot);
    }

    /// Completes what can be completed in ring order. Returns how many completions were written.
    #[inline]
    pub fn flush(&mut self) -> u32 {
        let mut written = 0;
        while let Some(taken) = self.order.front().filter(|taken| taken.done) {
            if taken.wants_completion {
                let completion = TxCompletion { index: taken.end };
                self.completions.make_room();
                self.completions.push(|generation| completion.words(generation));
                written += 1;
            }
            self.order.pop_front();
            self.first += 1;
        }
        self.completions.publish();
        written
    }
}

/// Reads the packet at the ring's head, each descriptor once. The outer error: the ring makes no
/// sense. The inner one: the packet alone does not.
#[inline]
fn gather(
    commands: &TxCommands,
    slot: &mut Slot,
    rules: &TxRules,
) -> Result<(Extent, Result<(), Reason>), Stopped> {
    let mut place = commands.head;
    let mut first = None;
    let mut fine = Ok(());
    let mut len = 0usize;
    slot.spans.clear();
    slot.spans.prefetch(commands.look_ahead());
    for _ in 0..MAX_DESCRIPTORS {
        // The driver hands over the first descriptor last: all others must be there, or never come. A
        // chain as long as the ring meets its own first descriptor, of the wrong generation.
        let Some((addr, control)) = commands.load(place) else { return Err(Stopped(error::NO_END)) };
        let desc = TxDesc::from_words(addr, control);
        if desc.unknown_type() {
            return Err(Stopped(error::UNKNOWN_TYPE));
        }
        len = len.saturating_add(desc.len());
        if fine.is_ok() && len > MAX_FRAME {
            fine = Err(Reason::BadLength);
        } else if fine.is_ok() && slot.spans.push(desc.addr, desc.len()).is_err() {
            fine = Err(Reason::BadAddress);
        }
        let first = *first.get_or_insert(desc);
        if desc.end() {
            let extent = Extent { end: place, wants_completion: desc.wants_completion(), len };
            return Ok((extent, fine.and_then(|()| fill(slot, &first, len, rules))));
        }
        place = commands.next(place);
    }
    Err(Stopped(error::TOO_MANY_DESCRIPTORS))
}

/// Checks the offload and takes the private copy of the first bytes.
#[inline]
fn fill(slot: &mut Slot, first: &TxDesc, len: usize, rules: &TxRules) -> Result<(), Reason> {
    slot.offload = rules.check(first, len)?;
    slot.tag = first.tag();
    slot.head_len = len.min(HEAD.max(spoken_of(slot.offload)));
    slot.spans.read(0, &mut slot.head[..slot.head_len]);
    Ok(())
}
