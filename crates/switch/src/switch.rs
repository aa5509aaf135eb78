//! The switch as others see it: ports to manage, ends to attach.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use vmlane_port::role::Role;
use vmlane_port::{FramePort, Frames, PortId, PortStats};
use vmlane_wire::ethernet::Mac;
use vmlane_worker::{Calls, Heartbeat, Parking};

use crate::port::PortState;
use crate::queue::{Command, Request, Requests};
use crate::spec::{PortSpec, PortView, Settings};
use crate::stats::WorkerStats;
use crate::worker::{SwitchEngine, Worker};

struct Entry {
    spec: PortSpec,
    stats: Arc<PortStats>,
    state: Arc<PortState>,
}

/// A virtual switch and its worker; dropping it stops the worker and detaches everything.
pub struct Switch {
    requests: Arc<Requests>,
    ports: Mutex<BTreeMap<PortId, Entry>>,
    next: AtomicU32,
    stats: Arc<WorkerStats>,
    heartbeat: Arc<Heartbeat>,
    thread: Option<JoinHandle<()>>,
}

impl Switch {
    /// Starts the worker's thread. Fails if the host has no thread or file to spare.
    pub fn start(settings: Settings) -> io::Result<Switch> {
        let (mut switch, worker) = Switch::make(settings)?;
        switch.thread = Some(worker.spawn("switch".into())?);
        Ok(switch)
    }

    /// The switch without a thread: nothing happens unless the caller calls [`Worker::step`], and what
    /// is asked of the switch is not waited for. For benchmarks and tests.
    #[expect(clippy::expect_used, reason = "benchmarks and tests end here, the daemon calls `start`")]
    pub fn unstarted(settings: Settings) -> (Switch, Worker) {
        Switch::make(settings).expect("an eventfd to spare")
    }

    fn make(settings: Settings) -> io::Result<(Switch, Worker)> {
        let requests = Arc::new(Requests::new(Parking::for_files()?));
        let stats = Arc::new(WorkerStats::default());
        let heartbeat = Arc::new(Heartbeat::default());
        let engine = SwitchEngine::new(settings, stats.clone(), heartbeat.clone());
        // Its spinning is naps: a sleep is never put off.
        let runtime =
            vmlane_worker::Settings { role: Role::Switch, spin: Duration::ZERO, poll: settings.poll };
        let worker = Worker::new(engine, requests.clone(), heartbeat.clone(), runtime);
        let (ports, next) = (Mutex::default(), AtomicU32::new(1));
        Ok((Switch { requests, ports, next, stats, heartbeat, thread: None }, worker))
    }

    pub fn worker_stats(&self) -> &Arc<WorkerStats> {
        &self.stats
    }

    /// Makes a port; nothing is attached to it yet.
    pub fn add_port(&self, spec: PortSpec) -> PortId {
        let id = PortId(self.next.fetch_add(1, Ordering::Relaxed));
        let (stats, state) = (Arc::new(PortStats::default()), Arc::new(PortState::default()));
        let entry = Entry { spec: spec.clone(), stats: stats.clone(), state: state.clone() };
        self.ports.lock().insert(id, entry);
        self.ask(Request::Add { id, spec, stats, state });
        id
    }

    /// Removes a port; what is attached to it is dropped. False if there is none.
    pub fn remove_port(&self, id: PortId) -> bool {
        let known = self.ports.lock().remove(&id).is_some();
        if known {
            self.ask(Request::Remove { id });
        }
        known
    }

    /// Changes a port; what is attached stays, frames that wait for it or that it waits with are
    /// dropped. False if there is no such port.
    pub fn update_port(&self, id: PortId, spec: PortSpec) -> bool {
        match self.ports.lock().get_mut(&id) {
            Some(entry) => entry.spec = spec.clone(),
            None => return false,
        }
        self.ask(Request::Update { id, spec });
        true
    }

    /// Keeps a port from having any traffic, whatever is attached now or later, or lets it have some. What
    /// is attached is told that it has failed, and dropped.
    pub fn shut_port(&self, id: PortId, shut: bool) {
        self.ask(Request::Shut { id, shut });
    }

    /// The worker's heartbeat; it serves [`PortId`]s.
    pub fn heartbeat(&self) -> &Arc<Heartbeat> {
        &self.heartbeat
    }

    /// All ports, in the order of their making.
    pub fn ports(&self) -> Vec<PortView> {
        let view = |(id, entry): (&PortId, &Entry)| {
            let Entry { spec, stats, state } = entry;
            let [a, b, c, d, e, f, ..] = state.mac.load(Ordering::Relaxed).to_le_bytes();
            let attached = state.attached.load(Ordering::Relaxed);
            PortView {
                id: *id,
                spec: spec.clone(),
                attached,
                stalled: state.stalled.load(Ordering::Relaxed),
                mac: (attached && !spec.uplink).then_some(Mac([a, b, c, d, e, f])),
                stats: stats.clone(),
            }
        };
        self.ports.lock().iter().map(view).collect()
    }

    /// Sends a request and waits until it is carried out (or the worker is gone).
    fn ask(&self, request: Request) {
        if self.thread.is_none() {
            return self.requests.post(|()| (Some(Command { request, answer: None }), ()));
        }
        let calls = Calls::new();
        let _ = self.requests.call(|()| Some(Command { request, answer: Some(calls.answer()) }));
        calls.wait();
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.requests.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Frames for Switch {
    fn attach(&self, id: PortId, end: Box<dyn FramePort>) {
        self.ask(Request::Attach { id, end });
    }

    fn detach(&self, id: PortId) {
        self.ask(Request::Detach { id });
    }

    fn refresh(&self, id: PortId) {
        self.ask(Request::Refresh { id });
    }

    fn kick(&self, _: PortId) {
        self.requests.parking().notify();
    }

    fn stats(&self, id: PortId) -> Arc<PortStats> {
        self.ports.lock().get(&id).map(|entry| entry.stats.clone()).unwrap_or_default()
    }
}
