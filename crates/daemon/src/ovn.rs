//! NICs that are ports of OVN's integration bridge, in the daemon. What they are called there and where, only the helper knows
//! (`vmlane ovn run`): it asks here which are to be up, and tells what it has found out.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use vmlane_api::{ErrorCode, Failure, OvnEntries, OvnEntry, OvnReport, OvnStatus, VmStatus};

use crate::assembly::{Daemon, State};
use crate::config::ovn::uplink_name;
use crate::vm::ServedVm;

/// A helper that has not asked for so long is gone.
const GONE: Duration = Duration::from_secs(5);
/// Characters of a report's texts.
const LONGEST: usize = 500;
/// What a port can be.
const STATES: [&str; 4] = ["bound", "waiting", "down", "failed"];

/// What the helper has said.
#[derive(Default)]
pub struct OvnPorts {
    heard: Option<Instant>,
    /// By VM and NIC; of those that are served.
    reports: BTreeMap<(String, String), OvnReport>,
}

impl OvnPorts {
    fn status(&self, vm: &str, nic: &str, port: &str, whole: bool) -> OvnStatus {
        let is_there = self.heard.is_some_and(|heard| heard.elapsed() < GONE);
        let report = self.reports.get(&(vm.to_owned(), nic.to_owned())).filter(|_| is_there);
        let (state, problem) = match (report, is_there) {
            (Some(report), _) => (report.state.clone(), report.problem.clone()),
            (None, true) => (
                "waiting".into(),
                "the helper's configuration does not have it; has it been reloaded?".into(),
            ),
            (None, false) => ("no helper".into(), "start it: `systemctl enable --now vmlane-ovn`".into()),
        };
        OvnStatus { port: port.to_owned(), state, problem, whole }
    }
}

/// The NIC's number, of its name.
fn number(nic: &str) -> usize {
    nic.trim_start_matches("nic").parse().unwrap_or_default()
}

impl State {
    /// The same with what is known of ports of OVN's.
    pub(crate) fn with_ovn(&self, vm: &ServedVm, mut status: VmStatus) -> VmStatus {
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
    pub(crate) fn ovn(&self, reports: Vec<OvnReport>) -> Result<OvnEntries, Failure> {
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
        state.ovn.heard = Some(Instant::now());
        for mut report in reports {
            if !STATES.contains(&report.state.as_str()) {
                let message = format!("ovn: state = {:?}; use one of {}", report.state, STATES.join(", "));
                return Err(Failure { code: ErrorCode::BadRequest, message });
            }
            let entry = (report.vm.clone(), report.nic.clone());
            report.problem = report.problem.chars().filter(|c| !c.is_control()).take(LONGEST).collect();
            state.ovn.reports.insert(entry, report);
        }
        // The configuration of the helper may be older or newer than this one.
        state.ovn.reports.retain(|entry, _| entries.contains_key(entry));
        let whole = state.ovn.reports.iter().filter(|(_, report)| report.whole);
        let whole: HashSet<&str> =
            whole.filter_map(|(entry, _)| Some(entries.get(entry)?.0.as_str())).collect();
        state.uplinks.set_whole(&self.switch, |name| whole.contains(name));
        let entries = entries.into_iter().map(|((vm, nic), (_, up))| OvnEntry { vm, nic, up }).collect();
        Ok(OvnEntries { entries })
    }
}
