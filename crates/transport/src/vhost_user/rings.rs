//! What the front end has announced about each ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vmlane_device::virtio::log::DirtyLog;
use vmlane_device::virtio::queue::Record;
use vmlane_device::virtio::vhost::RingSetup;
use vmlane_state::{Reader, Writer};
use vmlane_wire::vhost_user::RingAddress;
use vmlane_wire::virtio::MAX_RING;
use zerocopy::{FromBytes, IntoBytes};

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
    /// It begins anew, perhaps after a back end that died: where, is in its record if it has one, else in
    /// what the front end has announced.
    pub recovers: bool,
    /// It ran in a previous daemon, and not in this one yet. Never recorded: should this daemon die, too, it
    /// is for the next one what it is for this one.
    pub continues: bool,
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

    /// What is recorded of it. Its position is right while it does not run.
    pub fn record(&self) -> Vec<u8> {
        let mut record = Writer::new();
        record.u32(self.size.into()).u32(self.position.load(Ordering::Acquire));
        record.flag(self.started).flag(self.enabled).flag(self.recovers);
        record.bytes(self.address.as_ref().map_or(&[], |address| address.as_bytes()));
        record.0
    }

    /// What a previous daemon recorded.
    pub fn restore(record: &[u8]) -> Option<Ring> {
        let mut reader = Reader::new(record);
        let size = u16::try_from(reader.u32()?).ok().filter(|size| *size <= MAX_RING)?;
        let position = Arc::new(AtomicU32::new(reader.u32()?));
        let (started, enabled, recovers) = (reader.flag()?, reader.flag()?, reader.flag()?);
        let address = reader.bytes()?;
        reader.end()?;
        let address = match address {
            [] => None,
            address => Some(RingAddress::read_from_bytes(address).ok()?),
        };
        Some(Ring { size, address, position, started, enabled, recovers, continues: started })
    }
}
