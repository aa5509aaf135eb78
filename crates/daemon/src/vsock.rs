//! The VMCI or virtio-vsock device of a VM while it is served: its CID, its device, its sockets.

use std::path::Path;
use std::sync::Arc;

use vmlane_device::pci::{FaultyDevice, PciDevice};
use vmlane_device::virtio::vsock::VsockDevice;
use vmlane_device::vmci::{VmSpec, VmciDevice};
use vmlane_host::sockets::Guest;
use vmlane_mem::MemoryMap;
use vmlane_port::wrap::Trigger;
use vmlane_state::Found;
use vmlane_transport::{RingLines, Server, SessionStats};
use vmlane_vsock::{Forward, HOST, Vm};

use crate::config::{Config, VmConfig};
use crate::serve::{Attachment, Host, PciSocket, VmError, vhost_end};

/// Its VMCI or virtio-vsock device.
pub struct ServedVsock {
    pub cid: u32,
    pub server: Server,
    pub stats: Arc<SessionStats>,
    /// Where `fault_injection` is on.
    pub trigger: Option<Arc<Trigger>>,
}

impl ServedVsock {
    pub fn offer_virtio(host: &Host<'_>, config: &Config, vm: &VmConfig) -> Result<ServedVsock, VmError> {
        let name = || vm.name.clone();
        let path = host.paths.vsock(&vm.name).map_err(|cause| VmError::Path { name: name(), cause })?;
        let uds = host.paths.uds(&vm.name).map_err(|cause| VmError::Path { name: name(), cause })?;
        let end = vhost_end(vm.vsock_role, &path);
        let end = end.map_err(|cause| VmError::Listen { name: name(), cause })?;
        let threads = |cause| VmError::Threads { name: name(), cause };
        let lines = Arc::new(RingLines::new(VsockDevice::QUEUES).map_err(threads)?);
        let stats = Arc::new(SessionStats::default());
        stats.memory.set_limit(config.memory_limit(vm));
        let spec = spec(config, vm);
        let policy = spec.vm.clone();
        host.hypervisor.add_vm(spec).map_err(|cause| VmError::Add { name: name(), cause })?;
        let worker = host.vsock_workers.add(policy);
        host.router.set_endpoint(vm.cid, worker.endpoint(vm.cid));
        let device = Box::new(VsockDevice::new(vm.cid, worker, lines.clone()));
        let served = end.serve(&format!("{}-vs", vm.name), device, lines, stats.clone());
        let served = served.map_err(threads).and_then(|server| {
            let guest = Guest { cid: vm.cid, group: vm.group.clone(), uds };
            match host.sockets.add_guest(guest) {
                Ok(()) => Ok(ServedVsock { cid: vm.cid, server, stats, trigger: None }),
                Err(cause) => {
                    server.stop();
                    Err(VmError::Uds { name: name(), cause })
                }
            }
        });
        if served.is_err() {
            host.router.clear_endpoint(vm.cid);
            host.vsock_workers.remove(vm.cid);
            host.hypervisor.remove_vm(vm.cid);
        }
        served
    }

    pub fn offer(
        host: &Host<'_>,
        config: &Config,
        vm: &VmConfig,
        found: &mut Found,
    ) -> Result<(ServedVsock, Option<MemoryMap>), VmError> {
        let spec = spec(config, vm);
        let trigger = config.daemon.fault_injection.then(Arc::default);
        let (name, cid) = (spec.name.clone(), spec.vm.cid);
        let path = host.paths.vmci(&name).map_err(|cause| VmError::Path { name: name.clone(), cause })?;
        let uds = host.paths.uds(&name).map_err(|cause| VmError::Path { name: name.clone(), cause })?;
        let group = spec.vm.group.clone();
        host.hypervisor.add_vm(spec).map_err(|cause| VmError::Add { name: name.clone(), cause })?;
        let stats = Arc::new(SessionStats::default());
        stats.memory.set_limit(config.memory_limit(vm));
        let offered = ServedVsock::serve(host, &path, vm, stats, trigger, found);
        let offered =
            offered.and_then(|(served, map)| match host.sockets.add_guest(Guest { cid, group, uds }) {
                Ok(()) => Ok((served, map)),
                Err(cause) => {
                    served.server.stop();
                    Err(VmError::Uds { name, cause })
                }
            });
        if offered.is_err() {
            host.hypervisor.remove_vm(cid);
        }
        offered
    }

    fn serve(
        host: &Host<'_>,
        path: &Path,
        vm: &VmConfig,
        stats: Arc<SessionStats>,
        trigger: Option<Arc<Trigger>>,
        found: &mut Found,
    ) -> Result<(ServedVsock, Option<MemoryMap>), VmError> {
        let (name, cid) = (vm.name.as_str(), vm.cid);
        let attachment = Attachment::new(vm, &stats)?;
        let device = VmciDevice::new(host.hypervisor.clone(), cid, attachment.interrupts())
            .map_err(|cause| VmError::Device { name: name.to_owned(), cause })?;
        let mut device: Box<dyn PciDevice> = Box::new(device);
        if let Some(trigger) = &trigger {
            device = Box::new(FaultyDevice::new(device, trigger.clone()));
        }
        let socket = PciSocket { vm: name, path, scope: &format!("{name}.vmci"), thread: name };
        let (server, map) = attachment.serve(host, &socket, device, stats.clone(), found)?;
        Ok((ServedVsock { cid, server, stats, trigger }, map))
    }
}

/// A VM of a configuration as the hypervisor wants it. Targets of forwards that `config` lacks lead
/// nowhere; a checked configuration has none.
pub fn spec(config: &Config, vm: &VmConfig) -> VmSpec {
    let forward = |forward: &crate::config::ForwardConfig| {
        let to_cid = match &forward.to_vm {
            Some(to_vm) => match config.vm(to_vm) {
                Some(target) => Some(target.cid).filter(|&cid| cid != 0)?,
                // The CID of another host.
                None => to_vm.parse().ok().filter(|_| config.route.is_some())?,
            },
            None => HOST,
        };
        Some(Forward { port: forward.port, to_cid, to_port: forward.to_port })
    };
    let policy = Vm {
        cid: vm.cid,
        group: vm.group.clone(),
        restricted: vm.restricted,
        trusted: vm.trusted,
        connections: vm.limits.connections,
        forwards: vm.forwards.iter().filter_map(forward).collect(),
        parent: vm.parent_cid,
    };
    VmSpec { name: vm.name.clone(), vm: policy, limits: vm.limits.vmci }
}
