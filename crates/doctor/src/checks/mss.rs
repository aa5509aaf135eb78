//! Segments smaller than the path allows.

use super::{Check, Threshold};
use crate::evidence::{Evidence, Kind};
use crate::finding::{Cost, Finding, Severity};
use crate::remedy::Remedy;

pub const CHECK: Check = Check {
    name: "small-segments",
    title: "TCP's segments are too small",
    text: "TCP's segments should fill the MTU. If they do not, a route says so (advmss), a firewall or tunnel on the way has \
           rewritten what the ends agreed on (MSS clamping), or the kernel has tried the path and given up (MTU probing after \
           losses). Each segment costs the same, whatever is in it.",
    reads: "the segment size of the measured connection (TCP_INFO) and the MTU of both interfaces",
    thresholds: &[Threshold {
        limit: "below three quarters of the smaller MTU less 40 bytes of headers",
        source: "RFC 9293, section 3.7.1; options take up to 40 bytes, timestamps 12",
    }],
    examine,
};

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let Some(mtu) = evidence.interfaces().map(|(_, _, card)| card.mtu).min() else { return Vec::new() };
    let expected = f64::from(mtu.min(65_535)) - 40.0;
    let found = evidence.runs(Kind::Stream).filter_map(|run| {
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
            "look at advmss and mtu of the routes on both machines, and for MSS clamping on the way",
        )
        .run(&["ip", "route", "get", &peer])
        .run(&["nft", "list", "ruleset"]);
        let finding = Finding::new(CHECK.name, Severity::Slow, what, cost).at(run.from);
        Some(finding.evidence(format!("TCP_INFO: {mss} bytes; MTU {mtu}")).remedy(remedy))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;
    use crate::evidence::End;

    #[test]
    fn segments_are_compared_with_the_mtu() {
        let mut evidence = fixture::healthy();
        let tcp = vmlane_bench::report::TcpSummary { mss: 500, ..Default::default() };
        evidence.runs.push(fixture::stream(End::Near, 1e9, tcp));
        assert_eq!(examine(&evidence).len(), 1);
        evidence.runs.push(fixture::probe(End::Near, 1500, 9, 9));
        assert!(examine(&evidence).is_empty());
    }
}
