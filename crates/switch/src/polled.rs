//! Which ports a worker polls in a round.
//!
//! Where few ports are attached, all of them. Where there are many, not those that have had nothing to do for
//! a while: the guest of one was asked to announce its next frame ([`vmlane_port::WakeUp::arm`]), and nothing
//! of it is due by the clock. A port is polled again when its doorbell rings, when a frame is for it or comes
//! back to it, when a word of its guest's memory has changed, and when anything is changed about it. So a
//! round costs what the busy ports cost.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use vmlane_port::Glance;
use vmlane_worker::{Doorbells, QUIET, Source};

use crate::Slot;
use crate::core::Core;
use crate::port::Port;

/// Words of the guests' memory that are loaded then.
const WORDS: usize = 64;

impl Core {
    fn is_crowd(&self) -> bool {
        self.ports.turns.count_attached() > self.settings.few
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

    /// All ports are polled, once at least.
    pub fn poll_all(&mut self) {
        if self.ports.turns.any_unpolled() {
            self.ports.turns.poll_all();
            self.ports.iter_mut().for_each(|port| port.watch.polled = true);
        }
    }

    /// Readable while the doorbell of a port rings that is not polled.
    pub fn unpolled_doorbells(&self) -> Option<BorrowedFd<'_>> {
        self.doorbells.as_deref().filter(|_| self.ports.turns.any_unpolled()).map(Doorbells::as_fd)
    }

    /// While some are busy: now and then those are polled again that have something to do, and those no more
    /// that have nothing.
    #[inline]
    pub fn check_now_and_then(&mut self, now: Instant) {
        if self.is_crowd() && self.check.tick(now) {
            self.check(now);
        }
    }

    fn check(&mut self, now: Instant) {
        if self.ports.turns.any_unpolled() {
            self.poll_doorbells();
            self.poll_silent(WORDS);
        }
        self.ports.turns.merge();
        self.stop_polling(Some(now));
    }

    /// Those whose doorbell rings are polled from now on.
    pub fn poll_doorbells(&mut self) {
        let Some(doorbells) = self.doorbells.clone() else { return };
        let mut rung = std::mem::take(&mut self.found);
        doorbells.poll(|number| rung.push(number as Slot));
        for slot in rung.drain(..) {
            self.guarded(slot, |core| {
                let Some(port) = core.ports.get_mut(slot) else { return };
                let Some(end) = &mut port.end else { return };
                if port.tx.limits.is_paused() || end.doorbell_fd().is_none() {
                    // Polled when its time comes, however often it rings.
                    port.watch.doorbell = None;
                } else {
                    // Silences it.
                    port.watch.armed = false;
                    end.disarm();
                }
                core.note(slot);
            });
        }
        self.found = rung;
    }

    /// Does a port that is not polled and announces nothing need a turn?
    fn poll_silent_one(&mut self, slot: Slot) -> bool {
        let turn = self.guarded(slot, |core| core.end(slot).is_some_and(|end| end.glance() == Glance::Turn));
        if turn == Some(true) {
            self.note(slot);
        }
        turn == Some(true)
    }

    /// Asks every port to announce its next frame; true if one has a frame already. Ports that are paused are
    /// polled when their time comes.
    pub fn arm(&mut self) -> bool {
        self.ports.turns.merge();
        let mut waits = self.any_polled(|port| {
            let asked = std::mem::replace(&mut port.watch.armed, true);
            let waits = !asked && port.end.as_mut().is_some_and(|end| end.arm());
            !port.tx.limits.is_paused() && (waits || port.tx.burst.has_frames())
        });
        waits |= self.poll_silent(usize::MAX);
        if !waits && self.is_crowd() {
            self.stop_polling(None);
        }
        waits
    }

    /// Those are polled from now on that announce nothing and need a turn, of the next `count` of them. True
    /// if one does.
    pub fn poll_silent(&mut self, count: usize) -> bool {
        let mut some = std::mem::take(&mut self.found);
        self.ports.turns.take_changed(count, &mut some);
        let mut any = false;
        some.drain(..).for_each(|slot| any |= self.poll_silent_one(slot));
        self.found = some;
        any
    }

    /// Those are not polled any more that need nothing. `since`: while others are busy, those that have
    /// needed nothing for a while; they are asked to announce what comes.
    fn stop_polling(&mut self, since: Option<Instant>) {
        let mut any = false;
        let mut at = 0;
        while let Some(slot) = self.ports.turns.polled_at(at) {
            at += 1;
            let busy = |port: &Port| since.is_some_and(|now| !port.watch.is_idle(now, QUIET));
            if self.ports.get(slot).is_none_or(busy) {
                continue;
            }
            any |= self.guarded(slot, |core| core.try_stop_polling(slot, since)) == Some(true);
        }
        if any {
            self.ports.leave_out();
        }
    }

    /// True if a port need not be polled from now on.
    fn try_stop_polling(&mut self, slot: Slot, since: Option<Instant>) -> bool {
        let Some(doorbells) = &self.doorbells else { return false };
        let Some(port) = self.ports.get_mut(slot) else { return false };
        // If it may not, it is asked again after as long.
        port.watch.busy = since.unwrap_or(port.watch.busy);
        let waits = port.tx.limits.is_paused() || port.pending.stalled || !port.pending.is_empty();
        let unfinished = port.watch.due_soon || port.dirty || port.tx.burst.has_frames();
        let Some(end) = port.end.as_mut().filter(|_| !waits && !unfinished) else { return false };
        if end.readable_fd().is_some() || end.glance() == Glance::Turn {
            return false;
        }
        let asked = std::mem::replace(&mut port.watch.armed, true);
        if !asked && end.arm() {
            return false;
        }
        let glance = end.glance();
        let source = match glance {
            Glance::Turn => None,
            Glance::Nothing => {
                let mut signs = Vec::new();
                Some(Source::Words(if end.signs(&mut signs) { signs } else { Vec::new() }))
            }
            Glance::Announces => {
                let rings = |file| port.watch.listen(file, doorbells, slot.into());
                end.doorbell_fd().is_some_and(rings).then_some(Source::EventFd)
            }
        };
        port.watch.polled = source.is_none();
        port.watch.source = source;
        !port.watch.polled
    }

    /// The most that any of the ports needs, all of which are armed.
    pub fn poll_armed(&mut self) -> Glance {
        if self.ports.teams_have_changed() || self.links.has_waiting() || self.ports.allowances.any_owes() {
            return Glance::Turn;
        }
        self.ports.turns.merge();
        let mut most = Glance::Announces;
        let mut at = 0;
        while let Some(slot) = self.ports.turns.polled_at(at) {
            at += 1;
            let glance = self.guarded(slot, |core| {
                let Some(port) = core.ports.get(slot) else { return Glance::Turn };
                let busy = port.tx.limits.is_paused() || port.pending.stalled || port.tx.burst.has_frames();
                port.end.as_ref().filter(|_| !busy).map_or(Glance::Turn, |end| end.glance())
            });
            most = most.max(glance.unwrap_or(Glance::Turn));
            if most == Glance::Turn {
                return most;
            }
        }
        if self.ports.turns.any_silent() {
            most = if self.poll_silent(usize::MAX) { Glance::Turn } else { Glance::Nothing };
        }
        most
    }

    /// The ports that are polled announce nothing any more.
    pub fn disarm(&mut self) {
        self.ports.turns.merge();
        self.any_polled(|port| {
            if port.watch.take_armed() {
                port.end.iter_mut().for_each(|end| end.disarm());
            }
            false
        });
    }

    /// A port that sends need not announce that, though others are still armed.
    #[inline]
    pub fn disarm_one(&mut self, slot: Slot) {
        if self.ports.get_mut(slot).is_some_and(|port| port.watch.take_armed()) {
            self.guarded(slot, |core| core.end(slot).into_iter().for_each(|end| end.disarm()));
        }
    }

    /// Calls `action` with every port that is polled; true if any call was.
    fn any_polled(&mut self, action: impl Fn(&mut Port) -> bool) -> bool {
        let mut any = false;
        let mut at = 0;
        while let Some(slot) = self.ports.turns.polled_at(at) {
            any |= self.guarded(slot, |core| core.ports.get_mut(slot).is_some_and(&action)) == Some(true);
            at += 1;
        }
        any
    }
}

#[cfg(test)]
mod tests;
