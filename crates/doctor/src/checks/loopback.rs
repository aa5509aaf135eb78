//! The machine as the limit: no network cause.

use super::{Check, Threshold};
use crate::evidence::{Evidence, Kind};
use crate::finding::{Cost, Finding, Severity};
use crate::text::rate;

pub const CHECK: Check = Check {
    name: "machine-limit",
    title: "The machine is the limit, not the network",
    text: "What a machine sends to itself passes no card and no switch. If that is not faster than the network, the network is not \
           what holds it up: the CPU, the program or the size of its messages is. Measure the loopback before anything else.",
    reads: "throughput over each machine's own loopback, and between the two",
    thresholds: &[Threshold {
        limit: "the network reaches half of the slower loopback",
        source: "comment 14 of the article of 2013: a guest that reached 0.64 Gbit/s over its own loopback; a path between two \
                 machines does the sender's and the receiver's half of that work at once",
    }],
    examine,
};

fn examine(evidence: &Evidence) -> Vec<Finding> {
    // The loopback was measured over TCP.
    if evidence.is_vsock {
        return Vec::new();
    }
    let Some(slower) = evidence.slower_loopback() else { return Vec::new() };
    let found = evidence.runs(Kind::Stream).filter(|run| run.bps() >= slower / 2.0).map(|run| {
        let way = evidence.way(run.from);
        let what =
            format!("Throughput {way} has no network cause: the machines' own loopback is hardly faster.");
        let cost = Cost::measured(0.1, "none by the network");
        let seen = format!("{} {way}, {} over the slower loopback", rate(run.bps()), rate(slower));
        Finding::new(CHECK.name, Severity::Machine, what, cost).evidence(seen)
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn a_network_as_fast_as_the_loopback_is_no_cause() {
        let mut evidence = fixture::healthy();
        evidence.loopback_far = Some(1.5e9);
        assert_eq!(examine(&evidence).len(), 2);
    }
}
