//! The daemon put together: workers, the router of the CID space, the hypervisor of the VMCI guests, the switch, a
//! served VM for each configured one.
//!
//! The state lock orders the operator's requests; no session and no worker ever takes it.

mod answers;
mod change;
mod ovn;
#[cfg(test)]
mod tests;
mod views;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vmlane_access::acl::AclError;
use vmlane_config::files::Files;
use vmlane_config::paths::Paths;
use vmlane_config::{Config, Mode, PeerConfig, RouteConfig};
use vmlane_device::virtio::vsock::VsockWorkers;
use vmlane_device::vmci::{Hypervisor, HypervisorCheckpoint};
use vmlane_host::sockets::{Bounds, HostSockets, RoutePeer, Routes};
use vmlane_mem::MemoryMap;
use vmlane_port::Streams;
use vmlane_port::wrap::FaultyStreams;
use vmlane_state::{Found, Journal, Store};
use vmlane_stream::{Settings, Workers};
use vmlane_switch::{Balancer, Switch};
use vmlane_vsock::{HostRules, Router};

use crate::access::Policy;
use crate::captures::Captures;
use crate::cpus::{PlaceError, Placed};
use crate::grants;
use crate::mirrors::Mirrors;
use crate::ovn::OvnPorts;
use crate::serve::{Host, VmError};
use crate::uplink::{UplinkError, Uplinks};
use crate::vm::ServedVm;
use crate::watchdog::{DaemonStats, PATIENCE, Watchdog};

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    #[error(transparent)]
    Vm(#[from] VmError),
    #[error(transparent)]
    Uplink(#[from] UplinkError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("starting the workers: {0}")]
    Workers(std::io::Error),
    #[error(transparent)]
    Access(#[from] AclError),
    #[error("{path}: {cause}")]
    Host { path: PathBuf, cause: std::io::Error },
}

/// What others ask of the main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Stop,
    Reload,
    /// Another daemon takes over everything.
    HandOver,
}

/// A running daemon. Stopping or dropping it withdraws every VM. Many fields: it holds every part that it was built of.
pub struct Daemon {
    paths: Paths,
    started: Instant,
    router: Arc<Router>,
    pub(crate) hypervisor: Arc<Hypervisor>,
    pub(crate) switch: Arc<Switch>,
    pub(crate) vsock_workers: Arc<VsockWorkers>,
    workers: Arc<Workers>,
    /// Where `fault_injection` is on.
    pub(crate) faulty_streams: Option<Arc<FaultyStreams>>,
    sockets: HostSockets,
    pub(crate) watchdog: Mutex<Watchdog>,
    pub(crate) faults: DaemonStats,
    /// Mappings that had lost their memory when sessions were last looked at.
    pub(crate) poisonings: AtomicU64,
    captures: Captures,
    events: Sender<Event>,
    store: Arc<dyn Store>,
    /// Of the control socket. Never held while anything is done.
    policy: Mutex<Policy>,
    pub(crate) state: Mutex<State>,
}

pub(crate) struct State {
    /// What a previous daemon left; empty once the daemon has started.
    found: Found,
    /// Of the configuration.
    files: Files,
    /// In force.
    pub config: Config,
    pub vms: Vec<ServedVm>,
    pub(crate) uplinks: Uplinks,
    mirrors: Mirrors,
    pub(crate) ovn: OvnPorts,
    /// No VM may be offered any more.
    stopped: bool,
}

impl Daemon {
    /// Serves the VMs of `config`, which is in `files`. Resumes from the state that a previous daemon left in `store`.
    pub fn start(
        paths: Paths,
        files: Files,
        config: Config,
        events: Sender<Event>,
        (store, mut found): (Arc<dyn Store>, Found),
        mut uplinks: Uplinks,
    ) -> Result<Daemon, AssemblyError> {
        let placed = Placed::on(config.daemon.cpus.as_ref())?;
        let settings = Settings {
            workers: config.daemon.workers,
            spin: Duration::from_micros(config.daemon.spin_us),
            poll: config.daemon.mode == Mode::Poll,
            ..Settings::default()
        };
        let workers = Arc::new(Workers::start(settings).map_err(AssemblyError::Workers)?);
        if let Err(error) = vmlane_state::share_secret(&*store, &mut found) {
            tracing::error!(%error, "the key of the previous daemon's records is of no use: they are lost");
        }
        let (log, checkpoint) = hypervisor_log(&store, &mut found);
        let injects = config.daemon.fault_injection;
        let faulty_streams = injects.then(|| Arc::new(FaultyStreams::new(workers.clone())));
        let streams: Arc<dyn Streams> = match &faulty_streams {
            Some(faulty) => faulty.clone(),
            None => workers.clone(),
        };
        let router = Router::new(streams);
        let hypervisor = Hypervisor::recorded(router.clone(), log);
        let poll = config.daemon.mode == Mode::Poll;
        let (floods, coalesce) = (config.daemon.flood_limit, config.daemon.coalesce);
        let of_each = usize::from(config.daemon.workers).min(vmlane_switch::MOST_WORKERS);
        let spin = Duration::from_micros(config.daemon.spin_us);
        let settings = vmlane_switch::Settings {
            workers: of_each,
            poll,
            spin,
            floods,
            coalesce,
            ..vmlane_switch::Settings::default()
        };
        let switch = Arc::new(Switch::start(settings).map_err(AssemblyError::Workers)?);
        let settings = vmlane_device::virtio::vsock::Settings { spin, poll };
        let vsock_workers = VsockWorkers::start(of_each, settings, Some(&router));
        let vsock_workers = Arc::new(vsock_workers.map_err(AssemblyError::Workers)?);
        drop(placed);
        uplinks.resume(store.clone(), &mut found)?;
        let (_, refused) = uplinks.change(&switch, &config.uplinks);
        refused.into_iter().next().map_or(Ok(()), Err)?;
        uplinks.follow_links(&switch);
        uplinks.set_teams(&switch, &config.teams);
        let sockets = host_sockets(&router, &paths, &config)?;
        set_routes(&sockets, &paths, &config)?;
        let mut mirrors = Mirrors::default();
        mirrors.change(&switch, &config).1.iter().for_each(|why| tracing::error!("{why}"));
        let state = State {
            files,
            config: config.clone(),
            vms: Vec::new(),
            uplinks,
            mirrors,
            ovn: OvnPorts::default(),
            stopped: false,
            found,
        };
        let state = Mutex::new(state);
        let watchdog = Mutex::new(watch(&workers, &switch, &vsock_workers));
        let policy = Mutex::new(policy(&config));
        let (faults, started) = (DaemonStats::default(), Instant::now());
        let daemon = Daemon {
            paths,
            started,
            router,
            hypervisor,
            switch,
            vsock_workers,
            workers,
            faulty_streams,
            sockets,
            watchdog,
            faults,
            poisonings: AtomicU64::new(0),
            captures: Captures::default(),
            events,
            store,
            policy,
            state,
        };
        let mut maps = HashMap::new();
        for vm in &config.vms {
            maps.extend(daemon.state.lock().offer(&daemon, &config, &vm.name)?);
        }
        // All devices know their guests' memory: first the streams between them can continue, then the guests.
        daemon.hypervisor.resume(checkpoint, maps);
        let mut state = daemon.state.lock();
        state.vms.iter().for_each(ServedVm::go);
        for (name, file) in std::mem::take(&mut state.found).0 {
            tracing::info!(name, "left by a previous daemon and not in the configuration any more");
            if name.ends_with("/listen") {
                crate::runtime::remove_socket(&file);
            }
            daemon.store.remove(&name);
        }
        drop(state);
        Ok(daemon)
    }

    pub(crate) fn host(&self) -> Host<'_> {
        let Daemon { router, hypervisor, switch, vsock_workers, paths, sockets, store, .. } = self;
        Host { router, hypervisor, switch, vsock_workers, paths, sockets, store }
    }

    /// Lets in whom the configuration names, once all sockets exist: the control socket, too.
    pub fn open_sockets(&self) -> Result<(), AssemblyError> {
        let failed = grants::apply(&self.state.lock().config, &self.paths);
        failed.into_iter().next().map_or(Ok(()), |error| Err(error.into()))
    }

    /// To be called every few seconds.
    pub fn housekeeping(&self) {
        self.hypervisor.expire();
        self.sockets.look();
        let state = &mut *self.state.lock();
        state.uplinks.look(&self.switch, &state.config.uplinks);
    }

    /// Are NICs to go to other workers where that helps?
    pub fn balances(&self) -> bool {
        self.state.lock().config.daemon.balance && self.switch.heartbeats().len() > 1
    }

    /// Moves NICs to other workers if that helps. To be called about once a second, by a thread that may wait for workers.
    pub fn balance(&self, balancer: &mut Balancer, now: Instant) {
        let Some(relief) = balancer.look(&self.switch, now) else { return };
        let loads = relief.loads.iter().map(|load| format!("{:.0} %", load * 100.0));
        let loads = loads.collect::<Vec<_>>().join(", ");
        for (id, to) in relief.moves {
            let Some(port) = self.switch.ports().into_iter().find(|port| port.id == id) else { continue };
            let (name, from) = (port.spec.name, port.worker);
            if self.switch.move_port(id, to) {
                tracing::info!(
                    port = name,
                    from,
                    to,
                    loads,
                    "its frames are another worker's to move from now on"
                );
            } else {
                tracing::debug!(port = name, from, to, loads, "stays: frames are on their way to or from it");
            }
        }
    }

    /// Ends every session and removes every VM's socket.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        for vm in std::mem::take(&mut state.vms) {
            vm.withdraw(&self.host());
        }
        state.uplinks.end();
        state.stopped = true;
        let _ = std::fs::remove_dir(self.paths.vms());
        state.files.added.tidy(self.paths.runtime());
    }
}

/// Who may, by the configuration.
fn host_rules(config: &Config) -> HostRules {
    HostRules { owner: rustix::process::geteuid().as_raw(), rules: config.hosts.clone() }
}

fn policy(config: &Config) -> Policy {
    Policy::new(rustix::process::geteuid().as_raw(), config)
}

/// Opens the socket for programs of the host: for its own user, until [`Daemon::open_sockets`] lets others in.
fn host_sockets(router: &Arc<Router>, paths: &Paths, config: &Config) -> Result<HostSockets, AssemblyError> {
    let path = paths.host();
    let sockets = HostSockets::start(router.clone(), &path, 0o600, host_rules(config), Bounds::default());
    sockets.map_err(|cause| AssemblyError::Host { path, cause })
}

/// Other hosts, and the socket of the helper that carries streams to them.
fn set_routes(sockets: &HostSockets, paths: &Paths, config: &Config) -> Result<(), AssemblyError> {
    let (path, routes) = (paths.route(), config.route.as_ref().map(routes));
    sockets.set_routes(&path, routes).map_err(|cause| AssemblyError::Host { path, cause })
}

/// As the thread that serves host sockets knows them.
fn routes(route: &RouteConfig) -> Routes {
    let peer = |peer: &PeerConfig| RoutePeer {
        name: peer.name.clone(),
        cids: peer.cids.clone(),
        groups: peer.groups.clone(),
        trusted: peer.trusted,
    };
    Routes {
        cids: route.cids.clone(),
        host_cid: route.cid,
        owner: route.owner,
        peers: route.peers.iter().map(peer).collect(),
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}

impl State {
    /// Returns the memory of the VM's guest by its context id, if a previous daemon served it.
    fn offer(
        &mut self,
        daemon: &Daemon,
        config: &Config,
        name: &str,
    ) -> Result<Option<(u32, MemoryMap)>, VmError> {
        let Some(vm) = config.vm(name) else { return Ok(None) };
        let (served, map) = ServedVm::offer(&daemon.host(), config, vm, &mut self.found)?;
        tracing::info!(vm = name, cid = served.cid(), nics = served.nics.len(), "serving");
        self.vms.push(served);
        Ok(map)
    }

    fn withdraw(&mut self, daemon: &Daemon, name: &str) {
        if let Some(index) = self.vms.iter().position(|vm| vm.name() == name) {
            self.vms.remove(index).withdraw(&daemon.host());
            tracing::info!(vm = name, "no longer served");
        }
    }
}

/// Name, kind and bytes of a half of the hypervisor's journal. The name is older than the type's: a next daemon of another
/// version looks for it.
pub(crate) const HYPERVISOR_LOG: &str = "fabric.log";
const HYPERVISOR_KIND: u32 = 2;
/// Room for 128 VMs that each keep as much as their default limits allow (some 23 MiB: unread data of closed streams, pages of
/// queue pairs); the file is sparse. Below 4 GiB, as a commit counts bytes in 32 bits.
const HYPERVISOR_HALF: usize = 3 << 30;

/// The hypervisor's journal, a previous daemon's if that is of use, and its records.
fn hypervisor_log(store: &Arc<dyn Store>, found: &mut Found) -> (Option<Journal>, HypervisorCheckpoint) {
    // Devices of a previous daemon that left none know more than the hypervisor does.
    let mut checkpoint = HypervisorCheckpoint::Lost;
    if let Some(file) = found.take(HYPERVISOR_LOG) {
        match Journal::open_in_part(file, HYPERVISOR_KIND, HYPERVISOR_HALF) {
            Ok((log, records, damaged)) => {
                return (Some(log), HypervisorCheckpoint::Known { records, damaged });
            }
            Err(error) => {
                tracing::error!(%error, "the previous daemon's streams are lost: VMCI devices are reset");
                checkpoint = HypervisorCheckpoint::Lost;
            }
        }
    }
    let log = Journal::create("vmlane-hypervisor", HYPERVISOR_KIND, HYPERVISOR_HALF);
    match log.and_then(|log| store.put(HYPERVISOR_LOG, log.file().as_fd()).map(|()| log)) {
        Ok(log) => (Some(log), checkpoint),
        Err(error) => {
            tracing::warn!(%error, "streams will not outlive this daemon");
            (None, checkpoint)
        }
    }
}

/// All workers, watched.
fn watch(workers: &Workers, switch: &Switch, vsock_workers: &VsockWorkers) -> Watchdog {
    let mut dog = Watchdog::new(PATIENCE);
    for (number, heartbeat) in workers.heartbeats().iter().enumerate() {
        dog.watch(format!("worker-{number}"), heartbeat.clone(), |stream| format!("stream {stream}"));
    }
    let alone = switch.heartbeats().len() == 1;
    for (number, heartbeat) in switch.heartbeats().enumerate() {
        let name = if alone { "switch".into() } else { format!("switch-{number}") };
        dog.watch(name, heartbeat.clone(), |port| format!("port {port}"));
    }
    for (name, heartbeat) in vsock_workers.heartbeats() {
        dog.watch(name.into(), heartbeat.clone(), |_| "virtio-vsock guests".into());
    }
    dog
}
