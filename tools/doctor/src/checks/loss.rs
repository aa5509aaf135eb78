//! Frames that are lost, duplicated or overtaken, at whatever rate.

use vmlane_bench::report::Loss;

use crate::prelude::*;

pub const CHECK: Check = Check { name: "loss", examine };

/// Datagrams of a probe below which a share means little.
const FEW: u64 = 40;

fn examine(evidence: &Evidence) -> Vec<Finding> {
    PathEnd::BOTH.into_iter().flat_map(|from| of(evidence, from)).collect()
}

fn of(evidence: &Evidence, from: PathEnd) -> Vec<Finding> {
    let Some((bytes, run)) = evidence.largest_probe(from) else { return Vec::new() };
    let Some(paced) = run.report.datagrams else { return Vec::new() };
    // Of datagrams without a pause many are lost in a healthy network, and none is overtaken or comes twice.
    // Those at a low rate may be too far apart to be overtaken.
    let fast = evidence.run(RunKind::Datagrams, from).and_then(|run| run.report.datagrams);
    let way = evidence.way(from);
    let mut found = Vec::new();
    for (count, sent, what) in [
        (paced.lost, paced.counts.sent, "lost"),
        most([Some(paced), fast], |run| run.counts.duplicated, "duplicated"),
        most([Some(paced), fast], |run| run.counts.reordered, "overtaken by later ones"),
    ] {
        let share = share(count, sent);
        let is_much = share > 0.005 && count >= 2 || share > 0.002 && count >= 4;
        if sent < FEW || !is_much {
            continue;
        }
        let severity = if share > 0.05 && what == "lost" { Severity::Broken } else { Severity::Slow };
        let sentence = format!("{:.1} % of the frames {way} are {what}.", share * 100.0);
        let cost = Cost::measured((0.3 + share * 4.0).min(0.97), evidence.throughput(from));
        let card = evidence.facts(from).and_then(|facts| facts.path_interface());
        let card = card.map_or("INTERFACE", |card| card.name.as_str());
        let remedy = Remedy::new(
            "find where: the queueing discipline, the filter and the counters of both machines, the switch's",
        )
        .run(&["tc", "-s", "qdisc", "show", "dev", card])
        .run(&["tc", "-s", "filter", "show", "dev", card, "ingress"])
        .run(&["ip", "-s", "-s", "link", "show", "dev", card])
        .run(&["vmlane", "stats"]);
        let seen = format!("of {sent} datagrams of {bytes} bytes, {count} were {what}");
        let finding = CHECK.found(severity, sentence, cost).of_way(from).explains(&["retransmits"]);
        found.push(finding.evidence(seen).remedy(remedy));
    }
    found
}

/// Of the run with the larger share: how many are so, of how many, and what they are.
fn most(runs: [Option<Loss>; 2], count: fn(&Loss) -> u64, what: &'static str) -> (u64, u64, &'static str) {
    let counts = runs.iter().flatten().map(|run| (count(run), run.counts.received));
    let most = counts.max_by(|one, other| share(one.0, one.1).total_cmp(&share(other.0, other.1)));
    let (count, received) = most.unwrap_or_default();
    (count, received, what)
}

fn share(count: u64, sent: u64) -> f64 {
    count as f64 / sent.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn what_is_overtaken_without_a_pause_is_found_and_what_is_lost_so_is_not() {
        let mut evidence = testing::healthy();
        let mut fast = testing::probe(PathEnd::Near, 1500, 40_000, 20_000);
        fast.kind = RunKind::Datagrams;
        evidence.runs.push(fast);
        assert!(examine(&evidence).is_empty());
        let counts = &mut evidence.runs.last_mut().unwrap().report.datagrams.as_mut().unwrap().counts;
        counts.reordered = 1_800;
        assert!(examine(&evidence)[0].what.contains("9.0 % of the frames from a to b are overtaken"));
    }

    #[test]
    fn of_two_probes_the_longer_one_counts() {
        let mut evidence = testing::healthy();
        evidence.runs.push(testing::probe(PathEnd::Near, 1500, 1500, 15));
        assert_eq!(examine(&evidence).len(), 1, "of 100 none was lost");
    }

    #[test]
    fn loss_at_a_low_rate_is_found() {
        let mut evidence = testing::healthy();
        evidence.runs.push(testing::probe(PathEnd::Near, 1501, 100, 6));
        assert_eq!(examine(&evidence)[0].severity, Severity::Broken);
        evidence.runs.push(testing::probe(PathEnd::Near, 1502, 100, 1));
        assert!(examine(&evidence).is_empty(), "one proves nothing");
    }
}
