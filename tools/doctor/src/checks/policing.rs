//! A limit that drops what exceeds it.

use super::{black_hole, captured, super_frames};
use crate::capture::Way;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "policing", examine };

/// Seconds of a transfer.
const LONG: f64 = 1.0;

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found = captured::each(evidence, of_capture);
    found.extend(PathEnd::BOTH.into_iter().filter_map(|from| of(evidence, from)));
    found
}

/// The steady rate, in bits a second, at which segments are lost all the time.
pub fn limit_in(way: &Way) -> Option<f64> {
    let (mean, deviation, losing) = way.seen.rate.steady()?;
    let lost = way.seen.again.lost();
    // Losses by chance are single ones; what exceeds a rate comes as the end of a burst.
    let in_runs = lost * 2 >= way.seen.again.runs * 3;
    let is_limit = in_runs
        && lost >= 20
        && way.lost_share() > 0.01
        && way.seconds() >= 1.0
        && deviation < 0.15
        && losing > 0.5;
    (is_limit && !black_hole::is_in(way) && !super_frames::lost_in(way)).then_some(mean * 8.0)
}

fn of_capture(way: &Way) -> Option<Finding> {
    let bps = limit_in(way)?;
    let (from, to) = (way.from.ip(), way.to.ip());
    let what = format!("A rate limit of about {} from {from} to {to} drops what exceeds it.", rate(bps));
    let cost = Cost::estimated(0.8, format!("{} and no more", rate(bps)));
    let seen = format!(
        "{} of {} segments lost ({:.1} %), at a steady rate for {:.1} s",
        way.seen.again.lost(),
        way.seen.segments,
        way.lost_share() * 100.0,
        way.seconds()
    );
    let remedy = Remedy::new("find the limit (a policer of tc, the virtual switch's or a cloud's policy), raise it, or shape instead")
        .run(&["tc", "-s", "filter", "show", "dev", "INTERFACE", "ingress"])
        .run(&["tc", "-s", "qdisc", "show"])
        .lasting("vmlane", "shape of the NIC or of its port group delays instead of dropping");
    Some(CHECK.slow(what, cost).evidence(seen).remedy(remedy))
}

fn of(evidence: &Evidence, from: PathEnd) -> Option<Finding> {
    // A short transfer that has just lost something shows nothing of its steady rate.
    let run = evidence.run(RunKind::Stream, from).filter(|run| run.report.seconds >= LONG)?;
    let lost = run.lost_segments();
    let (bytes, probe) = evidence.largest_probe(from)?;
    let large_ones_lost = evidence.probes().any(|(_, probe)| probe.from == from && probe.lost() >= 1.0);
    if lost < 20 || run.part_of_segments(lost) <= 0.01 || probe.lost() > 0.005 || large_ones_lost {
        return None;
    }
    let loopback = evidence.loopback(from).map_or(0.0, |bps| bps / 10.0);
    let expected = evidence.bps(from.other()).max(loopback);
    // What lets more through at another time, and loses nothing of it, is no limit of the rate.
    let is_other = super_frames::is_broken(evidence, from) || probe.bps() > 1.5 * run.bps();
    if is_other || run.bps() > expected / 5.0 {
        return None;
    }
    let way = evidence.way(from);
    let what = format!("A rate limit of about {} {way} drops what exceeds it.", rate(run.bps()));
    let share = 1.0 - run.bps() / expected.max(1.0);
    let cost = Cost::measured(share, format!("{} of at least {}", rate(run.bps()), rate(expected)));
    let card = evidence.facts(from.other())?.path_interface()?.name.clone();
    let remedy = Remedy::new("find the limit (a policer of tc, the virtual switch's or a cloud's policy), raise it, or shape instead")
        .run(&["tc", "-s", "filter", "show", "dev", &card, "ingress"])
        .run(&["tc", "-s", "qdisc", "show"])
        .lasting("vmlane", "shape of the NIC or of its port group delays instead of dropping")
        .lasting("VMware", "traffic shaping of the port group");
    let seen = format!("{lost} segments lost, {:.1} %", run.part_of_segments(lost) * 100.0);
    let (sent, part) = (probe.report.datagrams?.counts.sent, probe.lost() * 100.0);
    let slow = format!("of {sent} slow datagrams of {bytes} bytes, {part:.1} % lost");
    let finding = CHECK.slow(what, cost).of_way(from).explains(&["retransmits"]);
    Some(finding.evidence(seen).evidence(slow).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use vmlane_bench::report::TcpSummary;

    use super::*;
    use crate::testing;

    #[test]
    fn losses_at_a_high_rate_only_are_a_limit() {
        let mut evidence = testing::healthy();
        evidence.runs.retain(|run| run.kind != RunKind::Stream || run.from != PathEnd::Near);
        let tcp = TcpSummary { mss: 1448, retransmits: 300, ..TcpSummary::default() };
        evidence.runs.push(testing::stream(PathEnd::Near, 2e7, tcp));
        assert_eq!(examine(&evidence).len(), 1);
        let run = evidence.runs.last_mut().unwrap();
        run.near.stack.insert("TcpExt.TCPDSACKRecvSegs".to_owned(), 300);
        assert!(examine(&evidence).is_empty(), "what arrived twice was not lost");
        evidence.runs.last_mut().unwrap().near.stack.clear();
        assert_eq!(examine(&evidence).len(), 1);
        let is_probe = |run: &Run| matches!(run.kind, RunKind::Probe { .. }) && run.from == PathEnd::Near;
        let probe = evidence.runs.iter().position(is_probe).unwrap();
        for (bps, found) in [(3.6e7, 0), (6e6, 1)] {
            evidence.runs[probe].report.throughput_bps = Some(bps);
            assert_eq!(examine(&evidence).len(), found, "all datagrams arrive at {bps} bits a second");
        }
        evidence.runs.push(testing::probe(PathEnd::Near, 1501, 100, 10));
        assert!(examine(&evidence).is_empty(), "frames are lost at any rate");
    }
}
