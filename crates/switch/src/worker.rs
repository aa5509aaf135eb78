//! The worker: one thread that owns all ports, on the runtime of `vmlane_worker`.
//!
//! It polls ports in rounds. Doorbells in mapped pages are stores that no one announces, so it also polls
//! when it is not notified: how often, `vmlane_worker` decides. Before it sleeps, the ports are asked to
//! announce frames if they can.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_port::Needs;
use vmlane_worker::{Engine, Event, Heartbeat, Ports, Rounds, WakeFds, Woken};

use crate::access::Config;
use crate::core::{Core, Place};
use crate::moving;
use crate::polled;
use crate::port::Port;
use crate::queue::{Command, Request};
use crate::spec::Settings;
use crate::stats::WorkerStats;

/// The switch as its worker runs it: on a thread, or turned by the caller of [`Worker::step`].
pub type Worker = vmlane_worker::Worker<SwitchEngine>;

/// All ports, and what a round over them is.
pub struct SwitchEngine {
    core: Core,
    stats: Arc<WorkerStats>,
    /// Ends were asked to announce their next frame.
    armed: bool,
    /// An uplink's file woke the worker and there was no frame: one that is gone would do so for ever.
    spurious_wakeup: bool,
    /// Changes of ports whose owners have had their share of the worker: their callers wait.
    deferred: Vec<Command>,
    /// A port holds an interrupt back, or its guest may do something soon that it does not announce.
    soon: bool,
    /// Then a port is to be ticked again.
    due: Option<Instant>,
    /// Until then armed ports that have announced nothing get no turn.
    quiet_until: Option<Instant>,
    /// Then all ports are polled.
    poll_all: Instant,
    /// Every port will announce what it has.
    announced: bool,
}

/// What ports do by the clock while nothing moves (a group's members are asked, addresses age) has this
/// grain.
const IDLE: Duration = Duration::from_millis(200);

impl SwitchEngine {
    pub(crate) fn new(
        settings: Settings,
        place: Place,
        stats: Arc<WorkerStats>,
        heartbeat: Arc<Heartbeat>,
    ) -> SwitchEngine {
        SwitchEngine {
            core: Core::new(settings, place, stats.clone(), heartbeat),
            stats,
            armed: false,
            spurious_wakeup: false,
            deferred: Vec::new(),
            soon: false,
            due: None,
            quiet_until: None,
            poll_all: Instant::now(),
            announced: false,
        }
    }

    /// Are armed ports that have announced nothing in no need of a turn?
    fn is_quiet(&mut self, now: Instant) -> bool {
        let due = self.quiet_until.is_none_or(|until| now >= until) || self.due.is_some_and(|due| now >= due);
        // While a frame waits, and after an uplink had none, uplinks are not listened to. An interrupt that
        // is held back has its time.
        let unsure = self.soon
            || self.spurious_wakeup
            || self.core.has_pending()
            || !self.core.announcements.is_empty();
        if !self.armed || due || unsure || !self.deferred.is_empty() {
            return false;
        }
        let needs = self.core.polling.poll_armed(&mut self.core.table);
        self.core.end_failed();
        self.announced = needs == Needs::Announces;
        needs != Needs::Turn
    }

    /// Carries out a command whose owner may cause more work, else puts it off, and with it what follows for
    /// that port.
    fn run_or_defer(&mut self, command: Command) {
        let id = command.request.port();
        let rebuilds = command.request.rebuilds();
        let waits = self.deferred.iter().any(|before| before.request.port() == id);
        if waits || rebuilds > 0 && !self.core.charge_change(id, rebuilds) {
            return self.deferred.push(command);
        }
        // The answer goes with the command's end, however it ends.
        let Command { request, answer: _answer } = command;
        self.carry_out(request);
    }

    fn carry_out(&mut self, request: Request) {
        let core = &mut self.core;
        match request {
            Request::Add { of, spec, stats, state, shaper } => {
                let mut port = Port::new(of, Config::from(&spec), stats, state);
                port.shape(shaper, core.table.now);
                core.add(of.slot, port);
            }
            Request::Of(id, change) => {
                if let Some(slot) = core.table.slot(id) {
                    core.change(slot, change);
                }
            }
            Request::Move(id, step) => {
                if let Some(slot) = core.table.slot(id) {
                    moving::take_step(core, slot, step);
                    core.end_failed();
                }
            }
            Request::Learned(into) => core.list_learned(&mut into.lock()),
            Request::Teams(teams) => core.set_teams(teams),
            Request::Barrier => core.table.send_handed(),
        }
    }

    /// Guests need not announce anything any more.
    fn disarm(&mut self) {
        self.announced = false;
        if std::mem::take(&mut self.armed) {
            polled::disarm(&mut self.core.table);
            self.core.end_failed();
        }
    }
}

impl Engine for SwitchEngine {
    type Command = Command;
    type Shared = ();

    fn notified(&mut self) {
        // Also so that an end that comes later is asked when the others are.
        self.disarm();
        // A guest's announcement may be the reason.
        self.core.polling.poll_silent(&mut self.core.table, usize::MAX);
        self.core.end_failed();
    }

    /// Cards announce by doorbells.
    fn announces(_: &Command) -> bool {
        false
    }

    fn run_command(&mut self, command: Command, _: Instant) {
        self.run_or_defer(command);
    }
}

impl Rounds for SwitchEngine {
    fn moved_bytes(&self) -> u64 {
        self.core.moved_bytes
    }

    #[inline]
    fn round(&mut self, now: Instant) -> bool {
        if self.is_quiet(now) {
            return false;
        }
        self.quiet_until = Some(now + IDLE);
        if now >= self.poll_all {
            self.poll_all = now + IDLE;
            polled::poll_all(&mut self.core.table);
        }
        let moved = self.core.round(now);
        if !self.deferred.is_empty() {
            std::mem::take(&mut self.deferred).into_iter().for_each(|command| self.run_or_defer(command));
        }
        if moved {
            self.spurious_wakeup = false;
            self.stats.rounds.bump(1);
            self.disarm();
        }
        (self.soon, self.due) = self.core.tick(now);
        self.core.polling.check_now_and_then(&mut self.core.table, now);
        self.core.end_failed();
        // Rounds pay for what owners have caused; what those send, and changes of theirs, may wait for it.
        moved || !self.deferred.is_empty() || self.core.table.ports.allowances.any_in_debt()
    }

    fn ports(&mut self) -> Ports {
        if self.core.table.links.has_unsent() {
            Ports::Polled
        } else if self.core.is_empty() {
            Ports::Armed(None)
        } else if self.soon || self.core.has_pending() {
            Ports::Due
        } else {
            Ports::Mixed { announced: self.announced }
        }
    }

    fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Completions are visible at the end of each turn, but for those of frames that waited for a port that
    /// failed or was detached since. An interrupt that is held back has its time, for which the worker naps.
    fn undelivered(&self) -> bool {
        self.core.table.has_unflushed()
            || self.core.table.links.has_unsent()
            || self.soon && !self.core.is_empty()
    }

    fn flush_deferred(&mut self) {
        (self.soon, self.due) = self.core.tick(Instant::now());
        // A port may have failed just now.
        self.core.flush();
        self.core.table.send_handed();
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        let waits = self.core.polling.arm(&mut self.core.table);
        self.core.end_failed();
        if waits {
            // A frame that came before its guest was asked to announce it is not announced.
            self.quiet_until = None;
        }
        waits || self.core.table.links.has_waiting()
    }

    fn has_handed(&self) -> bool {
        self.core.table.links.has_waiting()
    }

    fn wake_fds<'a>(&'a self, fds: &mut WakeFds<'a>) {
        if self.armed {
            let table = &self.core.table;
            polled::doorbell_fds(table)
                .chain(self.core.polling.unpolled_doorbells(table))
                .for_each(|file| fds.doorbell(file));
        }
        if !self.spurious_wakeup && !self.core.has_pending() {
            polled::readable_fds(&self.core.table).for_each(|file| fds.source(file));
        }
    }

    fn woken(&mut self, by: Woken) {
        self.spurious_wakeup = by.source;
        if by.source {
            self.quiet_until = None;
        }
        if by.doorbell {
            if self.core.table.ports.turns.any_unpolled() {
                self.core.polling.poll_doorbells(&mut self.core.table);
                self.core.end_failed();
            }
            // Silences the doorbells, too.
            self.disarm();
        }
    }

    fn recover(&mut self) {
        self.core.recover();
    }

    fn count(&mut self, event: Event) {
        match event {
            Event::Nap => self.stats.naps.bump(1),
            Event::Sleep => self.stats.sleeps.bump(1),
            Event::Panic => self.stats.panics.inc(),
        }
    }
}

#[cfg(test)]
mod tests;
