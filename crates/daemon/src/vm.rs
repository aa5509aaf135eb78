//! One configured VM while it is served: its place in the fabric, its devices, their sockets.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use vmlane_device::virtio::vsock::{Hub, VsockDevice, VsockVm};
use vmlane_device::vmci::{AddError, CreateError, Fabric, Forward, VmSpec, VmciDevice};
use vmlane_host::sockets::{Guest, HostSockets};
use vmlane_mem::MemoryMap;
use vmlane_state::{Found, Scope, Store};
use vmlane_switch::Switch;
use vmlane_transport::vfio_user::Prepared;
use vmlane_transport::{Caller, IrqSet, ListenError, Listener, RingLines, Server, SessionStats, VhostEnd};

use crate::config::{Config, Role, VmConfig};
use crate::faults::FaultRecord;
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
    #[error("vm {name:?}: its Unix socket for host programs: {cause}")]
    Uds { name: String, cause: std::io::Error },
    #[error("vm {name:?}: starting its threads: {cause}")]
    Threads { name: String, cause: std::io::Error },
}

/// What VMs are served with.
pub struct Host<'h> {
    pub fabric: &'h Arc<Fabric>,
    pub switch: &'h Arc<Switch>,
    pub hub: &'h Arc<Hub>,
    pub paths: &'h Paths,
    pub sockets: &'h HostSockets,
    pub store: &'h Arc<dyn Store>,
}

/// The daemon's end of a vhost-user socket.
pub fn vhost_end(role: Role, path: &Path) -> Result<VhostEnd, ListenError> {
    Ok(match role {
        Role::Server => VhostEnd::Listens(Listener::bind(path)?),
        Role::Client => VhostEnd::Calls(Caller::new(path)?),
    })
}

/// A device's socket and session: a predecessor's, as far as it left them, and where they are held for
/// a successor.
pub fn listen(
    host: &Host<'_>,
    path: &Path,
    name: &str,
    irqs: &IrqSet,
    found: &mut Found,
) -> Result<(Listener, Scope, Option<Prepared>), ListenError> {
    let scope = Scope::new(host.store.clone(), name);
    let mut found = found.scope(name);
    let adopted = found.take("listen").and_then(|socket| Listener::adopt(path, socket));
    let listener = match adopted {
        Some(listener) => listener,
        None => {
            let listener = Listener::bind(path)?;
            if let Err(error) = scope.put("listen", listener.socket().as_fd()) {
                tracing::warn!(name, %error, "a listening socket is not held for a successor");
            }
            listener
        }
    };
    let prepared = Prepared::from(found.scope("s"), &scope, irqs);
    Ok((listener, scope, prepared))
}

/// A VM on offer. [`ServedVm::withdraw`] takes it back.
pub struct ServedVm {
    name: String,
    group: String,
    vmci: Option<ServedVsock>,
    virtio: Option<ServedVsock>,
    pub nics: Vec<ServedNic>,
    pub record: FaultRecord,
    /// Its devices are out of service; their sockets are answered.
    pub quarantined: bool,
}

/// Its VMCI or virtio-vsock device.
struct ServedVsock {
    cid: u32,
    server: Server,
    stats: Arc<SessionStats>,
}

impl ServedVm {
    /// Makes a VM known to the fabric and the switch and opens its sockets.
    /// Also returns the memory that a predecessor's VMCI device had, by context id.
    pub fn offer(
        host: &Host<'_>,
        config: &Config,
        vm: &VmConfig,
        found: &mut Found,
    ) -> Result<(ServedVm, Option<(u32, MemoryMap)>), VmError> {
        let mut served = ServedVm {
            name: vm.name.clone(),
            group: vm.group.clone(),
            vmci: None,
            virtio: None,
            nics: Vec::new(),
            record: FaultRecord::default(),
            quarantined: false,
        };
        match served.fill(host, config, vm, found) {
            Ok(map) => Ok((served, map)),
            Err(error) => {
                served.withdraw(host);
                Err(error)
            }
        }
    }

    fn fill(
        &mut self,
        host: &Host<'_>,
        config: &Config,
        vm: &VmConfig,
        found: &mut Found,
    ) -> Result<Option<(u32, MemoryMap)>, VmError> {
        let mut known = None;
        if vm.vmci {
            let (vmci, map) = ServedVsock::offer(host, spec(config, vm), found)?;
            known = map.map(|map| (vmci.cid, map));
            self.vmci = Some(vmci);
        }
        if vm.virtio_vsock {
            self.virtio = Some(ServedVsock::offer_virtio(host, config, vm)?);
        }
        for number in 0..vm.nics.len() {
            self.nics.push(ServedNic::offer(host, config, vm, number, found)?);
        }
        Ok(known)
    }

    /// VMMs that a predecessor served are served from now on.
    pub fn go(&self) {
        self.vmci.iter().for_each(|vmci| vmci.server.go());
        self.nics.iter().for_each(ServedNic::go);
    }

    /// Ends the sessions, removes the sockets and their directory, forgets the VM.
    pub fn withdraw(self, host: &Host<'_>) {
        if let Some(vmci) = self.vmci {
            vmci.server.stop();
            host.sockets.remove_guest(vmci.cid);
            host.fabric.remove_vm(vmci.cid);
            host.store.remove_all(&format!("{}.vmci/", self.name));
        }
        if let Some(virtio) = self.virtio {
            virtio.server.stop();
            host.sockets.remove_guest(virtio.cid);
            host.fabric.clear_endpoint(virtio.cid);
            host.hub.remove(virtio.cid);
            host.fabric.remove_vm(virtio.cid);
        }
        self.nics.into_iter().for_each(|nic| nic.withdraw(host.switch));
        host.store.remove_all(&format!("{}.nic", self.name));
        // Stays if somebody put something else there.
        let _ = std::fs::remove_dir(host.paths.vm(&self.name));
    }

    /// What changes without a guest's seeing it.
    pub fn update(&mut self, host: &Host<'_>, config: &Config, vm: &VmConfig) {
        if vm.vmci {
            host.fabric.update_vm(spec(config, vm));
        }
        if vm.virtio_vsock {
            host.fabric.update_vm(spec(config, vm));
            host.hub.add(vsock_vm(config, vm));
        }
        for (number, nic) in self.nics.iter_mut().enumerate() {
            nic.update(host.switch, config, vm, number);
        }
    }

    /// Contained faults of its devices so far, in their sessions and in the switch's worker.
    pub fn faults(&self, switch: &Switch) -> u64 {
        let vsock = self.vsock().map_or(0, |vsock| vsock.stats.panics());
        vsock + self.nics.iter().map(|nic| nic.faults(switch)).sum::<u64>()
    }

    /// Takes its devices out of service, or back into it. Waits for the workers.
    pub fn set_quarantined(&mut self, host: &Host<'_>, on: bool) {
        if let Some(vmci) = &self.vmci {
            host.fabric.set_quarantined(vmci.cid, on);
        }
        self.nics.iter().for_each(|nic| nic.set_quarantined(host.switch, on));
        self.quarantined = on;
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
    fn offer_virtio(host: &Host<'_>, config: &Config, vm: &VmConfig) -> Result<ServedVsock, VmError> {
        let name = || vm.name.clone();
        let path = host.paths.vsock(&vm.name).map_err(|cause| VmError::Path { name: name(), cause })?;
        let uds = host.paths.uds(&vm.name).map_err(|cause| VmError::Path { name: name(), cause })?;
        let end = vhost_end(vm.vsock_role, &path);
        let end = end.map_err(|cause| VmError::Listen { name: name(), cause })?;
        let threads = |cause| VmError::Threads { name: name(), cause };
        let lines = Arc::new(RingLines::new(VsockDevice::QUEUES).map_err(threads)?);
        let stats = Arc::new(SessionStats::default());
        let add = host.fabric.add_vm(spec(config, vm));
        add.map_err(|cause| VmError::Add { name: name(), cause })?;
        host.fabric.set_endpoint(vm.cid, host.hub.party(vm.cid));
        host.hub.add(vsock_vm(config, vm));
        let device = Box::new(VsockDevice::new(vm.cid, host.hub.clone(), lines.clone()));
        let served = end.serve(&format!("{}-vs", vm.name), device, lines, stats.clone());
        let served = served.map_err(threads).and_then(|server| {
            let guest = Guest { cid: vm.cid, group: vm.group.clone(), uds };
            match host.sockets.add_guest(guest) {
                Ok(()) => Ok(ServedVsock { cid: vm.cid, server, stats }),
                Err(cause) => {
                    server.stop();
                    Err(VmError::Uds { name: name(), cause })
                }
            }
        });
        if served.is_err() {
            host.fabric.clear_endpoint(vm.cid);
            host.hub.remove(vm.cid);
            host.fabric.remove_vm(vm.cid);
        }
        served
    }

    fn offer(
        host: &Host<'_>,
        spec: VmSpec,
        found: &mut Found,
    ) -> Result<(ServedVsock, Option<MemoryMap>), VmError> {
        let (name, cid) = (spec.name.clone(), spec.cid);
        let path = host.paths.vmci(&name).map_err(|cause| VmError::Path { name: name.clone(), cause })?;
        let uds = host.paths.uds(&name).map_err(|cause| VmError::Path { name: name.clone(), cause })?;
        let group = spec.group.clone();
        host.fabric.add_vm(spec).map_err(|cause| VmError::Add { name: name.clone(), cause })?;
        let offered = ServedVsock::serve(host, &path, name.clone(), cid, found);
        let offered =
            offered.and_then(|(served, map)| match host.sockets.add_guest(Guest { cid, group, uds }) {
                Ok(()) => Ok((served, map)),
                Err(cause) => {
                    served.server.stop();
                    Err(VmError::Uds { name, cause })
                }
            });
        if offered.is_err() {
            host.fabric.remove_vm(cid);
        }
        offered
    }

    fn serve(
        host: &Host<'_>,
        path: &Path,
        name: String,
        cid: u32,
        found: &mut Found,
    ) -> Result<(ServedVsock, Option<MemoryMap>), VmError> {
        let stats = Arc::new(SessionStats::default());
        let irqs = Arc::new(IrqSet::new(stats.clone()));
        let device = VmciDevice::new(host.fabric.clone(), cid, irqs.clone())
            .map_err(|cause| VmError::Device { name: name.clone(), cause })?;
        let (listener, scope, prepared) = listen(host, path, &format!("{name}.vmci"), &irqs, found)
            .map_err(|cause| VmError::Listen { name: name.clone(), cause })?;
        let map = prepared.as_ref().map(|prepared| prepared.map.clone());
        let served = listener.serve_on(&name, Box::new(device), irqs, stats.clone(), scope, prepared);
        let server = served.map_err(|cause| VmError::Threads { name: name.clone(), cause })?;
        Ok((ServedVsock { cid, server, stats }, map))
    }
}

/// A VM with a virtio-vsock device as the hub wants it.
fn vsock_vm(config: &Config, vm: &VmConfig) -> VsockVm {
    let VmSpec { cid, group, forwards, restricted, trusted, limits, .. } = spec(config, vm);
    let connections = limits.connections;
    VsockVm { cid, group, restricted, trusted, connections, forwards, parent: vm.parent_cid }
}

/// A VM of a configuration as the fabric wants it. Targets of forwards that `config` lacks lead
/// nowhere; a checked configuration has none.
pub fn spec(config: &Config, vm: &VmConfig) -> VmSpec {
    let forward = |forward: &crate::config::ForwardConfig| {
        let target = config.vm(&forward.to_vm).filter(|target| target.cid != 0)?;
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
