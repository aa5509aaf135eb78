//! Received segments that are not merged.

use crate::facts::{Facts, Interface};
use crate::prelude::*;

pub const CHECK: Check = Check { name: "receive-merging", examine };

/// Whether a machine passes on what it receives.
pub fn forwards(facts: &Facts, card: &Interface) -> bool {
    let on = |name: &str| facts.sysctls.number(name) == Some(1);
    on("net.ipv4.ip_forward")
        || on("net.ipv6.conf.all.forwarding")
        || on(&format!("net.ipv4.conf.{}.forwarding", card.name))
}

/// A feature, its short name, the key of a .link file, and what merging is worth.
const FEATURES: [(&str, &str, &str, f64); 3] = [
    ("rx-lro", "lro", "LargeReceiveOffload", 0.45),
    ("rx-gro-hw", "rx-gro-hw", "GenericReceiveOffloadHardware", 0.45),
    ("rx-gro", "gro", "GenericReceiveOffload", 0.3),
];

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (end, facts, card) in evidence.interfaces() {
        for (name, short, networkd, share) in FEATURES {
            if !card.is_off(name) || !applies(name, facts, card) {
                continue;
            }
            let what = format!("{name} is off on {} of {}.", card.name, evidence.name(end));
            let effect = "up to 45 times as many passes through the receiver's stack for the same data";
            let seen = format!("ethtool -k {}: {name} off, not fixed; ip_forward is 0", card.name);
            let remedy = Remedy::offload(&card.name, short, true, networkd, "Rsc");
            let finding = CHECK.slow(what, Cost::estimated(share, effect)).at(end);
            found.push(finding.evidence(seen).remedy(remedy));
        }
    }
    found
}

/// What the card merges is not for a machine that forwards; and without checksums that are known to be right,
/// it may merge nothing.
fn applies(name: &str, facts: &Facts, card: &Interface) -> bool {
    let by_card = !forwards(facts, card) && card.feature("rx-checksum").is_none_or(|feature| feature.on);
    match name {
        "rx-lro" => card.driver == "vmxnet3" && by_card,
        "rx-gro-hw" => card.driver == "virtio_net" && by_card,
        _ => card.is_card(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Feature;
    use crate::testing;

    #[test]
    fn lro_is_missed_unless_the_machine_forwards() {
        let mut evidence = testing::healthy();
        let features = &mut testing::card(&mut evidence).features;
        features.insert("rx-lro".to_owned(), Feature { on: false, changeable: true });
        assert_eq!(examine(&evidence).len(), 1);
        evidence.near.sysctls.0.insert("net.ipv4.ip_forward".to_owned(), "1".to_owned());
        assert!(examine(&evidence).is_empty());
    }
}
