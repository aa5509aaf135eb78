//! Frames that are lost, duplicated or overtaken, at whatever rate.

use crate::prelude::*;

pub const CHECK: Check = Check { name: "loss", examine };

/// Datagrams of a probe below which a share means little.
const FEW: u64 = 40;

fn examine(evidence: &Evidence) -> Vec<Finding> {
    [PathEnd::Near, PathEnd::Far].into_iter().flat_map(|from| of(evidence, from)).collect()
}

/// The probe of the largest size that arrives.
pub fn probe(evidence: &Evidence, from: PathEnd) -> Option<(u32, &Run)> {
    let arriving = evidence.probes().filter(|(_, run)| run.from == from && run.lost() < 1.0);
    arriving.max_by_key(|(bytes, _)| *bytes)
}

fn of(evidence: &Evidence, from: PathEnd) -> Vec<Finding> {
    let Some((bytes, run)) = probe(evidence, from) else { return Vec::new() };
    let Some(loss) = run.report.datagrams else { return Vec::new() };
    let sent = loss.counts.sent;
    let way = evidence.way(from);
    let mut found = Vec::new();
    for (count, what) in [
        (loss.lost, "lost"),
        (loss.counts.duplicated, "duplicated"),
        (loss.counts.reordered, "overtaken by later ones"),
    ] {
        let share = count as f64 / sent.max(1) as f64;
        if sent < FEW || count < 2 || share <= 0.005 {
            continue;
        }
        let severity = if share > 0.05 && what == "lost" { Severity::Broken } else { Severity::Slow };
        let sentence = format!("{:.1} % of the frames {way} are {what}.", share * 100.0);
        let bps = evidence.run(crate::evidence::RunKind::Stream, from).map(|run| rate(run.bps()));
        let text = bps.map_or("TCP slows down".to_owned(), |bps| format!("throughput {way}: {bps}"));
        let cost = Cost::measured((0.3 + share * 4.0).min(0.97), text);
        let host =
            evidence.facts(from).and_then(|facts| facts.path.as_ref()).map(|path| path.interface.clone());
        let card = host.unwrap_or_else(|| "eth0".to_owned());
        let remedy = Remedy::new(
            "find where: the queueing discipline, the filter and the counters of both machines, the switch's",
        )
        .run(&["tc", "-s", "qdisc", "show", "dev", &card])
        .run(&["tc", "-s", "filter", "show", "dev", &card, "ingress"])
        .run(&["ip", "-s", "-s", "link", "show", "dev", &card])
        .run(&["vmlane", "stats"]);
        let seen = format!("of {sent} datagrams of {bytes} bytes, {count} were {what}");
        found.push(
            CHECK
                .found(severity, sentence, cost)
                .of_way(from)
                .explains(&["retransmits"])
                .evidence(seen)
                .remedy(remedy),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn loss_at_a_low_rate_is_found() {
        let mut evidence = testing::healthy();
        evidence.runs.push(testing::probe(PathEnd::Near, 1501, 100, 6));
        assert_eq!(examine(&evidence)[0].severity, Severity::Broken);
        evidence.runs.push(testing::probe(PathEnd::Near, 1502, 100, 1));
        assert!(examine(&evidence).is_empty(), "one proves nothing");
    }
}
