//! Which ports a worker looks at in a round.
//!
//! Where few ports are attached, all of them. Where there are many, those that have had nothing to do for a while doze:
//! the guest of one was asked to announce its next frame ([`vmlane_port::WakeUp::arm`]), and nothing of it is due by
//! the clock. A port is awake again when its doorbell rings, when a frame is for it or comes back to it, when a glance
//! says so, and when anything is changed about it. So a round costs what the busy ports cost.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use vmlane_port::Glance;
use vmlane_worker::Doorbells;

use crate::Slot;
use crate::core::Core;
use crate::port::Port;
use crate::turns::Dozing;

/// How long a port has had nothing to do until it dozes while others are busy.
const DOZE: Duration = Duration::from_millis(1);
/// While some are busy, the time between two looks at those that doze.
const LOOK: Duration = Duration::from_micros(50);
/// Signs of ports that announce nothing, looked at in one such look.
const GLANCES: usize = 64;

impl Core {
    fn is_crowd(&self) -> bool {
        self.ports.turns.count_attached() > self.settings.few
    }

    /// Something happened to a port: it is looked at from the next round on.
    #[inline]
    pub fn note(&mut self, slot: Slot) {
        let now = self.now;
        let Some(port) = self.ports.get_mut(slot) else { return };
        port.watch.busy = now;
        if !port.watch.awake {
            port.watch.awake = true;
            let owner = port.owner;
            self.ports.turns.wake(owner, slot);
        }
    }

    /// All ports are looked at, once at least.
    pub fn wake_all(&mut self) {
        if self.ports.turns.any_dozes() {
            self.ports.turns.wake_all();
            self.ports.iter_mut().for_each(|port| port.watch.awake = true);
        }
    }

    /// Does any port doze?
    pub fn any_dozes(&self) -> bool {
        self.ports.turns.any_dozes()
    }

    /// Readable while the doorbell of a port that dozes rings.
    pub fn bells(&self) -> Option<BorrowedFd<'_>> {
        self.bells.as_deref().filter(|_| self.any_dozes()).map(Doorbells::as_fd)
    }

    /// While some are busy: those that doze are looked at now and then, and those doze that have nothing to do.
    #[inline]
    pub fn look_now_and_then(&mut self, now: Instant) {
        if self.is_crowd() && now.saturating_duration_since(self.looked) >= LOOK {
            self.look(now);
        }
    }

    fn look(&mut self, now: Instant) {
        self.looked = now;
        if self.any_dozes() {
            self.look_at_bells();
            self.glance_at_some_silent(GLANCES);
        }
        self.ports.turns.merge();
        self.doze(Some(now));
    }

    /// Those whose doorbell rings are awake from now on.
    pub fn look_at_bells(&mut self) {
        let Some(bells) = self.bells.clone() else { return };
        let mut rung = std::mem::take(&mut self.glanced);
        bells.look(|number| rung.push(number as Slot));
        for slot in rung.drain(..) {
            self.guarded(slot, |core| {
                let Some(port) = core.ports.get_mut(slot) else { return };
                let Some(end) = &mut port.end else { return };
                if port.tx.limits.rests() || end.doorbell_fd().is_none() {
                    // Looked at when its time comes, however often it rings.
                    port.watch.drop_bell();
                } else {
                    // Silences it.
                    port.watch.armed = false;
                    end.disarm();
                }
                core.note(slot);
            });
        }
        self.glanced = rung;
    }

    /// Does a port that dozes and announces nothing need a turn?
    fn glance_at_silent(&mut self, slot: Slot) -> bool {
        let turn = self.guarded(slot, |core| core.end(slot).is_some_and(|end| end.glance() == Glance::Turn));
        if turn == Some(true) {
            self.note(slot);
        }
        turn == Some(true)
    }

    /// Asks every port to announce its next frame; true if one has a frame already. Ports that rest are looked at
    /// when their time comes.
    pub fn arm(&mut self) -> bool {
        self.ports.turns.merge();
        let mut waits = self.any_awake(|port| {
            let asked = std::mem::replace(&mut port.watch.armed, true);
            let waits = !asked && port.end.as_mut().is_some_and(|end| end.arm());
            !port.tx.limits.rests() && (waits || port.tx.burst.has_frames())
        });
        waits |= self.glance_at_all_silent();
        if !waits && self.is_crowd() {
            self.doze(None);
        }
        waits
    }

    /// Wakes those that doze, announce nothing and need a turn. True if one does.
    pub fn glance_at_all_silent(&mut self) -> bool {
        self.glance_at_some_silent(usize::MAX)
    }

    /// The same for the next so many of them.
    fn glance_at_some_silent(&mut self, count: usize) -> bool {
        let mut some = std::mem::take(&mut self.glanced);
        self.ports.turns.look_at_silent(count, &mut some);
        let mut any = false;
        some.drain(..).for_each(|slot| any |= self.glance_at_silent(slot));
        self.glanced = some;
        any
    }

    /// Those that are awake and need nothing doze. `since`: while others are busy, those that have needed nothing for
    /// a while; they are asked to announce what comes.
    fn doze(&mut self, since: Option<Instant>) {
        let mut any = false;
        let mut at = 0;
        while let Some(slot) = self.ports.turns.awake_at(at) {
            at += 1;
            let busy =
                |port: &Port| since.is_some_and(|now| now.saturating_duration_since(port.watch.busy) < DOZE);
            if self.ports.get(slot).is_none_or(busy) {
                continue;
            }
            any |= self.guarded(slot, |core| core.put_to_sleep(slot, since)) == Some(true);
        }
        if any {
            self.ports.doze();
        }
    }

    /// True if a port may doze from now on.
    fn put_to_sleep(&mut self, slot: Slot, since: Option<Instant>) -> bool {
        let Some(bells) = &self.bells else { return false };
        let Some(port) = self.ports.get_mut(slot) else { return false };
        // If it may not, it is asked again after as long.
        port.watch.busy = since.unwrap_or(port.watch.busy);
        let waits = port.tx.limits.rests() || port.pending.stalled || !port.pending.is_empty();
        let unfinished = port.watch.again || port.dirty || port.tx.burst.has_frames();
        let Some(end) = port.end.as_mut().filter(|_| !waits && !unfinished) else { return false };
        if end.readable_fd().is_some() || end.glance() == Glance::Turn {
            return false;
        }
        let asked = std::mem::replace(&mut port.watch.armed, true);
        if !asked && end.arm() {
            return false;
        }
        let glance = end.glance();
        let dozing = match glance {
            Glance::Turn => None,
            Glance::Nothing => {
                let mut signs = Vec::new();
                Some(Dozing::Silent(if end.signs(&mut signs) { signs } else { Vec::new() }))
            }
            Glance::Announces => {
                let rings = end.doorbell_fd().is_some_and(|file| port.watch.listen(file, bells, slot));
                rings.then_some(Dozing::Announces)
            }
        };
        port.watch.awake = dozing.is_none();
        port.watch.dozing = dozing;
        !port.watch.awake
    }

    /// What a glance at all ports, which are armed, tells: the most that any of them needs.
    pub fn glance(&mut self) -> Glance {
        if self.ports.teams_have_changed() || self.links.has_waiting() || self.ports.allowances.any_owes() {
            return Glance::Turn;
        }
        self.ports.turns.merge();
        let mut most = Glance::Announces;
        let mut at = 0;
        while let Some(slot) = self.ports.turns.awake_at(at) {
            at += 1;
            let glance = self.guarded(slot, |core| {
                let Some(port) = core.ports.get(slot) else { return Glance::Turn };
                let rests = port.tx.limits.rests() || port.pending.stalled || port.tx.burst.has_frames();
                port.end.as_ref().filter(|_| !rests).map_or(Glance::Turn, |end| end.glance())
            });
            most = most.max(glance.unwrap_or(Glance::Turn));
            if most == Glance::Turn {
                return most;
            }
        }
        if self.ports.turns.any_silent() {
            most = if self.glance_at_all_silent() { Glance::Turn } else { Glance::Nothing };
        }
        most
    }

    /// The ports that are awake announce nothing any more.
    pub fn disarm(&mut self) {
        self.ports.turns.merge();
        self.any_awake(|port| {
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

    /// Calls `action` with every port that is awake; true if any call was.
    fn any_awake(&mut self, action: impl Fn(&mut Port) -> bool) -> bool {
        let mut any = false;
        let mut at = 0;
        while let Some(slot) = self.ports.turns.awake_at(at) {
            any |= self.guarded(slot, |core| core.ports.get_mut(slot).is_some_and(&action)) == Some(true);
            at += 1;
        }
        any
    }
}

#[cfg(test)]
mod tests;
