//! Interrupts of several queues on one CPU.

use std::collections::BTreeSet;

use crate::change::Change;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "interrupts", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let found = evidence.interfaces().filter_map(|(end, facts, card)| {
        let queues: Vec<_> = card.interrupts.iter().filter(|interrupt| is_queue(&interrupt.name)).collect();
        let allowed: BTreeSet<&str> = queues.iter().map(|interrupt| interrupt.may.as_str()).collect();
        let mut allowed = allowed.into_iter();
        let (Some(only), None) = (allowed.next(), allowed.next()) else { return None };
        let several = card.queues.is_some_and(|(used, _)| used > 1);
        if !several || queues.len() < 2 || facts.machine.cpus < 2 || only.parse::<u32>().is_err() {
            return None;
        }
        let what = format!("All interrupts of {} on {} go to CPU {only}.", card.name, evidence.name(end));
        let cost = Cost::estimated(0.4, "with several connections: one CPU receives for all");
        let mut remedy = Remedy::new("spread them")
            .lasting("systemd", "install irqbalance, and remove what pins the interrupts");
        for (at, interrupt) in queues.iter().enumerate().take(8) {
            let cpus = (at % facts.machine.cpus).to_string();
            remedy = remedy.change(Change::Affinity { interrupt: interrupt.number, cpus });
        }
        let seen =
            format!("smp_affinity_list of {} interrupts: {only}; {} CPUs", queues.len(), facts.machine.cpus);
        Some(CHECK.slow(what, cost).at(end).evidence(seen).remedy(remedy))
    });
    found.collect()
}

/// Not those for events and configuration.
fn is_queue(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["rx", "tx", "input", "output", "queue"].iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn pinned_ones_are_found() {
        let mut evidence = testing::healthy();
        testing::card(&mut evidence)
            .interrupts
            .iter_mut()
            .for_each(|interrupt| interrupt.may = "0".to_owned());
        assert_eq!(examine(&evidence).len(), 1);
        testing::card(&mut evidence).interrupts[1].may = "1".to_owned();
        assert!(examine(&evidence).is_empty());
    }
}
