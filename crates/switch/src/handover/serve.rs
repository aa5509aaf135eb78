//! What a worker does for the ports of others, and they for its own.

use std::any::Any;

use arrayvec::ArrayVec;
use vmlane_port::{BURST, DropReason, Token};

use super::frame::HandedFrame;
use super::lender::Lender;
use super::link::Handed;
use super::port::RemotePort;
use super::state::Attachment;
use crate::Slot;
use crate::core::Core;
use crate::port::Port;
use crate::queue::{Change, Request};

/// Workers, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workers(u64);

impl Workers {
    pub fn add(&mut self, worker: usize) {
        self.0 |= 1 << worker;
    }

    pub fn remove(&mut self, worker: usize) {
        self.0 &= !(1 << worker);
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..u64::BITS as usize).filter(move |worker| self.0 >> worker & 1 != 0)
    }
}

/// The remote port that is attached there.
pub fn remote_end(port: &mut Port) -> Option<&mut RemotePort> {
    let end: &mut dyn Any = &mut **port.end.as_mut()?;
    end.downcast_mut()
}

impl Core {
    /// Tells the other workers what is attached to a port of this one, if that has changed.
    pub fn publish(&mut self, slot: Slot) {
        if self.links.is_alone() {
            return;
        }
        let attachment = self.guarded(slot, |core| {
            let port = core.ports.get(slot).filter(|port| !port.retired)?;
            let end = port.end.as_ref()?;
            Some(Attachment { number: port.attachment, filter: end.filter().clone() })
        });
        let Some(port) = self.ports.get(slot).filter(|port| port.remote.is_none()) else { return };
        if !port.state.remote.publish(attachment.flatten()) {
            return;
        }
        let (id, state) = (port.id, port.state.clone());
        for worker in self.links.others() {
            if state.remote.is_to_be_told(worker) {
                self.links.ask(worker, Request::Of(id, Change::Adopt));
            }
        }
    }

    /// What is attached to another worker's port has changed.
    pub fn adopt_remote(&mut self, slot: Slot) {
        let Some(port) = self.ports.get(slot) else { return };
        let Some(worker) = port.remote else { return };
        let now = port.state.remote.look(self.number);
        let known = now.as_ref().is_some_and(|now| {
            let port = self.ports.get_mut(slot);
            port.and_then(remote_end)
                .filter(|end| end.is(now.number))
                .map(|end| end.set_filter(now.filter.clone()))
                .is_some()
        });
        if !known {
            self.drop_pending_between(slot);
            self.ports.get_mut(slot).map(Port::drop_end);
            self.put_remote(slot, worker, now);
        }
        self.rebuild();
        if !known {
            self.announce(slot);
        }
    }

    /// The port is that of another worker than before, and nothing of it is on the way.
    pub fn attach_remote(&mut self, slot: Slot) {
        let Some(port) = self.ports.get(slot) else { return };
        let Some(worker) = port.remote else { return };
        let now = port.state.remote.look(self.number);
        self.put_remote(slot, worker, now);
    }

    fn put_remote(&mut self, slot: Slot, worker: usize, now: Option<Attachment>) {
        let end = now.and_then(|now| Some(Box::new(RemotePort::new(now, self.links.done(worker)?))));
        if let Some(port) = self.ports.get_mut(slot) {
            port.end = end.map(|end| end as _);
        }
        self.held.set_places(slot, super::PLACES);
    }

    /// What is attached to a port is about to be dropped: it sends nothing more, and the other workers let go of it.
    pub fn retire(&mut self, slot: Slot) {
        if let Some(port) = self.ports.get_mut(slot) {
            port.retired = port.end.is_some();
        }
        self.publish(slot);
    }

    /// A panic in the code that serves a remote port: its own worker ends what is attached to it.
    #[cold]
    pub fn blame_remote(&mut self, slot: Slot) {
        if let Some(port) = self.ports.get(slot)
            && let Some(worker) = port.remote
        {
            let id = port.id;
            self.links.ask(worker, Request::Of(id, Change::Fault));
        }
    }

    /// The beginning of a round: takes what other workers have handed over or are done with. True if there was anything.
    pub fn take_handed(&mut self) -> bool {
        if self.links.is_alone() || !self.links.has_waiting() {
            return false;
        }
        let mut finished: Vec<(Lender, Token)> = std::mem::take(&mut self.finished);
        self.links.take_back(|lender, token| finished.push((lender, token)));
        for of_one in finished.chunk_by(|a, b| a.0 == b.0) {
            let Some(&(Lender { slot, attachment, .. }, _)) = of_one.first() else { continue };
            if self.ports.get(slot).is_some_and(|port| port.attachment == attachment) {
                self.finish_all(slot, of_one);
            } else {
                self.links.let_go();
            }
        }
        finished.clear();
        self.finished = finished;
        let mut arrived = std::mem::take(&mut self.arriving);
        self.links.take_arrived(|worker, frame| arrived.push((worker, frame)));
        for (worker, frame) in arrived.drain(..) {
            self.arrive(worker, frame);
        }
        self.arriving = arrived;
        true
    }

    /// Others are done with these frames of a port.
    fn finish_all(&mut self, slot: Slot, frames: &[(Lender, Token)]) {
        for some in frames.chunks(BURST) {
            let tokens: ArrayVec<Token, BURST> = some
                .iter()
                .map(|(_, token)| *token)
                .filter(|token| self.links.is_last(slot, *token))
                .collect();
            self.give_back(slot, &tokens);
            self.mark(slot);
        }
    }

    /// A frame has come: its sender's remote port is to send it.
    fn arrive(&mut self, worker: usize, frame: Box<HandedFrame>) {
        let Lender { slot, attachment, .. } = frame.lender;
        let end = self.ports.get_mut(slot).filter(|port| port.remote == Some(worker)).and_then(remote_end);
        match end.filter(|end| end.is(attachment)) {
            Some(end) => {
                end.push(frame);
                if !self.links.arrived.contains(&slot) {
                    self.links.arrived.push(slot);
                }
            }
            // Its sender is gone, or will be: its memory is not to be looked at.
            None => {
                if let Some(done) = self.links.done(worker) {
                    done.lock().push(frame);
                }
            }
        }
    }

    /// The turns of remote ports that have frames. True if any of them sent something, or is to go on in the next round.
    pub fn serve_remote(&mut self) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(&slot) = self.links.arrived.get(at) {
            moved |= self.turn(slot);
            self.flush();
            let port = self.ports.get_mut(slot);
            let more = port.is_some_and(|port| {
                port.tx.burst.has_frames() || remote_end(port).is_some_and(|end| end.has_frames())
            });
            if more {
                at += 1;
            } else {
                self.links.arrived.remove(at);
            }
        }
        moved || !self.links.arrived.is_empty()
    }

    /// The end of a round: what was handed over and what is done with leaves.
    #[inline]
    pub fn send_handed(&mut self) {
        if !self.links.is_alone() {
            self.links.send_all();
        }
    }

    /// Hands the frames that wait for a remote port over, as far as there are places. True if one went.
    pub fn serve_remote_pending(&mut self, slot: Slot, receiver: &mut Port, worker: usize) -> bool {
        let mut moved = false;
        let mut at = 0;
        while !receiver.moving && receiver.pending.begin_turn_of(at) {
            while let Some(frame) = receiver.pending.front() {
                let handed = self.ports.get(frame.sender).and_then(|sender| {
                    self.serving = frame.sender;
                    let end = sender.end.as_ref()?;
                    let lent = (sender.lender(frame.sender), frame.token);
                    Some(self.links.hand_over(worker, lent, &end.frame(frame.token)))
                });
                self.serving = slot;
                match handed {
                    Some(Handed::No) => break,
                    Some(_) => {}
                    None => receiver.lose(DropReason::Gone),
                }
                receiver.pending.pop_of_turn(self.now);
                self.held.give_back(frame.sender, receiver.owner);
                if handed == Some(Handed::Copied) {
                    self.finish(frame.sender, frame.token);
                    self.serving = slot;
                }
                moved = true;
            }
            // One that has no frames any more is not counted any more.
            at += usize::from(receiver.pending.front().is_some());
            receiver.pending.end_turn();
        }
        moved
    }
}
