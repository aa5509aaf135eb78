//! What all stages of a worker share: its ports, what is on the way between them, and who is served.
//!
//! A stage changes ports through here; no stage calls another one. Code of a port runs under
//! [`Table::attributed`] or [`Serving::attribute`], so that a panic ends that port alone.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::error;
use vmlane_mem::{MemoryMap, Spans};
use vmlane_port::{DropReason, FramePort, PortId, Token};

use crate::Slot;
use crate::egress::{Receiver, To};
use crate::handover::Links;
use crate::pending::{Claim, Held, OTHERS, PendingFrame};
use crate::port::Port;
use crate::ports::Ports;
use crate::price::PIECE_COST;
use crate::queue::{Change, Request};
use crate::spec::Settings;
use crate::stats::WorkerStats;

/// Whose code is running.
#[derive(Debug, Default)]
pub struct Serving(Cell<Slot>);

impl Serving {
    /// A port's turn begins.
    #[inline]
    pub fn begin(&self, slot: Slot) {
        self.0.set(slot);
    }

    /// The port that a panic of now belongs to.
    #[inline]
    pub fn slot(&self) -> Slot {
        self.0.get()
    }

    /// Runs code of a port. After a panic that port stays the one that is served.
    #[inline]
    pub fn attribute<T>(&self, slot: Slot, action: impl FnOnce() -> T) -> T {
        let before = self.0.replace(slot);
        let result = action();
        self.0.set(before);
        result
    }
}

/// The ports of a worker, and what is on the way between them.
pub struct Table {
    pub settings: Settings,
    pub stats: Arc<WorkerStats>,
    pub ports: Ports,
    /// The other workers.
    pub links: Links,
    /// The frames of each sender that wait.
    pub held: Held,
    /// Ports for which frames wait, at the most.
    pub waiting: usize,
    pub serving: Serving,
    pub now: Instant,
    /// No bytes, for frames of the switch's own.
    pub nothing: Spans,
    /// Ports whose ends want a flush.
    dirty: Vec<Slot>,
    /// Ports that lost their ends by a panic and are not detached yet, and which of their ends it was.
    failed: Vec<(Slot, u32)>,
}

impl Table {
    /// Of the worker with this number.
    pub fn new(settings: Settings, stats: Arc<WorkerStats>, links: Links, number: usize) -> Table {
        Table {
            settings,
            stats,
            ports: Ports::of_worker(number),
            links,
            held: Held::default(),
            waiting: 0,
            serving: Serving::default(),
            now: Instant::now(),
            nothing: Spans::new(MemoryMap::default(), false),
            dirty: Vec::new(),
            failed: Vec::new(),
        }
    }

    pub fn slot(&self, id: PortId) -> Option<Slot> {
        self.ports.slot(id)
    }

    pub fn end(&mut self, slot: Slot) -> Option<&mut Box<dyn FramePort>> {
        self.ports.get_mut(slot)?.end.as_mut()
    }

    /// Runs `action`; a panic in it ends the port that is served then, usually the one at `slot`.
    pub fn attributed<T>(&mut self, slot: Slot, action: impl FnOnce(&mut Table) -> T) -> Option<T> {
        let before = self.serving.slot();
        self.serving.begin(slot);
        let result = catch_unwind(AssertUnwindSafe(|| action(self)));
        if result.is_err() {
            self.fail_served();
        }
        self.serving.begin(before);
        result.ok()
    }

    /// A panic: the port that is served loses its end now, and is detached when no stage is at work.
    #[cold]
    pub fn fail_served(&mut self) {
        let slot = self.serving.slot();
        self.stats.panics.inc();
        let Some(port) = self.ports.get_mut(slot) else { return };
        error!(port = port.id.0, "serving a port panicked; the port is detached");
        port.fail_end();
        let number = port.attached.number;
        self.report_fault(slot);
        self.failed.push((slot, number));
    }

    /// A panic in the code that serves a port of another worker: that one ends what is attached to it.
    #[cold]
    pub fn report_fault(&mut self, slot: Slot) {
        if let Some(port) = self.ports.get(slot)
            && let Some(worker) = port.remote
        {
            let id = port.id;
            self.links.ask(worker, Request::Of(id, Change::Fault));
        }
    }

    /// A port that failed and is to be detached. One to which something else was attached since is not.
    #[inline]
    pub fn take_failed(&mut self) -> Option<Slot> {
        while let Some((slot, number)) = self.failed.pop() {
            if self.ports.get(slot).is_some_and(|port| port.attached.number == number) {
                return Some(slot);
            }
        }
        None
    }

    /// Something happened to a port: it is polled from the next round on.
    #[inline]
    pub fn note(&mut self, slot: Slot) {
        let now = self.now;
        let Some(port) = self.ports.get_mut(slot) else { return };
        port.watch.busy = now;
        if !port.watch.polled {
            port.watch.polled = true;
            let owner = port.owner;
            self.ports.turns.poll(owner, slot);
        }
    }

    /// The port wants a flush.
    #[inline]
    pub fn mark(&mut self, slot: Slot) {
        if let Some(port) = self.ports.get_mut(slot)
            && !port.dirty
        {
            port.dirty = true;
            self.dirty.push(slot);
            self.note(slot);
        }
    }

    /// Is a flush wanted?
    pub fn has_unflushed(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Flushes the ports that got or completed something.
    pub fn flush(&mut self) {
        while let Some(slot) = self.dirty.pop() {
            let now = self.now;
            self.attributed(slot, |table| {
                let Some(port) = table.ports.get_mut(slot) else { return };
                port.dirty = false;
                port.publish_counts();
                if let Some(end) = &mut port.end {
                    end.flush(now);
                }
            });
        }
    }

    /// All ports want a flush, whatever was known of it.
    pub fn mark_all(&mut self) {
        self.dirty.clear();
        self.ports.iter_mut().for_each(|port| port.dirty = false);
        self.ports.all().for_each(|slot| self.mark(slot));
    }

    /// Runs a delivery of a frame of `from` into the port of `to`. A panic of it is that port's; its owner
    /// pays for what its rings cost, and it wants a flush.
    #[inline]
    pub fn deliver(
        &mut self,
        from: Slot,
        to: To,
        deliver: impl FnOnce(Receiver<'_>) -> Result<(), DropReason>,
    ) -> Result<(), DropReason> {
        let claim = self.held.claim(from);
        let port = self.ports.get_mut(to.slot).ok_or(DropReason::Gone)?;
        port.comes_from(claim);
        let receiver = port.receiver(to.tag, to.mirror).ok_or(DropReason::Gone)?;
        let outcome = self.serving.attribute(to.slot, || deliver(receiver));
        let (owner, overhead) = (port.owner, port.attached.info.overhead.take());
        let marked = std::mem::replace(&mut port.dirty, true);
        self.ports.allowances.charge(owner, overhead * PIECE_COST);
        if !marked {
            self.dirty.push(to.slot);
            self.note(to.slot);
        }
        outcome
    }

    /// One of those who had a frame is done with it; the last one completes it.
    pub fn finish(&mut self, sender: Slot, token: Token) {
        if !self.links.is_last(sender, token) {
            return;
        }
        self.complete(sender, &[token]);
        self.mark(sender);
    }

    /// These frames of a port are completed.
    pub fn complete(&mut self, slot: Slot, tokens: &[Token]) {
        self.attributed(slot, |table| {
            let Some(port) = table.ports.get_mut(slot) else { return };
            if let Some(end) = &mut port.end {
                port.tx.burst.came_back(tokens.len());
                end.finish(tokens);
            }
        });
    }

    /// Lets a frame wait for its receiver's buffers, if there is a place; else it is dropped.
    #[cold]
    pub fn pend(&mut self, receiver: Slot, frame: PendingFrame, may_wait: bool) -> Result<(), DropReason> {
        self.mark(receiver);
        let claim = self.held.claim(frame.sender);
        let longest = self.longest_wait(frame.sender);
        let Some(port) = self.ports.get_mut(receiver) else { return Err(DropReason::Gone) };
        let first = port.rx.pending.is_empty();
        let refused = if !may_wait || port.rx.pending.is_overdue(self.now, longest) {
            Some(DropReason::NoBuffers)
        } else if !self.held.take(frame.sender, port.owner, self.now) {
            Some(DropReason::SlowReceiver)
        } else if !port.rx.pending.push(frame, claim) {
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

    /// How long a frame of `sender` may wait. What one of another worker sends to others, that worker sees
    /// and reports.
    pub fn longest_wait(&self, sender: Slot) -> Duration {
        let elsewhere =
            |port: &Port| port.remote.is_some() && port.state.remote.sent_to_several(OTHERS, self.now);
        let others =
            self.held.sends_to_others(sender, self.now) || self.ports.get(sender).is_some_and(elsewhere);
        self.settings.longest_wait(others)
    }

    /// A port has sent: workers of other ports are notified if it sends to several owners.
    #[inline]
    pub fn note_sends_to_several(&mut self, slot: Slot, sender: &Port) {
        if !self.links.is_alone() && self.held.sends_to_others(slot, self.now) {
            sender.state.remote.sends_to_several(self.now);
        }
    }

    /// A frame to several does not get to the ports of a worker: counted at the first of them.
    #[cold]
    pub fn lose_at(&mut self, worker: usize, group: u16, reason: DropReason) {
        let mut at = 0;
        while let Some(slot) = self.ports.member(group, at) {
            at += 1;
            if let Some(port) = self.ports.get(slot).filter(|port| port.remote == Some(worker)) {
                return port.lose(reason);
            }
        }
    }

    pub fn count_waiting(&mut self) {
        self.waiting = self.ports.iter().filter(|port| !port.rx.pending.is_empty()).count();
    }

    /// The same, and how many frames of each sender wait: after a fault.
    pub fn recount_waiting(&mut self) {
        self.count_waiting();
        let waiting = self
            .ports
            .iter()
            .flat_map(|port| port.rx.pending.frames().map(|frame| (frame.sender, port.owner)));
        self.held.recount(waiting);
    }

    /// Drops the frames that wait for a port and those of it that wait elsewhere.
    pub fn drop_pending_between(&mut self, slot: Slot) {
        self.drop_pending(slot, DropReason::Gone);
        for other in self.ports.all() {
            let Some(receiver) = self.ports.get_mut(other) else { continue };
            let (tokens, owner) = (receiver.rx.pending.remove_of(slot), receiver.owner);
            tokens.iter().for_each(|_| receiver.lose(DropReason::Gone));
            for token in tokens {
                self.held.give_back(slot, owner);
                self.finish(slot, token);
            }
        }
        self.count_waiting();
    }

    /// Drops the frames that wait for a port.
    pub fn drop_pending(&mut self, slot: Slot, reason: DropReason) {
        let now = self.now;
        while let Some(receiver) = self.ports.get_mut(slot)
            && let Some(frame) = receiver.rx.pending.pop(now)
        {
            self.drop_waiting(slot, frame, reason);
        }
    }

    /// Drops a frame that waited for a port in vain.
    pub fn drop_waiting(&mut self, receiver: Slot, frame: PendingFrame, reason: DropReason) {
        if let Some(port) = self.ports.get(receiver) {
            port.lose(reason);
            self.held.give_back(frame.sender, port.owner);
        }
        self.show_lost(receiver, &frame, reason);
        self.finish(frame.sender, frame.token);
    }

    /// Shows it to captures of its receiver.
    fn show_lost(&mut self, receiver: Slot, frame: &PendingFrame, reason: DropReason) {
        if self.ports.get(receiver).is_none_or(|port| !port.is_captured()) {
            return;
        }
        self.attributed(frame.sender, |table| {
            let sender = table.ports.get(frame.sender).and_then(|port| port.end.as_ref());
            if let (Some(sender), Some(port)) = (sender, table.ports.get(receiver)) {
                port.show_lost(&sender.frame(frame.token), reason);
            }
        });
    }

    /// Derives the groups and turns from the ports. Returns the addresses of VMs' ports, and those whose code
    /// panicked.
    pub fn rebuild(&mut self) -> (Vec<(u64, Slot)>, Vec<Slot>) {
        let mut failed = Vec::new();
        for slot in self.ports.all() {
            let Some(port) = self.ports.get_mut(slot) else { continue };
            if catch_unwind(AssertUnwindSafe(|| port.adopt())).is_err() {
                self.stats.panics.inc();
                port.fail_end();
                failed.push(slot);
            }
        }
        for slot in self.ports.all() {
            if let Some(port) = self.ports.get(slot) {
                let claim = Claim { owner: port.owner, shares: port.config.shares };
                self.held.set_claim(slot, claim);
            }
        }
        (self.ports.rebuild(), failed)
    }

    /// The end of a round: what was handed over and what is done with leaves.
    #[inline]
    pub fn send_handed(&mut self) {
        if !self.links.is_alone() {
            self.links.send_all();
        }
    }
}

#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;
