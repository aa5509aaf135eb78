//! By what a VM takes part in the CID space while it is served: its CID, its device, its sockets.

use std::path::Path;
use std::sync::Arc;

use vmlane_config::{Config, Role, VmConfig, Vsock};
use vmlane_device::virtio::vsock::{GuestStats, GuestView, Home, VsockDevice};
use vmlane_device::vmci::{VmView, VmciDevice, VmciStats};
use vmlane_host::sockets::{Guest, HybridView};
use vmlane_mem::MemoryMap;
use vmlane_state::Found;
use vmlane_transport::{RingLines, Server, SessionStats, vhost_user};
use vmlane_vsock::Vm;

use crate::counters;
use crate::host::Host;
use crate::hybrid::ServedHybrid;
use crate::serve::{Attachment, PciSocket, VmError, device_name, device_state, held_vhost_end};

/// A device of ours.
pub struct ServedDevice {
    pub cid: u32,
    pub server: Server,
    pub stats: Arc<SessionStats>,
    /// See [`crate::vm::ServedVm::since`].
    since: u64,
}

/// A virtio-vsock device, and the worker that serves its rings at the moment.
pub struct ServedVirtio {
    device: ServedDevice,
    home: Home,
    counts: Arc<GuestStats>,
    /// Sessions that previous daemons counted.
    sessions_before: u64,
}

/// By what a VM takes part in the CID space, as of [`Vsock`].
pub enum ServedVsock {
    Vmci(ServedDevice),
    Virtio(ServedVirtio),
    Hybrid(ServedHybrid),
    None,
}

/// What an operator may see of that, as far as it is there.
pub enum VsockView<'v> {
    Vmci(&'v VmView),
    Virtio(&'v GuestView),
    Hybrid(&'v HybridView),
    None,
}

/// The same of all VMs.
pub struct VsockViews {
    vmci: Vec<VmView>,
    virtio: Vec<GuestView>,
    hybrid: Vec<HybridView>,
}

impl VsockViews {
    /// As they are now. A worker that is stuck keeps the caller waiting.
    pub fn of(host: &Host) -> VsockViews {
        let Host { hypervisor, vsock_workers, sockets, .. } = host;
        VsockViews { vmci: hypervisor.vms(), virtio: vsock_workers.guests(), hybrid: sockets.hybrids() }
    }

    pub fn vm(&self, cid: Option<u32>) -> VsockView<'_> {
        let Some(cid) = cid else { return VsockView::None };
        let vmci = self.vmci.iter().find(|view| view.cid == cid).map(VsockView::Vmci);
        let virtio = || self.virtio.iter().find(|view| view.cid == cid).map(VsockView::Virtio);
        let hybrid = || self.hybrid.iter().find(|view| view.cid == cid).map(VsockView::Hybrid);
        vmci.or_else(virtio).or_else(hybrid).unwrap_or(VsockView::None)
    }
}

impl ServedVsock {
    /// As the configuration names it.
    pub fn name(&self) -> &'static str {
        match self {
            ServedVsock::Vmci(_) => "vmci",
            ServedVsock::Virtio(_) => "virtio",
            ServedVsock::Hybrid(_) => "hybrid",
            ServedVsock::None => "none",
        }
    }

    /// Opens the socket of a VM that is in the table of VMs. Also returns the memory that a previous daemon's
    /// VMCI device had, by context id.
    pub fn offer(
        host: &Host,
        config: &Config,
        vm: &VmConfig,
        found: &mut Found,
    ) -> Result<(ServedVsock, Option<(u32, MemoryMap)>), VmError> {
        Ok(match &vm.vsock {
            Vsock::Vmci => {
                let (device, map) = offer_vmci(host, config, vm, found)?;
                let known = map.map(|map| (device.cid, map));
                (ServedVsock::Vmci(device), known)
            }
            Vsock::Virtio { role } => {
                let served = offer_virtio(host, config, vm, *role, found)?;
                hold_virtio(host, config, &vm.name);
                (ServedVsock::Virtio(served), None)
            }
            Vsock::Hybrid(hybrid) => {
                (ServedVsock::Hybrid(ServedHybrid::offer(host, vm, hybrid, found)?), None)
            }
            Vsock::None => (ServedVsock::None, None),
        })
    }

    /// Ends the session of the VM `name`, and removes its socket.
    pub fn withdraw(self, host: &Host, name: &str) {
        match self {
            ServedVsock::Vmci(device) => {
                let cid = device.withdraw(host);
                host.hypervisor.remove(cid);
                host.store.remove_all(&format!("{name}.vmci/"));
            }
            ServedVsock::Virtio(ServedVirtio { device, .. }) => {
                let cid = device.withdraw(host);
                forget_virtio(host, cid);
                host.store.remove_all(&format!("{name}.vsock/"));
                host.store.hold(&virtio_session(name), None);
            }
            ServedVsock::Hybrid(hybrid) => hybrid.withdraw(host, name),
            ServedVsock::None => {}
        }
    }

    pub fn device(&self) -> Option<&ServedDevice> {
        match self {
            ServedVsock::Vmci(device) | ServedVsock::Virtio(ServedVirtio { device, .. }) => Some(device),
            ServedVsock::Hybrid(_) | ServedVsock::None => None,
        }
    }

    /// The socket of its device, or the hybrid one.
    pub fn socket(&self) -> Option<&Path> {
        match self {
            ServedVsock::Vmci(device) | ServedVsock::Virtio(ServedVirtio { device, .. }) => {
                Some(device.server.path())
            }
            ServedVsock::Hybrid(hybrid) => Some(&hybrid.path),
            ServedVsock::None => None,
        }
    }

    /// What an operator is shown of it. `ready`: the guest's driver has set it up.
    pub fn state(&self, host: &Host, name: &str, ready: bool) -> &'static str {
        match self {
            ServedVsock::Vmci(device) => device_state(device.server.connected(), ready, None),
            ServedVsock::Virtio(virtio @ ServedVirtio { device, .. }) => {
                let has_had_any = device.stats.counts.sessions.get() > virtio.sessions_before;
                if !has_had_any && host.store.was_dropped(&virtio_session(name)) {
                    return "lost";
                }
                device_state(device.server.connected(), ready, Some(device.stats.has_run()))
            }
            ServedVsock::Hybrid(_) => device_state(self.has_hybrid_socket(), ready, None),
            ServedVsock::None => "none",
        }
    }

    /// Its hybrid socket is there; no more is known of its guest.
    pub fn has_hybrid_socket(&self) -> bool {
        match self {
            ServedVsock::Hybrid(hybrid) => hybrid.is_there(),
            ServedVsock::Vmci(_) | ServedVsock::Virtio(_) | ServedVsock::None => false,
        }
    }

    /// What is configured of the VM has changed, in the table of VMs already.
    pub fn update(&self, host: &Host, config: &Config, vm: &VmConfig) {
        match self {
            ServedVsock::Vmci(device) => host.hypervisor.set_limits(device.cid, vm.limits.vmci),
            ServedVsock::Hybrid(hybrid) => hybrid.update(host),
            ServedVsock::Virtio(virtio) => _ = serve_virtio(host, config, vm, virtio.counts.clone()),
            ServedVsock::None => {}
        }
    }

    /// How long its session is held without a daemon has changed.
    pub fn set_hold(&self, host: &Host, config: &Config, name: &str) {
        if let ServedVsock::Virtio(_) = self {
            hold_virtio(host, config, name);
        }
    }

    /// See [`crate::vm::ServedVm::since`].
    pub fn since(&self) -> Option<u64> {
        match self {
            ServedVsock::Hybrid(hybrid) => Some(hybrid.since()),
            _ => self.device().map(|device| device.since),
        }
    }

    /// Contained faults so far, in its session and in its worker.
    pub fn faults(&self) -> u64 {
        let in_session = self.device().map_or(0, |device| device.stats.panics());
        match self {
            ServedVsock::Virtio(virtio) => in_session + virtio.counts.panics.get(),
            ServedVsock::Vmci(_) | ServedVsock::Hybrid(_) | ServedVsock::None => in_session,
        }
    }

    /// The worker of its virtio-vsock device, and its CID.
    pub fn virtio(&self) -> Option<(&Home, u32)> {
        match self {
            ServedVsock::Virtio(virtio) => Some((&virtio.home, virtio.device.cid)),
            ServedVsock::Vmci(_) | ServedVsock::Hybrid(_) | ServedVsock::None => None,
        }
    }

    /// Takes its device out of service, or back into it.
    pub fn set_quarantined(&self, host: &Host, on: bool) {
        match self {
            ServedVsock::Vmci(device) => host.hypervisor.set_quarantined(device.cid, on),
            ServedVsock::Virtio(virtio) => {
                virtio.home.with(|worker| worker.set_quarantined(virtio.device.cid, on));
            }
            // Its VMM's own.
            ServedVsock::Hybrid(_) | ServedVsock::None => {}
        }
    }
}

impl ServedDevice {
    /// Returns the CID that it had.
    fn withdraw(self, host: &Host) -> u32 {
        self.server.stop();
        host.sockets.remove_guest(self.cid);
        self.cid
    }
}

/// How the names of all begin that the keeper holds of a VM's virtio-vsock session.
fn virtio_session(name: &str) -> String {
    format!("{name}.vsock/s/")
}

/// VMMs wait for the next daemon no longer than configured.
fn hold_virtio(host: &Host, config: &Config, name: &str) {
    host.store.hold(&virtio_session(name), config.daemon.hold);
}

fn offer_virtio(
    host: &Host,
    config: &Config,
    vm: &VmConfig,
    role: Role,
    found: &mut Found,
) -> Result<ServedVirtio, VmError> {
    let name = || vm.name.clone();
    let path = host.paths.vsock(&vm.name).map_err(|cause| VmError::Path { name: name(), cause })?;
    let uds = host.paths.uds(&vm.name).map_err(|cause| VmError::Path { name: name(), cause })?;
    let scope = format!("{}.vsock", vm.name);
    let stats = SessionStats::continuing(counters::of_device(host, found, &scope, "session"));
    let counts: GuestStats = counters::of_device(host, found, &scope, "device");
    let (since, sessions_before) = (stats.counts.since().max(counts.since()), stats.counts.sessions.get());
    let held = held_vhost_end(host, role, &path, &scope, found);
    let (end, scope, left) = held.map_err(|cause| VmError::Listen { name: name(), cause })?;
    let threads = |cause| VmError::Threads { name: name(), cause };
    let lines = Arc::new(RingLines::new(VsockDevice::QUEUES).map_err(threads)?);
    let stats = Arc::new(stats);
    stats.memory.set_limit(config.memory_limit(vm));
    let (home, counts) = serve_virtio(host, config, vm, Arc::new(counts));
    let mut device = Box::new(VsockDevice::new(vm.cid, home.clone(), lines.clone()).map_err(threads)?);
    let prepared = vhost_user::Prepared::from(left, &scope, &mut *device, &lines, &stats);
    let device_name = device_name(&vm.name, "vsock");
    let served = end.serve_on(&device_name, device, lines, stats.clone(), scope, prepared);
    let served =
        served.map_err(threads).and_then(|server| match host.sockets.add_guest(Guest { cid: vm.cid, uds }) {
            Ok(()) => {
                let device = ServedDevice { cid: vm.cid, server, stats, since };
                Ok(ServedVirtio { device, home, counts, sessions_before })
            }
            Err(cause) => {
                server.stop();
                Err(VmError::Uds { name: name(), cause })
            }
        });
    if served.is_err() {
        forget_virtio(host, vm.cid);
    }
    served
}

/// Has the worker of a VM's group serve its virtio-vsock device. Returns what that counts: in `counts` if it
/// is new.
fn serve_virtio(
    host: &Host,
    config: &Config,
    vm: &VmConfig,
    counts: Arc<GuestStats>,
) -> (Home, Arc<GuestStats>) {
    let (home, counts) = host.vsock_workers.add(&record(config, vm), counts);
    host.router.set_endpoint(vm.cid, home.with(|worker| worker.endpoint(vm.cid)));
    (home, counts)
}

fn forget_virtio(host: &Host, cid: u32) {
    host.router.clear_endpoint(cid);
    host.vsock_workers.remove(cid);
}

fn offer_vmci(
    host: &Host,
    config: &Config,
    vm: &VmConfig,
    found: &mut Found,
) -> Result<(ServedDevice, Option<MemoryMap>), VmError> {
    let (name, cid) = (vm.name.clone(), vm.cid);
    let path = host.paths.vmci(&name).map_err(|cause| VmError::Path { name: name.clone(), cause })?;
    let uds = host.paths.uds(&name).map_err(|cause| VmError::Path { name: name.clone(), cause })?;
    let offered = serve_vmci(host, &path, config, vm, found);
    let offered = offered.and_then(|(device, map)| match host.sockets.add_guest(Guest { cid, uds }) {
        Ok(()) => Ok((device, map)),
        Err(cause) => {
            device.server.stop();
            Err(VmError::Uds { name, cause })
        }
    });
    if offered.is_err() {
        host.hypervisor.remove(cid);
    }
    offered
}

fn serve_vmci(
    host: &Host,
    path: &Path,
    config: &Config,
    vm: &VmConfig,
    found: &mut Found,
) -> Result<(ServedDevice, Option<MemoryMap>), VmError> {
    let (name, cid) = (vm.name.as_str(), vm.cid);
    let (scope, device_name) = (format!("{name}.vmci"), device_name(name, "vmci"));
    let stats = SessionStats::continuing(counters::of_device(host, found, &scope, "session"));
    let counts: VmciStats = counters::of_device(host, found, &scope, "device");
    let (since, stats) = (stats.counts.since().max(counts.since()), Arc::new(stats));
    stats.memory.set_limit(config.memory_limit(vm));
    let attachment = Attachment::new(host, vm, &stats)?;
    let (limits, irqs) = (vm.limits.vmci, attachment.interrupts());
    let device = VmciDevice::counting(host.hypervisor.clone(), (cid, limits), irqs, counts)
        .map_err(|cause| VmError::Device { name: name.to_owned(), cause })?;
    let socket = PciSocket { vm: name, path, scope: &scope, device: &device_name };
    let (server, map) = attachment.serve(host, &socket, Box::new(device), stats.clone(), found)?;
    Ok((ServedDevice { cid, server, stats, since }, map))
}

/// A VM of a configuration as the table of VMs has it.
pub fn record(config: &Config, vm: &VmConfig) -> Vm {
    Vm {
        name: vm.name.clone(),
        cid: vm.cid,
        group: vm.group.clone(),
        owner: vm.owner,
        restricted: vm.restricted,
        trusted: vm.trusted,
        connections: vm.limits.connections,
        forwards: config.forwards(vm),
        parent: vm.parent_cid,
    }
}
