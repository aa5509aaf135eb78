//! One configured VM while it is served: its place in the fabric, its device, its socket.

use std::path::Path;
use std::sync::Arc;

use vmlane_device::vmci::{AddError, CreateError, Fabric, Forward, VmSpec, VmciDevice};
use vmlane_transport::{IrqSet, ListenError, Listener, Server, SessionStats};

use crate::config::{Config, VmConfig};
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
    #[error("vm {name:?}: {cause}")]
    Listen { name: String, cause: ListenError },
    #[error("vm {name:?}: starting its threads: {cause}")]
    Threads { name: String, cause: std::io::Error },
}

/// A VM on offer. [`ServedVm::withdraw`] takes it back.
pub struct ServedVm {
    name: String,
    cid: u32,
    server: Server,
    stats: Arc<SessionStats>,
}

impl ServedVm {
    /// Makes a VM known to the fabric and opens its socket.
    pub fn offer(fabric: &Arc<Fabric>, paths: &Paths, spec: VmSpec) -> Result<ServedVm, VmError> {
        let (name, cid) = (spec.name.clone(), spec.cid);
        let path = paths.vmci(&name).map_err(|cause| VmError::Path { name: name.clone(), cause })?;
        fabric.add_vm(spec).map_err(|cause| VmError::Add { name: name.clone(), cause })?;
        let offered = ServedVm::serve(fabric, &path, name, cid);
        if offered.is_err() {
            fabric.remove_vm(cid);
        }
        offered
    }

    fn serve(fabric: &Arc<Fabric>, path: &Path, name: String, cid: u32) -> Result<ServedVm, VmError> {
        let stats = Arc::new(SessionStats::default());
        let irqs = Arc::new(IrqSet::new(stats.clone()));
        let device = VmciDevice::new(fabric.clone(), cid, irqs.clone())
            .map_err(|cause| VmError::Device { name: name.clone(), cause })?;
        let listener = Listener::bind(path).map_err(|cause| VmError::Listen { name: name.clone(), cause })?;
        let served = listener.serve(&name, Box::new(device), irqs, stats.clone());
        let server = served.map_err(|cause| VmError::Threads { name: name.clone(), cause })?;
        Ok(ServedVm { name, cid, server, stats })
    }

    /// Ends the session if there is one, removes the socket and its directory, forgets the VM.
    pub fn withdraw(self, fabric: &Fabric, paths: &Paths) {
        self.server.stop();
        fabric.remove_vm(self.cid);
        // Stays if somebody put something else there.
        let _ = std::fs::remove_dir(paths.vm(&self.name));
    }

    /// A VMM is connected.
    pub fn attached(&self) -> bool {
        self.server.connected()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn cid(&self) -> u32 {
        self.cid
    }

    pub fn socket(&self) -> &Path {
        self.server.path()
    }

    pub fn stats(&self) -> &SessionStats {
        &self.stats
    }
}

/// A VM of a configuration as the fabric wants it. Targets of forwards that `config` lacks lead
/// nowhere; a checked configuration has none.
pub fn spec(config: &Config, vm: &VmConfig) -> VmSpec {
    let forward = |forward: &crate::config::ForwardConfig| {
        let target = config.vm(&forward.to_vm)?;
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
