//! A worker: a thread that owns the rings of virtio-vsock devices.
//!
//! It is busy while packets move, then waits as `vmlane_worker` decides: before it sleeps, it asks all guests
//! to announce what they do, and polls once more.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vmlane_port::role::Role;
use vmlane_port::wrap::{Fault, StreamTap};
use vmlane_vsock::{Endpoint, Router, VmTable};
use vmlane_worker::{
    Answer, Calls, CommandQueue, CpuSet, Engine, Event, Heartbeat, Parking, Polling, Ports, Ride, Rounds,
    WakeFds, Woken, Worker, contained,
};

use crate::virtio::recall;

use super::bridge::{Bridge, FEWEST_LINKS, GuestEndpoint, Inboxes, MAX_LINKS};
use super::kept::{Kept, Transaction};
use super::port::Port;
use super::route::{Moved, Routes};
use super::stats::{GuestStats, VsockStats};
use super::views::{ConnectionView, GuestView, Question};

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long the rings are polled after the last packet.
    pub spin: Duration,
    /// Never sleep.
    pub poll: bool,
}

enum Request {
    /// All VMs of a previous daemon are served.
    Begin,
    /// Where the VM's device counts is put there; what it is given is for one that is new.
    Add(u32, Arc<GuestStats>, Arc<OnceLock<Arc<GuestStats>>>),
    Remove(u32),
    Attach(u32, Box<Port>),
    /// What the VM's device did with a previous daemon is there.
    Restore(u32, Arc<Kept>),
    /// The VM is served by another worker from here on. What it takes along is put there.
    Move(u32, Arc<Mutex<Option<Moved>>>),
    Detach(u32),
    Gone(u32),
    /// Out of service, or back in it.
    Shut(u32, bool),
    /// Something goes wrong while the VM is served.
    Fail(u32, Fault),
    /// The tap of packets between guests from now on.
    Tap(Vec<Arc<dyn StreamTap>>),
    /// What an operator may see is asked for.
    ShowGuests,
    ShowConnections,
}

impl Request {
    /// Whose it is, if a VM's.
    fn cid(&self) -> Option<u32> {
        match self {
            Request::Add(cid, ..)
            | Request::Remove(cid)
            | Request::Attach(cid, _)
            | Request::Restore(cid, _)
            | Request::Move(cid, _)
            | Request::Detach(cid)
            | Request::Gone(cid)
            | Request::Shut(cid, _)
            | Request::Fail(cid, _) => Some(*cid),
            Request::Begin | Request::Tap(_) | Request::ShowGuests | Request::ShowConnections => None,
        }
    }
}

/// A request, and the caller that waits for its end.
struct Command {
    request: Request,
    _answer: Option<Answer>,
}

type Requests = CommandQueue<Command>;

/// What a worker needs whose guests reach VMCI guests and the host.
pub type Relay = (Arc<Router>, Ride);

/// How long a worker sleeps at most while a packet waits for buffers.
const SHORT: Duration = Duration::from_millis(1);

/// Some devices' common worker; dropping it stops it.
pub struct VsockWorker {
    requests: Arc<Requests>,
    inboxes: Arc<Inboxes>,
    transaction: Arc<Transaction>,
    log: OwnedFd,
    stats: Arc<VsockStats>,
    questions: Arc<Questions>,
    /// Held while they are changed; the worker never takes it.
    taps: Mutex<Vec<Arc<dyn StreamTap>>>,
    heartbeat: Arc<Heartbeat>,
    name: String,
    thread: Option<JoinHandle<()>>,
}

/// What may be asked of the worker.
#[derive(Default)]
struct Questions {
    guests: Question<Vec<GuestView>>,
    connections: Question<Vec<ConnectionView>>,
}

impl VsockWorker {
    /// Starts a worker that is alone and follows none, for VMs in `vms`. With a `relay`, VMCI guests and the
    /// host are reached: by the router, and with the engine of streams that rides.
    pub fn start(settings: Settings, vms: &VmTable, relay: Option<Relay>) -> std::io::Result<VsockWorker> {
        let worker = VsockWorker::start_one_of((0, 1, None), settings, vms, relay)?;
        worker.begin();
        Ok(worker)
    }

    /// All VMs of a previous daemon are served.
    pub(super) fn begin(&self) {
        self.post(Request::Begin);
    }

    /// Starts the worker `number` of `count`, which share what a process may have of connections' memory, on
    /// the CPUs `on`. Until [`Self::begin`] all VMs may still come.
    pub(super) fn start_one_of(
        (number, count, on): (usize, usize, Option<&CpuSet>),
        settings: Settings,
        vms: &VmTable,
        relay: Option<Relay>,
    ) -> std::io::Result<VsockWorker> {
        let (parking, heartbeat) = match &relay {
            Some((_, Ride { parking, heartbeat, .. })) => (parking.clone(), heartbeat.clone()),
            None => (Arc::new(Parking::new()?), Arc::default()),
        };
        let requests = Arc::new(Requests::new(parking.clone()));
        let inboxes = Inboxes::new(parking);
        let most = (MAX_LINKS / count).max(FEWEST_LINKS);
        let bridge = relay.map(|(router, ride)| Bridge::new(router, inboxes.clone(), Some(ride), most));
        let stats = Arc::new(VsockStats::default());
        let questions = Arc::new(Questions::default());
        let (transaction, log) = Transaction::create()?;
        let routes = Routes::new(vms.reader(), stats.clone(), bridge, transaction.clone(), !settings.poll)?;
        let engine = VsockEngine { routes, stats: stats.clone(), questions: questions.clone() };
        let Settings { spin, poll } = settings;
        let settings = vmlane_worker::Settings { role: Role::Vsock, spin, poll };
        let worker = Worker::new(engine, requests.clone(), heartbeat.clone(), settings);
        let name = if count == 1 { "vsock".to_owned() } else { format!("vsock-{number}") };
        let thread = Some(worker.spawn(name.clone(), on)?);
        Ok(VsockWorker {
            requests,
            inboxes,
            transaction,
            log,
            stats,
            questions,
            taps: Mutex::default(),
            heartbeat,
            name,
            thread,
        })
    }

    pub fn stats(&self) -> &Arc<VsockStats> {
        &self.stats
    }

    /// The VMs as they are now; if the worker does not answer, as they were when it last did.
    pub fn guests(&self) -> Arc<Vec<GuestView>> {
        self.questions.guests.ask(|| self.post(Request::ShowGuests))
    }

    /// Likewise, all connections with such a VM at an end.
    pub fn connections(&self) -> Arc<Vec<ConnectionView>> {
        self.questions.connections.ask(|| self.post(Request::ShowConnections))
    }

    fn post(&self, request: Request) {
        self.requests.post(|()| (Some(Command { request, _answer: None }), ()));
    }

    /// Its thread's.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The worker's heartbeat.
    pub fn heartbeat(&self) -> &Arc<Heartbeat> {
        &self.heartbeat
    }

    /// What answers for the VM `cid` when VMCI guests connect to it.
    pub fn endpoint(&self, cid: u32) -> Arc<dyn Endpoint> {
        Arc::new(GuestEndpoint::new(cid, &self.inboxes))
    }

    /// Has `tap` examine all packets between guests, until [`Self::remove_tap`]: it decides itself which
    /// concern it.
    pub fn add_tap(&self, tap: Arc<dyn StreamTap>) {
        let mut taps = self.taps.lock();
        taps.push(tap);
        self.ask(Request::Tap(taps.clone()));
    }

    /// Ends what [`Self::add_tap`] began: when this returns, the worker does not use the tap any more.
    pub fn remove_tap(&self, tap: &Arc<dyn StreamTap>) {
        let mut taps = self.taps.lock();
        taps.retain(|other| !Arc::ptr_eq(other, tap));
        self.ask(Request::Tap(taps.clone()));
    }

    /// A VM has such a device from here on. Returns what that counts.
    pub fn add(&self, cid: u32) -> Arc<GuestStats> {
        self.add_counted(cid, Arc::default())
    }

    /// The same; it counts in `new` if it is new.
    pub(super) fn add_counted(&self, cid: u32, new: Arc<GuestStats>) -> Arc<GuestStats> {
        let stats = Arc::new(OnceLock::new());
        self.ask(Request::Add(cid, new.clone(), stats.clone()));
        stats.get().cloned().unwrap_or(new)
    }

    /// A VM that `from` has served is served here from now on. Returns what its device counts.
    pub(super) fn take_over(&self, cid: u32, from: &VsockWorker, new: Arc<GuestStats>) -> Arc<GuestStats> {
        let moved = Arc::<Mutex<Option<Moved>>>::default();
        from.ask(Request::Move(cid, moved.clone()));
        let Some(Moved { rings, stats }) = moved.lock().take() else { return self.add_counted(cid, new) };
        let stats = self.add_counted(cid, stats);
        rings.into_iter().for_each(|rings| self.ask(Request::Attach(cid, rings)));
        stats
    }

    /// Takes a VM out of service, or back into it: then its driver must be loaded anew. When it returns, the
    /// worker does not touch the memory of a VM that is out of service.
    pub fn set_quarantined(&self, cid: u32, on: bool) {
        self.ask(Request::Shut(cid, on));
    }

    /// Has something go wrong while a VM is served. False: its rings do not run.
    pub fn inject(&self, cid: u32, fault: Fault) -> bool {
        let ready = self.guests().iter().any(|guest| guest.cid == cid && guest.ready);
        if ready {
            self.post(Request::Fail(cid, fault));
        }
        ready
    }

    pub fn remove(&self, cid: u32) {
        self.ask(Request::Remove(cid));
    }

    pub(super) fn attach(&self, cid: u32, port: Port) {
        self.ask(Request::Attach(cid, Box::new(port)));
    }

    /// What the VM's device did with a previous daemon is in `kept`.
    pub(super) fn restore(&self, cid: u32, kept: Arc<Kept>) {
        self.ask(Request::Restore(cid, kept));
    }

    /// The log of its transactions.
    pub(super) fn log(&self) -> &OwnedFd {
        &self.log
    }

    /// With which what its rings do becomes valid. Used on its thread alone.
    pub(super) fn transaction(&self) -> &Arc<Transaction> {
        &self.transaction
    }

    /// When it returns, the worker does not touch the VM's memory any more.
    pub(super) fn detach(&self, cid: u32) {
        self.ask(Request::Detach(cid));
    }

    pub(super) fn gone(&self, cid: u32) {
        self.ask(Request::Gone(cid));
    }

    /// Asks and waits until it is done. A worker that has stopped refuses, and holds nothing any more.
    fn ask(&self, request: Request) {
        let calls = Calls::new();
        let _ = self.requests.call(|()| Some(Command { request, _answer: Some(calls.answer()) }));
        calls.wait();
    }
}

impl Drop for VsockWorker {
    fn drop(&mut self) {
        self.requests.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// All VMs' rings, and what a round over them is.
struct VsockEngine {
    routes: Routes,
    stats: Arc<VsockStats>,
    questions: Arc<Questions>,
}

impl VsockEngine {
    fn carry_out(&mut self, request: Request) {
        match request {
            Request::Begin => self.routes.begin(Instant::now()),
            Request::Add(cid, new, stats) => drop(stats.set(self.routes.add(cid, new))),
            Request::Remove(cid) => self.routes.remove(cid),
            Request::Attach(cid, port) => self.routes.attach(cid, port),
            Request::Restore(cid, kept) => _ = self.routes.bind(cid, &kept),
            Request::Move(cid, to) => *to.lock() = self.routes.hand_over(cid),
            Request::Detach(cid) => self.routes.detach(cid),
            Request::Gone(cid) => self.routes.reset_all(cid),
            Request::Shut(cid, shut) => self.routes.set_shut(cid, shut),
            Request::Fail(_, fault) => fault.happen(),
            Request::Tap(taps) => self.routes.set_taps(taps),
            Request::ShowGuests => self.questions.guests.answer(self.routes.views()),
            Request::ShowConnections => self.questions.connections.answer(self.routes.connections()),
        }
    }
}

impl Engine for VsockEngine {
    type Command = Command;
    type Shared = ();

    fn notified(&mut self) {
        self.routes.notified();
    }

    /// Guests announce by doorbells.
    fn announces(_: &Command) -> bool {
        false
    }

    fn run_command(&mut self, command: Command, _: Instant) {
        // The answer goes with the command's end, however it ends.
        let Command { request, _answer } = command;
        match request.cid() {
            None => self.carry_out(request),
            Some(cid) => contained(|| self.carry_out(request)).unwrap_or_else(|| self.routes.fault(cid)),
        }
    }
}

/// Of the guests' rings, and of the engine of their streams, which rides.
impl Rounds for VsockEngine {
    fn clock(&mut self, now: Instant, polling: Polling) {
        self.routes.streams().into_iter().for_each(|streams| streams.clock(now, polling));
    }

    fn round(&mut self, now: Instant) -> bool {
        self.routes.round(now)
    }

    fn moved_bytes(&self) -> u64 {
        self.stats.bytes.get() + self.routes.streams_ref().map_or(0, |streams| streams.moved_bytes())
    }

    fn ports(&mut self) -> Ports {
        let repeats = self.routes.repeats().then_some(recall::FIRST);
        let limit = repeats.or(self.routes.is_waiting().then_some(SHORT));
        match self.routes.streams().map(|streams| streams.ports()) {
            Some(Ports::Armed(of_streams)) => Ports::Armable(limit.into_iter().chain(of_streams).min()),
            Some(busy) => busy,
            None => Ports::Armable(limit),
        }
    }

    fn undelivered(&self) -> bool {
        self.routes.undelivered() || self.routes.streams_ref().is_some_and(|streams| streams.undelivered())
    }

    fn flush_deferred(&mut self) {
        self.routes.flush_deferred(Instant::now());
        self.routes.streams().into_iter().for_each(|streams| streams.flush_deferred());
    }

    fn arm(&mut self) -> bool {
        self.routes.streams().is_some_and(|streams| streams.arm()) || self.routes.arm()
    }

    fn wake_fds<'a>(&'a self, fds: &mut WakeFds<'a>) {
        fds.doorbell(self.routes.doorbells());
        self.routes.streams_ref().into_iter().for_each(|streams| streams.wake_fds(fds));
    }

    fn woken(&mut self, by: Woken) {
        self.routes.woken(by.doorbell);
        self.routes.streams().into_iter().for_each(|streams| streams.woken(by));
    }

    fn count(&mut self, event: Event) {
        match event {
            Event::Sleep => self.stats.sleeps.bump(1),
            Event::Panic => self.stats.panics.bump(1),
            Event::Nap => {}
        }
    }
}
