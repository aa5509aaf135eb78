//! Frames that wait are given to receivers that have room again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use vmlane_port::{DropReason, MAX_HEAD};

use crate::Slot;
use crate::core::Core;
use crate::egress::Receiver;
use crate::ingress::Frame;
use crate::pending::{OTHERS, PendingFrame};
use crate::port::Port;
use crate::price::PIECE_COST;

impl Core {
    /// Gives pending frames to receivers that have room again. True if one moved.
    pub fn retry(&mut self) -> bool {
        let mut moved = false;
        let mut at = 0;
        let waiting = |core: &Core, at: usize| {
            let own = core.ports.turns.count_attached();
            core.ports.turns.attached_at(at).or_else(|| core.ports.remote_at(at.checked_sub(own)?))
        };
        while let Some(slot) = waiting(self, at) {
            at += 1;
            let concerned = |port: &Port| port.pending.stalled || !port.pending.is_empty();
            if !self.ports.get(slot).is_some_and(concerned) {
                continue;
            }
            let Some(mut receiver) = self.ports.take(slot) else { continue };
            self.serving = slot;
            let outcome = catch_unwind(AssertUnwindSafe(|| match receiver.remote {
                None => self.serve(slot, &mut receiver),
                Some(worker) => self.serve_remote_pending(slot, &mut receiver, worker),
            }));
            self.ports.put(slot, receiver);
            match outcome {
                Ok(any) => moved |= any,
                Err(_) => self.blame(),
            }
            self.give_up(slot);
            self.mark(slot);
        }
        self.count_waiting();
        moved
    }

    fn serve(&mut self, slot: Slot, receiver: &mut Port) -> bool {
        if self.ports.allowances.is_over(receiver.owner)
            || !receiver.end.as_mut().is_some_and(|end| end.has_room())
        {
            return false;
        }
        receiver.set_stalled(false);
        let mut moved = false;
        while let Some(mut frame) = receiver.pending.front()
            && !self.ports.allowances.is_over(receiver.owner)
        {
            if receiver.moving && !self.has_begun(receiver) {
                // The rest goes with it.
                break;
            }
            receiver.comes_from(self.held.claim(frame.sender));
            let merges = self.settings.coalesce && receiver.aggregates();
            let merged = if merges { self.deliver_pending_flow(slot, receiver) } else { None };
            // Where there is no room for the whole, there may be for the first frame.
            let (count, delivered) = merged
                .filter(|(_, outcome)| outcome.is_ok())
                .unwrap_or_else(|| (1, self.deliver_pending(slot, receiver, &mut frame)));
            let overhead = receiver.info.overhead.take();
            self.ports.allowances.charge(receiver.owner, overhead * PIECE_COST);
            match delivered {
                Err(DropReason::NoBuffers) => {
                    moved |= receiver.pending.advance(frame.next, self.now);
                    break;
                }
                Err(reason) => receiver.lose(reason),
                Ok(()) => {}
            }
            for _ in 0..count {
                let Some(frame) = receiver.pending.pop_of_turn(self.now) else { break };
                self.held.give_back(frame.sender, receiver.owner);
                self.finish(frame.sender, frame.token);
            }
            receiver.pending.end_turn();
            self.serving = slot;
            moved = true;
        }
        moved
    }

    fn deliver_pending(
        &mut self,
        slot: Slot,
        receiver: &mut Port,
        pending: &mut PendingFrame,
    ) -> Result<(), DropReason> {
        let end = receiver.end.as_mut().ok_or(DropReason::Gone)?;
        let sender = self.ports.get(pending.sender).and_then(|port| port.end.as_ref());
        let sender = sender.ok_or(DropReason::Gone)?;
        self.serving = pending.sender;
        let tx = sender.frame(pending.token);
        self.serving = slot;
        let mut scratch = [0; MAX_HEAD];
        // All of this succeeded when the frame came in, from the same private bytes.
        let frame = Frame::new(&tx, &mut scratch)?;
        let sent = frame.check()?;
        let own = sent.frame.destination() == receiver.access.effective;
        let to = Receiver {
            end: &mut **end,
            capabilities: &receiver.capabilities,
            counts: &mut receiver.rx,
            tag: pending.tag,
            mirror: !own && !receiver.config.uplink,
        };
        self.egress.deliver(&sent, &mut pending.next, to)
    }

    /// A frame that has waited for too long is dropped. A receiver that took nothing for the longest time that any
    /// frame may wait loses all that waits for it, and what comes until it has room again.
    fn give_up(&mut self, slot: Slot) {
        let now = self.now;
        let [hold, longest] = [true, false].map(|others| self.settings.longest_wait(others));
        // What waits for a port that goes to another worker waits for that worker.
        let Some(port) = self.ports.get_mut(slot).filter(|port| !port.moving) else { return };
        if port.pending.is_overdue(now, longest) {
            // Whether a remote port has room its own worker knows.
            port.set_stalled(port.remote.is_none());
            return self.drop_pending(slot, DropReason::NoBuffers);
        }
        let reason =
            if port.pending.is_overdue(now, hold) { DropReason::NoBuffers } else { DropReason::SlowReceiver };
        let expired =
            |core: &Core| core.ports.get(slot)?.pending.find_expired(now, |sender| core.longest_wait(sender));
        while let Some(owner) = expired(self)
            && let Some(port) = self.ports.get_mut(slot)
            && let Some(frame) = port.pending.take_expired(owner)
        {
            port.lose(reason);
            self.held.give_back(frame.sender, port.owner);
            self.show_lost(slot, &frame, reason);
            self.finish(frame.sender, frame.token);
        }
    }

    /// How long a frame of `sender` may wait. What one of another worker sends to others, that worker sees and tells.
    pub fn longest_wait(&self, sender: Slot) -> Duration {
        let elsewhere =
            |port: &Port| port.remote.is_some() && port.state.remote.sent_to_several(OTHERS, self.now);
        let others =
            self.held.sends_to_others(sender, self.now) || self.ports.get(sender).is_some_and(elsewhere);
        self.settings.longest_wait(others)
    }
}
