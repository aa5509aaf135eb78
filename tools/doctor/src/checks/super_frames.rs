//! Segmentation offload that loses what it should cut.

use super::captured;
use crate::capture::Way;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "super-frames-lost", examine };

/// Requests a second that wait for time-outs of 200 ms and more.
const SLOW: f64 = 6.0;
/// Small requests that show, without any time-out, that the machines had their CPUs meanwhile.
const ENOUGH: f64 = 10.0;
/// Segments of requests that are sent again, from which a share means something.
const FEW: u64 = 10;
/// Single segments from which a share means something, and pairs.
const SLOWLY: f64 = 5.0;
/// Datagrams of one frame that are lost, from which it is not for their length.
const LOSSY: f64 = 0.05;
/// Segments of pairs that are sent again. Not for each pair: after a few losses TCP's window is so small that
/// it sends the two segments apart, and they arrive.
const AGAIN: u64 = 4;

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let measured = PathEnd::BOTH
        .into_iter()
        .filter(|from| is_broken(evidence, *from))
        .filter_map(|from| finding(evidence, from));
    captured::each(evidence, of_capture).into_iter().chain(measured).collect()
}

/// Whether most frames above a segment are lost as a whole.
pub fn lost_in(way: &Way) -> bool {
    way.seen.super_frames_lost >= 3 && way.seen.super_frames_lost * 2 > way.seen.super_frames
}

fn of_capture(way: &Way) -> Option<Finding> {
    if !lost_in(way) {
        return None;
    }
    let seen = &way.seen;
    let (from, to) = (way.from.ip(), way.to.ip());
    let what = format!(
        "Frames above the MTU (segmentation offload) of {from} never arrive at {to}; single segments do."
    );
    let cost = Cost::measured(0.99, format!("throughput: {}", rate(way.bps())));
    let shown = format!(
        "{} of {} frames above a segment of {} bytes (up to {}) were lost and sent again in pieces, {} segments after time-outs",
        seen.super_frames_lost,
        seen.super_frames,
        way.mss().unwrap_or(0),
        seen.largest_super_frame,
        seen.again.timeout
    );
    let tso = Remedy::offload("INTERFACE", "tso", false, "TCPSegmentationOffload", "Lso");
    let driver = Remedy::new("update what cuts them: the card's driver, the virtual switch, the host's card");
    let finding = CHECK.broken(what, cost).evidence(shown);
    Some(finding.remedy(tso).remedy(driver))
}

/// Whether many segments at once time out from this end, and single ones do not.
pub fn is_broken(evidence: &Evidence, from: PathEnd) -> bool {
    let (Some(small), Some(large)) =
        (evidence.run(RunKind::SmallRequests, from), evidence.run(RunKind::LargeRequests, from))
    else {
        return false;
    };
    let probes_arrive =
        evidence.probes().filter(|(_, run)| run.from == from).all(|(_, run)| run.lost() < LOSSY);
    let enough = small.per_second() * small.report.seconds >= ENOUGH;
    let waits = large.timeouts() > 0 || enough && large.per_second() < SLOW;
    let ratio = large.per_second() / small.per_second();
    let is_slow = waits && ratio < 1.0 / 20.0 || ratio < 1.0 / 5.0 && are_lost(small, large);
    let by_requests = is_slow && !pairs_arrive(evidence, from);
    probes_arrive && ratio.is_finite() && (by_requests || only_pairs_are_lost(evidence, from))
}

/// Whether requests of many segments are lost, and such of one segment are not. Half of the former need not
/// wait for a time-out: TCP sends the end of what was lost again alone, which arrives, and after a few losses
/// it sends all segments apart.
fn are_lost(small: &Run, large: &Run) -> bool {
    large.sent_again() >= FEW && large.retransmitted() >= 0.4 && small.retransmitted() < 0.02
}

/// Segments that go two at a time, and how many of them were sent again.
fn pairs(evidence: &Evidence, from: PathEnd) -> Option<(f64, u64)> {
    let run = evidence.run(RunKind::SlowPairs, from)?;
    Some((sent(run, 2), run.sent_again())).filter(|(sent, _)| *sent >= SLOWLY)
}

/// How often a run sent so many segments at a time.
fn sent(run: &Run, segments: u64) -> f64 {
    run.report.bytes as f64 / run.tcp().map_or(1448, |tcp| (tcp.mss * segments).max(1)) as f64
}

/// So many of so many pairs sent again.
fn often(again: u64, pairs: f64) -> bool {
    again >= AGAIN && again as f64 >= pairs / 8.0
}

/// What exceeds a rate limit makes requests of many segments time out, too; at a low rate the limit lets
/// pairs through, which are as much above the MTU.
fn pairs_arrive(evidence: &Evidence, from: PathEnd) -> bool {
    pairs(evidence, from).is_some_and(|(sent, again)| !often(again, sent))
}

/// With segments of 9000 bytes there are few to a super-frame: the last one is soon sent again alone and
/// arrives, which makes TCP send the others again without a time-out. So does what exceeds a rate limit, but
/// not at a fraction of the rate at which a transfer gets through, and then as many single segments are lost
/// as such that come in pairs.
fn only_pairs_are_lost(evidence: &Evidence, from: PathEnd) -> bool {
    let (Some(single), Some((pairs, again))) =
        (evidence.run(RunKind::SlowSegments, from), pairs(evidence, from))
    else {
        return false;
    };
    let single_sent = sent(single, 1);
    single_sent >= SLOWLY && single.sent_again() as f64 <= single_sent / 20.0 && often(again, pairs)
}

fn finding(evidence: &Evidence, from: PathEnd) -> Option<Finding> {
    let card = evidence.facts(from)?.path_interface()?;
    let (small, large) =
        (evidence.run(RunKind::SmallRequests, from)?, evidence.run(RunKind::LargeRequests, from)?);
    let way = evidence.way(from);
    let what = format!("Frames above the MTU (segmentation offload) are lost {way}; single segments arrive.");
    let cost = Cost::measured(0.99, evidence.throughput(from));
    let timeouts = evidence.run(RunKind::Stream, from).map_or(0, |run| run.timeouts());
    let on = card.feature("tx-tcp-segmentation").is_some_and(|feature| feature.on);
    let finding = CHECK
        .broken(what, cost)
        .at(from)
        .of_way(from)
        .explains(&["retransmits"])
        .evidence(format!(
            "requests of 1000 bytes: {:.1} a second; of 32 KiB: {:.1}",
            small.per_second(),
            large.per_second()
        ))
        .evidence(format!("{timeouts} time-outs (TcpExt.TCPTimeouts) during the transfer"))
        .evidence(format!("tx-tcp-segmentation of {} is {}", card.name, if on { "on" } else { "off" }));
    let again = |kind| evidence.run(kind, from).map(Run::sent_again);
    let finding = match (again(RunKind::SlowSegments), again(RunKind::SlowPairs)) {
        (Some(single), Some(pairs)) => finding.evidence(format!(
            "at a quarter of a transfer's rate, segments sent again: {single} of single ones, {pairs} of pairs"
        )),
        _ => finding,
    };
    let tso = Remedy::offload(&card.name, "tso", false, "TCPSegmentationOffload", "Lso");
    let gso = Remedy::offload(&card.name, "gso", false, "GenericSegmentationOffload", "Uso");
    let driver = Remedy::new("update what cuts them: the card's driver, the virtual switch, the host's card");
    Some(finding.remedy(tso).remedy(gso).remedy(driver))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn requests(kind: RunKind, per_second: f64) -> crate::evidence::Run {
        testing::run(
            kind,
            PathEnd::Near,
            &format!(r#"{{"transactions_per_second":{per_second:?},"seconds":0.3}}"#),
        )
    }

    #[test]
    fn many_segments_time_out_and_one_does_not() {
        let mut evidence = testing::healthy();
        evidence.runs.push(requests(RunKind::SmallRequests, 900.0));
        assert!(examine(&evidence).is_empty());
        let mut large = requests(RunKind::LargeRequests, 4.0);
        large.near.stack.insert("TcpExt.TCPTimeouts".to_owned(), 4);
        evidence.runs.push(large);
        assert_eq!(examine(&evidence).len(), 1);
        // A guest that got no CPU for a moment, and counted no time-out.
        let mut starved = testing::healthy();
        starved.runs.push(requests(RunKind::SmallRequests, 4.0));
        starved.runs.push(requests(RunKind::LargeRequests, 0.0));
        assert!(examine(&starved).is_empty(), "{:?}", examine(&starved));
        starved.runs.insert(0, requests(RunKind::SmallRequests, 900.0));
        assert_eq!(examine(&starved).len(), 1);
        evidence.runs.push(testing::probe(PathEnd::Near, 1400, 10, 9));
        assert!(examine(&evidence).is_empty(), "then single frames are lost, too");
    }

    /// As seen between two VMs in a quick examination: TCP had soon lost so much that it sent all segments
    /// apart.
    #[test]
    fn half_of_the_segments_of_long_requests_and_none_of_short_ones() {
        let sends_again = |mut run: Run, segments: u64, again: u64| {
            run.report.bytes = segments * 1448;
            let tcp =
                vmlane_bench::report::TcpSummary { mss: 1448, retransmits: again, ..Default::default() };
            run.report.tcp.local = Some(tcp);
            run
        };
        for (again, per_second, found) in [(90, 124.0, 1), (20, 124.0, 0), (90, 500.0, 0)] {
            let mut evidence = testing::healthy();
            evidence.runs.push(sends_again(requests(RunKind::SmallRequests, 1607.0), 800, 1));
            evidence.runs.push(sends_again(requests(RunKind::LargeRequests, per_second), 84, again));
            assert_eq!(examine(&evidence).len(), found, "{again} sent again");
            let lossy = sends_again(requests(RunKind::SmallRequests, 1607.0), 800, 40);
            evidence.runs.retain(|run| run.kind != RunKind::SmallRequests);
            evidence.runs.push(lossy);
            assert!(examine(&evidence).is_empty(), "then single segments are lost, too");
        }
    }

    fn slow(kind: RunKind, frames: u64, segments: u64, again: u64) -> Run {
        let mut run = testing::run(kind, PathEnd::Near, "{}");
        run.report.bytes = frames * segments * 8948;
        let tcp = vmlane_bench::report::TcpSummary { mss: 8948, retransmits: again, ..Default::default() };
        run.report.tcp.local = Some(tcp);
        run
    }

    /// As seen between two VMs with a policer of 20 Mbit/s.
    #[test]
    fn what_a_rate_limit_drops_is_not_lost_for_its_length() {
        let mut evidence = testing::healthy();
        evidence.runs.push(requests(RunKind::SmallRequests, 870.0));
        let mut large = requests(RunKind::LargeRequests, 36.6);
        large.near.stack.insert("TcpExt.TCPTimeouts".to_owned(), 4);
        evidence.runs.push(large);
        evidence.runs.push(slow(RunKind::SlowSegments, 40, 1, 0));
        for (again, found) in [(0, 0), (4, 0), (40, 1)] {
            evidence.runs.retain(|run| run.kind != RunKind::SlowPairs);
            evidence.runs.push(slow(RunKind::SlowPairs, 40, 2, again));
            assert_eq!(examine(&evidence).len(), found, "{again} sent again");
        }
    }

    /// Two VMs with jumbo frames and a port that loses longer ones: 4 segments a request, and no time-out.
    #[test]
    fn pairs_are_lost_at_a_low_rate_and_single_segments_are_not() {
        for (single, single_again, pairs, pairs_again, is_it) in [
            (20, 0, 20, 20, true),
            // As seen between two VMs.
            (24, 0, 25, 12, true),
            (20, 1, 20, 4, true),
            // Chance loses single ones, too; a rate limit loses neither.
            (20, 2, 20, 12, false),
            (20, 0, 20, 3, false),
            (20, 0, 40, 4, false),
            (20, 0, 20, 0, false),
            (20, 0, 4, 5, false),
            (4, 0, 20, 20, false),
        ] {
            let mut evidence = testing::healthy();
            evidence.runs.push(requests(RunKind::SmallRequests, 165.0));
            evidence.runs.push(requests(RunKind::LargeRequests, 42.0));
            evidence.runs.push(slow(RunKind::SlowSegments, single, 1, single_again));
            evidence.runs.push(slow(RunKind::SlowPairs, pairs, 2, pairs_again));
            let found = examine(&evidence);
            assert_eq!(found.len(), usize::from(is_it), "{single_again} {pairs} {pairs_again}: {found:?}");
            evidence.runs.push(testing::probe(PathEnd::Near, 1400, 10, 9));
            assert!(examine(&evidence).is_empty(), "then single frames are lost, too");
        }
    }
}
