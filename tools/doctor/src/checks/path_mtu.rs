//! Frames that the path does not carry although both ends may send them.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "path-mtu", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found: Vec<Finding> = PathEnd::BOTH.into_iter().filter_map(|from| lost(evidence, from)).collect();
    if found.is_empty() {
        let least = evidence.interfaces().map(|(_, _, card)| card.mtu).min().unwrap_or(0);
        found.extend(evidence.interfaces().filter_map(|(end, facts, card)| {
            let path = facts.path.as_ref()?;
            let mtu = path.mtu.filter(|mtu| *mtu < least && path.on_link)?;
            let what = format!(
                "{} sends at most {mtu} bytes to its neighbour, although {} has an MTU of {}.",
                evidence.name(end),
                card.name,
                card.mtu
            );
            let cost = Cost::estimated(0.3, "smaller segments: more of them, and more CPU");
            let route = path.peer.to_string();
            let remedy = Remedy::new("check the route's mtu, and remove what the kernel has learned")
                .run(&["ip", "route", "get", &route])
                .run(&["ip", "route", "flush", "cache"]);
            let seen = format!("IP_MTU towards {route}: {mtu}");
            Some(CHECK.slow(what, cost).at(end).evidence(seen).remedy(remedy))
        }));
    }
    found
}

fn lost(evidence: &Evidence, from: PathEnd) -> Option<Finding> {
    let card = evidence.facts(from)?.path_interface()?;
    let receiver = evidence.facts(from.other())?.path_interface()?;
    let on_link = evidence.facts(from)?.path.as_ref()?.on_link;
    let probes: Vec<_> = evidence.probes().filter(|(_, run)| run.from == from).collect();
    let lost = probes.iter().filter(|(_, run)| run.lost() >= 1.0).map(|(bytes, _)| *bytes);
    let arrived = probes.iter().filter(|(_, run)| run.lost() < 1.0).map(|(bytes, _)| *bytes).max();
    let smallest_lost = lost.min()?;
    let way = evidence.way(from);
    let Some(arrived) = arrived else {
        let what = format!("No datagram arrives {way}, whatever its size, although TCP does.");
        let cost = Cost::measured(1.0, "everything that uses UDP");
        let remedy = Remedy::new("search for a filter of UDP on both machines and between them")
            .run(&["nft", "list", "ruleset"]);
        return Some(CHECK.broken(what, cost).of_way(from).explains(&["retransmits"]).remedy(remedy));
    };
    // Frames above the receiver's MTU: that is the mismatch of the ends, and another check's.
    if on_link && smallest_lost > receiver.mtu {
        return None;
    }
    let what = if on_link && card.mtu > 1500 {
        format!(
            "The MTU of {} on {} is without effect: frames of {smallest_lost} bytes are lost {way}.",
            card.mtu,
            evidence.name(from)
        )
    } else {
        format!("The path is a black hole for frames of {smallest_lost} bytes {way}.")
    };
    let finding = CHECK.broken(what,
        Cost::measured(0.95, "connections open and then hang, or fall back to small segments after time-outs"),
    )
    .at(from)
    .of_way(from)
    .explains(&["retransmits"])
    .evidence(format!("with the don't-fragment bit, all datagrams of {smallest_lost} bytes were lost, those of {arrived} arrived"))
    .remedy(Remedy::mtu(&card.name, arrived))
    .remedy(
        Remedy::new("or let what is between the two carry them: the MTU of the switch, of the port group, of the tunnel")
            .lasting("VMware", "esxcli network vswitch standard set -m 9000 -v vSwitch0, and the Tools' driver for this system"),
    )
    .remedy(Remedy::sysctl("net.ipv4.tcp_mtu_probing", "1"));
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn what_is_lost_and_what_arrives_is_named() {
        let mut evidence = testing::healthy();
        testing::card(&mut evidence).mtu = 9000;
        testing::far(&mut evidence).interfaces[0].mtu = 9000;
        evidence.runs.retain(|run| run.kind != crate::evidence::RunKind::Probe { bytes: 1500 });
        for (bytes, lost) in [(9000, 100), (1500, 0)] {
            evidence.runs.push(testing::probe(PathEnd::Near, bytes, 100, lost));
        }
        let found = examine(&evidence);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].what.contains("without effect")
                && found[0].evidence[0].contains("those of 1500 arrived")
        );
        testing::far(&mut evidence).interfaces[0].mtu = 1500;
        assert!(examine(&evidence).is_empty(), "the ends differ, which is another check's");
    }

    #[test]
    fn a_filter_of_udp_is_no_matter_of_size() {
        let mut evidence = testing::healthy();
        evidence.runs.retain(|run| run.from != PathEnd::Far);
        evidence.runs.push(testing::probe(PathEnd::Far, 576, 100, 100));
        assert!(examine(&evidence)[0].what.contains("No datagram arrives"));
    }
}
