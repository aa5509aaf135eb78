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

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (end, facts, card) in evidence.interfaces() {
        let features = [
            (
                "rx-lro",
                "lro",
                "LargeReceiveOffload",
                "Rsc",
                0.45,
                card.driver == "vmxnet3" && !forwards(facts, card),
            ),
            (
                "rx-gro-hw",
                "rx-gro-hw",
                "GenericReceiveOffloadHardware",
                "Rsc",
                0.45,
                card.driver == "virtio_net" && !forwards(facts, card),
            ),
            ("rx-gro", "gro", "GenericReceiveOffload", "Rsc", 0.3, card.is_card()),
        ];
        for (name, short, networkd, windows, share, applies) in features {
            if !applies || !card.feature(name).is_some_and(|feature| !feature.on && feature.changeable) {
                continue;
            }
            // Without checksums that are known to be right, nothing may be merged.
            if name != "rx-gro" && card.feature("rx-checksum").is_some_and(|feature| !feature.on) {
                continue;
            }
            let what = format!("{name} is off on {} of {}.", card.name, evidence.name(end));
            let cost = Cost::estimated(
                share,
                "up to 45 times as many passes through the receiver's stack for the same data",
            );
            found.push(
                CHECK
                    .slow(what, cost)
                    .at(end)
                    .evidence(format!("ethtool -k {}: {name} off, not fixed; ip_forward is 0", card.name))
                    .remedy(Remedy::offload(&card.name, short, true, networkd, windows)),
            );
        }
    }
    found
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
