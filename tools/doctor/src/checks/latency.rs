//! Round trips that a network of this kind should not need.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "latency", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let Some(run) = evidence.runs(RunKind::RoundTrips).next() else { return Vec::new() };
    let Some(trip) = run.median_us() else { return Vec::new() };
    // A tunnel may be as long as it is.
    let is_card = evidence.interfaces().all(|(_, _, interface)| interface.is_card());
    let limit = if is_card { 3_000.0 } else { 30_000.0 };
    let on_link = evidence.near.path.as_ref().is_some_and(|path| path.on_link);
    if !on_link || trip < limit {
        return Vec::new();
    }
    let card = evidence.near.path_interface().map_or("eth0".to_owned(), |card| card.name.clone());
    let what = format!("A round trip between these neighbours takes {}.", time(trip));
    let cost = Cost::measured(0.6, format!("{} for each request", time(trip)));
    let remedy = Remedy::new(
        "check both machines for a queueing discipline with a delay, and for programs that use their CPUs",
    )
    .run(&["tc", "-s", "qdisc", "show", "dev", &card])
    .run(&["tc", "qdisc", "del", "dev", &card, "root"]);
    let seen = format!("{:.0} round trips a second", run.per_second());
    vec![CHECK.slow(what, cost).evidence(seen).remedy(remedy)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn neighbours_are_near() {
        let mut evidence = testing::healthy();
        evidence.runs.insert(0, testing::round_trips(RunKind::RoundTrips, 50_000.0));
        assert_eq!(examine(&evidence).len(), 1);
        evidence.near.path.as_mut().unwrap().on_link = false;
        assert!(examine(&evidence).is_empty(), "a router may lead far away");
    }
}
