//! virtio NICs with unmodified drivers, alone and together with VMXNET3 on one switch; virtio-vsock.

use std::time::Duration;

use vmlane_lab::{Guest, LabSpec};
use vmlane_tests::{Bed, Carrier, Mode, PATIENCE, PATIENT, Route, carry, full, kept};

fn lab(what: &str, kernels: &[&str], devices: &[&str]) -> LabSpec {
    let mut spec = LabSpec::new(&format!("{what}-{}", std::process::id()));
    for device in devices {
        spec = spec.device(device).unwrap();
    }
    spec.kernels = kernels.iter().map(|kernel| (*kernel).to_owned()).collect();
    spec.guests = kernels.len();
    spec.boot_seconds = 300;
    spec
}

/// Carries `mib` random mebibytes over TCP and compares.
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

/// Gbit/s from guest a to the address.
fn iperf(bed: &Bed, address: &str, options: &str) -> f64 {
    let server = bed.guest("b").spawn(["iperf3", "-s", "-1", "--forceflush"]).unwrap();
    server.wait_for("listening", PATIENCE).unwrap();
    let text = bed.guest("a").sh(&format!("iperf3 -J -c {address} {options}")).unwrap();
    server.wait().unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate") / 1e9
}

fn port(bed: &Bed, guest: &str, nic: usize, counter: &str) -> u64 {
    let stats = bed.stats();
    let vm = stats["vms"].as_array().unwrap().iter().find(|vm| vm["name"] == guest).unwrap().clone();
    vm["nics"][nic]["port"][counter].as_u64().unwrap_or_else(|| panic!("no counter {counter} in {vm}"))
}

/// What a guest may switch; the second command undoes the first.
const SWITCHES: [(&str, &str, &str); 4] = [
    ("TSO off", "ethtool -K eth0 tso off", "ethtool -K eth0 tso on"),
    ("transmit checksum off", "ethtool -K eth0 tx off", "ethtool -K eth0 tx on tso on"),
    ("checksum without scatter", "ethtool -K eth0 sg off", "ethtool -K eth0 sg on tso on"),
    ("MTU 9000", "ip link set eth0 mtu 9000", "ip link set eth0 mtu 1500"),
];

fn traffic(kernel: &str, device: &str, mib: u32) {
    let name = format!("vn{}", kernel.replace('.', ""));
    let bed = Bed::up(&lab(&name, &[kernel, kernel], &[device]));
    pings(&bed, 1500);
    files(&bed, mib);
    for (what, on, off) in SWITCHES {
        both(&bed, on);
        files(&bed, mib);
        both(&bed, off);
        println!("kernel {kernel}, {device}: {what}: files equal");
    }
    both(&bed, "ip link set eth0 mtu 9000");
    pings(&bed, 9000);
    both(&bed, "ip link set eth0 mtu 1500");
    for _ in 0..3 {
        let up = "ip addr replace 10.77.0.2/24 dev eth0; ip link set eth0 up";
        bed.guest("b").sh(&format!("rmmod virtio_net && modprobe virtio_net && sleep 0.3; {up}")).unwrap();
    }
    bed.guest("a").sh("ping -q -c 10 -i 0.2 -W 2 10.77.0.2 >/dev/null; true").unwrap();
    files(&bed, mib);
    let there = iperf(&bed, "10.77.0.2", "-P 4 -t 2");
    let back = iperf(&bed, "10.77.0.2", "-R -t 2");
    assert!(port(&bed, "b", 0, "rx_aggregates") > 0, "no super-frame stayed whole");
    kept(
        1,
        &format!(
            "{device}, {kernel}: pings of 1500 and 9000, {mib} MiB each way equal with everything on and off, driver \
             reloads; {there:.2} Gbit/s, reverse {back:.2} Gbit/s"
        ),
    );
    bed.finish();
}

#[test]
fn files_arrive_intact_whatever_is_switched() {
    let kernels: &[&str] = if full() { &["5.10", "6.1", "6.12", "7.2"] } else { &["6.12"] };
    for kernel in kernels {
        traffic(kernel, "virtio-net", if full() { 64 } else { 8 });
    }
}

#[test]
fn packed_rings_and_several_queues_work() {
    let mut spec = lab("vnq", &["6.12", "6.12"], &["virtio-net:queues=2,packed=true"]);
    spec.cpus = 2;
    let bed = Bed::up(&spec);
    let features = bed.guest("a").sh("cat /sys/class/net/eth0/device/features").unwrap();
    assert_eq!(features.trim().as_bytes()[34], b'1', "packed rings were not negotiated: {features}");
    files(&bed, 8);
    // Linux moves a flow to the queue of the CPU on which its receiver runs: enough flows, and long enough, for both.
    let rate = iperf(&bed, "10.77.0.2", "-P 16 -t 3");
    let find = "n=$(basename $(readlink -f /sys/class/net/eth0/device)); grep \"$n-input\" /proc/interrupts";
    let lines = bed.guest("b").sh(find).unwrap();
    let raised = |line: &&str| {
        let counts = line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
        counts.sum::<u64>() > 10
    };
    assert_eq!(lines.lines().filter(raised).count(), 2, "flows use both queues:\n{lines}");
    kept(1, &format!("packed rings, 2 pairs of queues: files equal, 16 flows {rate:.2} Gbit/s over both"));
    bed.finish();
}

/// Each guest has a card of each kind in one VLAN: eth0 is vmxnet3, eth1 virtio-net.
#[test]
fn files_arrive_between_vmxnet3_and_virtio() {
    let bed = Bed::up(&lab("mixed", &["6.12", "6.12"], &["vmxnet3:vlan=20", "virtio-net:vlan=20"]));
    // a has eth0 only, b has eth1 only, in one subnet.
    bed.guest("a").sh("ip link set eth1 down").unwrap();
    bed.guest("b")
        .sh("ip link set eth0 down; ip addr add 10.77.0.2/24 dev eth1; ip addr add fd77::2/64 dev eth1")
        .unwrap();
    bed.guest("a").sh("ping -q -c 10 -i 0.2 -W 2 10.77.0.2 >/dev/null; true").unwrap();
    pings(&bed, 1500);
    files(&bed, 16);
    for (guest, card) in [("a", "eth0"), ("b", "eth1")] {
        // A sender that segments in software towards a receiver that aggregates, and the reverse.
        bed.guest(guest).sh(&format!("ethtool -K {card} tso off")).unwrap();
        files(&bed, 4);
        bed.guest(guest).sh(&format!("ethtool -K {card} tso on; ip link set {card} mtu 9000")).unwrap();
    }
    pings(&bed, 9000);
    files(&bed, 16);
    bed.guest("a").sh("ip link set eth0 mtu 1500").unwrap();
    bed.guest("b").sh("ip link set eth1 mtu 1500").unwrap();
    let there = iperf(&bed, "10.77.0.2", "-t 3");
    let back = iperf(&bed, "10.77.0.2", "-R -t 3");
    assert!(port(&bed, "b", 1, "rx_aggregates") > 0, "vmxnet3 to virtio: super-frames whole");
    assert!(port(&bed, "a", 0, "rx_aggregates") > 0, "virtio to vmxnet3: super-frames whole");
    kept(
        1,
        &format!(
            "vmxnet3 with virtio-net: files equal with TSO on and off and with jumbo frames, {there:.2} Gbit/s to virtio, {back:.2} Gbit/s to vmxnet3"
        ),
    );
    bed.finish();
}

/// a - router b - c: what b forwards fits the link, and c gets every byte.
#[test]
fn a_virtio_guest_that_forwards_loses_nothing() {
    for device in ["virtio-net", "virtio-net:lro=false"] {
        let bed = Bed::up(&lab("vroute", &["6.12"; 3], &[device]));
        bed.guest("b")
            .sh("echo 1 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv4/conf/all/send_redirects; \
                 echo 0 >/proc/sys/net/ipv4/conf/eth0/send_redirects")
            .unwrap();
        bed.guest("a").sh("ip route add 10.77.0.3/32 via 10.77.0.2").unwrap();
        bed.guest("c").sh("ip route add 10.77.0.1/32 via 10.77.0.2").unwrap();
        file(&bed.guest("a"), &bed.guest("c"), "10.77.0.3", 16);
        if device.contains("lro=false") {
            assert_eq!(port(&bed, "b", 0, "rx_aggregates"), 0, "a router got merged frames");
        }
        kept(4, &format!("{device}: a guest forwards 16 MiB, checksums equal"));
        bed.finish();
    }
}

/// The daemon is killed and started again: QEMU reconnects by itself and nothing in the rings is lost.
#[test]
fn traffic_survives_the_daemon() {
    let bed = Bed::up(&lab("vkill", &["6.12", "6.12"], &["virtio-net"]));
    let a = bed.guest("a");
    let ping = a.spawn(["sh", "-c", "ping -q -i 0.1 -c 120 10.77.0.2"]).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    bed.kill_daemon();
    let said = ping.wait().unwrap().stdout();
    let received = said.split(", ").find_map(|part| part.strip_suffix(" received")?.parse::<u32>().ok());
    // 0.1 s apart: 20 lost are 2 s.
    assert!(received.is_some_and(|received| received > 100), "{said}");
    files(&bed, 8);
    kept(
        3,
        &format!(
            "the daemon killed and started again under a ping of 120: {} came back",
            received.unwrap_or(0)
        ),
    );
    bed.finish();
}

/// Connections between virtio-vsock guests: no program has to set a flag.
#[test]
fn vsock_streams_arrive_between_virtio_guests() {
    let bed = Bed::up(&lab("vsock", &["6.12", "6.12"], &["virtio-vsock"]));
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    let mib = if full() { 64 } else { 8 };
    for mode in [Mode::Both, Mode::Out, Mode::Back] {
        carry(&a, &b, Carrier::Socat, Route { cid: 4, port: 5000, listen: 5000 }, mode, mib << 20);
        carry(&b, &a, Carrier::Socat, Route { cid: 3, port: 5000, listen: 5000 }, mode, mib << 20);
    }
    // Refused at once: a port without a listener, a CID without a VM.
    for target in ["4:9999", "77:1"] {
        let refused = a
            .sh(&format!("timeout 60 socat - VSOCK-CONNECT:{target},{PATIENT} </dev/null 2>&1; echo code $?"))
            .unwrap();
        assert!(refused.contains("code 1") && refused.contains("reset"), "{refused}");
    }
    // No connect may be refused: between virtio guests nothing limits a handshake to a second.
    let connections = "\
import vs
for i in range(200):
    s = vs.connected(4, 6000, again=0)
    s.sendall(b'%d' % i); s.shutdown(vs.socket.SHUT_WR)
    got = vs.recv_all(s)
    assert got == b'%d' % i, (i, got)
";
    // -t: how long socat waits for an answer once its client has sent everything. The default of half a second is
    // too short for a program that has to be started first.
    let echo = b.spawn(["socat", "-d", "-d", "-t", "60", "VSOCK-LISTEN:6000,fork", "EXEC:cat"]).unwrap();
    echo.wait_for("listening on", PATIENCE).unwrap();
    a.sh(&format!("PYTHONPATH=/t python3 -c \"{connections}\"")).unwrap();
    drop(echo);
    kept(2, &format!("virtio-vsock: {mib} MiB each way equal, half-close, 200 connections, refused ports"));
    bed.finish();
}

/// Whatever the receiver's buffers are.
#[test]
fn seqpacket_messages_keep_their_boundaries() {
    let bed = Bed::up(&lab("vseq", &["6.12", "6.12"], &["virtio-vsock"]));
    let take = "\
import socket, hashlib
s = socket.socket(socket.AF_VSOCK, socket.SOCK_SEQPACKET); s.bind((socket.VMADDR_CID_ANY, 6001)); s.listen()
print('listening', flush=True)
c, _ = s.accept()
for size in (1, 3000, 4096, 60000, 200000):
    data = c.recv(1 << 20)
    assert len(data) == size and data == bytes([size % 251]) * size, (size, len(data))
print('equal', flush=True)
";
    let give = "\
import vs
s = vs.stream(vs.socket.SOCK_SEQPACKET); s.connect((4, 6001))
for size in (1, 3000, 4096, 60000, 200000): s.send(bytes([size % 251]) * size)
s.recv(1)
";
    let taking = bed.guest("b").spawn(["python3", "-c", take]).unwrap();
    taking.wait_for("listening", PATIENCE).unwrap();
    bed.guest("a").sh(&format!("PYTHONPATH=/t python3 -c \"{give}\"")).unwrap();
    let output = taking.wait().unwrap();
    assert!(output.stdout().contains("equal"), "{}{}", output.stdout(), output.stderr());
    kept(2, "SEQPACKET between virtio guests: messages of 1 to 200000 bytes keep their boundaries");
    bed.finish();
}

#[test]
fn a_killed_guest_ends_its_peers_connections() {
    let bed = Bed::up(&lab("vgone", &["6.12", "6.12"], &["virtio-vsock"]));
    let listening =
        bed.guest("b").spawn(["socat", "-d", "-d", "VSOCK-LISTEN:6002", "EXEC:'sleep 1000'"]).unwrap();
    listening.wait_for("listening on", PATIENCE).unwrap();
    let line = format!("sleep 1000 | socat -d -d - VSOCK-CONNECT:4:6002,{PATIENT} 2>&1; echo ended");
    let waiting = bed.guest("a").spawn(["sh", "-c", &line]).unwrap();
    waiting.wait_for("successfully connected", PATIENCE).unwrap();
    bed.guest("b").kill().unwrap();
    // Linux reports end of file when an established stream is reset.
    waiting.wait_for("is at EOF", PATIENCE).unwrap();
    kept(2, "the streams of a killed guest's peers end");
    bed.finish();
}

/// Guest a has VMCI, guest b virtio-vsock; neither knows what the other has.
#[test]
fn streams_arrive_between_vmci_and_virtio_vsock() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[[vm]]\nname = \"b\"\nvsock = \"virtio\"\n").unwrap();
    let mut spec = lab("vmix", &["6.12", "6.12"], &["vmci"]);
    spec.daemon_config = Some(file.path().to_owned());
    let bed = Bed::up(&spec);
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    let mib = if full() { 64 } else { 8 };
    for mode in [Mode::Both, Mode::Out, Mode::Back] {
        carry(&a, &b, Carrier::Socat, Route { cid: 4, port: 5000, listen: 5000 }, mode, mib << 20);
        carry(&b, &a, Carrier::Socat, Route { cid: 3, port: 5000, listen: 5000 }, mode, mib << 20);
    }
    for (guest, target) in [(&a, "4:9999"), (&b, "3:9999")] {
        let line =
            format!("timeout 60 socat - VSOCK-CONNECT:{target},{PATIENT} </dev/null 2>&1; echo code $?");
        let refused = guest.sh(&line).unwrap();
        assert!(refused.contains("code 1") && refused.contains("reset"), "{refused}");
    }
    kept(
        2,
        &format!(
            "VMCI and virtio-vsock guests: {mib} MiB each way equal with either as the client, refused ports"
        ),
    );
    bed.finish();
}
