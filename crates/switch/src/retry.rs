//! The loop of frames that wait: they are given to receivers that have room again, and dropped once they have
//! waited for too long.

use std::panic::{AssertUnwindSafe, catch_unwind};

use vmlane_port::{DropReason, MAX_HEAD};

use crate::Slot;
use crate::coalesce::Coalescer;
use crate::egress::Egress;
use crate::handover::Handed;
use crate::ingress::Frame;
use crate::pending::PendingFrame;
use crate::port::Port;
use crate::price::PIECE_COST;
use crate::table::Table;

/// What it works on.
pub struct Retry<'a> {
    pub table: &'a mut Table,
    pub egress: &'a mut Egress,
    pub coalescer: &'a mut Coalescer,
}

impl Retry<'_> {
    /// Gives pending frames to receivers that have room again. True if one moved.
    pub fn all(&mut self) -> bool {
        let mut moved = false;
        let mut at = 0;
        let waiting = |table: &Table, at: usize| {
            let own = table.ports.turns.count_attached();
            table.ports.turns.attached_at(at).or_else(|| table.ports.remote_at(at.checked_sub(own)?))
        };
        while let Some(slot) = waiting(self.table, at) {
            at += 1;
            let concerned = |port: &Port| port.rx.pending.stalled || !port.rx.pending.is_empty();
            if !self.table.ports.get(slot).is_some_and(concerned) {
                continue;
            }
            let Some(mut receiver) = self.table.ports.take(slot) else { continue };
            self.table.serving.begin(slot);
            let outcome = catch_unwind(AssertUnwindSafe(|| match receiver.remote {
                None => self.serve(slot, &mut receiver),
                Some(worker) => hand_over_waiting(self.table, &mut receiver, worker),
            }));
            self.table.ports.put(slot, receiver);
            match outcome {
                Ok(any) => moved |= any,
                Err(_) => {
                    self.table.fail_served();
                    // A flow on its way to that port is gone, and its memory with it.
                    self.coalescer.reset();
                }
            }
            give_up(self.table, slot);
            self.table.mark(slot);
        }
        self.table.count_waiting();
        moved
    }

    fn serve(&mut self, slot: Slot, receiver: &mut Port) -> bool {
        if self.table.ports.allowances.is_over(receiver.owner)
            || !receiver.end.as_mut().is_some_and(|end| end.has_room())
        {
            return false;
        }
        receiver.set_stalled(false);
        let mut moved = false;
        while let Some(mut frame) = receiver.rx.pending.front()
            && !self.table.ports.allowances.is_over(receiver.owner)
        {
            if receiver.transfer.moving && self.table.ports.may_take_along(receiver) {
                // The rest goes with it.
                break;
            }
            receiver.comes_from(self.table.held.claim(frame.sender));
            let merges = self.table.settings.coalesce && receiver.aggregates();
            let merged = if merges { self.deliver_flow(slot, receiver) } else { None };
            // Where there is no room for the whole, there may be for the first frame.
            let (count, delivered) = merged
                .filter(|(_, outcome)| outcome.is_ok())
                .unwrap_or_else(|| (1, self.deliver(receiver, &mut frame)));
            let overhead = receiver.attached.info.overhead.take();
            self.table.ports.allowances.charge(receiver.owner, overhead * PIECE_COST);
            match delivered {
                Err(DropReason::NoBuffers) => {
                    moved |= receiver.rx.pending.advance(frame.next, self.table.now);
                    break;
                }
                Err(reason) => receiver.lose(reason),
                Ok(()) => {}
            }
            for _ in 0..count {
                let Some(frame) = receiver.rx.pending.pop_of_turn(self.table.now) else { break };
                self.table.held.give_back(frame.sender, receiver.owner);
                self.table.finish(frame.sender, frame.token);
            }
            receiver.rx.pending.end_turn();
            moved = true;
        }
        moved
    }

    fn deliver(&mut self, receiver: &mut Port, pending: &mut PendingFrame) -> Result<(), DropReason> {
        let sender = self.table.ports.get(pending.sender).and_then(|port| port.end.as_ref());
        let sender = sender.ok_or(DropReason::Gone)?;
        let tx = self.table.serving.attribute(pending.sender, || sender.frame(pending.token));
        let mut scratch = [0; MAX_HEAD];
        // All of this succeeded when the frame came in, from the same private bytes.
        let frame = Frame::new(&tx, &mut scratch)?;
        let sent = frame.check()?;
        let mirror = !receiver.is_own(sent.frame.destination());
        let to = receiver.receiver(pending.tag, mirror).ok_or(DropReason::Gone)?;
        self.egress.deliver(&sent, &mut pending.next, to)
    }

    /// Merges the frames that have waited longest for `receiver`, which has its turn, and delivers them.
    /// Returns how many there are, and what came of it; None: there are not two that belong together.
    fn deliver_flow(&mut self, slot: Slot, receiver: &mut Port) -> Option<(usize, Result<(), DropReason>)> {
        let mut flow = self.coalescer.take_free()?;
        let Retry { table, egress, coalescer } = self;
        let Table { ports, serving, .. } = &mut **table;
        let first = receiver.rx.pending.front();
        let end = first.and_then(|first| ports.get(first.sender)?.end.as_deref());
        for pending in receiver.rx.pending.iter() {
            let (Some(first), Some(end)) = (first, end) else { break };
            if pending.sender != first.sender || pending.tag != first.tag || pending.next > 0 {
                break;
            }
            let tx = serving.attribute(pending.sender, || end.frame(pending.token));
            let mut scratch = [0; MAX_HEAD];
            let Ok(frame) = Frame::new(&tx, &mut scratch) else { break };
            let Ok(sent) = frame.check() else { break };
            let to = sent.frame.destination();
            let own = !to.is_multicast() && receiver.is_own(to);
            let from = (end, pending.token);
            let added = coalescer.gather(&mut flow, &sent, from, (slot, first.tag), |segment| {
                segment.longest(&receiver.rx.capabilities, &sent).filter(|_| own)
            });
            if !added {
                break;
            }
        }
        // It is the receiver's lack of buffers that has them read again.
        ports.allowances.charge(receiver.owner, coalescer.take_read());
        let outcome = flow.is_merged().then(|| {
            let to = receiver.receiver(flow.tag, false).ok_or(DropReason::Gone)?;
            egress.merged(&flow, to)
        });
        let count = flow.tokens().len();
        coalescer.give_back(flow);
        outcome.map(|outcome| (count, outcome))
    }
}

/// Hands the frames that wait for a remote port over, as far as there are places. True if one went.
fn hand_over_waiting(table: &mut Table, receiver: &mut Port, worker: usize) -> bool {
    let mut moved = false;
    let mut at = 0;
    while !receiver.transfer.moving && receiver.rx.pending.begin_turn_of(at) {
        while let Some(frame) = receiver.rx.pending.front() {
            let Table { ports, links, serving, .. } = table;
            let handed = ports.get(frame.sender).and_then(|sender| {
                let end = sender.end.as_ref()?;
                let in_flight = (sender.origin(frame.sender), frame.token);
                let tx = serving.attribute(frame.sender, || end.frame(frame.token));
                Some(links.hand_over(worker, in_flight, &tx))
            });
            match handed {
                Some(Handed::No) => break,
                Some(_) => {}
                None => receiver.lose(DropReason::Gone),
            }
            receiver.rx.pending.pop_of_turn(table.now);
            table.held.give_back(frame.sender, receiver.owner);
            if handed == Some(Handed::Copied) {
                table.finish(frame.sender, frame.token);
            }
            moved = true;
        }
        // One that has no frames any more is not counted any more.
        at += usize::from(receiver.rx.pending.front().is_some());
        receiver.rx.pending.end_turn();
    }
    moved
}

/// A frame that has waited for too long is dropped. A receiver that took nothing for the longest time that
/// any frame may wait loses all that waits for it, and what comes until it has room again.
fn give_up(table: &mut Table, slot: Slot) {
    let now = table.now;
    let [hold, longest] = [true, false].map(|others| table.settings.longest_wait(others));
    // What waits for a port that goes to another worker waits for that worker.
    let Some(port) = table.ports.get_mut(slot).filter(|port| !port.transfer.moving) else { return };
    if port.rx.pending.is_overdue(now, longest) {
        // Whether a remote port has room its own worker knows.
        port.set_stalled(port.remote.is_none());
        return table.drop_pending(slot, DropReason::NoBuffers);
    }
    let reason =
        if port.rx.pending.is_overdue(now, hold) { DropReason::NoBuffers } else { DropReason::SlowReceiver };
    let expired = |table: &Table| {
        table.ports.get(slot)?.rx.pending.find_expired(now, |sender| table.longest_wait(sender))
    };
    while let Some(owner) = expired(table)
        && let Some(frame) = table.ports.get_mut(slot).and_then(|port| port.rx.pending.take_expired(owner))
    {
        table.drop_waiting(slot, frame, reason);
    }
}

#[cfg(test)]
mod tests;
