//! One configured VM while it is served: its place in the fabric, its devices, their sockets.

use std::path::Path;
use std::sync::Arc;

use vmlane_device::vmci::{AddError, CreateError, Fabric, Forward, VmSpec, VmciDevice};
use vmlane_switch::Switch;
use vmlane_transport::{IrqSet, ListenError, Listener, RingLines, Server, SessionStats};
use vmlane_vsock::{Hub, VsockDevice, VsockVm};

use crate::config::{Config, VmConfig};
use crate::nic::ServedNic;
use crate::paths::{Paths, TooLong};

/// Why a VM cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    #[error("vm {name:?}: {cause}")]
    Path { name: String, cause: TooLong },
    #[error("vm {name:?}: {cause}")]
    Add { name: String, cause: AddError },
    #[error("vm {name:?}: {cause}")]
    Device { name: String, cause: CreateError },
    #[error("vm {name:?}: nic {number}: {cause}")]
    Nic { name: String, number: usize, cause: String },
    #[error("vm {name:?}: {cause}")]
    Listen { name: String, cause: ListenError },
    #[error("vm {name:?}: starting its threads: {cause}")]
    Threads { name: String, cause: std::io::Error },
}

/// What VMs are served with.
pub struct Host<'h> {
    pub fabric: &'h Arc<Fabric>,
    pub switch: &'h Arc<Switch>,
    pub hub: &'h Arc<Hub>,
    pub paths: &'h Paths,
}

/// A VM on offer. [`ServedVm::withdraw`] takes it back.
pub struct ServedVm {
    name: String,
    group: String,
    vmci: Option<ServedVsock>,
    virtio: Option<ServedVsock>,
    pub nics: Vec<ServedNic>,
}

/// Its VMCI or virtio-vsock device.
struct ServedVsock {
    cid: u32,
    server: Server,
    stats: Arc<SessionStats>,
}

impl ServedVm {
    /// Makes a VM known to the fabric and the switch and opens its sockets.
    pub fn offer(host: &Host<'_>, config: &Config, vm: &VmConfig) -> Result<ServedVm, VmError> {
        let mut served = ServedVm {
            name: vm.name.clone(),
            group: vm.group.clone(),
            vmci: None,
            virtio: None,
            nics: Vec::new(),
        };
        match served.fill(host, config, vm) {
            Ok(()) => Ok(served),
            Err(error) => {
                served.withdraw(host);
                Err(error)
            }
        }
    }

    fn fill(&mut self, host: &Host<'_>, config: &Config, vm: &VmConfig) -> Result<(), VmError> {
        if vm.vmci {
            self.vmci = Some(ServedVsock::offer(host, spec(config, vm))?);
        }
        if vm.virtio_vsock {
            self.virtio = Some(ServedVsock::offer_virtio(host, vm)?);
        }
        for number in 0..vm.nics.len() {
            self.nics.push(ServedNic::offer(host.switch, host.paths, config, vm, number)?);
        }
        Ok(())
    }

    /// Ends the sessions, removes the sockets and their directory, forgets the VM.
    pub fn withdraw(self, host: &Host<'_>) {
        if let Some(vmci) = self.vmci {
            vmci.server.stop();
            host.fabric.remove_vm(vmci.cid);
        }
        if let Some(virtio) = self.virtio {
            virtio.server.stop();
            host.hub.remove(virtio.cid);
        }
        self.nics.into_iter().for_each(|nic| nic.withdraw(host.switch));
        // Stays if somebody put something else there.
        let _ = std::fs::remove_dir(host.paths.vm(&self.name));
    }

    /// What changes without a guest's seeing it.
    pub fn update(&mut self, host: &Host<'_>, config: &Config, vm: &VmConfig) {
        if vm.vmci {
            host.fabric.update_vm(spec(config, vm));
        }
        if vm.virtio_vsock {
            host.hub.add(vsock_vm(vm));
        }
        for (number, nic) in self.nics.iter_mut().enumerate() {
            nic.update(host.switch, config, vm, number);
        }
    }

    /// A VMM is connected to one of its devices.
    pub fn attached(&self) -> bool {
        self.vsock().is_some_and(|vsock| vsock.server.connected())
            || self.nics.iter().any(ServedNic::attached)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn group(&self) -> &str {
        &self.group
    }

    pub fn cid(&self) -> Option<u32> {
        self.vsock().map(|vsock| vsock.cid)
    }

    fn vsock(&self) -> Option<&ServedVsock> {
        self.vmci.as_ref().or(self.virtio.as_ref())
    }

    /// The socket of the VMCI or virtio-vsock device.
    pub fn socket(&self) -> Option<&Path> {
        self.vsock().map(|vsock| vsock.server.path())
    }

    /// Counters of that device's connection.
    pub fn stats(&self) -> Option<&SessionStats> {
        self.vsock().map(|vsock| &*vsock.stats)
    }
}

impl ServedVsock {
    fn offer_virtio(host: &Host<'_>, vm: &VmConfig) -> Result<ServedVsock, VmError> {
        let name = || vm.name.clone();
        let path = host.paths.vsock(&vm.name).map_err(|cause| VmError::Path { name: name(), cause })?;
        let listener = Listener::bind(path).map_err(|cause| VmError::Listen { name: name(), cause })?;
        let threads = |cause| VmError::Threads { name: name(), cause };
        let lines = Arc::new(RingLines::new(VsockDevice::QUEUES).map_err(threads)?);
        let stats = Arc::new(SessionStats::default());
        host.hub.add(vsock_vm(vm));
        let device = Box::new(VsockDevice::new(vm.cid, host.hub.clone(), lines.clone()));
        match listener.serve_vhost(&format!("{}-vs", vm.name), device, lines, stats.clone()) {
            Ok(server) => Ok(ServedVsock { cid: vm.cid, server, stats }),
            Err(cause) => {
                host.hub.remove(vm.cid);
                Err(threads(cause))
            }
        }
    }

    fn offer(host: &Host<'_>, spec: VmSpec) -> Result<ServedVsock, VmError> {
        let (name, cid) = (spec.name.clone(), spec.cid);
        let path = host.paths.vmci(&name).map_err(|cause| VmError::Path { name: name.clone(), cause })?;
        host.fabric.add_vm(spec).map_err(|cause| VmError::Add { name: name.clone(), cause })?;
        let offered = ServedVsock::serve(host.fabric, &path, name, cid);
        if offered.is_err() {
            host.fabric.remove_vm(cid);
        }
        offered
    }

    fn serve(fabric: &Arc<Fabric>, path: &Path, name: String, cid: u32) -> Result<ServedVsock, VmError> {
        let stats = Arc::new(SessionStats::default());
        let irqs = Arc::new(IrqSet::new(stats.clone()));
        let device = VmciDevice::new(fabric.clone(), cid, irqs.clone())
            .map_err(|cause| VmError::Device { name: name.clone(), cause })?;
        let listener = Listener::bind(path).map_err(|cause| VmError::Listen { name: name.clone(), cause })?;
        let served = listener.serve(&name, Box::new(device), irqs, stats.clone());
        let server = served.map_err(|cause| VmError::Threads { name: name.clone(), cause })?;
        Ok(ServedVsock { cid, server, stats })
    }
}

/// A VM with a virtio-vsock device as the hub wants it.
fn vsock_vm(vm: &VmConfig) -> VsockVm {
    VsockVm { cid: vm.cid, group: vm.group.clone(), connections: vm.limits.connections }
}

/// A VM of a configuration as the fabric wants it. Targets of forwards that `config` lacks lead
/// nowhere; a checked configuration has none.
pub fn spec(config: &Config, vm: &VmConfig) -> VmSpec {
    let forward = |forward: &crate::config::ForwardConfig| {
        let target = config.vm(&forward.to_vm).filter(|target| target.vmci)?;
        Some(Forward { port: forward.port, to_cid: target.cid, to_port: forward.to_port })
    };
    VmSpec {
        name: vm.name.clone(),
        cid: vm.cid,
        group: vm.group.clone(),
        forwards: vm.forwards.iter().filter_map(forward).collect(),
        restricted: vm.restricted,
        trusted: vm.trusted,
        limits: vm.limits,
    }
}
