//! A port goes to another worker, with all that is attached to it. No frame to or from it is lost or overtakes another one,
//! but for one to several that is on its way in the moment of the change: the port may miss it, or get it twice. Frames for it
//! wait meanwhile as those for a full receiver do, and as few may.
//!
//! Its rings are touched by one worker at any time: by the one that it leaves until that one has taken it out of its
//! table, and by the other one from when that one has put it into its own.
//!
//! | step | asked of | what it does |
//! | --- | --- | --- |
//! | [`Step::Hold`] | all | the port sends nothing more, and frames for it wait with the workers of their senders |
//! | [`Step::Settled`] | its worker, then the others | is nothing of it on the way? |
//! | [`Step::Leave`] | its worker | takes it out, if that is still so; in its place is a remote port |
//! | [`Step::Arrive`] | the other worker | puts it in, with the frames that wait there |
//! | [`Step::Follow`] | all but that one | frames for it are handed over to that one |
//! | [`Step::Resume`] | all | as ever |
//!
//! `moving/ask.rs` asks that of the workers, one step after the other.

mod ask;

use std::sync::atomic::Ordering;

use vmlane_port::{DropReason, MAX_HEAD};
use vmlane_wire::ethernet::Tci;
use vmlane_worker::Watch;

use crate::Slot;
use crate::core::Core;
use crate::handover::{PLACES, remote_end};
use crate::ingress::{Frame, admit};
use crate::pending::{PendingFrame, PendingQueue};
use crate::port::{Numbered, Port};
use crate::queue::Step;

pub use ask::Move;

impl Core {
    /// Does its part of a port's way to another worker.
    pub fn move_port(&mut self, slot: Slot, step: Step) {
        match step {
            Step::Hold => {
                self.set_moving(slot, true);
                self.note_arrived(slot);
            }
            Step::Resume => self.set_moving(slot, false),
            Step::Settled(count) => {
                if self.is_settled(slot) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            Step::Leave { to, into } => {
                if self.is_settled(slot) {
                    *into.lock() = self.take_out(slot, to);
                }
            }
            Step::Arrive(port) => self.put_in(slot, port),
            Step::Follow { to } => self.follow(slot, to),
        }
    }

    fn set_moving(&mut self, slot: Slot, moving: bool) {
        if let Some(port) = self.ports.get_mut(slot) {
            port.moving = moving;
        }
        self.note(slot);
        // What was handed over before is on its way when this is done.
        self.send_handed();
    }

    /// Is nothing of a port on the way here?
    fn is_settled(&mut self, slot: Slot) -> bool {
        self.take_handed();
        // Some of those may be for it.
        if !self.links.arrived.is_empty() {
            self.serve_remote();
        }
        self.flush();
        self.send_handed();
        let Some(port) = self.ports.get(slot) else { return false };
        let sent = !port.tx.burst.has_lent();
        if port.remote.is_some() {
            return sent && !self.links.arrived.contains(&slot);
        }
        sent && !port.pending.stalled && !self.has_begun(port) && self.have_arrived_passed(slot)
    }

    /// Notes which frames have come from other workers until now: some of them may be for a port that is held, and later ones are
    /// not.
    fn note_arrived(&mut self, slot: Slot) {
        self.take_handed();
        let arrived = |&from: &Slot| {
            let end = self.ports.get_mut(from).and_then(remote_end)?;
            Some((from, end.count_arrived()))
        };
        let noted = self.links.arrived.iter().filter_map(arrived).collect();
        if let Some(port) = self.ports.get_mut(slot).filter(|port| port.remote.is_none()) {
            port.before_move = noted;
        }
    }

    /// Have those had their turns?
    fn have_arrived_passed(&mut self, slot: Slot) -> bool {
        let noted = self.ports.get_mut(slot).map(|port| std::mem::take(&mut port.before_move));
        let mut left = noted.unwrap_or_default();
        left.retain(|&(from, count)| {
            let sender = self.ports.get_mut(from).filter(|_| self.links.arrived.contains(&from));
            sender.is_some_and(|sender| {
                let here = sender.tx.burst.count_left() as u64;
                remote_end(sender).is_some_and(|end| end.count_fetched().saturating_sub(here) < count)
            })
        });
        let all = left.is_empty();
        if let Some(port) = self.ports.get_mut(slot) {
            port.before_move = left;
        }
        all
    }

    /// Does anything wait for a port that cannot be handed over: a frame that it has in part, or one that came from another
    /// worker?
    pub fn has_begun(&self, port: &Port) -> bool {
        let stays = |frame: &PendingFrame| {
            frame.next > 0 || self.ports.get(frame.sender).is_none_or(|sender| sender.remote.is_some())
        };
        port.pending.frames().any(stays)
    }

    /// Takes a port of this worker out of the table. Frames that wait for it stay, to be handed over.
    fn take_out(&mut self, slot: Slot, to: usize) -> Option<Box<Port>> {
        let mut port = self.ports.take(slot)?;
        port.publish_counts();
        port.watch.forget();
        let &mut Port { id, owner, group, .. } = &mut *port;
        let of = Numbered { id, slot, owner, group, remote: Some(to) };
        let mut remote = Port::new(of, port.config.clone(), port.stats.clone(), port.state.clone());
        remote.set_down(port.is_down());
        remote.moving = true;
        remote.pending = std::mem::replace(&mut port.pending, PendingQueue::small(self.now));
        self.ports.put(slot, Box::new(remote));
        self.follow(slot, to);
        self.set_moving(slot, true);
        self.links.forget(slot);
        Some(port)
    }

    /// Puts a port that another worker had into the table.
    fn put_in(&mut self, slot: Slot, mut port: Box<Port>) {
        self.links.arrived.retain(|other| *other != slot);
        let mut waited = Vec::new();
        if let Some(mut remote) = self.ports.take(slot) {
            waited.extend(remote.pending.frames().copied());
            port.group = remote.group;
            remote.drop_end();
        }
        port.before_move = Vec::new();
        port.pending = PendingQueue::new(self.now);
        port.watch = Watch::new(true, self.now);
        let look_ahead = if port.end.is_some() { port.info.look_ahead } else { PLACES };
        self.held.set_places(slot, look_ahead);
        self.ports.put(slot, port);
        self.rebuild();
        waited.into_iter().for_each(|frame| self.wait_on(slot, frame));
        self.count_waiting();
        self.mark(slot);
    }

    /// A frame that waited to be handed over waits for the port itself.
    fn wait_on(&mut self, slot: Slot, frame: PendingFrame) {
        let tag = self.guarded(frame.sender, |core| core.tag_of(slot, &frame)).flatten();
        let claim = self.held.claim(frame.sender);
        let Some(port) = self.ports.get_mut(slot) else { return };
        if tag.is_some_and(|tag| port.pending.push(PendingFrame { tag, ..frame }, claim)) {
            return;
        }
        port.lose(if tag.is_some() { DropReason::NoBuffers } else { DropReason::Gone });
        self.held.give_back(frame.sender, port.owner);
        self.finish(frame.sender, frame.token);
    }

    /// The tag with which a port gets a frame; None: it does not get it.
    fn tag_of(&self, slot: Slot, frame: &PendingFrame) -> Option<Option<Tci>> {
        let (sender, port) = (self.ports.get(frame.sender)?, self.ports.get(slot)?);
        let lent = sender.end.as_ref()?.frame(frame.token);
        let mut scratch = [0; MAX_HEAD];
        let head = Frame::new(&lent, &mut scratch).ok()?;
        let (vlan, _) = admit(&sender.config, &sender.access, head.source(), head.tag).ok()?;
        let filter = port.end.as_ref()?.filter();
        port.access.receive(&port.config, filter, head.destination(), vlan, head.tag).ok()
    }

    /// A port of another worker is that of worker `to` now.
    fn follow(&mut self, slot: Slot, to: usize) {
        self.links.arrived.retain(|other| *other != slot);
        if let Some(port) = self.ports.get_mut(slot) {
            port.remote = Some(to);
            port.drop_end();
        }
        self.attach_remote(slot);
        self.rebuild();
        self.count_waiting();
        self.set_moving(slot, false);
    }
}
