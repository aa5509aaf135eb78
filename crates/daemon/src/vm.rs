//! One configured VM while it is served: its place in the fabric, its devices, their sockets.

use std::path::Path;
use std::sync::Arc;

use vmlane_device::vmci::{AddError, CreateError, Fabric, Forward, VmSpec, VmciDevice};
use vmlane_switch::Switch;
use vmlane_transport::{IrqSet, ListenError, Listener, Server, SessionStats};

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
    pub paths: &'h Paths,
}

/// A VM on offer. [`ServedVm::withdraw`] takes it back.
pub struct ServedVm {
    name: String,
    group: String,
    vmci: Option<ServedVmci>,
    pub nics: Vec<ServedNic>,
}

/// Its VMCI device.
struct ServedVmci {
    cid: u32,
    server: Server,
    stats: Arc<SessionStats>,
}

impl ServedVm {
    /// Makes a VM known to the fabric and the switch and opens its sockets.
    pub fn offer(host: &Host<'_>, config: &Config, vm: &VmConfig) -> Result<ServedVm, VmError> {
        let mut served =
            ServedVm { name: vm.name.clone(), group: vm.group.clone(), vmci: None, nics: Vec::new() };
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
            self.vmci = Some(ServedVmci::offer(host, spec(config, vm))?);
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
        self.nics.into_iter().for_each(|nic| nic.withdraw(host.switch));
        // Stays if somebody put something else there.
        let _ = std::fs::remove_dir(host.paths.vm(&self.name));
    }

    /// What changes without a guest's seeing it.
    pub fn update(&mut self, host: &Host<'_>, config: &Config, vm: &VmConfig) {
        if vm.vmci {
            host.fabric.update_vm(spec(config, vm));
        }
        for (number, nic) in self.nics.iter_mut().enumerate() {
            nic.update(host.switch, config, vm, number);
        }
    }

    /// A VMM is connected to one of its devices.
    pub fn attached(&self) -> bool {
        self.vmci.as_ref().is_some_and(|vmci| vmci.server.connected())
            || self.nics.iter().any(ServedNic::attached)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn group(&self) -> &str {
        &self.group
    }

    pub fn cid(&self) -> Option<u32> {
        self.vmci.as_ref().map(|vmci| vmci.cid)
    }

    /// The socket of the VMCI device.
    pub fn socket(&self) -> Option<&Path> {
        self.vmci.as_ref().map(|vmci| vmci.server.path())
    }

    /// Counters of the VMCI device's connection.
    pub fn stats(&self) -> Option<&SessionStats> {
        self.vmci.as_ref().map(|vmci| &*vmci.stats)
    }
}

impl ServedVmci {
    fn offer(host: &Host<'_>, spec: VmSpec) -> Result<ServedVmci, VmError> {
        let (name, cid) = (spec.name.clone(), spec.cid);
        let path = host.paths.vmci(&name).map_err(|cause| VmError::Path { name: name.clone(), cause })?;
        host.fabric.add_vm(spec).map_err(|cause| VmError::Add { name: name.clone(), cause })?;
        let offered = ServedVmci::serve(host.fabric, &path, name, cid);
        if offered.is_err() {
            host.fabric.remove_vm(cid);
        }
        offered
    }

    fn serve(fabric: &Arc<Fabric>, path: &Path, name: String, cid: u32) -> Result<ServedVmci, VmError> {
        let stats = Arc::new(SessionStats::default());
        let irqs = Arc::new(IrqSet::new(stats.clone()));
        let device = VmciDevice::new(fabric.clone(), cid, irqs.clone())
            .map_err(|cause| VmError::Device { name: name.clone(), cause })?;
        let listener = Listener::bind(path).map_err(|cause| VmError::Listen { name: name.clone(), cause })?;
        let served = listener.serve(&name, Box::new(device), irqs, stats.clone());
        let server = served.map_err(|cause| VmError::Threads { name: name.clone(), cause })?;
        Ok(ServedVmci { cid, server, stats })
    }
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
