//! VMXNET3 NICs with unmodified drivers: files arrive intact whatever the guest switches on or off,
//! resets at any moment leave nothing stuck, every kind of interrupt works, flows spread over queues.

use vmlane_lab::LabSpec;
use vmlane_tests::traffic::{address, both, file, files, iperf, port, reload_card, whole_pings};
use vmlane_tests::{Bed, full, kept, spec};

vmlane_tests::tests! {
    guests in VMXNET3 {
        files_arrive_intact_whatever_is_switched,
        files_arrive_over_intx,
        a_card_is_in_the_slot_that_it_is_given,
    }
    guests in KILLS { resets_under_traffic_leave_nothing_stuck }
    guests in QUEUES { files_arrive_with_the_oldest_and_the_newest_profile }
    long in QUEUES { flows_spread_over_queues }
    long { files_arrive_intact_in_guests_of_other_kernels, flows_spread_over_two_queues }
}

/// Guests with a NIC on vmlane's switch and a VMCI device.
fn nics(what: &str, kernels: &[&str]) -> LabSpec {
    spec(what, kernels).device("vmxnet3").unwrap()
}

/// Loads the driver of both guests' only card anew, after a line of shell for each.
fn reload(bed: &Bed, line: &str) {
    for (guest, number) in [("a", 1), ("b", 2)] {
        bed.guest(guest).sh(&format!("{line} {}", reload_card(number))).unwrap();
    }
}

/// What a guest may switch; the second command undoes the first. Emulated guests take their time: the short
/// form has the first only.
const SWITCHES: [(&str, &str, &str); 7] = [
    (
        "offloads off, smallest rings",
        "ethtool -K eth0 tso off lro off tx off rx off; ethtool -G eth0 rx 32 tx 32 || ethtool -G eth0 rx 64 tx 64",
        "ethtool -K eth0 tx on rx on tso on lro on; ethtool -G eth0 rx 1024 tx 512",
    ),
    ("TSO off", "ethtool -K eth0 tso off", "ethtool -K eth0 tso on"),
    ("LRO off", "ethtool -K eth0 lro off", "ethtool -K eth0 lro on"),
    ("transmit checksum off", "ethtool -K eth0 tx off", "ethtool -K eth0 tx on tso on"),
    ("receive checksum off", "ethtool -K eth0 rx off", "ethtool -K eth0 rx on lro on"),
    (
        "smallest rings",
        "ethtool -G eth0 rx 32 tx 32 || ethtool -G eth0 rx 64 tx 64",
        "ethtool -G eth0 rx 1024 tx 512",
    ),
    ("largest rings", "ethtool -G eth0 rx 4096 tx 4096", "ethtool -G eth0 rx 1024 tx 512"),
];

fn files_arrive_intact_whatever_is_switched(bed: &Bed) {
    traffic(bed, "6.12");
    // Rings that grew with the MTU stay so.
    reload(bed, "");
}

fn files_arrive_intact_in_guests_of_other_kernels() {
    for kernel in ["5.10", "6.1", "7.2"] {
        let bed = Bed::up(&nics(&format!("n{}", kernel.replace('.', "")), &[kernel, kernel]));
        traffic(&bed, kernel);
        bed.finish();
    }
}

fn traffic(bed: &Bed, kernel: &str) {
    let mib = if full() { 64 } else { 8 };
    whole_pings(bed, 0, 1500);
    files(bed, 0, mib);
    for (what, on, off) in SWITCHES.into_iter().take(if full() { SWITCHES.len() } else { 1 }) {
        both(bed, on);
        files(bed, 0, mib);
        both(bed, off);
        println!("kernel {kernel}: {what}: files equal");
    }
    both(bed, "ip link set eth0 mtu 9000");
    whole_pings(bed, 0, 9000);
    files(bed, 0, mib);
    both(bed, "ethtool -K eth0 lro off");
    files(bed, 0, mib);
    both(bed, "ethtool -K eth0 lro on");
    // Different MTUs: TCP's segment size keeps within the smaller one.
    bed.guest("b").sh("ip link set eth0 mtu 1500").unwrap();
    files(bed, 0, mib);
    bed.guest("a").sh("ip link set eth0 mtu 1500").unwrap();
    both(
        bed,
        "ethtool -C eth0 rx-usecs 100 || true; ethtool -C eth0 rx-usecs 0 || true; ethtool -S eth0 >/dev/null",
    );
    let [streams, back] =
        ["-P 8 -t 1", "-R -t 1"].map(|options| iperf(bed, ["a", "b"], "10.77.0.2", 5201, options));
    kept(
        "nics",
        &format!(
            "vmxnet3, {kernel}: pings of 1500 and 9000, {mib} MiB each way equal with everything on and off, \
             8 streams {streams:.2} Gbit/s, reverse {back:.2} Gbit/s"
        ),
    );
}

/// Guest b is reset again and again while a sends to it; afterwards files arrive in both directions.
fn resets_under_traffic_leave_nothing_stuck(bed: &Bed) {
    let times = if full() { 50 } else { 5 };
    let b = bed.guest("b");
    let flood = "while :; do iperf3 -u -b 200M -t 1 -c 10.77.0.2; sleep 0.1; done";
    let flood = bed.guest("a").spawn(["sh", "-c", flood]).unwrap();
    let server = b.spawn(["sh", "-c", "while :; do iperf3 -s -1 --idle-timeout 2; done"]).unwrap();
    for (what, line) in [
        ("down and up", "ip link set eth0 down; ip link set eth0 up".to_owned()),
        ("MTU", "ip link set eth0 mtu 9000; ip link set eth0 mtu 1500".to_owned()),
        ("driver reload", reload_card(2)),
    ] {
        for _ in 0..times {
            b.sh(&line).unwrap_or_else(|error| panic!("{what}: {error:#}"));
        }
    }
    drop(server);
    drop(flood);
    bed.guest("a").sh("ping -q -c 20 -i 0.2 -W 2 10.77.0.2 >/dev/null; true").unwrap();
    files(bed, 0, 8);
    let reboots = if full() { 50 } else { 1 };
    for _ in 0..reboots {
        bed.check_kernel("b");
        b.reboot(false).unwrap();
        bed.equip("b");
        files(bed, 0, 8);
    }
    kept(
        "nics",
        &format!(
            "{times} times each: link down/up, MTU change, driver reload under a flood; {reboots} reboots; files equal after"
        ),
    );
}

fn files_arrive_over_intx(bed: &Bed) {
    let may_have_messages = |is_so: u32| format!("echo {is_so} >/sys/class/net/eth0/device/msi_bus &&");
    reload(bed, &may_have_messages(0));
    for guest in ["a", "b"] {
        let log = bed.guest(guest).sh("dmesg").unwrap();
        assert!(log.contains("intr type 1"), "the driver took INTx");
    }
    whole_pings(bed, 0, 1500);
    files(bed, 0, 4);
    reload(bed, &may_have_messages(1));
    kept("nics", "without message-signalled interrupts: files equal over INTx");
}

/// Linux names a card after the number of its slot, so a VM that comes from another host finds it under its
/// old name.
fn a_card_is_in_the_slot_that_it_is_given(bed: &Bed) {
    let line = "cat /sys/bus/pci/slots/192/address; basename $(readlink -f /sys/class/net/eth0/device)";
    let printed = bed.guest("a").sh(line).unwrap();
    let (slot, card) = printed.trim().split_once('\n').expect("two lines");
    assert!(!slot.is_empty() && card.starts_with(slot), "the slot is at {slot}, the card at {card}");
    kept("nics", &format!("a card that is given slot 192 is in it, at {card}: udev calls it ens192"));
}

fn flows_spread_over_queues(bed: &Bed) {
    let mut rounds = 0..;
    all_queues_get_flows(bed, 4, &mut rounds);
    // The guest rewrites the indirection table while frames flow.
    bed.guest("b").sh("ethtool -X eth0 equal 2").unwrap();
    let (_, counts) = spread(bed, 2, &mut rounds);
    assert!(counts[..2].iter().all(|&count| count > MANY), "queues 0 and 1 get all: {counts:?}");
    assert!(counts[2..].iter().all(|&count| count == 0), "queues 2 and 3 get none: {counts:?}");
    bed.guest("b").sh("ethtool -X eth0 default").unwrap();
    let (_, counts) = spread(bed, 4, &mut rounds);
    assert!(counts.iter().all(|&count| count > MANY), "all queues again: {counts:?}");
    kept("nics", "ethtool -X: two of four queues, then all again");
}

fn flows_spread_over_two_queues() {
    let bed = Bed::up(&LabSpec { cpus: 2, ..nics("rss2", &["6.12", "6.12"]) });
    all_queues_get_flows(&bed, 2, &mut (0..));
    bed.finish();
}

fn all_queues_get_flows(bed: &Bed, cpus: usize, rounds: &mut impl Iterator<Item = u32>) {
    files(bed, 0, 8);
    let (rate, counts) = spread(bed, cpus, rounds);
    assert_eq!(counts.len(), cpus, "a queue for each vCPU");
    assert!(counts.iter().all(|&count| count > MANY), "a queue got no frames: {counts:?}");
    kept(
        "nics",
        &format!("{cpus} vCPUs: flows of 16 ({rate:.2} Gbit/s) over queues by RSS: {counts:?} frames"),
    );
}

/// A queue to which flows are steered gets at least this many frames.
const MANY: u64 = 100;

/// Gbit/s of 16 flows to guest b, and the unicast frames that each of its queues got. The guest's hash key
/// changes at each boot, and over 16 neighbouring ports a linear hash may have only two values; so rounds
/// with other ports follow until the first `queues` queues have had flows, at most 24 rounds.
fn spread(bed: &Bed, queues: usize, rounds: &mut impl Iterator<Item = u32>) -> (f64, Vec<u64>) {
    let counts = || -> Vec<u64> {
        let stats = bed.guest("b").sh("ethtool -S eth0 | grep 'ucast pkts rx'").unwrap();
        stats.lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
    };
    let before = counts();
    let (mut best, mut taken) = (0f64, Vec::new());
    for round in rounds.take(24) {
        let options = format!("-P 16 -t 1 --cport {}", 20_000 + round * 7919 % 40_000);
        best = best.max(iperf(bed, ["a", "b"], "10.77.0.2", 5201 + round * 331, &options));
        taken = counts().iter().zip(&before).map(|(now, then)| now - then).collect();
        if taken.iter().take(queues).all(|&count| count > MANY) {
            break;
        }
    }
    (best, taken)
}

/// eth2 is the VMXNET2-class NIC (no LRO, MSI instead of MSI-X), eth3 the newest revision, to which the
/// sender leaves the segmentation of tunnelled packets.
fn files_arrive_with_the_oldest_and_the_newest_profile(bed: &Bed) {
    let counted = |card, counter| ["a", "b"].iter().map(|guest| port(bed, guest, card, counter)).sum::<u64>();
    assert!(bed.guest("a").sh("dmesg").unwrap().contains("eth2: intr type 2"), "the driver took MSI");
    let before = counted(2, "rx_aggregates");
    whole_pings(bed, 2, 1500);
    files(bed, 2, 8);
    assert_eq!(counted(2, "rx_aggregates"), before, "a receiver without LRO got a merged frame");
    kept("nics", "vmxnet2-class: files equal");

    let bad = counted(3, "drop_bad_offload");
    whole_pings(bed, 3, 1500);
    files(bed, 3, 8);
    for (guest, number) in [("a", 1), ("b", 2)] {
        let other = address(3, 3 - number);
        let line = format!(
            "ip link add vx type vxlan id 7 remote {other} dstport 4789 dev eth3; \
             ip addr add 10.99.0.{number}/24 dev vx; ip link set vx up; \
             ip link add gv type geneve id 8 remote {other}; \
             ip addr add 10.98.0.{number}/24 dev gv; ip link set gv up"
        );
        bed.guest(guest).sh(&line).unwrap();
    }
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    for (tunnel, net) in [("VXLAN", "10.99.0"), ("Geneve", "10.98.0")] {
        let before = counted(3, "tx_tso");
        file(&a, &b, &format!("{net}.2"), 8);
        file(&b, &a, &format!("{net}.1"), 8);
        assert!(counted(3, "tx_tso") > before, "{tunnel}: the guest segmented in software");
        assert_eq!(counted(3, "drop_bad_offload"), bad, "{tunnel}");
    }
    both(bed, "ip link del vx; ip link del gv; modprobe -r vxlan geneve");
    kept("nics", "full: files equal, also through VXLAN and Geneve with the device's segmentation");
}
