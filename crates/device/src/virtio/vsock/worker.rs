//! A worker: a thread that owns the rings of virtio-vsock devices.
//!
//! It is busy while packets move, then waits as `vmlane_worker` decides: before it sleeps, it asks all guests to announce what
//! they do, and polls once more.

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vmlane_port::role::Role;
use vmlane_port::wrap::{Fault, StreamTap};
use vmlane_vsock::{Endpoint, Router, VmTable};
use vmlane_worker::{
    Answer, Calls, CommandQueue, Engine, Event, Heartbeat, Parking, Ports, WakeFds, Woken, Worker, contained,
};

use crate::virtio::recall;

use super::bridge::{Bridge, GuestEndpoint, MAX_LINKS, Mailbox};
use super::link::Waker;
use super::port::Port;
use super::route::Routes;
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
    /// What the VM's device counts is put there.
    Add(u32, Arc<OnceLock<Arc<GuestStats>>>),
    Remove(u32),
    Attach(u32, Box<Port>),
    Detach(u32),
    Gone(u32),
    /// Out of service, or back in it.
    Shut(u32, bool),
    /// Something goes wrong while the VM is served.
    Fail(u32, Fault),
    /// What looks at packets between guests from now on.
    Tap(Vec<Arc<dyn StreamTap>>),
    /// What an operator may see is asked for.
    ShowGuests,
    ShowConnections,
}

impl Request {
    /// Whose it is, if a VM's.
    fn cid(&self) -> Option<u32> {
        match self {
            Request::Add(cid, _)
            | Request::Remove(cid)
            | Request::Attach(cid, _)
            | Request::Detach(cid)
            | Request::Gone(cid)
            | Request::Shut(cid, _)
            | Request::Fail(cid, _) => Some(*cid),
            Request::Tap(_) | Request::ShowGuests | Request::ShowConnections => None,
        }
    }
}

/// A request, and the caller that waits for its end.
struct Command {
    request: Request,
    _answer: Option<Answer>,
}

type Requests = CommandQueue<Command>;

/// How long a worker sleeps at most while a packet waits for buffers.
const SHORT: Duration = Duration::from_millis(1);

/// Some devices' common worker; dropping it stops it.
pub struct VsockWorker {
    requests: Arc<Requests>,
    mailbox: Arc<Mailbox>,
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

/// Wakes the worker for what it looks at before it sleeps.
struct WakesWorker(Arc<Requests>);

impl Waker for WakesWorker {
    fn wake(&self) {
        self.0.parking().wake();
    }
}

impl VsockWorker {
    /// Starts a worker that is alone, for VMs in `vms`. With a `router`, VMCI guests and the host are reached through it.
    pub fn start(
        settings: Settings,
        vms: &VmTable,
        router: Option<Arc<Router>>,
    ) -> std::io::Result<VsockWorker> {
        VsockWorker::start_one_of(0, 1, settings, vms, router)
    }

    /// Starts the worker `number` of `count`, which share what a process may have of connections' memory.
    pub(super) fn start_one_of(
        number: usize,
        count: usize,
        settings: Settings,
        vms: &VmTable,
        router: Option<Arc<Router>>,
    ) -> std::io::Result<VsockWorker> {
        let requests = Arc::new(Requests::new(Parking::new()?));
        let mailbox = Mailbox::new(Arc::new(WakesWorker(requests.clone())));
        let bridge = router.map(|router| Bridge::new(router, mailbox.clone(), MAX_LINKS / count));
        let stats = Arc::new(VsockStats::default());
        let heartbeat = Arc::new(Heartbeat::default());
        let questions = Arc::new(Questions::default());
        let routes = Routes::new(vms.reader(), stats.clone(), bridge, !settings.poll)?;
        let engine = VsockEngine { routes, stats: stats.clone(), questions: questions.clone() };
        let Settings { spin, poll } = settings;
        let settings = vmlane_worker::Settings { role: Role::Vsock, spin, poll };
        let worker = Worker::new(engine, requests.clone(), heartbeat.clone(), settings);
        let name = if count == 1 { "vsock".to_owned() } else { format!("vsock-{number}") };
        let thread = Some(worker.spawn(name.clone())?);
        Ok(VsockWorker {
            requests,
            mailbox,
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
        Arc::new(GuestEndpoint::new(cid, &self.mailbox))
    }

    /// Has `tap` look at all packets between guests, until [`Self::remove_tap`]: it says itself which concern it.
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
        let stats = Arc::new(OnceLock::new());
        self.ask(Request::Add(cid, stats.clone()));
        stats.get().cloned().unwrap_or_default()
    }

    /// Takes a VM out of service, or back into it: then its driver must be loaded anew. When it returns, the worker does
    /// not touch the memory of a VM that is out of service.
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
            Request::Add(cid, stats) => drop(stats.set(self.routes.add(cid))),
            Request::Remove(cid) => self.routes.remove(cid),
            Request::Attach(cid, port) => self.routes.attach(cid, port),
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

    fn run_command(&mut self, command: Command, _: Instant) {
        // The answer goes with the command's end, however it ends.
        let Command { request, _answer } = command;
        match request.cid() {
            None => self.carry_out(request),
            Some(cid) => contained(|| self.carry_out(request)).unwrap_or_else(|| self.routes.fault(cid)),
        }
    }

    fn round(&mut self, now: Instant) -> bool {
        self.routes.round(now)
    }

    fn moved_bytes(&self) -> u64 {
        self.stats.bytes.get()
    }

    fn ports(&mut self) -> Ports {
        let repeats = self.routes.repeats().then_some(recall::FIRST);
        Ports::Armable(repeats.or(self.routes.is_waiting().then_some(SHORT)))
    }

    fn undelivered(&self) -> bool {
        self.routes.undelivered()
    }

    fn deliver_withheld(&mut self) {
        self.routes.deliver_withheld(Instant::now());
    }

    fn arm(&mut self) -> bool {
        self.routes.arm()
    }

    fn wake_fds<'a>(&'a self, fds: &mut WakeFds<'a>) {
        fds.doorbell(self.routes.doorbells());
    }

    fn woken(&mut self, by: Woken) {
        self.routes.woken(by.doorbell);
    }

    fn count(&mut self, event: Event) {
        match event {
            Event::Sleep => self.stats.sleeps.bump(1),
            Event::Panic => self.stats.panics.bump(1),
            Event::Nap => {}
        }
    }
}
