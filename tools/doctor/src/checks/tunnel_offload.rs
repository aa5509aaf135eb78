//! Offload of tunnels on cards that corrupt them.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "tunnel-offload", examine };

const FEATURE: &str = "tx-udp_tnl-segmentation";

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let found = evidence.ends().filter_map(|(end, facts)| {
        let is_tunnel = |kind: &Option<String>| matches!(kind.as_deref(), Some("vxlan" | "geneve"));
        let tunnel = facts.interfaces.iter().find(|one| one.is_up && is_tunnel(&one.kind))?;
        let card = facts.interfaces.iter().find(|one| one.driver == "vmxnet3" && one.is_on(FEATURE))?;
        let name = evidence.name(end);
        let what = format!(
            "{} of {name} cuts the packets of the tunnel {}, which may corrupt them.",
            card.name, tunnel.name
        );
        let cost = Cost::estimated(0.4, "connections through the tunnel hang");
        // Nothing is measured inside of the tunnel, so that no proof could show what it gains.
        let remedy = Remedy::new("switch it off, if connections through the tunnel hang")
            .run(&["ethtool", "-K", &card.name, FEATURE, "off"]);
        let seen = format!("ethtool -k {}: {FEATURE} on; {} is up", card.name, tunnel.name);
        Some(CHECK.advice(what, cost).at(end).evidence(seen).remedy(remedy))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Feature, Interface};
    use crate::testing;

    #[test]
    fn a_tunnel_over_a_card_that_cuts_it_is_found() {
        let mut evidence = testing::healthy();
        let on = Feature { on: true, changeable: true };
        testing::card(&mut evidence).features.insert(FEATURE.to_owned(), on);
        assert!(examine(&evidence).is_empty(), "there is no tunnel");
        let kind = Some("vxlan".to_owned());
        evidence.near.interfaces.push(Interface {
            name: "vxlan0".to_owned(),
            is_up: true,
            kind,
            ..Interface::default()
        });
        assert!(examine(&evidence)[0].what.contains("tunnel vxlan0"));
        testing::card(&mut evidence).features.clear();
        assert!(examine(&evidence).is_empty());
    }
}
