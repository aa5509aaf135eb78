//! A port's turn: its frames are fetched, checked, looked up and given to their receivers.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use vmlane_port::{
    ChecksumStatus, DropReason, FramePort, Layers, MAX_HEAD, Offload, Refusal, RxFrame, Token, TxFrame,
};
use vmlane_wire::ethernet::Mac;

use crate::fabric::{Allowance, Fabric};
use crate::forward::{Delivery, Undelivered};
use crate::frame::{Frame, Job, job};
use crate::lookup::Way;
use crate::parse;
use crate::port::{MAX_PARKED, MAX_SLOW, Parked, Port};
use crate::spec::VlanMode;
use crate::table::{Slot, key};

/// Bytes that a delivery costs beside its own, when turns are measured.
const DELIVERY_COST: usize = 64;
/// The same for each piece that a frame lies in: a guest may scatter a frame over hundreds.
const PIECE_COST: usize = 96;
/// The same for each copy of a frame that goes to several.
const COPY_COST: usize = 1024;

/// How long nothing is taken from a port that sends too much that is dropped for its own fault: what it sends in
/// vain would keep the worker, and with it the processor, from others.
const REST: Duration = Duration::from_millis(5);

/// What became of a frame in its sender's eyes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Finished,
    Held,
}

/// A checked frame and where it comes from.
struct Sent<'a> {
    slot: Slot,
    group: u16,
    from_uplink: bool,
    token: Token,
    frame: Frame<'a>,
    layers: Layers,
    job: Job,
    vlan: u16,
}

impl Fabric {
    /// One sender's share of a round. True if it sent anything, unless it sent so much in vain that it rests now:
    /// that is no reason to look again soon.
    pub fn turn(&mut self, slot: Slot) -> bool {
        let Some(mut sender) = self.slots[usize::from(slot)].take() else { return false };
        self.serving = slot;
        self.beat.serve(sender.id.0);
        let outcome = catch_unwind(AssertUnwindSafe(|| self.send(slot, &mut sender)));
        let rests = sender.rests_until.is_some();
        self.slots[usize::from(slot)] = Some(sender);
        let moved = outcome.unwrap_or_else(|_| {
            self.blame();
            true
        });
        if moved {
            self.mark(slot);
        }
        moved && !rests
    }

    fn send(&mut self, slot: Slot, sender: &mut Port) -> bool {
        if sender.rests_until.is_some_and(|until| self.now < until) {
            return false;
        }
        sender.rests_until = None;
        let Some(mut end) = sender.end.take() else { return false };
        // The end goes back to its port whatever happens.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut scratch = [0; MAX_HEAD];
            let Allowance { mut frames, mut bytes } = self.allowances[usize::from(sender.party)];
            let mut moved = false;
            while frames > 0 && sender.rests_until.is_none() {
                frames -= 1;
                let Some(token) = end.fetch() else { break };
                moved = true;
                let mut cost = 0;
                self.in_flight = Some(token);
                if self.forward(slot, sender, &*end, token, &mut scratch, &mut cost) == Fate::Finished {
                    self.in_flight = None;
                    end.finish(token);
                }
                match bytes.checked_sub(cost) {
                    Some(left) => bytes = left,
                    None => frames = 0,
                }
            }
            self.allowances[usize::from(sender.party)] = Allowance { frames, bytes };
            moved
        }));
        if outcome.is_err() && self.serving != slot {
            // A receiver's code failed, never with a frame that waits for it.
            if let Some(token) = self.in_flight {
                let _ = catch_unwind(AssertUnwindSafe(|| end.finish(token)));
            }
        }
        sender.end = Some(end);
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Takes one frame on its way.
    #[inline]
    fn forward(
        &mut self,
        slot: Slot,
        sender: &mut Port,
        end: &dyn FramePort,
        token: Token,
        scratch: &mut [u8; MAX_HEAD],
        cost: &mut usize,
    ) -> Fate {
        let lent = end.frame(token);
        sender.tx_frames += 1;
        sender.tx_bytes += lent.len() as u64;
        *cost += lent.len() + DELIVERY_COST + lent.spans.pieces() * PIECE_COST;
        if let Some(fate) = self.express(slot, sender, &lent, token) {
            return fate;
        }
        let fate = Frame::new(&lent, scratch).and_then(|frame| {
            let vlan = sender.ingress_vlan(frame.tag).ok_or(DropReason::BadVlan)?;
            let way = self.look_up(slot, sender, &frame, vlan)?;
            let limit = self.settings.floods;
            if limit > 0
                && !matches!(way, Way::One(_))
                && !sender.uplink
                && !sender.flood.take(limit, self.now)
            {
                return Err(DropReason::Flood);
            }
            let layers = parse::layers(frame.head);
            let job = job(&frame, &layers)?;
            if let Job::Segment(segmentation) = job {
                sender.tx_tso += u64::from(segmentation.segments > 1);
            }
            let (group, from_uplink) = (sender.group, sender.uplink);
            let sent = Sent { slot, group, from_uplink, token, frame, layers, job, vlan };
            self.spread(&sent, way, cost)
        });
        fate.unwrap_or_else(|reason| {
            sender.lose(reason);
            let limit = self.settings.floods;
            if limit > 0 && !sender.uplink && !sender.vain.take(limit, self.now) {
                sender.rests_until = Some(self.now + REST);
            }
            Fate::Finished
        })
    }

    /// The short way of most frames: nothing to be done to it, and like the last one from and to whom.
    /// None: not this one.
    #[inline]
    fn express(&mut self, slot: Slot, sender: &Port, lent: &TxFrame<'_>, token: Token) -> Option<Fate> {
        let head = lent.head;
        let (addresses, kind) = head.split_first_chunk::<12>()?;
        if lent.tag.is_some() || lent.offload != Offload::None || matches!(kind, [0x81, 0, ..] | [] | [_]) {
            return None;
        }
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *addresses;
        let route = &sender.route;
        let known = route.to == key(sender.group, Mac([a, b, c, d, e, f]))
            && route.from == key(sender.group, Mac([g, h, i, j, k, l]))
            && route.epoch == self.epoch
            && Some(route.vlan) == sender.untagged;
        if !known || self.mirrored[usize::from(sender.group)] {
            return None;
        }
        let receiver = route.receiver;
        let port = self.slots[usize::from(receiver)].as_deref_mut()?;
        let to_own = route.to == key(port.group, port.effective);
        let ready = to_own && port.takes_own && !port.blocked && !port.stalled && port.parked.is_empty();
        // Any other mode of tagging wants a tag or a look at the filter.
        let bare = route.vlan == 0 || matches!(port.vlan, VlanMode::Access(_));
        if !ready || !bare || lent.len() > port.capabilities.frame {
            return None;
        }
        let packet = RxFrame {
            head,
            body: lent.spans,
            body_at: head.len(),
            body_len: lent.len() - head.len(),
            tag: None,
            layers: parse::layers(head),
            checksum: ChecksumStatus::Unknown,
            aggregate: None,
            partial_checksum: None,
        };
        let end = port.end.as_mut()?;
        self.serving = receiver;
        let outcome = end.deliver(&packet);
        self.serving = slot;
        match outcome {
            Ok(()) => {
                port.rx.frames += 1;
                port.rx.bytes += packet.len() as u64;
            }
            Err(Refusal::Drop(reason)) => port.lose(reason),
            Err(Refusal::Full) => {
                let parked = Parked { sender: slot, token, tag: None, next: 0 };
                return Some(self.park(receiver, parked, true));
            }
        }
        if !port.dirty {
            port.dirty = true;
            self.dirty.push(receiver);
        }
        Some(Fate::Finished)
    }

    /// Gives a frame to all who should get it.
    #[inline]
    fn spread(&mut self, sent: &Sent<'_>, way: Way, cost: &mut usize) -> Result<Fate, DropReason> {
        match way {
            Way::One(receiver) => {
                if self.mirrored[usize::from(sent.group)] {
                    self.mirror(sent, receiver, cost);
                }
                Ok(self.give(sent, receiver, true))
            }
            Way::Group => {
                let to = sent.frame.destination();
                Ok(self.give_all(sent, cost, |port| port.takes_group(to)).unwrap_or(Fate::Finished))
            }
            Way::Unknown => self.give_all(sent, cost, |port| port.floods).ok_or(DropReason::NoReceiver),
        }
    }

    /// To all members of the VLAN that `want` it; None if there is none. The frame waits only if it has
    /// a single receiver.
    fn give_all(&mut self, sent: &Sent<'_>, cost: &mut usize, want: impl Fn(&Port) -> bool) -> Option<Fate> {
        let group = usize::from(sent.group);
        let is_receiver = |fabric: &Fabric, slot: Slot| {
            fabric.slots[usize::from(slot)].as_ref().is_some_and(|port| {
                port.vlan.carries(sent.vlan) && !(sent.from_uplink && port.uplink) && want(port)
            })
        };
        let mut fate = None;
        let mut only = None;
        for at in 0..self.members[group].len() {
            let slot = self.members[group][at];
            if !is_receiver(self, slot) {
                continue;
            }
            match (only, fate) {
                (None, None) => only = Some(slot),
                (Some(first), None) => {
                    self.give(sent, first, false);
                    fate = Some(self.give(sent, slot, false));
                }
                _ => fate = Some(self.give(sent, slot, false)),
            }
            *cost += sent.frame.len() + COPY_COST;
        }
        match (only, fate) {
            (Some(only), None) => Some(self.give(sent, only, true)),
            (_, fate) => fate,
        }
    }

    /// Copies for those who look at others' frames.
    #[cold]
    fn mirror(&mut self, sent: &Sent<'_>, receiver: Slot, cost: &mut usize) {
        let group = usize::from(sent.group);
        for at in 0..self.members[group].len() {
            let slot = self.members[group][at];
            let looks = self.slots[usize::from(slot)]
                .as_ref()
                .is_some_and(|port| port.mirror && port.vlan.carries(sent.vlan));
            if looks && slot != receiver {
                self.give(sent, slot, false);
                *cost += sent.frame.len() + COPY_COST;
            }
        }
    }

    /// Gives a frame to one receiver; `may_wait` for its buffers.
    #[inline]
    fn give(&mut self, sent: &Sent<'_>, receiver: Slot, may_wait: bool) -> Fate {
        let Some(port) = self.slots[usize::from(receiver)].as_mut() else { return Fate::Finished };
        let Some(end) = port.end.as_mut() else { return Fate::Finished };
        let to = sent.frame.destination();
        let own = to == port.effective || to.is_multicast();
        let wanted = if own { port.takes_own || to.is_multicast() } else { port.floods };
        let tag = match sent.vlan {
            0 if sent.frame.tag.is_none() => None,
            vlan => port.vlan.egress_tag(vlan, sent.frame.tag),
        };
        let refused = if port.blocked {
            Some(DropReason::MacChanged)
        } else if !wanted || sent.vlan != 0 && !port.vlan.shows(sent.vlan, end.filter()) {
            Some(DropReason::Filtered)
        } else if port.stalled {
            Some(DropReason::NoBuffers)
        } else {
            None
        };
        if let Some(reason) = refused {
            port.lose(reason);
            return Fate::Finished;
        }
        let parked = Parked { sender: sent.slot, token: sent.token, tag, next: 0 };
        if !port.parked.is_empty() {
            return self.park(receiver, parked, may_wait);
        }
        let delivery = Delivery {
            frame: &sent.frame,
            layers: sent.layers,
            job: sent.job,
            tag,
            capabilities: &port.capabilities,
            mirror: !own && !port.uplink,
            from: 0,
        };
        self.serving = receiver;
        let outcome = delivery.deliver(&mut **end, &mut self.edit, &mut port.rx);
        self.serving = sent.slot;
        match outcome {
            Ok(()) => {}
            Err(Undelivered::Drop(reason)) => port.lose(reason),
            Err(Undelivered::Full { next }) => {
                return self.park(receiver, Parked { next, ..parked }, may_wait);
            }
        }
        if !port.dirty {
            port.dirty = true;
            self.dirty.push(receiver);
        }
        Fate::Finished
    }

    /// Lets a frame wait for its receiver's buffers, if there is a place.
    #[cold]
    fn park(&mut self, receiver: Slot, parked: Parked, may_wait: bool) -> Fate {
        self.mark(receiver);
        let (now, hold) = (self.now, self.settings.hold);
        let Some(port) = self.slots[usize::from(receiver)].as_mut() else { return Fate::Finished };
        let first = port.parked.is_empty();
        let slow = !first && now.saturating_duration_since(port.waiting_since) > hold;
        let room = port.parked.len() < MAX_PARKED && !(slow && *port.count_parked(parked.sender) >= MAX_SLOW);
        if !may_wait || !room {
            port.lose(DropReason::NoBuffers);
            return Fate::Finished;
        }
        if first {
            port.progress = now;
            port.waiting_since = now;
            self.waiting += 1;
        }
        *port.count_parked(parked.sender) += 1;
        port.parked.push_back(parked);
        port.stats.held.inc();
        Fate::Held
    }
}
