//! Segments that are sent again, by cause.

use super::{black_hole, captured, policing, super_frames};
use crate::capture::Way;
use crate::facts::Interface;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "retransmits", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found = captured::each(evidence, of_capture);
    found.extend(PathEnd::BOTH.into_iter().filter_map(|from| of_run(evidence, from)));
    found
}

fn of_capture(way: &Way) -> Option<Finding> {
    if super_frames::lost_in(way) || black_hole::is_in(way) || policing::limit_in(way).is_some() {
        return None;
    }
    let again = way.seen.again;
    let lost = again.lost();
    if again.spurious >= 20
        && again.spurious > lost
        && again.spurious as f64 > 0.005 * way.seen.segments as f64
    {
        let what = format!("{} sends segments again that have arrived, to {}.", way.from.ip(), way.to.ip());
        let share = again.spurious as f64 / way.seen.segments.max(1) as f64;
        let cost = Cost::estimated(0.2 + share, "the sender slows down as after a loss");
        let remedy = Remedy::new("find out what lets frames overtake each other (several paths or queues for one connection), for lost \
                                  acknowledgements, and for machines that get no CPU")
            .run(&["nstat", "-az", "TcpExtTCPDSACKRecv", "TcpExtTCPSpuriousRTOs", "TcpExtTCPTSReorder"]);
        return Some(CHECK.slow(what, cost).evidence(causes(way)).remedy(remedy));
    }
    let share = way.lost_share();
    let is_much = lost >= 10 && share > 0.005;
    if !is_much && again.timeout < 3 {
        return None;
    }
    let (from, to) = (way.from.ip(), way.to.ip());
    let waits = again.timeout * 10 >= lost;
    let what = if waits {
        format!(
            "{:.1} % of the segments from {from} to {to} are lost, and it waits for time-outs.",
            share * 100.0
        )
    } else {
        format!("{:.1} % of the segments from {from} to {to} are lost.", share * 100.0)
    };
    let severity = if share > 0.05 { Severity::Broken } else { Severity::Slow };
    let cost = Cost::estimated((0.3 + share * 4.0).min(0.97), format!("{} were reached", rate(way.bps())));
    let remedy = Remedy::new("find where they are lost: compare with a capture of the other end, then the counters of what is between")
        .run(&["ip", "-s", "-s", "link", "show"])
        .run(&["ethtool", "-S", "INTERFACE"])
        .run(&["tc", "-s", "qdisc", "show"])
        .run(&["vmlane", "stats"]);
    Some(CHECK.found(severity, what, cost).evidence(causes(way)).remedy(remedy))
}

fn causes(way: &Way) -> String {
    let again = way.seen.again;
    format!(
        "of {} segments, {} were sent again after duplicate or selective acknowledgements, {} after a time-out, {} as a probe of the \
         end; {} although they had arrived",
        way.seen.segments, again.fast, again.timeout, again.probe, again.spurious
    )
}

/// What TCP of the sending machine has counted. The other checks know the usual causes; this is for the
/// others.
fn of_run(evidence: &Evidence, from: PathEnd) -> Option<Finding> {
    let run = evidence.run(RunKind::Stream, from).filter(|run| run.report.seconds >= 1.0)?;
    let again = run.sent_again();
    if again < 50 || run.retransmitted() <= 0.02 {
        return None;
    }
    // Between programs of one host (veth), frames overtake each other whenever the sender goes on on another
    // CPU.
    let is_card = evidence.facts(from)?.path_interface().is_some_and(Interface::is_card);
    if !is_card && run.lost_segments() * 2 < again {
        return None;
    }
    let count = |name: &str| run.counters(from).stack(&format!("TcpExt.{name}"));
    let fast = count("TCPFastRetrans") + count("TCPSlowStartRetrans");
    let twice = count("TCPDSACKRecvSegs");
    let way = evidence.way(from);
    let what = format!("TCP sends {:.1} % of its segments {way} again.", run.retransmitted() * 100.0);
    let cost = Cost::estimated(0.3, evidence.throughput(from));
    let seen = format!(
        "{again} segments sent again: {fast} after duplicate or selective acknowledgements, {} time-outs, {} probes of the end; {twice} \
         had arrived (TCP_INFO, TcpExt)",
        run.timeouts(),
        count("TCPLossProbes")
    );
    let remedy = if twice * 2 > again {
        Remedy::new(
            "find out what lets frames overtake each other: several paths or queues for one connection",
        )
        .run(&["nstat", "-az", "TcpExtTCPDSACKRecv", "TcpExtTCPTSReorder"])
    } else {
        Remedy::new("capture at both ends and compare: vmlane doctor --pcap FILE FILE")
            .run(&["ip", "-s", "-s", "link", "show"])
    };
    let finding = CHECK.advice(what, cost).at(from).of_way(from);
    Some(finding.evidence(seen).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use vmlane_bench::report::TcpSummary;

    use super::*;
    use crate::testing;

    #[test]
    fn what_tcp_counts_is_reported_by_cause() {
        let mut evidence = testing::healthy();
        evidence.runs.retain(|run| run.kind != RunKind::Stream);
        let tcp = TcpSummary { mss: 1448, retransmits: 4000, ..TcpSummary::default() };
        evidence.runs.push(testing::stream(PathEnd::Near, 1e9, tcp));
        let run = evidence.runs.last_mut().unwrap();
        run.near.stack.insert("TcpExt.TCPFastRetrans".to_owned(), 3900);
        let found = examine(&evidence);
        assert_eq!((found.len(), found[0].severity), (1, Severity::Advice));
        assert!(found[0].evidence[0].contains("3900 after duplicate"), "{:?}", found[0].evidence);
        evidence.runs.last_mut().unwrap().near.stack.insert("TcpExt.TCPDSACKRecvSegs".to_owned(), 3800);
        assert!(examine(&evidence)[0].remedies[0].what.contains("overtake"));
        let bus = std::mem::take(&mut testing::card(&mut evidence).bus);
        assert!(examine(&evidence).is_empty(), "between CPUs of one host");
        testing::card(&mut evidence).bus = bus;
        evidence.runs.last_mut().unwrap().report.seconds = 0.5;
        assert!(examine(&evidence).is_empty(), "a short transfer has just begun");
    }
}
