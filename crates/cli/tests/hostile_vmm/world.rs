//! A daemon, and VMs that are attached to it by this process.
#![allow(dead_code)] // not every test program needs all of it

use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use vmlane_guestsim::vfio_user::Client;
use vmlane_guestsim::vhost_user::{Front, RingEvents};
use vmlane_guestsim::virtio::{DriverRing, into, out};
use vmlane_guestsim::{Ram, signals};
use vmlane_wire::virtio::{feature, net_feature};

pub const PATIENCE: Duration = Duration::from_secs(60);
pub const FEATURES: u64 = feature::VERSION_1 | net_feature::MAC;
pub const CONFIG_REGION: u32 = 7;

/// To be held while a process is started, and while there is a file whose closing waits: a new process closes its copies of all
/// files of this one, waits for that one, and has others, connections of another test, open meanwhile.
pub fn hold_spawns() -> MutexGuard<'static, ()> {
    static SPAWNS: Mutex<()> = Mutex::new(());
    SPAWNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A daemon, stopped at the end with its keeper.
pub struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
}

impl Daemon {
    pub fn start(config: &str) -> Daemon {
        let folder = tempfile::tempdir().unwrap();
        // The VMMs of any owner get through to what the daemon lets them use.
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
        std::fs::write(folder.path().join("vmlane.toml"), config).unwrap();
        Daemon { child: Daemon::spawn(folder.path()), folder }
    }

    fn spawn(folder: &Path) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vmlane"));
        command.arg("daemon").arg("--config").arg(folder.join("vmlane.toml"));
        command.arg("--runtime-dir").arg(folder.join("run")).env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _spawning = hold_spawns();
        command.spawn().unwrap()
    }

    /// It is killed, and another one follows.
    pub fn replace(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Daemon::spawn(self.folder.path());
    }

    /// A file of its runtime directory.
    pub fn run(&self, name: &str) -> PathBuf {
        self.folder.path().join("run").join(name)
    }

    pub fn socket(&self, vm: &str) -> PathBuf {
        self.run("vm").join(vm).join("nic0.sock")
    }

    /// Repeats `attach` until there is a daemon that answers.
    pub fn attach<T>(&self, vm: &str, attach: impl Fn(UnixStream) -> std::io::Result<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match UnixStream::connect(self.socket(vm)).and_then(&attach) {
                Ok(attached) => return attached,
                Err(error) => assert!(Instant::now() < deadline, "{vm}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn attach_vmxnet3(&self, vm: &str) -> Client {
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

pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A VM with a card of each model, a, b, ...
pub fn config(models: &[&str]) -> String {
    let vm = |(index, model): (u8, &&str)| {
        let name = char::from(b'a' + index);
        format!(
            "[[vm]]\nname = \"{name}\"\nvsock = \"none\"\nnic = [ {{ model = \"{model}\", mac = \"52:54:00:00:00:0{index}\" }} ]\n"
        )
    };
    (0..).zip(models).map(vm).collect()
}

/// A virtio card from its driver's and its VMM's side. Frames are sent and received one by one.
pub struct Nic {
    pub rx: DriverRing,
    pub tx: DriverRing,
    /// What it receives into at first.
    pub buffers: Vec<u64>,
    page: u64,
    /// The last byte of its address.
    pub own: u8,
    vmm: Option<(Front, [RingEvents; 2])>,
}

impl Nic {
    pub fn new(own: u8) -> Nic {
        let ram = Arc::new(Ram::new(1 << 20));
        let (mut rx, tx) = (DriverRing::new(&ram, 16, false), DriverRing::new(&ram, 16, false));
        let buffers: Vec<u64> = (0..16).map(|_| rx.alloc(2048)).collect();
        for page in &buffers {
            rx.post(&[into(*page, 2048)]);
        }
        let page = tx.alloc(2048);
        Nic { rx, tx, buffers, page, own, vmm: None }
    }

    pub fn attach(&mut self, daemon: &Daemon, vm: &str) {
        self.vmm = None;
        self.vmm = Some(daemon.attach(vm, |stream| {
            let mut front = Front::over(stream, FEATURES)?;
            front.set_memory(&self.rx.ram)?;
            let events = [front.start(0, &self.rx.setup())?, front.start(1, &self.tx.setup())?];
            Ok((front, events))
        }));
    }

    /// Its VMM's connection, which began elsewhere.
    pub fn adopt(&mut self, front: Front, events: [RingEvents; 2]) {
        self.vmm = Some((front, events));
    }

    pub fn events(&self) -> &[RingEvents; 2] {
        &self.vmm.as_ref().expect("attached").1
    }

    pub fn send(&mut self, to: u8) {
        let mut frame = [0; 12 + 60];
        frame[12..18].copy_from_slice(&[0x52, 0x54, 0, 0, 0, to]);
        frame[18..24].copy_from_slice(&[0x52, 0x54, 0, 0, 0, self.own]);
        frame[24..26].copy_from_slice(&[0x88, 0xb5]);
        self.tx.ram.write(self.page, &frame);
        self.tx.post(&[out(self.page, frame.len())]);
        rustix::io::write(&self.events()[1].kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// Sends a frame to `receiver`, and waits until it is there and the chain has come back.
    pub fn reach(&mut self, receiver: &mut Nic) {
        self.send(receiver.own);
        eventually("a frame between honest VMs", || receiver.rx.take().is_some());
        eventually("its chain", || self.tx.take().is_some());
        let page = receiver.rx.alloc(2048);
        receiver.rx.post(&[into(page, 2048)]);
    }
}

impl Nic {
    /// A frame to `other` and one back, without a sleep in between. Frames of others may come with them.
    pub fn exchange(&mut self, other: &mut Nic) {
        for first in [true, false] {
            let (from, to) = if first { (&mut *self, &mut *other) } else { (&mut *other, &mut *self) };
            from.send(to.own);
            let deadline = Instant::now() + PATIENCE;
            while !to.received_from(from.own) {
                assert!(Instant::now() < deadline, "a frame between honest VMs");
                std::thread::yield_now();
            }
            while from.tx.take().is_none() {
                assert!(Instant::now() < deadline, "its chain");
                std::thread::yield_now();
            }
        }
    }

    /// Takes what was received, and posts its buffers again, until a frame of `sender` is among them.
    fn received_from(&mut self, sender: u8) -> bool {
        while let Some((id, _)) = self.rx.take() {
            let page = self.buffers[usize::from(id)];
            let mut address = [0; 6];
            self.rx.ram.read(page + 12 + 6, &mut address);
            let next = self.rx.post(&[into(page, 2048)]);
            self.buffers[usize::from(next)] = page;
            if address[5] == sender {
                return true;
            }
        }
        false
    }
}

/// From now on, a write to it waits for a read.
pub fn obstruct(fd: &OwnedFd) {
    signals(fd);
    rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rustix::fs::fcntl_setfl(fd, OFlags::empty()).unwrap();
}
