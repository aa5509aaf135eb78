//! `kill -9` under a VMM that asks without pause: every request is answered once, by the daemon that took it or
//! by the next one, and descriptors that came with it are where they belong. The keeper may be killed before.

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::eventually;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Pid, Signal, kill_process};
use vmlane_guestsim::vfio_user::{Client, access};
use vmlane_guestsim::{eventfd, signals};
use vmlane_wire::vfio_user::{Command as Request, DmaMap, SetIrqs, irq_index};
use zerocopy::IntoBytes;

const PATIENCE: Duration = Duration::from_secs(60);
const KILLS: u32 = 400;
const CONFIG: &str = "[[vm]]\nname = \"a\"\ncid = 3\nnic = [ { model = \"vmxnet3\" } ]\n";
/// PCI configuration space, and a byte in it that is plain storage.
const CONFIG_REGION: u32 = 7;
const INTERRUPT_LINE: u64 = 0x3c;
const TEST: u32 = SetIrqs::DATA_NONE | SetIrqs::TRIGGER;
const CONNECT: u32 = SetIrqs::DATA_EVENTFD | SetIrqs::TRIGGER;

/// A daemon, killed at the end with its keeper.
struct Daemon {
    child: Child,
    folder: PathBuf,
    options: &'static [&'static str],
}

impl Daemon {
    fn start(folder: &Path, options: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vmlane"));
        command.arg("daemon").arg("--config").arg(folder.join("vmlane.toml"));
        command.arg("--runtime-dir").arg(folder.join("run")).env_remove("NOTIFY_SOCKET");
        command.args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    fn new(folder: &Path) -> Daemon {
        Daemon { child: Daemon::start(folder, &[]), folder: folder.to_owned(), options: &[] }
    }

    /// One that starts no keeper.
    fn beside_keeper(folder: &Path) -> Daemon {
        let options = &["--external-keeper"];
        Daemon { child: Daemon::start(folder, options), folder: folder.to_owned(), options }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Daemon::start(&self.folder, self.options);
    }
}

impl Drop for Daemon {
    /// As an operator ends it, so that its keeper goes too.
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        // The process exists: no one has waited for it.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

fn connect(socket: &PathBuf) -> Client {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => {
                let mut vmm = Client::new(stream);
                vmm.stream().set_read_timeout(Some(PATIENCE)).unwrap();
                vmm.version().unwrap();
                return vmm;
            }
            Err(error) => assert!(Instant::now() < deadline, "{}: {error}", socket.display()),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
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
        (Request::RegionRead, register.as_bytes().to_vec(), None),
        (Request::SetIrqs, connect(1), Some(events[0].as_fd())),
        (Request::DmaMap, map.as_bytes().to_vec(), Some(memory.as_fd())),
        (Request::SetIrqs, connect(2), Some(events[1].as_fd())),
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
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("vmlane.toml"), CONFIG).unwrap();
    let mut daemon = Daemon::new(folder.path());
    let vmm = connect(&folder.path().join("run/vm/a/nic0.sock"));
    let (rounds, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(vmm, &rounds, &over));
        for kill in 0..KILLS {
            // Some more each time, so that it dies elsewhere.
            let (before, deadline) = (rounds.load(Ordering::Acquire), Instant::now() + PATIENCE);
            while rounds.load(Ordering::Acquire) == before && !asking.is_finished() {
                assert!(Instant::now() < deadline, "kill {kill}: nothing is answered any more");
                std::thread::sleep(Duration::from_micros(50));
            }
            std::thread::sleep(Duration::from_micros(u64::from(kill * 7919 % 3000)));
            daemon.kill();
        }
        over.store(true, Ordering::Release);
        asking.join().unwrap();
    });
    println!("{KILLS} kills, {} rounds", rounds.load(Ordering::Acquire));
}

/// The process that holds descriptors for the daemon in `run`.
fn keeper(run: &Path) -> Option<Pid> {
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|process| {
        let line = String::from_utf8(std::fs::read(process.path().join("cmdline")).ok()?).ok()?;
        let words: Vec<&str> = line.split('\0').collect();
        let ours = words.contains(&"keeper") && words.contains(&run.to_str()?);
        ours.then(|| Pid::from_raw(process.file_name().to_str()?.parse().ok()?))?
    })
}

fn held(process: Pid) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).map_or(0, Iterator::count)
}

/// Listens in the keeper's place and serves no one, as a keeper that is just ending does.
fn listen_at(path: &Path) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let fresh = path.with_extension("new");
    rustix::net::bind(&socket, &SocketAddrUnix::new(&fresh).unwrap()).unwrap();
    rustix::fs::chmod(&fresh, rustix::fs::Mode::from_raw_mode(0o666)).unwrap();
    rustix::net::listen(&socket, 8).unwrap();
    std::fs::rename(fresh, path).unwrap();
    socket
}

#[test]
fn a_keeper_in_place_of_a_killed_one_gets_everything_whatever_listens_there_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("vmlane.toml"), CONFIG).unwrap();
    let run = folder.path().join("run");
    let mut daemon = Daemon::new(folder.path());
    let mut vmm = connect(&run.join("vm/a/nic0.sock"));
    vmm.write(CONFIG_REGION, INTERRUPT_LINE, &[42]).unwrap();
    let first = keeper(&run).expect("a keeper");
    let before = held(first);
    let _ending = listen_at(&run.join("keeper.sock"));
    kill_process(first, Signal::KILL).unwrap();
    eventually("another keeper with all that the first one had", || {
        keeper(&run).filter(|&second| second != first && held(second) >= before)
    });
    daemon.kill();
    assert_eq!(vmm.read_u8(CONFIG_REGION, INTERRUPT_LINE).unwrap(), 42);
}

/// The configuration of a daemon that stays the user of a keeper that it does not start.
fn configure_for_service(folder: &Path) {
    let user = if rustix::process::geteuid().is_root() { "[daemon]\nuser = \"root\"\n" } else { "" };
    std::fs::write(folder.join("vmlane.toml"), format!("{user}{CONFIG}")).unwrap();
}

/// A keeper as a service manager runs it; killed at the end.
struct KeeperService(Child);

impl KeeperService {
    fn start(run: &Path) -> KeeperService {
        std::fs::create_dir_all(run).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vmlane"));
        command.args(["keeper", "--runtime-dir"]).arg(run).env_remove("NOTIFY_SOCKET");
        KeeperService(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }
}

impl Drop for KeeperService {
    fn drop(&mut self) {
        // Both fail only if it is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_keeper_that_is_a_service_is_waited_for_and_never_started_by_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    configure_for_service(folder.path());
    let run = folder.path().join("run");
    let first = KeeperService::start(&run);
    let mut daemon = Daemon::beside_keeper(folder.path());
    let mut vmm = connect(&run.join("vm/a/nic0.sock"));
    vmm.write(CONFIG_REGION, INTERRUPT_LINE, &[42]).unwrap();
    assert_eq!(keeper(&run), Some(first.pid()), "no other keeper");
    daemon.kill();
    assert_eq!(vmm.read_u8(CONFIG_REGION, INTERRUPT_LINE).unwrap(), 42);

    // It ends, and the service manager takes its time.
    let before = held(first.pid());
    drop(first);
    vmm.write(CONFIG_REGION, INTERRUPT_LINE, &[43]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(keeper(&run), None, "a keeper of the daemon's own");
    let second = KeeperService::start(&run);
    eventually("all that the first one had", || (held(second.pid()) >= before).then_some(()));
    daemon.kill();
    assert_eq!(vmm.read_u8(CONFIG_REGION, INTERRUPT_LINE).unwrap(), 43);
}

#[test]
fn a_daemon_whose_keeper_comes_late_serves_and_gives_it_everything() {
    let folder = tempfile::tempdir().unwrap();
    configure_for_service(folder.path());
    let run = folder.path().join("run");
    let mut daemon = Daemon::beside_keeper(folder.path());
    let mut vmm = connect(&run.join("vm/a/nic0.sock"));
    vmm.write(CONFIG_REGION, INTERRUPT_LINE, &[44]).unwrap();
    let late = KeeperService::start(&run);
    let mut before = 0;
    eventually("sockets, records and the session, one after another", || {
        std::thread::sleep(Duration::from_millis(500));
        let now = held(late.pid());
        (now > 10 && std::mem::replace(&mut before, now) == now).then_some(())
    });
    daemon.kill();
    assert_eq!(vmm.read_u8(CONFIG_REGION, INTERRUPT_LINE).unwrap(), 44);
}
