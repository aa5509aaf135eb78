//! VMs of a daemon that are attached to it by this process.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::OFlags;
use vmlane_guestsim::vfio_user::Client;
use vmlane_guestsim::vhost_user::{Front, RingEvents};
use vmlane_guestsim::virtio::{DriverRing, into, out};
use vmlane_guestsim::{Ram, signals};
use vmlane_testkit::{Daemon, LONGEST, eventually, wait_until};
use vmlane_wire::virtio::{feature, net_feature};

pub const FEATURES: u64 = feature::VERSION_1 | net_feature::MAC;
pub const CONFIG_REGION: u32 = 7;

pub fn socket(daemon: &Daemon, vm: &str) -> PathBuf {
    daemon.socket(vm, "nic0.sock")
}

/// It is killed, and another one follows.
pub fn replace(daemon: &Daemon) {
    daemon.kill();
    daemon.launch();
}

/// Repeats `attach` until there is a daemon that answers.
pub fn attach<T>(daemon: &Daemon, vm: &str, attach: impl Fn(UnixStream) -> std::io::Result<T>) -> T {
    eventually(vm, || UnixStream::connect(socket(daemon, vm)).and_then(&attach).ok())
}

pub fn attach_vmxnet3(daemon: &Daemon, vm: &str) -> Client {
    attach(daemon, vm, |stream| {
        let mut vmm = Client::new(stream);
        vmm.version().map_err(std::io::Error::other)?;
        Ok(vmm)
    })
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
        self.vmm = Some(attach(daemon, vm, |stream| {
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
        wait_until("a frame between honest VMs", || receiver.rx.take().is_some());
        wait_until("its chain", || self.tx.take().is_some());
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
            let deadline = Instant::now() + LONGEST;
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
