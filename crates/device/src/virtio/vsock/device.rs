//! A VM's device as its vhost-user session drives it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use vmlane_state::Found;

use crate::virtio::queue::Record;
use crate::virtio::vhost::{Lines, Setup, VhostDevice, VhostSurvives};
use vmlane_wire::virtio::feature;
use vmlane_wire::virtio_vsock::{SEQPACKET, STREAM};

use super::events::{EVENTS, Reset, send_reset};
use super::kept::Kept;
use super::port::Port;
use super::receive::Shares;
use super::workers::Home;

/// Receive, transmit, events; front ends mostly keep the last one to themselves.
const QUEUES: u16 = 3;

pub struct VsockDevice {
    cid: u32,
    home: Home,
    lines: Arc<dyn Lines>,
    running: bool,
    reset: Reset,
    /// Of the session that runs, or of the next one.
    kept: Arc<Kept>,
}

impl VsockDevice {
    pub const QUEUES: u16 = QUEUES;

    /// The device of the VM `cid`, which its worker knows.
    pub fn new(cid: u32, home: impl Into<Home>, lines: Arc<dyn Lines>) -> io::Result<VsockDevice> {
        let (home, kept) = (home.into(), Kept::create()?);
        Ok(VsockDevice { cid, home, lines, running: false, reset: Reset::default(), kept })
    }

    fn renew(&mut self) {
        match Kept::create() {
            Ok(kept) => self.kept = kept,
            Err(error) => tracing::error!(cid = self.cid, %error, "no memory for what a next daemon needs"),
        }
    }
}

impl VhostDevice for VsockDevice {
    fn features(&self) -> u64 {
        feature::VERSION_1 | feature::INDIRECT | feature::EVENT_INDEX | feature::PACKED | STREAM | SEQPACKET
    }

    fn queues(&self) -> u16 {
        QUEUES
    }

    fn config(&self) -> Vec<u8> {
        u64::from(self.cid).to_le_bytes().to_vec()
    }

    fn run(&mut self, setup: Setup) {
        if setup.resumed {
            self.reset = Reset::Done;
        }
        if self.reset.take_due(&setup) {
            match send_reset(&setup) {
                Ok(true) => self.lines.call(EVENTS),
                Ok(false) => {}
                Err(why) => {
                    tracing::warn!(cid = self.cid, %why, "a guest was not notified that its connections ended")
                }
            }
        }
        let (lines, kept) = (self.lines.clone(), self.kept.clone());
        self.running = self.home.with(|worker| {
            let shares = Shares { lines, kept, transaction: worker.transaction().clone() };
            let port = Port::new(self.cid, setup, shares);
            port.map(|port| worker.attach(self.cid, port)).is_some()
        });
    }

    fn stop(&mut self) {
        if std::mem::take(&mut self.running) {
            self.home.with(|worker| worker.detach(self.cid));
        }
    }

    fn gone(&mut self) {
        self.reset = Reset::default();
        self.home.with(|worker| worker.gone(self.cid));
        self.renew();
    }

    fn survival(&mut self) -> Option<&mut dyn VhostSurvives> {
        Some(self)
    }
}

impl VhostSurvives for VsockDevice {
    fn files(&self) -> Vec<(&'static str, OwnedFd)> {
        // One that cannot be held is missing for the next daemon, as any other file that was lost.
        self.kept.file().try_clone().map(|file| ("state", file)).into_iter().collect()
    }

    fn adopt(&mut self, found: &mut Found) -> Result<(), String> {
        let file = found.take("state").ok_or("the file of its state is missing")?;
        self.kept = Kept::open(file).map_err(|error| error.to_string())?;
        self.home.with(|worker| worker.restore(self.cid, self.kept.clone()));
        Ok(())
    }

    fn abandon(&mut self) {
        self.home.with(|worker| worker.gone(self.cid));
        self.renew();
    }

    fn record(&self, ring: usize, size: u16) -> Option<Record> {
        self.kept.record(ring, size)
    }
}

impl Drop for VsockDevice {
    fn drop(&mut self) {
        self.stop();
    }
}
