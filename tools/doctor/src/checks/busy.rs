//! A program that uses the CPU.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "busy-cpu", examine };

/// CPUs of a program that is busy only while something is sent or received.
const BESIDE: f64 = 0.2;

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let at_rest = at_rest(evidence);
    let is_new = |end| !at_rest.iter().any(|finding| finding.end == Some(end));
    let beside = evidence.ends().filter(|(end, _)| is_new(*end)).filter_map(|(end, _)| beside(evidence, end));
    let beside: Vec<Finding> = beside.collect();
    at_rest.into_iter().chain(beside).collect()
}

/// What works for each packet, such as a capture, is idle without them.
fn beside(evidence: &Evidence, end: PathEnd) -> Option<Finding> {
    let program = evidence.limits_after(end)?.busiest.first().filter(|program| program.cpus >= BESIDE)?;
    let what = format!(
        "While it was measured, the program {} used {:.1} CPUs of {}.",
        program.name,
        program.cpus,
        evidence.name(end)
    );
    let cost =
        Cost::estimated(0.5, "the network lacks that CPU time, and more if the program handles each packet");
    let remedy = Remedy::new("find out what it does with the packets; end captures that no one reads");
    let finding = CHECK.slow(what, cost).at(end).explains(&["sender-limit"]);
    Some(finding.evidence(format!("process {} ({})", program.pid, program.name)).remedy(remedy))
}

fn at_rest(evidence: &Evidence) -> Vec<Finding> {
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
        let used = (program.map_or(load.busy, |program| program.cpus) / cpus).min(1.0);
        let lacks = format!("{:.0} % of the CPU, which the network lacks", used * 100.0);
        let cost = Cost::estimated(0.75 * used, lacks);
        let seen = format!("at rest {:.1} of {cpus} CPUs are busy", load.busy);
        let finding =
            CHECK.slow(what, cost).at(end).explains(&["sender-limit", "slow-answers"]).evidence(seen);
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
    use super::*;
    use crate::facts::Process;
    use crate::testing;

    #[test]
    fn the_program_is_named() {
        let mut evidence = testing::healthy();
        evidence.near.load.busiest = vec![Process { pid: 7, name: "indexer".to_owned(), cpus: 0.9 }];
        assert!(examine(&evidence)[0].what.contains("indexer"));
        evidence.near.load.busiest.clear();
        let tcpdump = Process { pid: 8, name: "tcpdump".to_owned(), cpus: 0.3 };
        evidence.limits_near = Some(crate::facts::Limits { busiest: vec![tcpdump], ..Default::default() });
        assert!(examine(&evidence)[0].what.contains("tcpdump"));
        evidence.near.load.busy = 1.9;
        assert_eq!(examine(&evidence).len(), 1);
    }
}
