//! The worker: one thread that owns all ports, on the runtime of `vmlane_worker`.
//!
//! It looks at every port that is awake in rounds. Doorbells in mapped pages are stores that no one announces, so it
//! also looks when it is not called: all the time for a moment after a frame, unless others want its core; with naps of
//! some 50 us for a while; then with longer and longer sleeps, for which the ports are asked to announce frames if they
//! can.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_port::Glance;
use vmlane_worker::{Engine, Event, Heartbeat, LongNaps, Looking, Rest, WakeFds, Woken};

use crate::access::Config;
use crate::core::{Core, Place};
use crate::port::Port;
use crate::queue::{Command, Request};
use crate::spec::Settings;
use crate::stats::WorkerStats;

/// The switch as its worker runs it: on a thread, or turned by the caller of [`Worker::step`].
pub type Worker = vmlane_worker::Worker<SwitchEngine>;

/// All ports, and what a round over them is.
pub struct SwitchEngine {
    core: Core,
    settings: Settings,
    stats: Arc<WorkerStats>,
    /// The length of the next sleep.
    sleep: Duration,
    /// Ends were asked to announce their next frame.
    armed: bool,
    /// An uplink's file woke the worker and there was no frame: one that is gone would do so for ever.
    spurious_wakeup: bool,
    /// Changes of ports whose owners have had their share of the worker: their callers wait.
    deferred: Vec<Command>,
    /// A port holds an interrupt back, or its guest may do something soon that it does not announce.
    soon: bool,
    /// Until then a glance at armed ports that have announced nothing is enough.
    glance_until: Option<Instant>,
    /// Then those that doze are looked at, too.
    look_at_all: Instant,
    /// Every port will announce what it has.
    announced: bool,
    long_naps: LongNaps,
}

/// What ports do by the clock while nothing moves (a group's members are asked, addresses age) has this grain; so have
/// sleeps while every port announces what it has.
const IDLE: Duration = Duration::from_millis(100);

/// After a pause a frame that nobody announces waits no longer than this part of it, beside the shortest nap: so a single frame
/// costs some seventy naps at most, however long the worker lingers.
const PART: u32 = 16;

impl SwitchEngine {
    pub(crate) fn new(
        settings: Settings,
        place: Place,
        stats: Arc<WorkerStats>,
        heartbeat: Arc<Heartbeat>,
    ) -> SwitchEngine {
        SwitchEngine {
            core: Core::new(settings, place, stats.clone(), heartbeat),
            settings,
            stats,
            sleep: settings.sleep,
            armed: false,
            spurious_wakeup: false,
            deferred: Vec::new(),
            soon: false,
            glance_until: None,
            look_at_all: Instant::now(),
            announced: false,
            long_naps: LongNaps::default(),
        }
    }

    /// Are armed ports that have announced nothing in no need of a turn?
    fn is_quiet(&mut self, now: Instant) -> bool {
        let due = self.glance_until.is_none_or(|until| now >= until);
        // While a frame waits, and after a vain look at an uplink, uplinks are not listened to. An interrupt that is held back
        // has its time.
        let unsure = self.soon
            || self.spurious_wakeup
            || self.core.has_pending()
            || !self.core.announcements.is_empty();
        if !self.armed || due || unsure || !self.deferred.is_empty() {
            return false;
        }
        let glance = self.core.glance();
        self.announced = glance == Glance::Announces;
        glance != Glance::Turn
    }

    /// Carries out a command whose owner may cause more work, else puts it off, and with it what follows for that port.
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
                port.shape(shaper, core.now);
                core.add(of.slot, port);
            }
            Request::Update { id, spec, group, shaper } => core.update(id, &spec, group, shaper),
            Request::Remove { id } => core.remove(id),
            Request::Attach { id, end } => {
                if let Some(slot) = core.slot(id) {
                    core.attach(slot, end);
                }
            }
            Request::Detach { id } => {
                if let Some(slot) = core.slot(id) {
                    core.detach(slot);
                }
            }
            Request::Learned { into } => core.tell_learned(&mut into.lock()),
            Request::Shut { id, shut } => {
                if let Some(slot) = core.slot(id) {
                    core.shut(slot, shut);
                }
            }
            Request::Tap { id, taps } => {
                if let Some(slot) = core.slot(id) {
                    core.set_taps(slot, taps);
                }
            }
            Request::Carrier { id, up } => {
                if let Some(slot) = core.slot(id) {
                    core.set_carrier(slot, up);
                }
            }
            Request::Announce { id } => {
                if let Some(slot) = core.slot(id) {
                    core.announce(slot);
                }
            }
            Request::Teams { teams } => core.set_teams(teams),
            Request::Copy { id, copies } => {
                if let Some(port) = core.slot(id).and_then(|slot| core.ports.get_mut(slot)) {
                    port.set_copies(copies);
                }
            }
            Request::Adopt { id } => {
                if let Some(slot) = core.slot(id) {
                    core.adopt_remote(slot);
                }
            }
            Request::Fault { id } => {
                if let Some(slot) = core.slot(id) {
                    core.fault(slot);
                }
            }
            Request::Retire { id } => {
                if let Some(slot) = core.slot(id) {
                    core.retire(slot);
                }
            }
            Request::Move { id, step } => {
                if let Some(slot) = core.slot(id) {
                    core.move_port(slot, step);
                }
            }
            Request::Barrier => core.send_handed(),
            Request::Refresh { id } => {
                if let Some(slot) = core.slot(id) {
                    core.refresh(slot);
                }
            }
        }
    }

    fn nap(&mut self) -> Duration {
        let short = self.settings.sleep;
        self.long_naps.next(self.core.moved_bytes).map_or(short, |long| long.max(short))
    }

    /// The longest sleep.
    fn deepest(&self) -> Duration {
        if self.announced { IDLE } else { self.settings.deepest }
    }

    /// Ends look for themselves again.
    fn wake_up(&mut self) {
        self.sleep = self.settings.sleep;
        self.announced = false;
        if std::mem::take(&mut self.armed) {
            self.core.disarm();
        }
    }
}

impl Engine for SwitchEngine {
    type Command = Command;
    type Shared = ();

    fn notified(&mut self) {
        // Also so that an end that comes later is asked when the others are.
        self.wake_up();
        // A guest's announcement may be the reason.
        self.core.glance_at_all_silent();
    }

    fn run_command(&mut self, command: Command, _: Instant) {
        self.run_or_defer(command);
    }

    fn clock(&mut self, now: Instant, looking: Looking) {
        self.long_naps.clock(now, looking);
    }

    fn moved_bytes(&self) -> u64 {
        self.core.moved_bytes
    }

    #[inline]
    fn round(&mut self, now: Instant) -> bool {
        if self.is_quiet(now) {
            return false;
        }
        self.glance_until = Some(now + IDLE);
        if now >= self.look_at_all {
            self.look_at_all = now + IDLE;
            self.core.wake_all();
        }
        let moved = self.core.round(now);
        if !self.deferred.is_empty() {
            std::mem::take(&mut self.deferred).into_iter().for_each(|command| self.run_or_defer(command));
        }
        if moved {
            self.spurious_wakeup = false;
            self.stats.rounds.bump(1);
            self.wake_up();
        }
        self.soon = self.core.tick(now);
        self.core.look_now_and_then(now);
        // Rounds pay for what owners have caused; what those send, and changes of theirs, may wait for it.
        moved || !self.deferred.is_empty() || self.core.ports.allowances.any_owes()
    }

    fn rest(&mut self, idle: Duration) -> Rest {
        if !self.deferred.is_empty() {
            Rest::Nap(self.settings.sleep)
        } else if self.core.links.has_unsent() {
            Rest::Awake
        } else if self.core.is_empty() {
            Rest::Sleep(None)
        } else if self.soon || self.core.has_pending() {
            Rest::Nap(self.nap())
        } else if idle < self.settings.linger {
            Rest::Nap(self.nap().max(idle / PART))
        } else {
            Rest::Sleep(Some(self.sleep.max(idle / PART).min(self.deepest())))
        }
    }

    /// Completions are visible at the end of each turn, but for those of frames that waited for a port that failed or
    /// was detached since. An interrupt that is held back has its time, for which the worker naps.
    fn undelivered(&self) -> bool {
        self.core.has_unflushed() || self.core.links.has_unsent() || self.soon && !self.core.is_empty()
    }

    fn deliver_withheld(&mut self) {
        self.soon = self.core.tick(Instant::now());
        // A port may have failed just now.
        self.core.flush();
        self.core.send_handed();
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        let waits = self.core.arm();
        if waits {
            // A frame that came before its guest was asked is not announced: a glance would not tell.
            self.glance_until = None;
        }
        waits || self.core.links.has_waiting()
    }

    fn has_handed(&self) -> bool {
        self.core.links.has_waiting()
    }

    fn wake_fds<'a>(&'a self, fds: &mut WakeFds<'a>) {
        if self.armed {
            self.core.doorbell_fds().chain(self.core.bells()).for_each(|file| fds.doorbell(file));
        }
        if !self.spurious_wakeup && !self.core.has_pending() {
            self.core.readable_fds().for_each(|file| fds.source(file));
        }
    }

    fn woken(&mut self, by: Woken) {
        self.spurious_wakeup = by.source;
        if by.source {
            self.glance_until = None;
        }
        if by.doorbell {
            if self.core.any_dozes() {
                self.core.look_at_bells();
            }
            // Silences the doorbells, too.
            self.wake_up();
        }
    }

    fn recover(&mut self) {
        self.core.recover();
    }

    fn count(&mut self, event: Event) {
        if event != Event::Panic {
            self.long_naps.rests(self.core.moved_bytes);
        }
        match event {
            Event::Nap => self.stats.naps.bump(1),
            Event::Sleep => {
                self.stats.sleeps.bump(1);
                self.sleep = (self.sleep * 2).min(self.deepest());
            }
            Event::Panic => self.stats.panics.inc(),
        }
    }
}

#[cfg(test)]
mod tests;
