//! Queues so long that everything behind a transfer waits.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "bufferbloat", examine };

const LONG_US: f64 = 50_000.0;

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let Some(idle) = evidence.runs(RunKind::RoundTrips).find_map(|run| run.median_us()) else {
        return Vec::new();
    };
    PathEnd::BOTH.into_iter().filter_map(|from| of(evidence, from, idle)).collect()
}

fn of(evidence: &Evidence, from: PathEnd, idle: f64) -> Option<Finding> {
    let loaded = evidence.run(RunKind::Loaded, from).and_then(|run| run.median_us());
    let of_transfer = evidence.run(RunKind::Stream, from).and_then(|run| run.tcp()).map(|tcp| tcp.rtt_us);
    // Where frames are lost, round trips include time-outs and show nothing of a queue.
    let loses = evidence.run(RunKind::Stream, from).is_some_and(|run| run.timeouts() > 1);
    let seen = loaded.or(of_transfer).filter(|us| *us > LONG_US && *us > 10.0 * idle && !loses)?;
    let way = evidence.way(from);
    let what =
        format!("Beside a transfer {way}, a round trip takes {} instead of {}.", time(seen), time(idle));
    let cost =
        Cost::measured(0.8, format!("{} of waiting for everything behind a transfer", time(seen - idle)));
    let card = evidence.facts(from)?.path_interface()?.name.clone();
    let remedy = Remedy::new("find the queue (a shaper with a long limit, a slow link), and keep it short")
        .run(&["tc", "-s", "qdisc", "show", "dev", &card])
        .run(&["tc", "qdisc", "replace", "dev", &card, "root", "fq_codel"])
        .lasting("sysctl.d", "net.core.default_qdisc = fq_codel");
    let finding = CHECK.slow(what, cost).at(from).of_way(from);
    let finding = finding.evidence(format!("at rest {} in the median", time(idle)));
    Some(
        match of_transfer {
            Some(us) => finding.evidence(format!("the transfer's own round trip (TCP_INFO): {}", time(us))),
            None => finding,
        }
        .remedy(remedy),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn waiting_beside_a_transfer_is_compared_with_rest() {
        let mut evidence = testing::healthy();
        evidence.runs.push(testing::round_trips(RunKind::Loaded, 300_000.0));
        assert_eq!(examine(&evidence).len(), 1);
        evidence.runs.insert(0, testing::round_trips(RunKind::RoundTrips, 200_000.0));
        assert!(examine(&evidence).is_empty(), "the path is as long as that");
    }
}
