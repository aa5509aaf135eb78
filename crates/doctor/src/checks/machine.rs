//! What the machines are.

use super::{Check, Threshold};
use crate::evidence::Evidence;
use crate::finding::{Cost, Finding, Severity};

pub const CHECK: Check = Check {
    name: "machine",
    title: "The machines themselves",
    text: "An emulated processor (QEMU without KVM, User Mode Linux) runs at a fraction of the host's speed, and a governor that saves \
           power at a fraction of its own. Both are told, so that figures are read rightly, and kept apart from findings: no setting \
           of a network changes them.",
    reads: "CPUID, /proc/cpuinfo and the governor of cpufreq",
    thresholds: &[Threshold {
        limit: "emulation; the governor powersave",
        source: "measured on this project's own machines: 5 to 20 times slower than with KVM",
    }],
    examine,
};

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (end, facts) in evidence.ends() {
        let name = evidence.name(end);
        let machine = &facts.machine;
        if machine.is_emulated {
            let what = format!("The processor of {name} is emulated.");
            let cost = Cost::estimated(0.9, "most of the throughput");
            let seen = machine.hypervisor.clone().unwrap_or_else(|| "User Mode Linux".to_owned());
            found.push(Finding::new(CHECK.name, Severity::Machine, what, cost).at(end).evidence(seen));
        }
        if machine.governor.as_deref() == Some("powersave") {
            let what = format!("The CPU governor of {name} saves power.");
            let cost = Cost::estimated(0.3, "speed of the CPU");
            let seen = "scaling_governor: powersave; cpupower frequency-set -g performance changes it";
            found.push(Finding::new(CHECK.name, Severity::Machine, what, cost).at(end).evidence(seen));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn what_a_machine_is_is_kept_apart() {
        let mut evidence = fixture::healthy();
        evidence.near.machine.is_emulated = true;
        evidence.near.machine.governor = Some("powersave".to_owned());
        let found = examine(&evidence);
        assert!(found.len() == 2 && found.iter().all(|finding| finding.severity == Severity::Machine));
    }
}
