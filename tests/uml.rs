//! The virtio devices in guests under User Mode Linux, alone and beside a guest in QEMU.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use vmlane_lab::{LabSpec, Machine, Running};
use vmlane_tests::{
    Bed, Carrier, Mode, PATIENCE, Route, Service, carry, full, json, kept, python, serve, wait_until,
};

/// The port of the checked TCP streams.
const TCP: u32 = 7200;

/// Two guests with both devices, once they were seen to be what was asked for.
fn bed(what: &str, machine: Machine, qemu: Option<&str>) -> Bed {
    let mut spec = LabSpec::new(&format!("{what}-{}", std::process::id()));
    for device in ["virtio-net", "virtio-vsock"] {
        spec = spec.device(device).unwrap();
    }
    if machine.is_qemu() {
        spec.kernels = vec!["6.12".into()];
    }
    spec.boot_seconds = 300;
    spec.machines = vec![machine];
    spec.qemu = qemu.map(str::to_owned);
    let bed = Bed::up(&spec);
    let status = bed.lab().status().unwrap();
    for guest in &status.guests {
        assert!(guest.warnings.is_empty(), "guest {}: {:?}", guest.name, guest.warnings);
    }
    let version = &status.qemu_version;
    assert!(qemu.is_none_or(|qemu| version.starts_with(&format!("{qemu}."))), "QEMU {version}");
    // On virtio-mmio, a device is below no PCI function.
    let path = bed.guest("a").sh("readlink -f /sys/class/net/eth0/device").unwrap();
    assert_eq!(path.contains("pci"), machine == Machine::Q35, "{path}");
    println!("QEMU {version}, {machine}: eth0 is {}", path.trim());
    bed
}

fn give(bed: &Bed, from: &str, address: &str, seconds: u32) -> Running {
    let seconds = seconds.to_string();
    let line = ["python3", "/t/tcp.py", "give", address, &TCP.to_string(), &seconds].map(str::to_owned);
    let running = bed.guest(from).spawn(line).unwrap();
    running.wait_for("moving", PATIENCE).unwrap_or_else(|error| panic!("guest {from}: {error:#}"));
    running
}

/// Streams of TCP both ways at once while `meanwhile` happens; they must come whole. Returns the rate of both
/// together in Mbit/s, and the longest pause in seconds.
fn tcp(bed: &Bed, seconds: u32, meanwhile: impl FnOnce()) -> (f64, f64) {
    let _takers: [Service; 2] = ["a", "b"].map(|name| serve(&bed.guest(name), &format!("tcp take {TCP}")));
    let streams =
        [("a", "10.77.0.2"), ("b", "10.77.0.1")].map(|(from, to)| (from, give(bed, from, to, seconds)));
    meanwhile();
    let (mut rate, mut pause) = (0.0, 0.0f64);
    for (from, stream) in streams {
        let told: Value = json(&bed.guest(from), "tcp give", &stream.wait().unwrap());
        rate += told["bytes"].as_f64().unwrap() * 8e-6 / told["seconds"].as_f64().unwrap();
        pause = pause.max(told["pause"].as_f64().unwrap());
    }
    (rate, pause)
}

/// A file each way at once between the siblings, over vsock.
fn vsock(bed: &Bed, mib: u64) -> f64 {
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    let route = Route { cid: bed.cid("b"), port: 5000, listen: 5000 };
    let seconds = carry(&a, &b, Carrier::Socat, route, Mode::Both, mib << 20);
    let route = Route { cid: bed.cid("a"), port: 5000, listen: 5000 };
    carry(&b, &a, Carrier::Socat, route, Mode::Out, mib << 20);
    (2 * mib) as f64 * 8.388_608 / seconds
}

fn ping(bed: &Bed) {
    bed.guest("a")
        .sh("ping -q -c 3 -i 0.2 -M do -s 1472 10.77.0.2 && ping -6 -q -c 3 -i 0.2 fd77::2")
        .unwrap();
}

/// b's QEMU is killed while a sends to it over TCP and vsock: a hears of it and works on, with the next b too.
fn a_killed_qemu(bed: &Bed) {
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    let taker = serve(&b, &format!("tcp take {TCP}"));
    let tcp = give(bed, "a", "10.77.0.2", 3600);
    let listening = b.spawn(["socat", "-d", "-d", "-u", "VSOCK-LISTEN:6002", "OPEN:/dev/null"]).unwrap();
    listening.wait_for("listening on", PATIENCE).unwrap();
    let line = format!("socat -d -d -u OPEN:/dev/zero VSOCK-CONNECT:{}:6002 2>&1; echo ended", bed.cid("b"));
    let stream = a.spawn(["sh", "-c", &line]).unwrap();
    stream.wait_for("starting data transfer", PATIENCE).unwrap();
    b.kill().unwrap();
    stream.wait_for("ended", PATIENCE).unwrap();
    drop((tcp, taker, listening));
    a.sh("pkill -9 python3; ip neigh flush dev eth0; true").unwrap();
    b.start().unwrap();
    bed.equip("b");
    ping(bed);
}

/// The script of checked streams as a program of the host, under `vmlane run`.
fn on_host(bed: &Bed, words: &str) -> Command {
    let mut command = Command::new(vmlane_lab::find_vmlane().unwrap());
    command.env("VMLANE_RUNTIME_DIR", bed.lab().daemon_runtime_dir());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/pairs.py");
    command.args(["run", "--", "python3"]).arg(script).args(words.split(' '));
    command
}

/// Streams between a guest and a program of the host, opened by either; their checksums are compared both ways.
fn with_the_host(bed: &Bed, name: &str, mib: u64) {
    let guest = bed.guest(name);
    let server = serve(&guest, "pairs serve 6200");
    let words = format!("try {} 6200 {}", bed.cid(name), mib << 20);
    let output = on_host(bed, &words).stdin(Stdio::null()).output().unwrap();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {complained}");
    drop(server);
    let mut server = on_host(bed, "serve 6200").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "listening\n");
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        python(&guest, &format!("pairs try 2 6200 {}", mib << 20));
    }));
    server.kill().unwrap();
    server.wait().unwrap();
    result.unwrap();
}

/// The daemon is killed under traffic: a guest under User Mode Linux, whose driver connects once, is told at
/// once, and has its devices again after a restart of its own.
fn told_of_a_killed_daemon(bed: &Bed) {
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    let taker = serve(&b, &format!("tcp take {TCP}"));
    let tcp = give(bed, "a", "10.77.0.2", 3600);
    let listening = b.spawn(["socat", "-d", "-d", "-u", "VSOCK-LISTEN:6002", "OPEN:/dev/null"]).unwrap();
    listening.wait_for("listening on", PATIENCE).unwrap();
    let line = format!("socat -d -d -u OPEN:/dev/zero VSOCK-CONNECT:{}:6002 2>&1; echo ended", bed.cid("b"));
    let stream = a.spawn(["sh", "-c", &line]).unwrap();
    stream.wait_for("starting data transfer", PATIENCE).unwrap();
    let before = bed.daemon_pid();
    kill_process(before, Signal::KILL).unwrap();
    stream.wait_for("ended", PATIENCE).unwrap();
    for guest in [&a, &b] {
        wait_until("the guest's card is gone", || guest.sh("test ! -e /sys/class/net/eth0").is_ok());
    }
    drop((tcp, taker, listening, stream));
    bed.wait_for_another_daemon(before);
    a.reboot(false).unwrap();
    b.reboot(true).unwrap();
    bed.equip("a");
    bed.equip("b");
    ping(bed);
}

#[test]
fn virtio_devices_under_user_mode_linux() {
    let bed = bed("uml", Machine::Uml, None);
    let (seconds, mib) = if full() { (10, 256) } else { (3, 32) };
    let status = bed.lab().status().unwrap();
    assert_eq!(status.qemu_version, "");
    assert!(status.guests.iter().all(|guest| guest.kernel == "7.2um1"), "{:?}", status.guests);
    ping(&bed);
    let (tcp_rate, _) = tcp(&bed, seconds, || ());
    let vsock_rate = vsock(&bed, mib);
    with_the_host(&bed, "a", mib);
    a_killed_qemu(&bed);
    vsock(&bed, 1);
    for guest in ["a", "b"] {
        bed.check_kernel(guest);
    }
    told_of_a_killed_daemon(&bed);
    vsock(&bed, mib);
    tcp(&bed, 1, || ());
    kept(
        3,
        &format!(
            "User Mode Linux: TCP both ways equal, {tcp_rate:.0} Mbit/s; vsock both ways equal, {vsock_rate:.0} Mbit/s; \
             with a program of the host equal; a guest killed under traffic: the other works on; the daemon killed \
             under traffic: both are told, and work on after a restart"
        ),
    );
    bed.finish();
}

/// VMCI and vmxnet3 in QEMU, virtio under User Mode Linux: one switch, one space of CIDs.
#[test]
fn a_guest_in_qemu_and_one_under_user_mode_linux() {
    let mut spec = LabSpec::new(&format!("both-{}", std::process::id()));
    for device in ["vmxnet3", "vmci"] {
        spec = spec.device(device).unwrap();
    }
    spec.machines = vec![Machine::Q35, Machine::Uml];
    spec.kernels = vec!["6.12".into()];
    spec.boot_seconds = 300;
    let bed = Bed::up(&spec);
    let driver =
        |guest: &str| bed.guest(guest).sh("basename $(readlink /sys/class/net/eth0/device/driver)").unwrap();
    assert_eq!((driver("a").trim(), driver("b").trim()), ("vmxnet3", "virtio_net"));
    let (seconds, mib) = if full() { (10, 64) } else { (3, 8) };
    ping(&bed);
    let (tcp_rate, _) = tcp(&bed, seconds, || ());
    let vsock_rate = vsock(&bed, mib);
    kept(
        3,
        &format!(
            "VMCI and vmxnet3 in QEMU with User Mode Linux: TCP both ways equal, {tcp_rate:.0} Mbit/s; vsock both ways \
             equal, {vsock_rate:.0} Mbit/s"
        ),
    );
    bed.finish();
}
