//! A bad line: frames on their way to a port are lost, late, or overtaken by later ones.
//!
//! The order of what is held is the order in which it will be delivered. A frame that is to be overtaken
//! counts how many later frames may still be put in front of it. A held frame is a copy in memory of the
//! line's own, so its sender has its frame back at once; when the line is full, frames are refused as by a
//! guest without buffers, and wait in the switch.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use vmlane_mem::{MapRequest, MemoryMap, Spans, copy_spans, memfd};
use vmlane_port::{
    Aggregate, ChecksumStatus, DropReason, FramePort, Layers, MAX_FRAME, MAX_HEAD, PartialChecksum,
    PortStats, RxCapabilities, RxFrame,
};
use vmlane_wire::ethernet::Tci;

/// Frames that a line holds, at most.
pub const MAX_HELD: usize = 64;
/// The most later frames that overtake one.
pub const FURTHEST: u32 = 8;
/// How long a frame waits to be overtaken by frames that may never come.
const TIMEOUT: Duration = Duration::from_millis(1);
/// Bytes of memory for a held frame.
const SLOT: usize = MAX_FRAME.next_multiple_of(4096);

/// What happens to frames on their way to a port. The default: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Of 1000 frames, how many are lost.
    pub loss: u16,
    /// Of 1000 frames, how many are overtaken by up to [`FURTHEST`] later ones.
    pub reorder: u16,
    /// How long every frame takes.
    pub delay: Duration,
    /// Frames with more bytes are lost, as by a card whose segmentation offload is broken; 0: none.
    pub longest: u32,
    /// The same frames with the same seed are lost and overtaken again.
    pub seed: u64,
}

impl Impairment {
    /// Does nothing happen?
    pub fn is_none(&self) -> bool {
        self.loss == 0 && self.reorder == 0 && self.delay.is_zero() && self.longest == 0
    }
}

/// What was decided about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Lost,
    /// This many later ones overtake it.
    Delivered {
        behind: u32,
    },
}

/// Numbers that depend on the seed only: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
/// number generators", 2014).
struct Dice(u64);

impl Dice {
    fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    fn one_of_1000(&mut self, hits: u16) -> bool {
        self.throw() % 1000 < u64::from(hits)
    }
}

/// Room for the bytes of a frame.
struct Place {
    at: u64,
    bytes: Spans,
}

/// A frame that was taken and is not delivered yet.
struct Held {
    head: [u8; MAX_HEAD],
    head_len: usize,
    body: Place,
    tag: Option<Tci>,
    layers: Layers,
    checksum: ChecksumStatus,
    aggregate: Option<Aggregate>,
    partial_checksum: Option<PartialChecksum>,
    /// What the port could receive when the switch made the frame.
    capabilities: RxCapabilities,
    due: Instant,
    /// Later frames that may still overtake it.
    behind: u32,
}

impl Held {
    fn frame(&self) -> RxFrame<'_> {
        RxFrame {
            head: self.head.get(..self.head_len).unwrap_or_default(),
            body: &self.body.bytes,
            body_at: 0,
            body_len: self.body.bytes.len(),
            tag: self.tag,
            layers: self.layers,
            checksum: self.checksum,
            aggregate: self.aggregate,
            partial_checksum: self.partial_checksum,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let due = if self.behind == 0 { self.due } else { self.due + TIMEOUT };
        now >= due
    }
}

/// The line to one port.
pub(crate) struct Line {
    impairment: Impairment,
    dice: Dice,
    /// The next to be delivered first; those that may still be overtaken last.
    held: VecDeque<Held>,
    free: Vec<Place>,
    /// About a frame that was refused for now: it is offered again.
    verdict: Option<Verdict>,
}

impl Line {
    /// Makes a memory file for what it holds.
    pub fn new(impairment: Impairment) -> io::Result<Line> {
        let len = (MAX_HELD * SLOT) as u64;
        let fd = memfd("line", len)?;
        let request = MapRequest { guest: 0, len, offset: 0, fd, writable: true };
        let memory = MemoryMap::default().map(request).map_err(io::Error::other)?;
        let place = |at| Place { at, bytes: Spans::new(memory.clone(), true) };
        let free = (0..len).step_by(SLOT).map(place).collect();
        let (dice, held) = (Dice(impairment.seed), VecDeque::with_capacity(MAX_HELD));
        Ok(Line { impairment, dice, held, free, verdict: None })
    }

    /// Takes or refuses a frame of the switch. [`DropReason::NoBuffers`]: it is to be offered again. One that
    /// is lost was taken, as a sender sees it.
    pub fn offer(
        &mut self,
        port: &mut dyn FramePort,
        frame: &RxFrame<'_>,
        now: Instant,
        stats: &PortStats,
    ) -> Result<(), DropReason> {
        let verdict = self.verdict.take().unwrap_or_else(|| self.judge(frame.head.len() + frame.body_len));
        let Verdict::Delivered { behind } = verdict else {
            stats.drop(DropReason::Impaired);
            return Ok(());
        };
        let place = self.place();
        // With nothing in front of it, it needs no copy.
        let passes = place == 0 && behind == 0 && self.impairment.delay.is_zero();
        let outcome = if passes {
            port.deliver(std::slice::from_ref(frame)).map_err(|refused| refused.reason)
        } else {
            self.hold(place, frame, behind, (now, port.capabilities()))
        };
        match outcome {
            Ok(()) => self.overtake(if passes { 0 } else { place + 1 }),
            Err(DropReason::NoBuffers) => self.verdict = Some(verdict),
            Err(_) => {}
        }
        outcome
    }

    fn judge(&mut self, bytes: usize) -> Verdict {
        let (lost, late) = (self.impairment.loss, self.impairment.reorder);
        // Always as many throws, so that what happens to a frame does not depend on what happened to others.
        let (lost, late) = (self.dice.one_of_1000(lost), self.dice.one_of_1000(late));
        let behind = 1 + (self.dice.throw() % u64::from(FURTHEST)) as u32;
        let too_long = self.impairment.longest > 0 && bytes > self.impairment.longest as usize;
        if lost || too_long {
            Verdict::Lost
        } else {
            Verdict::Delivered { behind: if late { behind } else { 0 } }
        }
    }

    /// Where a frame that comes now goes: in front of those at the end that may be overtaken.
    fn place(&self) -> usize {
        self.held.iter().rposition(|held| held.behind == 0).map_or(0, |last| last + 1)
    }

    /// A frame went in front of those from `first` on. One that may be overtaken no more holds up none: those
    /// in front of it go on as well.
    fn overtake(&mut self, first: usize) {
        self.held.iter_mut().skip(first).for_each(|held| held.behind = held.behind.saturating_sub(1));
        let place = self.place();
        self.held.iter_mut().take(place).for_each(|held| held.behind = 0);
    }

    /// Copies a frame, if there is a place for it.
    fn hold(
        &mut self,
        place: usize,
        frame: &RxFrame<'_>,
        behind: u32,
        (now, capabilities): (Instant, RxCapabilities),
    ) -> Result<(), DropReason> {
        let mut head = [0; MAX_HEAD];
        let head_len = frame.head.len();
        let start = head.get_mut(..head_len).ok_or(DropReason::TooLong)?;
        start.copy_from_slice(frame.head);
        if frame.body_len > SLOT {
            return Err(DropReason::TooLong);
        }
        let mut body = self.free.pop().ok_or(DropReason::NoBuffers)?;
        // The memory is ours, so it is mapped.
        if body.bytes.set(body.at, frame.body_len).is_err() {
            return Err(DropReason::BadReceiver);
        }
        copy_spans(&body.bytes, 0, frame.body, frame.body_at, frame.body_len);
        let held = Held {
            head,
            head_len,
            body,
            tag: frame.tag,
            layers: frame.layers,
            checksum: frame.checksum,
            aggregate: frame.aggregate,
            partial_checksum: frame.partial_checksum,
            capabilities,
            due: now + self.impairment.delay,
            behind,
        };
        self.held.insert(place, held);
        Ok(())
    }

    /// Delivers what is due. True if a frame left the line.
    pub fn release(&mut self, port: &mut dyn FramePort, now: Instant, stats: &PortStats) -> bool {
        self.release_while(port, stats, |held| held.is_due(now))
    }

    /// The line ends: what it holds is delivered as far as there is room for it, and the rest is lost.
    pub fn end(mut self, port: &mut dyn FramePort, stats: &PortStats) {
        self.release_while(port, stats, |_| true);
        self.held.iter().for_each(|_| stats.drop(DropReason::Impaired));
    }

    fn release_while(
        &mut self,
        port: &mut dyn FramePort,
        stats: &PortStats,
        is_due: impl Fn(&Held) -> bool,
    ) -> bool {
        let mut any = false;
        while let Some(held) = self.held.front().filter(|held| is_due(held)) {
            // A guest that takes other frames now than when the switch made this one.
            let fits = held.capabilities == port.capabilities();
            let outcome = if fits {
                port.deliver(&[held.frame()]).map_err(|refused| refused.reason)
            } else {
                Err(DropReason::Impaired)
            };
            match outcome {
                Err(DropReason::NoBuffers) => break,
                Err(reason) => stats.drop(reason),
                Ok(()) => {}
            }
            any = true;
            self.free.extend(self.held.pop_front().map(|held| held.body));
        }
        any
    }

    /// Could a frame be taken?
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Is anything to be delivered later?
    pub fn holds_frames(&self) -> bool {
        !self.held.is_empty()
    }
}
