//! The table of causes and signs, walked in pairs: where one cause acts, with all its effects, the report
//! names that cause first and no other one.

use std::collections::BTreeSet;

use vmlane_bench::report::TcpSummary;

use super::super::ALL;
use super::*;
use crate::evidence::Run;
use crate::facts::{Coalescing, Limit, Limits, Neighbour, Process, Rings, Route};
use crate::finding::settle;
use crate::prelude::*;
use crate::testing;

const NEAR: PathEnd = PathEnd::Near;

fn stream(evidence: &mut Evidence, from: PathEnd) -> &mut Run {
    let mut runs = evidence.runs.iter_mut();
    runs.find(|run| run.kind == RunKind::Stream && run.from == from).unwrap()
}

/// What is measured of a transfer from the near end; what was counted meanwhile stays.
fn measure(evidence: &mut Evidence, bps: f64, tcp: TcpSummary) {
    let run = stream(evidence, NEAR);
    let (near, far) = (std::mem::take(&mut run.near), std::mem::take(&mut run.far));
    *run = Run { near, far, ..testing::stream(NEAR, bps, tcp) };
}

/// What is sent from the near end arrives at 20 Mbit/s, and a part is lost.
fn lossy(evidence: &mut Evidence) {
    let tcp = TcpSummary {
        mss: 1448,
        retransmits: 300,
        rtt_us: 900.0,
        busy_us: 1_000_000,
        ..TcpSummary::default()
    };
    measure(evidence, 2e7, tcp);
}

/// The sender waits for the receiver's window.
fn waits_for_window(evidence: &mut Evidence) {
    let tcp = TcpSummary {
        mss: 1448,
        rtt_us: 500.0,
        busy_us: 1_000_000,
        rwnd_limited_us: 900_000,
        ..TcpSummary::default()
    };
    measure(evidence, 3e7, tcp);
}

/// It sends only part of the time, and loses nothing.
fn pauses(evidence: &mut Evidence) {
    let tcp = TcpSummary { mss: 1448, rtt_us: 500.0, busy_us: 200_000, ..TcpSummary::default() };
    measure(evidence, 5e7, tcp);
}

fn answers_late(evidence: &mut Evidence) {
    counted_far(evidence, "Program.PausedUsec", 4_000_000);
}

fn round_trips_of(evidence: &mut Evidence, us: f64) {
    evidence.runs.retain(|run| run.kind != RunKind::RoundTrips);
    evidence.runs.push(testing::round_trips(RunKind::RoundTrips, us));
}

/// A limit of the near end that has dropped 500 of 10,000 packets.
fn limits(evidence: &mut Evidence, place: &str, text: &str, into: fn(&mut Limits) -> &mut Vec<Limit>) {
    let of = |dropped, passed| {
        let mut limits = Limits::default();
        let (place, text) = (place.to_owned(), text.to_owned());
        into(&mut limits).push(Limit { place, text, dropped, passed, counts: true, ..Limit::default() });
        limits
    };
    (evidence.near.limits, evidence.limits_near) = (of(0, 0), Some(of(500, 10_000)));
}

fn counted_far(evidence: &mut Evidence, counter: &str, count: u64) {
    stream(evidence, NEAR).far.stack.insert(counter.to_owned(), count);
}

/// Puts signs into the evidence of a healthy pair.
type Act = fn(&mut Evidence);

/// Each cause with its own signs and those that others have, too.
const CAUSES: &[(&str, Act)] = &[
    ("policing", lossy),
    ("loss", |evidence| {
        lossy(evidence);
        evidence.runs.push(testing::probe(NEAR, 1501, 100, 10));
    }),
    ("queueing", |evidence| {
        lossy(evidence);
        limits(evidence, "eth0", "qdisc tbf 8001: dev eth0 root rate 20Mbit burst 32Kb", |limits| {
            &mut limits.queueing
        });
    }),
    ("queueing", |evidence| {
        round_trips_of(evidence, 80_000.0);
        limits(evidence, "eth0", "qdisc netem 1: dev eth0 root limit 1000 delay 80ms", |limits| {
            &mut limits.queueing
        });
    }),
    ("traffic-filter", |evidence| {
        lossy(evidence);
        limits(evidence, "eth0", "action police 0x1 rate 20Mbit action drop", |limits| &mut limits.filters);
    }),
    ("firewall", |evidence| {
        lossy(evidence);
        evidence.runs.push(testing::probe(NEAR, 1501, 100, 10));
        limits(
            evidence,
            "nftables: inet f, chain input",
            "limit rate over 20 mbytes/second drop",
            |limits| &mut limits.firewall,
        );
    }),
    ("conntrack", |evidence| {
        lossy(evidence);
        counted_far(evidence, "Conntrack.drop", 50);
        evidence.runs.push(testing::probe(NEAR, 1501, 100, 10));
    }),
    ("backlog", |evidence| {
        lossy(evidence);
        counted_far(evidence, crate::facts::SOFTNET_DROPS, 300);
    }),
    ("rings", |evidence| {
        lossy(evidence);
        evidence.runs.push(testing::probe(NEAR, 1501, 100, 0));
        let drops = [("rx_missed_errors".to_owned(), 300), ("rx_packets".to_owned(), 20_000)];
        stream(evidence, NEAR).far.interface.extend(drops);
        testing::far(evidence).interfaces[0].rings =
            Some(Rings { rx: 64, rx_max: 4096, tx: 512, tx_max: 4096 });
    }),
    ("path-mtu", |evidence| {
        lossy(evidence);
        evidence.runs.retain(|run| !matches!(run.kind, RunKind::Probe { .. }) || run.from != NEAR);
        evidence.runs.extend([testing::probe(NEAR, 1500, 100, 100), testing::probe(NEAR, 1400, 100, 0)]);
    }),
    ("mtu-mismatch", |evidence| {
        testing::card(evidence).mtu = 9000;
        evidence.runs.push(testing::probe(NEAR, 9000, 10, 10));
    }),
    ("tcp-memory", |evidence| {
        lossy(evidence);
        counted_far(evidence, "TcpExt.TCPMemoryPressures", 3);
        counted_far(evidence, "TcpExt.TCPToZeroWindowAdv", 90);
    }),
    ("socket-buffers", |evidence| {
        waits_for_window(evidence);
        let rmem = ("net.ipv4.tcp_rmem".to_owned(), "4096 16384 32768".to_owned());
        testing::far(evidence).sysctls.0.extend([rmem]);
    }),
    ("zero-window", |evidence| {
        waits_for_window(evidence);
        counted_far(evidence, "TcpExt.TCPToZeroWindowAdv", 90);
    }),
    ("route", |evidence| {
        waits_for_window(evidence);
        let metrics = [("window".to_owned(), "8000".to_owned())].into();
        let kind = "unicast".to_owned();
        testing::far(evidence).limits.route = Some(Route { kind, metrics, ..Route::default() });
    }),
    ("tcp-options", |evidence| {
        waits_for_window(evidence);
        let off = ("net.ipv4.tcp_window_scaling".to_owned(), "0".to_owned());
        testing::far(evidence).sysctls.0.extend([off]);
    }),
    ("latency", |evidence| round_trips_of(evidence, 20_000.0)),
    ("kernel-setting", |evidence| {
        round_trips_of(evidence, 20_000.0);
        evidence.near.limits.interface.insert("gro_flush_timeout".to_owned(), 20_000_000);
    }),
    ("other-traffic", |evidence| {
        let frames = ("rx_packets".to_owned(), 90_000);
        evidence.runs.iter_mut().for_each(|run| run.far.interface.extend([frames.clone()]));
    }),
    ("bufferbloat", |evidence| {
        stream(evidence, NEAR).report.tcp.local.as_mut().unwrap().rtt_us = 300_000.0;
        evidence.runs.push(testing::round_trips(RunKind::Loaded, 300_000.0));
    }),
    ("interrupt-moderation", |evidence| {
        round_trips_of(evidence, 1_200.0);
        testing::card(evidence).coalescing = Some(Coalescing { rx_us: 1000, ..Coalescing::default() });
    }),
    ("busy-cpu", |evidence| {
        pauses(evidence);
        evidence.near.load.busiest = vec![Process { pid: 7, name: "indexer".to_owned(), cpus: 0.9 }];
    }),
    ("cpu-quota", |evidence| {
        pauses(evidence);
        answers_late(evidence);
        stream(evidence, NEAR).near.stack.insert("Cgroup.ThrottledUsec".to_owned(), 4_000_000);
    }),
    ("memory-pressure", |evidence| {
        pauses(evidence);
        answers_late(evidence);
        counted_far(evidence, "Pressure.MemoryUsec", 4_000_000);
    }),
    ("accept-queue", |evidence| {
        answers_late(evidence);
        counted_far(evidence, "TcpExt.ListenOverflows", 4);
    }),
    ("slow-answers", answers_late),
    ("sender-limit", pauses),
    ("neighbour", |evidence| {
        let (address, mac) = ("10.77.0.2".to_owned(), Some("02:00:00:00:00:99".to_owned()));
        let state = "PERMANENT".to_owned();
        evidence.near.limits.neighbour = Some(Neighbour { address, mac, state });
        evidence.unreachable = Some("timed out".to_owned());
        evidence.runs.clear();
    }),
    ("duplicate-address", |evidence| {
        testing::far(evidence).interfaces[0].addresses = vec!["10.77.0.1".parse().unwrap()];
    }),
];

fn settled(cause: impl Fn(&mut Evidence)) -> Vec<Finding> {
    let mut evidence = testing::healthy();
    cause(&mut evidence);
    let mut found = settle(ALL.iter().flat_map(|check| (check.examine)(&evidence)).collect());
    refer(&mut found);
    found
}

#[test]
fn where_one_cause_acts_no_other_one_is_named() {
    let wrong = CAUSES.iter().filter_map(|(name, cause)| {
        let found = settled(cause);
        let named: Vec<&str> = found.iter().map(|finding| finding.check).collect();
        (named != [*name]).then(|| format!("{name}: {named:?}"))
    });
    assert_eq!(wrong.collect::<Vec<_>>(), Vec::<String>::new());
}

/// A cause may be the other one's, too; a third one is never named.
#[test]
fn where_two_causes_act_no_third_one_is_named() {
    // Without any connection there is nothing else to be seen.
    let open = || CAUSES.iter().filter(|(name, _)| *name != "neighbour");
    let pairs = open().flat_map(|one| open().map(move |other| (one, other)));
    let wrong = pairs.filter_map(|((one, of_one), (other, of_other))| {
        let found = settled(|evidence| {
            of_one(evidence);
            of_other(evidence);
        });
        let named: BTreeSet<&str> = found.iter().map(|finding| finding.check).collect();
        let is_right = !named.is_empty() && named.iter().all(|name| [*one, *other].contains(name));
        (!is_right).then(|| format!("{one} and {other}: {named:?}"))
    });
    assert_eq!(wrong.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn findings_refer_to_what_has_the_same_signs_in_the_same_direction() {
    let finding =
        |check, from| Finding::new(check, Severity::Slow, "slow", Cost::estimated(0.5, "much")).of_way(from);
    for (one, other, experiment) in ALIKE {
        let mut found = [finding(one, NEAR), finding(other, NEAR), finding(other, PathEnd::Far)];
        refer(&mut found);
        let seen = found.each_ref().map(|finding| finding.evidence.join("").contains(experiment));
        assert_eq!(seen, [true, true, false], "{one}, {other}");
    }
}

#[test]
fn all_names_are_those_of_checks() {
    let names: BTreeSet<&str> = ALL.iter().map(|check| check.name).collect();
    let alike = ALIKE.iter().flat_map(|(one, other, _)| [*one, *other]);
    let explained = CAUSES.iter().flat_map(|(_, cause)| {
        let mut evidence = testing::healthy();
        cause(&mut evidence);
        let found: Vec<Finding> = ALL.iter().flat_map(|check| (check.examine)(&evidence)).collect();
        found.into_iter().flat_map(|finding| finding.explains)
    });
    for name in alike.chain(explained.copied()).chain(CAUSES.iter().map(|(name, _)| *name)) {
        assert!(names.contains(name), "{name} is no check");
    }
}
