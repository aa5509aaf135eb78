//! What VMs are served with, one of each for the whole life of a daemon: the workers that move bytes, the
//! router of the CID space, the hypervisor of the VMCI guests, the switch, the socket for programs of the
//! host, the store that outlives it.
//!
//! All of it may be used from any thread; nothing here knows which VMs are served.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use vmlane_config::paths::Paths;
use vmlane_config::{Config, Mode, PeerConfig, Placement, RouteConfig, WorkerKind};
use vmlane_device::virtio::vsock::{VsockWorkers, hold_logs, recover_all};
use vmlane_device::vmci::{Hypervisor, HypervisorCheckpoint};
use vmlane_host::sockets::{Bounds, HostSockets, RoutePeer, Routes};
use vmlane_keeper::takeover::HYPERVISOR_LOG;
use vmlane_port::Streams;
use vmlane_state::{Found, Journal, Store};
use vmlane_stream::{Settings, Workers};
use vmlane_switch::Switch;
use vmlane_vsock::{HostRules, Router};

use crate::cpus::{PlaceError, Placed, set_of};
use crate::extras::Extras;

/// Why it cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("starting the workers: {0}")]
    Workers(io::Error),
    #[error("{path}: {cause}")]
    Socket { path: PathBuf, cause: io::Error },
}

/// See the module's text.
pub struct Host {
    pub router: Arc<Router>,
    pub hypervisor: Arc<Hypervisor>,
    pub switch: Arc<Switch>,
    pub vsock_workers: Arc<VsockWorkers>,
    pub workers: Arc<Workers>,
    pub placement: Placement,
    pub sockets: HostSockets,
    pub paths: Paths,
    pub store: Arc<dyn Store>,
    pub extras: Extras,
}

impl Host {
    /// Starts the workers and opens the socket for programs of the host. Also returns what a previous
    /// daemon's hypervisor left in `store`.
    pub fn start(
        paths: Paths,
        (config, placement): (&Config, Placement),
        (store, found): (Arc<dyn Store>, &mut Found),
        mut extras: Extras,
    ) -> Result<(Host, HypervisorCheckpoint), HostError> {
        let placed = Placed::on(config.daemon.cpus.as_ref())?;
        let poll = config.daemon.mode == Mode::Poll;
        let spin = Duration::from_micros(config.daemon.spin_us);
        let on = |kind| placement.cpus(kind).map(set_of).collect::<Vec<_>>();
        tracing::info!("workers: {placement}");
        let settings = Settings { workers: placement.workers, spin, poll, ..Settings::default() };
        let workers = Workers::start_on(settings, &on(WorkerKind::Streams));
        let mut workers = workers.map_err(HostError::Workers)?;
        let of_each = usize::from(placement.workers).min(vmlane_switch::MOST_WORKERS);
        let rides = (0..of_each).map(|_| workers.ride()).collect::<io::Result<Vec<_>>>();
        let (workers, rides) = (Arc::new(workers), rides.map_err(HostError::Workers)?);
        if let Err(error) = vmlane_state::share_secret(&*store, found) {
            tracing::error!(%error, "the key of the previous daemon's records is of no use: they are lost");
        }
        let (log, checkpoint) = hypervisor_log(&*store, found);
        let workers_before = recover_all(found);
        extras.faults = extras.faults.filter(|_| config.daemon.fault_injection);
        let streams: Arc<dyn Streams> = match &extras.faults {
            Some(faults) => faults.streams(workers.clone()),
            None => workers.clone(),
        };
        let router = Router::new(streams);
        let hypervisor = Hypervisor::recorded(router.clone(), log);
        let settings = vmlane_switch::Settings {
            workers: of_each,
            poll,
            spin,
            floods: config.daemon.flood_limit,
            coalesce: config.daemon.coalesce,
            ..vmlane_switch::Settings::default()
        };
        let switch =
            Arc::new(Switch::start_on(settings, &on(WorkerKind::Frames)).map_err(HostError::Workers)?);
        let settings = vmlane_device::virtio::vsock::Settings { spin, poll };
        let relays = rides.into_iter().map(|ride| (router.clone(), ride)).collect();
        let vsock_workers = VsockWorkers::start_on(settings, relays, router.vms(), &on(WorkerKind::Vsock));
        let vsock_workers = Arc::new(vsock_workers.map_err(HostError::Workers)?);
        if let Err(error) = hold_logs(&store, vsock_workers.logs(), workers_before) {
            tracing::error!(%error, "virtio-vsock devices do not outlive this daemon");
        }
        drop(placed);
        // For its own user, until access control lists let others in.
        let path = paths.host();
        let sockets = HostSockets::start(router.clone(), &path, 0o600, host_rules(config), Bounds::default());
        let sockets = sockets.map_err(|cause| HostError::Socket { path, cause })?;
        let host = Host {
            router,
            hypervisor,
            switch,
            vsock_workers,
            workers,
            placement,
            sockets,
            paths,
            store,
            extras,
        };
        host.set_routes(config)?;
        Ok((host, checkpoint))
    }

    /// Which programs of the host may do what.
    pub fn set_rules(&self, config: &Config) {
        self.sockets.set_rules(host_rules(config));
    }

    /// Other hosts, and the socket of the helper that carries streams to them.
    pub fn set_routes(&self, config: &Config) -> Result<(), HostError> {
        let (path, routes) = (self.paths.route(), config.route.as_ref().map(routes));
        self.sockets.set_routes(&path, routes).map_err(|cause| HostError::Socket { path, cause })
    }
}

fn host_rules(config: &Config) -> HostRules {
    HostRules { owner: rustix::process::geteuid().as_raw(), rules: config.hosts.clone() }
}

/// Kind and bytes of a half of the hypervisor's journal.
const HYPERVISOR_KIND: u32 = 2;
/// Room for 128 VMs that each keep as much as their default limits allow (some 23 MiB: unread data of closed
/// streams, pages of queue pairs); the file is sparse. Below 4 GiB, as a commit counts bytes in 32 bits.
const HYPERVISOR_HALF: usize = 3 << 30;

/// The hypervisor's journal, a previous daemon's if that is of use, and its records.
fn hypervisor_log(store: &dyn Store, found: &mut Found) -> (Option<Journal>, HypervisorCheckpoint) {
    if let Some(file) = found.take(HYPERVISOR_LOG) {
        match Journal::open_in_part(file, HYPERVISOR_KIND, HYPERVISOR_HALF) {
            Ok((log, records, damaged)) => {
                return (Some(log), HypervisorCheckpoint::Known { records, damaged });
            }
            Err(error) => {
                tracing::error!(%error, "the previous daemon's streams are lost: VMCI devices are reset");
            }
        }
    }
    let log = Journal::create("vmlane-hypervisor", HYPERVISOR_KIND, HYPERVISOR_HALF);
    let log = log.and_then(|log| store.put(HYPERVISOR_LOG, log.file().as_fd()).map(|()| log));
    let log = log.inspect_err(|error| tracing::warn!(%error, "streams will not outlive this daemon"));
    // Devices of a previous daemon that left none know more than the hypervisor does.
    (log.ok(), HypervisorCheckpoint::Lost)
}

/// Other hosts as the thread that serves host sockets knows them.
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
