//! AF_VSOCK: the family, its transports and the devices that they would use.

use serde::{Deserialize, Serialize};

use super::files;
use crate::sys;

/// Modules of the family and of its transports.
const MODULES: [&str; 8] = [
    "vsock",
    "vsock_loopback",
    "vmw_vmci",
    "vmw_vsock_vmci_transport",
    "vmw_vsock_virtio_transport",
    "hv_sock",
    "vhost_vsock",
    "vsock_diag",
];

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Vsock {
    /// Whether a socket of the family can be made.
    pub family: bool,
    pub cid: Option<u32>,
    /// Those of the family and its transports that are loaded or built in.
    pub modules: Vec<String>,
    /// A VMCI device, and a virtio-vsock device.
    pub has_vmci: bool,
    pub has_virtio: bool,
}

pub fn read() -> Vsock {
    let (cid, family) = sys::vsock();
    let loaded = |name: &&&str| std::path::Path::new("/sys/module").join(name).exists();
    Vsock {
        family,
        cid,
        modules: MODULES.iter().filter(loaded).map(|name| (*name).to_owned()).collect(),
        has_vmci: has_device("/sys/bus/pci/devices", |path| {
            files::line(format!("{path}/vendor")).as_deref() == Some("0x15ad")
                && files::line(format!("{path}/device")).as_deref() == Some("0x0740")
        }),
        // Of a virtio device, "device" is its kind (19 is a socket device).
        has_virtio: has_device("/sys/bus/virtio/devices", |path| {
            files::line(format!("{path}/device")).as_deref() == Some("0x0013")
        }),
    }
}

fn has_device(bus: &str, is_it: impl Fn(&str) -> bool) -> bool {
    files::names(bus, 1024).iter().any(|name| is_it(&format!("{bus}/{name}")))
}
