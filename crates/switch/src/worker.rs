//! The worker: one thread that owns all ports.
//!
//! It looks at every port in rounds. Doorbells in mapped pages are stores that nobody announces, so it
//! also looks when nobody calls: with sleeps of some 50 us while frames flow and for a while after, then
//! with longer and longer ones, for which the ports are asked to announce frames if they can.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::error;
use vmlane_port::role::{self, Role};
use vmlane_stats::counters;
use vmlane_worker::Heartbeat;

use crate::fabric::Fabric;
use crate::port::Port;
use crate::queue::{Command, Queue, Request};
use crate::spec::Settings;

counters! {
    /// What the worker did.
    pub struct WorkerStats {
        /// Rounds in which a frame moved, other than those of ports that came to rest.
        rounds,
        /// Sleeps of the shortest kind.
        naps,
        /// Longer sleeps, for which ports announce their next frame.
        sleeps,
        /// Faults of our own that were contained; each ended one port.
        panics,
    }
}

/// Most of a sleep's length the kernel may add to it. The default would double the shortest ones.
const TIMER_SLACK_NS: u64 = 1000;

/// Rounds in a row that may fail outside any port's turn before nothing good can be expected any more.
const MAX_FAULTS: u32 = 100;

/// The worker, whether a thread runs it or whoever measures it calls [`Worker::step`].
pub struct Worker {
    queue: Arc<Queue>,
    fabric: Fabric,
    settings: Settings,
    stats: Arc<WorkerStats>,
    beat: Arc<Heartbeat>,
    /// When a frame last moved or something was asked.
    busy: Instant,
    /// The length of the next sleep.
    sleep: Duration,
    /// Ends were asked to announce their next frame.
    armed: bool,
    /// An uplink's file woke us and there was no frame: one that is gone would do so for ever.
    cried_wolf: bool,
    moved: bool,
    soon: bool,
}

impl Worker {
    pub(crate) fn new(
        queue: Arc<Queue>,
        settings: Settings,
        stats: Arc<WorkerStats>,
        beat: Arc<Heartbeat>,
    ) -> Worker {
        Worker {
            queue,
            fabric: Fabric::new(settings, stats.clone(), beat.clone()),
            beat,
            settings,
            stats,
            busy: Instant::now(),
            sleep: settings.sleep,
            armed: false,
            cried_wolf: false,
            moved: false,
            soon: false,
        }
    }

    pub(crate) fn run(mut self) {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(TIMER_SLACK_NS));
        role::enter(Role::Switch);
        let mut faults = 0;
        loop {
            self.beat.set_busy(true);
            let round = catch_unwind(AssertUnwindSafe(|| {
                let go_on = self.step();
                if go_on && !self.moved && !self.settings.poll {
                    self.rest();
                }
                go_on
            }));
            match round {
                Ok(true) => faults = 0,
                Ok(false) => return,
                Err(_) => faults = self.contain(faults),
            }
        }
    }

    /// A fault that belongs to no port's turn. Whoever waits for an answer gets none: the channels close.
    #[cold]
    fn contain(&mut self, faults: u32) -> u32 {
        self.stats.panics.inc();
        if faults >= MAX_FAULTS {
            error!("the switch's worker fails in every round; the daemon ends");
            std::process::abort();
        }
        error!("the switch's worker panicked outside any port's turn; it goes on");
        let _ = catch_unwind(AssertUnwindSafe(|| self.fabric.recover()));
        faults + 1
    }

    /// One round: what others asked for, then every port's turn. Never sleeps. Returns false when asked
    /// to stop.
    pub fn step(&mut self) -> bool {
        let now = Instant::now();
        self.beat.round();
        if self.queue.is_waiting() {
            self.busy = now;
            // Also so that an end that comes later is asked when the others are.
            self.wake_up();
            for Command { request, done } in self.queue.take() {
                if !self.obey(request) {
                    return false;
                }
                drop(done);
            }
        }
        self.moved = self.fabric.round(now);
        if self.moved {
            self.busy = now;
            self.cried_wolf = false;
            self.stats.rounds.bump(1);
            self.wake_up();
        }
        self.soon = self.fabric.tick(now);
        self.fabric.housekeeping();
        true
    }

    /// Did the last round move a frame?
    pub fn moved(&self) -> bool {
        self.moved
    }

    fn obey(&mut self, request: Request) -> bool {
        let fabric = &mut self.fabric;
        match request {
            Request::Stop => return false,
            Request::Add { id, spec, stats, state } => {
                fabric.add(id, &spec.name, |group| Port::new(id, group, &spec, stats, state), &spec.group);
            }
            Request::Update { id, spec } => fabric.update(id, &spec.group, |port| {
                port.mac = spec.mac;
                port.vlan = spec.vlan.clone();
                port.policy = spec.policy;
                port.uplink = spec.uplink;
            }),
            Request::Remove { id } => fabric.remove(id),
            Request::Attach { id, end } => {
                if let Some(slot) = fabric.slot(id) {
                    fabric.attach(slot, end);
                }
            }
            Request::Detach { id } => {
                if let Some(slot) = fabric.slot(id) {
                    fabric.detach(slot);
                }
            }
            Request::Shut { id, shut } => {
                if let Some(slot) = fabric.slot(id) {
                    fabric.shut(slot, shut);
                }
            }
            Request::Refresh { id } => {
                if let Some(slot) = fabric.slot(id) {
                    fabric.refresh(slot);
                }
            }
        }
        true
    }

    /// Ends look for themselves again.
    fn wake_up(&mut self) {
        self.sleep = self.settings.sleep;
        if std::mem::take(&mut self.armed) {
            self.fabric.disarm();
        }
    }

    fn rest(&mut self) {
        let idle = self.busy.elapsed();
        if self.fabric.attached().is_empty() {
            return self.wait(None);
        }
        if self.soon || self.fabric.is_waiting() || idle < self.settings.linger {
            self.stats.naps.bump(1);
            return self.wait(Some(self.settings.sleep));
        }
        if !self.armed {
            self.armed = true;
            if self.fabric.arm() {
                return;
            }
        }
        self.stats.sleeps.bump(1);
        self.wait(Some(self.sleep));
        self.sleep = (self.sleep * 2).min(self.settings.deepest);
    }

    /// Sleeps until somebody calls, an uplink's file is readable, or the time is over.
    fn wait(&mut self, timeout: Option<Duration>) {
        if !self.queue.lie_down() {
            return self.queue.get_up(false);
        }
        let timeout =
            timeout.map(|time| Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() });
        let bell = PollFd::from_borrowed_fd(self.queue.bell(), PollFlags::IN);
        let uplinks = self.fabric.wake_fds().filter(|_| !self.cried_wolf && !self.fabric.is_waiting());
        let files_of_kernel = uplinks.map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
        let bells = self.fabric.bells().filter(|_| self.armed);
        let bells = bells.map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
        let mut files: Vec<_> = std::iter::once(bell).chain(bells).collect();
        let first = files.len();
        files.extend(files_of_kernel);
        self.beat.set_busy(false);
        let _ = poll(&mut files, timeout.as_ref());
        self.beat.set_busy(true);
        let is_ready = |file: &PollFd<'_>| !file.revents().is_empty();
        let rung = is_ready(&files[0]);
        let announced = files[1..first].iter().any(is_ready);
        let woken = files[first..].iter().any(is_ready);
        drop(files);
        self.cried_wolf = woken;
        self.queue.get_up(rung);
        if announced {
            // Silences the bell, too.
            self.wake_up();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Whoever waits for an answer gets none: the channels close.
        drop(self.queue.take());
    }
}
