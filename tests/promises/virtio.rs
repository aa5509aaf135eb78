//! virtio NICs with unmodified drivers, alone and together with VMXNET3 on one switch; virtio-vsock.

use vmlane_lab::LabSpec;
use vmlane_tests::siblings::as_requested;
use vmlane_tests::traffic::{
    address, both, card_up, file, files, iperf, port, reload_cards, routed, whole_pings,
};
use vmlane_tests::{
    Bed, Carrier, Mode, TIMEOUT, PATIENT, Route, carry, full, kept, lab, reload_virtio_vsock,
};

vmlane_tests::tests! {
    guests in VIRTIO {
        files_arrive_intact_whatever_is_switched,
        a_virtio_guest_that_forwards_loses_nothing,
        vsock_streams_arrive_between_virtio_guests,
        seqpacket_messages_keep_their_boundaries,
    }
    guests in QUEUES { packed_rings_and_several_queues_work }
    guests in KINDS { files_arrive_between_vmxnet3_and_virtio, streams_arrive_between_vmci_and_virtio_vsock }
    guests in VIRTIO_KILLS { a_killed_guest_ends_its_peers_connections, traffic_survives_the_daemon }
    long { files_arrive_intact_in_guests_of_other_kernels }
}

/// What a guest may switch; the second command undoes the first.
const SWITCHES: [(&str, &str, &str); 4] = [
    ("TSO off", "ethtool -K eth0 tso off", "ethtool -K eth0 tso on"),
    ("transmit checksum off", "ethtool -K eth0 tx off", "ethtool -K eth0 tx on tso on"),
    ("checksum without scatter", "ethtool -K eth0 sg off", "ethtool -K eth0 sg on tso on"),
    ("MTU 9000", "ip link set eth0 mtu 9000", "ip link set eth0 mtu 1500"),
];

fn files_arrive_intact_whatever_is_switched(bed: &Bed) {
    traffic(bed, "7.2um1", 2);
    // "tso on" switches on what was off before. b's driver has been reloaded since.
    bed.guest("a").sh(&reload_cards("virtio_net", 2, 1)).unwrap();
}

fn files_arrive_intact_in_guests_of_other_kernels() {
    for kernel in ["5.10", "6.1", "6.12", "7.2"] {
        let spec = lab(&format!("vn{}", kernel.replace('.', "")), &["virtio-net"]);
        let bed = Bed::up(&LabSpec { kernels: vec![kernel.to_owned()], ..spec });
        traffic(&bed, kernel, 1);
        bed.finish();
    }
}

/// Between guests with so many virtio NICs.
fn traffic(bed: &Bed, kernel: &str, cards: u32) {
    let mib = if full() { 64 } else { 8 };
    let before = port(bed, "b", 0, "rx_aggregates");
    whole_pings(bed, 0, 1500);
    files(bed, 0, mib);
    for (what, on, off) in SWITCHES {
        both(bed, on);
        files(bed, 0, mib);
        both(bed, off);
        println!("kernel {kernel}: {what}: files equal");
    }
    both(bed, "ip link set eth0 mtu 9000");
    whole_pings(bed, 0, 9000);
    both(bed, "ip link set eth0 mtu 1500");
    for _ in 0..3 {
        bed.guest("b").sh(&reload_cards("virtio_net", cards, 2)).unwrap();
    }
    bed.guest("a").sh("ping -q -c 10 -i 0.2 -W 2 10.77.0.2 >/dev/null; true").unwrap();
    files(bed, 0, mib);
    let [there, back] =
        ["-P 4 -t 1", "-R -t 1"].map(|options| iperf(bed, ["a", "b"], "10.77.0.2", 5201, options));
    assert!(port(bed, "b", 0, "rx_aggregates") > before, "no super-frame stayed whole");
    kept(
        "virtio",
        &format!(
            "virtio-net, {kernel}: pings of 1500 and 9000, {mib} MiB each way equal with everything on and off, driver \
             reloads; {there:.2} Gbit/s, reverse {back:.2} Gbit/s"
        ),
    );
}

/// On eth1.
fn packed_rings_and_several_queues_work(bed: &Bed) {
    let features = bed.guest("a").sh("cat /sys/class/net/eth1/device/features").unwrap();
    assert_eq!(features.trim().as_bytes()[34], b'1', "packed rings were not negotiated: {features}");
    files(bed, 1, 8);
    // Linux moves a flow to the queue of the CPU on which its receiver runs: enough flows, and long enough,
    // for both.
    let rate = iperf(bed, ["a", "b"], "10.78.0.2", 5201, "-P 16 -t 2");
    let find = "n=$(basename $(readlink -f /sys/class/net/eth1/device)); grep \"$n-input\" /proc/interrupts";
    let lines = bed.guest("b").sh(find).unwrap();
    let raised = |line: &&str| {
        let counts = line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
        counts.sum::<u64>() > 10
    };
    assert_eq!(lines.lines().filter(raised).count(), 2, "flows use both queues:\n{lines}");
    let what = format!("packed rings, 2 pairs of queues: files equal, 16 flows {rate:.2} Gbit/s over both");
    kept("virtio", &what);
}

/// Each guest has a card of each kind in one VLAN: eth0 is vmxnet3, eth1 virtio-net.
fn files_arrive_between_vmxnet3_and_virtio(bed: &Bed) {
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    // a has eth0 only, b has eth1 only, in one subnet.
    a.sh("ip link set eth1 down").unwrap();
    b.sh("ip link set eth0 down; ip addr add 10.77.0.2/24 dev eth1; ip addr add fd77::2/64 dev eth1 nodad")
        .unwrap();
    a.sh("ping -q -c 10 -i 0.2 -W 2 10.77.0.2 >/dev/null; true").unwrap();
    let whole = || [port(bed, "a", 0, "rx_aggregates"), port(bed, "b", 1, "rx_aggregates")];
    let before = whole();
    whole_pings(bed, 0, 1500);
    files(bed, 0, 16);
    for (guest, card) in [(&a, "eth0"), (&b, "eth1")] {
        // A sender that segments in software towards a receiver that aggregates, and the reverse.
        guest.sh(&format!("ethtool -K {card} tso off")).unwrap();
        files(bed, 0, 4);
        guest.sh(&format!("ethtool -K {card} tso on; ip link set {card} mtu 9000")).unwrap();
    }
    whole_pings(bed, 0, 9000);
    files(bed, 0, 16);
    a.sh("ip link set eth0 mtu 1500").unwrap();
    b.sh("ip link set eth1 mtu 1500").unwrap();
    let [there, back] = ["-t 1", "-R -t 1"].map(|options| iperf(bed, ["a", "b"], "10.77.0.2", 5201, options));
    let after = whole();
    assert!(after[1] > before[1], "vmxnet3 to virtio: super-frames whole");
    assert!(after[0] > before[0], "virtio to vmxnet3: super-frames whole");
    a.sh(&format!("{} && {}", reload_cards("vmxnet3", 1, 1), card_up(1, 1))).unwrap();
    b.sh(&reload_cards("virtio_net", 2, 2)).unwrap();
    kept(
        "virtio",
        &format!(
            "vmxnet3 with virtio-net: files equal with TSO on and off and with jumbo frames, {there:.2} Gbit/s to virtio, {back:.2} Gbit/s to vmxnet3"
        ),
    );
}

/// a - router b - c: what b forwards fits the link, and c gets every byte.
fn a_virtio_guest_that_forwards_loses_nothing(bed: &Bed) {
    for (card, lro) in [(0, true), (1, false)] {
        let merged = || port(bed, "b", card as usize, "rx_aggregates");
        let before = merged();
        routed(bed, card, || file(&bed.guest("a"), &bed.guest("c"), &address(card, 3), 16));
        assert!(lro || merged() == before, "a router got merged frames");
        kept("forwarding", &format!("virtio-net:lro={lro}: a guest forwards 16 MiB, checksums equal"));
    }
}

/// The daemon is killed and started again: each QEMU is joined with the next one by itself, whichever of both
/// connects, and nothing in the rings is lost.
fn traffic_survives_the_daemon(bed: &Bed) {
    as_requested(bed);
    let ping = bed.guest("a").spawn(["ping", "-i", "0.1", "-c", "70", "10.77.0.2"]).unwrap();
    ping.wait_for("icmp_seq=10 ", TIMEOUT).unwrap();
    bed.kill_daemon();
    let printed = ping.wait().unwrap().stdout();
    let received = printed.split(", ").find_map(|part| part.strip_suffix(" received")?.parse::<u32>().ok());
    // 0.1 s apart: 20 lost are 2 s.
    assert!(received.is_some_and(|received| received > 50), "{printed}");
    files(bed, 0, 8);
    kept(
        "virtio",
        &format!(
            "the daemon killed and started again under a ping of 70: {} came back",
            received.unwrap_or(0)
        ),
    );
}

/// Carries files between a and b, whichever connects; connects to these targets are refused at once.
fn streams(bed: &Bed, refused: [(&str, &str); 2]) -> u64 {
    let (a, b) = (bed.guest("a"), bed.guest("b"));
    let mib = if full() { 64 } else { 8 };
    for mode in [Mode::Both, Mode::Out, Mode::Back] {
        carry(&a, &b, Carrier::Socat, Route { cid: 4, port: 5000, listen: 5000 }, mode, mib << 20);
        carry(&b, &a, Carrier::Socat, Route { cid: 3, port: 5000, listen: 5000 }, mode, mib << 20);
    }
    for (guest, target) in refused {
        let line =
            format!("timeout 60 socat - VSOCK-CONNECT:{target},{PATIENT} </dev/null 2>&1; echo code $?");
        let printed = bed.guest(guest).sh(&line).unwrap();
        assert!(printed.contains("code 1") && printed.contains("reset"), "{printed}");
    }
    mib
}

/// Connections between virtio-vsock guests: no program has to set a flag.
fn vsock_streams_arrive_between_virtio_guests(bed: &Bed) {
    // A port without a listener, a CID without a VM.
    let refused = [("a", "4:9999"), ("a", "77:1")];
    let mib = streams(bed, refused);
    // No connect may be refused: between virtio guests nothing limits a handshake to a second.
    let connections = "\
import vs
for i in range(200):
    s = vs.connected(4, 6000, again=0)
    s.sendall(b'%d' % i); s.shutdown(vs.socket.SHUT_WR)
    got = vs.recv_all(s)
    assert got == b'%d' % i, (i, got)
";
    // -t: how long socat waits for an answer once its client has sent everything. The default of half a
    // second is too short for a program that has to be started first.
    let echo = bed
        .guest("b")
        .spawn(["socat", "-d", "-d", "-t", "60", "VSOCK-LISTEN:6000,fork", "EXEC:cat"])
        .unwrap();
    echo.wait_for("listening on", TIMEOUT).unwrap();
    bed.guest("a").sh(&format!("PYTHONPATH=/t python3 -c \"{connections}\"")).unwrap();
    drop(echo);
    for guest in ["a", "b"] {
        reload_virtio_vsock(&bed.guest(guest));
    }
    streams(bed, refused);
    kept(
        "virtio",
        &format!("virtio-vsock: {mib} MiB each way equal, half-close, 200 connections, refused ports, reloads"),
    );
}

/// Whatever the receiver's buffers are.
fn seqpacket_messages_keep_their_boundaries(bed: &Bed) {
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
    taking.wait_for("listening", TIMEOUT).unwrap();
    bed.guest("a").sh(&format!("PYTHONPATH=/t python3 -c \"{give}\"")).unwrap();
    let output = taking.wait().unwrap();
    assert!(output.stdout().contains("equal"), "{}{}", output.stdout(), output.stderr());
    kept("virtio", "SEQPACKET between virtio guests: messages of 1 to 200000 bytes keep their boundaries");
}

fn a_killed_guest_ends_its_peers_connections(bed: &Bed) {
    let a = bed.guest("a");
    let listening = a.spawn(["socat", "-d", "-d", "VSOCK-LISTEN:6002", "EXEC:'sleep 1000'"]).unwrap();
    listening.wait_for("listening on", TIMEOUT).unwrap();
    let line = format!("sleep 1000 | socat -d -d - VSOCK-CONNECT:3:6002,{PATIENT} 2>&1; echo ended");
    let waiting = bed.guest("b").spawn(["sh", "-c", &line]).unwrap();
    waiting.wait_for("successfully connected", TIMEOUT).unwrap();
    a.kill().unwrap();
    // Linux reports end of file when an established stream is reset.
    waiting.wait_for("is at EOF", TIMEOUT).unwrap();
    a.start().unwrap();
    bed.equip("a");
    kept("virtio", "the streams of a killed guest's peers end");
}

/// Guest a has VMCI, guest b virtio-vsock; neither knows what the other has.
fn streams_arrive_between_vmci_and_virtio_vsock(bed: &Bed) {
    let mib = streams(bed, [("a", "4:9999"), ("b", "3:9999")]);
    let what = format!(
        "VMCI and virtio-vsock guests: {mib} MiB each way equal with either as the client, refused ports"
    );
    kept("pairs", &what);
}
