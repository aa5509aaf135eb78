//! The machine as the limit: no network cause.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "machine-limit", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    // The loopback was measured over TCP.
    if evidence.is_vsock {
        return Vec::new();
    }
    let Some(slower) = evidence.slower_loopback() else { return Vec::new() };
    let found = evidence.runs(RunKind::Stream).filter(|run| run.bps() >= slower / 2.0).map(|run| {
        let way = evidence.way(run.from);
        let what =
            format!("Throughput {way} has no network cause: the machines' own loopback is hardly faster.");
        let cost = Cost::measured(0.1, "none by the network");
        let seen = format!("{} {way}, {} over the slower loopback", rate(run.bps()), rate(slower));
        CHECK.machine(what, cost).of_way(run.from).evidence(seen)
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_network_as_fast_as_the_loopback_is_no_cause() {
        let mut evidence = testing::healthy();
        evidence.loopback_far = Some(1.5e9);
        assert_eq!(examine(&evidence).len(), 2);
    }
}
