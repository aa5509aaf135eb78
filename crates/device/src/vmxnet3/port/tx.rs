//! One transmit queue: frames are gathered from descriptors, described, and completed in ring order.

use vmlane_mem::{MemoryMap, Spans, Window};
use vmlane_port::{DropReason, FrameInFlight, FramesInFlight, MAX_FRAME, Overhead, PortStats, Sign, TxFrame};
use vmlane_wire::vmxnet3::desc::{TxCompletion, TxDesc, error};

use super::checkpoint;
use super::counters;
use super::moderation::LineId;
use super::offload::TxRules;
use super::order::Order;
use super::place::Place;
use super::ring::{CompletionRing, TxCommands};
use crate::vmxnet3::setup::{QueueCounters, TxSetup};

/// Frames of one queue that may be in flight at once.
const LOOKAHEAD: usize = 256;
/// Descriptors of one frame. Most drivers use at most 32; the rest is generosity.
const MAX_DESCRIPTORS: usize = 256;
/// Frames that are left out in one poll, at most; less if they are of many descriptors.
const MAX_SKIPS: usize = 64;

/// Where a frame ends, and how long it is.
struct Extent {
    end: Place,
    wants_completion: bool,
    len: usize,
    descriptors: usize,
}

/// A descriptor that cannot be stopped the queue, with this error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped(pub u32);

/// One transmit queue.
#[derive(Debug)]
pub struct TxQueue {
    commands: TxCommands,
    completions: CompletionRing,
    /// Each with which frame of the queue it is, counted from the first ever.
    in_flight: FramesInFlight<u64>,
    order: Order,
    /// Behind the last frame that is completed: the next daemon begins here.
    done: Place,
    stopped: bool,
    /// Descriptors read in vain.
    overhead: Overhead,
    /// Of its completions.
    pub line: LineId,
    pub descriptor: Window,
}

impl TxQueue {
    pub fn new(setup: TxSetup, line: LineId, memory: &MemoryMap, overhead: Overhead) -> TxQueue {
        let order = Order::new(setup.commands.size);
        TxQueue {
            commands: TxCommands::new(setup.commands),
            completions: CompletionRing::new(setup.completions),
            in_flight: FramesInFlight::new(memory.clone(), false, LOOKAHEAD),
            order,
            done: Place::default(),
            stopped: false,
            overhead,
            line,
            descriptor: setup.descriptor,
        }
    }

    /// Frames that may be in flight at once.
    pub fn lookahead(&self) -> usize {
        self.order.most().min(LOOKAHEAD)
    }

    /// Does a frame wait?
    #[inline]
    pub fn waits(&self) -> bool {
        !self.stopped && self.commands.is_posted(self.commands.head)
    }

    /// What shows that one does. None: none will.
    pub fn sign(&self) -> Option<Sign> {
        (!self.stopped).then(|| self.commands.sign(self.commands.head))
    }

    /// Lends the next frame: its slot. An invalid frame is counted and completed.
    #[inline]
    pub fn fetch(
        &mut self,
        rules: &TxRules,
        stats: &PortStats,
        counters: &QueueCounters,
    ) -> Result<Option<u16>, Stopped> {
        let mut read = 0;
        for _ in 0..MAX_SKIPS {
            if read > MAX_DESCRIPTORS {
                break;
            }
            let head = self.commands.head;
            let Some((addr, control)) = self.commands.load(head).filter(|_| !self.stopped) else { break };
            if self.order.is_full() {
                break;
            }
            let Some(slot) = self.in_flight.take() else { break };
            let Some((frame, number)) = self.in_flight.get_mut(slot) else { break };
            frame.spans.clear();
            frame.spans.prefetch(self.commands.lookahead(), 1);
            let first = TxDesc::from_words(addr, control);
            let mut in_flight = Ok(());
            let extent = match gather(&self.commands, first, &mut frame.spans, &mut in_flight) {
                Ok(extent) => extent,
                Err(stopped) => {
                    self.stopped = true;
                    self.in_flight.give_back(slot);
                    stats.drop(DropReason::BadDescriptor);
                    return Err(stopped);
                }
            };
            let Extent { end, wants_completion, len, descriptors } = extent;
            read += descriptors;
            self.commands.head = self.commands.next(end);
            *number = self.order.push(end.index, wants_completion);
            match in_flight.and_then(|()| fill(frame, &first, len, rules)) {
                Ok(()) => {
                    self.overhead.add(descriptors.saturating_sub(1 + frame.spans.pieces()));
                    counters::sent(counters, frame.frame().head, len, frame.offload);
                    return Ok(Some(slot));
                }
                Err(reason) => {
                    self.overhead.add(descriptors);
                    stats.drop(reason);
                    counters::tx_error(counters);
                    self.finish(slot);
                }
            }
        }
        Ok(None)
    }

    #[inline]
    pub fn frame(&self, slot: u16) -> TxFrame<'_> {
        self.in_flight.frame(slot)
    }

    #[inline]
    pub fn finish(&mut self, slot: u16) {
        if let Some((_, number)) = self.in_flight.get_mut(slot) {
            self.order.finish(*number);
            self.in_flight.give_back(slot);
        }
    }

    /// Stores where the next daemon begins.
    #[inline]
    pub fn store(&self, window: &Window, number: usize) {
        checkpoint::store(window, number, [self.done, self.completions.head()]);
    }

    /// Resumes where the previous daemon stopped; frames that it had taken and not completed are taken again.
    pub fn restore(&mut self, window: &Window, number: usize) -> Option<()> {
        let size = self.commands.size();
        let [mut done, head] = checkpoint::load(window, number, [size, self.completions.size()])?;
        self.completions.restore(head, |low, _| {
            let index = low as u16 & 0xfff;
            if index < size {
                done = done.behind(index, size);
            }
        });
        (self.done, self.commands.head) = (done, done);
        Some(())
    }

    /// Completes what can be completed in ring order. Returns how many completions were written.
    #[inline]
    pub fn flush(&mut self) -> u32 {
        let mut written = 0;
        while let Some((index, wants_completion)) = self.order.pop_finished() {
            self.done = self.done.behind(index, self.commands.size());
            if wants_completion {
                self.completions.make_room(1);
                self.completions.push(|generation| TxCompletion { index }.words(generation));
                written += 1;
            }
        }
        self.completions.publish();
        written
    }
}

/// Reads the frame that starts with `first` at the ring's head, each descriptor once, its bytes into
/// `spans`. `fine` becomes an error where only the frame is invalid; the error returned: the ring
/// does not.
#[inline]
fn gather(
    commands: &TxCommands,
    first: TxDesc,
    spans: &mut Spans,
    fine: &mut Result<(), DropReason>,
) -> Result<Extent, Stopped> {
    let (mut desc, mut end, mut len) = (first, commands.head, 0usize);
    for descriptors in 1..=MAX_DESCRIPTORS {
        if desc.unknown_type() {
            return Err(Stopped(error::UNKNOWN_TYPE));
        }
        len = len.saturating_add(desc.len());
        if fine.is_ok() && len > MAX_FRAME {
            *fine = Err(DropReason::BadLength);
        } else if fine.is_ok() && spans.push(desc.addr, desc.len()).is_err() {
            *fine = Err(DropReason::BadAddress);
        }
        if desc.end() {
            return Ok(Extent { end, wants_completion: desc.wants_completion(), len, descriptors });
        }
        end = commands.next(end);
        // The driver passes the first descriptor last: all others must be there, or never come. A
        // chain as long as the ring meets its own first descriptor, of the wrong generation.
        let Some((addr, control)) = commands.load(end) else { return Err(Stopped(error::NO_END)) };
        desc = TxDesc::from_words(addr, control);
    }
    Err(Stopped(error::TOO_MANY_DESCRIPTORS))
}

/// Checks the offload, and takes the private copy of the first bytes.
#[inline]
fn fill(frame: &mut FrameInFlight, first: &TxDesc, len: usize, rules: &TxRules) -> Result<(), DropReason> {
    frame.offload = rules.check(first, len)?;
    frame.tag = first.tag();
    frame.keep_head(frame.offload.spoken_of());
    Ok(())
}
