//! One queue where there could be one for each CPU.

use crate::change::Change;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "queues", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let found = evidence.interfaces().filter_map(|(end, facts, card)| {
        let (used, most) = card.queues?;
        let possible = most.min(u32::try_from(facts.machine.cpus).unwrap_or(u32::MAX));
        // A veth has one unless somebody wants XDP or GRO in it.
        if used == 0 || used >= possible || !card.is_card() {
            return None;
        }
        let what = format!(
            "{} on {} uses {used} of {most} queues, with {} CPUs.",
            card.name,
            evidence.name(end),
            facts.machine.cpus
        );
        let share = 0.5 * (1.0 - f64::from(used) / f64::from(possible));
        let cost = Cost::estimated(share, "with several connections: CPUs that could receive do not");
        let change = Change::Queues { interface: card.name.clone(), combined: possible };
        let remedy = Remedy::ethtool("a queue for each CPU", change)
            .lasting("Windows", format!("PowerShell: Enable-NetAdapterRss -Name \"{}\"", card.name));
        let seen =
            format!("ethtool -l {}: {used} in use of at most {most}; {} CPUs", card.name, facts.machine.cpus);
        Some(CHECK.slow(what, cost).at(end).evidence(seen).remedy(remedy))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn queues_are_compared_with_cpus() {
        let mut evidence = testing::healthy();
        testing::card(&mut evidence).queues = Some((1, 4));
        assert_eq!(examine(&evidence)[0].remedies[0].temporary[0].join(" "), "ethtool -L eth0 combined 2");
        evidence.near.machine.cpus = 1;
        assert!(examine(&evidence).is_empty());
    }
}
