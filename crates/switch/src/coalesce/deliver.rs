//! The flows of a burst on their way: which frames they take, and how a flow that is closed gets to its receiver.

use vmlane_port::{DropReason, FramePort, MAX_HEAD, Network, Token, Transport};
use vmlane_wire::ethernet::Tci;

use super::{Flow, Segment};
use crate::Slot;
use crate::core::Core;
use crate::egress::Receiver;
use crate::ingress::{Checked, Frame};
use crate::lent::Origin;
use crate::pending::PendingFrame;
use crate::port::Port;
use crate::price::PIECE_COST;

/// Bytes of the longest IP packet behind an Ethernet header.
const LONGEST: usize = vmlane_wire::ethernet::HEADER + u16::MAX as usize;

impl Core {
    /// A frame for a receiver that takes super-frames; `may_merge`: for no other one. True: an open flow has it.
    /// Otherwise no frame of its flow is held any more, and it may be delivered.
    pub fn coalesce(
        &mut self,
        sent: &Checked<'_>,
        from: Origin<'_>,
        (receiver, tag): (Slot, Option<Tci>),
        may_merge: bool,
    ) -> bool {
        if !self.coalescer.is_open() && !from.more {
            return false;
        }
        let may_merge = may_merge && !sent.frame.destination().is_multicast();
        let segment = if may_merge { Segment::of(sent) } else { None };
        match sent.layers.transport {
            Transport::Tcp => {
                let open = &self.coalescer.open;
                let at = open.iter().position(|flow| flow.receiver == receiver && flow.is_of(sent));
                if let Some(at) = at {
                    if segment.is_some_and(|segment| self.continue_flow(at, sent, &segment, tag, from)) {
                        return true;
                    }
                    self.close(at, from.slot, from.end);
                }
            }
            Transport::Udp => {}
            // It may be a part of anything.
            Transport::Other if sent.layers.network != Network::Other => {
                while let Some(at) = self.coalescer.open.iter().position(|flow| flow.receiver == receiver) {
                    self.close(at, from.slot, from.end);
                }
            }
            Transport::Other => {}
        }
        segment.is_some_and(|segment| from.more && self.open_flow(sent, &segment, (receiver, tag), from))
    }

    fn continue_flow(
        &mut self,
        at: usize,
        sent: &Checked<'_>,
        segment: &Segment,
        tag: Option<Tci>,
        from: Origin<'_>,
    ) -> bool {
        let coalescer = &mut self.coalescer;
        let Some(flow) = coalescer.open.get_mut(at).filter(|flow| flow.tag == tag) else { return false };
        let Some(step) = flow.continues(sent, segment) else { return false };
        if !flow.add(sent, segment, from.token, from.end, &mut coalescer.read) {
            return false;
        }
        flow.id_step = Some(step);
        if flow.is_complete() {
            self.close(at, from.slot, from.end);
        }
        true
    }

    /// Holds a segment until the next one comes, if one may come and the receiver would take both as one.
    fn open_flow(
        &mut self,
        sent: &Checked<'_>,
        segment: &Segment,
        to: (Slot, Option<Tci>),
        from: Origin<'_>,
    ) -> bool {
        let Some(port) = self.ports.get(to.0) else { return false };
        let Some(limit) = limit(port, sent, segment) else { return false };
        if !port.pending.is_empty() || self.ports.allowances.is_over(port.owner) {
            return false;
        }
        if self.coalescer.free.is_empty() {
            self.close(0, from.slot, from.end);
        }
        let Some(mut flow) = self.coalescer.free.pop() else { return false };
        flow.begin(sent, segment, from.token, to, limit);
        self.coalescer.open.push(flow);
        true
    }

    /// The burst has no more frames: what is held goes to its receivers.
    #[inline]
    pub fn close_all(&mut self, slot: Slot, end: &dyn FramePort) {
        while self.coalescer.is_open() {
            self.close(0, slot, end);
        }
    }

    /// A flow goes to its receiver.
    fn close(&mut self, at: usize, slot: Slot, end: &dyn FramePort) {
        let Some(flow) = self.coalescer.take(at) else { return };
        let outcome = &mut self.coalescer.outcome;
        let counted = if flow.tokens.len() > 1 { &mut outcome.merged } else { &mut outcome.alone };
        *counted = counted.saturating_add(1);
        let whole = flow.tokens.len() > 1 && self.deliver_whole(slot, &flow);
        if !whole {
            for &token in &flow.tokens {
                if !self.deliver_part(slot, &flow, token, end) {
                    self.let_part_wait(slot, &flow, token, end);
                }
            }
        }
        self.coalescer.give_back(flow);
    }

    /// Delivers a super-frame. False: each of its segments is to be delivered for itself.
    fn deliver_whole(&mut self, slot: Slot, flow: &Flow) -> bool {
        let Some(port) = self.ports.get_mut(flow.receiver) else { return true };
        if !port.pending.is_empty() {
            return false;
        }
        port.comes_from(self.held.claim(slot));
        let (owner, outcome) = {
            self.serving = flow.receiver;
            let Some(to) = receiver(port, flow.tag) else { return true };
            let outcome = self.egress.merged(flow, to);
            self.serving = slot;
            (port.owner, outcome)
        };
        self.after_delivery(flow.receiver, owner);
        outcome.is_ok()
    }

    /// Delivers a segment as it came. False: it is to wait for its receiver's buffers.
    fn deliver_part(&mut self, slot: Slot, flow: &Flow, token: Token, end: &dyn FramePort) -> bool {
        let Some(port) = self.ports.get(flow.receiver) else { return true };
        if !port.pending.is_empty() || self.ports.allowances.is_over(port.owner) {
            return false;
        }
        let Some(port) = self.ports.get_mut(flow.receiver) else { return true };
        port.comes_from(self.held.claim(slot));
        let (tx, owner) = (end.frame(token), port.owner);
        let outcome = Frame::new(&tx, &mut self.coalescer.scratch).and_then(|frame| {
            let sent = match flow.tokens.first() {
                Some(first) if *first == token => {
                    Checked { frame: &frame, layers: flow.layers, job: flow.job }
                }
                // It succeeded when the frame came in, from the same private bytes.
                _ => frame.check()?,
            };
            self.serving = flow.receiver;
            let to = receiver(port, flow.tag).ok_or(DropReason::Gone)?;
            self.egress.deliver(&sent, &mut 0, to)
        });
        self.serving = slot;
        match outcome {
            Err(DropReason::NoBuffers) => {}
            Err(reason) => port.lose(reason),
            Ok(()) => {}
        }
        self.after_delivery(flow.receiver, owner);
        outcome != Err(DropReason::NoBuffers)
    }

    fn after_delivery(&mut self, receiver: Slot, owner: u16) {
        let overhead = self.ports.get(receiver).map_or(0, |port| port.info.overhead.take());
        self.ports.allowances.charge(owner, overhead * PIECE_COST);
        self.mark(receiver);
    }

    #[cold]
    fn let_part_wait(&mut self, slot: Slot, flow: &Flow, token: Token, end: &dyn FramePort) {
        let len = end.frame(token).len() as u32;
        let frame = PendingFrame { sender: slot, token, len, tag: flow.tag, next: 0, since: self.now };
        match self.pend(flow.receiver, frame, true) {
            // As many as a burst has.
            Ok(()) => self.coalescer.waiting.push(token),
            Err(reason) => {
                let lost = |port: &Port| port.show_lost(&end.frame(token), reason);
                self.ports.get(flow.receiver).iter().for_each(|port| lost(port));
            }
        }
    }

    /// Merges the frames that have waited longest for `receiver`, which has its turn, and delivers them. Returns how
    /// many there are, and what came of it; None: there are not two that belong together.
    pub fn deliver_pending_flow(
        &mut self,
        slot: Slot,
        receiver: &mut Port,
    ) -> Option<(usize, Result<(), DropReason>)> {
        let mut flow = self.coalescer.free.pop()?;
        let count = self.gather(slot, receiver, &mut flow);
        let outcome = (count > 1).then(|| {
            let to = self::receiver(receiver, flow.tag).ok_or(DropReason::Gone)?;
            self.egress.merged(&flow, to)
        });
        self.coalescer.give_back(flow);
        outcome.map(|outcome| (count, outcome))
    }

    /// The first frames that wait, as far as they belong together.
    fn gather(&mut self, slot: Slot, receiver: &Port, flow: &mut Flow) -> usize {
        let Some(PendingFrame { sender, tag, .. }) = receiver.pending.front() else { return 0 };
        let Some(port) = self.ports.get(sender) else { return 0 };
        let Some(end) = port.end.as_deref() else { return 0 };
        let mut count = 0;
        for pending in receiver.pending.iter() {
            if pending.sender != sender || pending.tag != tag || pending.next > 0 {
                break;
            }
            self.serving = sender;
            let tx = end.frame(pending.token);
            self.serving = slot;
            let mut scratch = [0; MAX_HEAD];
            let Ok(frame) = Frame::new(&tx, &mut scratch) else { break };
            let Ok(sent) = frame.check() else { break };
            let Some(segment) = Segment::of(&sent) else { break };
            if count == 0 {
                let to = sent.frame.destination();
                let own = !to.is_multicast() && (receiver.access.is_own(to) || receiver.config.uplink);
                let Some(limit) = limit(receiver, &sent, &segment).filter(|_| own) else { break };
                flow.begin(&sent, &segment, pending.token, (slot, tag), limit);
            } else {
                let Some(step) = flow.continues(&sent, &segment) else { break };
                if !flow.add(&sent, &segment, pending.token, end, &mut self.coalescer.read) {
                    break;
                }
                flow.id_step = Some(step);
            }
            count += 1;
            if flow.is_complete() {
                break;
            }
        }
        // It is the receiver's lack of buffers that has them looked at again.
        let read = self.coalescer.take_read();
        self.ports.allowances.charge(receiver.owner, read);
        count
    }
}

/// Bytes of the longest super-frame that may begin with `segment`; None: the receiver takes none, or the segment is the
/// last of one.
fn limit(port: &Port, sent: &Checked<'_>, segment: &Segment) -> Option<usize> {
    let capabilities = &port.capabilities;
    let takes = if sent.layers.network == Network::V4 { capabilities.tso4 } else { capabilities.tso6 };
    let limit = capabilities.aggregate.min(LONGEST);
    let first = takes
        && sent.frame.len() <= capabilities.frame
        && sent.frame.len() + segment.payload <= limit
        && !Segment::is_last(sent.frame.head, usize::from(sent.layers.transport_at));
    first.then_some(limit)
}

/// A port as the one addressed.
fn receiver(port: &mut Port, tag: Option<Tci>) -> Option<Receiver<'_>> {
    let end = &mut **port.end.as_mut()?;
    Some(Receiver { end, capabilities: &port.capabilities, counts: &mut port.rx, tag, mirror: false })
}
