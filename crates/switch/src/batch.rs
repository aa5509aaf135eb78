//! The fast path: frames to which nothing is to be done go to their receiver together.

use arrayvec::ArrayVec;
use vmlane_port::{BURST, DropReason, Layers, Network, Offload, PortStats, RxFrame, Transport, TxFrame};
use vmlane_wire::ethernet::{Mac, ether_type};

use crate::Slot;
use crate::coalesce::Segment;
use crate::core::Core;
use crate::egress;
use crate::fdb::key;
use crate::handover::Handed;
use crate::ingress::{Checked, Frame, Job};
use crate::lent::{Lent, Origin};
use crate::multicast::ANY;
use crate::pending::PendingFrame;
use crate::port::Port;
use crate::price::PIECE_COST;

/// Frames of a burst that go the same way as the sender's last one and to which nothing is to be done: they are
/// delivered together.
#[derive(Default)]
pub struct Batch<'a> {
    receiver: Slot,
    /// The worker whose port the receiver is, if it is another one's: frames are handed over at once.
    worker: Option<usize>,
    /// Bytes of the longest frame that it takes; 0: no frame can be added.
    longest: usize,
    /// Segments may be merged for it.
    merges: bool,
    frames: ArrayVec<RxFrame<'a>, BURST>,
}

impl Core {
    /// Puts a frame that goes with the batch into it, or has a flow hold it. False: neither, it takes the long way.
    #[inline]
    pub fn push<'a>(
        &mut self,
        slot: Slot,
        sender: &mut Port,
        batch: &mut Batch<'a>,
        lent: &Lent<'_, 'a>,
        cost: &mut usize,
    ) -> bool {
        if let Some(worker) = batch.worker {
            return self.push_remote(slot, sender, batch, worker, lent);
        }
        if batch.merges {
            let plain = egress::plain(lent.tx);
            let opens = sender.tx.burst.has_frames() && sender.tx.luck.may_open();
            if self.may_merge(&plain, opens) {
                return self.hold(slot, sender, batch, lent, &plain.layers, cost);
            }
        }
        if batch.frames.is_full() {
            return false;
        }
        // Made in its place: a copy of what was stored just now in smaller parts waits for all stores before it.
        batch.frames.push(egress::plain(lent.tx));
        sender.tx.burst.done(lent.token);
        true
    }

    /// Hands a frame that goes with the batch over to the worker whose port its receiver is.
    #[inline]
    fn push_remote(
        &mut self,
        slot: Slot,
        sender: &mut Port,
        batch: &mut Batch<'_>,
        worker: usize,
        lent: &Lent<'_, '_>,
    ) -> bool {
        match self.links.hand_over(worker, (sender.lender(slot), lent.token), lent.tx) {
            Handed::Copied => sender.tx.burst.done(lent.token),
            Handed::Lent => {}
            // It waits, and so do those behind it.
            Handed::No => {
                batch.longest = 0;
                return false;
            }
        }
        if let Some(owner) = self.ports.get(batch.receiver).map(|port| port.owner) {
            self.held.note(slot, owner, self.now);
        }
        true
    }

    /// Has a flow hold a frame.
    fn hold(
        &mut self,
        slot: Slot,
        sender: &mut Port,
        batch: &mut Batch<'_>,
        lent: &Lent<'_, '_>,
        layers: &Layers,
        cost: &mut usize,
    ) -> bool {
        let receiver = batch.receiver;
        if !batch.frames.is_empty() {
            self.deliver_batch(slot, sender, batch);
        }
        let Lent { end, token, tx } = lent;
        let frame = Frame { head: tx.head, tx, popped: 0, tag: None, offload: Offload::None };
        let sent = Checked { frame: &frame, layers: *layers, job: Job::Nothing };
        let from = Origin {
            slot,
            group: sender.group,
            uplink: sender.config.uplink,
            remote: sender.remote.is_some(),
            lender: sender.lender(slot),
            token: *token,
            vlan: 0,
            end: *end,
            more: true,
            merges: true,
            multicast: ANY,
        };
        // A receiver's panic must not leave it lent.
        sender.tx.burst.done(*token);
        let held = self.coalesce(&sent, from, (receiver, None), true);
        *cost += self.coalescer.take_read();
        if !held {
            sender.tx.burst.undo(1);
            // A flow may have been closed, and its receiver be out of buffers.
            batch.longest = 0;
        } else if let Some(owner) = self.ports.get(receiver).map(|port| port.owner) {
            self.held.note(slot, owner, self.now);
        }
        held
    }

    /// May it be merged with another one, or be of a flow that is open? `opens`: a flow may begin with it.
    #[inline]
    fn may_merge(&self, frame: &RxFrame<'_>, opens: bool) -> bool {
        let open = self.coalescer.is_open();
        match frame.layers.transport {
            Transport::Tcp => open || opens && Segment::may_be_first(frame),
            Transport::Udp => false,
            Transport::Other => open && frame.layers.network != Network::Other,
        }
    }

    /// Is nothing to be done to the frame, and does it go the way of the sender's last one, to a receiver that has
    /// no others waiting?
    #[inline]
    pub fn goes_with(&self, batch: &mut Batch<'_>, sender: &Port, frame: &TxFrame<'_>) -> bool {
        let Some((addresses, [high, low, ..])) = frame.head.split_first_chunk::<12>() else { return false };
        let tagged = frame.tag.is_some() || [*high, *low] == ether_type::VLAN.to_be_bytes();
        if tagged || frame.offload != Offload::None {
            return false;
        }
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *addresses;
        let route = &sender.tx.route;
        let same = route.to == key(sender.group, Mac([a, b, c, d, e, f]))
            && route.from == key(sender.group, Mac([g, h, i, j, k, l]));
        if !same {
            return false;
        }
        if batch.longest == 0 {
            let valid = self.fdb.is_valid(route) && Some(route.vlan) == sender.access.untagged;
            if !valid || self.ports.is_mirrored(sender.group) {
                return false;
            }
            let Some(port) = self.ports.get(route.receiver) else { return false };
            let to_own = route.to == key(port.group, port.access.effective);
            let goes = match port.remote {
                None => port.pending.is_empty(),
                // What another worker handed over is not sent on.
                Some(_) => sender.remote.is_none() && !port.moving && !port.pending.has_of(sender.owner),
            };
            let ready = port.end.is_some()
                && goes
                && !port.pending.stalled
                && !self.ports.allowances.is_over(port.owner);
            if !to_own || !ready || !port.access.accepts_plain(&port.config, route.vlan) {
                return false;
            }
            (batch.receiver, batch.worker) = (route.receiver, port.remote);
            // What the receiver takes its own worker knows.
            batch.longest = if port.remote.is_some() { usize::MAX } else { port.capabilities.frame };
            batch.merges = self.settings.coalesce && port.aggregates();
        }
        frame.len() <= batch.longest
    }

    /// Delivers the frames that were put together; those that find no buffers wait.
    #[inline]
    pub fn deliver_batch(&mut self, slot: Slot, sender: &mut Port, batch: &mut Batch<'_>) {
        batch.longest = 0;
        if batch.frames.is_empty() {
            return;
        }
        let receiver = batch.receiver;
        let mut frames = batch.frames.as_slice();
        let claim = self.held.claim(slot);
        if let Some(port) = self.ports.get_mut(receiver) {
            port.comes_from(claim);
        }
        if let Some(port) = self.ports.get_mut(receiver)
            && let Some(end) = &mut port.end
        {
            self.serving = receiver;
            while !frames.is_empty() {
                let outcome = end.deliver(frames);
                let count = outcome.map_or_else(|refused| refused.at, |()| frames.len());
                let (delivered, rest) = frames.split_at_checked(count).unwrap_or((frames, &[]));
                port.rx.frames += delivered.len() as u64;
                port.rx.bytes += delivered.iter().map(|frame| frame.len() as u64).sum::<u64>();
                frames = rest;
                let Err(refused) = outcome else { break };
                if refused.reason == DropReason::NoBuffers {
                    break;
                }
                let stats: &PortStats = &port.stats;
                stats.drop(refused.reason);
                frames = frames.split_first().map_or(&[], |(_, behind)| behind);
            }
            self.serving = slot;
            let (owner, overhead) = (port.owner, port.info.overhead.take());
            self.ports.allowances.charge(owner, overhead * PIECE_COST);
            self.held.note(slot, owner, self.now);
        }
        self.mark(receiver);
        if !frames.is_empty() {
            self.let_wait(slot, sender, receiver, frames);
        }
        batch.frames.clear();
    }

    /// The last frames that were put together found no buffers.
    #[cold]
    fn let_wait(&mut self, slot: Slot, sender: &mut Port, receiver: Slot, frames: &[RxFrame<'_>]) {
        let burst = &mut sender.tx.burst;
        burst.undo(frames.len());
        let from = burst.count_done();
        for (at, rx) in frames.iter().enumerate() {
            let Some(token) = burst.undone(from, at) else { break };
            let len = rx.len() as u32;
            let frame = PendingFrame { sender: slot, token, len, tag: None, next: 0, since: self.now };
            if let Err(reason) = self.pend(receiver, frame, true) {
                burst.done(token);
                self.ports.get(receiver).iter().for_each(|port| port.show_undelivered(rx, reason));
            }
        }
    }
}
