//! What the daemon and the helper for OVN say to each other.

use std::collections::{BTreeMap, HashSet};

use vmlane_api::{Failure, OvnEntries, OvnEntry, OvnReport, VmStatus};
use vmlane_config::ovn::uplink_name;

use super::{Daemon, State};
use crate::vm::ServedVm;

/// The NIC's number, of its name.
fn number(nic: &str) -> usize {
    nic.trim_start_matches("nic").parse().unwrap_or_default()
}

impl State {
    /// The same with what is known of ports of OVN's.
    pub(super) fn with_ovn(&self, vm: &ServedVm, mut status: VmStatus) -> VmStatus {
        for (nic, shown) in vm.nics.iter().zip(&mut status.nics) {
            let Some(port) = nic.ovn() else { continue };
            let whole = self.uplinks.is_whole(&uplink_name(vm.name(), number(nic.name())));
            shown.ovn = Some(self.ovn.status(vm.name(), nic.name(), port, whole));
        }
        status
    }
}

impl Daemon {
    /// Takes in what the helper says, and tells which ports are to be up.
    pub(super) fn ovn(&self, reports: Vec<OvnReport>) -> Result<OvnEntries, Failure> {
        let ports = self.switch.ports();
        let down: HashSet<_> = ports.iter().filter(|port| port.link_down).map(|port| port.id).collect();
        let state = &mut *self.state.lock();
        let attached = state.uplinks.attached_direct();
        let mut entries = BTreeMap::new();
        for vm in &state.vms {
            for nic in vm.nics.iter().filter(|nic| nic.ovn().is_some()) {
                let uplink = uplink_name(vm.name(), number(nic.name()));
                let up = attached.contains(uplink.as_str()) && nic.is_up(&down);
                entries.insert((vm.name().to_owned(), nic.name().to_owned()), (uplink, up));
            }
        }
        state.ovn.take(reports, |entry| entries.contains_key(entry))?;
        let whole = state.ovn.whole().into_iter();
        let whole: HashSet<&str> = whole.filter_map(|entry| Some(entries.get(entry)?.0.as_str())).collect();
        state.uplinks.set_whole(&self.switch, |name| whole.contains(name));
        let entries = entries.into_iter().map(|((vm, nic), (_, up))| OvnEntry { vm, nic, up }).collect();
        Ok(OvnEntries { entries })
    }
}
