//! `vmlane capture` of a confined daemon with two synthetic VMs: what is in the file, what was lost, and how it ends.

mod common;
#[path = "common/nic.rs"]
mod nic;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use common::eventually;
use nic::{FRAME, Nic};
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::pcapng::{Block, PcapNgReader};
use rustix::process::{Pid, Signal, kill_process};

const VMLANE: &str = env!("CARGO_BIN_EXE_vmlane");
const CONFIG: &str = "\
[[vm]]
name = \"a\"
vsock = \"none\"
nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:01\" } ]
[[vm]]
name = \"b\"
vsock = \"none\"
nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:02\" } ]
";

/// A process that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // SIGKILL; fails only if it is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// What it said, and how it ended.
    fn output(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
        }
        (self.0.wait().unwrap().code(), said)
    }
}

struct World {
    folder: tempfile::TempDir,
    daemon: Option<Running>,
    a: Nic,
    b: Nic,
    next: u64,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("vmlane.toml"), CONFIG).unwrap();
        let mut world = World { folder, daemon: None, a: Nic::new(false), b: Nic::new(false), next: 0 };
        world.start();
        world
    }

    fn start(&mut self) {
        let mut command = Command::new(VMLANE);
        command.arg("daemon").arg("--config").arg(self.folder.path().join("vmlane.toml"));
        command.arg("--runtime-dir").arg(self.runtime()).env_remove("NOTIFY_SOCKET");
        self.daemon = Some(Running(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()));
        let socket = |vm: &str| self.runtime().join("vm").join(vm).join("nic0.sock");
        let (a, b) = (socket("a"), socket("b"));
        self.b.attach(&b);
        self.a.attach(&a);
        eventually("the daemon answers", || {
            self.capture_once(&["nothing"]).1.contains("there is no point").then_some(())
        });
    }

    fn runtime(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("x.pcapng")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(VMLANE);
        command.arg("capture").args(arguments).arg("--runtime-dir").arg(self.runtime());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// A capture that ends by itself.
    fn capture_once(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let arguments = [arguments, &["-w", "/dev/null"]].concat();
        let Output { status, stderr, .. } = self.command(&arguments).output().unwrap();
        (status.code(), String::from_utf8(stderr).unwrap())
    }

    /// Begins a capture, and waits until it runs: its file has a begin.
    fn capture(&self, arguments: &[&str]) -> Running {
        let mut command = self.command(arguments);
        let capture = Running(command.arg("-w").arg(self.file()).spawn().unwrap());
        eventually("the capture runs", || (std::fs::metadata(self.file()).ok()?.len() > 0).then_some(()));
        capture
    }

    /// Sends so many frames from a to b, and waits until they are there.
    fn send(&mut self, count: u64) {
        let (mut received, last) = (0, self.next + count);
        eventually("all frames arrive", || {
            while self.next < last && self.a.send(self.next) {
                self.next += 1;
            }
            self.a.settle();
            received += self.b.receive().len() as u64;
            (received == count).then_some(())
        });
    }
}

/// What a file holds: its packets, and counts of each interface (there were, lost, written).
fn read(path: &Path) -> (Vec<EnhancedPacketBlock<'static>>, Vec<[u64; 3]>) {
    let bytes = std::fs::read(path).unwrap();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let (mut packets, mut counts) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block.unwrap().into_owned() {
            Block::EnhancedPacket(packet) => packets.push(packet),
            Block::InterfaceStatistics(block) => counts.push(counted(&block)),
            _ => {}
        }
    }
    (packets, counts)
}

fn counted(block: &InterfaceStatisticsBlock<'_>) -> [u64; 3] {
    let mut counts = [0; 3];
    for option in &block.options {
        match option {
            InterfaceStatisticsOption::IsbIfRecv(count) => counts[0] = *count,
            InterfaceStatisticsOption::IsbOsDrop(count) => counts[1] = *count,
            InterfaceStatisticsOption::IsbUsrDeliv(count) => counts[2] = *count,
            _ => {}
        }
    }
    counts
}

fn number(packet: &EnhancedPacketBlock<'_>) -> u64 {
    u64::from_le_bytes(*packet.data[14..].first_chunk().unwrap())
}

/// Numbers of the frames of an interface, which all went one way.
fn numbers(packets: &[EnhancedPacketBlock<'_>], interface: u32, way: u32) -> Vec<u64> {
    let of_one = packets.iter().filter(|packet| packet.interface_id == interface);
    of_one
        .map(|packet| {
            assert!(packet.options.contains(&EnhancedPacketOption::Flags(way)), "{packet:?}");
            number(packet)
        })
        .collect()
}

#[test]
fn frames_of_two_vms_are_in_the_file_until_it_is_interrupted() {
    let mut world = World::new();
    world.send(100);
    let capture = world.capture(&["a/nic0", "b/nic0", "-s", "40"]);
    world.send(3000);
    capture.signal(Signal::INT);
    let (code, said) = capture.output();
    assert_eq!((code, said.as_str()), (Some(0), "6000 captured, 0 lost\n"));
    world.send(100);
    let (packets, counts) = read(&world.file());
    let sent: Vec<u64> = (100..3100).collect();
    assert!(numbers(&packets, 0, 2) == sent && numbers(&packets, 1, 1) == sent);
    assert!(packets.iter().all(|packet| packet.data.len() == 40 && packet.original_len == FRAME as u32));
    assert!(packets.is_sorted_by_key(|packet| packet.timestamp), "one timeline");
    assert_eq!(counts, [[3000, 0, 3000]; 2]);
}

#[test]
fn a_client_that_is_too_slow_loses_records_exactly_as_many_as_the_file_says() {
    let mut world = World::new();
    let capture = world.capture(&["--buffer", "1"]);
    capture.signal(Signal::STOP);
    world.send(20_000);
    capture.signal(Signal::CONT);
    world.send(1000);
    capture.signal(Signal::INT);
    let (code, said) = capture.output();
    assert_eq!(code, Some(0), "{said}");
    let (packets, counts) = read(&world.file());
    for (interface, way) in [(0, 2), (1, 1)] {
        let numbers = numbers(&packets, interface, way);
        let [all, lost, written] = counts[interface as usize];
        assert_eq!(
            (all, written, lost),
            (21_000, numbers.len() as u64, 21_000 - numbers.len() as u64),
            "{said}"
        );
        assert!(lost > 1000 && numbers.is_sorted(), "{lost}");
        // What each packet says of those lost before it, beside the numbers that are missing.
        let mut next = 0;
        for packet in packets.iter().filter(|packet| packet.interface_id == interface) {
            let lost = packet.options.iter().find_map(|option| match option {
                EnhancedPacketOption::DropCount(lost) => Some(*lost),
                _ => None,
            });
            assert_eq!(number(packet) - next, lost.unwrap_or(0));
            next = number(packet) + 1;
        }
    }
    // The daemon counts the same.
    let lost: u64 = counts.iter().map(|[_, lost, _]| lost).sum();
    let written: u64 = counts.iter().map(|[_, _, written]| written).sum();
    eventually("the capture has ended", || {
        let mut command = Command::new(VMLANE);
        command.args(["stats", "--json", "--runtime-dir"]).arg(world.runtime());
        let stats: serde_json::Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        let captures = &stats["captures"];
        let told = ["running", "begun", "recorded", "lost"].map(|name| captures[name].as_u64().unwrap());
        (told == [0, 1, written, lost]).then_some(())
    });
}

#[test]
fn count_and_filters_take_what_they_name() {
    let mut world = World::new();
    let capture = world.capture(&["-c", "5", "--vm", "b", "--mac", "52:54:00:00:00:01"]);
    world.send(100);
    let (code, said) = capture.output();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(numbers(&read(&world.file()).0, 0, 1), [0, 1, 2, 3, 4]);

    // The lowest byte of the number is 7.
    let program = world.folder.path().join("program");
    std::fs::write(&program, "4\n48 0 0 14\n21 0 1 7\n6 0 0 65535\n6 0 0 0\n").unwrap();
    std::fs::remove_file(world.file()).unwrap();
    let capture = world.capture(&["a/nic0", "--bpf", program.to_str().unwrap()]);
    world.send(600);
    capture.signal(Signal::TERM);
    assert_eq!(capture.output().0, Some(0));
    assert_eq!(numbers(&read(&world.file()).0, 0, 2), [263, 519]);
}

#[test]
fn a_capture_ends_with_its_daemon_or_goes_on_with_the_next_one() {
    let mut world = World::new();
    let alone = world.capture(&["a/nic0"]);
    world.send(10);
    let other = world.folder.path().join("y.pcapng");
    let mut waiting = world.command(&["a/nic0", "--wait"]);
    let waiting = Running(waiting.arg("-w").arg(&other).spawn().unwrap());
    eventually("both run", || (std::fs::metadata(&other).ok()?.len() > 0).then_some(()));
    world.send(10);
    world.daemon = None;
    let (code, said) = alone.output();
    assert_eq!(code, Some(1));
    for words in ["20 captured, 0 lost", "the daemon ended", "x.pcapng", "--wait"] {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(numbers(&read(&world.file()).0, 0, 2).len(), 20);

    world.start();
    // It has begun again when the daemon counts a capture: its frames come.
    let captured = || std::fs::metadata(&other).map_or(0, |file| file.len());
    let before = captured();
    eventually("frames of the next daemon", || {
        world.send(1);
        (captured() > before).then_some(())
    });
    waiting.signal(Signal::INT);
    let (code, said) = waiting.output();
    assert!(code == Some(0) && said.contains("waiting for the next one"), "{said}");
    let (packets, counts) = read(&other);
    assert_eq!((packets.len() as u64, 0), (counts[0][0], counts[0][1]), "of both daemons");
    assert!(numbers(&packets, 0, 2)[..10].iter().copied().eq(10..20));
}

#[test]
fn a_client_that_is_killed_leaves_nothing_and_places_are_limited() {
    let mut world = World::new();
    let all: Vec<Running> = (0..8)
        .map(|_| {
            let _ = std::fs::remove_file(world.file());
            world.capture(&[])
        })
        .collect();
    let (code, said) = world.capture_once(&[]);
    assert!(code == Some(1) && said.contains("8 captures run already"), "{said}");
    drop(all);
    world.send(100);
    eventually("a place is free again", || {
        let mut capture = world.command(&["-c", "1", "-w", "/dev/null"]).spawn().unwrap();
        let ended = (0..50).find_map(|_| {
            world.send(1);
            capture.try_wait().unwrap()
        });
        let _ = capture.kill();
        let _ = capture.wait();
        ended.filter(|status| status.success())
    });
}

#[test]
fn mistakes_are_named_with_the_way_out() {
    let world = World::new();
    for (arguments, words) in [
        (&["web/nic0"][..], "there is no point \"web/nic0\" to capture; there are: a/nic0, b/nic0"),
        (&["--vm", "web"], "there is no VM \"web\""),
        (&["--mac", "blue"], "mac: \"blue\" is no address; give one as 52:54:00:00:00:03"),
        (&["--bpf", "/dev/null"], "as `tcpdump -ddd` prints it"),
        (&["--bpf", "/nowhere"], "reading the packet filter from /nowhere"),
    ] {
        let (code, said) = world.capture_once(arguments);
        assert!(code == Some(1) && said.contains(words), "{arguments:?}: {said}");
    }
    for arguments in [&["-c", "0"][..], &["-W", "2"], &["--vlan", "5000"], &["--buffer", "65"]] {
        let (code, said) = world.capture_once(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {said}");
    }
    let mut world = world;
    let full = Running(world.command(&["-w", "/dev/full"]).spawn().unwrap());
    eventually("the disk is full", || {
        world.send(10);
        std::fs::read_to_string(format!("/proc/{}/stat", full.0.id())).ok()?.contains(") Z ").then_some(())
    });
    let (code, said) = full.output();
    assert!(
        code == Some(1)
            && said.contains("/dev/full: ")
            && said.contains("captured, 0 lost; the file lacks")
            && said.contains("No space left"),
        "{said}"
    );
    world.send(10);
}
