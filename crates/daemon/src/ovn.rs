//! NICs that are ports of OVN's integration bridge, in the daemon. What they are called there and where, only
//! the helper knows (`vmlane ovn run`): it asks here which are to be up, and reports what it has found out.

pub mod exchange;

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use vmlane_api::{ErrorCode, Failure, OvnReport, OvnStatus};

/// A helper that has not asked for so long is gone.
const GONE: Duration = Duration::from_secs(5);
/// Characters of a report's texts.
const LONGEST: usize = 500;
/// What a port can be.
const STATES: [&str; 4] = ["bound", "waiting", "down", "failed"];

/// What the helper has reported.
#[derive(Default)]
pub struct OvnPorts {
    last_asked: Option<Instant>,
    /// By VM and NIC; of those that are served.
    reports: BTreeMap<(String, String), OvnReport>,
}

impl OvnPorts {
    pub fn status(&self, vm: &str, nic: &str, port: &str, whole: bool) -> OvnStatus {
        let is_there = self.last_asked.is_some_and(|last_asked| last_asked.elapsed() < GONE);
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

    /// Takes in the helper's reports; `is_served`: whether there is such a VM with such a NIC. The
    /// configuration of the helper may be older or newer than the daemon's.
    pub fn take(
        &mut self,
        reports: Vec<OvnReport>,
        is_served: impl Fn(&(String, String)) -> bool,
    ) -> Result<(), Failure> {
        self.last_asked = Some(Instant::now());
        for mut report in reports {
            if !STATES.contains(&report.state.as_str()) {
                let message = format!("ovn: state = {:?}; use one of {}", report.state, STATES.join(", "));
                return Err(Failure { code: ErrorCode::BadRequest, message });
            }
            let entry = (report.vm.clone(), report.nic.clone());
            report.problem = report.problem.chars().filter(|c| !c.is_control()).take(LONGEST).collect();
            if is_served(&entry) {
                self.reports.insert(entry, report);
            }
        }
        self.reports.retain(|entry, _| is_served(entry));
        Ok(())
    }

    /// NICs whose bridge takes super-frames.
    pub fn whole(&self) -> HashSet<&(String, String)> {
        self.reports.iter().filter(|(_, report)| report.whole).map(|(entry, _)| entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(vm: &str, state: &str) -> OvnReport {
        let problem = "line\nbreak".repeat(200);
        OvnReport { vm: vm.into(), nic: "nic0".into(), state: state.into(), problem, whole: true }
    }

    #[test]
    fn reports_are_kept_of_nics_that_are_served_while_the_helper_is_there() {
        let mut ports = OvnPorts::default();
        assert_eq!(ports.status("web", "nic0", "lsp", false).state, "no helper");
        let is_web = |entry: &(String, String)| entry.0 == "web";
        ports.take(vec![report("web", "bound"), report("other", "bound")], is_web).unwrap();
        let status = ports.status("web", "nic0", "lsp", true);
        assert_eq!((&*status.state, &*status.port, status.problem.len()), ("bound", "lsp", LONGEST));
        assert!(!status.problem.contains('\n'));
        assert_eq!(ports.whole().len(), 1);
        let refused = ports.take(vec![report("web", "dancing")], is_web).unwrap_err();
        assert!(refused.message.contains("bound, waiting, down, failed"), "{refused}");
        assert_eq!(ports.status("db", "nic0", "lsp", true).state, "waiting");
        ports.take(Vec::new(), |_| false).unwrap();
        assert!(ports.whole().is_empty());
    }
}
