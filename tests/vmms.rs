//! The virtio devices in QEMUs that know no vfio-user: Debian 12's 7.2, and a microvm without PCI.

use std::path::Path;

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use vmlane_lab::{LabSpec, Machine, Running};
use vmlane_tests::{Bed, Carrier, Mode, PATIENCE, Route, Service, carry, full, json, kept, serve};

/// The port of the checked TCP streams.
const TCP: u32 = 7200;

/// Two guests with both devices, once they were seen to be what was asked for.
fn bed(what: &str, machine: Machine, qemu: Option<&str>) -> Bed {
    bed_with(what, machine, qemu, None)
}

fn bed_with(what: &str, machine: Machine, qemu: Option<&str>, config: Option<&Path>) -> Bed {
    let mut spec = LabSpec::new(&format!("{what}-{}", std::process::id()));
    for device in ["virtio-net", "virtio-vsock"] {
        spec = spec.device(device).unwrap();
    }
    spec.kernels = vec!["6.12".into()];
    spec.boot_seconds = 300;
    spec.machine = machine;
    spec.qemu = qemu.map(str::to_owned);
    spec.daemon_config = config.map(Path::to_owned);
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

/// The daemon is killed under TCP: each guest's NIC goes on with the next one by itself.
fn a_killed_daemon(bed: &Bed, seconds: u32) -> f64 {
    let before = bed.daemon_pid();
    let (_, pause) = tcp(bed, seconds, || {
        kill_process(before, Signal::KILL).unwrap();
        bed.wait_for_another_daemon(before);
    });
    ping(bed);
    pause
}

fn promise(what: &str, machine: Machine, qemu: Option<&str>) {
    let bed = bed(what, machine, qemu);
    let version = bed.lab().status().unwrap().qemu_version;
    let (seconds, mib) = if full() { (10, 64) } else { (2, 8) };
    ping(&bed);
    let (tcp_rate, _) = tcp(&bed, seconds, || ());
    let vsock_rate = vsock(&bed, mib);
    a_killed_qemu(&bed);
    vsock(&bed, 1);
    let pause = a_killed_daemon(&bed, seconds + 4);
    kept(
        3,
        &format!(
            "QEMU {version}, {machine}: TCP both ways equal, {tcp_rate:.0} Mbit/s; vsock both ways equal, {vsock_rate:.0} \
             Mbit/s; a QEMU killed under traffic: the other guest works on; the daemon killed under TCP: streams whole, \
             longest pause {pause} s"
        ),
    );
    bed.finish();
}

#[test]
fn virtio_devices_in_qemu_7_2() {
    promise("q72", Machine::Q35, Some("7.2"));
}

#[test]
fn virtio_devices_on_a_microvm() {
    promise("microvm", Machine::Microvm, None);
    if full() {
        promise("mq72", Machine::Microvm, Some("7.2"));
    }
}

/// The QEMUs listen, and the daemon connects: to one that is started again, and after its own death.
#[test]
fn qemus_that_listen() {
    let vm = |name: &str, number: u32| {
        format!(
            "[[vm]]\nname = \"{name}\"\nvsock_role = \"client\"\nnic = [{{ model = \"virtio-net\", role = \"client\", \
             port_group = \"net0\", mac = \"52:54:00:77:00:0{number}\" }}]\n"
        )
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    // The sockets are QEMU's, and so is the user who may connect to them.
    let root = rustix::process::getuid().is_root();
    let user = if root { "[daemon]\nuser = \"root\"\n" } else { "" };
    std::fs::write(file.path(), user.to_owned() + &vm("a", 1) + &vm("b", 2)).unwrap();
    let bed = bed_with("listen", Machine::Q35, None, Some(file.path()));
    let arguments = bed.vmlane(&[
        "qemu-args",
        "a",
        "--config",
        &bed.lab().status().unwrap().daemon.unwrap().config.display().to_string(),
    ]);
    assert_eq!(arguments.matches("server=on").count(), 2, "{arguments}");
    ping(&bed);
    vsock(&bed, 8);
    a_killed_qemu(&bed);
    vsock(&bed, 1);
    let pause = a_killed_daemon(&bed, 6);
    kept(
        3,
        &format!(
            "QEMUs that listen: streams, a QEMU killed, the daemon killed under TCP: longest pause {pause} s"
        ),
    );
    bed.finish();
}
