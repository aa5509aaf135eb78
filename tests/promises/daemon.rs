//! The daemon pauses, or a part of it panics: streams continue, and only the VM concerned is affected. A VM
//! is removed and added while it runs: guests cannot distinguish it from one of the configuration.

use std::time::Duration;

use rustix::process::{Signal, kill_process};
use toml::{Table, Value};
use vmlane_api::call;
use vmlane_tests::{Bed, full, give, kept, passes, python, reload_driver, take, trickle, wait_until, whole};

vmlane_tests::tests! {
    guests in VMCI { streams_outlast_a_stopped_daemon }
    guests in FAULTS { a_panic_stays_with_its_vm }
    long in FAULTS { a_vm_that_is_added_at_run_time_is_like_one_of_the_configuration }
}

/// Eight seconds without a daemon, in the middle of streams.
fn streams_outlast_a_stopped_daemon(bed: &Bed) {
    let takers = [take(&bed.guest("a")), take(&bed.guest("b"))];
    let streams = [("a", "b"), ("b", "a")].map(|(from, to)| (from, trickle(bed, from, to)));
    let daemon = bed.daemon_pid();
    kill_process(daemon, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_secs(8));
    kill_process(daemon, Signal::CONT).unwrap();
    let bytes = streams.map(|(from, stream)| whole(bed, from, stream)["bytes"].to_string());
    drop(takers);
    kept(
        "survival",
        &format!(
            "after 8 s without a daemon 2 streams continued, checksums equal ({} bytes)",
            bytes.join(", ")
        ),
    );
}

/// The device of guest b panics and is reset; guest b works again after a driver reload, then after a reboot.
fn a_panic_stays_with_its_vm(bed: &Bed) {
    let taker = take(&bed.guest("a"));
    let ways = [("a reload of its driver", true), ("a reboot", false)];
    for (what, reload) in ways.into_iter().take(if full() { 2 } else { 1 }) {
        let takes = take(&bed.guest("b"));
        let cut = || taker.0.stdout().matches("cut").count();
        let cut_before = cut();
        let undisturbed = trickle(bed, "c", "a");
        let to_b = give(bed, "a", "b");
        let from_b = give(bed, "b", "a");
        bed.call(&call::DebugPanic { vm: "b".into(), at: None }).unwrap();
        let output = to_b.wait().unwrap();
        assert!(output.stdout().contains("cut"), "{}{}", output.stdout(), output.stderr());
        wait_until("the reader was notified", || cut() > cut_before);
        if reload {
            reload_driver(&bed.guest("b"));
        } else {
            bed.check_kernel("b");
            bed.guest("b").reboot(true).unwrap();
            // The reset lost what its disk had not written.
            bed.equip("b");
        }
        drop((takes, from_b));
        let again = take(&bed.guest("b"));
        for (from, to) in [("a", "b"), ("b", "a")] {
            passes(bed, from, to);
        }
        let bytes = &whole(bed, "c", undisturbed)["bytes"];
        drop(again);
        kept(
            "containment",
            &format!(
                "a panic in the session of b: its streams ended, and work again after {what}; meanwhile {bytes} bytes \
                 passed between the others, checksums equal"
            ),
        );
    }
}

/// Guest c leaves the configuration and comes back as a VM that was added at run time, with VMCI and a
/// VMXNET3 card. Its guest boots, exchanges bytes with one of the configuration, goes on when the daemon is
/// killed, and keeps its VM from being removed.
fn a_vm_that_is_added_at_run_time_is_like_one_of_the_configuration(bed: &Bed) {
    let c = bed.guest("c");
    bed.check_kernel("c");
    c.kill().unwrap();
    wait_until("the VMM of c is gone", || bed.vm("c")["attached"] == false);
    let description = tempfile::NamedTempFile::new().unwrap();
    let without = bed.edited(|config| {
        let vms = config["vm"].as_array_mut().expect("a list of VMs");
        let place = vms.iter().position(|vm| vm["name"].as_str() == Some("c")).expect("a VM of this name");
        let alone = Table::from_iter([("vm".to_owned(), Value::Array(vec![vms.remove(place)]))]);
        std::fs::write(description.path(), alone.to_string()).unwrap();
    });
    assert_eq!(origins(bed), [("a".into(), false), ("b".into(), false)]);
    bed.vmlane(&["vm", "add", description.path().to_str().expect("a path")]);
    assert_eq!(origins(bed), [("a".into(), false), ("b".into(), false), ("c".into(), true)]);
    c.start().unwrap();
    bed.equip("c");

    let takers = [take(&bed.guest("a")), take(&c)];
    let streams = [("c", "a"), ("a", "c")].map(|(from, to)| (from, give(bed, from, to)));
    c.sh("ping -q -c 3 -i 0.2 10.77.0.1").unwrap();
    let removed = bed.refused(&["vm", "remove", "c"]);
    assert!(removed.contains("attached") && removed.contains("--force"), "{removed}");
    bed.kill_daemon();
    let bytes: u64 = streams
        .map(|(from, stream)| whole(bed, from, stream)["bytes"].as_u64().expect("a number"))
        .iter()
        .sum();
    drop(takers);
    c.sh("ping -q -c 3 -i 0.2 10.77.0.1").unwrap();
    bed.check_kernel("c");

    bed.vmlane(&["vm", "remove", "c", "--force"]);
    assert_eq!(origins(bed), [("a".into(), false), ("b".into(), false)]);
    python(&bed.guest("a"), "refusals 5 7100 EHOSTUNREACH");
    kept(
        "operation",
        &format!(
            "a VM that was added while the daemon runs: its guest boots, and {bytes} bytes pass between it and another one, checksums \
             equal, over a killed daemon; it is removed by force only"
        ),
    );
    c.kill().unwrap();
    drop(without);
    c.start().unwrap();
    bed.equip("c");
}

/// Names of all VMs, and whether they were added at run time.
fn origins(bed: &Bed) -> Vec<(String, bool)> {
    let list: serde_json::Value = serde_json::from_str(&bed.vmlane(&["vm", "list", "--json"])).unwrap();
    let vms = list["vms"].as_array().expect("a list of VMs").iter();
    let mut vms: Vec<(String, bool)> =
        vms.map(|vm| (vm["name"].as_str().expect("a name").to_owned(), vm["added"] == true)).collect();
    vms.sort();
    vms
}
