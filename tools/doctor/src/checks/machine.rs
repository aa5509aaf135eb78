//! What the machines are.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "machine", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (end, facts) in evidence.ends() {
        let name = evidence.name(end);
        let machine = &facts.machine;
        if machine.is_emulated {
            let what = format!("The processor of {name} is emulated.");
            let cost = Cost::estimated(0.9, "most of the throughput");
            let seen = machine.hypervisor.clone().unwrap_or_else(|| "User Mode Linux".to_owned());
            found.push(CHECK.machine(what, cost).at(end).evidence(seen));
        }
        if machine.governor.as_deref() == Some("powersave") {
            let what = format!("The CPU governor of {name} saves power.");
            let cost = Cost::estimated(0.3, "speed of the CPU");
            let seen = "scaling_governor: powersave; cpupower frequency-set -g performance changes it";
            found.push(CHECK.machine(what, cost).at(end).evidence(seen));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn what_a_machine_is_is_kept_apart() {
        let mut evidence = testing::healthy();
        evidence.near.machine.is_emulated = true;
        evidence.near.machine.governor = Some("powersave".to_owned());
        let found = examine(&evidence);
        assert!(found.len() == 2 && found.iter().all(|finding| finding.severity == Severity::Machine));
    }
}
