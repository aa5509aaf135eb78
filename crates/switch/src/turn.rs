//! A round, and the way of frames in it: each port in turn has a burst fetched, and each frame of it goes through
//! the stages once: ingress, where to, egress, its receiver's port; a frame that must wait goes to the pending
//! queue.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::time::Instant;

use vmlane_port::{BURST, DropReason, FramePort, MAX_HEAD};
use vmlane_wire::ethernet::Tci;

use crate::Slot;
use crate::allowances::Allowance;
use crate::batch::Batch;
use crate::core::Core;
use crate::egress::Receiver;
use crate::fdb::{Destination, PortInVlan, Sender};
use crate::handover::{Handed, Workers};
use crate::ingress::{Checked, Frame, Job, admit};
use crate::lent::{Lent, Origin};
use crate::multicast::{ANY, look};
use crate::pending::PendingFrame;
use crate::port::Port;
use crate::price::{COPY_COST, DELIVERY_COST, PIECE_COST};
use crate::spec::Settings;

/// Where more ports of a worker than this are polled, each is asked for fewer frames at once.
const CROWD: usize = 64;
/// How many that are.
const CROWDED_BURST: u32 = 8;

/// What became of a frame in its sender's eyes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Finished,
    Pending,
}

impl Core {
    /// Polls every port that is to be polled. True if a frame moved.
    pub fn round(&mut self, now: Instant) -> bool {
        self.now = now;
        self.settings.coalesce = self.coalesce.load(Ordering::Relaxed);
        self.fdb.begin_round();
        let mut moved = self.take_handed();
        self.ports.turns.merge();
        let mut stalled = false;
        let mut at = 0;
        while let Some(slot) = self.ports.turns.polled_at(at) {
            at += 1;
            self.guarded(slot, |core| {
                if let Some(port) = core.ports.get_mut(slot)
                    && let Some(end) = &port.end
                {
                    port.capabilities = end.capabilities();
                    stalled |= port.pending.stalled;
                }
            });
        }
        if !self.ports.teams.is_empty() {
            self.look_at_teams();
        }
        moved |= !self.announcements.is_empty() && self.send_announcements();
        moved |= (self.waiting > 0 || stalled) && self.retry();
        let Settings { frames, bytes, .. } = self.settings;
        let count = self.ports.begin_round(Allowance { frames, bytes });
        // Those of remote ports come first in every other round: they share their owners' parts with those here.
        self.remote_first = !self.remote_first;
        if self.remote_first && !self.links.arrived.is_empty() {
            moved |= self.serve_remote();
        }
        for owner in 0..count {
            // A turn may detach a port: then this looks at another one, which does no harm.
            let Some(ports) = self.ports.turns.begin_turn(owner, count) else { break };
            for at in ports {
                let Some(slot) = self.ports.turns.polled_at(at) else { break };
                moved |= self.turn(slot);
                self.flush();
            }
        }
        if !self.remote_first && !self.links.arrived.is_empty() {
            moved |= self.serve_remote();
        }
        self.flush();
        self.send_handed();
        moved
    }

    /// One sender's share of a round. True if it sent anything, unless it sent so much in vain that it is paused now:
    /// that is no reason to poll it again soon.
    pub fn turn(&mut self, slot: Slot) -> bool {
        let Some(mut sender) = self.ports.take(slot) else { return false };
        self.serving = slot;
        self.heartbeat.serve(sender.id.0);
        let outcome = catch_unwind(AssertUnwindSafe(|| self.send(slot, &mut sender)));
        let paused = sender.tx.limits.is_paused();
        self.ports.put(slot, sender);
        let moved = outcome.unwrap_or_else(|_| {
            self.blame();
            true
        });
        if moved {
            self.mark(slot);
            self.disarm_one(slot);
        }
        moved && !paused
    }

    fn send(&mut self, slot: Slot, sender: &mut Port) -> bool {
        if sender.tx.limits.still_paused(self.now) || sender.retired {
            return false;
        }
        let Some(mut end) = sender.end.take() else { return false };
        // The end goes back to its port whatever happens.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.send_bursts(slot, sender, &mut *end)));
        if outcome.is_err() && self.serving != slot {
            // A receiver's code failed: the frame it failed with is done with too.
            sender.tx.burst.keep(&self.coalescer.take_waiting());
            let _ = catch_unwind(AssertUnwindSafe(|| end.finish(sender.tx.burst.take_done())));
        }
        if outcome.is_err() {
            self.coalescer.reset();
        }
        sender.end = Some(end);
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// How many frames a port is asked for at once. What it keeps of a frame that it has lent is in the CPU's cache if a frame
    /// of this turn used it before; what was used in its last turn is not, where many ports have turns in between. Segments
    /// that are merged need the others of their burst.
    #[inline]
    fn burst(&self, sender: &Port) -> u32 {
        let crowded = self.ports.turns.count_polled() > CROWD;
        if crowded && !sender.tx.luck.merges() { CROWDED_BURST } else { BURST as u32 }
    }

    /// Fetches and forwards until nothing waits or the owner's share is used up.
    fn send_bursts(&mut self, slot: Slot, sender: &mut Port, end: &mut dyn FramePort) -> bool {
        if let Some(copies) = sender.copies() {
            return self.send_copies(slot, sender, end, copies);
        }
        let mut scratch = None;
        let mut left = self.ports.allowances.left(sender.owner);
        let mut moved = false;
        while left.frames > 0 && !sender.tx.limits.is_paused() {
            let most = left.frames.min(self.burst(sender));
            let all = sender.tx.burst.has_frames() || {
                if sender.moving && sender.remote.is_none() {
                    break;
                }
                let fetched = sender.tx.burst.fetch(end, most);
                let overhead = sender.info.overhead.take() * PIECE_COST;
                if overhead > 0 {
                    // Frames that were left out are completed, too.
                    moved = true;
                    self.ports.allowances.charge(sender.owner, overhead);
                    if self.ports.allowances.is_over(sender.owner) {
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
                sender.tx.luck.note(outcome);
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
        if moved
            && !self.links.is_alone()
            && sender.remote.is_none()
            && self.held.sends_to_others(slot, self.now)
        {
            sender.state.remote.sends_to_several(self.now);
        }
        self.ports.allowances.set_left(sender.owner, left);
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
            let with = self.goes_with(&mut batch, sender, &frame);
            let lent = Lent { end, token, tx: &frame };
            if !(with && self.push(slot, sender, &mut batch, &lent, &mut cost)) {
                self.deliver_batch(slot, sender, &mut batch);
                // Until `forward` says otherwise: a receiver's panic must not leave it lent.
                sender.tx.burst.done(token);
                if self.forward(slot, sender, &lent, scratch, &mut cost) == Fate::Pending {
                    sender.tx.burst.undo(1);
                }
            }
            match left.bytes.checked_sub(cost) {
                Some(bytes) => left.bytes = bytes,
                None => left.frames = 0,
            }
        }
        self.deliver_batch(slot, sender, &mut batch);
        self.close_all(slot, end);
    }

    /// Takes one frame on its way.
    fn forward(
        &mut self,
        slot: Slot,
        sender: &mut Port,
        lent: &Lent<'_, '_>,
        scratch: &mut [u8; MAX_HEAD],
        cost: &mut usize,
    ) -> Fate {
        let rate = sender.config.floods.unwrap_or(self.settings.floods);
        let fate = Frame::new(lent.tx, scratch).and_then(|frame| {
            let (vlan, learn) = admit(&sender.config, &sender.access, frame.source(), frame.tag)?;
            let (group, uplink) = (sender.group, sender.config.uplink);
            let face = if uplink { self.ports.teams.face(slot) } else { None };
            let teamed = face.is_some();
            let own = sender.remote.is_none().then_some(sender.access.effective);
            let from = Sender { slot: face.unwrap_or(slot), group, uplink, teamed, own };
            let addresses = [frame.destination(), frame.source()];
            let ports = &self.ports;
            let in_vlan = |slot: Slot| {
                let port = ports.get(slot).filter(|port| port.carries(vlan))?;
                Some(PortInVlan { uplink: port.config.uplink })
            };
            let route = &mut sender.tx.route;
            let to = if sender.config.direct && !uplink {
                let uplink = || self.ports.uplink_of(group).ok_or(DropReason::NoReceiver);
                self.fdb.find_direct(group, route, addresses, vlan, uplink)?
            } else {
                self.fdb.find(from, route, addresses, (vlan, learn && !sender.config.direct), in_vlan)?
            };
            let one = matches!(to, Destination::One(_));
            // What another worker handed over was looked at there.
            let remote = sender.remote.is_some();
            if !one && !uplink && !remote && !sender.tx.limits.may_flood(rate, self.now) {
                return Err(DropReason::Flood);
            }
            let checked = frame.check()?;
            if let Job::Segment(segmentation) = &checked.job {
                sender.tx.counts.tso += u64::from(segmentation.segments > 1);
            }
            let &Lent { end, token, .. } = lent;
            let more = sender.tx.burst.has_frames() && sender.tx.luck.may_open();
            let looks = self.snooping && to == Destination::Group;
            let multicast = if looks { look(sender, checked.frame, vlan, self.now) } else { ANY };
            let lender = sender.lender(slot);
            let merges = true;
            let from =
                Origin { slot, group, uplink, remote, lender, token, vlan, end, more, merges, multicast };
            self.spread(&checked, from, to, cost)
        });
        *cost += self.coalescer.take_read();
        fate.unwrap_or_else(|reason| {
            sender.lose_sent(reason);
            if !sender.config.uplink && sender.remote.is_none() {
                sender.tx.limits.fault(rate, self.now);
            }
            Fate::Finished
        })
    }

    /// Gives a frame to all who should get it.
    #[inline]
    fn spread(
        &mut self,
        sent: &Checked<'_>,
        from: Origin<'_>,
        to: Destination,
        cost: &mut usize,
    ) -> Result<Fate, DropReason> {
        match to {
            Destination::One(receiver) => {
                let teams = &self.ports.teams;
                let alone = teams.is_empty() || from.uplink;
                let receiver = if alone { receiver } else { teams.route(receiver, from.slot, sent) };
                if self.ports.is_mirrored(from.group) {
                    let others = self.mirror(sent, from, receiver, cost);
                    if !others.is_empty() {
                        let fate = self.give(sent, Origin { merges: false, ..from }, receiver, true);
                        return Ok(self.hand_to_all(others, sent, from, fate));
                    }
                }
                Ok(self.give(sent, from, receiver, true))
            }
            Destination::Group => {
                let address = sent.frame.destination();
                let now = self.now;
                let wants = |port: &Port| port.accepts_group(address) && port.gets(from.multicast, now);
                let fate = self.give_all(sent, from, cost, wants);
                Ok(fate.unwrap_or(Fate::Finished))
            }
            Destination::Unknown => {
                self.give_all(sent, from, cost, |port| port.access.unknown).ok_or(DropReason::NoReceiver)
            }
        }
    }

    /// To all members of the VLAN that `want` it; None if there is none. The frame waits only if it has
    /// a single receiver.
    fn give_all(
        &mut self,
        sent: &Checked<'_>,
        from: Origin<'_>,
        cost: &mut usize,
        want: impl Fn(&Port) -> bool,
    ) -> Option<Fate> {
        let (mut fate, mut only) = (None, None);
        let mut others = Workers::default();
        let mut at = 0;
        while let Some(slot) = self.ports.member(from.group, at) {
            at += 1;
            let teams = &self.ports.teams;
            let is_receiver = self.ports.get(slot).is_some_and(|port| {
                port.carries(from.vlan)
                    && !(from.uplink && port.config.uplink)
                    && want(port)
                    && (port.remote.is_some()
                        || teams.is_empty()
                        || teams.passes((from.slot, from.uplink), sent, (slot, port)))
            });
            if !is_receiver {
                continue;
            }
            if let Some(worker) = self.ports.get(slot).and_then(|port| port.remote) {
                // That worker gives it to all of its ports.
                if !from.remote {
                    others.add(worker);
                }
                continue;
            }
            match (only, fate) {
                (None, None) => only = Some(slot),
                (Some(first), None) => {
                    self.give(sent, from, first, false);
                    fate = Some(self.give(sent, from, slot, false));
                }
                _ => fate = Some(self.give(sent, from, slot, false)),
            }
            *cost += sent.frame.len() + COPY_COST;
        }
        let fate = match (only, fate) {
            (Some(only), None) => Some(self.give(sent, from, only, others.is_empty())),
            (_, fate) => fate,
        };
        if others.is_empty() {
            return fate;
        }
        Some(self.hand_to_all(others, sent, from, fate.unwrap_or(Fate::Finished)))
    }

    /// Copies for those who look at others' frames. Returns the workers, beside the receiver's, that have such ports.
    #[cold]
    fn mirror(&mut self, sent: &Checked<'_>, from: Origin<'_>, receiver: Slot, cost: &mut usize) -> Workers {
        let mut others = Workers::default();
        let mut at = 0;
        while let Some(slot) = self.ports.member(from.group, at) {
            at += 1;
            let looks =
                self.ports.get(slot).is_some_and(|port| port.access.mirror && port.carries(from.vlan));
            if !looks || slot == receiver {
                continue;
            }
            match self.ports.get(slot).and_then(|port| port.remote) {
                Some(worker) if !from.remote => others.add(worker),
                Some(_) => {}
                None => {
                    self.give(sent, from, slot, false);
                    *cost += sent.frame.len() + COPY_COST;
                }
            }
        }
        if let Some(worker) = self.ports.get(receiver).and_then(|port| port.remote) {
            others.remove(worker);
        }
        others
    }

    /// Hands a frame over to these workers, after `fate` became of it here.
    #[cold]
    fn hand_to_all(&mut self, others: Workers, sent: &Checked<'_>, from: Origin<'_>, fate: Fate) -> Fate {
        let mut holders = usize::from(fate == Fate::Pending);
        for worker in others.iter() {
            match self.links.hand_over(worker, (from.lender, from.token), sent.frame.tx) {
                Handed::Lent => holders += 1,
                Handed::Copied => {}
                Handed::No => self.lose_at(worker, from, DropReason::NoBuffers),
            }
        }
        self.links.share(from.slot, from.token, holders);
        if holders > 0 { Fate::Pending } else { Fate::Finished }
    }

    /// A frame to several does not get to the ports of a worker: counted at the first of them.
    fn lose_at(&mut self, worker: usize, from: Origin<'_>, reason: DropReason) {
        let mut at = 0;
        while let Some(slot) = self.ports.member(from.group, at) {
            at += 1;
            if let Some(port) = self.ports.get(slot).filter(|port| port.remote == Some(worker)) {
                return port.lose(reason);
            }
        }
    }

    /// Gives a frame to a receiver that another worker owns.
    fn give_remote(
        &mut self,
        worker: usize,
        sent: &Checked<'_>,
        from: Origin<'_>,
        receiver: Slot,
        may_wait: bool,
    ) -> Fate {
        let Some(port) = self.ports.get(receiver) else { return Fate::Finished };
        if from.remote {
            // It went where its sender's worker knew it to be, and is not sent on.
            port.lose(DropReason::Gone);
            return Fate::Finished;
        }
        let waits = port.moving || port.pending.has_of(from.lender.owner);
        let lent = (from.lender, from.token);
        let handed = if waits { Handed::No } else { self.links.hand_over(worker, lent, sent.frame.tx) };
        match handed {
            Handed::Lent => return Fate::Pending,
            Handed::Copied => return Fate::Finished,
            Handed::No => {}
        }
        let (sender, token, len) = (from.slot, from.token, sent.frame.len() as u32);
        let frame = PendingFrame { sender, token, len, tag: None, next: 0, since: self.now };
        self.pend_or_show(sent, receiver, frame, may_wait)
    }

    /// Gives a frame to one receiver; `may_wait` for its buffers.
    #[inline]
    fn give(&mut self, sent: &Checked<'_>, from: Origin<'_>, receiver: Slot, may_wait: bool) -> Fate {
        let Some(port) = self.ports.get_mut(receiver) else { return Fate::Finished };
        let Some(end) = port.end.as_ref() else { return Fate::Finished };
        if !port.watch.polled {
            // It was not polled in this round.
            port.capabilities = end.capabilities();
        }
        if may_wait {
            self.held.note(from.slot, port.owner, self.now);
        }
        if let Some(worker) = port.remote {
            return self.give_remote(worker, sent, from, receiver, may_wait);
        }
        let to = sent.frame.destination();
        let tag = match port.access.receive(&port.config, end.filter(), to, from.vlan, sent.frame.tag) {
            Ok(tag) if !port.pending.stalled => tag,
            refused => {
                let reason = refused.err().unwrap_or(DropReason::NoBuffers);
                port.lose(reason);
                port.show_lost(sent.frame.tx, reason);
                return Fate::Finished;
            }
        };
        let own = port.access.is_own(to) || port.config.uplink;
        if self.settings.coalesce
            && port.aggregates()
            && self.coalesce(sent, from, (receiver, tag), own && may_wait && from.merges)
        {
            return Fate::Finished;
        }
        self.hand(sent, from, (receiver, tag, !own), may_wait)
    }

    /// Hands a frame to a port: `mirror` says whether it only looks at others' frames.
    #[inline]
    fn hand(
        &mut self,
        sent: &Checked<'_>,
        from: Origin<'_>,
        (receiver, tag, mirror): (Slot, Option<Tci>, bool),
        may_wait: bool,
    ) -> Fate {
        let is_over = self.ports.get(receiver).is_some_and(|port| self.ports.allowances.is_over(port.owner));
        let Some(port) = self.ports.get_mut(receiver) else { return Fate::Finished };
        port.comes_from(self.held.claim(from.slot));
        let Some(end) = port.end.as_mut() else { return Fate::Finished };
        let (sender, token, len) = (from.slot, from.token, sent.frame.len() as u32);
        let mut pending = PendingFrame { sender, token, len, tag, next: 0, since: self.now };
        if is_over || !port.pending.is_empty() {
            return self.pend_or_show(sent, receiver, pending, may_wait);
        }
        let (capabilities, counts) = (&port.capabilities, &mut port.rx);
        let to = Receiver { end: &mut **end, capabilities, counts, tag, mirror };
        self.serving = receiver;
        let outcome = self.egress.deliver(sent, &mut pending.next, to);
        self.serving = from.slot;
        let (owner, overhead) = (port.owner, port.info.overhead.take());
        if let Err(reason) = outcome
            && reason != DropReason::NoBuffers
        {
            port.lose(reason);
        }
        self.ports.allowances.charge(owner, overhead * PIECE_COST);
        if outcome == Err(DropReason::NoBuffers) {
            return self.pend_or_show(sent, receiver, pending, may_wait);
        }
        self.mark(receiver);
        Fate::Finished
    }

    /// Lets a frame wait. One that may not is shown to those who look at its receiver.
    #[cold]
    fn pend_or_show(
        &mut self,
        sent: &Checked<'_>,
        receiver: Slot,
        frame: PendingFrame,
        may_wait: bool,
    ) -> Fate {
        let Err(reason) = self.pend(receiver, frame, may_wait) else { return Fate::Pending };
        self.ports.get(receiver).iter().for_each(|port| port.show_lost(sent.frame.tx, reason));
        Fate::Finished
    }

    /// Lets a frame wait for its receiver's buffers, if there is a place; else it is dropped.
    #[cold]
    pub fn pend(&mut self, receiver: Slot, frame: PendingFrame, may_wait: bool) -> Result<(), DropReason> {
        self.mark(receiver);
        let claim = self.held.claim(frame.sender);
        let longest = self.longest_wait(frame.sender);
        let Some(port) = self.ports.get_mut(receiver) else { return Err(DropReason::Gone) };
        let first = port.pending.is_empty();
        let refused = if !may_wait || port.pending.is_overdue(self.now, longest) {
            Some(DropReason::NoBuffers)
        } else if !self.held.take(frame.sender, port.owner, self.now) {
            Some(DropReason::SlowReceiver)
        } else if !port.pending.push(frame, claim) {
            self.held.give_back(frame.sender, port.owner);
            Some(DropReason::NoBuffers)
        } else {
            None
        };
        if let Some(reason) = refused {
            port.lose(reason);
            return Err(reason);
        }
        self.waiting += usize::from(first);
        port.stats.pending.inc();
        Ok(())
    }

    /// Flushes the ports that got or finished something.
    pub fn flush(&mut self) {
        while let Some(slot) = self.dirty.pop() {
            let now = self.now;
            self.guarded(slot, |core| {
                let Some(port) = core.ports.get_mut(slot) else { return };
                port.dirty = false;
                port.publish_counts();
                if let Some(end) = &mut port.end {
                    end.flush(now);
                }
            });
        }
    }
}
