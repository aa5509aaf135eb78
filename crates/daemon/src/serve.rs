//! How the socket of a device is opened.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vmlane_config::paths::TooLong;
use vmlane_config::{Role, VmConfig};
use vmlane_device::irq::Interrupts;
use vmlane_device::pci::PciDevice;
use vmlane_device::vmci::CreateError;
use vmlane_mem::MemoryMap;
use vmlane_state::{Found, Scope};
use vmlane_transport::vfio_user::Prepared;
use vmlane_transport::{Caller, IrqSet, ListenError, Listener, Server, SessionStats, VhostEnd};
use vmlane_vsock::AddError;

use crate::extras::{Attached, PROGRAM};
use crate::host::Host;

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
    #[error("vm {name:?}: the directory of its hybrid socket, {directory}: {cause}")]
    Directory { name: String, directory: PathBuf, cause: std::io::Error },
    #[error("vm {name:?}: uml_pci = true: a PCI bus of User Mode Linux: {PROGRAM}")]
    Bus { name: String },
    #[error("vm {name:?}: starting its threads: {cause}")]
    Threads { name: String, cause: std::io::Error },
}

/// The daemon's end of a vhost-user socket.
pub fn vhost_end(role: Role, path: &Path) -> Result<VhostEnd, ListenError> {
    Ok(match role {
        Role::Server => VhostEnd::Listens(Listener::bind(path)?),
        Role::Client => VhostEnd::Calls(Caller::new(path)?),
    })
}

/// How a PCI function is attached, before there is one: it raises its interrupts here.
pub enum Attachment {
    VfioUser(Arc<IrqSet>),
    /// See [`crate::extras`].
    Bus(Box<dyn Attached>),
}

/// The one name of a VM's device: in the log, of its port, and of the threads that serve it.
pub fn device_name(vm: &str, device: impl std::fmt::Display) -> String {
    format!("{vm}/{device}")
}

/// What an operator is shown of a device, in a word. `has_run`: see [`SessionStats::has_run`]; None where
/// that is not known.
pub fn device_state(attached: bool, ready: bool, has_run: Option<bool>) -> &'static str {
    match (attached, ready, has_run) {
        (false, ..) => "absent",
        (_, true, _) => "ready",
        (.., Some(false)) => "booting",
        (.., Some(true)) => "stopped",
        (.., None) => "no driver",
    }
}

/// Where a PCI function is served.
pub struct PciSocket<'s> {
    pub vm: &'s str,
    pub path: &'s Path,
    /// Its records' name in the store.
    pub scope: &'s str,
    /// See [`device_name`].
    pub device: &'s str,
}

impl Attachment {
    pub fn new(host: &Host, vm: &VmConfig, stats: &Arc<SessionStats>) -> Result<Attachment, VmError> {
        if !vm.uml_pci {
            return Ok(Attachment::VfioUser(Arc::new(IrqSet::new(stats.clone()))));
        }
        let bus = host.extras.bus.as_ref().ok_or_else(|| VmError::Bus { name: vm.name.clone() })?;
        let attached = bus.attach(stats.clone());
        attached.map(Attachment::Bus).map_err(|cause| VmError::Threads { name: vm.name.clone(), cause })
    }

    pub fn interrupts(&self) -> Arc<dyn Interrupts> {
        match self {
            Attachment::VfioUser(irqs) => irqs.clone(),
            Attachment::Bus(attached) => attached.interrupts(),
        }
    }

    /// Serves `device`; with the memory of a VMM that a previous daemon served.
    pub fn serve(
        self,
        host: &Host,
        socket: &PciSocket<'_>,
        mut device: Box<dyn PciDevice>,
        stats: Arc<SessionStats>,
        found: &mut Found,
    ) -> Result<(Server, Option<MemoryMap>), VmError> {
        let PciSocket { vm, path, scope, device: name } = *socket;
        if let Some(faults) = &host.extras.faults {
            device = faults.function(name, device);
        }
        let not_listening = |cause| VmError::Listen { name: vm.to_owned(), cause };
        let (server, map) = match self {
            Attachment::VfioUser(irqs) => {
                let (listener, scope, prepared) =
                    listen(host, path, scope, &irqs, found).map_err(not_listening)?;
                let map = prepared.as_ref().map(|prepared| prepared.map.clone());
                (listener.serve_on(name, device, irqs, stats, scope, prepared), map)
            }
            Attachment::Bus(attached) => {
                let end = vhost_end(Role::Server, path).map_err(not_listening)?;
                (attached.serve(name, device, end), None)
            }
        };
        let server = server.map_err(|cause| VmError::Threads { name: vm.to_owned(), cause })?;
        Ok((server, map))
    }
}

/// A device's socket and session: a previous daemon's, as far as it left them, and where they are held for
/// the next daemon.
fn listen(
    host: &Host,
    path: &Path,
    name: &str,
    irqs: &IrqSet,
    found: &mut Found,
) -> Result<(Listener, Scope, Option<Prepared>), ListenError> {
    let scope = Scope::new(host.store.clone(), name);
    let mut found = found.scope(name);
    let listener = held_listener(&scope, path, name, &mut found)?;
    let prepared = Prepared::from(found.scope("s"), &scope, irqs);
    Ok((listener, scope, prepared))
}

/// The same of a vhost-user device that survives: its end, where it is held, and what a previous daemon had
/// of its session.
pub fn held_vhost_end(
    host: &Host,
    role: Role,
    path: &Path,
    name: &str,
    found: &mut Found,
) -> Result<(VhostEnd, Scope, Found), ListenError> {
    let scope = Scope::new(host.store.clone(), name);
    let mut found = found.scope(name);
    let end = match role {
        Role::Server => VhostEnd::Listens(held_listener(&scope, path, name, &mut found)?),
        Role::Client => VhostEnd::Calls(Caller::new(path)?),
    };
    Ok((end, scope, found.scope("s")))
}

/// A listening socket, a previous daemon's if it left one, held for the next one.
fn held_listener(scope: &Scope, path: &Path, name: &str, found: &mut Found) -> Result<Listener, ListenError> {
    if let Some(listener) = found.take("listen").and_then(|socket| Listener::adopt(path, socket)) {
        return Ok(listener);
    }
    let listener = Listener::bind(path)?;
    if let Err(error) = scope.put("listen", listener.socket().as_fd()) {
        tracing::warn!(name, %error, "a listening socket is not held for the next daemon");
    }
    Ok(listener)
}
