//! Segments smaller than the path allows.

use std::cmp::Ordering;

use super::captured;
use crate::capture::{Opening, Way};
use crate::prelude::*;

pub const CHECK: Check = Check { name: "small-segments", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut captured = captured::each(evidence, of_capture);
    let Some(mtu) = evidence.interfaces().map(|(_, _, card)| card.mtu).min() else { return captured };
    let expected = f64::from(mtu.min(65_535)) - 40.0;
    let found = evidence.runs(RunKind::Stream).filter_map(|run| {
        let mss = run.tcp()?.mss;
        // After a black hole was met, small segments are its cure.
        let is_cure = evidence.probes().any(|(_, probe)| probe.from == run.from && probe.lost() >= 1.0);
        if mss == 0 || is_cure || mss as f64 >= 0.75 * expected {
            return None;
        }
        let way = evidence.way(run.from);
        let what = format!("TCP sends segments of {mss} bytes {way}, where {expected} bytes fit.");
        let share = 1.0 - mss as f64 / expected;
        let cost = Cost::estimated(
            share,
            format!("{:.1} times as many segments for the same data", expected / mss as f64),
        );
        let peer = evidence.facts(run.from)?.path.as_ref()?.peer.to_string();
        let remedy = Remedy::new(
            "check advmss and mtu of the routes on both machines, and search for MSS clamping on the way",
        )
        .run(&["ip", "route", "get", &peer])
        .run(&["nft", "list", "ruleset"]);
        let finding = CHECK.slow(what, cost).at(run.from).of_way(run.from);
        Some(finding.evidence(format!("TCP_INFO: {mss} bytes; MTU {mtu}")).remedy(remedy))
    });
    captured.extend(found);
    captured
}

fn of_capture(way: &Way) -> Option<Finding> {
    let of = |opening: Option<Opening>| opening?.mss.map(u32::from);
    let (sends, receives) = (of(way.sender)?, of(way.receiver)?);
    if way.seen.delivered < 100_000 {
        return None;
    }
    let (from, to) = (way.from.ip(), way.to.ip());
    let seen = format!("first segments: {from} takes segments of {sends} bytes, {to} of {receives}");
    let remedy =
        Remedy::new("compare the MTUs of both machines and of what is between, and search for MSS clamping")
            .run(&["ip", "link", "show"])
            .run(&["ip", "route", "get", &to.to_string()]);
    let mss = sends.min(receives);
    if mss < 1200 {
        let what = match sends.cmp(&receives) {
            Ordering::Less => format!("{from} asks for segments of only {mss} bytes."),
            Ordering::Greater => format!("{to} asks for segments of only {mss} bytes."),
            Ordering::Equal => format!("{from} and {to} both ask for segments of only {mss} bytes."),
        };
        let times = 1448.0 / f64::from(mss.max(1));
        let cost = Cost::estimated(
            1.0 - 1.0 / times,
            format!("{times:.1} times as many segments for the same data"),
        );
        return Some(CHECK.slow(what, cost).evidence(seen).remedy(remedy));
    }
    if sends.abs_diff(receives) <= 100 {
        return None;
    }
    // Behind a router that may be right, and what is between may have rewritten one of them.
    let what = format!(
        "{from} asks for segments of {sends} bytes and {to} for {receives}: their MTUs differ, or one was clamped on the way."
    );
    let cost = Cost::estimated(0.2, format!("segments of {mss} bytes instead of {}", sends.max(receives)));
    Some(CHECK.advice(what, cost).evidence(seen).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn segments_are_compared_with_the_mtu() {
        let mut evidence = testing::healthy();
        let tcp = vmlane_bench::report::TcpSummary { mss: 500, ..Default::default() };
        evidence.runs.push(testing::stream(PathEnd::Near, 1e9, tcp));
        assert_eq!(examine(&evidence).len(), 1);
        evidence.runs.push(testing::probe(PathEnd::Near, 1500, 9, 9));
        assert!(examine(&evidence).is_empty());
    }
}
