//! `vmlane capture` of a confined daemon with two synthetic VMs: what is in the file, what was lost, and how
//! it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::pcapng::{Block, PcapNgReader};
use rustix::process::Signal;
use vmlane_guestsim::virtio_nic::{FRAME, Nic};
use vmlane_testkit::{Daemon, Process, Ran, eventually, run, wait_until};

use crate::common::daemon;

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

struct World {
    daemon: Daemon,
    a: Nic,
    b: Nic,
    next: u64,
}

impl World {
    fn new() -> World {
        let mut world = World { daemon: daemon(CONFIG), a: Nic::new(false), b: Nic::new(false), next: 0 };
        world.attach();
        world
    }

    fn attach(&mut self) {
        self.b.attach(&self.daemon.socket("b", "nic0.sock"));
        self.a.attach(&self.daemon.socket("a", "nic0.sock"));
    }

    fn file(&self) -> PathBuf {
        self.daemon.path("x.pcapng")
    }

    fn command(&self, arguments: &[&str], file: &Path) -> Command {
        let mut command = self.daemon.command(&[&["capture"], arguments].concat());
        command.arg("-w").arg(file).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// A capture that ends by itself.
    fn capture_once(&self, arguments: &[&str]) -> Ran {
        run(self.command(arguments, Path::new("/dev/null")))
    }

    /// Begins a capture, and waits until it runs: its file has a begin.
    fn capture(&self, arguments: &[&str]) -> Process {
        self.capture_to(&self.file(), arguments)
    }

    fn capture_to(&self, file: &Path, arguments: &[&str]) -> Process {
        let capture = Process(self.command(arguments, file).spawn().unwrap());
        wait_until("the capture runs", || fs::metadata(file).is_ok_and(|file| file.len() > 0));
        capture
    }

    /// Sends so many frames from a to b, and waits until they are there.
    fn send(&mut self, count: u64) {
        let (mut received, last) = (0, self.next + count);
        wait_until("all frames arrive", || {
            while self.next < last && self.a.send(self.next) {
                self.next += 1;
            }
            self.a.settle();
            received += self.b.receive().len() as u64;
            received == count
        });
    }
}

/// What a file holds: its packets, and counts of each interface (there were, lost, written).
fn read(path: &Path) -> (Vec<EnhancedPacketBlock<'static>>, Vec<[u64; 3]>) {
    let bytes = fs::read(path).unwrap();
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
    let ran = capture.finish();
    assert_eq!((ran.code, &*ran.err), (0, "6000 captured, 0 lost\n"));
    world.send(100);
    let (packets, counts) = read(&world.file());
    let sent: Vec<u64> = (100..3100).collect();
    assert!(numbers(&packets, 0, 2) == sent && numbers(&packets, 1, 1) == sent);
    assert!(packets.iter().all(|packet| packet.data.len() == 40 && packet.original_len == FRAME as u32));
    assert!(packets.is_sorted_by_key(|packet| packet.timestamp), "one timeline");
    assert_eq!(counts, [[3000, 0, 3000]; 2]);
}

#[test]
fn a_client_that_is_too_slow_loses_exactly_as_many_records_as_the_file_counts() {
    let mut world = World::new();
    let capture = world.capture(&["--buffer", "1"]);
    capture.signal(Signal::STOP);
    world.send(20_000);
    capture.signal(Signal::CONT);
    world.send(1000);
    capture.signal(Signal::INT);
    capture.finish().good();
    let (packets, counts) = read(&world.file());
    for (interface, way) in [(0, 2), (1, 1)] {
        let numbers = numbers(&packets, interface, way);
        let [all, lost, written] = counts[interface as usize];
        assert_eq!((all, written, lost), (21_000, numbers.len() as u64, 21_000 - numbers.len() as u64));
        assert!(lost > 1000 && numbers.is_sorted(), "{lost}");
        // What each packet reports of those lost before it, beside the numbers that are missing.
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
    wait_until("the capture has ended", || {
        let captures = world.daemon.json(&["stats"])["captures"].take();
        let figures = ["running", "begun", "recorded", "lost"].map(|name| captures[name].as_u64().unwrap());
        figures == [0, 1, written, lost]
    });
}

#[test]
fn count_and_filters_take_what_they_name() {
    let mut world = World::new();
    let capture = world.capture(&["-c", "5", "--vm", "b", "--mac", "52:54:00:00:00:01"]);
    world.send(100);
    capture.finish().good();
    assert_eq!(numbers(&read(&world.file()).0, 0, 1), [0, 1, 2, 3, 4]);

    // The lowest byte of the number is 7.
    let program = world.daemon.write("program", "4\n48 0 0 14\n21 0 1 7\n6 0 0 65535\n6 0 0 0\n");
    fs::remove_file(world.file()).unwrap();
    let capture = world.capture(&["a/nic0", "--bpf", program.to_str().unwrap()]);
    world.send(600);
    capture.signal(Signal::TERM);
    capture.finish().good();
    assert_eq!(numbers(&read(&world.file()).0, 0, 2), [263, 519]);
}

#[test]
fn a_capture_ends_with_its_daemon_or_goes_on_with_the_next_one() {
    let mut world = World::new();
    let alone = world.capture(&["a/nic0"]);
    world.send(10);
    let other = world.daemon.path("y.pcapng");
    let waiting = world.capture_to(&other, &["a/nic0", "--wait"]);
    world.send(10);
    world.daemon.kill();
    alone.finish().fails(1, &["20 captured, 0 lost", "the daemon ended", "x.pcapng", "--wait"]);
    assert_eq!(numbers(&read(&world.file()).0, 0, 2).len(), 20);

    world.daemon.start();
    world.attach();
    // It has begun again when the daemon counts a capture: its frames come.
    let captured = || fs::metadata(&other).map_or(0, |file| file.len());
    let before = captured();
    wait_until("frames of the next daemon", || {
        world.send(1);
        captured() > before
    });
    waiting.signal(Signal::INT);
    let ran = waiting.finish();
    assert!(ran.succeeded() && ran.err.contains("waiting for the next one"), "{ran:?}");
    let (packets, counts) = read(&other);
    assert_eq!((packets.len() as u64, 0), (counts[0][0], counts[0][1]), "of both daemons");
    assert!(numbers(&packets, 0, 2)[..10].iter().copied().eq(10..20));
}

#[test]
fn a_client_that_is_killed_leaves_nothing_and_places_are_limited() {
    let mut world = World::new();
    let all: Vec<Process> = (0..8)
        .map(|_| {
            let _ = fs::remove_file(world.file());
            world.capture(&[])
        })
        .collect();
    world.capture_once(&[]).fails(1, &["8 captures run already"]);
    drop(all);
    world.send(100);
    wait_until("a place is free again", || {
        let mut capture = Process(world.command(&["-c", "1"], Path::new("/dev/null")).spawn().unwrap());
        let end = eventually("a frame, or a refusal", || {
            world.send(1);
            capture.0.try_wait().unwrap()
        });
        end.success()
    });
}

#[test]
fn mistakes_are_named_with_the_way_out() {
    let mut world = World::new();
    for (arguments, words) in [
        (&["web/nic0"][..], "there is no point \"web/nic0\" to capture; there are: a/nic0, b/nic0"),
        (&["--vm", "web"], "there is no VM \"web\""),
        (&["--mac", "blue"], "mac: \"blue\" is no address; give one as 52:54:00:00:00:03"),
        (&["--bpf", "/dev/null"], "as `tcpdump -ddd` prints it"),
        (&["--bpf", "/nowhere"], "reading the packet filter from /nowhere"),
    ] {
        world.capture_once(arguments).fails(1, &[words]);
    }
    for arguments in [&["-c", "0"][..], &["-W", "2"], &["--vlan", "5000"], &["--buffer", "65"]] {
        assert_eq!(world.capture_once(arguments).code, 2, "{arguments:?}");
    }
    let full = Process(world.command(&[], Path::new("/dev/full")).spawn().unwrap());
    wait_until("the disk is full", || {
        world.send(10);
        fs::read_to_string(format!("/proc/{}/stat", full.id())).is_ok_and(|stat| stat.contains(") Z "))
    });
    let ran = full.finish();
    ran.fails(1, &["/dev/full: ", "captured, 0 lost; the file lacks", "No space left"]);
    world.send(10);
}
