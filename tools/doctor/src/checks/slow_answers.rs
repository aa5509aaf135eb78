//! A far end that takes questions and does not answer them, or whose programs are stopped for moments.

use super::counters;
use crate::prelude::*;

/// Seconds without an answer.
const NONE: f64 = 2.0;
/// Segments that were sent again: then it is the path on which answers are lost.
const LOSSY: f64 = 0.005;
/// So does a queue on the path, or a long way: microseconds of a round trip that TCP has measured.
const FAR_US: f64 = 200_000.0;

pub const CHECK: Check = Check { name: "slow-answers", examine };

fn examine(evidence: &Evidence) -> Vec<Finding> {
    let pauses = (counters::PAUSES)(evidence);
    if pauses.is_empty() { silence(evidence) } else { pauses }
}

fn silence(evidence: &Evidence) -> Vec<Finding> {
    let silent = evidence.waits.iter().map(|wait| wait.seconds).fold(0.0, f64::max);
    // The other kernel acknowledges what arrives, whatever its programs do.
    let is_path = evidence.runs(RunKind::Stream).any(|run| {
        let is_far = run.tcp().is_some_and(|tcp| tcp.rtt_us > FAR_US);
        is_far || run.timeouts() > 2 || run.part_of_segments(run.lost_segments()) > LOSSY
    });
    if is_path || silent < NONE {
        return Vec::new();
    }
    let name = evidence.name(PathEnd::Far);
    let what = format!("{name} does not answer in time: there was no answer for {silent:.0} s.");
    let cost = Cost::measured(0.95, "whatever asks it for something waits as long");
    // Where not even a transfer was measured, its answers may be sent and not arrive.
    let is_measured = evidence.runs(RunKind::Stream).next().is_some();
    let confidence = if is_measured { Confidence::Likely } else { Confidence::Possible };
    let finding = CHECK.broken(what, cost).confidence(confidence).at(PathEnd::Far).remedy(remedy());
    let seen = evidence.waits.iter().take(8);
    let seen = seen.map(|wait| format!("{}: no answer for {:.1} s", wait.what, wait.seconds));
    vec![seen.fold(finding, Finding::evidence)]
}

pub fn remedy() -> Remedy {
    Remedy::new("find out what stops its programs: T or D as the state, memory or disk that they wait for, others that go before them")
        .run(&["ps", "-eo", "pid,stat,ni,pcpu,wchan:20,args"])
        .run(&["cat", "/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io"])
        .run(&["kill", "-CONT", "PID"])
        .lasting("Windows", "Task Manager: Suspended as the state of a process, and the load of disk and memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Wait;
    use crate::testing;

    #[test]
    fn only_an_end_that_is_waited_for_without_loss_is_found() {
        let mut evidence = testing::healthy();
        let wait = |seconds| Wait { what: "reading its counters".to_owned(), seconds };
        evidence.waits = vec![wait(1.4)];
        assert!(examine(&evidence).is_empty(), "not for long");
        evidence.waits.push(wait(5.0));
        let found = examine(&evidence);
        assert!(found[0].what.contains("does not answer in time"));
        assert_eq!(found[0].evidence.len(), 2);
        let run = evidence.runs.iter_mut().find(|run| run.kind == RunKind::Stream).unwrap();
        run.near.stack.insert("TcpExt.TCPTimeouts".to_owned(), 9);
        assert!(examine(&evidence).is_empty(), "that may be the path's");
    }
}
