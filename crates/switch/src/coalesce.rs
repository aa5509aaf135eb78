//! Software LRO: TCP segments of one flow that come in one burst are merged to a super-frame, for a receiver
//! that takes those whole.
//!
//! What may be merged follows GRO of Linux: segments in order, of one length but for the last, their headers
//! equal except for what counts up; PSH, FIN or a shorter segment ends a super-frame. Cutting a super-frame
//! at its MSS gives its segments back, byte for byte; only IPv4 identifications that all were equal (they
//! mean nothing, RFC 6864) come back counted up.
//!
//! A flow is open at most until the end of the burst. Payload stays in its sender's memory; here are the
//! headers, and where the payload lies.

mod flow;
mod history;
mod mask;

use arrayvec::ArrayVec;
use vmlane_mem::{MemoryMap, Spans};
use vmlane_port::{BURST, FramePort, Network, Token, Transport};
use vmlane_wire::ethernet::Tci;

use crate::Slot;
use crate::flight::{Fetched, Flight};
use crate::ingress::Checked;
use history::Outcome;

pub use flow::{Flow, Segment};
pub use history::MergeHistory;

/// Flows that may be open at once.
const FLOWS: usize = 8;

/// What a frame is to the flows that are open.
pub enum Join {
    /// Its flow has it.
    Held,
    /// The same, and the flow at this place is complete.
    Complete(usize),
    /// The flow at this place has to be closed before the frame may pass.
    Breaks(usize),
    Nothing,
}

/// The flows that are open in this burst, and memory for others.
#[derive(Debug)]
pub struct Coalescer {
    /// Oldest first.
    open: ArrayVec<Box<Flow>, FLOWS>,
    free: ArrayVec<Box<Flow>, FLOWS>,
    /// Of no memory.
    nothing: Spans,
    /// Bytes read for checksums since this was last asked.
    read: usize,
    /// Frames that wait for their receiver's buffers since their flow was closed: the burst is not done with
    /// them.
    waiting: ArrayVec<Token, BURST>,
    outcome: Outcome,
}

impl Coalescer {
    pub fn new() -> Coalescer {
        Coalescer {
            open: ArrayVec::new(),
            free: (0..FLOWS).map(|_| Box::new(Flow::new())).collect(),
            nothing: Spans::new(MemoryMap::default(), false),
            read: 0,
            waiting: ArrayVec::new(),
            outcome: Outcome::default(),
        }
    }

    /// What became of the flows since the last call; None: there were none.
    #[inline]
    pub fn take_outcome(&mut self) -> Option<Outcome> {
        let Outcome { merged, alone } = self.outcome;
        (merged > 0 || alone > 0).then(|| std::mem::take(&mut self.outcome))
    }

    /// Is a flow open?
    #[inline]
    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Has a flow to be closed before another one opens?
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Bytes read for checksums since the last call.
    #[inline]
    pub fn take_read(&mut self) -> usize {
        std::mem::take(&mut self.read)
    }

    /// A frame of a flow that was closed waits for its receiver's buffers: as many as a burst has.
    pub fn keep(&mut self, token: Token) {
        let _ = self.waiting.try_push(token);
    }

    /// The frames that wait since the last call.
    #[inline]
    pub fn take_waiting(&mut self) -> ArrayVec<Token, BURST> {
        if self.waiting.is_empty() { ArrayVec::new() } else { std::mem::take(&mut self.waiting) }
    }

    /// Has the flow of a frame hold it. `segment`: what it is, if it may be merged.
    pub fn join(
        &mut self,
        flight: &Flight<'_>,
        segment: Option<&Segment>,
        (receiver, tag): (Slot, Option<Tci>),
    ) -> Join {
        let sent = &flight.sent;
        match sent.layers.transport {
            Transport::Tcp => {
                let at = self.open.iter().position(|flow| flow.receiver == receiver && flow.is_of(sent));
                let Some(at) = at else { return Join::Nothing };
                let flow = self.open.get_mut(at).filter(|flow| flow.tag == tag);
                let Some((flow, segment)) = flow.zip(segment) else { return Join::Breaks(at) };
                if !flow.try_add(sent, segment, (flight.end, flight.token), &mut self.read) {
                    return Join::Breaks(at);
                }
                flow.way.epoch = flight.epoch;
                if flow.is_complete() { Join::Complete(at) } else { Join::Held }
            }
            // It may be a part of anything.
            Transport::Other if sent.layers.network != Network::Other => {
                let at = self.open.iter().position(|flow| flow.receiver == receiver);
                at.map_or(Join::Nothing, Join::Breaks)
            }
            Transport::Udp | Transport::Other => Join::Nothing,
        }
    }

    /// Holds a segment until the next one comes. `longest`: bytes that the super-frame may have.
    pub fn open(
        &mut self,
        flight: &Flight<'_>,
        segment: &Segment,
        to: (Slot, Option<Tci>),
        longest: usize,
    ) -> bool {
        let Some(mut flow) = self.free.pop() else { return false };
        flow.begin(&flight.sent, segment, flight.token, to, longest);
        flow.expect(flight.epoch);
        self.open.push(flow);
        true
    }

    /// Has a flow hold a frame that is its next segment and takes the same way, by tables of this `epoch`.
    /// It then goes through no other stage: what those do depends on the tables and on bytes that are equal.
    #[inline]
    pub fn follow(&mut self, fetched: &Fetched<'_, '_>, epoch: u64) -> Join {
        let Some(at) = self.open.iter().position(|flow| flow.is_next(fetched.tx.head)) else {
            return Join::Nothing;
        };
        let Some(flow) = self.open.get_mut(at).filter(|flow| flow.way.epoch == Some(epoch)) else {
            return Join::Nothing;
        };
        if !flow.follow(fetched, &mut self.read) {
            return Join::Nothing;
        }
        if flow.is_complete() { Join::Complete(at) } else { Join::Held }
    }

    /// Closes a flow, which goes to its receiver.
    pub fn take(&mut self, at: usize) -> Option<Box<Flow>> {
        let flow = self.open.pop_at(at)?;
        let counted = if flow.is_merged() { &mut self.outcome.merged } else { &mut self.outcome.alone };
        *counted = counted.saturating_add(1);
        Some(flow)
    }

    /// Memory for a flow of frames that waited.
    pub fn take_free(&mut self) -> Option<Box<Flow>> {
        self.free.pop()
    }

    /// Makes a flow of a frame that waited, or adds one to it. False: it does not belong to the flow.
    /// `longest`: bytes that a super-frame that begins with it may have.
    pub fn gather(
        &mut self,
        flow: &mut Flow,
        sent: &Checked<'_>,
        from: (&dyn FramePort, Token),
        to: (Slot, Option<Tci>),
        longest: impl FnOnce(&Segment) -> Option<usize>,
    ) -> bool {
        let Some(segment) = Segment::of(sent) else { return false };
        if !flow.tokens().is_empty() {
            return !flow.is_complete() && flow.try_add(sent, &segment, from, &mut self.read);
        }
        let longest = longest(&segment);
        longest.into_iter().for_each(|longest| flow.begin(sent, &segment, from.1, to, longest));
        longest.is_some()
    }

    /// After a panic: no flow is open, and all memory is there again.
    #[cold]
    pub fn reset(&mut self) {
        self.waiting.clear();
        self.read = 0;
        self.outcome = Outcome::default();
        while let Some(flow) = self.open.pop() {
            self.give_back(flow);
        }
        while self.free.len() < FLOWS {
            self.free.push(Box::new(Flow::new()));
        }
    }

    /// A flow was delivered: its sender's memory is not kept mapped for it.
    pub fn give_back(&mut self, mut flow: Box<Flow>) {
        flow.tokens.clear();
        flow.body.follow(&self.nothing);
        // There are no more flows than places.
        let _ = self.free.try_push(flow);
    }
}
