//! A sender that is itself the limit: no network cause.

use super::captured;
use crate::capture::Way;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "sender-limit", examine };

/// Rates of cards, in bits a second: evenly spaced segments at such a rate are the card's pace.
const CARDS: [f64; 10] = [1e7, 1e8, 1e9, 2.5e9, 5e9, 1e10, 2.5e10, 4e10, 5e10, 1e11];

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let measured = evidence.runs(RunKind::Stream).filter_map(|run| of_run(evidence, run));
    captured::each(evidence, of).into_iter().chain(measured).collect()
}

/// A sender whose connection is idle for most of a transfer, although it sends as fast as it can.
fn of_run(evidence: &Evidence, run: &Run) -> Option<Finding> {
    let tcp = run.tcp()?;
    // A kernel before 4.10 does not report it. What was sent before the measurement counts too, which makes
    // for fewer findings.
    let (busy, whole) = (tcp.busy_us as f64, run.report.seconds * 1e6);
    let waited = tcp.rwnd_limited_us.saturating_add(tcp.sndbuf_limited_us) as f64;
    let is_idle = busy > 0.0 && busy < whole / 2.0;
    if !is_idle || run.bps() <= 0.0 || waited > busy / 10.0 || run.retransmitted() > 0.001 {
        return None;
    }
    let way = evidence.way(run.from);
    let what = format!("Throughput {way} has no network cause: the sender itself sends no faster.");
    let cost = Cost::measured(0.1, "none by the network");
    let seen = format!(
        "{} {way}; the connection had something to send for {:.0} % of the time (tcpi_busy_time), {} segments sent again",
        rate(run.bps()),
        busy / whole * 100.0,
        run.sent_again()
    );
    let remedy = Remedy::new("check the sender: a busy CPU, small writes, what the program waits for")
        .run(&["top", "-b", "-H", "-n", "1"]);
    let finding = CHECK.machine(what, cost).at(run.from).of_way(run.from);
    Some(finding.evidence(seen).remedy(remedy))
}

fn of(way: &Way) -> Option<Finding> {
    let seen = &way.seen;
    let (usual, shortest) = way.round_trip()?;
    let gaps = &seen.gaps;
    let (median, quick) = (gaps.at(0.5)?, gaps.at(0.1)?);
    let is_even = (4_000..100_000).contains(&median) && quick * 2 >= median;
    let enough = gaps.total() >= 500 && gaps.total() * 10 >= seen.frames * 8;
    let is_clean =
        way.lost_share() < 0.001 && seen.zero_windows == 0 && seen.window_full * 100 <= seen.frames;
    // At the receiver's end all data is acknowledged at once, and segments come as the narrowest link lets
    // them.
    let is_senders = way.handshake.is_some_and(|handshake| shortest * 3 >= handshake);
    if !is_even || !enough || !is_clean || !is_senders || usual > 2 * shortest + 100_000 {
        return None;
    }
    let mss = way.mss()?;
    let wire = f64::from(mss + 90) / f64::from(mss) * way.bps();
    if CARDS.iter().any(|card| (0.93..=1.01).contains(&(wire / card))) {
        return None;
    }
    let (from, to) = (way.from.ip(), way.to.ip());
    let what = format!("No network cause: {from} itself sends no faster to {to}.");
    let cost = Cost::estimated(0.3, format!("{} were reached", rate(way.bps())));
    let shown = format!(
        "segments of {mss} bytes leave every {} in the median, where a healthy sender needs 1 to 2 us; {} of {} lost, a window of at \
         least {} bytes, of which at most {} were used, round trips of {}",
        spaced(median),
        seen.again.lost(),
        seen.segments,
        seen.window_least,
        seen.most_in_flight,
        time(usual as f64 / 1e3)
    );
    let remedy = Remedy::new("check the sender: one CPU that is busy, segmentation offload, small writes, what the program waits for")
        .run(&["top", "-b", "-H", "-n", "1"])
        .run(&["ethtool", "-k", "INTERFACE"])
        .run(&["ss", "-tinm", "dst", &to.to_string()]);
    Some(CHECK.slow(what, cost).evidence(shown).remedy(remedy))
}

fn spaced(nanoseconds: u64) -> String {
    format!("{:.1} us", nanoseconds as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use vmlane_bench::report::TcpSummary;

    use super::*;
    use crate::testing;

    #[test]
    fn a_connection_that_is_idle_for_most_of_a_transfer_waits_for_its_sender() {
        let idle = TcpSummary { mss: 1448, busy_us: 300_000, ..TcpSummary::default() };
        for (tcp, is_found) in [
            (idle, true),
            (TcpSummary { busy_us: 600_000, ..idle }, false),
            (TcpSummary { busy_us: 0, ..idle }, false),
            (TcpSummary { rwnd_limited_us: 100_000, ..idle }, false),
            (TcpSummary { sndbuf_limited_us: 100_000, ..idle }, false),
            (TcpSummary { retransmits: 1000, ..idle }, false),
        ] {
            let mut evidence = testing::healthy();
            evidence.runs = vec![testing::stream(PathEnd::Far, 1e9, tcp)];
            let found = examine(&evidence);
            assert_eq!(found.len(), usize::from(is_found), "{tcp:?}: {found:?}");
            assert!(found.iter().all(|finding| finding.severity == Severity::Machine));
        }
    }
}
