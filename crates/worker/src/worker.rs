//! The loop that every engine runs in.

use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CpuSet, sched_setaffinity};
use tracing::{error, warn};
use vmlane_port::role::{self, Role};

use crate::command_queue::CommandQueue;
use crate::contain::{FaultStreak, contained};
use crate::engine::{Engine, Event, WakeFds, Woken};
use crate::heartbeat::Heartbeat;
use crate::waiting::{Decision, Inputs, Policy, Ports};

/// Most of a nap's length the kernel may add to it. The default would double the shortest ones.
const TIMER_SLACK_NS: u64 = 1000;

/// How a worker behaves.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What the thread may ask of the kernel.
    pub role: Role,
    /// The longest that it spins and yields after the last thing that moved.
    pub spin: Duration,
    /// Never sleep: a core of its own is spent on latency.
    pub poll: bool,
}

/// What other threads of the process have of a worker with the engine `E`.
pub type Requests<E> = CommandQueue<<E as Engine>::Command, <E as Engine>::Shared>;

/// An engine and its loop: on a thread of its own ([`Worker::spawn`]), or turned by its owner
/// ([`Worker::step`]).
pub struct Worker<E: Engine> {
    engine: E,
    settings: Settings,
    heartbeat: Arc<Heartbeat>,
    /// Emptied and used again.
    commands: Vec<E::Command>,
    policy: Policy,
    /// The last decision: how the time is spent in which it does not work.
    decision: Decision,
    now: Instant,
    /// Busy rounds until the clock is read again.
    until_clock: u32,
    /// When something last moved or was asked for.
    busy: Instant,
    moved: bool,
    /// Something moved, or was asked for, since the clock was read last.
    worked: bool,
    /// Naps and sleeps since then.
    waited: Duration,
    /// It napped since something moved.
    napped: bool,
    /// Rounds in a row that found nothing.
    idle_rounds: u32,
    faults: FaultStreak,
    /// Dropped last: only then has the worker let go of everything.
    requests: Closes<E>,
}

/// Answers every caller when the worker ends, however it ends.
pub(crate) struct Closes<E: Engine>(pub(crate) Arc<Requests<E>>);

impl<E: Engine> Drop for Closes<E> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<E: Engine> Worker<E> {
    /// A worker that takes its commands from `requests`.
    pub fn new(
        engine: E,
        requests: Arc<Requests<E>>,
        heartbeat: Arc<Heartbeat>,
        settings: Settings,
    ) -> Worker<E> {
        let now = Instant::now();
        let policy = Policy::new(settings.spin, engine.sleep_costs());
        Worker {
            engine,
            settings,
            heartbeat,
            commands: Vec::new(),
            policy,
            decision: Decision::Spin,
            now,
            until_clock: 0,
            busy: now,
            moved: false,
            worked: false,
            waited: Duration::ZERO,
            napped: false,
            idle_rounds: 0,
            faults: FaultStreak::default(),
            requests: Closes(requests),
        }
    }

    /// Starts its thread, on the CPUs `on` only, or wherever the calling thread may run.
    pub fn spawn(self, name: String, on: Option<&CpuSet>) -> std::io::Result<JoinHandle<()>>
    where
        E: Send + 'static,
        E::Command: Send,
        E::Shared: Send,
    {
        let on = on.copied();
        std::thread::Builder::new().name(name).spawn(move || self.run(on))
    }

    fn run(mut self, on: Option<CpuSet>) {
        self.heartbeat.adopt();
        // It works with less, but naps are longer then than they are meant to be.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
        if let Some(error) = on.and_then(|on| sched_setaffinity(None, &on).err()) {
            warn!(%error, "a worker runs where it may, and not on the CPUs that were chosen for it");
        }
        role::enter(self.settings.role);
        loop {
            self.heartbeat.set_busy(true);
            match contained(|| self.run_until_stopped()) {
                Some(()) => return,
                None => self.recover(),
            }
        }
    }

    #[inline]
    fn run_until_stopped(&mut self) {
        while self.step() {
            if !self.moved {
                self.wait();
            }
        }
    }

    /// A panic that belongs to no port's turn.
    #[cold]
    fn recover(&mut self) {
        self.engine.count(Event::Panic);
        if self.faults.fault(self.heartbeat.read().rounds) {
            error!(role = self.settings.role.name(), "a worker fails in every round; the daemon ends");
            std::process::abort();
        }
        error!(role = self.settings.role.name(), "a worker panicked outside any port's turn; it continues");
        let _ = contained(|| self.engine.recover());
    }

    /// Commands that wait, then one round. Never sleeps. False if the worker was asked to stop.
    #[inline]
    pub fn step(&mut self) -> bool {
        self.heartbeat.round();
        if self.requests.0.parking().is_notified() && !self.run_commands() {
            return false;
        }
        if self.until_clock == 0 || !self.moved {
            self.read_clock();
            self.until_clock = E::CLOCK_EVERY;
            let polling = self.policy.clock(self.now);
            self.engine.clock(self.now, polling);
        }
        self.until_clock -= 1;
        if self.engine.round(self.now) {
            self.policy.found(self.now);
            if std::mem::take(&mut self.napped) {
                self.policy.napped(self.now, self.engine.moved_bytes());
                // What was learned holds from the next round on.
                self.until_clock = 0;
            }
            self.moved = true;
            self.worked = true;
            self.idle_rounds = 0;
        } else {
            if self.moved {
                self.busy = self.now;
                self.policy.gap_begins(Some(self.now));
                self.policy.became_idle(self.engine.moved_bytes());
            }
            self.moved = false;
            self.idle_rounds = self.idle_rounds.saturating_add(1);
        }
        true
    }

    /// The time since it was read last counts as work if something moved since, but for naps and sleeps; else
    /// as what was decided then.
    #[inline]
    fn read_clock(&mut self) {
        let now = Instant::now();
        let time = now.saturating_duration_since(self.now);
        let waited = if self.worked { self.waited.min(time) } else { time };
        if self.worked {
            self.heartbeat.add_worked(time - waited);
        }
        if !waited.is_zero() {
            self.heartbeat.add_waited(self.decision, waited);
        }
        (self.now, self.worked, self.waited) = (now, false, Duration::ZERO);
    }

    /// Did the last round move anything?
    pub fn moved(&self) -> bool {
        self.moved
    }

    /// What it runs.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    #[cold]
    fn run_commands(&mut self) -> bool {
        let mut commands = std::mem::take(&mut self.commands);
        self.requests.0.parking().acknowledge();
        let go_on = self.requests.0.take(&mut commands);
        self.read_clock();
        self.worked = true;
        self.busy = self.now;
        self.policy.notified();
        self.engine.notified();
        if !commands.iter().all(E::announces) {
            // What moves now is not what was waited for.
            self.policy.gap_begins(None);
        }
        for command in commands.drain(..) {
            let now = self.now;
            if contained(|| self.engine.run_command(command, now)).is_none() {
                self.recover();
            }
        }
        self.commands = commands;
        go_on
    }

    /// Nothing moved: waits as the policy decides.
    fn wait(&mut self) {
        let idle = self.now.saturating_duration_since(self.busy);
        let ports = if self.settings.poll {
            Ports::Polled
        } else {
            self.policy.resumed(self.now);
            // Decided whatever the ports can do: an answer that comes at once waits for no question.
            if self.policy.spins(idle, self.idle_rounds) {
                self.decision = Decision::Spin;
                return self.policy.pause(Decision::Spin, self.now);
            }
            self.engine.ports()
        };
        let (now, rounds, moved) = (self.now, self.idle_rounds, self.engine.moved_bytes());
        let inputs = Inputs { now, idle, rounds, moved, ports };
        // Who waits for what a sleep would deliver is not to wait for a long nap, too.
        if matches!(ports, Ports::Armable(_)) && self.policy.naps_long(moved) && self.engine.undelivered() {
            self.engine.flush_deferred();
        }
        self.decision = self.policy.decide(&inputs);
        if let Some(due) = self.engine.due() {
            self.decision = self.decision.until(due.saturating_duration_since(Instant::now()));
        }
        match self.decision {
            Decision::Spin | Decision::Yield => self.policy.pause(self.decision, now),
            Decision::Nap(length) => self.nap(length, &inputs),
            Decision::Sleep(limit) => self.sleep(limit, &inputs),
        }
    }

    fn nap(&mut self, length: Duration, inputs: &Inputs) {
        self.napped = true;
        self.policy.naps(inputs);
        self.engine.count(Event::Nap);
        self.requests.0.parking().prepare_sleep();
        let began = self.worked.then(Instant::now);
        let woken = if self.engine.has_handed() {
            self.decision = Decision::Spin;
            self.requests.0.parking().finish_sleep(false);
            Woken::default()
        } else {
            self.block(Some(length))
        };
        self.waited += began.map_or(Duration::ZERO, |began| began.elapsed());
        self.woken(woken);
    }

    /// The one place where a worker goes to sleep for as long as nothing is announced.
    fn sleep(&mut self, limit: Option<Duration>, inputs: &Inputs) {
        self.napped = false;
        self.requests.0.parking().prepare_sleep();
        // No guest waits for something that is deferred until later: later may be never.
        if self.engine.undelivered() {
            self.engine.flush_deferred();
        }
        let mut woken = Woken::default();
        if self.engine.undelivered() || self.engine.arm() {
            self.decision = Decision::Spin;
            self.requests.0.parking().finish_sleep(false);
        } else {
            self.policy.sleeps(inputs);
            self.engine.count(Event::Sleep);
            let began = Instant::now();
            woken = self.block(limit);
            self.waited += began.elapsed();
        }
        self.idle_rounds = 0;
        self.woken(woken);
    }

    fn woken(&mut self, by: Woken) {
        if by.doorbell {
            self.policy.notified();
        }
        self.engine.woken(by);
    }

    /// Blocks, unless something was asked for since the parking was prepared.
    fn block(&mut self, limit: Option<Duration>) -> Woken {
        let parking = self.requests.0.parking();
        if parking.is_notified() {
            parking.finish_sleep(false);
            return Woken::default();
        }
        let mut files = WakeFds::default();
        files.fds.push(PollFd::from_borrowed_fd(parking.file().as_fd(), PollFlags::IN));
        self.engine.wake_fds(&mut files);
        let limit = limit
            .map(|limit| Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos().into() });
        self.heartbeat.set_busy(false);
        let polled = poll(&mut files.fds, limit.as_ref());
        self.heartbeat.set_busy(true);
        let is_ready = |file: &PollFd<'_>| polled.is_ok() && !file.revents().is_empty();
        let (own, others) = files.fds.split_at(1);
        let (doorbells, sources) = others.split_at(others.len() - files.sources);
        let woken = Woken { doorbell: doorbells.iter().any(is_ready), source: sources.iter().any(is_ready) };
        parking.finish_sleep(own.iter().any(is_ready));
        woken
    }
}
