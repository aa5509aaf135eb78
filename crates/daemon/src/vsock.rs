//! By what a VM takes part in the CID space while it is served: its CID, its device, its sockets.

use std::path::Path;
use std::sync::Arc;

use vmlane_config::{Config, Role, VmConfig, Vsock};
use vmlane_device::pci::{FaultyDevice, PciDevice};
use vmlane_device::virtio::vsock::{GuestStats, VsockDevice, VsockWorker};
use vmlane_device::vmci::{VmSpec, VmciDevice};
use vmlane_host::sockets::Guest;
use vmlane_mem::MemoryMap;
use vmlane_port::wrap::{Fault, Trigger};
use vmlane_state::Found;
use vmlane_transport::{RingLines, Server, SessionStats};
use vmlane_vsock::Vm;

use crate::hybrid::ServedHybrid;
use crate::serve::{Attachment, Host, PciSocket, VmError, device_name, vhost_end};

/// A device of ours.
pub struct ServedDevice {
    pub cid: u32,
    pub server: Server,
    pub stats: Arc<SessionStats>,
}

/// A virtio-vsock device, and the worker that serves its rings.
pub struct ServedVirtio {
    device: ServedDevice,
    worker: Arc<VsockWorker>,
    counts: Arc<GuestStats>,
}

/// By what a VM takes part in the CID space, as [`Vsock`] says.
pub enum ServedVsock {
    /// With what fails on request, where `fault_injection` is on.
    Vmci(ServedDevice, Option<Arc<Trigger>>),
    Virtio(ServedVirtio),
    Hybrid(ServedHybrid),
    None,
}

impl ServedVsock {
    /// Makes a VM known and opens its socket. Also returns the memory that a previous daemon's VMCI device had, by context id.
    pub fn offer(
        host: &Host<'_>,
        config: &Config,
        vm: &VmConfig,
        found: &mut Found,
    ) -> Result<(ServedVsock, Option<(u32, MemoryMap)>), VmError> {
        Ok(match vm.vsock {
            Vsock::Vmci => {
                let (device, trigger, map) = offer_vmci(host, config, vm, found)?;
                let known = map.map(|map| (device.cid, map));
                (ServedVsock::Vmci(device, trigger), known)
            }
            Vsock::Virtio { role } => (ServedVsock::Virtio(offer_virtio(host, config, vm, role)?), None),
            Vsock::Hybrid(_) => (ServedVsock::Hybrid(ServedHybrid::offer(host, config, vm)?), None),
            Vsock::None => (ServedVsock::None, None),
        })
    }

    /// Ends the session, removes the socket, forgets the VM `name`.
    pub fn withdraw(self, host: &Host<'_>, name: &str) {
        match self {
            ServedVsock::Vmci(device, _) => {
                let cid = device.withdraw(host);
                host.hypervisor.remove_vm(cid);
                host.store.remove_all(&format!("{name}.vmci/"));
            }
            ServedVsock::Virtio(ServedVirtio { device, .. }) => {
                let cid = device.withdraw(host);
                forget_virtio(host, cid);
            }
            ServedVsock::Hybrid(hybrid) => hybrid.withdraw(host, name),
            ServedVsock::None => {}
        }
    }

    pub fn device(&self) -> Option<&ServedDevice> {
        match self {
            ServedVsock::Vmci(device, _) | ServedVsock::Virtio(ServedVirtio { device, .. }) => Some(device),
            ServedVsock::Hybrid(_) | ServedVsock::None => None,
        }
    }

    pub fn hybrid(&self) -> Option<&ServedHybrid> {
        match self {
            ServedVsock::Hybrid(hybrid) => Some(hybrid),
            ServedVsock::Vmci(..) | ServedVsock::Virtio(_) | ServedVsock::None => None,
        }
    }

    /// What changes without a guest's seeing it. Its limits and forwards are those of `spec` from now on.
    pub fn update(&mut self, host: &Host<'_>, vm: &VmConfig, spec: VmSpec) {
        match self {
            ServedVsock::Vmci(..) => {}
            ServedVsock::Virtio(virtio) => drop(virtio.worker.add(spec.vm.clone())),
            ServedVsock::Hybrid(hybrid) => hybrid.update(host, vm, spec.vm.clone()),
            ServedVsock::None => return,
        }
        host.hypervisor.update_vm(spec);
    }

    /// Contained faults so far, in its session and in its worker.
    pub fn faults(&self) -> u64 {
        let in_session = self.device().map_or(0, |device| device.stats.panics());
        match self {
            ServedVsock::Virtio(virtio) => in_session + virtio.counts.panics.get(),
            ServedVsock::Vmci(..) | ServedVsock::Hybrid(_) | ServedVsock::None => in_session,
        }
    }

    /// Makes the next register access of a VMCI device go wrong, or what a virtio-vsock device's worker does now. False
    /// if there is nothing active to fail.
    pub fn inject(&self, fault: Fault) -> bool {
        match self {
            ServedVsock::Vmci(_, trigger) => trigger.as_ref().inspect(|trigger| trigger.arm(fault)).is_some(),
            ServedVsock::Virtio(virtio) => virtio.worker.inject(virtio.device.cid, fault),
            ServedVsock::Hybrid(_) | ServedVsock::None => false,
        }
    }

    /// Takes its device out of service, or back into it.
    pub fn set_quarantined(&self, host: &Host<'_>, on: bool) {
        match self {
            ServedVsock::Vmci(device, _) => host.hypervisor.set_quarantined(device.cid, on),
            ServedVsock::Virtio(virtio) => virtio.worker.set_quarantined(virtio.device.cid, on),
            // Its VMM's own.
            ServedVsock::Hybrid(_) | ServedVsock::None => {}
        }
    }
}

impl ServedDevice {
    /// Returns the CID that it had.
    fn withdraw(self, host: &Host<'_>) -> u32 {
        self.server.stop();
        host.sockets.remove_guest(self.cid);
        self.cid
    }
}

fn offer_virtio(
    host: &Host<'_>,
    config: &Config,
    vm: &VmConfig,
    role: Role,
) -> Result<ServedVirtio, VmError> {
    let name = || vm.name.clone();
    let path = host.paths.vsock(&vm.name).map_err(|cause| VmError::Path { name: name(), cause })?;
    let uds = host.paths.uds(&vm.name).map_err(|cause| VmError::Path { name: name(), cause })?;
    let end = vhost_end(role, &path);
    let end = end.map_err(|cause| VmError::Listen { name: name(), cause })?;
    let threads = |cause| VmError::Threads { name: name(), cause };
    let lines = Arc::new(RingLines::new(VsockDevice::QUEUES).map_err(threads)?);
    let stats = Arc::new(SessionStats::default());
    stats.memory.set_limit(config.memory_limit(vm));
    let spec = spec(config, vm);
    let policy = spec.vm.clone();
    host.hypervisor.add_vm(spec).map_err(|cause| VmError::Add { name: name(), cause })?;
    let (worker, counts) = host.vsock_workers.add(policy);
    host.router.set_endpoint(vm.cid, worker.endpoint(vm.cid));
    let device = Box::new(VsockDevice::new(vm.cid, worker.clone(), lines.clone()));
    let served = end.serve(&device_name(&vm.name, "vsock"), device, lines, stats.clone());
    let served = served.map_err(threads).and_then(|server| {
        let guest = Guest { cid: vm.cid, group: vm.group.clone(), uds };
        match host.sockets.add_guest(guest) {
            Ok(()) => {
                let device = ServedDevice { cid: vm.cid, server, stats };
                Ok(ServedVirtio { device, worker, counts })
            }
            Err(cause) => {
                server.stop();
                Err(VmError::Uds { name: name(), cause })
            }
        }
    });
    if served.is_err() {
        forget_virtio(host, vm.cid);
    }
    served
}

fn forget_virtio(host: &Host<'_>, cid: u32) {
    host.router.clear_endpoint(cid);
    host.vsock_workers.remove(cid);
    host.hypervisor.remove_vm(cid);
}

type OfferedVmci = (ServedDevice, Option<Arc<Trigger>>, Option<MemoryMap>);

fn offer_vmci(
    host: &Host<'_>,
    config: &Config,
    vm: &VmConfig,
    found: &mut Found,
) -> Result<OfferedVmci, VmError> {
    let spec = spec(config, vm);
    let trigger = config.daemon.fault_injection.then(Arc::default);
    let (name, cid) = (spec.name.clone(), spec.vm.cid);
    let path = host.paths.vmci(&name).map_err(|cause| VmError::Path { name: name.clone(), cause })?;
    let uds = host.paths.uds(&name).map_err(|cause| VmError::Path { name: name.clone(), cause })?;
    let group = spec.vm.group.clone();
    host.hypervisor.add_vm(spec).map_err(|cause| VmError::Add { name: name.clone(), cause })?;
    let stats = Arc::new(SessionStats::default());
    stats.memory.set_limit(config.memory_limit(vm));
    let offered = serve_vmci(host, &path, vm, stats, trigger.clone(), found);
    let offered = offered.and_then(|(device, map)| match host.sockets.add_guest(Guest { cid, group, uds }) {
        Ok(()) => Ok((device, trigger, map)),
        Err(cause) => {
            device.server.stop();
            Err(VmError::Uds { name, cause })
        }
    });
    if offered.is_err() {
        host.hypervisor.remove_vm(cid);
    }
    offered
}

fn serve_vmci(
    host: &Host<'_>,
    path: &Path,
    vm: &VmConfig,
    stats: Arc<SessionStats>,
    trigger: Option<Arc<Trigger>>,
    found: &mut Found,
) -> Result<(ServedDevice, Option<MemoryMap>), VmError> {
    let (name, cid) = (vm.name.as_str(), vm.cid);
    let attachment = Attachment::new(vm, &stats)?;
    let device = VmciDevice::new(host.hypervisor.clone(), cid, attachment.interrupts())
        .map_err(|cause| VmError::Device { name: name.to_owned(), cause })?;
    let mut device: Box<dyn PciDevice> = Box::new(device);
    if let Some(trigger) = trigger {
        device = Box::new(FaultyDevice::new(device, trigger));
    }
    let (scope, device_name) = (format!("{name}.vmci"), device_name(name, "vmci"));
    let socket = PciSocket { vm: name, path, scope: &scope, device: &device_name };
    let (server, map) = attachment.serve(host, &socket, device, stats.clone(), found)?;
    Ok((ServedDevice { cid, server, stats }, map))
}

/// A VM of a configuration as the hypervisor wants it.
pub fn spec(config: &Config, vm: &VmConfig) -> VmSpec {
    let policy = Vm {
        cid: vm.cid,
        group: vm.group.clone(),
        restricted: vm.restricted,
        trusted: vm.trusted,
        connections: vm.limits.connections,
        forwards: config.forwards(vm),
        parent: vm.parent_cid,
    };
    VmSpec { name: vm.name.clone(), vm: policy, limits: vm.limits.vmci }
}
