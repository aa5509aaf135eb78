//! What the front end has announced and the back end agreed to: all of a session but its descriptors for
//! events.

use vmlane_device::virtio::log::DirtyLog;
use vmlane_device::virtio::queue::Record;
use vmlane_mem::MemoryMap;
use vmlane_state::{Found, Reader, Records, Writer};
use vmlane_wire::vhost_user::{InflightArea, LogBase};
use zerocopy::{FromBytes, IntoBytes};

use super::memory::Memory;
use super::rings::Ring;
use super::shared::{self, Inflight};
use crate::kept::found_file;
use crate::stats::MemoryBound;

/// Kinds of records. Those of rings are followed by the number of the ring.
mod record {
    pub const SETTINGS: u32 = 2;
    pub const MEMORY: u32 = 3;
    pub const RING: u32 = 4;
}

#[derive(Debug, Default)]
pub struct Agreed {
    pub features: u64,
    pub protocol: u64,
    pub status: u8,
    pub memory: Memory,
    pub rings: Vec<Ring>,
    /// Memory of the front end that notes what is in flight, and where dirty pages are logged.
    pub inflight: Option<(InflightArea, Inflight)>,
    pub log: Option<(LogBase, DirtyLog)>,
}

impl Agreed {
    /// Nothing yet.
    pub fn new(rings: u16) -> Agreed {
        Agreed { rings: (0..rings).map(|_| Ring::default()).collect(), ..Agreed::default() }
    }

    /// A file of the front end was cut short.
    pub fn memory_lost(&self) -> bool {
        memory_lost(&self.memory.map, self.inflight(), self.log())
    }

    /// The same later, for what is in force now.
    pub fn watch(&self) -> impl Fn() -> bool + Send + 'static {
        let (map, inflight, log) = (self.memory.map.clone(), self.inflight().cloned(), self.log().cloned());
        move || memory_lost(&map, inflight.as_ref(), log.as_ref())
    }

    fn inflight(&self) -> Option<&Inflight> {
        self.inflight.as_ref().map(|(_, inflight)| inflight)
    }

    pub fn log(&self) -> Option<&DirtyLog> {
        self.log.as_ref().map(|(_, log)| log)
    }

    /// What the front end keeps of a ring.
    pub fn record(&self, ring: usize, size: u16) -> Option<Record> {
        self.inflight()?.record(ring, size)
    }

    /// What the next daemon must know.
    pub fn records(&self) -> Records {
        let mut settings = Writer::new();
        settings.u64(self.features).u64(self.protocol).u8(self.status);
        settings.bytes(self.inflight.as_ref().map_or(&[], |(area, _)| area.as_bytes()));
        settings.bytes(self.log.as_ref().map_or(&[], |(base, _)| base.as_bytes()));
        let single = [(record::SETTINGS, settings.0), (record::MEMORY, self.memory.record())];
        let single = single.into_iter().map(|(kind, bytes)| ((kind, 0, 0), bytes));
        let rings = (0..).zip(&self.rings).map(|(number, ring)| ((record::RING, number, 0), ring.record()));
        single.chain(rings).collect()
    }

    /// Names of the files in force.
    pub fn names(&self) -> Vec<String> {
        let inflight = self.inflight.as_ref().map(|(area, _)| inflight_name(area));
        let log = self.log.as_ref().map(|(base, _)| log_name(base));
        self.memory.names().chain(inflight).chain(log).collect()
    }

    /// What a previous daemon recorded, with the files that it held. A file that is lost is memory that is
    /// not there; a record that cannot be makes all of them worthless: None.
    pub fn restore(rings: u16, records: &Records, found: &mut Found, bound: &MemoryBound) -> Option<Agreed> {
        let mut agreed = Agreed::new(rings);
        for ((kind, number, _), bytes) in records {
            match *kind {
                record::SETTINGS => agreed.restore_settings(bytes, found)?,
                record::MEMORY => agreed.memory = Memory::restore(bytes, found, bound)?,
                record::RING => *agreed.rings.get_mut(*number as usize)? = Ring::restore(bytes)?,
                _ => {}
            }
        }
        Some(agreed)
    }

    fn restore_settings(&mut self, bytes: &[u8], found: &mut Found) -> Option<()> {
        let mut reader = Reader::new(bytes);
        (self.features, self.protocol, self.status) = (reader.u64()?, reader.u64()?, reader.u8()?);
        let (area, base) = (reader.bytes()?, reader.bytes()?);
        reader.end()?;
        if !area.is_empty() {
            let area = InflightArea::read_from_bytes(area).ok()?;
            let open = |file| Inflight::open(&area, &file, self.rings.len());
            self.inflight = found_file(found, &inflight_name(&area), open).map(|inflight| (area, inflight));
        }
        if !base.is_empty() {
            let base = LogBase::read_from_bytes(base).ok()?;
            let log = found_file(found, &log_name(&base), |file| shared::log(&base, &file));
            self.log = log.map(|log| (base, log));
        }
        Some(())
    }
}

pub fn inflight_name(area: &InflightArea) -> String {
    format!("s/inflight.{:x}.{:x}", area.size, area.offset)
}

pub fn log_name(base: &LogBase) -> String {
    format!("s/dirty.{:x}.{:x}", base.size, base.offset)
}

fn memory_lost(map: &MemoryMap, inflight: Option<&Inflight>, log: Option<&DirtyLog>) -> bool {
    map.poisoned() || inflight.is_some_and(Inflight::poisoned) || log.is_some_and(DirtyLog::poisoned)
}
