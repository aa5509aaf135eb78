//! What the front end has said about each ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vmlane_device::virtio::log::DirtyLog;
use vmlane_device::virtio::queue::Record;
use vmlane_device::virtio::vhost::RingSetup;
use vmlane_wire::vhost_user::RingAddress;

use super::memory::Memory;

/// One ring. It runs once it has a size, addresses and a kick, and is enabled.
#[derive(Debug, Default)]
pub struct Ring {
    pub size: u16,
    pub address: Option<RingAddress>,
    /// SET_VRING_BASE, then how far the device came.
    pub position: Arc<AtomicU32>,
    /// Between SET_VRING_KICK and GET_VRING_BASE.
    pub started: bool,
    pub enabled: bool,
    /// It begins anew, perhaps after a back end that died: where, is in its record if it has one, else in what the front end
    /// has said.
    pub recovers: bool,
}

impl Ring {
    /// Started and enabled: it runs where it has a size, and addresses in memory.
    pub fn may_run(&self) -> bool {
        self.started && self.enabled
    }

    /// The ring in the guest's addresses; None: it does not run, or not there.
    pub fn setup(&self, memory: &Memory, record: Option<Record>, log: Option<DirtyLog>) -> Option<RingSetup> {
        let address = self.address.filter(|_| self.may_run() && self.size > 0)?;
        Some(RingSetup {
            size: self.size,
            descriptors: memory.guest(address.descriptors.get())?,
            driver: memory.guest(address.available.get())?,
            device: memory.guest(address.used.get())?,
            position: self.position.clone(),
            record,
            log,
        })
    }

    pub fn set_position(&mut self, position: u32) {
        self.position.store(position, Ordering::Release);
    }
}
