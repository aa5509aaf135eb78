//! The switch between guests: a guest that forwards gets no merged frames, policies and VLANs hold, a stopped
//! guest does not slow the others, the host is a peer.

use std::process::{Command, Stdio};

use vmlane_tests::alone::{output, processor_seconds};
use vmlane_tests::traffic::{card_up, gigabits, iperf, pings, port, routed};
use vmlane_tests::{Bed, Configured, TIMEOUT, Process, full, kept, wait_until};

vmlane_tests::tests! {
    guests in VMXNET3 {
        a_guest_that_forwards_gets_no_merged_frame,
        policies_allow_and_refuse_as_configured,
        multicast_is_kept_to_a_guest_that_answers_the_switchs_query,
        vlans_are_separate_and_tags_pass,
        switches_are_separate_and_a_reload_moves_cards,
        a_stopped_guest_does_not_slow_the_others,
        the_host_is_a_peer_behind_an_uplink,
    }
    guests in KILLS { a_shaped_port_carries_no_more_than_its_average_and_none_while_its_link_is_down }
}

/// a - router b - c: b switches LRO off as soon as it forwards, and then gets nothing longer than its MTU.
fn a_guest_that_forwards_gets_no_merged_frame(bed: &Bed) {
    let b = bed.guest("b");
    let count = |counter| port(bed, "b", 0, counter);
    let rate = routed(bed, 0, || {
        assert!(b.sh("ethtool -k eth0 | grep large-receive").unwrap().contains("off"));
        let before = ["rx_aggregates", "rx_segments"].map(count);
        let rate = iperf(bed, ["a", "c"], "10.77.0.3", 5201, "-t 2");
        assert_eq!(count("rx_aggregates"), before[0], "a router got merged frames");
        assert!(count("rx_segments") > before[1], "super-frames were segmented for it");
        rate
    });
    b.sh("ethtool -K eth0 lro on").unwrap();
    let what = format!("a forwarding guest gets no merged frame and forwards {rate:.2} Gbit/s at its MTU");
    kept("forwarding", &what);
}

fn policies_allow_and_refuse_as_configured(bed: &Bed) {
    let (a, b, c) = (bed.guest("a"), bed.guest("b"), bed.guest("c"));
    for allowed in [false, true] {
        let _policy = bed.configured(&format!(
            "[[port_group]]\nname = \"net0\"\npromiscuous = {allowed}\nmac_changes = {allowed}\nforged_transmits = {allowed}\n"
        ));
        // Promiscuous mode: does c see what a and b send to each other?
        let sniff = c.spawn(["tcpdump", "-lni", "eth0", "icmp and host 10.77.0.2"]).unwrap();
        sniff.wait_for("listening on", TIMEOUT).unwrap();
        a.sh("ping -q -c 5 -i 0.3 10.77.0.2").unwrap();
        // What c sees in any case, after what it may not see.
        b.sh("ping -q -c 3 -i 0.3 10.77.0.3").unwrap();
        sniff.wait_for("10.77.0.2 > 10.77.0.3: ICMP echo request", TIMEOUT).unwrap();
        let seen = sniff.stdout();
        let others = seen.contains("10.77.0.1 > 10.77.0.2: ICMP echo request");
        assert_eq!(others, allowed, "promiscuous = {allowed}: {seen}");
        drop(sniff);
        // Another source address, as a bridge or a nested guest sends: a raw frame from Python.
        let forged = "import socket; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(('eth0', 0)); \
                      [s.send(b'\\xff'*6 + bytes.fromhex('020000000099') + b'\\x08\\x06' + bytes(46)) for _ in range(5)]";
        let before = (port(bed, "a", 0, "drop_forged_source"), port(bed, "b", 0, "rx_frames"));
        a.sh(&format!("python3 -c \"{forged}\"")).unwrap();
        wait_until("the forged frames are dropped or delivered", || {
            let dropped = port(bed, "a", 0, "drop_forged_source") - before.0;
            let delivered = port(bed, "b", 0, "rx_frames") - before.1;
            if allowed { delivered >= 5 } else { dropped == 5 }
        });
        // A changed MAC address.
        let address = |mac: &str| {
            let line = format!("ip link set eth0 down; ip link set eth0 address {mac}; {}", card_up(0, 2));
            b.sh(&format!("{line}; until grep -q 1 /sys/class/net/eth0/carrier; do sleep 0.1; done"))
                .unwrap();
        };
        address("02:00:00:00:00:77");
        let reached = || a.sh("ip neigh flush all; ping -q -c 4 -i 0.3 -W 2 10.77.0.2").is_ok();
        if allowed {
            wait_until("the changed address is reached", reached);
        } else {
            assert!(!reached(), "a changed address is reached");
        }
        address("52:54:00:77:00:02");
        [&a, &c].iter().for_each(|guest| drop(guest.sh("ip neigh flush all").unwrap()));
    }
    kept(
        "policies",
        "promiscuous mode, a forged source and a changed address are each allowed and refused as configured",
    );
}

/// The carrier goes and comes, and the link stays down when the daemon is killed.
fn link_goes_down_and_comes_up(bed: &Bed) {
    let b = bed.guest("b");
    let carrier =
        |state: &str| b.sh("cat /sys/class/net/eth0/carrier").is_ok_and(|text| text.trim() == state);
    let passes = || pings(bed, "a", "10.77.0.2");
    let before = port(bed, "b", 0, "drop_link_down");
    bed.vmlane(&["link", "b/nic0", "down"]);
    wait_until("the guest sees that its carrier is gone", || carrier("0"));
    assert!(!passes(), "frames pass a link that is down");
    assert!(port(bed, "b", 0, "drop_link_down") > before);
    bed.kill_daemon();
    assert!(carrier("0") && !passes(), "the next daemon knows nothing of it");
    bed.vmlane(&["link", "b/nic0", "up"]);
    wait_until("the guest sees that its carrier is back", || carrier("1"));
    wait_until("frames pass again", passes);
}

/// What a VM sends, and what it gets, keeps to the averages of its port groups (an upper bound holds on any
/// machine); and an operator sets its link down and up.
fn a_shaped_port_carries_no_more_than_its_average_and_none_while_its_link_is_down(bed: &Bed) {
    let text = "[[port_group]]\nname = \"net0\"\nshape = { in = { average = \"40M\" }, out = { average = \"20M\" } }\n";
    let _shape = bed.configured(text);
    // What iperf3 counts is payload, which is less than what is counted here.
    let waited = port(bed, "b", 0, "rx_shaped_us");
    let rate = iperf(bed, ["a", "b"], "10.77.0.2", 5201, "-t 4") * 1000.0;
    assert!((2.0..24.0).contains(&rate), "{rate:.1} Mbit/s through 20 Mbit/s");
    assert!(port(bed, "b", 0, "rx_shaped_us") > waited, "frames waited for tokens");
    link_goes_down_and_comes_up(bed);
}

/// b is in a group before the switch snoops, so that only its answer to the switch's own query reports it; c
/// takes all multicast that it is given.
fn multicast_is_kept_to_a_guest_that_answers_the_switchs_query(bed: &Bed) {
    let multicast =
        |how: &str| bed.configured(&format!("[[port_group]]\nname = \"net0\"\nmulticast = \"{how}\"\n"));
    let _flood = multicast("flood");
    let listen = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', 7000)); \
                  s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, \
                  socket.inet_aton('239.1.2.3') + socket.inet_aton('10.77.0.2')); print('joined', flush=True)\n\
                  while True: print('got', s.recv(100).decode(), flush=True)";
    let b = bed.guest("b").spawn(["python3", "-c", listen]).unwrap();
    b.wait_for("joined", TIMEOUT).unwrap();
    bed.guest("c").sh("ip link set eth0 allmulticast on").unwrap();
    let c = bed.guest("c").spawn(["tcpdump", "-lni", "eth0", "udp port 7000"]).unwrap();
    c.wait_for("listening on", TIMEOUT).unwrap();
    let send = |number: u32| {
        let to = "UDP4-DATAGRAM:239.1.2.3:7000,ip-multicast-if=10.77.0.1";
        bed.guest("a").sh(&format!("printf n{number}. | socat -u - {to}")).unwrap();
    };
    send(1);
    b.wait_for("got n1.", TIMEOUT).unwrap();
    c.wait_for("239.1.2.3.7000", TIMEOUT).unwrap();
    let _snoop = multicast("snoop");
    let mut number = 1;
    wait_until("only the guest that joined gets the group", || {
        let before = c.stdout().lines().count();
        number += 1;
        send(number);
        b.wait_for(&format!("got n{number}."), TIMEOUT).unwrap();
        // c is reached again by what goes to all.
        bed.guest("a").sh("ping -q -c 1 10.77.0.3").unwrap();
        c.stdout().lines().count() == before
    });
    bed.guest("c").sh("ip link set eth0 allmulticast off").unwrap();
}

/// A capture of 128 bytes of each packet.
struct Capture {
    program: Process,
    file: tempfile::NamedTempFile,
}

/// What tshark reads of one packet; empty: it has no such field.
#[derive(Debug, Default)]
struct Packet {
    interface: String,
    comment: String,
    vlan: String,
    icmp: String,
    tcp_len: String,
    vsock_op: String,
}

impl Capture {
    fn start(bed: &Bed, points: &[&str]) -> Capture {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let words = [&["capture"], points, &["-s", "128", "-w", &path]].concat();
        let program = Process(bed.start(&words));
        wait_until("the capture has begun", || file.as_file().metadata().unwrap().len() > 0);
        Capture { program, file }
    }

    /// Ends it.
    fn packets(mut self) -> Vec<Packet> {
        self.program.signal(rustix::process::Signal::INT);
        assert!(self.program.wait().success());
        let fields = ["frame.interface_name", "frame.comment", "vlan.id", "icmp.type", "tcp.len", "vsock.op"];
        let mut tshark = Command::new("tshark");
        tshark.arg("-r").arg(self.file.path());
        tshark.args(["-T", "fields", "-E", "separator=|", "-E", "occurrence=f"]);
        tshark.args(fields.into_iter().flat_map(|field| ["-e", field]));
        let packet = |line: &str| {
            let mut values = line.split('|').map(str::to_owned);
            let mut next = || values.next().unwrap_or_default();
            Packet {
                interface: next(),
                comment: next(),
                vlan: next(),
                icmp: next(),
                tcp_len: next(),
                vsock_op: next(),
            }
        };
        output(&mut tshark).lines().map(packet).collect()
    }
}

fn vlans_are_separate_and_tags_pass(bed: &Bed) {
    // a and b tag their own frames; the switch puts c into VLAN 10.
    let mut text =
        "[[port_group]]\nname = \"trunk\"\nvlan = \"trunk\"\n[[port_group]]\nname = \"ten\"\nvlan = 10\n"
            .to_owned();
    for (guest, number, group) in [("a", 1, "trunk"), ("b", 2, "trunk"), ("c", 3, "ten")] {
        text += &format!(
            "[[vm]]\nname = \"{guest}\"\nnic = [{{ model = \"vmxnet3\", port_group = \"{group}\", \
             mac = \"52:54:00:77:00:0{number}\" }}]\n"
        );
    }
    let _vlans = bed.configured(&text);
    for (name, host) in [("a", 1), ("b", 2)] {
        bed.guest(name)
            .sh(&format!(
                "ip link add link eth0 name eth0.10 type vlan id 10; ip addr add 10.99.0.{host}/24 dev eth0.10; \
                 ip link set eth0.10 up"
            ))
            .unwrap();
    }
    bed.guest("c").sh("ip addr add 10.99.0.3/24 dev eth0").unwrap();
    let capture = Capture::start(bed, &["a/nic0", "vsock:a"]);
    let a = bed.guest("a");
    a.sh("ping -q -c 3 -i 0.2 10.99.0.2").expect("tagged to tagged");
    a.sh("ping -q -c 3 -i 0.2 10.99.0.3").expect("from a guest that tags to one for which the switch tags");
    a.sh("ping -q -c 3 -i 0.2 10.77.0.2").expect("untagged on the same trunk");
    assert!(a.sh("ping -q -c 2 -W 1 10.77.0.3").is_err(), "untagged frames do not enter VLAN 10");
    let rate = iperf(bed, ["a", "c"], "10.99.0.3", 5201, "-t 1");
    let server = bed.guest("b").spawn(["vmlane", "bench", "server", "--listen", "vsock:"]).unwrap();
    server.wait_for("listening on vsock", TIMEOUT).unwrap();
    a.sh(&format!("vmlane bench stream --to vsock:{} -l 0.5", bed.cid("b"))).unwrap();
    let packets = capture.packets();
    let count = |what: &str, is: &dyn Fn(&Packet) -> bool| {
        let count = packets.iter().filter(|packet| is(packet)).count();
        assert!(count > 0, "no {what} among {} packets: {:?}", packets.len(), packets.first());
        count
    };
    let of_nic = |packet: &Packet| packet.interface == "a/nic0";
    let tagged =
        count("ping with a tag", &|packet| of_nic(packet) && packet.vlan == "10" && packet.icmp == "8");
    count("ping without one", &|packet| of_nic(packet) && packet.vlan.is_empty() && packet.icmp == "8");
    let long = |packet: &Packet| packet.tcp_len.parse::<u32>().is_ok_and(|len| len > 1460);
    let whole =
        count("super-frame", &|packet| of_nic(packet) && long(packet) && packet.comment.contains("gso"));
    let steps = count("bytes of a stream", &|packet| packet.interface == "vsock:a" && packet.vsock_op == "4");
    // A VLAN device switches LRO off on the card below it, and its module leaves others loaded.
    for name in ["a", "b"] {
        bed.guest(name)
            .sh("ip link del eth0.10; modprobe -r 8021q; modprobe -r stp llc; ethtool -K eth0 lro on")
            .unwrap();
    }
    bed.guest("c").sh("ip addr del 10.99.0.3/24 dev eth0").unwrap();
    kept(
        "captures",
        &format!(
            "tshark reads a capture of a running guest: {} packets, among them {tagged} pings with a tag, {whole} super-frames, \
             {steps} pieces of streams",
            packets.len()
        ),
    );
    kept(
        "policies",
        &format!("VLAN 10 tagged by a guest and by its port group: {rate:.2} Gbit/s; nothing else crosses"),
    );
}

/// The same VLAN on another switch is another network; cards of running guests go there and come back.
fn switches_are_separate_and_a_reload_moves_cards(bed: &Bed) {
    let moved = |guests: &[(&str, u8)]| {
        let nic = |(guest, number): &(&str, u8)| {
            format!(
                "[[vm]]\nname = \"{guest}\"\nnic = [{{ model = \"vmxnet3\", port_group = \"disks\", \
                 mac = \"52:54:00:77:00:0{number}\" }}]\n"
            )
        };
        let text = "[[switch]]\nname = \"storage\"\n[[port_group]]\nname = \"disks\"\nswitch = \"storage\"\n";
        bed.configured(&(text.to_owned() + &guests.iter().map(nic).collect::<String>()))
    };
    let pairs = [("a", "10.77.0.2"), ("b", "10.77.0.3"), ("a", "10.77.0.3")];
    let reached = || pairs.map(|(from, to)| pings(bed, from, to));
    let away = [(&[("b", 2)][..], [false, false, true]), (&[("b", 2), ("c", 3)], [false, true, false])];
    for (guests, expected) in away {
        let _moved = moved(guests);
        assert_eq!(reached(), expected, "{guests:?} on another switch");
        let rows = bed.vmlane(&["ports", "--json"]);
        assert_eq!(rows.matches("\"switch\":\"storage\"").count(), guests.len(), "{rows}");
    }
    wait_until("all are on one switch again", || reached() == [true; 3]);
    kept("policies", "cards of running guests on another switch, with the same VLAN, reach each other only, and come back");
}

fn a_stopped_guest_does_not_slow_the_others(bed: &Bed) {
    let seconds = if full() { 30 } else { 3 };
    let (a, c) = (bed.guest("a"), bed.guest("c"));
    let rate = |seconds| iperf(bed, ["a", "b"], "10.77.0.2", 5201, &format!("-t {seconds}"));
    let before = rate(2);
    // a floods c while c is stopped.
    c.qmp("stop", None).unwrap();
    let flood = "ip neigh replace 10.77.0.3 lladdr 52:54:00:77:00:03 dev eth0; \
                 while :; do head -c 1000000 /dev/zero; done | socat -u -b 1400 - UDP:10.77.0.3:9";
    let dropped = port(bed, "c", 0, "drop_no_buffers");
    let flood = a.spawn(["sh", "-c", flood]).unwrap();
    let during = rate(seconds);
    wait_until("c's frames are dropped", || port(bed, "c", 0, "drop_no_buffers") > dropped);
    drop(flood);
    c.qmp("cont", None).unwrap();
    a.sh("ip neigh del 10.77.0.3 dev eth0").unwrap();
    wait_until("c receives again", || pings(bed, "a", "10.77.0.3"));
    a.sh("ping -q -c 3 -W 5 10.77.0.3").expect("c receives again");
    kept(
        "fairness",
        &format!(
            "a guest stopped for {seconds} s and flooded: two others {during:.2} Gbit/s, before {before:.2}"
        ),
    );
}

/// A program of the host behind the uplink.
fn on_host(bed: &Bed, words: &[&str]) -> Command {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    let mut command = bed.lab().host_command(&words).unwrap();
    command.stdin(Stdio::null());
    command
}

fn the_host_is_a_peer_behind_an_uplink(bed: &Bed) {
    let a = bed.guest("a");
    let whole = || {
        let stats = bed.stats();
        stats["uplinks"][0]["port"]["rx_aggregates"].as_u64().unwrap_or_else(|| panic!("no counter: {stats}"))
    };
    let before = whole();
    a.sh("ping -q -c 3 -i 0.2 -M do -s 1472 10.77.0.254").unwrap();
    a.sh("ping -6 -q -c 3 -i 0.2 fd77::fe").unwrap();
    // The host sends a file to the guest and takes one, over plain TCP sockets.
    let listening =
        a.spawn(["sh", "-c", "socat -d -d -u TCP-LISTEN:5001,reuseaddr CREATE:/dev/shm/out"]).unwrap();
    listening.wait_for("listening on", TIMEOUT).unwrap();
    let send = "import os,socket,hashlib; d=os.urandom(16<<20); s=socket.create_connection(('10.77.0.1',5001)); \
                s.sendall(d); s.close(); print(hashlib.sha256(d).hexdigest())";
    let sent = output(&mut on_host(bed, &["python3", "-c", send]));
    assert!(listening.wait().unwrap().success());
    let sum = a.sh("sha256sum </dev/shm/out && rm /dev/shm/out").unwrap();
    assert!(sum.starts_with(sent.trim()), "{sum} is not {sent}");
    let take = "import socket,hashlib; l=socket.create_server(('10.77.0.254',5002)); c,_=l.accept(); h=hashlib.sha256()\n\
                while True:\n d=c.recv(1<<20)\n if not d: break\n h.update(d)\nprint(h.hexdigest())";
    let server = on_host(bed, &["python3", "-c", take]).stdout(Stdio::piped()).spawn().unwrap();
    let mut server = Process(server);
    let give = "head -c 16M /dev/urandom >/dev/shm/in && \
                socat -u OPEN:/dev/shm/in TCP:10.77.0.254:5002,retry=600,interval=0.1 && \
                sha256sum </dev/shm/in && rm /dev/shm/in";
    let sum = a.sh(give).unwrap();
    assert!(server.wait().success());
    let taken = std::io::read_to_string(server.0.stdout.take().unwrap()).unwrap();
    assert!(!taken.is_empty() && sum.starts_with(taken.trim()), "{sum} is not {taken}");
    let (in_, out) = host_iperf(bed);
    println!("iperf3 with the host: guest to host {out:.2} Gbit/s, host to guest {in_:.2} Gbit/s");
    assert!(whole() > before, "no super-frame was sent whole");
    for on in [true, false, true] {
        segments_reach_a_guest_with_lro(bed, on);
    }
    if full() {
        measure_merging(bed);
    }
    kept(
        "uplinks",
        &format!(
            "guest and host exchange 16 MiB each way over the TAP uplink, checksums equal, super-frames whole; \
             host's iperf3: {out:.2} Gbit/s from the guest, {in_:.2} to it"
        ),
    );
}

/// Sends so much from the host to guest a, port 5003, over TCP that is cut to segments and summed before the
/// uplink gets it. Returns its SHA-256, and the seconds it took.
fn send_segments(bed: &Bed, mib: u32) -> (String, f64) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/segments.py");
    let text = output(&mut on_host(bed, &["python3", script, "10.77.0.1", "5003", &mib.to_string()]));
    let (sum, seconds) = text.trim().split_once(' ').expect("two words");
    (sum.to_owned(), seconds.parse().unwrap())
}

/// Switches software LRO on or off in the running daemon.
fn coalesce(bed: &Bed, on: bool) -> Configured<'_> {
    bed.configured(&format!("[daemon]\ncoalesce = {on}\n"))
}

/// What guest a's NIC has counted as LRO.
fn lro_frames(bed: &Bed) -> u64 {
    let command = "ethtool -S eth0 | awk '/LRO pkts rx/ { sum += $NF } END { print sum + 0 }'";
    bed.guest("a").sh(command).unwrap().trim().parse().unwrap()
}

/// Segments from an uplink without offloads are merged for a guest with LRO if the daemon is to.
fn segments_reach_a_guest_with_lro(bed: &Bed, merged: bool) {
    let _coalesce = coalesce(bed, merged);
    let a = bed.guest("a");
    let of_port = |counter| port(bed, "a", 0, counter);
    let count = || [of_port("rx_coalesced"), of_port("rx_coalesced_segments"), lro_frames(bed)];
    let before = count();
    let listening = a.spawn(["sh", "-c", "socat -d -d -u TCP-LISTEN:5003,reuseaddr CREATE:/dev/shm/out"]);
    let listening = listening.unwrap();
    listening.wait_for("listening on", TIMEOUT).unwrap();
    let (sent, _) = send_segments(bed, 8);
    assert!(listening.wait().unwrap().success());
    let got = a.sh("sha256sum </dev/shm/out && rm /dev/shm/out").unwrap();
    assert!(got.starts_with(&sent), "{got} is not {sent}");
    let after = count();
    let [frames, segments, lro] = [0, 1, 2].map(|at| after[at] - before[at]);
    println!(
        "merging {merged}: {segments} segments were merged to {frames} frames; the guest counts {lro} by LRO"
    );
    if merged {
        // Not every burst has several, but most of 5800 segments must have come in company.
        assert!(
            frames > 0 && segments >= 2 * frames && lro > 0,
            "{frames} frames of {segments} segments, {lro}"
        );
    } else {
        assert_eq!((frames, segments, lro), (0, 0, 0), "merged though that was off");
    }
}

/// What merging is worth, in rounds: Gbit/s, and CPU seconds for a gigabyte of the daemon and of the lab's
/// VMMs.
fn measure_merging(bed: &Bed) {
    const MIB: u32 = 64;
    let status = bed.lab().status().unwrap();
    let daemon: Vec<u32> = status.daemon.and_then(|daemon| daemon.pid).into_iter().collect();
    let vmms: Vec<u32> = status.guests.iter().filter_map(|guest| guest.pid).collect();
    let cpu = |pids: &[u32]| pids.iter().map(|&pid| processor_seconds(pid)).sum::<f64>();
    let sink = "socat -d -d -u TCP-LISTEN:5003,reuseaddr,fork OPEN:/dev/null";
    let sink = bed.guest("a").spawn(["sh", "-c", sink]).unwrap();
    sink.wait_for("listening on", TIMEOUT).unwrap();
    for round in 0..6 {
        for on in [round % 2 == 0, round % 2 != 0] {
            let _coalesce = coalesce(bed, on);
            let before = (cpu(&daemon), cpu(&vmms));
            let (_, seconds) = send_segments(bed, MIB);
            let gigabytes = f64::from(MIB) * 1.048_576e-3;
            let (daemon, vmms) = ((cpu(&daemon) - before.0) / gigabytes, (cpu(&vmms) - before.1) / gigabytes);
            let rate = gigabytes * 8.0 / seconds;
            println!(
                "round {round}, merging {on}: {rate:.3} Gbit/s; CPU s a GB: daemon {daemon:.2}, VMMs {vmms:.2}"
            );
        }
    }
}

/// Gbit/s to and from guest a, with an iperf3 on the host. It is copied from the guest with its libraries, so
/// that none has to be installed.
fn host_iperf(bed: &Bed) -> (f64, f64) {
    let a = bed.guest("a");
    let collect = "mkdir /dev/shm/i && cp -L /usr/bin/iperf3 $(/lib64/ld-linux-x86-64.so.2 --list /usr/bin/iperf3 | grep -o '/[^ ]*') /dev/shm/i \
                   && tar -cf /dev/shm/i.tar -C /dev/shm/i .";
    a.sh(collect).unwrap();
    let dir = tempfile::tempdir().unwrap();
    a.cp_from("/dev/shm/i.tar", dir.path()).unwrap();
    a.sh("rm -r /dev/shm/i /dev/shm/i.tar").unwrap();
    output(Command::new("tar").arg("-xf").arg(dir.path().join("i.tar")).arg("-C").arg(dir.path()));
    let path = |name: &str| dir.path().join(name).display().to_string();
    let words = [&path("ld-linux-x86-64.so.2"), "--library-path", &path("."), &path("iperf3"), "-s"];
    let _server = Process(on_host(bed, &words).stdout(Stdio::null()).spawn().unwrap());
    let rate = |options: &str| {
        let line = format!(
            "for i in $(seq 300); do said=$(iperf3 -J -t 1 -c 10.77.0.254 {options}) && break; sleep 0.2; done; \
             echo \"$said\""
        );
        gigabits(&a.sh(&line).unwrap())
    };
    (rate("-R"), rate(""))
}
