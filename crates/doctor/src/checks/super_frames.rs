//! Segmentation offload that loses what it should cut.

use super::{Check, Threshold, captured};
use crate::capture::Way;
use crate::evidence::{End, Evidence, Kind, Run};
use crate::finding::{Cost, Finding, Severity};
use crate::remedy::Remedy;
use crate::text::rate;

pub const CHECK: Check = Check {
    name: "super-frames-lost",
    title: "Segmentation offload is broken",
    text: "With TCP segmentation offload the stack hands down frames of up to 64 KiB, and the card or the switch cuts them. Where \
           that is broken, such super-frames never arrive. After a time-out TCP sends the data again in single segments, which \
           arrive; then it tries a super-frame again. Pings, logins and small requests work, and a transfer crawls at a few hundred \
           kilobits a second. A capture in the sending VM shows packets above the MTU that are sent again in pieces.",
    reads: "requests of one segment against requests of many over one connection, time-outs (TcpExt.TCPTimeouts), datagrams of the \
            MTU, and whether tx-tcp-segmentation is on; in captures of the sender's end: frames larger than a segment, and whether \
            they are sent again in pieces",
    thresholds: &[
        Threshold {
            limit: "in captures: at least three frames above a segment of which nothing arrived, and more than half of all such frames",
            source: "the case of 2013: a capture with a frame of 16 KB above an MTU of 9000, sent again in pieces after each time-out",
        },
        Threshold {
            limit: "requests of 32 KiB below a twentieth of those of 1000 bytes, with time-outs, or below 6 a second beside at least ten \
                of 1000 bytes; or each of them with segments sent again, a median ten times as long and two thirds of a transfer's rate, \
                and none of 1000 bytes; while datagrams of the MTU arrive",
            source: "RFC 6298: a time-out takes at least 200 ms in Linux, a round trip in a network below 1 ms; the case of 2013: \
                 168 KB in 1.3 s, with offload off 12.1 Gbit/s",
        },
    ],
    examine,
};

/// Requests a second that wait for time-outs of 200 ms and more.
const SLOW: f64 = 6.0;
/// Small requests that show, without any time-out, that the machines had their CPUs meanwhile.
const ENOUGH: f64 = 10.0;

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let measured = [End::Near, End::Far]
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
    let finding = Finding::new(CHECK.name, Severity::Broken, what, cost).evidence(shown);
    Some(finding.remedy(tso).remedy(driver))
}

/// Whether many segments at once time out from this end, and single ones do not.
pub fn is_broken(evidence: &Evidence, from: End) -> bool {
    let (Some(small), Some(large)) =
        (evidence.run(Kind::SmallRequests, from), evidence.run(Kind::LargeRequests, from))
    else {
        return false;
    };
    let per_second = |run: &Run| run.report.transactions_per_second.unwrap_or(0.0);
    let probes_arrive =
        evidence.probes().filter(|(_, run)| run.from == from).all(|(_, run)| run.lost() < 0.5);
    let enough = per_second(small) * small.report.seconds >= ENOUGH;
    let waits = large.timeouts() > 0 || enough && per_second(large) < SLOW;
    let ratio = per_second(large) / per_second(small);
    probes_arrive && ratio.is_finite() && (waits && ratio < 1.0 / 20.0 || each_loses(evidence, small, large))
}

/// With segments of 9000 bytes there are few to a super-frame: the last one is soon sent again alone and arrives, which makes
/// TCP send the others again without a time-out. Then each request loses something, at a rate at which a longer transfer
/// gets through: what exceeds a rate limit does not do that.
fn each_loses(evidence: &Evidence, small: &Run, large: &Run) -> bool {
    let per_second = |run: &Run| run.report.transactions_per_second.unwrap_or(0.0);
    let count = per_second(large) * large.report.seconds;
    let bps = per_second(large) * f64::from(32 << 10) * 8.0;
    let stream = evidence.run(Kind::Stream, large.from).map_or(0.0, Run::bps);
    let trips = small.median_us().zip(large.median_us());
    small.sent_again() == 0
        && count >= 5.0
        && large.sent_again() as f64 >= count
        && large.retransmitted() > 0.15
        && bps < stream * 2.0 / 3.0
        && trips.is_some_and(|(small, large)| large > 10.0 * small)
}

fn finding(evidence: &Evidence, from: End) -> Option<Finding> {
    let card = evidence.facts(from)?.path_interface()?;
    let (small, large) = (evidence.run(Kind::SmallRequests, from)?, evidence.run(Kind::LargeRequests, from)?);
    let per_second = |run: &Run| run.report.transactions_per_second.unwrap_or(0.0);
    let way = evidence.way(from);
    let what = format!("Frames above the MTU (segmentation offload) are lost {way}; single segments arrive.");
    let bps = evidence.run(Kind::Stream, from).map_or(0.0, |run| run.bps());
    let cost = Cost::measured(0.99, format!("throughput {way}: {}", rate(bps)));
    let timeouts = evidence.run(Kind::Stream, from).map_or(0, |run| run.timeouts());
    let on = card.feature("tx-tcp-segmentation").is_some_and(|feature| feature.on);
    let finding = Finding::new(CHECK.name, Severity::Broken, what, cost)
        .at(from)
        .evidence(format!(
            "requests of 1000 bytes: {:.1} a second; of 32 KiB: {:.1}",
            per_second(small),
            per_second(large)
        ))
        .evidence(format!("{timeouts} time-outs (TcpExt.TCPTimeouts) during the transfer"))
        .evidence(format!("tx-tcp-segmentation of {} is {}", card.name, if on { "on" } else { "off" }));
    let tso = Remedy::offload(&card.name, "tso", false, "TCPSegmentationOffload", "Lso");
    let gso = Remedy::offload(&card.name, "gso", false, "GenericSegmentationOffload", "Uso");
    let driver = Remedy::new("update what cuts them: the card's driver, the virtual switch, the host's card");
    Some(finding.remedy(tso).remedy(gso).remedy(driver))
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    fn requests(kind: Kind, per_second: f64) -> crate::evidence::Run {
        fixture::run(
            kind,
            End::Near,
            &format!(r#"{{"transactions_per_second":{per_second:?},"seconds":0.3}}"#),
        )
    }

    #[test]
    fn many_segments_time_out_and_one_does_not() {
        let mut evidence = fixture::healthy();
        evidence.runs.push(requests(Kind::SmallRequests, 900.0));
        assert!(examine(&evidence).is_empty());
        let mut large = requests(Kind::LargeRequests, 4.0);
        large.near.stack.insert("TcpExt.TCPTimeouts".to_owned(), 4);
        evidence.runs.push(large);
        assert_eq!(examine(&evidence).len(), 1);
        // A guest that got no CPU for a moment, and counted no time-out.
        let mut starved = fixture::healthy();
        starved.runs.push(requests(Kind::SmallRequests, 4.0));
        starved.runs.push(requests(Kind::LargeRequests, 0.0));
        assert!(examine(&starved).is_empty(), "{:?}", examine(&starved));
        starved.runs.insert(0, requests(Kind::SmallRequests, 900.0));
        assert_eq!(examine(&starved).len(), 1);
        evidence.runs.push(fixture::probe(End::Near, 1400, 10, 9));
        assert!(examine(&evidence).is_empty(), "then single frames are lost, too");
    }

    /// As seen between two VMs with jumbo frames and a port that loses longer ones.
    #[test]
    fn few_large_segments_are_sent_again_without_a_time_out() {
        let requests = |kind, per_second: f64, us: f64, again: u64| {
            let mut run = fixture::round_trips(kind, us);
            run.report.transactions_per_second = Some(per_second);
            run.report.seconds = 1.0;
            run.report.bytes = (per_second * 32768.0) as u64;
            run.report.tcp.local = Some(vmlane_bench::report::TcpSummary {
                mss: 8948,
                retransmits: again,
                ..Default::default()
            });
            run
        };
        let mut evidence = fixture::healthy();
        evidence.runs.retain(|run| run.kind != Kind::Stream);
        evidence.runs.push(fixture::stream(End::Near, 1.07e7, Default::default()));
        evidence.runs.push(requests(Kind::SmallRequests, 165.0, 1665.0, 0));
        evidence.runs.push(requests(Kind::LargeRequests, 22.0, 38175.0, 35));
        assert!(is_broken(&evidence, End::Near));
        // A rate limit: they get what a transfer gets.
        let large = evidence.runs.pop().unwrap();
        evidence.runs.push(requests(Kind::LargeRequests, 38.0, 25000.0, 60));
        assert!(!is_broken(&evidence, End::Near));
        // Some lose nothing.
        *evidence.runs.last_mut().unwrap() = requests(Kind::LargeRequests, 22.0, 38175.0, 20);
        assert!(!is_broken(&evidence, End::Near));
        // So do single ones.
        *evidence.runs.last_mut().unwrap() = large;
        evidence.runs.insert(0, requests(Kind::SmallRequests, 165.0, 1665.0, 3));
        assert!(!is_broken(&evidence, End::Near));
    }
}
