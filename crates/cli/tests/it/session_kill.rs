//! `kill -9` under a VMM that asks without pause: every request is answered once, by the daemon that took it
//! or by the next one, and descriptors that came with it are where they belong. The keeper may be killed
//! before.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process};
use vmlane_guestsim::vfio_user::{Client, access};
use vmlane_guestsim::{eventfd, signals};
use vmlane_testkit::{Daemon, LONGEST, Process, eventually, wait_until};
use vmlane_wire::vfio_user::{Command, DmaMap, SetIrqs, irq_index};
use zerocopy::IntoBytes;

use crate::common::place;

const KILLS: u32 = 400;
const CONFIG: &str = "[[vm]]\nname = \"a\"\ncid = 3\nnic = [ { model = \"vmxnet3\" } ]\n";
/// PCI configuration space, and a byte in it that is plain storage.
const CONFIG_REGION: u32 = 7;
const INTERRUPT_LINE: u64 = 0x3c;
const TEST: u32 = SetIrqs::DATA_NONE | SetIrqs::TRIGGER;
const CONNECT: u32 = SetIrqs::DATA_EVENTFD | SetIrqs::TRIGGER;

/// The next daemon in place of a killed one.
fn replace(daemon: &Daemon) {
    daemon.kill();
    daemon.launch();
}

/// Until there is a daemon.
fn connect(daemon: &Daemon) -> Client {
    let socket = daemon.socket("a", "nic0.sock");
    let mut vmm = Client::new(eventually("a daemon", || UnixStream::connect(&socket).ok()));
    vmm.stream().set_read_timeout(Some(LONGEST)).unwrap();
    vmm.version().unwrap();
    vmm
}

/// One register after another, and in between messages with descriptors, alone and several in one piece.
fn ask(mut vmm: Client, rounds: &AtomicU64, over: &AtomicBool) {
    let memory = vmlane_mem::memfd("guest", 1 << 20).unwrap();
    let irqs = irq_index::MSIX;
    for round in 0.. {
        // A register of the device itself: MAC address.
        let mac = vmm.read_u32(1, 0x28).unwrap();
        assert_eq!(vmm.read_u32(1, 0x28).unwrap(), mac, "round {round}");
        let byte = [round as u8];
        vmm.write(CONFIG_REGION, INTERRUPT_LINE, &byte).unwrap();
        assert_eq!(vmm.read_u8(CONFIG_REGION, INTERRUPT_LINE).unwrap(), byte[0], "round {round}");
        if round % 4 == 0 {
            let event = eventfd().unwrap();
            vmm.set_irqs(CONNECT, irqs, 0..1, &[], &[event.as_fd()]).unwrap();
            vmm.set_irqs(TEST, irqs, 0..1, &[], &[]).unwrap();
            // A daemon that takes over signals every vector, too.
            assert_ne!(signals(&event), 0, "round {round}: the vector's descriptor is lost");
            vmm.map(0x10_0000, 1 << 20, Some((memory.as_fd(), 0)), true).unwrap();
            vmm.unmap(0x10_0000, 1 << 20).unwrap();
        }
        if round % 4 == 2 {
            together(&mut vmm, &memory, round);
            vmm.unmap(0x20_0000, 1 << 20).unwrap();
            vmm.disable_irqs(irqs).unwrap();
        }
        rounds.fetch_add(1, Ordering::Release);
        if over.load(Ordering::Acquire) {
            break;
        }
    }
}

/// Four requests sent before the first answer is read.
fn together(vmm: &mut Client, memory: &std::os::fd::OwnedFd, round: u64) {
    let events = [eventfd().unwrap(), eventfd().unwrap()];
    let connect = |vector: u32| {
        let set = SetIrqs {
            argsz: (size_of::<SetIrqs>() as u32).into(),
            flags: CONNECT.into(),
            index: irq_index::MSIX.into(),
            start: vector.into(),
            count: 1.into(),
        };
        set.as_bytes().to_vec()
    };
    let map = DmaMap {
        argsz: (size_of::<DmaMap>() as u32).into(),
        flags: (DmaMap::READ | DmaMap::WRITE).into(),
        offset: 0.into(),
        address: 0x20_0000.into(),
        size: (1 << 20).into(),
    };
    let register = access(CONFIG_REGION, INTERRUPT_LINE, 1);
    let requests = [
        (Command::RegionRead, register.as_bytes().to_vec(), None),
        (Command::SetIrqs, connect(1), Some(events[0].as_fd())),
        (Command::DmaMap, map.as_bytes().to_vec(), Some(memory.as_fd())),
        (Command::SetIrqs, connect(2), Some(events[1].as_fd())),
    ];
    let mut expected = Vec::new();
    for (command, payload, fd) in &requests {
        let bytes = vmm.message(command.code(), payload, false);
        expected.push(u16::from_le_bytes([bytes[0], bytes[1]]));
        vmm.send(&bytes, fd.as_slice()).unwrap();
    }
    for id in expected {
        let (header, _) = vmm.receive().unwrap();
        assert_eq!((header.id.get(), header.failed()), (id, false), "round {round}");
    }
    for (vector, event) in (1u32..).zip(&events) {
        vmm.set_irqs(TEST, irq_index::MSIX, vector..vector + 1, &[], &[]).unwrap();
        assert_ne!(signals(event), 0, "round {round}: vector {vector} is not connected");
    }
}

#[test]
fn every_request_is_answered_once() {
    let daemon = place(CONFIG);
    daemon.launch();
    let vmm = connect(&daemon);
    let (rounds, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(vmm, &rounds, &over));
        for kill in 0..KILLS {
            // Some more each time, so that it dies elsewhere.
            let (before, deadline) = (rounds.load(Ordering::Acquire), Instant::now() + LONGEST);
            while rounds.load(Ordering::Acquire) == before && !asking.is_finished() {
                assert!(Instant::now() < deadline, "kill {kill}: nothing is answered any more");
                std::thread::sleep(Duration::from_micros(50));
            }
            std::thread::sleep(Duration::from_micros(u64::from(kill * 7919 % 3000)));
            replace(&daemon);
        }
        over.store(true, Ordering::Release);
        asking.join().unwrap();
    });
    println!("{KILLS} kills, {} rounds", rounds.load(Ordering::Acquire));
}

/// Waits until a keeper that has come has been sent everything.
fn until_given(daemon: &Daemon) {
    // One that is killed may take all of it while it ends: the last word counts.
    wait_until("a keeper is given everything", || {
        let log = daemon.log();
        let last = log.lines().rfind(|line| line.contains("keeper"));
        last.is_some_and(|line| line.contains("the new keeper has everything"))
    });
}

/// Listens in the keeper's place and serves no one, as a keeper that is just ending does.
fn listen_at(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let fresh = path.with_extension("new");
    rustix::net::bind(&socket, &SocketAddrUnix::new(&fresh).unwrap()).unwrap();
    rustix::fs::chmod(&fresh, rustix::fs::Mode::from_raw_mode(0o666)).unwrap();
    // For all the tries of a daemon: there is a moment without a keeper.
    rustix::net::listen(&socket, 4096).unwrap();
    std::fs::rename(fresh, path).unwrap();
    socket
}

#[test]
fn a_keeper_in_place_of_a_killed_one_gets_everything_whatever_listens_there_meanwhile() {
    let daemon = place(CONFIG);
    daemon.launch();
    let mut vmm = connect(&daemon);
    vmm.write(CONFIG_REGION, INTERRUPT_LINE, &[42]).unwrap();
    let first = daemon.beside("keeper").expect("a keeper");
    let _ending = listen_at(&daemon.run("keeper.sock"));
    kill_process(first, Signal::KILL).unwrap();
    until_given(&daemon);
    assert_ne!(daemon.beside("keeper").expect("another keeper"), first);
    replace(&daemon);
    assert_eq!(vmm.read_u8(CONFIG_REGION, INTERRUPT_LINE).unwrap(), 42);
}

/// For daemons that stay the user of a keeper that they do not start.
fn place_for_service() -> Daemon {
    let user = if rustix::process::geteuid().is_root() { "[daemon]\nuser = \"root\"\n" } else { "" };
    place(&format!("{user}{CONFIG}")).with(&["--external-keeper"])
}

/// A keeper as a service manager runs it.
fn start_keeper(daemon: &Daemon) -> Process {
    std::fs::create_dir_all(daemon.runtime()).unwrap();
    Process(daemon.command(&["keeper"]).stdout(Stdio::null()).spawn().unwrap())
}

fn pid(process: &Process) -> Pid {
    Pid::from_child(&process.0)
}

#[test]
fn a_keeper_that_is_a_service_is_waited_for_and_never_started_by_the_daemon() {
    let daemon = place_for_service();
    let first = start_keeper(&daemon);
    daemon.launch();
    let mut vmm = connect(&daemon);
    vmm.write(CONFIG_REGION, INTERRUPT_LINE, &[42]).unwrap();
    assert_eq!(daemon.beside("keeper"), Some(pid(&first)), "no other keeper");
    replace(&daemon);
    assert_eq!(vmm.read_u8(CONFIG_REGION, INTERRUPT_LINE).unwrap(), 42);

    // It ends, and the service manager takes its time.
    drop(first);
    vmm.write(CONFIG_REGION, INTERRUPT_LINE, &[43]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(daemon.beside("keeper"), None, "a keeper of the daemon's own");
    let _second = start_keeper(&daemon);
    until_given(&daemon);
    replace(&daemon);
    assert_eq!(vmm.read_u8(CONFIG_REGION, INTERRUPT_LINE).unwrap(), 43);
}

#[test]
fn a_daemon_whose_keeper_comes_late_serves_and_gives_it_everything() {
    let daemon = place_for_service();
    daemon.launch();
    let mut vmm = connect(&daemon);
    vmm.write(CONFIG_REGION, INTERRUPT_LINE, &[44]).unwrap();
    let _late = start_keeper(&daemon);
    until_given(&daemon);
    replace(&daemon);
    assert_eq!(vmm.read_u8(CONFIG_REGION, INTERRUPT_LINE).unwrap(), 44);
}
