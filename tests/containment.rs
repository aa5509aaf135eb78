//! A part of the daemon fails while it serves one guest: that guest's driver reinitialises the NIC by itself, and no other
//! guest notices. A VM that fails repeatedly is put in quarantine and released on request.

use vmlane_tests::{Bed, PATIENCE, kept, spec, wait_until};

const CONFIG: &str = "[daemon]\nfault_injection = true\nfault_limit = 4\nfault_window_s = 3600\n";

fn counter(bed: &Bed, vm: &str, name: &str) -> u64 {
    let stats = bed.stats();
    let vms = stats["vms"].as_array().unwrap();
    let vm = vms.iter().find(|other| other["name"] == vm).unwrap();
    vm["nics"][0]["port"][name].as_u64().unwrap()
}

fn reachable(bed: &Bed, from: &str, address: &str) -> bool {
    bed.guest(from).sh(&format!("ping -q -c 1 -W 1 {address}")).is_ok()
}

#[test]
fn a_nics_driver_survives_faults_in_the_worker_and_a_quarantine() {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), CONFIG).unwrap();
    let mut spec = spec("contain", &["6.12", "6.1", "6.12"]).device("vmxnet3").unwrap();
    spec.daemon_config = Some(config.path().to_owned());
    let bed = Bed::up(&spec);
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    wait_until("guest c answers", || reachable(&bed, "a", "10.77.0.3"));
    let serving = bed.guest("c").spawn(["iperf3", "-s", "-1", "--forceflush"]).unwrap();
    serving.wait_for("listening", PATIENCE).unwrap();
    let undisturbed = a.spawn(["iperf3", "-c", "10.77.0.3", "-t", "25", "-J"]).unwrap();
    serving.wait_for("Accepted", PATIENCE).unwrap();
    for fault in 1..=3 {
        wait_until("guest b answers", || reachable(&bed, "a", "10.77.0.2"));
        bed.vmlane(&["debug", "panic", "b", "--at", "nic0-port"]);
        wait_until("the fault was contained", || counter(&bed, "b", "panics") == fault);
        wait_until("its driver has set the NIC up again", || reachable(&bed, "a", "10.77.0.2"));
    }
    let log = b.sh("dmesg").unwrap();
    assert!(log.contains("resetting") || log.contains("stopped"), "the driver was told:\n{log}");

    // The watchdog reports a worker that makes no progress; on a stalled machine it may have done so before.
    let stuck = || bed.stats()["daemon"]["stuck_workers"].as_u64().unwrap();
    let before = stuck();
    bed.vmlane(&["debug", "stall", "b", "--at", "nic0-port", "--milliseconds", "4000"]);
    wait_until("the watchdog has noticed", || stuck() > before);

    bed.vmlane(&["debug", "panic", "b", "--at", "nic0-port"]);
    wait_until("guest b is in quarantine", || bed.vm("b")["quarantined"] == true);
    assert!(!reachable(&bed, "a", "10.77.0.2"));
    assert_eq!(b.sh("echo alive").unwrap().trim(), "alive");
    wait_until("its driver has given up", || {
        b.sh("ip -o link show eth0").is_ok_and(|link| !link.contains("LOWER_UP"))
    });

    bed.vmlane(&["release", "b"]);
    let up = "ip link set eth0 down; ip link set eth0 up; ip addr replace 10.77.0.2/24 dev eth0";
    wait_until("guest b is back", || b.sh(up).is_ok() && reachable(&bed, "a", "10.77.0.2"));

    let outcome = undisturbed.wait().unwrap();
    assert!(outcome.success(), "{}{}", outcome.stdout(), outcome.stderr());
    drop(serving);
    for name in ["a", "c"] {
        assert_eq!(counter(&bed, name, "panics"), 0);
        assert_eq!(bed.vm(name)["faults"], 0);
    }
    kept(
        6,
        "four panics of the switch's worker at one NIC: its driver recovered three times, the fourth put the VM \
         in quarantine, a release ended that; another guest's stream continued throughout",
    );
    bed.finish();
}
