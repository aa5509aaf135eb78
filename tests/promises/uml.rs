//! The virtio devices in guests under User Mode Linux, alone and together with a guest in QEMU.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use vmlane_lab::supervisor::net::tap_name;
use vmlane_lab::{Lab, LabSpec, Machine};
use vmlane_tests::alone::{output, vmlane};
use vmlane_tests::siblings::{Traffic, a_killed_guest, spec, tcp_for, tcp_over, up, vsock};
use vmlane_tests::traffic::whole_pings;
use vmlane_tests::{Bed, Process, full, kept, lab, python, python_on_host, serve, wait_until};

vmlane_tests::tests! {
    guests {
        virtio_devices_work_under_user_mode_linux,
        two_workers_serve_virtio_vsock,
        memory_cut_short_ends_one_session_where_nothing_is_overcommitted,
    }
    long { its_own_network_card_beside_virtio_net }
    long in MIXTURE { a_guest_in_qemu_and_one_under_user_mode_linux, any_mixture_of_machines_starts }
}

/// Streams between a guest and a program of the host, opened by either; their checksums are compared both
/// ways.
fn with_the_host(bed: &Bed, name: &str, mib: u64) {
    let guest = bed.guest(name);
    let server = serve(&guest, "pairs serve 6200");
    output(&mut python_on_host(
        bed,
        &["pairs.py", "try", &bed.cid(name).to_string(), "6200", &(mib << 20).to_string()],
    ));
    drop(server);
    let server = python_on_host(bed, &["pairs.py", "serve", "6200"]).stdout(Stdio::piped()).spawn();
    let mut server = Process(server.unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "listening\n");
    python(&guest, &format!("pairs try 2 6200 {}", mib << 20));
}

/// The daemon is killed under traffic: a guest under User Mode Linux, whose driver connects only once, loses
/// its card at once, and has it again after it was restarted. Its virtio-vsock device goes on.
fn a_killed_daemon(bed: &Bed) {
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    let traffic = Traffic::start(bed);
    let before = bed.daemon_pid();
    kill_process(before, Signal::KILL).unwrap();
    for guest in [&a, &b] {
        wait_until("the guest's card is gone", || guest.sh("test ! -e /sys/class/net/eth0").is_ok());
    }
    bed.wait_for_another_daemon(before);
    vsock(bed, 1);
    a.sh("pgrep -x socat").expect("the stream goes on");
    drop(traffic);
    a.reboot(false).unwrap();
    b.reboot(true).unwrap();
    bed.equip("a");
    bed.equip("b");
    whole_pings(bed, 0, 1500);
}

fn virtio_devices_work_under_user_mode_linux() {
    let bed = up(&spec("uml", Machine::Uml));
    // A guest holds two such files in its /dev/shm, which has half of its memory.
    let (seconds, mib) = if full() { (10, 96) } else { (1, 16) };
    let status = bed.lab().status().unwrap();
    assert_eq!(status.qemu_version, "");
    assert!(status.guests.iter().all(|guest| guest.kernel == "7.2um1"), "{:?}", status.guests);
    whole_pings(&bed, 0, 1500);
    let tcp_rate = tcp_for(&bed, seconds);
    let vsock_rate = vsock(&bed, mib);
    with_the_host(&bed, "a", mib);
    a_killed_guest(&bed);
    vsock(&bed, 1);
    for guest in ["a", "b"] {
        bed.check_kernel(guest);
    }
    a_killed_daemon(&bed);
    vsock(&bed, mib);
    tcp_for(&bed, 1);
    kept(
        "vmms",
        &format!(
            "User Mode Linux: TCP both ways equal, {tcp_rate:.0} Mbit/s; vsock both ways equal, {vsock_rate:.0} Mbit/s; \
             with a program of the host equal; a guest killed under traffic: the other works on; the daemon killed \
             under traffic: both are notified, and work on after a restart"
        ),
    );
    bed.finish();
}

/// Two workers for virtio-vsock: each group of VMs has one, and streams of all of them with each other and
/// with the host are whole.
fn two_workers_serve_virtio_vsock() {
    let mut spec = spec("workers", Machine::Uml);
    spec.guests = 3;
    spec.workers = Some(2);
    spec.groups = ["red", "red", "blue"].map(str::to_owned).to_vec();
    let bed = up(&spec);
    let mib = if full() { 64 } else { 8 };
    let busy = || -> Vec<(String, f64)> {
        let status: Value = serde_json::from_str(&bed.vmlane(&["status", "--json"])).unwrap();
        let all = status["watched"].as_array().unwrap().iter();
        let all =
            all.map(|one| (one["name"].as_str().unwrap().to_owned(), one["busy_seconds"].as_f64().unwrap()));
        all.filter(|(name, _)| name.starts_with("vsock")).collect()
    };
    let before = busy();
    assert_eq!(before.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["vsock-0", "vsock-1"]);
    let rate = std::thread::scope(|scope| {
        let other = scope.spawn(|| with_the_host(&bed, "c", mib));
        let rate = vsock(&bed, mib);
        other.join().unwrap();
        rate
    });
    ["a", "b"].iter().for_each(|guest| with_the_host(&bed, guest, mib));
    let after = busy();
    assert!(
        before.iter().zip(&after).all(|((_, before), (_, after))| after > before),
        "{before:?}, {after:?}"
    );
    kept(
        "virtio",
        &format!(
            "virtio-vsock on two workers, User Mode Linux: two guests of one group with each other ({rate:.0} Mbit/s), while one of \
             another group talks to the host, and all with the host: equal both ways; both workers' threads have worked"
        ),
    );
    bed.finish();
}

/// A daemon in a guest whose kernel promises no more memory than it has: a VMM that cuts its memory short, of
/// which there was more than that, loses its session; the daemon, confined as ever, serves the other VMs.
fn memory_cut_short_ends_one_session_where_nothing_is_overcommitted() {
    const CONFIG: &str = "[[vm]]\nname = \"cut\"\nvsock = \"none\"\nnic = [{ model = \"vmxnet3\" }]\nlimits = { memory = \"8G\" }\n\
        [[vm]]\nname = \"other\"\nvsock = \"none\"\nnic = [{ model = \"vmxnet3\" }]\nlimits = { memory = \"8G\" }\n";
    let mut spec = LabSpec { machines: vec![Machine::Uml], ..lab("strict", &["virtio-net"]) };
    spec.guests = 1;
    let bed = Bed::up(&spec);
    let guest = bed.guest("a");
    guest.sh("sysctl -w vm.overcommit_memory=2 vm.overcommit_ratio=100").unwrap();
    guest.sh(&format!("printf '%s' '{CONFIG}' >/run/strict.toml; mkdir -m 700 /run/strict")).unwrap();
    let daemon = guest.spawn(["vmlane", "daemon", "--config", "/run/strict.toml", "--runtime-dir", "/run/strict"]);
    let daemon = daemon.unwrap();
    let ask = "vmlane status --json --runtime-dir /run/strict";
    let status = || -> Option<Value> { serde_json::from_str(&guest.sh(ask).ok()?).ok() };
    wait_until("the daemon in the guest serves", || status().is_some());
    let before = status().unwrap();
    assert!(before["confined"].as_str().unwrap().contains("seccomp"), "{before}");
    for vm in ["cut", "other", "cut"] {
        let ended = python(&guest, &format!("cut /run/strict/vm/{vm}/nic0.sock 4096"));
        assert_eq!(ended["ended"], true, "{}{}", daemon.stdout(), daemon.stderr());
        let after = status().unwrap_or_else(|| panic!("the daemon is gone: {}", daemon.stderr()));
        assert_eq!(after["pid"], before["pid"]);
    }
    bed.check_kernel("a");
    kept(
        "hostile-vmms",
        "vm.overcommit_memory = 2, User Mode Linux: three times 4 GiB of memory cut short in a guest of less; each session ended, the \
         daemon served on",
    );
    bed.finish();
}

/// The interfaces of the host that join the guests' cards number `card`, which are `uml-vector`: one for each
/// guest, and their bridge.
fn interfaces(spec: &LabSpec, card: usize) -> Vec<PathBuf> {
    let path = |name: &str| Path::new("/sys/class/net").join(name);
    let mut all: Vec<PathBuf> =
        (1..=spec.guests as u32).map(|guest| path(&tap_name(&spec.name, guest, card))).collect();
    let bridges = all.iter().map(|tap| std::fs::canonicalize(tap.join("master")).unwrap());
    let mut bridges: Vec<PathBuf> = bridges.collect();
    bridges.dedup();
    assert_eq!(bridges.len(), 1, "{bridges:?}");
    all.push(path(bridges[0].file_name().unwrap().to_str().unwrap()));
    assert!(all.iter().all(|interface| interface.exists()), "{all:?}");
    all
}

/// User Mode Linux's own network card beside virtio-net: both carry, its own one also after it was set down
/// and after its guest was killed or restarted, and nothing of it is left on the host.
fn its_own_network_card_beside_virtio_net() {
    let mut spec = LabSpec { machines: vec![Machine::Uml], ..lab("vector", &["virtio-net", "uml-vector"]) };
    let bed = up(&spec);
    let made = interfaces(&spec, 1);
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    let driver = a.sh("basename $(readlink /sys/class/net/eth1/device/driver)").unwrap();
    assert_eq!(driver.trim(), "uml-vector");
    let features = a.sh("ethtool -k eth1").unwrap();
    for feature in ["tx-checksum-ip-generic: on", "tx-tcp-segmentation: on", "generic-receive-offload: on"] {
        assert!(features.contains(feature), "{feature}: {features}");
    }
    let rates = [0, 1].map(|card| {
        whole_pings(&bed, card, 1500);
        tcp_over(&bed, card, 2)
    });
    // Linux forgets a card's IPv6 addresses when it is set down.
    a.sh("ip link set eth1 down && ip link set eth1 up && ip -6 address add fd78::1/64 dev eth1 nodad")
        .unwrap();
    whole_pings(&bed, 1, 1500);
    for guest in ["a", "b"] {
        bed.check_kernel(guest);
    }
    b.kill().unwrap();
    b.start().unwrap();
    a.reboot(false).unwrap();
    [0, 1].into_iter().for_each(|card| whole_pings(&bed, card, 1500));
    bed.finish();
    assert!(made.iter().all(|interface| !interface.exists()), "{made:?}");

    // A lab without a daemon, whose supervisor is killed: `lab down` removes what is left.
    spec.devices.remove(0);
    spec.guests = 1;
    let lab = Lab::up(&spec).unwrap_or_else(|error| panic!("{error:#}"));
    let made = interfaces(&spec, 0);
    let supervisor = lab.status().unwrap().supervisor_pid;
    kill_process(rustix::process::Pid::from_raw(supervisor as i32).unwrap(), Signal::KILL).unwrap();
    drop(lab);
    output(vmlane().args(["lab", "down", &spec.name]));
    assert!(made.iter().all(|interface| !interface.exists()), "{made:?}");
    let [own, virtio] = [rates[1], rates[0]];
    kept(
        "vmms",
        &format!(
            "User Mode Linux's own card beside virtio-net: TCP both ways equal over each, {own:.0} and {virtio:.0} Mbit/s; set \
             down and up, its guest killed, the other one restarted; nothing left on the host, also after the supervisor was \
             killed"
        ),
    );
}

/// VMCI and vmxnet3 in QEMU, virtio under User Mode Linux: one switch, one space of CIDs.
fn a_guest_in_qemu_and_one_under_user_mode_linux(bed: &Bed) {
    let driver =
        |guest: &str| bed.guest(guest).sh("basename $(readlink /sys/class/net/eth0/device/driver)").unwrap();
    assert_eq!((driver("a").trim(), driver("b").trim()), ("virtio_net", "vmxnet3"));
    let (seconds, mib) = if full() { (10, 64) } else { (1, 8) };
    whole_pings(bed, 0, 1500);
    let tcp_rate = tcp_for(bed, seconds);
    let vsock_rate = vsock(bed, mib);
    kept(
        "vmms",
        &format!(
            "VMCI and vmxnet3 in QEMU with User Mode Linux: TCP both ways equal, {tcp_rate:.0} Mbit/s; vsock both ways \
             equal, {vsock_rate:.0} Mbit/s"
        ),
    );
}

/// Guests in QEMU and under User Mode Linux read one root image. Whichever of them runs, the others start.
fn any_mixture_of_machines_starts(bed: &Bed) {
    let rounds = if full() { 20 } else { 1 };
    let mut first_of_qemu = spec("mixture-q", Machine::Microvm);
    first_of_qemu.guests = 1;
    for round in 1..=rounds {
        for guest in ["b", "a"] {
            let guest = bed.guest(guest);
            guest.kill().unwrap();
            guest
                .start()
                .and_then(|()| guest.sh("true"))
                .unwrap_or_else(|error| panic!("round {round}: {error:#}"));
        }
        // A lab of its own, beside the running ones.
        if round <= 2 {
            Bed::up(&first_of_qemu).finish();
        }
    }
    for guest in ["a", "b"] {
        bed.equip(guest);
    }
    whole_pings(bed, 0, 1500);
    kept(
        "vmms",
        &format!("a mixed lab: each guest killed and started beside the other, {rounds} of {rounds} times"),
    );
}
