//! Frames that wait for a receiver's buffers. They stay where their sender left them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use vmlane_port::{DropReason, MAX_HEAD};

use crate::fabric::Fabric;
use crate::forward::{Delivery, Undelivered};
use crate::frame::{Frame, job};
use crate::parse;
use crate::port::{Parked, Port};
use crate::table::Slot;

impl Fabric {
    /// Gives waiting frames to receivers that have room again. True if one moved.
    pub fn retry(&mut self) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(&slot) = self.attached.get(at) {
            at += 1;
            let concerned = |port: &Port| port.stalled || !port.parked.is_empty();
            if !self.slots[usize::from(slot)].as_deref().is_some_and(concerned) {
                continue;
            }
            let Some(mut receiver) = self.slots[usize::from(slot)].take() else { continue };
            self.serving = slot;
            let outcome = catch_unwind(AssertUnwindSafe(|| self.serve(slot, &mut receiver)));
            self.slots[usize::from(slot)] = Some(receiver);
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
        if !receiver.end.as_mut().is_some_and(|end| end.has_room()) {
            return false;
        }
        if std::mem::take(&mut receiver.stalled) {
            receiver.state.stalled.store(false, Ordering::Relaxed);
        }
        let mut moved = false;
        while let Some(&parked) = receiver.parked.front() {
            let outcome = self.deliver_parked(slot, receiver, parked);
            if let Err(Undelivered::Full { next }) = outcome {
                if next > parked.next {
                    receiver.progress = self.now;
                    moved = true;
                }
                if let Some(front) = receiver.parked.front_mut() {
                    front.next = next;
                }
                break;
            }
            if let Err(Undelivered::Drop(reason)) = outcome {
                receiver.lose(reason);
            }
            receiver.progress = self.now;
            receiver.parked.pop_front();
            *receiver.count_parked(parked.sender) -= 1;
            self.finish(parked.sender, parked.token);
            self.serving = slot;
            moved = true;
        }
        moved
    }

    fn deliver_parked(&mut self, slot: Slot, receiver: &mut Port, parked: Parked) -> Result<(), Undelivered> {
        let Some(end) = receiver.end.as_mut() else { return Err(Undelivered::Drop(DropReason::Gone)) };
        let Some(sender) = self.slots[usize::from(parked.sender)].as_ref().and_then(|port| port.end.as_ref())
        else {
            return Err(Undelivered::Drop(DropReason::Gone));
        };
        self.serving = parked.sender;
        let lent = sender.frame(parked.token);
        self.serving = slot;
        let mut scratch = [0; MAX_HEAD];
        // All of this succeeded when the frame came in, from the same private bytes.
        let frame = Frame::new(&lent, &mut scratch).map_err(Undelivered::Drop)?;
        let layers = parse::layers(frame.head);
        let job = job(&frame, &layers).map_err(Undelivered::Drop)?;
        let to = frame.destination();
        let delivery = Delivery {
            frame: &frame,
            layers,
            job,
            tag: parked.tag,
            capabilities: &receiver.capabilities,
            mirror: to != receiver.effective && !receiver.uplink,
            from: parked.next,
        };
        delivery.deliver(&mut **end, &mut self.edit, &mut receiver.rx)
    }

    /// A receiver that took nothing for too long loses what waits for it, and what comes until it has
    /// room again.
    fn give_up(&mut self, slot: Slot) {
        let Some(port) = self.slots[usize::from(slot)].as_mut() else { return };
        let patience = self.settings.hold;
        if port.parked.is_empty() || self.now.saturating_duration_since(port.progress) <= patience {
            return;
        }
        port.stalled = true;
        port.state.stalled.store(true, Ordering::Relaxed);
        self.drop_parked(slot, DropReason::NoBuffers);
    }
}
