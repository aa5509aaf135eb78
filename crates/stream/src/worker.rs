//! Workers: one thread each, which owns its lanes and turns them while there is work.
//!
//! A worker is adaptive: busy while bytes move, spinning for a while after, then it arms the lanes by
//! the rules, and parks when none is left awake. A safety net looks at sleeping lanes ten times a
//! second; it counts what it finds and must find nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{debug, error, warn};
use vmlane_port::role::{self, Role};
use vmlane_port::{Budget, Resumed, Shutdown, Side, StreamEnd, StreamId, Streams};
use vmlane_stats::counters;
use vmlane_worker::Heartbeat;

use crate::joined::{self, Broken, Inspection, Lane, Turn};
use crate::payers::{self, Payer};
use crate::queue::{Command, Queue};

/// How workers behave.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Threads. Every lane belongs to one of them.
    pub workers: u16,
    /// How long a lane is polled after its last byte before it is armed and left alone.
    pub spin: Duration,
    /// Never sleep: a core of its own is spent on latency.
    pub poll: bool,
    /// Bytes a lane moves per turn at most, so that one cannot hold the worker.
    pub quota: usize,
    /// Looks of the safety net, a tenth of a second apart, before a notice counts as lost; more of them
    /// where guests' threads may stand still for longer. Guests that are slow to send have 30 at least.
    pub looks: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let spin = Duration::from_micros(500);
        Settings { workers: 1, spin, poll: false, quota: 1 << 20, looks: joined::LOOKS }
    }
}

counters! {
    /// What the workers did, all of them together.
    pub struct WorkerStats {
        /// Bytes copied from end to end.
        bytes,
        /// Turns that moved something.
        turns,
        /// Streams put to sleep.
        sleeps,
        /// Times a worker parked.
        parks,
        /// Streams joined.
        joined,
        /// Streams ended because an end broke the rules of its ring.
        broken,
        /// Streams ended because our own code panicked on them.
        panics,
        /// Bytes kept for a peer after their sender had left.
        spilled_bytes,
        /// Bytes lost because their sender left and its budget was spent.
        lost_bytes,
        /// Safety net: notices that had got lost. Stays 0 unless there is a bug here or in a guest.
        lost_notices,
        /// Safety net: bytes taken without a notice from a sender that stood still.
        still_senders,
        /// Turns put off because whoever opened the stream had used up its part of the round.
        deferred,
        /// Rings topped up that their readers had made room in without announcing it yet.
        refills,
    }
}

/// Bytes that a turn costs beside its own, and a look at a lane that has nothing to move.
const TURN_COST: usize = 2048;
const LOOK_COST: usize = 512;
/// How often the safety net looks.
const INSPECT: Duration = Duration::from_millis(100);
/// How often a reader is reminded of bytes it has not come for, while more arrive.
const NUDGE: Duration = Duration::from_millis(1);
/// Turns between two looks at the clock while bytes move.
const CLOCK_EVERY: u32 = 64;
/// Idle rounds spent in the CPU's pause instruction before the core is offered to others.
const PAUSES: u32 = 32;
/// A lane whose ends never announce anything is looked at this often when idle.
const POLLED: Duration = Duration::from_millis(1);

/// Rounds in a row that may fail outside any lane's turn before nothing good can be expected any more.
const MAX_FAULTS: u32 = 100;

/// The worker threads; dropping it stops them.
pub struct Workers {
    queues: Vec<Arc<Queue>>,
    threads: Vec<JoinHandle<()>>,
    stats: Arc<WorkerStats>,
    beats: Vec<Arc<Heartbeat>>,
    next: AtomicUsize,
}

impl Workers {
    /// Starts the threads.
    pub fn start(settings: Settings) -> std::io::Result<Workers> {
        let (mut workers, unstarted) = Workers::unstarted(settings);
        for (number, worker) in unstarted.into_iter().enumerate() {
            let thread = std::thread::Builder::new().name(format!("worker-{number}"));
            workers.threads.push(thread.spawn(move || worker.run())?);
        }
        Ok(workers)
    }

    /// The workers without threads: nothing moves unless the caller calls [`Worker::step`]. For
    /// benchmarks of the engine alone.
    pub fn unstarted(settings: Settings) -> (Workers, Vec<Worker>) {
        let stats = Arc::new(WorkerStats::default());
        let queues: Vec<_> = (0..settings.workers.max(1)).map(|_| Arc::new(Queue::default())).collect();
        let beats: Vec<Arc<Heartbeat>> = queues.iter().map(|_| Arc::default()).collect();
        let unstarted = queues.iter().zip(&beats);
        let unstarted = unstarted
            .map(|(queue, beat)| Worker::new(queue.clone(), settings, stats.clone(), beat.clone()))
            .collect();
        (Workers { queues, threads: Vec::new(), stats, beats, next: AtomicUsize::new(0) }, unstarted)
    }

    pub fn stats(&self) -> &Arc<WorkerStats> {
        &self.stats
    }

    /// The heartbeat of each worker; it serves lanes.
    pub fn beats(&self) -> &[Arc<Heartbeat>] {
        &self.beats
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| queue.stop());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Streams for Workers {
    fn join(&self, ends: [StreamEnd; 2]) -> StreamId {
        let worker = self.next.fetch_add(1, Ordering::Relaxed) % self.queues.len();
        StreamId { worker: worker as u16, number: self.queues[worker].join(ends) }
    }

    fn resume(&self, lane: Resumed) -> StreamId {
        let worker = self.next.fetch_add(1, Ordering::Relaxed) % self.queues.len();
        StreamId { worker: worker as u16, number: self.queues[worker].resume(lane) }
    }

    fn kick(&self, lane: StreamId) {
        self.queues[usize::from(lane.worker)].kick(lane.number);
    }

    fn shutdown(&self, lane: StreamId, side: Side, what: Shutdown) {
        let queue = &self.queues[usize::from(lane.worker)];
        queue.send(lane.number, |slot| Command::Shutdown { slot, side, what });
    }

    fn reset(&self, lane: StreamId, side: Side) {
        self.queues[usize::from(lane.worker)].send(lane.number, |slot| Command::Reset { slot, side });
    }

    fn leave(&self, ends: &[(StreamId, Side)]) {
        let (done, finished) = sync_channel(ends.len());
        let mut asked = 0;
        for &(lane, side) in ends {
            let done = done.clone();
            let queue = &self.queues[usize::from(lane.worker)];
            asked += usize::from(queue.send(lane.number, |slot| Command::Leave { slot, side, done }));
        }
        drop(done);
        // A sender that is dropped unused (its lane was gone, or the worker stops) counts as an answer.
        for _ in 0..asked {
            if finished.recv().is_err() {
                break;
            }
        }
    }
}

/// One worker: a thread of [`Workers`], or driven by whoever measures it.
pub struct Worker {
    queue: Arc<Queue>,
    settings: Settings,
    stats: Arc<WorkerStats>,
    beat: Arc<Heartbeat>,
    lanes: Vec<Option<Lane>>,
    /// Slots of the lanes that are awake.
    active: Vec<usize>,
    /// The same in the order of this round.
    turns: Vec<usize>,
    /// Which of them begins.
    first: usize,
    payers: Vec<Payer>,
    commands: Vec<Command>,
    /// Rounds in a row that moved nothing.
    idle_rounds: u32,
    until_clock: u32,
    now: Instant,
    /// Bytes and turns that the counters do not have yet.
    moved: (u64, u64),
    nudged: Instant,
    inspected: Instant,
    polled: Instant,
    /// The first time that a sleeping lane wants to be looked at.
    next_look: Option<Instant>,
}

impl Worker {
    fn new(queue: Arc<Queue>, settings: Settings, stats: Arc<WorkerStats>, beat: Arc<Heartbeat>) -> Worker {
        let now = Instant::now();
        Worker {
            queue,
            settings,
            stats,
            beat,
            lanes: Vec::new(),
            active: Vec::new(),
            turns: Vec::new(),
            first: 0,
            payers: Vec::new(),
            commands: Vec::new(),
            idle_rounds: 0,
            until_clock: 0,
            now,
            moved: (0, 0),
            nudged: now,
            inspected: now,
            polled: now,
            next_look: None,
        }
    }

    fn run(mut self) {
        self.queue.adopt();
        role::enter(Role::Worker);
        let mut faults = 0;
        loop {
            self.beat.set_busy(true);
            match catch_unwind(AssertUnwindSafe(|| self.step_and_rest())) {
                Ok(true) => faults = 0,
                Ok(false) => return,
                Err(_) => {
                    self.stats.panics.inc();
                    if faults >= MAX_FAULTS {
                        error!("a worker fails in every round; the daemon ends");
                        std::process::abort();
                    }
                    error!("a worker panicked outside any stream's turn; it goes on");
                    faults += 1;
                }
            }
        }
    }

    #[inline]
    fn step_and_rest(&mut self) -> bool {
        while self.step() {
            if self.idle_rounds == 0 {
                continue;
            }
            if self.active.is_empty() && !self.settings.poll {
                self.park();
            } else if self.idle_rounds > PAUSES {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        false
    }

    /// One round: what others asked for, what is due, a turn of every lane that is awake. Returns
    /// false when asked to stop.
    pub fn step(&mut self) -> bool {
        self.beat.round();
        if !self.obey() {
            return false;
        }
        if self.until_clock == 0 || self.idle_rounds > 0 {
            self.now = Instant::now();
            self.until_clock = CLOCK_EVERY;
            self.housekeeping();
        }
        self.until_clock -= 1;
        self.idle_rounds = if self.round() { 0 } else { self.idle_rounds.saturating_add(1) };
        true
    }

    fn park(&mut self) {
        self.stats.parks.inc();
        let now = Instant::now();
        let timeout = self.lanes.iter().flatten().map(|lane| match lane.look() {
            _ if !lane.notifies() => POLLED,
            Some(look) => look.saturating_duration_since(now),
            None => INSPECT,
        });
        let timeout = timeout.min();
        self.beat.set_busy(false);
        self.queue.park(timeout);
        self.beat.set_busy(true);
    }

    /// Carries out what other threads asked for. False when asked to stop.
    fn obey(&mut self) -> bool {
        if !self.queue.is_waiting() {
            return true;
        }
        let mut commands = std::mem::take(&mut self.commands);
        let any = self.queue.take(&mut commands);
        let mut go_on = true;
        if any {
            for command in commands.drain(..) {
                go_on &= self.command(command);
            }
        }
        self.commands = commands;
        go_on
    }

    fn command(&mut self, command: Command) -> bool {
        match command {
            Command::Stop => return false,
            Command::Join { slot, ends } => {
                if self.lanes.len() <= slot {
                    self.lanes.resize_with(slot + 1, || None);
                }
                let payer = payers::find(&mut self.payers, &ends[0].budget);
                let mut lane = Lane::new(ends, Instant::now());
                lane.payer = payer;
                lane.looks = lane.looks.max(self.settings.looks);
                self.lanes[slot] = Some(lane);
                self.stats.joined.inc();
                self.activate(slot);
            }
            Command::Resume { slot, lane } => {
                if self.lanes.len() <= slot {
                    self.lanes.resize_with(slot + 1, || None);
                }
                let Resumed { ends, left, marks } = *lane;
                let payer = ends.iter().flatten().next().map(|end| end.budget.clone());
                let mut lane = Lane::resumed(ends, left, Instant::now());
                lane.payer =
                    payers::find(&mut self.payers, &payer.unwrap_or_else(|| Arc::new(Budget::new(0))));
                lane.looks = lane.looks.max(self.settings.looks);
                self.lanes[slot] = Some(lane);
                self.stats.joined.inc();
                self.guarded(slot, |lane| lane.take_up(marks));
                self.activate(slot);
            }
            Command::Kick { slot } => self.activate(slot),
            Command::Shutdown { slot, side, what } => {
                self.guarded(slot, |lane| lane.shutdown(side, what));
                self.activate(slot);
            }
            Command::Reset { slot, side } => {
                self.guarded(slot, |lane| lane.reset(side));
                self.activate(slot);
            }
            Command::Leave { slot, side, done } => {
                if let Some(left) = self.guarded(slot, |lane| lane.leave(side)) {
                    self.stats.spilled_bytes.add(left.kept as u64);
                    self.stats.lost_bytes.add(left.lost as u64);
                }
                if self.lanes.get(slot).and_then(Option::as_ref).is_some_and(Lane::is_over) {
                    self.remove(slot);
                } else {
                    self.activate(slot);
                }
                let _ = done.send(());
            }
        }
        true
    }

    fn activate(&mut self, slot: usize) {
        let Some(lane) = self.lanes.get_mut(slot).and_then(Option::as_mut) else { return };
        lane.last_moved = Instant::now();
        if !lane.active {
            lane.active = true;
            self.active.push(slot);
        }
    }

    /// Turns every lane that is awake. True if bytes moved, or would have.
    fn round(&mut self) -> bool {
        match self.active[..] {
            [] => false,
            // Alone, it keeps nobody waiting.
            [slot] => self.turn(slot).0,
            _ => self.shared_round(),
        }
    }

    /// Whoever opened a lane pays for its turns, and has so much for a round: a guest with a thousand
    /// streams takes no more of the worker than one with one.
    fn shared_round(&mut self) -> bool {
        let mut moved_any = false;
        let quota = self.settings.quota;
        self.payers.iter_mut().for_each(|payer| payer.refill(quota));
        // The lane that begins changes, so that each of a payer's lanes gets its turn.
        let count = self.active.len();
        self.first = if self.first + 1 < count { self.first + 1 } else { 0 };
        self.turns.clear();
        self.turns.extend_from_slice(&self.active[self.first..]);
        self.turns.extend_from_slice(&self.active[..self.first]);
        for at in 0..self.turns.len() {
            let slot = self.turns[at];
            // It may have been ended by another one's turn.
            let Some(lane) = self.lanes[slot].as_ref().filter(|lane| lane.active) else { continue };
            let payer = lane.payer;
            if self.payers[payer].is_spent() {
                self.stats.deferred.bump(1);
                moved_any = true;
                continue;
            }
            let (moved, cost) = self.turn(slot);
            self.payers[payer].pay(cost);
            moved_any |= moved;
        }
        moved_any
    }

    /// A turn of one lane: whether bytes moved, and what it cost.
    #[inline]
    fn turn(&mut self, slot: usize) -> (bool, usize) {
        self.beat.serve(slot as u32);
        let quota = self.settings.quota;
        match self.guarded(slot, |lane| lane.turn(quota)) {
            Some(Turn::Moved(bytes)) => {
                self.moved.0 += bytes as u64;
                self.moved.1 += 1;
                if let Some(lane) = self.lanes[slot].as_mut() {
                    lane.last_moved = self.now;
                }
                (true, bytes + TURN_COST)
            }
            Some(Turn::Idle) => {
                self.try_sleep(slot);
                (false, LOOK_COST)
            }
            None => (false, LOOK_COST),
        }
    }

    /// Puts an idle lane to sleep once it has been polled long enough.
    fn try_sleep(&mut self, slot: usize) {
        let now = self.now;
        let Some(lane) = self.lanes[slot].as_mut() else { return };
        if self.settings.poll || now.saturating_duration_since(lane.last_moved) < self.settings.spin {
            return;
        }
        let quota = self.settings.quota;
        if self.guarded(slot, |lane| lane.try_sleep(quota, now)) == Some(true) {
            self.stats.sleeps.inc();
            let look = self.lanes[slot].as_ref().and_then(Lane::look);
            self.next_look = self.next_look.into_iter().chain(look).min();
            self.deactivate(slot);
        }
    }

    fn deactivate(&mut self, slot: usize) {
        if let Some(lane) = self.lanes[slot].as_mut() {
            lane.active = false;
        }
        if let Some(index) = self.active.iter().position(|&other| other == slot) {
            self.active.swap_remove(index);
        }
    }

    /// Runs `action` on a lane; a fault of its ends or a panic of ours ends that lane and no other.
    fn guarded<T>(&mut self, slot: usize, action: impl FnOnce(&mut Lane) -> Result<T, Broken>) -> Option<T> {
        let lane = self.lanes.get_mut(slot)?.as_mut()?;
        // A fault is large and rare: it takes a way of its own, so that what a turn returns stays small.
        let mut fault = None;
        let value = catch_unwind(AssertUnwindSafe(|| match action(lane) {
            Ok(value) => Some(value),
            Err(broken) => {
                fault = Some(broken);
                None
            }
        }));
        match value {
            Ok(Some(value)) => return Some(value),
            Ok(None) => {
                self.stats.broken.inc();
                if let Some(broken) = fault {
                    debug!(side = ?broken.side, "stream ended: {}", broken.fault);
                }
            }
            Err(_) => {
                self.stats.panics.inc();
                error!("a stream's turn panicked; the stream is ended");
            }
        }
        if catch_unwind(AssertUnwindSafe(|| lane.break_up())).is_err() {
            self.stats.panics.inc();
        }
        self.remove(slot);
        None
    }

    fn remove(&mut self, slot: usize) {
        self.deactivate(slot);
        if let Some(lane) = self.lanes[slot].take() {
            self.payers[lane.payer].lanes -= 1;
            self.queue.free(slot);
        }
    }

    /// What need not be done every round: counters, readers to remind, lanes that never announce
    /// anything, the safety net.
    fn housekeeping(&mut self) {
        let now = self.now;
        let (bytes, turns) = std::mem::take(&mut self.moved);
        self.stats.bytes.add(bytes);
        self.stats.turns.add(turns);
        if now.duration_since(self.nudged) >= NUDGE {
            self.nudged = now;
            for index in (0..self.active.len()).rev() {
                let slot = self.active[index];
                self.guarded(slot, Lane::nudge);
            }
        }
        if now.duration_since(self.polled) >= POLLED {
            self.polled = now;
            for slot in 0..self.lanes.len() {
                if self.lanes[slot].as_ref().is_some_and(|lane| !lane.active && !lane.notifies()) {
                    self.poll_once(slot);
                }
            }
        }
        let everyone = now.duration_since(self.inspected) >= INSPECT;
        if everyone {
            self.inspected = now;
        }
        if everyone || self.next_look.is_some_and(|look| look <= now) {
            for slot in 0..self.lanes.len() {
                let Some(lane) = self.lanes[slot].as_ref().filter(|lane| !lane.active) else { continue };
                match lane.look() {
                    Some(look) if look <= now => self.inspect(slot),
                    None if everyone => self.inspect(slot),
                    _ => {}
                }
            }
            let asleep = self.lanes.iter().flatten().filter(|lane| !lane.active);
            self.next_look = asleep.filter_map(Lane::look).min();
        }
    }

    fn poll_once(&mut self, slot: usize) {
        if let Some(Turn::Moved(_)) = self.guarded(slot, |lane| lane.turn(usize::MAX)) {
            self.activate(slot);
        }
    }

    fn inspect(&mut self, slot: usize) {
        match self.guarded(slot, Lane::inspect) {
            Some(found @ (Inspection::LostNotice | Inspection::Still)) => {
                if found == Inspection::LostNotice {
                    self.stats.lost_notices.inc();
                    warn!("a stream slept with work to do: a notice got lost; repaired");
                } else {
                    self.stats.still_senders.inc();
                    debug!("a stream slept with work to do: its sender stands still");
                }
                self.guarded(slot, |lane| {
                    lane.rouse();
                    Ok(())
                });
                self.activate(slot);
            }
            Some(Inspection::Refill) => {
                self.stats.refills.inc();
                self.activate(slot);
            }
            Some(Inspection::Quiet) => {
                let now = self.now;
                if let Some(lane) = self.lanes[slot].as_mut().filter(|lane| lane.look().is_some()) {
                    lane.be_patient(now);
                }
            }
            None => {}
        }
    }
}
