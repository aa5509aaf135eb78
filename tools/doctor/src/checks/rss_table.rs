//! A table of RSS that leads to one queue of several.

use crate::change::Change;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "rss-table", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let found = evidence.interfaces().filter_map(|(end, facts, card)| {
        let (spread, (used, _)) = (card.spread?, card.queues?);
        let several = used > 1 && spread.entries > 1 && facts.machine.cpus > 1;
        if !several || spread.queues != 1 || !card.is_card() {
            return None;
        }
        let what = format!(
            "{} on {} receives on one of its {used} queues: its RSS table names no other.",
            card.name,
            evidence.name(end)
        );
        let share = 0.5 * (1.0 - 1.0 / f64::from(used));
        let cost = Cost::estimated(share, "with several connections: one CPU receives for all");
        let line = format!("ethtool -X {} default", card.name);
        let remedy =
            Remedy::new("spread over all queues, as drivers do by default; remove what sets the table")
                .change(Change::Spread { interface: card.name.clone(), queues: used })
                .when_up(&line)
                .lasting(
                    "Windows",
                    format!(
                        "PowerShell: Set-NetAdapterRss -Name \"{}\" -NumberOfReceiveQueues {used}",
                        card.name
                    ),
                );
        let seen = format!(
            "ethtool -x {}: {} entries, all with the same queue; {used} queues, {} CPUs",
            card.name, spread.entries, facts.machine.cpus
        );
        Some(CHECK.slow(what, cost).at(end).evidence(seen).remedy(remedy))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Spread;
    use crate::testing;

    #[test]
    fn a_table_that_names_one_queue_is_found() {
        let mut evidence = testing::healthy();
        testing::card(&mut evidence).spread = Some(Spread { entries: 32, queues: 1 });
        let found = examine(&evidence);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].remedies[0].temporary[0].join(" "), "ethtool -X eth0 equal 2");
        // One queue has nothing to spread over, and one CPU has no other to spread to.
        testing::card(&mut evidence).queues = Some((1, 2));
        assert!(examine(&evidence).is_empty());
        testing::card(&mut evidence).queues = Some((2, 2));
        evidence.near.machine.cpus = 1;
        assert!(examine(&evidence).is_empty());
    }
}
