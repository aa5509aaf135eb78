//! VMXNET3 NICs with unmodified drivers: files arrive intact whatever the guest switches on or off,
//! resets at any moment leave nothing stuck, every kind of interrupt works, flows spread over queues.

use vmlane_lab::{Guest, LabSpec};
use vmlane_tests::{Bed, PATIENCE, full, kept, spec};

/// Guests with a NIC on vmlane's switch and a VMCI device.
fn nics(what: &str, kernels: &[&str], device: &str) -> LabSpec {
    spec(what, kernels).device(device).unwrap()
}

/// Carries `mib` random mebibytes over TCP from one guest to the other's address and compares.
fn file(from: &Guest, to: &Guest, address: &str, mib: u32) {
    from.sh(&format!("head -c {mib}M /dev/urandom >/dev/shm/in")).unwrap();
    let listening =
        to.spawn(["sh", "-c", "socat -d -d -u TCP-LISTEN:5001,reuseaddr CREATE:/dev/shm/out"]).unwrap();
    listening.wait_for("listening on", PATIENCE).unwrap();
    from.sh(&format!("socat -u OPEN:/dev/shm/in TCP:{address}:5001,retry=5,interval=1")).unwrap();
    assert!(listening.wait().unwrap().success());
    let sum = |guest: &Guest, name: &str| guest.sh(&format!("sha256sum </dev/shm/{name}")).unwrap();
    assert_eq!(sum(from, "in"), sum(to, "out"), "{mib} MiB, {} to {}", from.name(), to.name());
    from.sh("rm /dev/shm/in").unwrap();
    to.sh("rm /dev/shm/out").unwrap();
}

/// A file each way.
fn files(bed: &Bed, mib: u32) {
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    file(&a, &b, "10.77.0.2", mib);
    file(&b, &a, "10.77.0.1", mib);
}

fn both(bed: &Bed, line: &str) {
    for name in ["a", "b"] {
        bed.guest(name).sh(line).unwrap_or_else(|error| panic!("guest {name}: {line}: {error:#}"));
    }
}

fn pings(bed: &Bed, mtu: u32) {
    let (v4, v6) = (mtu - 28, mtu - 48);
    let a = bed.guest("a");
    a.sh(&format!("ping -q -c 3 -i 0.2 -M do -s {v4} 10.77.0.2")).unwrap();
    a.sh(&format!("ping -6 -q -c 3 -i 0.2 -M do -s {v6} fd77::2")).unwrap();
}

/// What a guest may switch; the second command undoes the first.
const SWITCHES: [(&str, &str, &str); 6] = [
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

fn traffic(kernel: &str, mib: u32) {
    let bed = Bed::up(&nics(&format!("n{}", kernel.replace('.', "")), &[kernel, kernel], "vmxnet3"));
    pings(&bed, 1500);
    files(&bed, mib);
    for (what, on, off) in SWITCHES {
        both(&bed, on);
        files(&bed, mib);
        both(&bed, off);
        println!("kernel {kernel}: {what}: files equal");
    }
    both(&bed, "ip link set eth0 mtu 9000");
    pings(&bed, 9000);
    files(&bed, mib);
    both(&bed, "ethtool -K eth0 lro off");
    files(&bed, mib);
    both(&bed, "ethtool -K eth0 lro on");
    // Different MTUs: TCP's segment size keeps within the smaller one.
    bed.guest("b").sh("ip link set eth0 mtu 1500").unwrap();
    files(&bed, mib);
    bed.guest("a").sh("ip link set eth0 mtu 1500").unwrap();
    both(
        &bed,
        "ethtool -C eth0 rx-usecs 100 || true; ethtool -C eth0 rx-usecs 0 || true; ethtool -S eth0 >/dev/null",
    );
    let streams = iperf(&bed, 5201, "-P 8 -t 2");
    let back = iperf(&bed, 5201, "-R -t 2");
    kept(
        1,
        &format!(
            "vmxnet3, {kernel}: pings of 1500 and 9000, {mib} MiB each way equal with everything on and off, \
             8 streams {streams:.2} Gbit/s, reverse {back:.2} Gbit/s"
        ),
    );
    bed.finish();
}

/// Gbit/s from a to b.
fn iperf(bed: &Bed, port: u32, options: &str) -> f64 {
    let server =
        bed.guest("b").spawn(["iperf3", "-s", "-1", "--forceflush", "-p", &port.to_string()]).unwrap();
    server.wait_for("listening", PATIENCE).unwrap();
    let text = bed.guest("a").sh(&format!("iperf3 -J -c 10.77.0.2 -p {port} {options}")).unwrap();
    server.wait().unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate") / 1e9
}

#[test]
fn files_arrive_intact_whatever_is_switched() {
    let kernels: &[&str] = if full() { &["5.10", "6.1", "6.12", "7.2"] } else { &["6.12"] };
    for kernel in kernels {
        traffic(kernel, if full() { 64 } else { 8 });
    }
}

/// Guest b is reset again and again while a sends to it; afterwards files arrive in both directions.
#[test]
fn resets_under_traffic_leave_nothing_stuck() {
    let times = if full() { 50 } else { 5 };
    let bed = Bed::up(&nics("storm", &["6.12", "6.12"], "vmxnet3"));
    let b = bed.guest("b");
    let flood = bed.guest("a").spawn([
        "sh",
        "-c",
        "while :; do iperf3 -u -b 200M -t 1 -c 10.77.0.2; sleep 0.1; done",
    ]);
    let flood = flood.unwrap();
    let server = b.spawn(["sh", "-c", "while :; do iperf3 -s -1 --idle-timeout 2; done"]).unwrap();
    let up = "ip addr replace 10.77.0.2/24 dev eth0; ip link set eth0 up";
    for (what, line) in [
        ("down and up", "ip link set eth0 down; ip link set eth0 up".to_owned()),
        ("MTU", "ip link set eth0 mtu 9000; ip link set eth0 mtu 1500".to_owned()),
        ("driver reload", format!("rmmod vmxnet3; modprobe vmxnet3; sleep 0.3; {up}")),
    ] {
        for _ in 0..times {
            b.sh(&line).unwrap_or_else(|error| panic!("{what}: {error:#}"));
        }
    }
    drop(server);
    drop(flood);
    bed.guest("a").sh("ping -q -c 20 -i 0.2 -W 2 10.77.0.2 >/dev/null; true").unwrap();
    files(&bed, 8);
    let reboots = if full() { 50 } else { 1 };
    for _ in 0..reboots {
        bed.check_kernel("b");
        b.reboot(false).unwrap();
        bed.equip("b");
        files(&bed, 8);
    }
    kept(
        2,
        &format!(
            "{times} times each: link down/up, MTU change, driver reload under a flood; {reboots} reboots; files equal after"
        ),
    );
    bed.finish();
}

#[test]
fn files_arrive_over_intx() {
    let mut spec = nics("intx", &["6.12", "6.12"], "vmxnet3");
    spec.append = "pci=nomsi".into();
    let bed = Bed::up(&spec);
    assert!(bed.guest("a").sh("dmesg").unwrap().contains("intr type 1"), "the driver took INTx");
    pings(&bed, 1500);
    files(&bed, 4);
    kept(3, "pci=nomsi: files equal over INTx");
    bed.finish();
}

/// Linux names a card after the number of its slot, so a VM that comes from another host finds it under its old name.
#[test]
fn a_card_is_in_the_slot_that_it_is_given() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let card = "{ model = \"vmxnet3\", port_group = \"net0\", mac = \"52:54:00:77:00:01\", slot = 192 }";
    std::fs::write(file.path(), format!("[[vm]]\nname = \"a\"\nnic = [{card}]\n")).unwrap();
    let mut spec = nics("slot", &["6.12"], "vmxnet3");
    spec.daemon_config = Some(file.path().to_owned());
    let bed = Bed::up(&spec);
    let line = "cat /sys/bus/pci/slots/192/address; basename $(readlink -f /sys/class/net/eth0/device)";
    let said = bed.guest("a").sh(line).unwrap();
    let (slot, card) = said.trim().split_once('\n').expect("two lines");
    assert!(!slot.is_empty() && card.starts_with(slot), "the slot is at {slot}, the card at {card}");
    kept(4, &format!("a card that is given slot 192 is in it, at {card}: udev calls it ens192"));
    bed.finish();
}

#[test]
fn flows_spread_over_queues() {
    for cpus in [2, 4] {
        let mut spec = nics(&format!("rss{cpus}"), &["6.12", "6.12"], "vmxnet3");
        spec.cpus = cpus;
        let bed = Bed::up(&spec);
        files(&bed, 8);
        let mut rounds = 0..;
        let (rate, counts) = spread(&bed, cpus as usize, &mut rounds);
        assert_eq!(counts.len(), cpus as usize, "a queue for each vCPU");
        assert!(counts.iter().all(|&count| count > MANY), "a queue got no frames: {counts:?}");
        kept(
            3,
            &format!("{cpus} vCPUs: flows of 16 ({rate:.2} Gbit/s) over queues by RSS: {counts:?} frames"),
        );
        if cpus == 4 {
            // The guest rewrites the indirection table while frames flow.
            bed.guest("b").sh("ethtool -X eth0 equal 2").unwrap();
            let (_, counts) = spread(&bed, 2, &mut rounds);
            assert!(counts[..2].iter().all(|&count| count > MANY), "queues 0 and 1 get all: {counts:?}");
            assert!(counts[2..].iter().all(|&count| count == 0), "queues 2 and 3 get none: {counts:?}");
            bed.guest("b").sh("ethtool -X eth0 default").unwrap();
            let (_, counts) = spread(&bed, 4, &mut rounds);
            assert!(counts.iter().all(|&count| count > MANY), "all queues again: {counts:?}");
            kept(1, "ethtool -X: two of four queues, then all again");
        }
        bed.finish();
    }
}

/// A queue to which flows are steered gets at least this many frames.
const MANY: u64 = 100;

/// Gbit/s of 16 flows to guest b, and the unicast frames that each of its queues got. The guest's hash key changes
/// at each boot, and over 16 neighbouring ports a linear hash may have only two values; so rounds with
/// other ports follow until the first `queues` queues have had flows, at most 24 rounds.
fn spread(bed: &Bed, queues: usize, rounds: &mut impl Iterator<Item = u32>) -> (f64, Vec<u64>) {
    let counts = || -> Vec<u64> {
        let stats = bed.guest("b").sh("ethtool -S eth0 | grep 'ucast pkts rx'").unwrap();
        stats.lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
    };
    let before = counts();
    let (mut best, mut taken) = (0f64, Vec::new());
    for round in rounds.take(24) {
        let client = 20_000 + round * 7919 % 40_000;
        best = best.max(iperf(bed, 5201 + round * 331, &format!("-P 16 -t 2 --cport {client}")));
        taken = counts().iter().zip(&before).map(|(now, then)| now - then).collect();
        if taken.iter().take(queues).all(|&count| count > MANY) {
            break;
        }
    }
    (best, taken)
}

/// The VMXNET2-class NIC (no LRO, MSI instead of MSI-X), and the newest revision, to which the sender leaves the
/// segmentation of tunnelled packets.
#[test]
fn files_arrive_with_the_oldest_and_the_newest_profile() {
    let bed = Bed::up(&nics("gen1", &["6.12", "6.12"], "vmxnet3:profile=vmxnet2-class"));
    assert!(bed.guest("a").sh("dmesg").unwrap().contains("intr type 2"), "the driver took MSI");
    pings(&bed, 1500);
    files(&bed, 8);
    assert_eq!(port(&bed, "rx_aggregates"), 0, "a receiver without LRO got a merged frame");
    kept(1, "vmxnet2-class: files equal");
    bed.finish();

    let bed = Bed::up(&nics("gen7", &["6.12", "6.12"], "vmxnet3:profile=full"));
    pings(&bed, 1500);
    files(&bed, 8);
    for (guest, other, number) in [("a", "10.77.0.2", 1), ("b", "10.77.0.1", 2)] {
        let line = format!(
            "ip link add vx type vxlan id 7 remote {other} dstport 4789 dev eth0; \
             ip addr add 10.99.0.{number}/24 dev vx; ip link set vx up; \
             ip link add gv type geneve id 8 remote {other}; \
             ip addr add 10.98.0.{number}/24 dev gv; ip link set gv up"
        );
        bed.guest(guest).sh(&line).unwrap();
    }
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    for (tunnel, net) in [("VXLAN", "10.99.0"), ("Geneve", "10.98.0")] {
        let before = port(&bed, "tx_tso");
        file(&a, &b, &format!("{net}.2"), 8);
        file(&b, &a, &format!("{net}.1"), 8);
        assert!(port(&bed, "tx_tso") > before, "{tunnel}: the guest segmented in software");
        assert_eq!(port(&bed, "drop_bad_offload"), 0, "{tunnel}");
    }
    kept(1, "full: files equal, also through VXLAN and Geneve with the device's segmentation");
    bed.finish();
}

/// A counter of the NICs of all guests.
fn port(bed: &Bed, counter: &str) -> u64 {
    let stats = bed.stats();
    let vms = stats["vms"].as_array().expect("a list of VMs");
    vms.iter().map(|vm| vm["nics"][0]["port"][counter].as_u64().expect("a counter")).sum()
}
