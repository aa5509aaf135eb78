//! A receiver that does not take what arrives.

use super::captured;
use crate::capture::Way;
use crate::prelude::*;

pub const CHECK: Check = Check { name: "zero-window", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let mut found = captured::each(evidence, of_capture);
    found.extend(PathEnd::BOTH.into_iter().filter_map(|from| of_run(evidence, from)));
    found
}

fn of_capture(way: &Way) -> Option<Finding> {
    let seen = &way.seen;
    let closed = seen.zero_window_time as f64 / 1e9;
    let share = closed / way.seconds().max(1e-3);
    if seen.zero_windows == 0 || share < 0.02 || seen.zero_windows < 3 && closed < 0.2 {
        return None;
    }
    let (from, to) = (way.from.ip(), way.to.ip());
    let what = format!("The program at {} does not read as fast as {from} sends: the window closes.", way.to);
    let share = share.min(1.0);
    let cost = Cost::measured(share, format!("closed for {:.0} % of the connection's time", share * 100.0));
    let shown =
        format!("{} windows of zero from {to}, closed for {} in all", seen.zero_windows, time(closed * 1e6));
    Some(CHECK.slow(what, cost).evidence(shown).remedy(reader()))
}

fn reader() -> Remedy {
    Remedy::new("find out what the receiving program waits for: its CPU, its disk, a lock; a larger buffer only delays it")
        .run(&["ss", "-tnmi"])
        .run(&["top", "-b", "-n", "1"])
}

fn of_run(evidence: &Evidence, from: PathEnd) -> Option<Finding> {
    let run = evidence.run(RunKind::Stream, from).filter(|run| run.report.seconds >= 1.0)?;
    let tcp = run.tcp().filter(|tcp| tcp.busy_us > 0)?;
    let closed = run.counters(from.other()).stack("TcpExt.TCPToZeroWindowAdv");
    let waited = tcp.rwnd_limited_us as f64 / tcp.busy_us as f64;
    if (closed as f64) < 20.0 * run.report.seconds || waited < 0.5 {
        return None;
    }
    // Where nothing but the receiver's CPU is the limit, its window closes now and then, too.
    if evidence.slower_loopback().is_some_and(|loopback| run.bps() > loopback / 4.0) {
        return None;
    }
    let name = evidence.name(from.other());
    let what = format!("{name} closes its window: it does not read as fast as data arrives.");
    let cost = Cost::measured(
        waited,
        format!("the sender waited {:.0} % of its time for the window", waited * 100.0),
    );
    let shown =
        format!("{closed} windows of zero in {:.1} s (TcpExt.TCPToZeroWindowAdv)", run.report.seconds);
    Some(CHECK.slow(what, cost).at(from.other()).of_way(from).evidence(shown).remedy(reader()))
}

#[cfg(test)]
mod tests {
    use vmlane_bench::report::TcpSummary;

    use super::*;
    use crate::testing;

    #[test]
    fn a_window_that_closes_is_found_at_the_receiver() {
        let mut evidence = testing::healthy();
        evidence.runs.retain(|run| run.kind != RunKind::Stream);
        let tcp =
            TcpSummary { mss: 1448, busy_us: 1_000_000, rwnd_limited_us: 800_000, ..TcpSummary::default() };
        evidence.runs.push(testing::stream(PathEnd::Near, 1e8, tcp));
        assert!(examine(&evidence).is_empty(), "waiting for the window is another check's");
        let run = evidence.runs.last_mut().unwrap();
        run.far.stack.insert("TcpExt.TCPToZeroWindowAdv".to_owned(), 200);
        let found = examine(&evidence);
        assert_eq!((found.len(), found[0].end), (1, Some(PathEnd::Far)));
        evidence.loopback_near = Some(3e8);
        assert!(examine(&evidence).is_empty(), "as fast as its CPU allows");
    }
}
