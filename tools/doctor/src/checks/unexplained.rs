//! What is slow although no check explains it: how much is missing, where it begins to be missing, and what
//! it is not.

use crate::evidence::{Evidence, PathEnd, Run, RunKind};
use crate::finding::{Confidence, Cost, Finding, Severity};
use crate::remedy::Remedy;
use crate::text::{rate, time};

pub const NAME: &str = "unexplained";

/// How much slower than the other direction a direction may be,
const DIRECTION: f64 = 2.5;
/// than the slower loopback,
const LOOPBACK: f64 = 8.0;
/// one connection than several together, or than datagrams.
const SEVERAL: f64 = 3.5;
const DATAGRAMS: f64 = 2.0;
/// How much longer a round trip may take than the median: at the 99th percentile, and beside a transfer.
const STALLS: f64 = 30.0;
const LOADED: f64 = 20.0;
/// Microseconds below which that does not matter.
const STALL_US: f64 = 20_000.0;

/// Rates of links, in bits a second: who reaches all of one is limited by that.
const LINKS: [f64; 7] = [1e9, 2.5e9, 5e9, 1e10, 2.5e10, 4e10, 1e11];
/// By how much more of the throughput may be missing than a finding costs.
const EXCESS: f64 = 0.45;

/// What is missing of one direction.
#[derive(Debug)]
struct Missing {
    /// Behind the direction and its throughput.
    what: String,
    share: f64,
}

/// Of all that was measured, what none of the findings explains.
pub fn unexplained(evidence: &Evidence, found: &[Finding]) -> Vec<Finding> {
    let unknown = |finding: &Finding| !found.iter().any(|cause| explains(cause, finding));
    let ways = PathEnd::BOTH.into_iter().filter_map(|from| of_way(evidence, from));
    let mut all: Vec<Finding> = ways.chain(no_connection(evidence)).filter(unknown).collect();
    if all.is_empty() {
        all.extend(stalls(evidence).filter(unknown));
    }
    all
}

/// A small cost is no explanation of a large one.
fn explains(cause: &Finding, unexplained: &Finding) -> bool {
    let same_way = cause.from.is_none() || cause.from == unexplained.from;
    let is_enough = cause.cost.share + EXCESS >= unexplained.cost.share;
    cause.severity <= Severity::Slow && cause.confidence < Confidence::Possible && same_way && is_enough
}

/// Runs that show something missing, to be measured once more.
pub fn unclear(evidence: &Evidence) -> Vec<(RunKind, PathEnd)> {
    let ways = PathEnd::BOTH.into_iter();
    let slow = ways.filter(|from| missing(evidence, *from).is_some()).map(|from| (RunKind::Stream, from));
    let stalls = stalls(evidence).map(|_| (RunKind::RoundTrips, PathEnd::Near));
    slow.chain(stalls).collect()
}

fn of_way(evidence: &Evidence, from: PathEnd) -> Option<Finding> {
    let missing = missing(evidence, from)?;
    let (way, bps) = (evidence.way(from), evidence.run(RunKind::Stream, from)?.bps());
    let what = format!("Throughput {way} is {}, {}; no check explains it.", rate(bps), missing.what);
    let cost = Cost::measured(missing.share, format!("{:.0} % of the throughput", missing.share * 100.0));
    Some(report(evidence, from, what, cost))
}

/// The other machine, or the router to it, answers for its address, and no connection opens.
fn no_connection(evidence: &Evidence) -> Option<Finding> {
    let why = evidence.unreachable.as_ref()?;
    let neighbour = evidence.near.limits.neighbour.as_ref().filter(|neighbour| neighbour.mac.is_some())?;
    let mac = neighbour.mac.as_deref().unwrap_or_default();
    let what = format!(
        "{} answers for its address ({mac}), and no connection opens; no check explains it.",
        neighbour.address
    );
    let remedy = Remedy::new("on the other machine: does the server run, does its firewall let this machine in, and which MAC address has it for this machine")
        .run(&["ss", "-ltn"])
        .run(&["nft", "list", "ruleset"])
        .run(&["ip", "neigh", "show"]);
    let seen = format!("ip neigh show {}: {}", neighbour.address, neighbour.state);
    let finding = Finding::new(NAME, Severity::Broken, what, Cost::measured(1.0, "all that goes this way"));
    Some(finding.evidence(why.clone()).evidence(seen).remedy(remedy))
}

/// The largest part that is missing, compared with what is there to be had.
fn missing(evidence: &Evidence, from: PathEnd) -> Option<Missing> {
    let bps = |kind, from| evidence.run(kind, from).map(Run::bps);
    let one = bps(RunKind::Stream, from)?;
    let all = bps(RunKind::Streams, from).map_or(one, |several| several.max(one));
    let loopback = evidence.slower_loopback().filter(|_| link(all).is_none());
    let compared = [
        (all, bps(RunKind::Stream, from.other()), DIRECTION, "in the other direction"),
        (all, loopback, LOOPBACK, "over the slower loopback"),
        (one, bps(RunKind::Streams, from), SEVERAL, "with several connections"),
        (one, bps(RunKind::Datagrams, from), DATAGRAMS, "with datagrams"),
    ];
    let parts = compared.into_iter().filter_map(|(here, there, factor, what)| {
        let there = there.filter(|there| *there > here.max(1.0) * factor)?;
        let what = format!("where {} are reached {what}", rate(there));
        Some((there / here.max(1.0) / factor, Missing { what, share: 1.0 - here / there }))
    });
    parts.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, missing)| missing)
}

/// The link that a throughput fills.
fn link(bps: f64) -> Option<f64> {
    LINKS.into_iter().find(|link| (0.9..1.0).contains(&(bps / link)))
}

/// Round trips that now and then, or beside a transfer, take far longer than the others.
fn stalls(evidence: &Evidence) -> Option<Finding> {
    let times = evidence.runs(RunKind::RoundTrips).next()?.report.rtt_us?;
    let loaded = evidence.runs(RunKind::Loaded).filter_map(|run| Some((run.from, run.median_us()?)));
    let loaded = loaded.max_by(|one, other| one.1.total_cmp(&other.1));
    let (from, us, what) = match loaded {
        Some((from, us)) if us > STALL_US && us > LOADED * times.p50 => (from, us, "beside a transfer"),
        _ if times.p99 > STALL_US && times.p99 > STALLS * times.p50 => {
            (PathEnd::Near, times.p99, "at the 99th percentile")
        }
        _ => return None,
    };
    let what = format!(
        "A round trip takes {} in the median, and {} {what}; no check explains it.",
        time(times.p50),
        time(us)
    );
    Some(report(evidence, from, what, Cost::measured(0.5, "time, for each request")))
}

fn report(evidence: &Evidence, from: PathEnd, what: String, cost: Cost) -> Finding {
    let host = Remedy::new("examine what is between both ends: on the host of both VMs, vmlane doctor VM VM; else each device on the way")
        .run(&["tracepath", "-n", evidence.to.rsplit_once(':').map_or("ADDRESS", |(to, _)| to.trim_start_matches("tcp:"))]);
    let captures = Remedy::new(
        "capture one transfer at both ends, and have both files examined: vmlane doctor --pcap FILE FILE",
    )
    .run(&["tcpdump", "-s", "128", "-w", "FILE", "-i", "INTERFACE"]);
    let finding = Finding::new(NAME, Severity::Slow, what, cost).of_way(from).remedy(captures).remedy(host);
    measured(evidence, from).into_iter().chain(ruled_out(evidence, from)).fold(finding, Finding::evidence)
}

/// Where it begins to be missing.
fn measured(evidence: &Evidence, from: PathEnd) -> Vec<String> {
    let kinds = [RunKind::Stream, RunKind::Streams, RunKind::Datagrams];
    let bps = |from: PathEnd| {
        let runs = kinds.iter().filter_map(|kind| evidence.run(*kind, from));
        let shown: Vec<String> =
            runs.map(|run| format!("{} {}", crate::report::name(run.kind), rate(run.bps()))).collect();
        format!("{}: {}", evidence.way(from), shown.join(", "))
    };
    vec![bps(from), bps(from.other())]
}

/// What was examined and is not the cause.
fn ruled_out(evidence: &Evidence, from: PathEnd) -> Option<String> {
    let run = evidence.run(RunKind::Stream, from)?;
    let mut all = Vec::new();
    let mut rule_out = |is_well: bool, what: &str| all.extend(is_well.then(|| what.to_owned()));
    rule_out(run.retransmitted() < 0.002, "loss");
    rule_out(
        evidence.probes().any(|(bytes, probe)| probe.from == from && bytes >= 1400 && probe.lost() < 0.01),
        "the MTU",
    );
    if let Some(tcp) = run.tcp().filter(|tcp| tcp.busy_us > 0) {
        let part = |us: u64| us as f64 / tcp.busy_us as f64;
        rule_out(part(tcp.rwnd_limited_us) < 0.2, "the receive window");
        rule_out(part(tcp.sndbuf_limited_us) < 0.2, "the send buffer");
    }
    let idle = evidence.ends().all(|(_, facts)| facts.load.busy < 0.5 * facts.machine.cpus.max(1) as f64);
    rule_out(idle, "other programs on both machines");
    (!all.is_empty()).then(|| format!("ruled out: {}", all.join(", ")))
}

/// In numbers, what makes a path healthy.
pub fn health(evidence: &Evidence) -> String {
    let mut parts = Vec::new();
    let bps = PathEnd::BOTH.map(|from| evidence.run(RunKind::Stream, from).map(Run::bps));
    let [Some(there), Some(back)] = bps else { return "Nothing found.".to_owned() };
    parts.push(format!("{} there and {} back", rate(there), rate(back)));
    if let Some(loopback) = evidence.slower_loopback() {
        let factor = loopback / there.min(back).max(1.0);
        parts.push(match link(there.min(back)) {
            Some(link) if factor > LOOPBACK => format!("as much as a link of {} carries", rate(link)),
            _ if factor < 1.0 => format!("more than the {} of the slower loopback", rate(loopback)),
            _ => format!("within a factor of {factor:.1} of the slower loopback ({})", rate(loopback)),
        });
    }
    if let Some(us) = evidence.runs(RunKind::RoundTrips).find_map(Run::median_us) {
        parts.push(format!("round trips of {}", time(us)));
    }
    format!("Nothing found: {}.", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use vmlane_bench::report::TcpSummary;

    use super::*;
    use crate::testing;

    fn with(kind: RunKind, from: PathEnd, bps: f64) -> Evidence {
        let mut evidence = testing::healthy();
        let tcp = TcpSummary { mss: 1448, busy_us: 900_000, ..TcpSummary::default() };
        evidence.runs.retain(|run| run.kind != kind || run.from != from);
        evidence.runs.push(Run { kind, ..testing::stream(from, bps, tcp) });
        evidence
    }

    #[test]
    fn a_direction_that_carries_much_less_is_a_finding_without_a_cause() {
        for (kind, bps, part) in [
            (RunKind::Stream, 1e9, ""),
            (RunKind::Stream, 5e8, ""),
            (RunKind::Stream, 3e7, "slower loopback"),
            (RunKind::Streams, 2e9, ""),
            (RunKind::Streams, 9e9, "several connections"),
            (RunKind::Datagrams, 4e9, "datagrams"),
        ] {
            let evidence = with(kind, PathEnd::Near, bps);
            let found = unexplained(&evidence, &[]);
            assert_eq!(found.is_empty(), part.is_empty(), "{kind:?} {bps}: {found:?}");
            assert!(found.iter().all(|finding| finding.what.contains(part)), "{found:?}");
        }
        let mut slow = testing::healthy();
        slow.loopback_far = Some(4e10);
        slow.loopback_near = Some(4e10);
        let link = "as much as a link of 1.00 Gbit/s carries";
        for from in PathEnd::BOTH {
            slow.runs.retain(|run| run.kind != RunKind::Stream || run.from != from);
            slow.runs.push(testing::stream(from, 5e8, TcpSummary::default()));
        }
        assert_eq!(unexplained(&slow, &[]).len(), 2);
        slow.runs
            .iter_mut()
            .for_each(|run| run.report.throughput_bps = run.report.throughput_bps.map(|_| 9.4e8));
        assert!(unexplained(&slow, &[]).is_empty() && health(&slow).contains(link), "{}", health(&slow));
    }

    #[test]
    fn what_a_finding_explains_is_not_unexplained() {
        let evidence = with(RunKind::Stream, PathEnd::Near, 3e7);
        let cause = Finding::new("queueing", Severity::Slow, "it", Cost::measured(0.9, "much"));
        let one = |cause: Finding| unexplained(&evidence, &[cause]).len();
        assert_eq!(one(cause.clone().of_way(PathEnd::Near)), 0);
        assert_eq!(one(cause.clone()), 0);
        assert_eq!(one(cause.clone().of_way(PathEnd::Far)), 1);
        assert_eq!(one(cause.clone().confidence(Confidence::Possible)), 1);
        assert_eq!(one(Finding { cost: Cost::estimated(0.4, "some"), ..cause.clone() }), 1);
        assert_eq!(one(Finding { severity: Severity::Advice, ..cause }), 1);
    }

    #[test]
    fn a_neighbour_that_answers_and_takes_no_connection_is_a_finding() {
        let mut evidence = Evidence { unreachable: Some("timed out".to_owned()), ..testing::healthy() };
        evidence.runs.clear();
        assert!(unexplained(&evidence, &[]).is_empty());
        let mac = Some("52:54:00:00:00:02".to_owned());
        evidence.near.limits.neighbour = Some(crate::facts::Neighbour { mac, ..Default::default() });
        assert_eq!(unexplained(&evidence, &[])[0].severity, Severity::Broken);
    }

    #[test]
    fn stalls_are_found_and_health_has_numbers() {
        let mut evidence = testing::healthy();
        assert!(unexplained(&evidence, &[]).is_empty());
        assert_eq!(
            health(&evidence),
            "Nothing found: 1.00 Gbit/s there and 1.00 Gbit/s back, within a factor of 4.0 of the slower loopback (4.00 Gbit/s), round trips of 200 us."
        );
        evidence.runs[0].report.rtt_us.as_mut().unwrap().p99 = 40_000.0;
        assert!(unexplained(&evidence, &[])[0].what.contains("99th percentile"));
    }
}
