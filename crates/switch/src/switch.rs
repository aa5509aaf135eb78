//! The switch as others see it: ports to manage, ends to attach.

mod links;
mod ports;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use vmlane_port::role::Role;
use vmlane_port::wrap::FrameTap;
use vmlane_port::{FramePort, Frames, PortId, PortStats};
use vmlane_wire::ethernet::Mac;
use vmlane_worker::{Calls, CpuSet, Heartbeat, Parking};

use crate::core::Place;
use crate::fdb::{LearnedAddresses, MOST_LEARNED};
use crate::handover::{Links, MOST_WORKERS};
use crate::impair::Impairment;
use crate::mirror::Mirrors;
use crate::numbers::{Numbers, PortNumbers, SwitchFull};
use crate::port::Numbered;
use crate::port_state::PortState;
use crate::queue::{Change, Command, Request, Requests};
use crate::shaping::Shaper;
use crate::spec::{LearnedAddress, PortSpec, PortView, Settings, Shape};
use crate::stats::WorkerStats;
use crate::team::{TeamSpec, TeamState, TeamView};
use crate::worker::{SwitchEngine, Worker};

/// A port as the switch knows it.
pub(crate) struct Entry {
    pub spec: PortSpec,
    pub numbers: PortNumbers,
    pub stats: Arc<PortStats>,
    pub state: Arc<PortState>,
    /// It is of the switch's own, and stays where it is.
    pub internal: bool,
    /// The operator set its link down.
    down: bool,
    /// Its wire is cut.
    cut: bool,
    impairment: Impairment,
}

impl Entry {
    /// May it go to another worker? Uplinks stay on a known thread, and direct ports with theirs.
    pub fn may_move(&self) -> bool {
        !(self.internal || self.spec.uplink || self.spec.direct)
    }
}

/// A port's configuration was replaced.
struct Changed {
    before: PortSpec,
    /// The numbers of the groups that it was in, and is in now.
    left: u16,
    group: u16,
    down: bool,
}

/// None: nothing is to be done to the port's frames.
fn shaper(shape: Shape, down: bool) -> Option<Box<Shaper>> {
    Some(Shaper::new(shape, down, Instant::now())).filter(Shaper::limits).map(Box::new)
}

/// What captures frames, by the name of the port. Held while a port's taps are changed; the worker never
/// takes it.
type Taps = Vec<(String, Arc<dyn FrameTap>)>;

/// One of the workers as others see it.
struct WorkerHandle {
    requests: Arc<Requests>,
    stats: Arc<WorkerStats>,
    heartbeat: Arc<Heartbeat>,
    thread: Option<JoinHandle<()>>,
}

/// A virtual switch and its workers; dropping it stops them and detaches everything.
pub struct Switch {
    /// One at least.
    workers: Vec<WorkerHandle>,
    ports: Mutex<BTreeMap<PortId, Entry>>,
    /// Taken after `ports`.
    numbers: Mutex<Numbers>,
    taps: Mutex<Taps>,
    teams: Mutex<Vec<(TeamSpec, Arc<TeamState>)>>,
    /// Taken before `taps`.
    mirrors: Mutex<Mirrors>,
    coalesce: Arc<AtomicBool>,
    /// The workers of ports that are not those' that they were made for.
    moved: RwLock<HashMap<PortId, usize>>,
    any_moved: AtomicBool,
    /// Held for writing while a port goes from one worker to another, for reading while anything is asked of
    /// the worker that has a port. Taken before `taps`.
    whose: RwLock<()>,
}

impl Switch {
    /// Starts the workers' threads. Fails if the host has no thread or file to spare.
    pub fn start(settings: Settings) -> io::Result<Switch> {
        Switch::start_on(settings, &[])
    }

    /// The same, each on the CPUs `on`, by its number; one that is not in the list runs where the caller may.
    pub fn start_on(settings: Settings, on: &[CpuSet]) -> io::Result<Switch> {
        let (mut switch, workers) = Switch::make(settings)?;
        let alone = workers.len() == 1;
        for (number, (worker, handle)) in workers.into_iter().zip(&mut switch.workers).enumerate() {
            let name = if alone { "switch".into() } else { format!("switch-{number}") };
            handle.thread = Some(worker.spawn(name, on.get(number))?);
        }
        Ok(switch)
    }

    /// The switch without a thread: nothing happens unless the caller calls [`Worker::step`], and what
    /// is asked of the switch is not waited for. For benchmarks and tests.
    #[expect(clippy::expect_used, reason = "benchmarks and tests end here, the daemon calls `start`")]
    pub fn unstarted(settings: Settings) -> (Switch, Worker) {
        let (switch, mut workers) = Switch::unstarted_workers(Settings { workers: 1, ..settings });
        (switch, workers.pop().expect("one worker"))
    }

    /// The same with all workers that `settings` ask for.
    #[expect(clippy::expect_used, reason = "benchmarks and tests end here, the daemon calls `start`")]
    pub fn unstarted_workers(settings: Settings) -> (Switch, Vec<Worker>) {
        Switch::make(settings).expect("an eventfd to spare")
    }

    fn make(settings: Settings) -> io::Result<(Switch, Vec<Worker>)> {
        let count = settings.workers.clamp(1, MOST_WORKERS);
        let parkings = (0..count).map(|_| Parking::new());
        let requests: Vec<_> =
            parkings.map(|parking| Ok(Arc::new(Requests::new(parking?)))).collect::<io::Result<_>>()?;
        let coalesce = Arc::new(AtomicBool::new(settings.coalesce));
        let learned = Arc::new(LearnedAddresses::new());
        let Settings { spin, poll, .. } = settings;
        let runtime = vmlane_worker::Settings { role: Role::Switch, spin, poll };
        let (mut workers, mut handles) = (Vec::new(), Vec::new());
        for (number, (requests, links)) in requests.iter().zip(Links::between(&requests)?).enumerate() {
            let (stats, heartbeat) = (Arc::new(WorkerStats::default()), Arc::new(Heartbeat::default()));
            let place = Place { number, links, learned: learned.clone(), coalesce: coalesce.clone() };
            let engine = SwitchEngine::new(settings, place, stats.clone(), heartbeat.clone());
            workers.push(Worker::new(engine, requests.clone(), heartbeat.clone(), runtime));
            handles.push(WorkerHandle { requests: requests.clone(), stats, heartbeat, thread: None });
        }
        let numbers = Mutex::new(Numbers::of_workers(count));
        let (ports, taps, teams, mirrors) = Default::default();
        let (moved, any_moved, whose) = Default::default();
        let switch = Switch {
            workers: handles,
            numbers,
            ports,
            taps,
            teams,
            mirrors,
            coalesce,
            moved,
            any_moved,
            whose,
        };
        Ok((switch, workers))
    }

    /// Changes [`Settings::coalesce`], from the worker's next round on.
    pub fn set_coalesce(&self, on: bool) {
        self.coalesce.store(on, Ordering::Relaxed);
    }

    /// What each worker counts.
    pub fn worker_stats(&self) -> impl Iterator<Item = &Arc<WorkerStats>> {
        self.workers.iter().map(|worker| &worker.stats)
    }

    /// Makes a port with every worker. Uplinks are the first worker's, but for direct ones: with their NICs
    /// they are spread as NICs are. `internal`: it is of the switch's own, not listed, and that worker's.
    pub(crate) fn make_port(
        &self,
        spec: PortSpec,
        stats: Arc<PortStats>,
        internal: Option<usize>,
    ) -> Result<PortId, SwitchFull> {
        let state = Arc::new(PortState::default());
        let joined = if spec.direct { self.worker_of_direct(&spec) } else { spec.uplink.then_some(0) };
        let of_group = self.workers_of_group(&spec);
        let (of, worker) = {
            let mut ports = self.ports.lock();
            let mut numbers = self.numbers.lock();
            let worker = internal.or(joined).unwrap_or_else(|| numbers.place(&of_group));
            let own = numbers.take(&spec)?;
            numbers.count(worker, 1);
            let id = numbers.id(worker, |id| ports.contains_key(&id));
            let entry = Entry {
                spec: spec.clone(),
                numbers: own,
                stats: stats.clone(),
                state: state.clone(),
                internal: internal.is_some(),
                down: false,
                cut: false,
                impairment: Impairment::default(),
            };
            ports.insert(id, entry);
            (Numbered { id, slot: own.slot, owner: own.owner, group: own.group, remote: None }, worker)
        };
        self.ask_all(|number| {
            let of = Numbered { remote: (number != worker).then_some(worker), ..of };
            let shaper = shaper(spec.traffic.shape, false).filter(|_| of.remote.is_none());
            Request::Add { of, spec: spec.clone(), stats: stats.clone(), state: state.clone(), shaper }
        });
        Ok(of.id)
    }

    /// The worker of the port that a direct one of this group is joined to: their frames need no handover.
    fn worker_of_direct(&self, spec: &PortSpec) -> Option<usize> {
        let ports = self.ports.lock();
        let other = ports.iter().find(|(_, entry)| entry.spec.direct && entry.spec.is_beside(spec));
        other.map(|(id, _)| self.owner(*id))
    }

    /// How many ports beside this one each worker has: those who talk to each other are there. Empty if there
    /// is no other group and no other switch, and ports are to be spread.
    fn workers_of_group(&self, spec: &PortSpec) -> Vec<usize> {
        let mut counts = vec![0; self.workers.len()];
        let ports = self.ports.lock();
        let listed = || ports.iter().filter(|(_, entry)| !entry.internal);
        if listed().all(|(_, entry)| entry.spec.is_beside(spec)) {
            return Vec::new();
        }
        for (id, _) in listed().filter(|(_, entry)| entry.spec.is_beside(spec)) {
            counts.iter_mut().skip(self.owner(*id)).take(1).for_each(|count| *count += 1);
        }
        counts
    }

    /// Removes a port from every worker, its own one first: the others do not use what was attached to it
    /// any more when this returns.
    pub(crate) fn unmake_port(&self, id: PortId) -> Option<PortSpec> {
        let Entry { spec, numbers: own, .. } = self.ports.lock().remove(&id)?;
        let worker = self.owner(id);
        self.retire(id);
        self.ask(worker, Request::Of(id, Change::Remove));
        self.ask_others(worker, || Request::Of(id, Change::Remove));
        let mut numbers = self.numbers.lock();
        numbers.count(worker, -1);
        self.moved.write().remove(&id);
        numbers.put(own);
        Some(spec)
    }

    /// The port with a name.
    pub(crate) fn id_of(&self, name: &str) -> Option<PortId> {
        self.ports.lock().iter().find(|(_, entry)| entry.spec.name == name).map(|(id, _)| *id)
    }

    pub(crate) fn mirrors(&self) -> &Mutex<Mirrors> {
        &self.mirrors
    }

    /// Changes a port; what is attached stays, frames that wait for it or that it waits with are
    /// dropped. False if there is no such port, or no number for its group.
    pub fn update_port(&self, id: PortId, spec: PortSpec) -> bool {
        let _here = self.whose.read_recursive();
        let taps = self.taps.lock();
        let (name, shape) = (spec.name.clone(), spec.traffic.shape);
        let Some(change) = self.change_entry(id, spec.clone()) else { return false };
        let Changed { before, left, group, down } = change;
        let differs = before.traffic.shape != shape;
        let shaper = || differs.then(|| Box::new(Shaper::new(shape, down, Instant::now())));
        self.ask_all(|_| Request::Of(id, Change::Update { spec: spec.clone(), group, shaper: shaper() }));
        // No worker uses it any more.
        self.numbers.lock().leave_group(left);
        self.place_known_taps(&taps, &name);
        true
    }

    fn change_entry(&self, id: PortId, spec: PortSpec) -> Option<Changed> {
        let mut ports = self.ports.lock();
        let entry = ports.get_mut(&id)?;
        let group = self.numbers.lock().enter_group(&spec.network()).ok()?;
        let left = std::mem::replace(&mut entry.numbers.group, group);
        let before = std::mem::replace(&mut entry.spec, spec);
        Some(Changed { before, left, group, down: entry.is_closed() })
    }

    /// Makes the teams these; each port is in one at most. Teams that stay as they were are not disturbed,
    /// and a team of a name counts on.
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
        self.ask_all(|_| Request::Teams(teams.clone()));
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

    /// Has `tap` see the frames of the port with a name: of the one that there is, and of those that
    /// come, until [`Self::remove_tap`]. The port is wrapped for it, and its frames go on meanwhile.
    pub fn add_tap(&self, port: &str, tap: Arc<dyn FrameTap>) {
        let _here = self.whose.read_recursive();
        let mut taps = self.taps.lock();
        taps.push((port.to_owned(), tap));
        self.place_taps(&taps, port);
    }

    /// Ends what [`Self::add_tap`] began: when this returns, no worker uses the tap any more.
    pub fn remove_tap(&self, tap: &Arc<dyn FrameTap>) {
        let _here = self.whose.read_recursive();
        let mut taps = self.taps.lock();
        let Some(at) = taps.iter().position(|(_, other)| Arc::ptr_eq(other, tap)) else { return };
        let (port, tap) = taps.swap_remove(at);
        self.place_taps(&taps, &port);
        tap.settle(None);
    }

    /// The same of a tap at the port with a name, which may be at others, too.
    pub(crate) fn remove_tap_of(&self, port: &str, tap: &Arc<dyn FrameTap>) {
        let _here = self.whose.read_recursive();
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

    /// Gives the port with a name the taps that are for it, and notifies those of whether there is one.
    fn place_taps(&self, taps: &Taps, name: &str) {
        let of_port = taps.iter().filter(|(port, _)| port == name).map(|(_, tap)| tap.clone());
        let of_port: Vec<_> = of_port.collect();
        let port = self.ports.lock().iter().find(|(_, entry)| entry.spec.name == name).map(|(id, entry)| {
            let vlan = entry.spec.vlan.ingress(None).unwrap_or(0);
            (*id, vlan)
        });
        of_port.iter().for_each(|tap| tap.placed(port.map(|(_, vlan)| vlan)));
        if let Some((id, _)) = port {
            self.ask_owner(id, Change::Tap(of_port));
        }
    }

    /// The workers' heartbeats; they serve [`PortId`]s.
    pub fn heartbeats(&self) -> impl ExactSizeIterator<Item = &Arc<Heartbeat>> {
        self.workers.iter().map(|worker| &worker.heartbeat)
    }

    /// All ports, in the order of their making.
    pub fn ports(&self) -> Vec<PortView> {
        let view = |(id, entry): (&PortId, &Entry)| {
            let Entry { spec, stats, state, down, cut, impairment, .. } = entry;
            let [a, b, c, d, e, f, ..] = state.mac.load(Ordering::Relaxed).to_le_bytes();
            let attached = state.attached.load(Ordering::Relaxed);
            PortView {
                id: *id,
                spec: spec.clone(),
                worker: self.owner(*id),
                attached,
                link_down: *down,
                cut: *cut,
                impairment: *impairment,
                waiting: state.waiting.load(Ordering::Relaxed),
                carrier: state.carrier.is_up(),
                stalled: state.stalled.load(Ordering::Relaxed),
                mac: (attached && !spec.uplink).then_some(Mac([a, b, c, d, e, f])),
                stats: stats.clone(),
            }
        };
        self.ports.lock().iter().filter(|(_, entry)| !entry.internal).map(view).collect()
    }

    /// Every address that was learned behind a port: up to 256 of a VM's, 8192 in all.
    pub fn learned(&self) -> Vec<LearnedAddress> {
        std::mem::take(&mut *self.list_learned().lock())
    }

    /// The same, for who gives the first worker the round in which it makes the list. For tests.
    #[doc(hidden)]
    pub fn list_learned(&self) -> Arc<Mutex<Vec<LearnedAddress>>> {
        let into = Arc::new(Mutex::new(Vec::with_capacity(MOST_LEARNED)));
        self.ask(0, Request::Learned(into.clone()));
        into
    }

    /// The worker whose port it is, if there is such a port.
    pub(crate) fn owner(&self, id: PortId) -> usize {
        let moved = self.any_moved.load(Ordering::Relaxed).then(|| self.moved.read().get(&id).copied());
        moved.flatten().unwrap_or_else(|| id.0 as usize % self.workers.len().max(1))
    }

    /// A port is that of worker `to` from now on.
    pub(crate) fn set_owner(&self, id: PortId, to: usize) {
        let mut numbers = self.numbers.lock();
        numbers.count(self.owner(id), -1);
        numbers.count(to, 1);
        self.moved.write().insert(id, to);
        self.any_moved.store(true, Ordering::Relaxed);
    }

    /// Waits for the workers, if they have threads.
    pub(crate) fn pause(&self, length: Duration) {
        if self.workers.iter().any(|worker| worker.thread.is_some()) {
            std::thread::sleep(length);
        }
    }

    /// Nothing else is asked of the worker that has a port while this is held.
    pub(crate) fn alone(&self) -> impl Drop {
        self.whose.write()
    }

    pub(crate) fn count_workers(&self) -> usize {
        self.workers.len()
    }

    pub(crate) fn entries(&self) -> &Mutex<BTreeMap<PortId, Entry>> {
        &self.ports
    }

    /// Asks these workers, and waits until all have carried it out (or are gone).
    fn ask_each(&self, requests: impl Iterator<Item = (usize, Request)>) {
        let calls = Calls::new();
        for (number, request) in requests {
            let Some(WorkerHandle { requests, thread, .. }) = self.workers.get(number) else { continue };
            if thread.is_none() {
                requests.post(|()| (Some(Command { request, answer: None }), ()));
            } else {
                let _ = requests.call(|()| Some(Command { request, answer: Some(calls.answer()) }));
            }
        }
        calls.wait();
    }

    pub(crate) fn ask(&self, worker: usize, request: Request) {
        self.ask_each(std::iter::once((worker, request)));
    }

    /// Asks every worker, in the order of their numbers.
    pub(crate) fn ask_all(&self, request: impl Fn(usize) -> Request) {
        self.ask_each((0..self.workers.len()).map(|number| (number, request(number))));
    }

    pub(crate) fn ask_others(&self, worker: usize, request: impl Fn() -> Request) {
        let others = (0..self.workers.len()).filter(|&other| other != worker);
        self.ask_each(others.map(|other| (other, request())));
    }

    /// Asks the worker whose port it is.
    pub(crate) fn ask_owner(&self, id: PortId, change: Change) {
        self.ask(self.owner(id), Request::Of(id, change));
    }

    /// What is attached to a port is about to be dropped: when this returns, the frames of it that other
    /// workers had are on their way back.
    fn retire(&self, id: PortId) {
        if self.workers.len() > 1 {
            let worker = self.owner(id);
            self.ask(worker, Request::Of(id, Change::Retire));
            self.ask_others(worker, || Request::Barrier);
        }
    }

    /// The same for what changes what is attached; when this returns, the other workers know.
    fn ask_port(&self, id: PortId, change: Change) {
        let worker = self.owner(id);
        self.ask(worker, Request::Of(id, change));
        // Its worker has notified them, so this comes behind it.
        self.ask_others(worker, || Request::Barrier);
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.workers.iter().for_each(|worker| worker.requests.stop());
        for thread in self.workers.iter_mut().filter_map(|worker| worker.thread.take()) {
            let _ = thread.join();
        }
    }
}

impl Frames for Switch {
    fn attach(&self, id: PortId, end: Box<dyn FramePort>) {
        let _here = self.whose.read_recursive();
        self.retire(id);
        self.ask_port(id, Change::Attach(end));
    }

    fn detach(&self, id: PortId) {
        let _here = self.whose.read_recursive();
        self.retire(id);
        self.ask_port(id, Change::Detach);
    }

    fn refresh(&self, id: PortId) {
        let _here = self.whose.read_recursive();
        self.ask_port(id, Change::Refresh);
    }

    fn kick(&self, id: PortId) {
        if let Some(worker) = self.workers.get(self.owner(id)) {
            worker.requests.parking().notify();
        }
    }

    fn announce(&self, id: PortId) {
        // Each worker serves its own uplinks.
        self.ask_all(|_| Request::Of(id, Change::Announce));
    }

    fn stats(&self, id: PortId) -> Arc<PortStats> {
        self.ports.lock().get(&id).map(|entry| entry.stats.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The workers of ports of these groups, made one after the other.
    fn placed(workers: usize, groups: &[&str]) -> Vec<usize> {
        let (switch, _workers) = Switch::unstarted_workers(Settings { workers, ..Settings::default() });
        let number = |(at, group): (usize, &&str)| {
            let plain = PortSpec::plain(&format!("vm-{at}/nic0"), Mac([0x52, 0, 0, 0, 0, at as u8]));
            switch.owner(switch.add_port(PortSpec { group: (*group).into(), ..plain }).unwrap())
        };
        groups.iter().enumerate().map(number).collect()
    }

    #[test]
    fn ports_go_where_others_of_their_group_are_while_no_worker_has_many_more_than_others() {
        assert_eq!(placed(2, &["a", "b", "a", "b", "b", "a"]), [0, 1, 0, 1, 1, 0]);
        assert_eq!(placed(2, &["a", "b", "b", "a", "c", "c"]), [0, 1, 1, 0, 0, 0]);
        // One more than others, and then two.
        assert_eq!(placed(3, &["a", "b", "c", "a", "a", "a", "a"]), [0, 1, 2, 0, 0, 1, 1]);
    }

    #[test]
    fn ports_of_the_only_group_are_spread() {
        assert_eq!(placed(2, &["a"; 5]), [0, 1, 0, 1, 0]);
        assert_eq!(placed(3, &["a", "a", "a", "a", "b", "b", "a"])[..4], [0, 1, 2, 0]);
    }
}
