//! Round trips that a network of this kind should not need.

use super::{Check, Threshold};
use crate::evidence::{Evidence, Kind};
use crate::finding::{Cost, Finding, Severity};
use crate::remedy::Remedy;
use crate::text::time;

pub const CHECK: Check = Check {
    name: "latency",
    title: "Neighbours are far apart",
    text: "Between neighbours in one network a round trip takes less than a millisecond, between VMs of one host less than a tenth of \
           that. More is a delay that somebody has put there (netem, a shaper, a tunnel), a machine that does not get its CPU in \
           time, or a network that only looks like one: stretched over a distance. Windows and buffers must be larger in \
           proportion.",
    reads: "round trips of one byte with nothing else under way, and whether the other end is in the interface's own network",
    thresholds: &[Threshold {
        limit: "10 ms in the median between neighbours; 30 ms where a machine is emulated",
        source: "a fibre of 1000 km takes 10 ms for a round trip",
    }],
    examine,
};

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let Some(run) = evidence.runs(Kind::RoundTrips).next() else { return Vec::new() };
    let Some(trip) = run.median_us() else { return Vec::new() };
    let limit = if evidence.is_emulated() { 30_000.0 } else { 10_000.0 };
    let on_link = evidence.near.path.as_ref().is_some_and(|path| path.on_link);
    if !on_link || trip < limit {
        return Vec::new();
    }
    let card = evidence.near.path_interface().map_or("eth0".to_owned(), |card| card.name.clone());
    let what = format!("A round trip between these neighbours takes {}.", time(trip));
    let cost = Cost::measured(0.6, format!("{} for each request", time(trip)));
    let remedy = Remedy::new(
        "look for a queueing discipline with a delay on both machines, and at who uses their CPUs",
    )
    .run(&["tc", "-s", "qdisc", "show", "dev", &card])
    .run(&["tc", "qdisc", "del", "dev", &card, "root"]);
    let seen = format!("{:.0} round trips a second", run.report.transactions_per_second.unwrap_or(0.0));
    vec![Finding::new(CHECK.name, Severity::Slow, what, cost).evidence(seen).remedy(remedy)]
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn neighbours_are_near() {
        let mut evidence = fixture::healthy();
        evidence.runs.insert(0, fixture::round_trips(Kind::RoundTrips, 50_000.0));
        assert_eq!(examine(&evidence).len(), 1);
        evidence.near.path.as_mut().unwrap().on_link = false;
        assert!(examine(&evidence).is_empty(), "a router may lead far away");
    }
}
