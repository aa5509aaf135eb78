//! The fast path: frames to which nothing is to be done go to their receiver together.

use arrayvec::ArrayVec;
use vmlane_port::{BURST, DropReason, Layers, Network, Offload, PortStats, RxFrame, Transport, TxFrame};
use vmlane_wire::ethernet::{Mac, ether_type};

use crate::Slot;
use crate::coalesce::{Coalescer, Segment};
use crate::egress;
use crate::fdb::{Fdb, key};
use crate::flight::Fetched;
use crate::handover::Handed;
use crate::pending::PendingFrame;
use crate::port::Port;
use crate::price::PIECE_COST;
use crate::table::Table;

/// Frames of a burst that go the same way as the sender's last one and to which nothing is to be done: they
/// are delivered together.
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

/// What came of a frame that goes with the batch.
pub enum Joined {
    Yes,
    /// It takes the long way.
    No,
    /// A flow may hold it. These are its layers.
    Flow(Layers),
}

impl<'a> Batch<'a> {
    pub fn receiver(&self) -> Slot {
        self.receiver
    }

    /// No further frame goes with it until it was judged anew.
    pub fn end(&mut self) {
        self.longest = 0;
    }

    /// Puts a frame that goes with it into it.
    #[inline]
    pub fn join(
        &mut self,
        table: &mut Table,
        coalescer: &Coalescer,
        slot: Slot,
        sender: &mut Port,
        fetched: &Fetched<'_, 'a>,
    ) -> Joined {
        if let Some(worker) = self.worker {
            return self.hand_over(table, worker, slot, sender, fetched);
        }
        if self.merges {
            let plain = egress::plain(fetched.tx);
            let opens = sender.tx.burst.has_frames() && sender.tx.merging.may_open();
            if may_merge(coalescer, &plain, opens) {
                return Joined::Flow(plain.layers);
            }
        }
        if self.frames.is_full() {
            return Joined::No;
        }
        // Made in its place: a copy of what was stored just now in smaller parts waits for all stores before
        // it.
        self.frames.push(egress::plain(fetched.tx));
        sender.tx.burst.done(fetched.token);
        Joined::Yes
    }

    /// Hands a frame that goes with it over to the worker whose port its receiver is.
    #[inline]
    fn hand_over(
        &mut self,
        table: &mut Table,
        worker: usize,
        slot: Slot,
        sender: &mut Port,
        fetched: &Fetched<'_, '_>,
    ) -> Joined {
        match table.links.hand_over(worker, (sender.origin(slot), fetched.token), fetched.tx) {
            Handed::Copied => sender.tx.burst.done(fetched.token),
            Handed::InFlight => {}
            // It waits, and so do those behind it.
            Handed::No => {
                self.end();
                return Joined::No;
            }
        }
        self.note_receiver(table, slot);
        Joined::Yes
    }

    /// Notes to whom the port at `slot` sends.
    pub fn note_receiver(&self, table: &mut Table, slot: Slot) {
        if let Some(owner) = table.ports.get(self.receiver).map(|port| port.owner) {
            table.held.note(slot, owner, table.now);
        }
    }

    /// Is nothing to be done to the frame, and does it go the way of the sender's last one, to a receiver
    /// that has no others waiting?
    #[inline]
    pub fn takes(&mut self, table: &Table, fdb: &Fdb, sender: &Port, frame: &TxFrame<'_>) -> bool {
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
        if self.longest == 0 {
            let valid = fdb.is_valid(route) && Some(route.vlan) == sender.access.untagged;
            if !valid || table.ports.is_mirrored(sender.group) {
                return false;
            }
            let Some(port) = table.ports.get(route.receiver) else { return false };
            let to_own = route.to == key(port.group, port.access.effective);
            let goes = match port.remote {
                None => port.rx.pending.is_empty(),
                // What another worker handed over is not sent on.
                Some(_) => {
                    sender.remote.is_none() && !port.transfer.moving && !port.rx.pending.has_of(sender.owner)
                }
            };
            let ready = port.end.is_some()
                && goes
                && !port.rx.pending.stalled
                && !table.ports.allowances.is_over(port.owner);
            if !to_own || !ready || !port.access.accepts_plain(&port.config, route.vlan) {
                return false;
            }
            (self.receiver, self.worker) = (route.receiver, port.remote);
            // What the receiver takes its own worker knows.
            self.longest = if port.remote.is_some() { usize::MAX } else { port.rx.capabilities.frame };
            self.merges = table.settings.coalesce && port.aggregates();
        }
        frame.len() <= self.longest
    }

    /// Delivers the frames that were put together; those that find no buffers wait.
    #[inline]
    pub fn deliver(&mut self, table: &mut Table, slot: Slot, sender: &mut Port) {
        self.end();
        if self.frames.is_empty() {
            return;
        }
        let receiver = self.receiver;
        let mut frames = self.frames.as_slice();
        let claim = table.held.claim(slot);
        if let Some(port) = table.ports.get_mut(receiver) {
            port.comes_from(claim);
            if let Some(end) = &mut port.end {
                while !frames.is_empty() {
                    let outcome = table.serving.attribute(receiver, || end.deliver(frames));
                    let count = outcome.map_or_else(|refused| refused.at, |()| frames.len());
                    let (delivered, rest) = frames.split_at_checked(count).unwrap_or((frames, &[]));
                    port.rx.counts.frames += delivered.len() as u64;
                    port.rx.counts.bytes += delivered.iter().map(|frame| frame.len() as u64).sum::<u64>();
                    frames = rest;
                    let Err(refused) = outcome else { break };
                    if refused.reason == DropReason::NoBuffers {
                        break;
                    }
                    let stats: &PortStats = &port.stats;
                    stats.drop(refused.reason);
                    frames = frames.split_first().map_or(&[], |(_, behind)| behind);
                }
                let (owner, overhead) = (port.owner, port.attached.info.overhead.take());
                table.ports.allowances.charge(owner, overhead * PIECE_COST);
                table.held.note(slot, owner, table.now);
            }
        }
        table.mark(receiver);
        if !frames.is_empty() {
            let_wait(table, slot, sender, receiver, frames);
        }
        self.frames.clear();
    }
}

/// May a frame be merged with another one, or be of a flow that is open? `opens`: a flow may begin with it.
#[inline]
fn may_merge(coalescer: &Coalescer, frame: &RxFrame<'_>, opens: bool) -> bool {
    let open = coalescer.is_open();
    match frame.layers.transport {
        Transport::Tcp => open || opens && Segment::may_be_first(frame),
        Transport::Udp => false,
        Transport::Other => open && frame.layers.network != Network::Other,
    }
}

/// The last frames that were put together found no buffers.
#[cold]
fn let_wait(table: &mut Table, slot: Slot, sender: &mut Port, receiver: Slot, frames: &[RxFrame<'_>]) {
    let burst = &mut sender.tx.burst;
    burst.undo(frames.len());
    let from = burst.count_done();
    for (at, rx) in frames.iter().enumerate() {
        let Some(token) = burst.undone(from, at) else { break };
        let len = rx.len() as u32;
        let frame = PendingFrame { sender: slot, token, len, tag: None, next: 0, since: table.now };
        if let Err(reason) = table.pend(receiver, frame, true) {
            burst.done(token);
            table.ports.get(receiver).iter().for_each(|port| port.show_undelivered(rx, reason));
        }
    }
}

#[cfg(test)]
mod tests;
