//! Records that a previous daemon left are damaged: the device or stream they describe is reset, all others
//! continue.

use std::fs::{self, File};
use std::os::fd::OwnedFd;

use vmlane_state::{Journal, Key};
use vmlane_tests::{
    Bed, give, give_tcp, kept, passes, reload_driver, serve, take, take_tcp, trickle, wait_until, whole,
};

vmlane_tests::tests! {
    guests in FAULTS { a_damaged_record_resets_only_what_it_describes }
}

/// Kinds of records of the hypervisor (`crates/device/src/vmci/record.rs`).
const CONTEXT: u32 = 2;
const CONNECTION: u32 = 9;

/// The hypervisor's journal, which the daemon has open.
fn hypervisor_log(bed: &Bed) -> OwnedFd {
    let descriptors = format!("/proc/{}/fd", bed.daemon_pid().as_raw_nonzero());
    let path = fs::read_dir(descriptors).unwrap().flatten().map(|entry| entry.path()).find(|path| {
        fs::read_link(path)
            .is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:vmlane-hypervisor"))
    });
    let file = File::options().read(true).write(true).open(path.expect("the hypervisor's journal"));
    file.unwrap().into()
}

/// Damages records, and the daemon dies.
fn damage(bed: &Bed, which: impl Fn(Option<Key>) -> bool) -> usize {
    let spoiled = Journal::spoil(hypervisor_log(bed), which).unwrap();
    bed.kill_daemon();
    spoiled
}

fn a_damaged_record_resets_only_what_it_describes(bed: &Bed) {
    let a = bed.cid("a");
    let taker = take(&bed.guest("c"));
    let tcp_taker = take_tcp(&bed.guest("b"));
    let through_nics = give_tcp(bed, "a", "10.77.0.2");
    let beside = trickle(bed, "b", "c");
    assert_eq!(damage(bed, |key| key == Some((CONTEXT, a.into(), 0))), 1);
    whole(bed, "b", beside);
    whole(bed, "a", through_nics);
    drop(tcp_taker);
    reload_driver(&bed.guest("a"));
    streams_again(bed);
    kept(
        "survival",
        "a damaged record of one VMCI device: it was reset; another VM's stream and its own NIC continued",
    );

    let hurt = give(bed, "a", "c");
    let beside = trickle(bed, "b", "c");
    // The previous stream is dropped only when Linux frees its socket.
    wait_until("a has one stream only", || bed.vm("a")["connections"] == 1);
    let of_a = |key: Key| key.0 == CONNECTION && [key.1, key.2].iter().any(|end| end >> 32 == u64::from(a));
    assert_eq!(damage(bed, |key| key.is_some_and(of_a)), 1);
    let output = hurt.wait().unwrap();
    assert!(!output.success(), "{}", output.stdout());
    whole(bed, "b", beside);
    streams_again(bed);
    kept("survival", "a damaged record of one stream: it was reset; another stream continued");

    let tcp_taker = take_tcp(&bed.guest("b"));
    let through_nics = give_tcp(bed, "a", "10.77.0.2");
    assert_eq!(damage(bed, |key| key.is_none()), 1);
    whole(bed, "a", through_nics);
    drop((taker, tcp_taker));
    for guest in ["a", "b", "c"] {
        reload_driver(&bed.guest(guest));
    }
    let b = bed.cid("b").to_string();
    wait_until("streams work again", || {
        // Not with `give`, which retries.
        let _taker = serve(&bed.guest("b"), "stream take 7300");
        bed.guest("a").exec(["python3", "/t/stream.py", "give", &b, "7300", "1"]).unwrap().success()
    });
    kept("survival", "the journal's commit word was damaged: all VMCI devices were reset, NICs continued");
}

/// A stream from a to b works again.
fn streams_again(bed: &Bed) {
    let _taker = take(&bed.guest("b"));
    passes(bed, "a", "b");
}
