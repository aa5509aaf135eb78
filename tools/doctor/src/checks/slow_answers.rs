//! A far end that takes questions and does not answer them in time.

use crate::prelude::*;

/// Seconds without an answer, and seconds that answers came late in all.
const NONE: f64 = 2.0;
const LATE: f64 = 3.0;
/// Segments that were sent again: then it is the path that makes answers late.
const LOSSY: f64 = 0.005;
/// So does a queue on the path, or a long way: microseconds of a round trip that TCP has measured.
const FAR_US: f64 = 200_000.0;

pub const CHECK: Check = Check { name: "slow-answers", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let silent = evidence.waits.iter().filter(|wait| !wait.answered && wait.seconds >= NONE);
    let silent = silent.map(|wait| wait.seconds).fold(0.0, f64::max);
    let late: f64 = evidence.waits.iter().filter(|wait| wait.answered).map(|wait| wait.seconds).sum();
    // The other kernel acknowledges what arrives, whatever its programs do.
    let is_path = evidence.runs(RunKind::Stream).any(|run| {
        let is_far = run.tcp().is_some_and(|tcp| tcp.rtt_us > FAR_US);
        is_far || run.timeouts() > 2 || run.part_of_segments(run.lost_segments()) > LOSSY
    });
    if is_path || (silent < NONE && late < LATE) {
        return Vec::new();
    }
    let name = evidence.name(PathEnd::Far);
    let what = if silent < NONE {
        format!("{name} answers late: {late:.0} s were waited for {} answers.", evidence.waits.len())
    } else {
        format!("{name} does not answer in time: there was no answer for {silent:.0} s.")
    };
    let cost = Cost::measured(0.95, "whatever asks it for something waits as long");
    let remedy = Remedy::new(
        "find out what stops its programs: T or D as the state, memory or disk that they wait for",
    )
    .run(&["ps", "-eo", "pid,stat,pcpu,wchan:20,args"])
    .run(&["cat", "/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io"])
    .run(&["kill", "-CONT", "PID"])
    .lasting("Windows", "Task Manager: Suspended as the state of a process, and the load of disk and memory");
    // Where not even a transfer was measured, its answers may be sent and not arrive.
    let is_measured = evidence.runs(RunKind::Stream).next().is_some();
    let confidence = if is_measured { Confidence::Likely } else { Confidence::Possible };
    let arrives = Remedy::new("or find out whether large packets of its answers get lost")
        .run(&["ping", "-M", "do", "-c", "3", "-s", "1472", "ADDRESS"]);
    let finding = CHECK.broken(what, cost).confidence(confidence).at(PathEnd::Far).remedy(remedy);
    let finding = if is_measured { finding } else { finding.remedy(arrives) };
    let seen = evidence.waits.iter().take(8).map(|wait| {
        let came = if wait.answered { "answered after" } else { "no answer for" };
        format!("{}: {came} {:.1} s", wait.what, wait.seconds)
    });
    vec![seen.fold(finding, Finding::evidence)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Wait;
    use crate::testing;

    #[test]
    fn only_an_end_that_is_waited_for_without_loss_is_found() {
        let mut evidence = testing::healthy();
        let wait = |seconds, answered| Wait { what: "reading its counters".to_owned(), seconds, answered };
        evidence.waits = vec![wait(1.4, true)];
        assert!(examine(&evidence).is_empty(), "once and not for long");
        evidence.waits.push(wait(2.5, true));
        let found = examine(&evidence);
        assert!(found[0].what.contains("answers late: 4 s"), "{found:?}");
        assert_eq!(found[0].evidence.len(), 2);
        evidence.waits = vec![wait(5.0, false)];
        assert!(examine(&evidence)[0].what.contains("does not answer in time"));
        let run = evidence.runs.iter_mut().find(|run| run.kind == RunKind::Stream).unwrap();
        run.near.stack.insert("TcpExt.TCPTimeouts".to_owned(), 9);
        assert!(examine(&evidence).is_empty(), "that may be the path's");
    }
}
