//! One transmit queue: frames are gathered from descriptors, the offload that their first one asks for is
//! checked, and they are completed in ring order.

use vmlane_mem::{MemoryMap, Spans, Window};
use vmlane_port::{
    DropReason, FrameInFlight, FramesInFlight, MAX_FRAME, MAX_HEAD, Offload, Overhead, PortStats, Sign,
    TxFrame,
};
use vmlane_wire::ethernet::{HEADER, TAG};
use vmlane_wire::vmxnet3::desc::{OffloadMode, TxCompletion, TxDesc, error};

use super::checkpoint;
use super::counters;
use super::moderation::LineId;
use super::place::Place;
use super::ring::{CompletionRing, TxCommands};
use crate::vmxnet3::setup::{QueueCounters, TxSetup};

/// Frames of one queue that may be in flight at once.
const LOOKAHEAD: usize = 256;
/// Descriptors of one frame. Most drivers use at most 32; the rest is generosity.
const MAX_DESCRIPTORS: usize = 256;
/// Frames that are left out in one poll, at most; less if they are of many descriptors.
const MAX_SKIPS: usize = 64;
/// Ethernet, IPv4 and TCP without options.
const MIN_SEGMENT_HEADER: usize = HEADER + 20 + 20;
/// The farthest offset of a checksum field that a driver may name.
const MAX_FIELD: usize = 1024;
/// Segments of one super-frame. TCP's smallest segments (48 bytes) need fewer.
const MAX_SEGMENTS: usize = 2048;

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

/// What a revision and an MTU allow.
#[derive(Clone, Copy, Debug)]
pub struct TxRules {
    /// Bytes of the longest frame that is not segmented, two in-band tags included.
    pub frame: usize,
    /// Mode 1 means encapsulation (revisions 4 to 6).
    pub encapsulated: bool,
    /// `ext1` means encapsulation (revision 7).
    pub inner: bool,
}

impl TxRules {
    pub fn new(revision: u8, mtu: u16) -> TxRules {
        let frame = usize::from(mtu) + HEADER + 2 * TAG;
        TxRules { frame, encapsulated: (4..=6).contains(&revision), inner: revision >= 7 }
    }

    /// The offload that `first` asks for, of a frame of `len` bytes, or why it cannot be.
    #[inline]
    pub fn check(&self, first: &TxDesc, len: usize) -> Result<Offload, DropReason> {
        let inner = self.inner && first.inner();
        match first.mode() {
            OffloadMode::None => self.limit(len, self.frame).map(|()| Offload::None),
            OffloadMode::Checksum if inner => self.tunnel(first, 0, len),
            OffloadMode::Segment if inner => self.tunnel(first, self.mss(first)?, len),
            OffloadMode::Encapsulated if self.encapsulated => self.tunnel(first, first.mss_or_field(), len),
            OffloadMode::Encapsulated => Err(DropReason::BadOffload),
            OffloadMode::Checksum => self.checksum(first, len),
            OffloadMode::Segment => {
                let (header, mss) = (first.header(), self.mss(first)?);
                self.segments(header, mss, MIN_SEGMENT_HEADER, len)?;
                Ok(Offload::Segment { header, mss })
            }
        }
    }

    #[inline]
    fn limit(&self, len: usize, most: usize) -> Result<(), DropReason> {
        if (HEADER..=most).contains(&len) { Ok(()) } else { Err(DropReason::BadLength) }
    }

    fn mss(&self, first: &TxDesc) -> Result<u16, DropReason> {
        Some(first.mss_or_field()).filter(|&mss| mss > 0).ok_or(DropReason::BadOffload)
    }

    fn checksum(&self, first: &TxDesc, len: usize) -> Result<Offload, DropReason> {
        self.limit(len, self.frame)?;
        let (start, field) = (first.header(), first.mss_or_field());
        let (from, at) = (usize::from(start), usize::from(field));
        let fits = (HEADER..=at).contains(&from) && at <= MAX_FIELD && at + 2 <= len && at + 2 <= MAX_HEAD;
        if fits { Ok(Offload::Checksum { start, field }) } else { Err(DropReason::BadOffload) }
    }

    fn tunnel(&self, first: &TxDesc, mss: u16, len: usize) -> Result<Offload, DropReason> {
        let header = first.header();
        if mss > 0 {
            self.segments(header, mss, MIN_SEGMENT_HEADER, len)?;
        } else {
            self.limit(len, self.frame)?;
            // A packet may be all headers: a SYN, an acknowledgement.
            self.header(header, HEADER + 1, len + 1)?;
        }
        Ok(Offload::Tunnel { header, mss, outer_sum: first.outer_sum() })
    }

    fn segments(&self, header: u16, mss: u16, least: usize, len: usize) -> Result<(), DropReason> {
        self.limit(len, MAX_FRAME)?;
        self.header(header, least, len)?;
        let segments = (len - usize::from(header)).div_ceil(usize::from(mss));
        if segments <= MAX_SEGMENTS { Ok(()) } else { Err(DropReason::BadOffload) }
    }

    /// Headers end before byte `len`.
    fn header(&self, header: u16, least: usize, len: usize) -> Result<(), DropReason> {
        let header = usize::from(header);
        let fits = header >= least && header <= MAX_HEAD && header < len;
        if fits { Ok(()) } else { Err(DropReason::BadOffload) }
    }
}

/// Frames in ring order, from the first that is not completed on: finished in any order, completed in theirs.
/// As many as a ring has descriptors, at most. Frames are numbered from the first ever.
#[derive(Debug)]
struct Order {
    /// A power of two of them; frame n is at n modulo their number.
    taken: Box<[Taken]>,
    most: u64,
    first: u64,
    next: u64,
}

impl Order {
    fn new(ring: u16) -> Order {
        let taken = vec![Taken::default(); usize::from(ring).next_power_of_two()].into_boxed_slice();
        Order { taken, most: ring.into(), first: 0, next: 0 }
    }

    /// Packets that it holds at most.
    fn most(&self) -> usize {
        self.most as usize
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.next - self.first >= self.most
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "masked by the length, a power of two")]
    fn at(&mut self, number: u64) -> &mut Taken {
        let mask = self.taken.len() - 1;
        &mut self.taken[number as usize & mask]
    }

    /// Adds a frame whose last descriptor is `end`; its number. There is room.
    #[inline]
    fn push(&mut self, end: u16, wants_completion: bool) -> u64 {
        let number = self.next;
        let wants = if wants_completion { Taken::WANTS_COMPLETION } else { 0 };
        *self.at(number) = Taken(u32::from(end) | wants);
        self.next += 1;
        number
    }

    #[inline]
    fn finish(&mut self, number: u64) {
        self.at(number).0 |= Taken::FINISHED;
    }

    /// Takes the first frame, if it is finished: its last descriptor, and whether a completion is
    /// wanted.
    #[inline]
    fn pop_finished(&mut self) -> Option<(u16, bool)> {
        if self.first == self.next {
            return None;
        }
        let Taken(word) = *self.at(self.first);
        if word & Taken::FINISHED == 0 {
            return None;
        }
        self.first += 1;
        Some((word as u16, word & Taken::WANTS_COMPLETION != 0))
    }
}

/// A frame that was taken from the ring: its last descriptor, and two flags. One word, since a load of what
/// was stored in parts just before waits for all stores before them, those to guests' memory too.
#[derive(Clone, Copy, Debug, Default)]
struct Taken(u32);

impl Taken {
    const WANTS_COMPLETION: u32 = 1 << 16;
    const FINISHED: u32 = 1 << 17;
}

#[cfg(test)]
mod tests;
