//! LRO in a machine that forwards.

use super::merging::forwards;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "lro-forwarding", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (end, facts) in evidence.ends() {
        let cards = facts.interfaces.iter().filter(|card| card.is_card() && card.is_up);
        for card in cards.filter(|card| card.is_on("rx-lro") && forwards(facts, card)) {
            let what = format!("{} forwards, and LRO is on on its card {}.", evidence.name(end), card.name);
            let effect = "connections through it lose merged frames and crawl; its own are not affected";
            let finding = CHECK.broken(what, Cost::estimated(0.9, effect)).at(end);
            let finding = finding
                .evidence(format!("ethtool -k {}: rx-lro on", card.name))
                .evidence("net.ipv4.ip_forward or the interface's forwarding is 1");
            let remedy = Remedy::offload(&card.name, "lro", false, "LargeReceiveOffload", "Rsc");
            found.push(finding.remedy(remedy));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn forwarding_and_lro_exclude_each_other() {
        let mut evidence = testing::healthy();
        evidence.near.sysctls.0.insert("net.ipv4.ip_forward".to_owned(), "1".to_owned());
        assert_eq!(examine(&evidence).len(), 1);
        testing::card(&mut evidence).features.remove("rx-lro");
        assert!(examine(&evidence).is_empty());
    }
}
