//! The round, and the only place that knows all stages: each port in turn has a burst fetched, and each frame
//! of it goes through the stages once.
//!
//! A stage returns what is next and calls no other one. What waits for a receiver's buffers has its own loop,
//! in `retry.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Instant;

use vmlane_port::{DropReason, FramePort, MAX_HEAD, Offload};
use vmlane_wire::ethernet::Tci;

use crate::Slot;
use crate::allowances::Allowance;
use crate::batch::{Batch, Joined};
use crate::coalesce::{Join, Segment};
use crate::core::Core;
use crate::deliver::deliver_flow;
use crate::egress::To;
use crate::fan::{Fan, Want};
use crate::fdb::{Destination, PortInVlan, Sender};
use crate::flight::{Fetched, Flight};
use crate::handover::{Handed, Workers, has_frames};
use crate::ingress::{Checked, Frame, Job};
use crate::mirror::send_copies;
use crate::multicast::{ANY, classify};
use crate::pending::PendingFrame;
use crate::port::Port;
use crate::price::{COPY_COST, DELIVERY_COST, PIECE_COST};
use crate::retry::Retry;
use crate::spec::Settings;
use crate::team::read_links;

/// What became of a frame in its sender's eyes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Finished,
    Pending,
}

impl Core {
    /// Polls every port that is to be polled. True if a frame moved.
    pub fn round(&mut self, now: Instant) -> bool {
        self.table.now = now;
        self.table.settings.coalesce = self.coalesce.load(Ordering::Relaxed);
        self.fdb.begin_round();
        let mut moved = self.arrivals.take(&mut self.table);
        self.table.ports.turns.merge();
        let stalled = self.read_capabilities();
        if !self.table.ports.teams.is_empty() {
            read_links(&mut self.table, &self.fdb, &mut self.announcements);
        }
        moved |= !self.announcements.is_empty() && self.announcements.send(&mut self.table);
        moved |= (self.table.waiting > 0 || stalled) && self.retry();
        let Settings { frames, bytes, .. } = self.table.settings;
        let count = self.table.ports.begin_round(Allowance { frames, bytes });
        // Those of remote ports come first in every other round: they share their owners' parts with those
        // here.
        let remote_first = self.arrivals.take_turns();
        if remote_first {
            moved |= self.serve_remote();
        }
        for owner in 0..count {
            // A turn may detach a port: then this is another one, which does no harm.
            let Some(ports) = self.table.ports.turns.begin_turn(owner, count) else { break };
            for at in ports {
                let Some(slot) = self.table.ports.turns.polled_at(at) else { break };
                moved |= self.turn(slot);
            }
        }
        if !remote_first {
            moved |= self.serve_remote();
        }
        self.table.flush();
        self.end_failed();
        self.table.send_handed();
        moved
    }

    /// What each port can receive in this round. True if one of them has stalled.
    fn read_capabilities(&mut self) -> bool {
        let mut stalled = false;
        let mut at = 0;
        while let Some(slot) = self.table.ports.turns.polled_at(at) {
            at += 1;
            self.table.attributed(slot, |table| {
                if let Some(port) = table.ports.get_mut(slot)
                    && let Some(end) = &port.end
                {
                    port.rx.capabilities = end.capabilities();
                    stalled |= port.rx.pending.stalled;
                }
            });
        }
        stalled
    }

    /// Gives what waits to receivers that have room again. True if anything moved.
    fn retry(&mut self) -> bool {
        let Core { table, egress, coalescer, .. } = self;
        let moved = Retry { table, egress, coalescer }.all();
        self.end_failed();
        moved
    }

    /// The turns of remote ports that have frames. True if any of them sent something, or is to go on in the
    /// next round.
    pub fn serve_remote(&mut self) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(&slot) = self.table.links.arrived.get(at) {
            moved |= self.turn(slot);
            if self.table.ports.get_mut(slot).is_some_and(has_frames) {
                at += 1;
            } else {
                self.table.links.arrived.remove(at);
            }
        }
        moved || !self.table.links.arrived.is_empty()
    }

    /// One sender's share of a round. True if it sent anything, unless it sent so much in vain that it is
    /// paused now: that is no reason to poll it again soon.
    fn turn(&mut self, slot: Slot) -> bool {
        let Some(mut sender) = self.table.ports.take(slot) else { return false };
        self.table.serving.begin(slot);
        self.heartbeat.serve(sender.id.0);
        let sends = !sender.tx.limits.still_paused(self.table.now) && !sender.attached.retired;
        let mut outcome = Ok(false);
        if sends && let Some(mut end) = sender.end.take() {
            outcome = catch_unwind(AssertUnwindSafe(|| self.send(slot, &mut sender, &mut *end)));
            if outcome.is_err() {
                self.settle(slot, &mut sender, &mut *end);
            }
            // The end goes back to its port whatever happens.
            sender.end = Some(end);
        }
        let paused = sender.tx.limits.is_paused();
        self.table.ports.put(slot, sender);
        let moved = outcome.unwrap_or_else(|_| {
            self.table.fail_served();
            true
        });
        if moved {
            self.table.mark(slot);
            self.polling.disarm_one(&mut self.table, slot);
        }
        self.table.flush();
        self.end_failed();
        moved && !paused
    }

    /// A panic ended a turn. If a receiver's code failed, the frame it failed with is done with, too.
    #[cold]
    fn settle(&mut self, slot: Slot, sender: &mut Port, end: &mut dyn FramePort) {
        if self.table.serving.slot() != slot {
            sender.tx.burst.keep(&self.coalescer.take_waiting());
            let _ = catch_unwind(AssertUnwindSafe(|| end.finish(sender.tx.burst.take_done())));
        }
        self.coalescer.reset();
    }

    /// Fetches and forwards until nothing waits or the owner's share is used up.
    fn send(&mut self, slot: Slot, sender: &mut Port, end: &mut dyn FramePort) -> bool {
        if let Some(copies) = sender.copies() {
            return send_copies(&mut self.table, &mut self.egress, slot, sender, end, copies);
        }
        let mut scratch = None;
        let mut left = self.table.ports.allowances.left(sender.owner);
        let mut moved = false;
        while left.frames > 0 && !sender.tx.limits.is_paused() {
            let most = left.frames.min(self.table.ports.turns.burst(sender.tx.merging.merges()));
            let all = sender.tx.burst.has_frames() || {
                if sender.transfer.moving && sender.remote.is_none() {
                    break;
                }
                let fetched = sender.tx.burst.fetch(end, most);
                let overhead = sender.attached.info.overhead.take() * PIECE_COST;
                if overhead > 0 {
                    // Frames that were left out are completed, too.
                    moved = true;
                    let allowances = &mut self.table.ports.allowances;
                    allowances.charge(sender.owner, overhead);
                    if allowances.is_over(sender.owner) {
                        left.frames = left.frames.min(fetched as u32);
                    }
                }
                if fetched == 0 {
                    break;
                }
                fetched == most as usize
            };
            moved = true;
            let scratch =
                scratch.get_or_insert_with(|| self.scratch.take().unwrap_or_else(|| Box::new([0; MAX_HEAD])));
            self.forward_burst(slot, sender, &*end, &mut left, scratch);
            if let Some(outcome) = self.coalescer.take_outcome() {
                sender.tx.merging.note(outcome);
            }
            let waiting = self.coalescer.take_waiting();
            if !waiting.is_empty() {
                sender.tx.burst.keep(&waiting);
            }
            end.finish(sender.tx.burst.take_done());
            if !all {
                break;
            }
        }
        if scratch.is_some() {
            self.scratch = scratch;
        }
        if moved && sender.remote.is_none() {
            self.table.note_sends_to_several(slot, sender);
        }
        self.table.ports.allowances.set_left(sender.owner, left);
        moved
    }

    /// Forwards the frames of a burst, as many as the owner may still send.
    #[inline]
    fn forward_burst(
        &mut self,
        slot: Slot,
        sender: &mut Port,
        end: &dyn FramePort,
        left: &mut Allowance,
        scratch: &mut [u8; MAX_HEAD],
    ) {
        let mut batch = Batch::default();
        while left.frames > 0 && !sender.tx.limits.is_paused() {
            let Some(token) = sender.tx.burst.take() else { break };
            left.frames -= 1;
            let frame = end.frame(token);
            sender.tx.counts.frames += 1;
            sender.tx.counts.bytes += frame.len() as u64;
            self.moved_bytes += frame.len() as u64;
            let mut cost = frame.len() + DELIVERY_COST + frame.spans.pieces() * PIECE_COST;
            let fetched = Fetched { end, token, tx: &frame };
            let goes = self.coalescer.is_open() && self.follow(slot, sender, &mut batch, &fetched)
                || batch.takes(&self.table, &self.fdb, sender, &frame)
                    && self.push(slot, sender, &mut batch, &fetched);
            if !goes {
                batch.deliver(&mut self.table, slot, sender);
                // Until `forward` returns: a receiver's panic must not leave it in flight.
                sender.tx.burst.done(token);
                if self.forward(slot, sender, &fetched, scratch, &mut cost) == Fate::Pending {
                    sender.tx.burst.undo(1);
                }
            }
            cost += self.coalescer.take_read();
            match left.bytes.checked_sub(cost) {
                Some(bytes) => left.bytes = bytes,
                None => left.frames = 0,
            }
        }
        batch.deliver(&mut self.table, slot, sender);
        while self.coalescer.is_open() {
            self.close(0, slot, end);
        }
    }

    /// Has an open flow hold its next segment, if that takes the way of those before.
    #[inline]
    fn follow(
        &mut self,
        slot: Slot,
        sender: &mut Port,
        batch: &mut Batch<'_>,
        fetched: &Fetched<'_, '_>,
    ) -> bool {
        let complete = match self.coalescer.follow(fetched, self.fdb.epoch()) {
            Join::Held => None,
            Join::Complete(at) => Some(at),
            Join::Breaks(_) | Join::Nothing => return false,
        };
        // A receiver's panic must not leave it in flight.
        sender.tx.burst.done(fetched.token);
        if let Some(at) = complete {
            batch.deliver(&mut self.table, slot, sender);
            self.close(at, slot, fetched.end);
        }
        true
    }

    /// Puts a frame that goes with the batch into it, or has a flow hold it. False: neither, it takes the
    /// long way.
    #[inline]
    fn push<'a>(
        &mut self,
        slot: Slot,
        sender: &mut Port,
        batch: &mut Batch<'a>,
        fetched: &Fetched<'_, 'a>,
    ) -> bool {
        match batch.join(&mut self.table, &self.coalescer, slot, sender, fetched) {
            Joined::Yes => true,
            Joined::No => false,
            Joined::Flow(layers) => {
                batch.deliver(&mut self.table, slot, sender);
                let &Fetched { end, token, tx } = fetched;
                let frame = Frame { head: tx.head, tx, popped: 0, tag: None, offload: Offload::None };
                let sent = Checked { frame: &frame, layers, job: Job::Nothing };
                let epoch = Some(self.fdb.epoch());
                let flight = Flight { more: true, epoch, ..sender.flight(slot, sent, (end, token), 0) };
                // A receiver's panic must not leave it in flight.
                sender.tx.burst.done(token);
                let held = self.merge(&flight, (batch.receiver(), None), true);
                if !held {
                    sender.tx.burst.undo(1);
                    // A flow may have been closed, and its receiver be out of buffers.
                    batch.end();
                } else {
                    batch.note_receiver(&mut self.table, slot);
                }
                held
            }
        }
    }

    /// Takes one frame on its way.
    fn forward(
        &mut self,
        slot: Slot,
        sender: &mut Port,
        fetched: &Fetched<'_, '_>,
        scratch: &mut [u8; MAX_HEAD],
        cost: &mut usize,
    ) -> Fate {
        let now = self.table.now;
        let rate = sender.config.floods.unwrap_or(self.table.settings.floods);
        let fate = Frame::new(fetched.tx, scratch).and_then(|frame| {
            let (checked, vlan, learn) = frame.admit(&sender.config, &sender.access)?;
            let to = self.find(slot, sender, &frame, vlan, learn)?;
            let one = matches!(to, Destination::One(_));
            // What another worker handed over was examined there.
            let remote = sender.remote.is_some();
            if !one && !sender.config.uplink && !remote && !sender.tx.limits.may_flood(rate, now) {
                return Err(DropReason::Flood);
            }
            if let Job::Segment(segmentation) = &checked.job {
                sender.tx.counts.tso += u64::from(segmentation.segments > 1);
            }
            let more = sender.tx.burst.has_frames() && sender.tx.merging.may_open();
            let snoops = self.snooping && to == Destination::Group;
            let multicast = if snoops { classify(sender, checked.frame, vlan, now) } else { ANY };
            let flight = sender.flight(slot, checked, (fetched.end, fetched.token), vlan);
            let alike = (more || self.coalescer.is_open()) && one && frame.popped == 0;
            let epoch = (alike && !self.table.ports.go_aside(sender)).then(|| self.fdb.epoch());
            self.spread(&Flight { more, multicast, epoch, ..flight }, to, cost)
        });
        fate.unwrap_or_else(|reason| {
            sender.lose_sent(reason);
            if !sender.config.uplink && sender.remote.is_none() {
                sender.tx.limits.fault(rate, now);
            }
            Fate::Finished
        })
    }

    /// Where a frame goes.
    #[inline]
    fn find(
        &mut self,
        slot: Slot,
        sender: &mut Port,
        frame: &Frame<'_>,
        vlan: u16,
        learn: bool,
    ) -> Result<Destination, DropReason> {
        let ports = &self.table.ports;
        let (group, uplink) = (sender.group, sender.config.uplink);
        let addresses = [frame.destination(), frame.source()];
        let route = &mut sender.tx.route;
        if sender.config.direct {
            let other = || ports.other_end(slot, group).ok_or(DropReason::NoReceiver);
            return self.fdb.find_direct(group, route, addresses, vlan, other);
        }
        let representative = if uplink { ports.teams.representative(slot) } else { None };
        let teamed = representative.is_some();
        let (own, remote) = (sender.access.effective, sender.remote.is_some());
        let from = Sender { slot: representative.unwrap_or(slot), group, uplink, teamed, own, remote };
        let in_vlan = |slot: Slot| {
            let port = ports.get(slot).filter(|port| port.carries(vlan))?;
            Some(PortInVlan { uplink: port.config.uplink })
        };
        self.fdb.find(from, route, addresses, (vlan, learn), in_vlan)
    }

    /// Gives a frame to all who should get it.
    #[inline]
    fn spread(&mut self, flight: &Flight<'_>, to: Destination, cost: &mut usize) -> Result<Fate, DropReason> {
        match to {
            Destination::One(receiver) => {
                let teams = &self.table.ports.teams;
                let alone = teams.is_empty() || flight.uplink;
                let receiver =
                    if alone { receiver } else { teams.route(receiver, flight.slot, &flight.sent) };
                if self.table.ports.is_mirrored(flight.group) {
                    let others = self.mirror(flight, receiver, cost);
                    let elsewhere = self.table.ports.get(receiver).is_some_and(|port| port.remote.is_some());
                    if flight.remote && elsewhere {
                        // It came for those who watch.
                        return Ok(Fate::Finished);
                    }
                    if !others.is_empty() {
                        let fate = self.give(&Flight { merges: false, ..*flight }, receiver, true);
                        return Ok(self.hand_to_all(others, flight, fate));
                    }
                }
                Ok(self.give(flight, receiver, true))
            }
            Destination::Group => {
                let fate = self.give_all(flight, Want::Group(flight.multicast), cost);
                Ok(fate.unwrap_or(Fate::Finished))
            }
            Destination::Unknown => self.give_all(flight, Want::Unknown, cost).ok_or(DropReason::NoReceiver),
        }
    }

    /// To all members of the VLAN that `want` it; None if there is none. The frame waits only if it has
    /// a single receiver.
    fn give_all(&mut self, flight: &Flight<'_>, want: Want, cost: &mut usize) -> Option<Fate> {
        let (mut fate, mut only) = (None, None);
        let mut fan = Fan::new(want);
        while let Some(slot) = fan.next(&self.table, flight) {
            match (only, fate) {
                (None, None) => only = Some(slot),
                (Some(first), None) => {
                    self.give(flight, first, false);
                    fate = Some(self.give(flight, slot, false));
                }
                _ => fate = Some(self.give(flight, slot, false)),
            }
            *cost += flight.sent.frame.len() + COPY_COST;
        }
        let others = fan.others;
        let fate = match (only, fate) {
            (Some(only), None) => Some(self.give(flight, only, others.is_empty())),
            (_, fate) => fate,
        };
        if others.is_empty() {
            return fate;
        }
        Some(self.hand_to_all(others, flight, fate.unwrap_or(Fate::Finished)))
    }

    /// Copies for ports that watch others' frames. Returns the workers, beside the receiver's, that have such
    /// ports.
    #[cold]
    fn mirror(&mut self, flight: &Flight<'_>, receiver: Slot, cost: &mut usize) -> Workers {
        let mut fan = Fan::new(Want::Mirror { receiver });
        while let Some(slot) = fan.next(&self.table, flight) {
            self.give(flight, slot, false);
            *cost += flight.sent.frame.len() + COPY_COST;
        }
        if let Some(worker) = self.table.ports.get(receiver).and_then(|port| port.remote) {
            fan.others.remove(worker);
        }
        fan.others
    }

    /// Hands a frame over to these workers, after `fate` became of it here.
    #[cold]
    fn hand_to_all(&mut self, others: Workers, flight: &Flight<'_>, fate: Fate) -> Fate {
        let mut holders = usize::from(fate == Fate::Pending);
        let table = &mut self.table;
        for worker in others.iter() {
            match table.links.hand_over(worker, (flight.origin, flight.token), flight.sent.frame.tx) {
                Handed::InFlight => holders += 1,
                Handed::Copied => {}
                Handed::No => table.lose_at(worker, flight.group, DropReason::NoBuffers),
            }
        }
        table.links.share(flight.slot, flight.token, holders);
        if holders > 0 { Fate::Pending } else { Fate::Finished }
    }

    /// Gives a frame to one receiver; `may_wait` for its buffers.
    #[inline]
    fn give(&mut self, flight: &Flight<'_>, receiver: Slot, may_wait: bool) -> Fate {
        let table = &mut self.table;
        let Some(port) = table.ports.get_mut(receiver) else { return Fate::Finished };
        let Some(end) = port.end.as_ref() else { return Fate::Finished };
        if !port.watch.polled {
            // It was not polled in this round.
            port.rx.capabilities = end.capabilities();
        }
        if may_wait {
            table.held.note(flight.slot, port.owner, table.now);
        }
        if let Some(worker) = port.remote {
            return self.give_remote(worker, flight, receiver, may_wait);
        }
        let frame = flight.sent.frame;
        let to = frame.destination();
        let tag = match port.access.receive(&port.config, end.filter(), to, flight.vlan, frame.tag) {
            Ok(tag) if !port.rx.pending.stalled => tag,
            refused => {
                port.refuse(frame.tx, refused.err().unwrap_or(DropReason::NoBuffers));
                return Fate::Finished;
            }
        };
        let own = port.is_own(to);
        let may_merge = own && may_wait && flight.merges;
        if table.settings.coalesce && port.aggregates() && self.merge(flight, (receiver, tag), may_merge) {
            return Fate::Finished;
        }
        let Core { table, egress, .. } = self;
        let Some(port) = table.ports.get(receiver) else { return Fate::Finished };
        if !port.rx.pending.is_empty() || table.ports.allowances.is_over(port.owner) {
            return self.pend(flight, receiver, (tag, 0), may_wait);
        }
        let (mut next, to) = (0, To { slot: receiver, tag, mirror: !own });
        match table.deliver(flight.slot, to, |end| egress.deliver(&flight.sent, &mut next, end)) {
            Ok(()) => {}
            Err(DropReason::NoBuffers) => return self.pend(flight, receiver, (tag, next), may_wait),
            Err(reason) => table.ports.get(receiver).iter().for_each(|port| port.lose(reason)),
        }
        Fate::Finished
    }

    /// Gives a frame to a receiver that another worker owns.
    fn give_remote(&mut self, worker: usize, flight: &Flight<'_>, receiver: Slot, may_wait: bool) -> Fate {
        let Some(port) = self.table.ports.get(receiver) else { return Fate::Finished };
        if flight.remote {
            // It went where its sender's worker knew it to be, and is not sent on.
            port.lose(DropReason::Gone);
            return Fate::Finished;
        }
        let waits = port.transfer.moving || port.rx.pending.has_of(flight.origin.owner);
        let in_flight = (flight.origin, flight.token);
        let links = &mut self.table.links;
        let handed =
            if waits { Handed::No } else { links.hand_over(worker, in_flight, flight.sent.frame.tx) };
        match handed {
            Handed::InFlight => Fate::Pending,
            Handed::Copied => Fate::Finished,
            Handed::No => self.pend(flight, receiver, (None, 0), may_wait),
        }
    }

    /// Lets a frame wait, of which the segments before `next` were delivered. One that may not is shown to
    /// captures of its receiver.
    #[cold]
    fn pend(
        &mut self,
        flight: &Flight<'_>,
        receiver: Slot,
        (tag, next): (Option<Tci>, u16),
        may_wait: bool,
    ) -> Fate {
        let (sender, token, len) = (flight.slot, flight.token, flight.sent.frame.len() as u32);
        let frame = PendingFrame { sender, token, len, tag, next, since: self.table.now };
        let Err(reason) = self.table.pend(receiver, frame, may_wait) else { return Fate::Pending };
        self.table.ports.get(receiver).iter().for_each(|port| port.show_lost(flight.sent.frame.tx, reason));
        Fate::Finished
    }

    /// A frame for a receiver that takes super-frames; `may_merge`: for no other one. True: an open flow has
    /// it. Otherwise no frame of its flow is held any more, and it may be delivered.
    fn merge(&mut self, flight: &Flight<'_>, to: (Slot, Option<Tci>), may_merge: bool) -> bool {
        if !self.coalescer.is_open() && !flight.more {
            return false;
        }
        let may_merge = may_merge && !flight.sent.frame.destination().is_multicast();
        let segment = if may_merge { Segment::of(&flight.sent) } else { None };
        loop {
            match self.coalescer.join(flight, segment.as_ref(), to) {
                Join::Held => return true,
                Join::Complete(at) => {
                    self.close(at, flight.slot, flight.end);
                    return true;
                }
                Join::Breaks(at) => self.close(at, flight.slot, flight.end),
                Join::Nothing => break,
            }
        }
        let Some(segment) = segment.filter(|_| flight.more) else { return false };
        let ready =
            |port: &&Port| port.rx.pending.is_empty() && !self.table.ports.allowances.is_over(port.owner);
        let receiver = self.table.ports.get(to.0).filter(ready);
        let longest = receiver.and_then(|port| segment.longest(&port.rx.capabilities, &flight.sent));
        let Some(longest) = longest else { return false };
        if self.coalescer.is_full() {
            self.close(0, flight.slot, flight.end);
        }
        self.coalescer.open(flight, &segment, to, longest)
    }

    /// A flow goes to its receiver.
    fn close(&mut self, at: usize, slot: Slot, end: &dyn FramePort) {
        let Some(flow) = self.coalescer.take(at) else { return };
        let Core { table, egress, coalescer, .. } = self;
        deliver_flow(egress, table, &flow, (slot, end), |token| coalescer.keep(token));
        self.coalescer.give_back(flow);
    }
}
