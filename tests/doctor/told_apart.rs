//! vsock addresses that lead elsewhere, and what programs must know of them.

use serde_json::Value;
use vmlane_tests::{Bed, kept};

use super::{examine, sentences};

/// The sentences of what is kept apart from findings.
fn apart(said: &Value) -> Vec<String> {
    let list = said["machine"].as_array().expect("what is kept apart").iter();
    list.map(|told| format!("{}: {}", told["check"].as_str().unwrap(), told["what"].as_str().unwrap()))
        .collect()
}

/// CID 1 leads nowhere without its module, and to a server with it.
pub fn the_own_cid(bed: &Bed) {
    let a = bed.guest("a");
    a.sh("rmmod vsock_loopback 2>/dev/null; true").unwrap();
    let (said, code) = examine(bed, "vsock:1", true);
    let found = sentences(&said);
    assert!(
        code == 1 && found[0].starts_with("vsock-address: CID 1 is this machine (a) itself"),
        "{found:?}"
    );
    println!("  CID 1: {}", found[0]);
}

/// From kernel 7.1 on, programs in a VM with a VMCI device alone need a flag.
#[test]
fn kernels_whose_programs_need_a_flag_are_told_apart() {
    if !vmlane_tests::full() {
        return;
    }
    let mut spec = super::lab("doctork", &["vmci"]);
    spec.kernels = vec!["7.2".to_owned(), "6.12".to_owned()];
    let bed = Bed::up(&spec);
    let server = super::server(&bed, "vsock:");
    let (said, code) = examine(&bed, "vsock:4", true);
    let told: Vec<String> =
        apart(&said).into_iter().filter(|line| line.starts_with("vsock-address")).collect();
    let is_a = |line: &String| line.contains("From this machine (a)") && line.contains("VMADDR_FLAG_TO_HOST");
    assert!(code == 0 && told.len() == 1 && is_a(&told[0]), "{code} {told:?} {:?}", sentences(&said));
    kept(
        20,
        "kernel 7.2 with a VMCI device: that programs need VMADDR_FLAG_TO_HOST is told, of 6.12 it is not",
    );
    drop(server);
    bed.finish();
}
