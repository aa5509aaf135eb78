//! The worker: one thread that owns the rings of all virtio-vsock devices.
//!
//! It is busy while packets move, spins for a while after, then asks all guests to announce what they
//! do, looks once more, and sleeps until one does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use vmlane_port::role::{self, Role};
use vmlane_stats::counters;
use vmlane_worker::Heartbeat;

use crate::vmci::{Endpoint, Fabric};

use super::bridge::{Bridge, Mailbox, Party};
use super::link::Waker;
use super::port::Port;
use super::round::Rounds;
use super::vm::VsockVm;

counters! {
    /// What the worker did.
    pub struct HubStats {
        /// Packets that guests sent.
        packets,
        /// Payload bytes delivered.
        bytes,
        /// Packets answered with RST.
        refused,
        /// Packets whose source was not their sender.
        forged,
        /// Chains that are no packets.
        nonsense,
        /// Connections reset because their receiver had no buffers for too long.
        stalled,
        /// Times the worker slept.
        sleeps,
        /// Faults of our own that were contained.
        panics,
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long the rings are polled after the last packet.
    pub spin: Duration,
    /// Never sleep.
    pub poll: bool,
}

enum Request {
    Add(VsockVm),
    Remove(u32),
    Attach(u32, Box<Port>),
    Detach(u32),
    Gone(u32),
    Stop,
}

/// How long a worker sleeps at most while a packet waits for buffers, or a driver for a notice.
const SHORT: Duration = Duration::from_millis(1);
/// Idle rounds spent in the CPU's pause instruction before the core is offered to others.
const PAUSES: u32 = 32;
/// A core that comes back so late is wanted by others. They would have it for a whole slice after each look;
/// who sleeps is scheduled as soon as it is woken. So for a while the worker sleeps as soon as it is idle.
const WANTED: Duration = Duration::from_micros(50);
const POLITE: Duration = Duration::from_millis(50);

/// The devices' common worker; dropping it stops it.
pub struct Hub {
    desk: Arc<Desk>,
    mailbox: Arc<Mailbox>,
    stats: Arc<HubStats>,
    beat: Arc<Heartbeat>,
    thread: Option<JoinHandle<()>>,
}

struct Desk {
    requests: Mutex<Vec<(Request, SyncSender<()>)>>,
    waiting: std::sync::atomic::AtomicBool,
    bell: std::os::fd::OwnedFd,
    /// The worker sleeps, or is about to.
    asleep: std::sync::atomic::AtomicBool,
}

impl Waker for Desk {
    fn wake(&self) {
        use std::sync::atomic::Ordering::SeqCst;
        if self.asleep.load(SeqCst) && self.asleep.swap(false, SeqCst) {
            // A full counter means that the worker is woken anyway.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

impl Hub {
    /// Starts the worker's thread. With a `fabric`, VMCI guests and the host are reached through it.
    pub fn start(settings: Settings, fabric: Option<Arc<Fabric>>) -> std::io::Result<Hub> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let desk = Arc::new(Desk {
            requests: Mutex::default(),
            waiting: Default::default(),
            bell,
            asleep: Default::default(),
        });
        let mailbox = Mailbox::new(desk.clone());
        let bridge = fabric.map(|fabric| Bridge::new(fabric, mailbox.clone()));
        let stats = Arc::new(HubStats::default());
        let beat = Arc::new(Heartbeat::default());
        let worker = Worker {
            desk: desk.clone(),
            rounds: Rounds::new(stats.clone(), bridge),
            settings,
            stats: stats.clone(),
            beat: beat.clone(),
            busy: Instant::now(),
            looked: Instant::now(),
            polite_until: Instant::now(),
            idle: 0,
        };
        let thread = std::thread::Builder::new().name("vsock".into()).spawn(move || worker.run())?;
        Ok(Hub { desk, mailbox, stats, beat, thread: Some(thread) })
    }

    pub fn stats(&self) -> &Arc<HubStats> {
        &self.stats
    }

    /// The worker's heartbeat.
    pub fn beat(&self) -> &Arc<Heartbeat> {
        &self.beat
    }

    /// What answers for the VM `cid` when VMCI guests connect to it.
    pub fn party(&self, cid: u32) -> Arc<dyn Endpoint> {
        Arc::new(Party { cid, mailbox: self.mailbox.clone() })
    }

    /// Makes a VM known, or changes what is known of it.
    pub fn add(&self, vm: VsockVm) {
        self.ask(Request::Add(vm));
    }

    pub fn remove(&self, cid: u32) {
        self.ask(Request::Remove(cid));
    }

    pub(crate) fn attach(&self, cid: u32, port: Port) {
        self.ask(Request::Attach(cid, Box::new(port)));
    }

    /// When it returns, nobody touches the VM's memory any more.
    pub(crate) fn detach(&self, cid: u32) {
        self.ask(Request::Detach(cid));
    }

    pub(crate) fn gone(&self, cid: u32) {
        self.ask(Request::Gone(cid));
    }

    /// Asks and waits until it is done.
    fn ask(&self, request: Request) {
        let (done, finished) = sync_channel(1);
        self.desk.requests.lock().push((request, done));
        self.desk.waiting.store(true, std::sync::atomic::Ordering::Release);
        // A full counter means that the worker is woken anyway.
        let _ = rustix::io::write(&self.desk.bell, &1u64.to_ne_bytes());
        // An error: the worker has stopped, and holds nothing any more.
        let _ = finished.recv();
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.ask(Request::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    desk: Arc<Desk>,
    rounds: Rounds,
    settings: Settings,
    stats: Arc<HubStats>,
    beat: Arc<Heartbeat>,
    /// When something last moved.
    busy: Instant,
    /// The last look.
    looked: Instant,
    /// Others want the core.
    polite_until: Instant,
    idle: u32,
}

impl Worker {
    fn run(mut self) {
        role::enter(Role::Vsock);
        self.beat.set_busy(true);
        while self.obey() {
            let now = Instant::now();
            self.notice_others(now);
            self.beat.round();
            match catch_unwind(AssertUnwindSafe(|| self.rounds.round(now))) {
                Ok(true) => {
                    self.busy = now;
                    self.idle = 0;
                }
                Ok(false) if self.spins(now) => {
                    self.idle += 1;
                    if self.idle < PAUSES { std::hint::spin_loop() } else { std::thread::yield_now() }
                }
                Ok(false) => self.rest(),
                Err(_) => {
                    // A port that was being served is gone with the fault; the others go on.
                    self.stats.panics.bump(1);
                    tracing::error!("a fault while packets were routed was contained");
                }
            }
        }
        // Whoever waits for an answer gets none: the channels close.
        self.desk.requests.lock().clear();
    }

    /// Was the core away for long when it was offered to others?
    fn notice_others(&mut self, now: Instant) {
        let since = now.duration_since(std::mem::replace(&mut self.looked, now));
        if self.idle > PAUSES && since > WANTED {
            self.polite_until = now + POLITE;
        }
    }

    /// Does an idle worker look again, rather than sleep?
    fn spins(&self, now: Instant) -> bool {
        let polite = self.idle >= PAUSES && now < self.polite_until;
        self.settings.poll || now.duration_since(self.busy) < self.settings.spin && !polite
    }

    /// Does what others asked for. False: to stop.
    fn obey(&mut self) -> bool {
        if !self.desk.waiting.swap(false, std::sync::atomic::Ordering::AcqRel) {
            return true;
        }
        let requests = std::mem::take(&mut *self.desk.requests.lock());
        for (request, done) in requests {
            match request {
                Request::Add(vm) => self.rounds.add(vm),
                Request::Remove(cid) => self.rounds.remove(cid),
                Request::Attach(cid, port) => self.rounds.attach(cid, port),
                Request::Detach(cid) => self.rounds.detach(cid),
                Request::Gone(cid) => self.rounds.reset_all(cid),
                Request::Stop => return false,
            }
            drop(done);
        }
        self.busy = Instant::now();
        true
    }

    /// Sleeps until a guest announces something or somebody asks.
    fn rest(&mut self) {
        self.desk.asleep.store(true, std::sync::atomic::Ordering::SeqCst);
        if !self.rounds.arm() {
            self.stats.sleeps.bump(1);
            let timeout = self
                .rounds
                .is_waiting()
                .then_some(Timespec { tv_sec: 0, tv_nsec: SHORT.subsec_nanos().into() });
            let bells = self.rounds.ports().filter_map(Port::bell);
            let all = std::iter::once(std::os::fd::AsFd::as_fd(&self.desk.bell)).chain(bells);
            let mut files: Vec<_> = all.map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN)).collect();
            self.beat.set_busy(false);
            let _ = poll(&mut files, timeout.as_ref());
            self.beat.set_busy(true);
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.desk.bell, &mut count);
        }
        self.desk.asleep.store(false, std::sync::atomic::Ordering::SeqCst);
        self.rounds.disarm();
        self.idle = 0;
    }
}
