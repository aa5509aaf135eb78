//! The switch between guests: a guest that forwards gets no merged frames, policies and VLANs hold, a stopped
//! guest does not slow the others, the host is a peer.

use std::time::Duration;

use vmlane_lab::LabSpec;
use vmlane_tests::{Bed, PATIENCE, full, kept, spec, wait_until};

fn nics(what: &str, guests: usize) -> LabSpec {
    spec(what, &vec!["6.12"; guests]).device("vmxnet3").unwrap()
}

/// A daemon configuration merged over the lab's.
fn with_config(mut spec: LabSpec, text: &str) -> (LabSpec, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    spec.daemon_config = Some(file.path().to_owned());
    (spec, file)
}

fn port(bed: &Bed, guest: &str, counter: &str) -> u64 {
    let stats = bed.stats();
    let vm = stats["vms"].as_array().unwrap().iter().find(|vm| vm["name"] == guest).unwrap().clone();
    vm["nics"][0]["port"][counter].as_u64().unwrap_or_else(|| panic!("no counter {counter} in {vm}"))
}

fn iperf(bed: &Bed, from: &str, to: &str, address: &str, seconds: u32) -> f64 {
    let server = bed.guest(to).spawn(["iperf3", "-s", "-1", "--forceflush"]).unwrap();
    server.wait_for("listening", PATIENCE).unwrap();
    let text = bed.guest(from).sh(&format!("iperf3 -J -c {address} -t {seconds}")).unwrap();
    server.wait().unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate") / 1e9
}

/// a - router b - c: b switches LRO off as soon as it forwards, and then gets nothing longer than its MTU.
#[test]
fn a_guest_that_forwards_gets_no_merged_frame() {
    let bed = Bed::up(&nics("router", 3));
    bed.guest("b")
        .sh("echo 1 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv4/conf/all/send_redirects; \
                       echo 0 >/proc/sys/net/ipv4/conf/eth0/send_redirects")
        .unwrap();
    assert!(bed.guest("b").sh("ethtool -k eth0 | grep large-receive").unwrap().contains("off"));
    let before = port(&bed, "b", "rx_aggregates");
    bed.guest("a").sh("ip route add 10.77.0.3/32 via 10.77.0.2").unwrap();
    bed.guest("c").sh("ip route add 10.77.0.1/32 via 10.77.0.2").unwrap();
    let rate = iperf(&bed, "a", "c", "10.77.0.3", 3);
    assert_eq!(port(&bed, "b", "rx_aggregates"), before, "a router got merged frames");
    assert!(port(&bed, "b", "rx_segments") > 0, "super-frames were segmented for it");
    kept(4, &format!("a forwarding guest gets no merged frame and forwards {rate:.2} Gbit/s at its MTU"));
    bed.finish();
}

#[test]
fn policies_allow_and_refuse_as_configured() {
    for allowed in [false, true] {
        let text = format!(
            "[[port_group]]\nname = \"net0\"\npromiscuous = {allowed}\nmac_changes = {allowed}\nforged_transmits = {allowed}\n"
        );
        let (spec, _file) = with_config(nics("policy", 3), &text);
        let bed = Bed::up(&spec);
        let (a, b, c) = (bed.guest("a"), bed.guest("b"), bed.guest("c"));
        // Promiscuous mode: does c see what a and b say to each other?
        let sniff = c.spawn(["tcpdump", "-lni", "eth0", "icmp and host 10.77.0.2"]).unwrap();
        sniff.wait_for("listening on", PATIENCE).unwrap();
        a.sh("ping -q -c 5 -i 0.3 10.77.0.2").unwrap();
        // What c sees in any case, after what it may not see.
        b.sh("ping -q -c 3 -i 0.3 10.77.0.3").unwrap();
        sniff.wait_for("10.77.0.2 > 10.77.0.3: ICMP echo request", PATIENCE).unwrap();
        let seen = sniff.stdout();
        let others = seen.contains("10.77.0.1 > 10.77.0.2: ICMP echo request");
        assert_eq!(others, allowed, "promiscuous = {allowed}: {seen}");
        drop(sniff);
        // Another source address, as a bridge or a nested guest sends: a raw frame from Python.
        let forged = "import socket; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(('eth0', 0)); \
                      [s.send(b'\\xff'*6 + bytes.fromhex('020000000099') + b'\\x08\\x06' + bytes(46)) for _ in range(5)]";
        let before = (port(&bed, "a", "drop_forged_source"), port(&bed, "b", "rx_frames"));
        a.sh(&format!("python3 -c \"{forged}\"")).unwrap();
        wait_until("the forged frames are dropped or delivered", || {
            let dropped = port(&bed, "a", "drop_forged_source") - before.0;
            let delivered = port(&bed, "b", "rx_frames") - before.1;
            if allowed { delivered >= 5 } else { dropped == 5 }
        });
        // A changed MAC address.
        b.sh(
            "ip link set eth0 down; ip link set eth0 address 02:00:00:00:00:77; ip link set eth0 up; sleep 1",
        )
        .unwrap();
        let reached = || a.sh("ip neigh flush all; ping -q -c 4 -i 0.3 -W 2 10.77.0.2").is_ok();
        if allowed {
            wait_until("the changed address is reached", reached);
        } else {
            assert!(!reached(), "a changed address is reached");
        }
        bed.finish();
    }
    kept(
        7,
        "promiscuous mode, a forged source and a changed address are each allowed and refused as configured",
    );
}

/// The carrier goes and comes, and the link stays down when the daemon is killed.
fn link_goes_down_and_comes_up(bed: &Bed) {
    let b = bed.guest("b");
    let carrier =
        |state: &str| b.sh("cat /sys/class/net/eth0/carrier").is_ok_and(|text| text.trim() == state);
    let passes = || bed.guest("a").sh("ping -q -c 1 -W 1 10.77.0.2").is_ok();
    bed.vmlane(&["link", "b/nic0", "down"]);
    wait_until("the guest sees that its carrier is gone", || carrier("0"));
    assert!(!passes(), "frames pass a link that is down");
    assert!(port(bed, "b", "drop_link_down") > 0);
    bed.kill_daemon();
    assert!(carrier("0") && !passes(), "the next daemon knows nothing of it");
    bed.vmlane(&["link", "b/nic0", "up"]);
    wait_until("the guest sees that its carrier is back", || carrier("1"));
    wait_until("frames pass again", passes);
}

/// What a VM sends, and what it gets, keeps to the averages of its port groups (an upper bound holds on any machine); and an
/// operator sets its link down and up.
#[test]
fn a_shaped_port_carries_no_more_than_its_average_and_none_while_its_link_is_down() {
    let text = "[[port_group]]\nname = \"net0\"\nshape = { in = { average = \"40M\" }, out = { average = \"20M\" } }\n";
    let (spec, _file) = with_config(nics("shape", 2), text);
    let bed = Bed::up(&spec);
    // What iperf3 counts is payload, which is less than what is counted here.
    let rate = iperf(&bed, "a", "b", "10.77.0.2", 4) * 1000.0;
    assert!((2.0..24.0).contains(&rate), "{rate:.1} Mbit/s through 20 Mbit/s");
    assert!(port(&bed, "b", "rx_shaped_us") > 0, "frames waited for tokens");
    link_goes_down_and_comes_up(&bed);
    bed.finish();
}

/// b is in a group before the switch looks, so that only its answer to the switch's own query tells of it; c takes all
/// multicast that it is given.
#[test]
fn multicast_is_kept_to_a_guest_that_answers_the_switchs_query() {
    let text = "[[port_group]]\nname = \"net0\"\nmulticast = \"flood\"\n";
    let (spec, _file) = with_config(nics("groups", 3), text);
    let bed = Bed::up(&spec);
    let listen = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', 7000)); \
                  s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, \
                  socket.inet_aton('239.1.2.3') + socket.inet_aton('10.77.0.2')); print('joined', flush=True)\n\
                  while True: print('got', s.recv(100).decode(), flush=True)";
    let b = bed.guest("b").spawn(["python3", "-c", listen]).unwrap();
    b.wait_for("joined", PATIENCE).unwrap();
    bed.guest("c").sh("ip link set eth0 allmulticast on").unwrap();
    let c = bed.guest("c").spawn(["tcpdump", "-lni", "eth0", "udp port 7000"]).unwrap();
    c.wait_for("listening on", PATIENCE).unwrap();
    let send = |number: u32| {
        let to = "UDP4-DATAGRAM:239.1.2.3:7000,ip-multicast-if=10.77.0.1";
        bed.guest("a").sh(&format!("printf n{number}. | socat -u - {to}")).unwrap();
    };
    send(1);
    b.wait_for("got n1.", PATIENCE).unwrap();
    c.wait_for("239.1.2.3.7000", PATIENCE).unwrap();
    let status: serde_json::Value = serde_json::from_str(&bed.vmlane(&["status", "--json"])).unwrap();
    let config = status["config"].as_str().expect("a path");
    let changed = std::fs::read_to_string(config).unwrap().replace("\"flood\"", "\"snoop\"");
    std::fs::write(config, changed).unwrap();
    bed.vmlane(&["reload"]);
    let mut number = 1;
    wait_until("only the guest that joined gets the group", || {
        let before = c.stdout().lines().count();
        number += 1;
        send(number);
        b.wait_for(&format!("got n{number}."), PATIENCE).unwrap();
        // c is heard of again by what goes to all.
        bed.guest("a").sh("ping -q -c 1 10.77.0.3").unwrap();
        c.stdout().lines().count() == before
    });
    bed.finish();
}

/// A capture of 128 bytes of each packet.
struct Capture {
    program: std::process::Child,
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
        let program = bed.start(&words);
        wait_until("the capture has begun", || file.as_file().metadata().unwrap().len() > 0);
        Capture { program, file }
    }

    /// Ends it.
    fn packets(mut self) -> Vec<Packet> {
        let pid = rustix::process::Pid::from_child(&self.program);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert!(self.program.wait().unwrap().success());
        let fields = ["frame.interface_name", "frame.comment", "vlan.id", "icmp.type", "tcp.len", "vsock.op"];
        let mut tshark = std::process::Command::new("tshark");
        tshark.arg("-r").arg(self.file.path()).args([
            "-T",
            "fields",
            "-E",
            "separator=|",
            "-E",
            "occurrence=f",
        ]);
        for field in fields {
            tshark.args(["-e", field]);
        }
        let output = tshark.output().expect("tshark: `make test-guests` installs it");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
        String::from_utf8_lossy(&output.stdout).lines().map(packet).collect()
    }
}

#[test]
fn vlans_are_separate_and_tags_pass() {
    // a and b tag their own frames; the switch puts c into VLAN 10.
    let text = "[[port_group]]\nname = \"trunk\"\nvlan = \"trunk\"\n[[port_group]]\nname = \"ten\"\nvlan = 10\n\
                [[vm]]\nname = \"a\"\nnic = [{model = \"vmxnet3\", port_group = \"trunk\", mac = \"52:54:00:77:00:01\"}]\n\
                [[vm]]\nname = \"b\"\nnic = [{model = \"vmxnet3\", port_group = \"trunk\", mac = \"52:54:00:77:00:02\"}]\n\
                [[vm]]\nname = \"c\"\nnic = [{model = \"vmxnet3\", port_group = \"ten\", mac = \"52:54:00:77:00:03\"}]\n";
    let (spec, _file) = with_config(nics("vlan", 3), text);
    let bed = Bed::up(&spec);
    for (name, host) in [("a", 1), ("b", 2)] {
        bed.guest(name)
            .sh(&format!(
                "ip link add link eth0 name eth0.10 type vlan id 10; ip addr add 10.99.0.{host}/24 dev eth0.10; \
                 ip link set eth0.10 up"
            ))
            .unwrap();
    }
    bed.guest("c").sh("ip addr add 10.99.0.3/24 dev eth0").unwrap();
    let capture = Capture::start(&bed, &["a/nic0", "vsock:a"]);
    let a = bed.guest("a");
    a.sh("ping -q -c 3 -i 0.2 10.99.0.2").expect("tagged to tagged");
    a.sh("ping -q -c 3 -i 0.2 10.99.0.3").expect("from a guest that tags to one for which the switch tags");
    a.sh("ping -q -c 3 -i 0.2 10.77.0.2").expect("untagged on the same trunk");
    assert!(a.sh("ping -q -c 2 -W 1 10.77.0.3").is_err(), "untagged frames do not enter VLAN 10");
    let rate = iperf(&bed, "a", "c", "10.99.0.3", 2);
    let server = bed.guest("b").spawn(["vmlane", "bench", "server", "--listen", "vsock:"]).unwrap();
    server.wait_for("listening on vsock", PATIENCE).unwrap();
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
    kept(
        6,
        &format!(
            "tshark reads a capture of a running guest: {} packets, among them {tagged} pings with a tag, {whole} super-frames, \
             {steps} pieces of streams",
            packets.len()
        ),
    );
    kept(
        1,
        &format!("VLAN 10 tagged by a guest and by its port group: {rate:.2} Gbit/s; nothing else crosses"),
    );
    bed.finish();
}

#[test]
fn a_stopped_guest_does_not_slow_the_others() {
    let bed = Bed::up(&nics("still", 3));
    let seconds = if full() { 30 } else { 6 };
    let before = iperf(&bed, "a", "b", "10.77.0.2", 3);
    // a floods c while c is stopped.
    bed.guest("c").qmp("stop", None).unwrap();
    let flood = bed.guest("a").spawn(["sh", "-c", "ip neigh replace 10.77.0.3 lladdr 52:54:00:77:00:03 dev eth0; \
                                       while :; do head -c 1000000 /dev/zero; done | socat -u -b 1400 - UDP:10.77.0.3:9"]).unwrap();
    let during = iperf(&bed, "a", "b", "10.77.0.2", seconds);
    wait_until("c's frames are dropped", || port(&bed, "c", "drop_no_buffers") > 0);
    drop(flood);
    bed.guest("c").qmp("cont", None).unwrap();
    bed.guest("a")
        .sh("ping -q -c 20 -i 0.3 -W 3 10.77.0.3 >/dev/null; ping -q -c 3 -W 5 10.77.0.3")
        .expect("c receives again");
    kept(
        8,
        &format!(
            "a guest stopped for {seconds} s and flooded: two others {during:.2} Gbit/s, before {before:.2}"
        ),
    );
    bed.finish();
}

#[test]
fn the_host_is_a_peer_behind_an_uplink() {
    let mut spec = nics("uplink", 2);
    spec.uplinks = 1;
    let bed = Bed::up(&spec);
    let run = |words: &[&str]| {
        let argv: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        bed.lab().host_command(&argv).unwrap().output().unwrap()
    };
    let a = bed.guest("a");
    a.sh("ping -q -c 3 -i 0.2 -M do -s 1472 10.77.0.254").unwrap();
    a.sh("ping -6 -q -c 3 -i 0.2 fd77::fe").unwrap();
    // The host sends a file to the guest and takes one, over plain TCP sockets.
    let listening = a.spawn(["sh", "-c", "socat -d -d -u TCP-LISTEN:5001 CREATE:/dev/shm/out"]).unwrap();
    listening.wait_for("listening on", PATIENCE).unwrap();
    let send = "import os,socket,hashlib; d=os.urandom(16<<20); s=socket.create_connection(('10.77.0.1',5001)); \
                s.sendall(d); s.close(); print(hashlib.sha256(d).hexdigest())";
    let sent = run(&["python3", "-c", send]);
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert!(listening.wait().unwrap().success());
    let sum = a.sh("sha256sum </dev/shm/out").unwrap();
    let expected = String::from_utf8_lossy(&sent.stdout).trim().to_owned();
    assert!(sum.starts_with(&expected), "{sum} is not {expected}");
    let take = "import socket,hashlib; l=socket.create_server(('10.77.0.254',5002)); c,_=l.accept(); h=hashlib.sha256()\n\
                while True:\n d=c.recv(1<<20)\n if not d: break\n h.update(d)\nprint(h.hexdigest())";
    let argv: Vec<String> = ["python3", "-c", take].map(str::to_owned).to_vec();
    let mut command = bed.lab().host_command(&argv).unwrap();
    let server = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    a.sh("head -c 16M /dev/urandom >/dev/shm/in; for i in $(seq 60); do socat -u OPEN:/dev/shm/in TCP:10.77.0.254:5002 && exit 0; \
          sleep 1; done; exit 1").unwrap();
    let output = server.wait_with_output().unwrap();
    let taken = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let sum = a.sh("sha256sum </dev/shm/in").unwrap();
    assert!(!taken.is_empty() && sum.starts_with(&taken), "{sum} is not {taken}");
    let (in_, out) = host_iperf(&bed);
    println!("iperf3 with the host: guest to host {out:.2} Gbit/s, host to guest {in_:.2} Gbit/s");
    let stats = bed.stats();
    let uplink = &stats["uplinks"][0]["port"];
    assert!(uplink["rx_aggregates"].as_u64() > Some(0), "no super-frame was sent whole: {uplink}");
    for on in [true, false, true] {
        segments_reach_a_guest_with_lro(&bed, on);
    }
    if full() {
        measure_merging(&bed);
    }
    kept(
        6,
        &format!(
            "guest and host exchange 16 MiB each way over the TAP uplink, checksums equal, super-frames whole; \
             host's iperf3: {out:.2} Gbit/s from the guest, {in_:.2} to it"
        ),
    );
    bed.finish();
}

/// Sends so much from the host to guest a, port 5003, over TCP that is cut to segments and summed before the uplink
/// gets it. Returns its SHA-256, and the seconds it took.
fn send_segments(bed: &Bed, mib: u32) -> (String, f64) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/segments.py");
    let argv = ["python3", script, "10.77.0.1", "5003", &mib.to_string()].map(str::to_owned);
    let output = bed.lab().host_command(&argv).unwrap().output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let (sum, seconds) = text.trim().split_once(' ').expect("two words");
    (sum.to_owned(), seconds.parse().unwrap())
}

/// Switches software LRO on or off in the running daemon.
fn set_coalesce(bed: &Bed, on: bool) {
    let path = bed.lab().daemon_runtime_dir().parent().unwrap().join("daemon.toml");
    let mut config: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
    config["daemon"].as_table_mut().unwrap().insert("coalesce".to_owned(), on.into());
    std::fs::write(&path, config.to_string()).unwrap();
    bed.vmlane(&["reload"]);
}

/// What guest a's NIC has counted as LRO.
fn lro_frames(bed: &Bed) -> u64 {
    let command = "ethtool -S eth0 | awk '/LRO pkts rx/ { sum += $NF } END { print sum + 0 }'";
    bed.guest("a").sh(command).unwrap().trim().parse().unwrap()
}

/// Segments from an uplink without offloads are merged for a guest with LRO if the daemon is to.
fn segments_reach_a_guest_with_lro(bed: &Bed, merged: bool) {
    set_coalesce(bed, merged);
    let a = bed.guest("a");
    let count = || (port(bed, "a", "rx_coalesced"), port(bed, "a", "rx_coalesced_segments"), lro_frames(bed));
    let before = count();
    let listening = a.spawn(["sh", "-c", "socat -d -d -u TCP-LISTEN:5003,reuseaddr CREATE:/dev/shm/out"]);
    let listening = listening.unwrap();
    listening.wait_for("listening on", PATIENCE).unwrap();
    let (sent, _) = send_segments(bed, 8);
    assert!(listening.wait().unwrap().success());
    let got = a.sh("sha256sum </dev/shm/out").unwrap();
    assert!(got.starts_with(&sent), "{got} is not {sent}");
    let after = count();
    let (frames, segments, lro) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
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

/// What merging is worth, in rounds: Gbit/s, and CPU seconds for a gigabyte of the daemon and of the lab's VMMs.
fn measure_merging(bed: &Bed) {
    const MIB: u32 = 64;
    let dir = bed.lab().daemon_runtime_dir().parent().unwrap().display().to_string();
    let cpu = |pids: &[i32]| -> f64 {
        let ticks = |pid: &i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields: Vec<i64> =
                stat.rsplit(") ").next().unwrap().split(' ').filter_map(|field| field.parse().ok()).collect();
            // utime and stime, behind the state, which is no number.
            fields.get(10..12).map_or(0, |times| times.iter().sum::<i64>())
        };
        pids.iter().map(ticks).sum::<i64>() as f64 / rustix::param::clock_ticks_per_second() as f64
    };
    let daemon = [bed.daemon_pid().as_raw_nonzero().get()];
    let vmms: Vec<i32> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains("qemu") && line.contains(&dir)
        })
        .collect();
    let a = bed.guest("a");
    let sink = "socat -d -d -u TCP-LISTEN:5003,reuseaddr,fork OPEN:/dev/null";
    let sink = a.spawn(["sh", "-c", sink]).unwrap();
    sink.wait_for("listening on", PATIENCE).unwrap();
    for round in 0..6 {
        for on in [round % 2 == 0, round % 2 != 0] {
            set_coalesce(bed, on);
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
    a.sh("killall socat").unwrap();
    sink.wait().unwrap();
}

/// Gbit/s to and from guest a, with an iperf3 on the host. It is copied from the guest with its libraries, so that
/// none has to be installed.
fn host_iperf(bed: &Bed) -> (f64, f64) {
    let a = bed.guest("a");
    let collect = "mkdir /dev/shm/i && cp -L /usr/bin/iperf3 $(/lib64/ld-linux-x86-64.so.2 --list /usr/bin/iperf3 | grep -o '/[^ ]*') /dev/shm/i \
                   && tar -cf /dev/shm/i.tar -C /dev/shm/i .";
    a.sh(collect).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    a.cp_from("/dev/shm/i.tar", dir).unwrap();
    let tar = std::process::Command::new("tar").arg("-xf").arg(dir.join("i.tar")).arg("-C").arg(dir).status();
    assert!(tar.unwrap().success());
    let path = |name: &str| dir.join(name).display().to_string();
    let argv = [&path("ld-linux-x86-64.so.2"), "--library-path", &path("."), &path("iperf3"), "-s"];
    let argv: Vec<String> = argv.map(str::to_owned).to_vec();
    let mut server = bed.lab().host_command(&argv).unwrap();
    let mut server = server.stdout(std::process::Stdio::null()).spawn().unwrap();
    let rate = |options: &str| {
        let line = format!(
            "for i in $(seq 60); do iperf3 -J -t 3 -c 10.77.0.254 {options} >/dev/shm/o && break; sleep 1; done; \
             cat /dev/shm/o"
        );
        let json: serde_json::Value = serde_json::from_str(&a.sh(&line).unwrap()).unwrap();
        json["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate") / 1e9
    };
    let rates = (rate("-R"), rate(""));
    server.kill().unwrap();
    server.wait().unwrap();
    rates
}
