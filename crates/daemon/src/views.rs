//! What the daemon shows of what it serves: status, counters, connections and ports.

use std::collections::BTreeMap;
use std::time::Instant;

use parking_lot::Mutex;
use vmlane_access::Owner;
use vmlane_api::{
    Connection, CounterList, ListedForward, ListedVm, PeerStatus, Ports, Stats, Status, VmList, VmStats,
    VmStatus,
};
use vmlane_config::ForwardConfig;
use vmlane_host::sockets::PeerView;
use vmlane_stats::Counters;
use vmlane_switch::PortView;
use vmlane_vsock::HOST;

use crate::bounds;
use crate::captures::Captures;
use crate::containment::Health;
use crate::host::Host;
use crate::ovn::exchange::with_ovn;
use crate::ports::switch_port;
use crate::served::Served;
use crate::uplink::{team_stats, team_status};
use crate::vm::ServedVm;
use crate::vsock::{VsockView, VsockViews};
use crate::wires;

/// The parts of a daemon that there is something to show of.
pub struct Views<'d> {
    pub host: &'d Host,
    pub served: &'d Mutex<Served>,
    pub health: &'d Health,
    pub captures: &'d Captures,
    pub started: Instant,
}

impl Views<'_> {
    /// Shows the state together with what the devices for sockets report. These are asked before the state is
    /// locked: a worker that is stuck keeps an operator waiting, and no one else.
    fn with_sockets<T>(&self, show: impl FnOnce(&Served, &VsockViews) -> T) -> T {
        let all = VsockViews::of(self.host);
        show(&self.served.lock(), &all)
    }

    pub fn status(&self) -> Status {
        self.with_sockets(|served, all| self.status_of(served, all))
    }

    fn status_of(&self, served: &Served, all: &VsockViews) -> Status {
        let daemon = &served.config.daemon;
        let ports = self.host.switch.ports();
        Status {
            daemon: env!("CARGO_PKG_VERSION").into(),
            layout: Some(vmlane_state::LAYOUT),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            config: served.files.main.display().to_string(),
            runtime_dir: self.host.paths.runtime().display().to_string(),
            workers: self.host.placement.workers,
            placement: self.host.placement.reason.clone(),
            mode: daemon.mode.name().into(),
            spin_us: daemon.spin_us,
            fault_injection: daemon.fault_injection,
            vms: served
                .vms
                .iter()
                .map(|vm| with_ovn(served, vm, self.vm_status(vm, &all.vm(vm.cid()), &ports)))
                .collect(),
            confined: vmlane_confine::state(),
            watched: self.health.status(Instant::now()),
            teams: team_status(&self.host.switch),
            survival_lost: self.host.hypervisor.survival_lost(),
            uplinks: served.uplinks.status(&ports),
            peers: self.host.sockets.peers().into_iter().map(peer_status).collect(),
        }
    }

    fn vm_status(&self, vm: &ServedVm, view: &VsockView<'_>, ports: &[PortView]) -> VmStatus {
        let (ready, connections) = match view {
            VsockView::Vmci(device) => (device.ready, device.connections),
            VsockView::Virtio(device) => (device.ready, device.opened),
            VsockView::Hybrid(hybrid) => (vm.has_hybrid_socket(), hybrid.opened),
            VsockView::None => (vm.has_hybrid_socket(), 0),
        };
        let vmci = if let VsockView::Vmci(device) = view { Some(device) } else { None };
        VmStatus {
            name: vm.name().into(),
            cid: vm.cid(),
            group: vm.group().into(),
            attached: vm.attached(),
            vmm_pid: vm.vmm_pid(),
            refused_vmm_pid: vm.refused_vmm_pid(),
            vsock: vm.vsock_kind().into(),
            ready,
            state: vm.vsock_state(self.host, ready).into(),
            sockets: vm.socket().iter().map(|socket| socket.display().to_string()).collect(),
            queue_pairs: vmci.map_or(0, |view| view.queue_pairs),
            queue_pair_bytes: vmci.map_or(0, |view| view.queue_pair_bytes),
            connections,
            doorbells: vmci.map_or(0, |view| view.doorbells),
            inbox_bytes: vmci.map_or(0, |view| view.inbox_bytes),
            faults: vm.faults(&self.host.switch),
            since: vm.since(),
            quarantined: vm.quarantined,
            nics: vm.nics.iter().map(|nic| nic.status(ports)).collect(),
        }
    }

    pub fn stats(&self) -> Stats {
        self.with_sockets(|served, all| self.stats_of(served, all))
    }

    fn stats_of(&self, served: &Served, all: &VsockViews) -> Stats {
        let vm_stats = |vm: &ServedVm| {
            let view = all.vm(vm.cid());
            let (vmci, vsock) = match &view {
                VsockView::Vmci(device) => (device.stats.snapshot(), Vec::new()),
                VsockView::Virtio(device) => (Vec::new(), device.stats.snapshot()),
                VsockView::Hybrid(hybrid) => (Vec::new(), hybrid.stats.snapshot()),
                VsockView::None => (Vec::new(), Vec::new()),
            };
            VmStats {
                name: vm.name().into(),
                cid: vm.cid(),
                vmci: vmci.into_iter().collect(),
                vsock: vsock.into_iter().collect(),
                session: vm.stats().map(|stats| stats.snapshot().into_iter().collect()).unwrap_or_default(),
                nics: vm.nics.iter().map(|nic| nic.stats(&self.host.switch)).collect(),
                bounds: bounds::of(vm, &view),
            }
        };
        Stats {
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            workers: self.host.workers.stats().snapshot().into_iter().collect(),
            switch: sums(self.host.switch.worker_stats().map(|stats| stats.snapshot())),
            vsock: sums(self.host.vsock_workers.stats().map(|stats| stats.snapshot())),
            uplinks: served.uplinks.stats(&self.host.switch),
            teams: team_stats(&self.host.switch),
            mirrors: served.mirrors.show(&self.host.switch),
            captures: self.captures.stats(),
            daemon: self.health.counts.snapshot().into_iter().collect(),
            vms: served.vms.iter().map(vm_stats).collect(),
        }
    }

    /// All VMs, with where they are described.
    pub fn vms(&self) -> VmList {
        let served = self.served.lock();
        let forward = |forward: &ForwardConfig| ListedForward { port: forward.port, to: forward.to() };
        let listed = served.config.vms.iter().map(|vm| {
            let place = served.config.places.get(&vm.name).cloned().unwrap_or_default();
            ListedVm {
                name: vm.name.clone(),
                cid: (vm.cid > HOST).then_some(vm.cid),
                group: vm.group.clone(),
                vsock: vm.vsock.name().into(),
                nics: vm.nics.len(),
                owner: vm.owner.map(shown),
                attached: served.attached(&vm.name),
                added: place.added,
                file: place.path.display().to_string(),
                line: place.line,
                forwards: vm.forwards.iter().map(forward).collect(),
            }
        });
        VmList { vms: listed.collect() }
    }

    pub fn ports(&self) -> Ports {
        let known = self.host.router.vms().known();
        let name = |cid: u32| match cid {
            vmlane_wire::vmci::CID_HOST => "host".into(),
            _ => known.get(cid).map_or_else(String::new, |vm| vm.name.clone()),
        };
        let vmci = self.host.hypervisor.connections();
        let mut connections: BTreeMap<_, _> = self
            .host
            .vsock_workers
            .connections()
            .iter()
            .map(|one| ((one.client, one.server), one.state()))
            .collect();
        let hybrid = self.host.sockets.hybrid_connections();
        connections.extend(hybrid.iter().map(|one| ((one.client, one.server), one.state())));
        // Both devices know of one between VMs of two kinds; VMCI's states have more detail.
        connections.extend(vmci.iter().map(|one| ((one.client, one.server), one.state)));
        let connections = connections.into_iter().map(|((client, server), state)| Connection {
            client_vm: name(client.0),
            client_cid: client.0,
            client_port: client.1,
            server_vm: name(server.0),
            server_cid: server.0,
            server_port: server.1,
            state: state.into(),
        });
        let learned = self.host.switch.learned();
        let views = self.host.switch.ports();
        let served = self.served.lock();
        Ports {
            connections: connections.collect(),
            wires: wires::show(&served.config.wires, &views),
            switch: views.into_iter().map(|view| switch_port(view, &learned)).collect(),
            mirrors: served.mirrors.show(&self.host.switch),
            teams: team_status(&self.host.switch),
        }
    }
}

/// As the configuration has it.
fn shown(owner: Owner) -> String {
    let number = |id: Option<u32>| id.map(|id| id.to_string()).unwrap_or_default();
    match owner.gid {
        Some(gid) => format!("{}:{gid}", number(owner.uid)),
        None => number(owner.uid),
    }
}

fn peer_status(view: PeerView) -> PeerStatus {
    let PeerView { name, state, problem, streams, counters } = view;
    PeerStatus { name, state, problem, streams, counters: counters.into_iter().collect() }
}

/// What workers of one kind have counted together.
fn sums<Counts: IntoIterator<Item = (&'static str, u64)>>(
    workers: impl Iterator<Item = Counts>,
) -> CounterList {
    let mut sums: Vec<(&'static str, u64)> = Vec::new();
    for counts in workers {
        for (at, (name, count)) in counts.into_iter().enumerate() {
            match sums.get_mut(at) {
                Some((_, sum)) => *sum += count,
                None => sums.push((name, count)),
            }
        }
    }
    sums.into_iter().collect()
}
