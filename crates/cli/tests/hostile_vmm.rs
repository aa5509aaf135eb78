//! A whole daemon with a hostile VMM: the other VMs lack nothing, and the daemon that follows one that was killed
//! serves them, too.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, OFlags};
use vmlane_device::virtio::vhost::RingSetup;
use vmlane_guestsim::vfio_user::Client;
use vmlane_guestsim::vhost_user::{Front, RingEvents};
use vmlane_guestsim::virtio::{DriverRing, into, out};
use vmlane_guestsim::{Ram, eventfd, signals};
use vmlane_wire::vfio_user::{SetIrqs, irq_index};
use vmlane_wire::vhost_user::{MemoryRegion, request};
use vmlane_wire::virtio::{feature, net_feature};
use zerocopy::IntoBytes;

const PATIENCE: Duration = Duration::from_secs(60);
const FEATURES: u64 = feature::VERSION_1 | net_feature::MAC;
const CONFIG_REGION: u32 = 7;

/// A daemon, stopped at the end with its keeper.
struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
}

impl Daemon {
    fn start(config: &str) -> Daemon {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("vmlane.toml"), config).unwrap();
        Daemon { child: Daemon::spawn(folder.path()), folder }
    }

    fn spawn(folder: &Path) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vmlane"));
        command.arg("daemon").arg("--config").arg(folder.join("vmlane.toml"));
        command.arg("--runtime-dir").arg(folder.join("run")).env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// It is killed, and another one follows.
    fn replace(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Daemon::spawn(self.folder.path());
    }

    fn socket(&self, vm: &str) -> PathBuf {
        self.folder.path().join("run/vm").join(vm).join("nic0.sock")
    }

    /// Repeats `attach` until there is a daemon that answers.
    fn attach<T>(&self, vm: &str, attach: impl Fn(UnixStream) -> std::io::Result<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match UnixStream::connect(self.socket(vm)).and_then(&attach) {
                Ok(attached) => return attached,
                Err(error) => assert!(Instant::now() < deadline, "{vm}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn attach_vmxnet3(&self, vm: &str) -> Client {
        self.attach(vm, |stream| {
            let mut vmm = Client::new(stream);
            vmm.version().map_err(std::io::Error::other)?;
            Ok(vmm)
        })
    }
}

impl Drop for Daemon {
    /// As an operator ends it, so that its keeper goes too; or by force, where a worker does not end.
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// `count` VMs with a card each, a, b, ...
fn config(count: u8, model: &str) -> String {
    let vm = |index: u8| {
        let name = char::from(b'a' + index);
        format!(
            "[[vm]]\nname = \"{name}\"\nvsock = \"none\"\nnic = [ {{ model = \"{model}\", mac = \"52:54:00:00:00:0{index}\" }} ]\n"
        )
    };
    (0..count).map(vm).collect()
}

/// A virtio card from its driver's and its VMM's side. Frames are sent and received one by one.
struct Nic {
    rx: DriverRing,
    tx: DriverRing,
    page: u64,
    /// The last byte of its address.
    own: u8,
    vmm: Option<(Front, [RingEvents; 2])>,
}

impl Nic {
    fn new(own: u8) -> Nic {
        let ram = Arc::new(Ram::new(1 << 20));
        let (mut rx, tx) = (DriverRing::new(&ram, 16, false), DriverRing::new(&ram, 16, false));
        for _ in 0..16 {
            let page = rx.alloc(2048);
            rx.post(&[into(page, 2048)]);
        }
        let page = tx.alloc(2048);
        Nic { rx, tx, page, own, vmm: None }
    }

    fn attach(&mut self, daemon: &Daemon, vm: &str) {
        self.vmm = None;
        self.vmm = Some(daemon.attach(vm, |stream| {
            let mut front = Front::over(stream, FEATURES)?;
            front.set_memory(&self.rx.ram)?;
            let events = [front.start(0, &self.rx.setup())?, front.start(1, &self.tx.setup())?];
            Ok((front, events))
        }));
    }

    fn events(&self) -> &[RingEvents; 2] {
        &self.vmm.as_ref().expect("attached").1
    }

    fn send(&mut self, to: u8) {
        let mut frame = [0; 12 + 60];
        frame[12..18].copy_from_slice(&[0x52, 0x54, 0, 0, 0, to]);
        frame[18..24].copy_from_slice(&[0x52, 0x54, 0, 0, 0, self.own]);
        frame[24..26].copy_from_slice(&[0x88, 0xb5]);
        self.tx.ram.write(self.page, &frame);
        self.tx.post(&[out(self.page, frame.len())]);
        rustix::io::write(&self.events()[1].kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// Sends a frame to `receiver`, and waits until it is there and the chain has come back.
    fn reach(&mut self, receiver: &mut Nic) {
        self.send(receiver.own);
        eventually("a frame between honest VMs", || receiver.rx.take().is_some());
        eventually("its chain", || self.tx.take().is_some());
        let page = receiver.rx.alloc(2048);
        receiver.rx.post(&[into(page, 2048)]);
    }
}

/// From now on, a write to it waits for a read.
fn obstruct(fd: &OwnedFd) {
    signals(fd);
    rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rustix::fs::fcntl_setfl(fd, OFlags::empty()).unwrap();
}

#[test]
fn event_fds_that_cannot_be_written_stop_neither_other_vms_nor_the_next_daemon() {
    let mut daemon = Daemon::start(&config(3, "virtio-net"));
    for _ in 0..2 {
        let (mut hostile, mut from, mut to) = (Nic::new(0), Nic::new(1), Nic::new(2));
        to.attach(&daemon, "c");
        from.attach(&daemon, "b");
        hostile.attach(&daemon, "a");
        from.reach(&mut to);
        hostile.events().iter().for_each(|events| obstruct(&events.call));
        // Has the worker notify the hostile VM: that it received, and that it sent.
        from.send(hostile.own);
        hostile.send(to.own);
        eventually("a frame for the hostile VM", || hostile.rx.take().is_some());
        eventually("a frame of the hostile VM", || to.rx.take().is_some());
        eventually("its chain", || from.tx.take().is_some());
        for _ in 0..10 {
            from.reach(&mut to);
        }
        daemon.replace();
    }
}

#[test]
fn an_interrupt_that_cannot_be_written_stops_neither_its_session_nor_the_next_daemon() {
    let mut daemon = Daemon::start(&config(2, "vmxnet3"));
    let (mut hostile, mut honest) = (daemon.attach_vmxnet3("a"), daemon.attach_vmxnet3("b"));
    let obstructed = eventfd().unwrap();
    hostile.enable_msix(&[obstructed.as_fd()]).unwrap();
    obstruct(&obstructed);
    let test = SetIrqs::DATA_NONE | SetIrqs::TRIGGER;
    hostile.set_irqs(test, irq_index::MSIX, 0..1, &[], &[]).expect("an answer");
    for _ in 0..3 {
        daemon.replace();
        // The next daemon signals every vector.
        assert_eq!(honest.read_u16(CONFIG_REGION, 0).unwrap(), 0x15ad);
        assert_eq!(hostile.read_u16(CONFIG_REGION, 0).unwrap(), 0x15ad);
        hostile.set_irqs(test, irq_index::MSIX, 0..1, &[], &[]).expect("an answer");
    }
}

#[test]
fn sparse_files_of_one_vm_leave_address_space_for_others_and_the_next_daemon() {
    const LARGE: u64 = 3 << 40;
    let mut daemon = Daemon::start(&config(2, "vmxnet3"));
    let (mut hostile, mut honest) = (daemon.attach_vmxnet3("a"), daemon.attach_vmxnet3("b"));
    let sparse = rustix::fs::memfd_create("sparse", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&sparse, LARGE).unwrap();
    // As much as goes, in ever smaller pieces.
    let (mut guest, mut len) = (0, LARGE);
    while len >= 1 << 20 {
        match hostile.map(guest, len, Some((sparse.as_fd(), 0)), true) {
            Ok(()) => guest += len,
            Err(_) => len /= 2,
        }
    }
    let memory = vmlane_mem::memfd("honest", 1 << 30).unwrap();
    honest.map(0, 1 << 30, Some((memory.as_fd(), 0)), true).expect("memory of another VM");
    daemon.replace();
    assert_eq!(honest.read_u16(CONFIG_REGION, 0).unwrap(), 0x15ad);
    honest.unmap(0, 1 << 30).expect("it was mapped again");
    honest.map(0, 1 << 30, Some((memory.as_fd(), 0)), true).expect("memory of another VM");
}

/// The VMM never says anything again, and a worker comes across the loss.
#[test]
fn memory_cut_short_ends_its_session_without_another_message() {
    const MEMORY: u64 = 1 << 20;
    let daemon = Daemon::start(&config(1, "virtio-net"));
    let file = rustix::fs::memfd_create("cut short", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, MEMORY).unwrap();
    let (mut socket, _front, events) = daemon.attach("a", |stream| {
        let socket = stream.try_clone()?;
        let mut front = Front::over(stream, FEATURES)?;
        let user = 0x7f00_0000_0000u64.into();
        let region = MemoryRegion { guest: 0.into(), size: MEMORY.into(), user, offset: 0.into() };
        let table = [&1u64.to_le_bytes()[..], region.as_bytes()].concat();
        front.ask(request::SET_MEM_TABLE, &table, &[file.as_fd()])?;
        let setup = |base: u64| RingSetup {
            size: 16,
            descriptors: base,
            driver: base + 0x1000,
            device: base + 0x2000,
            position: Arc::new(AtomicU32::new(0)),
            record: None,
            log: None,
        };
        let events = [front.start(0, &setup(0x10000))?, front.start(1, &setup(0x20000))?];
        Ok((socket, front, events))
    });
    rustix::fs::ftruncate(&file, 0).unwrap();
    rustix::io::write(&events[1].kick, &1u64.to_ne_bytes()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(socket.read(&mut [0; 64]).expect("the session to end"), 0);
}
