//! What the worker keeps of each VM.

use std::collections::BTreeMap;
use std::sync::Arc;

use vmlane_worker::Account;

use super::patience::Patience;
use super::port::Port;
use super::stats::GuestStats;

/// A VM with such a device.
pub struct Vm {
    pub spec: vmlane_vsock::Vm,
    /// Its rings, while they run.
    pub port: Option<Box<Port>>,
    /// It has had no buffers for longer than a packet may wait.
    pub stalled: bool,
    /// How long it has waited for others.
    pub patience: Patience,
    /// What its rings cause is charged to it.
    pub account: Account,
    pub stats: Arc<GuestStats>,
}

/// By CID.
pub type Vms = BTreeMap<u32, Vm>;

/// A VM's rings, if they run.
pub fn port_of(vms: &mut Vms, cid: u32) -> Option<&mut Port> {
    vms.get_mut(&cid)?.port.as_deref_mut()
}
