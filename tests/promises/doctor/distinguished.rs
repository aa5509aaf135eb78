//! What is no fault of the network, and vsock addresses that lead elsewhere.

use serde_json::Value;
use vmlane_lab::LabSpec;
use vmlane_tests::{Bed, TIMEOUT, kept};

use super::{examine, measured, sentences};

/// The sentences of what is kept apart from findings.
fn apart(report: &Value) -> Vec<String> {
    let list = report["machine"].as_array().expect("what is kept apart").iter();
    list.map(|apart_lines| format!("{}: {}", apart_lines["check"].as_str().unwrap(), apart_lines["what"].as_str().unwrap()))
        .collect()
}

/// A program that sends for a moment, and is stopped for many: that it is stopped is the cause, that it is
/// the limit is what is seen of it. (With a share of a CPU it would rest with its socket locked, and what it
/// had sent before would wait, too.)
pub fn a_sender_that_is_the_limit(bed: &Bed) {
    let start = "echo $$ >/run/slow; exec vmlane bench server --doctor --listen tcp:0.0.0.0:12901";
    let server = bed.guest("b").spawn(["sh", "-c", start]).unwrap();
    server.wait_for("listening on", TIMEOUT).unwrap();
    let stop = "(while kill -STOP $(cat /run/slow); do sleep 0.3; kill -CONT $(cat /run/slow); sleep 0.01; done) \
                >/dev/null 2>&1 </dev/null & echo $! >/run/stopper";
    bed.guest("b").sh(stop).unwrap();
    let (report, _) = examine(bed, "tcp:10.77.0.2:12901", false);
    bed.guest("b").sh("kill $(cat /run/stopper); kill -CONT $(cat /run/slow)").unwrap();
    drop(server);
    let apart_lines = apart(&report);
    let found = sentences(&report);
    let is_it = |line: &String| {
        line.starts_with("slow-answers: The other machine (b)")
            && line.contains("seen by sender-limit: Throughput from b to a has no network cause")
    };
    println!("  a sender that is stopped: {apart_lines:?}; findings {found:?}");
    assert!(found.iter().any(is_it), "{found:?} {apart_lines:?} {}", measured(&report));
    kept("doctor", "a sender that is itself the limit is distinguished from findings");
}

/// CID 1 leads nowhere without its module, and to a server with it.
pub fn the_own_cid(bed: &Bed) {
    let a = bed.guest("a");
    a.sh("rmmod vsock_loopback 2>/dev/null; true").unwrap();
    let (report, code) = examine(bed, "vsock:1", true);
    let found = sentences(&report);
    assert!(
        code == 1 && found[0].starts_with("vsock-address: CID 1 is this machine (a) itself"),
        "{found:?}"
    );
    println!("  CID 1: {}", found[0]);
}

/// From kernel 7.1 on, programs in a VM with a VMCI device alone need a flag.
pub fn kernels_whose_programs_need_a_flag_are_distinguished() {
    let kernels = ["7.2", "6.12"].map(str::to_owned).to_vec();
    let bed = Bed::up(&LabSpec { kernels, ..super::lab("doctork", &["vmci"]) });
    let server = super::server(&bed, "b", "vsock:");
    let (report, code) = examine(&bed, "vsock:4", true);
    let apart_lines: Vec<String> =
        apart(&report).into_iter().filter(|line| line.starts_with("vsock-address")).collect();
    let is_a = |line: &String| line.contains("From this machine (a)") && line.contains("VMADDR_FLAG_TO_HOST");
    assert!(code == 0 && apart_lines.len() == 1 && is_a(&apart_lines[0]), "{code} {apart_lines:?} {:?}", sentences(&report));
    kept(
        "doctor",
        "kernel 7.2 with a VMCI device: that programs need VMADDR_FLAG_TO_HOST is reported, of 6.12 it is not",
    );
    drop(server);
    bed.finish();
}
