//! A part of the daemon fails while it serves one guest: that guest's driver reinitialises the NIC by itself,
//! and no other guest notices. A VM that fails repeatedly is put in quarantine and released on request.

use vmlane_api::call;
use vmlane_tests::traffic::{card_up, pings, port};
use vmlane_tests::{Bed, give_tcp, kept, reload_driver, take_tcp, wait_until, whole};

vmlane_tests::tests! {
    guests in FAULTS { a_nics_driver_survives_faults_in_the_worker_and_a_quarantine }
}

fn a_nics_driver_survives_faults_in_the_worker_and_a_quarantine(bed: &Bed) {
    let b = bed.guest("b");
    let panic = || bed.call(&call::DebugPanic { vm: "b".into(), at: Some("nic0-port".into()) }).unwrap();
    let faults = |name| (port(bed, name, 0, "panics"), bed.vm(name)["faults"].clone());
    // Forgets faults of b in other tests, which would count.
    bed.vmlane(&["release", "b"]);
    let before = ["a", "b", "c"].map(faults);
    wait_until("guest c answers", || pings(bed, "a", "10.77.0.3"));
    let taker = take_tcp(&bed.guest("c"));
    let undisturbed = give_tcp(bed, "a", "10.77.0.3");
    for fault in 1..=3 {
        wait_until("guest b answers", || pings(bed, "a", "10.77.0.2"));
        panic();
        wait_until("the fault was contained", || port(bed, "b", 0, "panics") == before[1].0 + fault);
        wait_until("its driver has set the NIC up again", || pings(bed, "a", "10.77.0.2"));
    }
    let log = b.sh("dmesg").unwrap();
    assert!(log.contains("resetting") || log.contains("stopped"), "the driver was notified:
{log}");

    // The watchdog reports a worker that makes no progress; on a stalled machine it may have done so before.
    let stuck = || bed.stats()["daemon"]["stuck_workers"].as_u64().unwrap();
    let unstuck = stuck();
    let stall = call::DebugStall { vm: "b".into(), at: "nic0-port".into(), milliseconds: 4000 };
    bed.call(&stall).unwrap();
    wait_until("the watchdog has noticed", || stuck() > unstuck);

    panic();
    wait_until("guest b is in quarantine", || bed.vm("b")["quarantined"] == true);
    assert!(!pings(bed, "a", "10.77.0.2"));
    assert_eq!(b.sh("echo alive").unwrap().trim(), "alive");
    wait_until("its driver has given up", || {
        b.sh("ip -o link show eth0").is_ok_and(|link| !link.contains("LOWER_UP"))
    });

    bed.vmlane(&["release", "b"]);
    let up = format!("ip link set eth0 down; {}", card_up(0, 2));
    wait_until("guest b is back", || b.sh(&up).is_ok() && pings(bed, "a", "10.77.0.2"));
    // Its VMCI device was out of service, too, which its driver does not notice.
    reload_driver(&b);

    whole(bed, "a", undisturbed);
    drop(taker);
    for (name, before) in [("a", &before[0]), ("c", &before[2])] {
        assert_eq!(faults(name), *before);
    }
    kept(
        "containment",
        "four panics of the switch's worker at one NIC: its driver recovered three times, the fourth put the VM \
         in quarantine, a release ended that; another guest's stream continued throughout, checksums equal",
    );
}
