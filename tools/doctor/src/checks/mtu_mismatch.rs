//! Two neighbours with different MTUs.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "mtu-mismatch", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let ends: Vec<_> = evidence.interfaces().collect();
    let [(_, near, here), (_, _, there)] = ends.as_slice() else { return Vec::new() };
    let is_neighbour = near.path.as_ref().is_some_and(|path| path.on_link);
    if !is_neighbour || here.mtu == there.mtu {
        return Vec::new();
    }
    let (small_end, small, large_end, large) = if here.mtu < there.mtu {
        (PathEnd::Near, here, PathEnd::Far, there)
    } else {
        (PathEnd::Far, there, PathEnd::Near, here)
    };
    let what = format!(
        "The MTUs differ: {} on {}, {} on {}.",
        large.mtu,
        evidence.name(large_end),
        small.mtu,
        evidence.name(small_end)
    );
    let lost = evidence.run(RunKind::Probe { bytes: large.mtu }, large_end).map_or(0.0, |run| run.lost());
    let (severity, cost) = if lost >= 1.0 {
        (Severity::Broken, Cost::measured(0.9, format!("datagrams of {} bytes are lost", large.mtu)))
    } else {
        let text = format!("segments of {} bytes instead of {}", small.mtu, large.mtu);
        (Severity::Slow, Cost::estimated(0.3, text))
    };
    let finding = CHECK
        .found(severity, what, cost)
        .at(small_end)
        .explains(if lost >= 1.0 { &["retransmits"] } else { &[] })
        .evidence(format!("/sys/class/net/{}/mtu: {}", small.name, small.mtu))
        .evidence(format!("/sys/class/net/{}/mtu of {}: {}", large.name, evidence.name(large_end), large.mtu))
        .remedy(Remedy::mtu(&small.name, large.mtu))
        .remedy(Remedy::mtu(&large.name, small.mtu).on(large_end));
    vec![finding]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_smaller_end_is_named() {
        let mut evidence = testing::healthy();
        testing::card(&mut evidence).mtu = 9000;
        let found = examine(&evidence);
        assert_eq!((found[0].end, found[0].severity), (Some(PathEnd::Far), Severity::Slow));
        evidence.runs.push(testing::probe(PathEnd::Near, 9000, 10, 10));
        assert_eq!(examine(&evidence)[0].severity, Severity::Broken);
        evidence.near.path.as_mut().unwrap().on_link = false;
        assert!(examine(&evidence).is_empty(), "a router is between them");
    }
}
