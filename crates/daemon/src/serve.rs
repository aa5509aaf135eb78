//! What VMs are served with, and how the socket of a device is opened.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vmlane_device::virtio::vsock::VsockWorker;
use vmlane_device::vmci::{AddError, CreateError, Hypervisor};
use vmlane_host::sockets::HostSockets;
use vmlane_state::{Found, Scope, Store};
use vmlane_switch::Switch;
use vmlane_transport::vfio_user::Prepared;
use vmlane_transport::{Caller, IrqSet, ListenError, Listener, VhostEnd};
use vmlane_vsock::Router;

use crate::config::Role;
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
    #[error("vm {name:?}: the directory of its hybrid socket, {directory}: {cause}")]
    Directory { name: String, directory: PathBuf, cause: std::io::Error },
    #[error("vm {name:?}: starting its threads: {cause}")]
    Threads { name: String, cause: std::io::Error },
}

/// What VMs are served with.
pub struct Host<'h> {
    pub router: &'h Arc<Router>,
    pub hypervisor: &'h Arc<Hypervisor>,
    pub switch: &'h Arc<Switch>,
    pub vsock_worker: &'h Arc<VsockWorker>,
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

/// A device's socket and session: a previous daemon's, as far as it left them, and where they are held for
/// the next daemon.
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
                tracing::warn!(name, %error, "a listening socket is not held for the next daemon");
            }
            listener
        }
    };
    let prepared = Prepared::from(found.scope("s"), &scope, irqs);
    Ok((listener, scope, prepared))
}
