//! A VM's device as its vhost-user session drives it.

use std::sync::Arc;

use crate::virtio::vhost::{Lines, Setup, VhostDevice};
use vmlane_wire::virtio::feature;
use vmlane_wire::virtio_vsock::{SEQPACKET, STREAM};

use super::events::{EVENTS, Reset, send_reset};
use super::port::Port;
use super::workers::Home;

/// Receive, transmit, events; front ends mostly keep the last one to themselves.
const QUEUES: u16 = 3;

pub struct VsockDevice {
    cid: u32,
    home: Home,
    lines: Arc<dyn Lines>,
    running: bool,
    reset: Reset,
}

impl VsockDevice {
    pub const QUEUES: u16 = QUEUES;

    /// The device of the VM `cid`, which its worker knows.
    pub fn new(cid: u32, home: impl Into<Home>, lines: Arc<dyn Lines>) -> VsockDevice {
        VsockDevice { cid, home: home.into(), lines, running: false, reset: Reset::default() }
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
        if self.reset.is_due(&setup) {
            match send_reset(&setup) {
                Ok(true) => self.lines.call(EVENTS),
                Ok(false) => {}
                Err(why) => {
                    tracing::warn!(cid = self.cid, %why, "a guest did not hear that its connections ended")
                }
            }
        }
        let Some(port) = Port::new(self.cid, setup, self.lines.clone()) else { return };
        self.running = true;
        self.home.with(|worker| worker.attach(self.cid, port));
    }

    fn stop(&mut self) {
        if std::mem::take(&mut self.running) {
            self.home.with(|worker| worker.detach(self.cid));
        }
    }

    fn gone(&mut self) {
        self.reset = Reset::default();
        self.home.with(|worker| worker.gone(self.cid));
    }
}

impl Drop for VsockDevice {
    fn drop(&mut self) {
        self.stop();
    }
}
