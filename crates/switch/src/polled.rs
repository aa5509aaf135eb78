//! Which ports a worker polls in a round.
//!
//! Where few ports are attached, all of them. Where there are many, not those that have had nothing to do for
//! a while: the guest of one was asked to announce its next frame ([`vmlane_port::WakeUp::arm`]), and nothing
//! of it is due by the clock. A port is polled again when its doorbell rings, when a frame is for it or comes
//! back to it, when a word of its guest's memory has changed, and when anything is changed about it. So a
//! round costs what the busy ports cost.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_port::Needs;
use vmlane_worker::{Doorbells, Interval, QUIET, Source};

use crate::Slot;
use crate::port::Port;
use crate::table::Table;

/// Words of the guests' memory that are loaded in a check.
const WORDS: usize = 64;
/// While some ports are busy, how often it is checked whether those have something to do that are not polled.
pub const CHECK: Duration = Duration::from_micros(50);

/// Files that are readable while a frame waits. Ports with one are always polled.
pub fn readable_fds(table: &Table) -> impl Iterator<Item = BorrowedFd<'_>> {
    table.ports.polled().filter_map(|port| port.end.as_ref()?.readable_fd())
}

/// Files that become readable when a guest announces a frame, of ports that are polled. Those of ports that
/// are paused are not waited for.
pub fn doorbell_fds(table: &Table) -> impl Iterator<Item = BorrowedFd<'_>> {
    let waited_for = table.ports.polled().filter(|port| !port.tx.limits.is_paused());
    waited_for.filter_map(|port| port.end.as_ref()?.doorbell_fd())
}

/// All ports are polled, once at least.
pub fn poll_all(table: &mut Table) {
    if table.ports.turns.any_unpolled() {
        table.ports.turns.poll_all();
        table.ports.iter_mut().for_each(|port| port.watch.polled = true);
    }
}

/// The ports that are polled announce nothing any more.
pub fn disarm(table: &mut Table) {
    table.ports.turns.merge();
    any_polled(table, |_, port| {
        if port.watch.take_armed() {
            port.end.iter_mut().for_each(|end| end.disarm());
        }
        false
    });
}

/// Calls `action` with every port that is polled; true if any call was.
fn any_polled(table: &mut Table, action: impl Fn(Slot, &mut Port) -> bool) -> bool {
    let mut any = false;
    let mut at = 0;
    while let Some(slot) = table.ports.turns.polled_at(at) {
        let act = |table: &mut Table| table.ports.get_mut(slot).is_some_and(|port| action(slot, port));
        any |= table.attributed(slot, act) == Some(true);
        at += 1;
    }
    any
}

/// What finds the ports that are to be polled.
pub struct Polling {
    /// The doorbells of ports that are not polled; without them all are.
    doorbells: Option<Arc<Doorbells>>,
    /// How often it is checked which ports are to be polled.
    check: Interval,
    /// Ports that were found then: empty between checks.
    found: Vec<Slot>,
}

impl Polling {
    pub fn new(now: Instant) -> Polling {
        let doorbells = Doorbells::new().ok().map(Arc::new);
        Polling { doorbells, check: Interval::new(CHECK, now), found: Vec::new() }
    }

    /// Readable while the doorbell of a port rings that is not polled.
    pub fn unpolled_doorbells(&self, table: &Table) -> Option<BorrowedFd<'_>> {
        self.doorbells.as_deref().filter(|_| table.ports.turns.any_unpolled()).map(Doorbells::as_fd)
    }

    /// While some are busy: now and then those are polled again that have something to do, and those no more
    /// that have nothing.
    #[inline]
    pub fn check_now_and_then(&mut self, table: &mut Table, now: Instant) {
        if is_crowd(table) && self.check.tick(now) {
            self.check(table, now);
        }
    }

    fn check(&mut self, table: &mut Table, now: Instant) {
        if table.ports.turns.any_unpolled() {
            self.poll_doorbells(table);
            self.poll_silent(table, WORDS);
        }
        table.ports.turns.merge();
        self.stop_polling(table, Some(now));
    }

    /// Those whose doorbell rings are polled from now on.
    pub fn poll_doorbells(&mut self, table: &mut Table) {
        let Polling { doorbells: Some(doorbells), found, .. } = self else { return };
        doorbells.poll(|number| found.push(number as Slot));
        for slot in found.drain(..) {
            table.attributed(slot, |table| {
                let Some(port) = table.ports.get_mut(slot) else { return };
                let Some(end) = &mut port.end else { return };
                if port.tx.limits.is_paused() || end.doorbell_fd().is_none() {
                    // Polled when its time comes, however often it rings.
                    port.watch.doorbell = None;
                } else {
                    // Silences it.
                    port.watch.armed = false;
                    end.disarm();
                }
                table.note(slot);
            });
        }
    }

    /// Asks every port to announce its next frame; true if one has a frame already. Ports that are paused are
    /// polled when their time comes.
    pub fn arm(&mut self, table: &mut Table) -> bool {
        table.ports.turns.merge();
        let mut waits = any_polled(table, |_, port| {
            let asked = std::mem::replace(&mut port.watch.armed, true);
            let waits = !asked && port.end.as_mut().is_some_and(|end| end.arm());
            !port.tx.limits.is_paused() && (waits || port.tx.burst.has_frames())
        });
        waits |= self.poll_silent(table, usize::MAX);
        if !waits && is_crowd(table) {
            self.stop_polling(table, None);
        }
        waits
    }

    /// Those are polled from now on that announce nothing and need a turn, of the next `count` of them. True
    /// if one does.
    pub fn poll_silent(&mut self, table: &mut Table, count: usize) -> bool {
        table.ports.turns.take_changed(count, &mut self.found);
        let mut any = false;
        self.found.drain(..).for_each(|slot| any |= poll_silent_one(table, slot));
        any
    }

    /// Those are not polled any more that need nothing. `since`: while others are busy, those that have
    /// needed nothing for a while; they are asked to announce what comes.
    fn stop_polling(&mut self, table: &mut Table, since: Option<Instant>) {
        let Some(doorbells) = &self.doorbells else { return };
        let stops = |slot, port: &mut Port| {
            let busy = since.is_some_and(|now| !port.watch.is_idle(now, QUIET));
            !busy && try_stop_polling(doorbells, slot, port, since)
        };
        if any_polled(table, stops) {
            table.ports.leave_out();
        }
    }

    /// The most that any of the ports needs, all of which are armed.
    pub fn poll_armed(&mut self, table: &mut Table) -> Needs {
        let in_debt = table.ports.allowances.any_in_debt();
        if table.ports.teams_have_changed() || table.links.has_waiting() || in_debt {
            return Needs::Turn;
        }
        table.ports.turns.merge();
        let mut most = Needs::Announces;
        let mut at = 0;
        while let Some(slot) = table.ports.turns.polled_at(at) {
            at += 1;
            let needs = table.attributed(slot, |table| {
                let Some(port) = table.ports.get(slot) else { return Needs::Turn };
                let busy =
                    port.tx.limits.is_paused() || port.rx.pending.stalled || port.tx.burst.has_frames();
                port.end.as_ref().filter(|_| !busy).map_or(Needs::Turn, |end| end.needs())
            });
            most = most.max(needs.unwrap_or(Needs::Turn));
            if most == Needs::Turn {
                return most;
            }
        }
        if table.ports.turns.any_silent() {
            most = if self.poll_silent(table, usize::MAX) { Needs::Turn } else { Needs::Nothing };
        }
        most
    }

    /// A port that sends need not announce that, though others are still armed.
    #[inline]
    pub fn disarm_one(&mut self, table: &mut Table, slot: Slot) {
        if table.ports.get_mut(slot).is_some_and(|port| port.watch.take_armed()) {
            table.attributed(slot, |table| table.end(slot).into_iter().for_each(|end| end.disarm()));
        }
    }
}

fn is_crowd(table: &Table) -> bool {
    table.ports.turns.count_attached() > table.settings.few
}

/// Does a port that is not polled and announces nothing need a turn? Then it is polled.
fn poll_silent_one(table: &mut Table, slot: Slot) -> bool {
    let turn = table.attributed(slot, |table| table.end(slot).is_some_and(|end| end.needs() == Needs::Turn));
    if turn == Some(true) {
        table.note(slot);
    }
    turn == Some(true)
}

/// True if a port need not be polled from now on.
fn try_stop_polling(doorbells: &Arc<Doorbells>, slot: Slot, port: &mut Port, since: Option<Instant>) -> bool {
    // If it may not, it is asked again after as long.
    port.watch.busy = since.unwrap_or(port.watch.busy);
    let waits = port.tx.limits.is_paused() || port.rx.pending.stalled || !port.rx.pending.is_empty();
    let unfinished = port.watch.due_soon || port.dirty || port.tx.burst.has_frames();
    let Some(end) = port.end.as_mut().filter(|_| !waits && !unfinished) else { return false };
    if end.readable_fd().is_some() || end.needs() == Needs::Turn {
        return false;
    }
    let asked = std::mem::replace(&mut port.watch.armed, true);
    if !asked && end.arm() {
        return false;
    }
    let source = match end.needs() {
        Needs::Turn => None,
        Needs::Nothing => {
            let mut signs = Vec::new();
            Some(Source::Words(if end.signs(&mut signs) { signs } else { Vec::new() }))
        }
        Needs::Announces => {
            let rings = |file| port.watch.listen(file, doorbells, slot.into());
            end.doorbell_fd().is_some_and(rings).then_some(Source::EventFd)
        }
    };
    port.watch.polled = source.is_none();
    port.watch.source = source;
    !port.watch.polled
}

#[cfg(test)]
mod tests;
