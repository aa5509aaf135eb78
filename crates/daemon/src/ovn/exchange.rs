//! The messages of the daemon and the helper for OVN.

use std::collections::{BTreeMap, HashSet};

use vmlane_api::{Failure, OvnEntries, OvnEntry, OvnReport, VmStatus};

use crate::host::Host;
use crate::served::Served;
use crate::vm::ServedVm;
use vmlane_config::ovn::uplink_name;

/// The NIC's number, of its name.
fn number(nic: &str) -> usize {
    nic.trim_start_matches("nic").parse().unwrap_or_default()
}

/// The same with what is known of ports of OVN's.
pub fn with_ovn(served: &Served, vm: &ServedVm, mut status: VmStatus) -> VmStatus {
    for (nic, shown) in vm.nics.iter().zip(&mut status.nics) {
        let Some(port) = nic.ovn() else { continue };
        let whole = served.uplinks.is_whole(&uplink_name(vm.name(), number(nic.name())));
        shown.ovn = Some(served.ovn.status(vm.name(), nic.name(), port, whole));
    }
    status
}

/// Takes in what the helper reports, and returns which ports are to be up.
pub fn exchange(served: &mut Served, host: &Host, reports: Vec<OvnReport>) -> Result<OvnEntries, Failure> {
    let ports = host.switch.ports();
    let down: HashSet<_> = ports.iter().filter(|port| port.link_down).map(|port| port.id).collect();
    let attached = served.uplinks.attached_direct();
    let mut entries = BTreeMap::new();
    for vm in &served.vms {
        for nic in vm.nics.iter().filter(|nic| nic.ovn().is_some()) {
            let uplink = uplink_name(vm.name(), number(nic.name()));
            let up = attached.contains(uplink.as_str()) && nic.is_up(&down);
            entries.insert((vm.name().to_owned(), nic.name().to_owned()), (uplink, up));
        }
    }
    served.ovn.take(reports, |entry| entries.contains_key(entry))?;
    let whole = served.ovn.whole().into_iter();
    let whole: HashSet<&str> = whole.filter_map(|entry| Some(entries.get(entry)?.0.as_str())).collect();
    served.uplinks.set_whole(&host.switch, |name| whole.contains(name));
    let entries = entries.into_iter().map(|((vm, nic), (_, up))| OvnEntry { vm, nic, up }).collect();
    Ok(OvnEntries { entries })
}
