//! A program that uses the CPU.

use super::Check;
use crate::evidence::Evidence;
use crate::finding::{Cost, Finding, Severity};
use crate::remedy::Remedy;

pub const CHECK: Check = Check { name: "busy-cpu", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let found = evidence.ends().filter_map(|(end, facts)| {
        let load = &facts.load;
        let cpus = facts.machine.cpus.max(1) as f64;
        let program = load.busiest.first().filter(|program| program.cpus >= 0.4);
        if program.is_none() && load.busy < 0.7 * cpus {
            return None;
        }
        let name = evidence.name(end);
        let what = match program {
            Some(program) => {
                format!("The program {} uses {:.1} of the {cpus} CPUs of {name}.", program.name, program.cpus)
            }
            None => format!("The CPUs of {name} are busy before anything is measured."),
        };
        let used = program.map_or(load.busy, |program| program.cpus) / cpus;
        let cost = Cost::estimated(
            0.75 * used.min(1.0),
            format!("{:.0} % of the CPU, which the network lacks", used.min(1.0) * 100.0),
        );
        let finding = Finding::new(CHECK.name, Severity::Slow, what, cost)
            .at(end)
            .evidence(format!("at rest {:.1} of {cpus} CPUs are busy", load.busy));
        Some(match program {
            Some(program) => {
                let pid = program.pid.to_string();
                let seen = format!("process {pid} ({})", program.name);
                let remedy = Remedy::new("find out why it runs; give it less")
                    .run(&["renice", "-n", "19", "-p", &pid]);
                finding.evidence(seen).remedy(remedy)
            }
            None => finding.remedy(Remedy::new("find out what uses the CPUs").run(&["top", "-b", "-n", "1"])),
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;
    use crate::facts::Process;

    #[test]
    fn the_program_is_named() {
        let mut evidence = fixture::healthy();
        evidence.near.load.busiest = vec![Process { pid: 7, name: "indexer".to_owned(), cpus: 0.9 }];
        assert!(examine(&evidence)[0].what.contains("indexer"));
        evidence.near.load.busiest.clear();
        evidence.near.load.busy = 1.9;
        assert_eq!(examine(&evidence).len(), 1);
    }
}
