//! The switch as others see it: ports to manage, ends to attach.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vmlane_port::role::Role;
use vmlane_port::wrap::FrameTap;
use vmlane_port::{FramePort, Frames, PortId, PortStats};
use vmlane_wire::ethernet::Mac;
use vmlane_worker::{Calls, Heartbeat, Parking};

use crate::fdb::MOST_LEARNED;
use crate::mirror::Mirrors;
use crate::port::PortState;
use crate::queue::{Command, Request, Requests};
use crate::shaping::Shaper;
use crate::spec::{LearnedAddress, PortSpec, PortView, Settings, Shape};
use crate::stats::WorkerStats;
use crate::team::{TeamSpec, TeamState, TeamView};
use crate::worker::{SwitchEngine, Worker};

struct Entry {
    spec: PortSpec,
    stats: Arc<PortStats>,
    state: Arc<PortState>,
    /// The operator set its link down.
    down: bool,
}

/// None: nothing is to be done to the port's frames.
fn shaper(shape: Shape, down: bool) -> Option<Box<Shaper>> {
    Some(Shaper::new(shape, down, Instant::now())).filter(Shaper::limits).map(Box::new)
}

/// What looks at frames, by the name of the port. Held while a port's taps are changed; the worker never takes it.
type Taps = Vec<(String, Arc<dyn FrameTap>)>;

/// A virtual switch and its worker; dropping it stops the worker and detaches everything.
pub struct Switch {
    requests: Arc<Requests>,
    ports: Mutex<BTreeMap<PortId, Entry>>,
    taps: Mutex<Taps>,
    teams: Mutex<Vec<(TeamSpec, Arc<TeamState>)>>,
    /// Taken before `taps`.
    mirrors: Mutex<Mirrors>,
    next: AtomicU32,
    stats: Arc<WorkerStats>,
    heartbeat: Arc<Heartbeat>,
    coalesce: Arc<AtomicBool>,
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
        let coalesce = Arc::new(AtomicBool::new(settings.coalesce));
        let engine = SwitchEngine::new(settings, coalesce.clone(), stats.clone(), heartbeat.clone());
        // Its spinning is naps: a sleep is never put off.
        let runtime =
            vmlane_worker::Settings { role: Role::Switch, spin: Duration::ZERO, poll: settings.poll };
        let worker = Worker::new(engine, requests.clone(), heartbeat.clone(), runtime);
        let (ports, taps, teams, mirrors) = Default::default();
        let next = AtomicU32::new(1);
        let thread = None;
        let switch =
            Switch { requests, ports, taps, teams, mirrors, next, stats, heartbeat, coalesce, thread };
        Ok((switch, worker))
    }

    /// Changes [`Settings::coalesce`], from the worker's next round on.
    pub fn set_coalesce(&self, on: bool) {
        self.coalesce.store(on, Ordering::Relaxed);
    }

    pub fn worker_stats(&self) -> &Arc<WorkerStats> {
        &self.stats
    }

    /// Makes a port; nothing is attached to it yet.
    pub fn add_port(&self, spec: PortSpec) -> PortId {
        let id = self.next_id();
        let (stats, state) = (Arc::new(PortStats::default()), Arc::new(PortState::default()));
        let entry = Entry { spec: spec.clone(), stats: stats.clone(), state: state.clone(), down: false };
        let taps = self.taps.lock();
        self.ports.lock().insert(id, entry);
        let name = spec.name.clone();
        let shaper = shaper(spec.traffic.shape, false);
        self.ask(Request::Add { id, spec, stats, state, shaper });
        self.place_known_taps(&taps, &name);
        drop(taps);
        self.aim_mirrors(&name);
        id
    }

    pub(crate) fn next_id(&self) -> PortId {
        PortId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// The port with a name.
    pub(crate) fn id_of(&self, name: &str) -> Option<PortId> {
        self.ports.lock().iter().find(|(_, entry)| entry.spec.name == name).map(|(id, _)| *id)
    }

    pub(crate) fn mirrors(&self) -> &Mutex<Mirrors> {
        &self.mirrors
    }

    /// Removes a port; what is attached to it is dropped. False if there is none.
    pub fn remove_port(&self, id: PortId) -> bool {
        let taps = self.taps.lock();
        let Some(entry) = self.ports.lock().remove(&id) else { return false };
        self.ask(Request::Remove { id });
        self.place_known_taps(&taps, &entry.spec.name);
        drop(taps);
        self.aim_mirrors(&entry.spec.name);
        true
    }

    /// Changes a port; what is attached stays, frames that wait for it or that it waits with are
    /// dropped. False if there is no such port.
    pub fn update_port(&self, id: PortId, spec: PortSpec) -> bool {
        let taps = self.taps.lock();
        let (name, shape) = (spec.name.clone(), spec.traffic.shape);
        let (before, down) = match self.ports.lock().get_mut(&id) {
            Some(entry) => (std::mem::replace(&mut entry.spec, spec.clone()), entry.down),
            None => return false,
        };
        let differs = before.traffic.shape != shape;
        let shaper = differs.then(|| Box::new(Shaper::new(shape, down, Instant::now())));
        self.ask(Request::Update { id, spec, shaper });
        self.place_known_taps(&taps, &name);
        true
    }

    /// Sets a port's link up or down. While it is down, no frame passes; what is attached stays, and is attached and
    /// detached as ever. False if there is no such port.
    pub fn set_link(&self, id: PortId, up: bool) -> bool {
        let spec = match self.ports.lock().get_mut(&id) {
            Some(entry) if entry.down == up => {
                entry.down = !up;
                entry.spec.clone()
            }
            known => return known.is_some(),
        };
        let shaper = Some(Box::new(Shaper::new(spec.traffic.shape, !up, Instant::now())));
        self.ask(Request::Update { id, spec, shaper });
        true
    }

    /// Makes the teams these; each port is in one at most. Teams that stay as they were are not disturbed, and a team of a
    /// name counts on.
    pub fn set_teams(&self, specs: Vec<TeamSpec>) {
        let mut teams = self.teams.lock();
        let before = std::mem::take(&mut *teams);
        for spec in specs {
            let known = before.iter().find(|(other, _)| other.name == spec.name);
            let state = match known {
                Some((same, state)) if *same == spec => state.clone(),
                _ => {
                    let stats = known.map(|(_, state)| state.stats.clone()).unwrap_or_default();
                    Arc::new(TeamState::new(&spec, stats))
                }
            };
            teams.push((spec, state));
        }
        self.ask(Request::Teams { teams: teams.clone() });
    }

    /// All teams.
    pub fn teams(&self) -> Vec<TeamView> {
        let view = |(spec, state): &(TeamSpec, Arc<TeamState>)| TeamView {
            spec: spec.clone(),
            members: state.members(),
            stats: state.stats.clone(),
        };
        self.teams.lock().iter().map(view).collect()
    }

    /// The interface behind an uplink's port has a link, or has none: a team uses it, or another one. Ports begin with one.
    pub fn set_carrier(&self, id: PortId, up: bool) {
        self.ask(Request::Carrier { id, up });
    }

    /// Has `tap` look at the frames of the port with a name: of the one that there is, and of those that come, until
    /// [`Self::remove_tap`]. The port is wrapped for it, and its frames go on meanwhile.
    pub fn add_tap(&self, port: &str, tap: Arc<dyn FrameTap>) {
        let mut taps = self.taps.lock();
        taps.push((port.to_owned(), tap));
        self.place_taps(&taps, port);
    }

    /// Ends what [`Self::add_tap`] began: when this returns, no worker uses the tap any more.
    pub fn remove_tap(&self, tap: &Arc<dyn FrameTap>) {
        let mut taps = self.taps.lock();
        let Some(at) = taps.iter().position(|(_, other)| Arc::ptr_eq(other, tap)) else { return };
        let (port, tap) = taps.swap_remove(at);
        self.place_taps(&taps, &port);
        tap.settle(None);
    }

    /// The same of a tap at the port with a name, which may be at others, too.
    pub(crate) fn remove_tap_of(&self, port: &str, tap: &Arc<dyn FrameTap>) {
        let mut taps = self.taps.lock();
        let here = |(name, other): &(String, Arc<dyn FrameTap>)| name == port && Arc::ptr_eq(other, tap);
        if let Some(at) = taps.iter().position(here) {
            taps.swap_remove(at);
            self.place_taps(&taps, port);
        }
    }

    /// The same as [`Self::place_taps`], where nothing is to be done without a tap for the port.
    fn place_known_taps(&self, taps: &Taps, name: &str) {
        if taps.iter().any(|(port, _)| port == name) {
            self.place_taps(taps, name);
        }
    }

    /// Gives the port with a name the taps that are for it, and tells those whether there is one.
    fn place_taps(&self, taps: &Taps, name: &str) {
        let of_port = taps.iter().filter(|(port, _)| port == name).map(|(_, tap)| tap.clone());
        let of_port: Vec<_> = of_port.collect();
        let port = self.ports.lock().iter().find(|(_, entry)| entry.spec.name == name).map(|(id, entry)| {
            let vlan = entry.spec.vlan.ingress(None).unwrap_or(0);
            (*id, vlan)
        });
        of_port.iter().for_each(|tap| tap.placed(port.map(|(_, vlan)| vlan)));
        if let Some((id, _)) = port {
            self.ask(Request::Tap { id, taps: of_port });
        }
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
            let Entry { spec, stats, state, down } = entry;
            let [a, b, c, d, e, f, ..] = state.mac.load(Ordering::Relaxed).to_le_bytes();
            let attached = state.attached.load(Ordering::Relaxed);
            PortView {
                id: *id,
                spec: spec.clone(),
                attached,
                link_down: *down,
                stalled: state.stalled.load(Ordering::Relaxed),
                mac: (attached && !spec.uplink).then_some(Mac([a, b, c, d, e, f])),
                stats: stats.clone(),
            }
        };
        self.ports.lock().iter().map(view).collect()
    }

    /// Every address that was learned behind a port: up to 256 of a VM's, 8192 in all.
    pub fn learned(&self) -> Vec<LearnedAddress> {
        let into = Arc::new(Mutex::new(Vec::with_capacity(MOST_LEARNED)));
        self.ask(Request::Learned { into: into.clone() });
        std::mem::take(&mut *into.lock())
    }

    /// Sends a request and waits until it is carried out (or the worker is gone).
    pub(crate) fn ask(&self, request: Request) {
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
