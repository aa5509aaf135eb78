//! The guest's memory as a front end describes it: by its own addresses and the guest's.

use std::os::fd::OwnedFd;

use vmlane_mem::{MapError, MapRequest, MemoryMap};
use vmlane_state::Found;
use vmlane_wire::vhost_user::MemoryRegion;
use zerocopy::{FromBytes, IntoBytes};

use crate::kept::{MemoryName, found_file};
use crate::stats::MemoryBound;

/// Regions that ADD_MEM_REG may bring, all in all.
pub const MAX_SLOTS: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Slot {
    user: u64,
    guest: u64,
    size: u64,
    /// In its file.
    offset: u64,
}

impl Slot {
    fn of(region: &MemoryRegion) -> Slot {
        let (user, guest) = (region.user.get(), region.guest.get());
        Slot { user, guest, size: region.size.get(), offset: region.offset.get() }
    }

    /// A request to remove a region does not state where it lies in its file.
    fn is(&self, other: &Slot) -> bool {
        (self.user, self.guest, self.size) == (other.user, other.guest, other.size)
    }

    fn name(&self) -> MemoryName {
        MemoryName { guest: self.guest, len: self.size, offset: self.offset, writable: true }
    }

    fn region(&self) -> MemoryRegion {
        let Slot { user, guest, size, offset } = *self;
        MemoryRegion { guest: guest.into(), size: size.into(), user: user.into(), offset: offset.into() }
    }
}

/// What the guest's addresses mean, and the front end's. Replaced as a whole on every change.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pub map: MemoryMap,
    slots: Vec<Slot>,
}

impl Memory {
    /// With one region more.
    pub fn with(&self, region: &MemoryRegion, fd: OwnedFd, bound: &MemoryBound) -> Result<Memory, MapError> {
        let slot = Slot::of(region);
        let shape = MapError::Shape { guest: slot.guest, len: slot.size, offset: slot.offset };
        let overlaps =
            |other: &Slot| slot.user < other.user + other.size && other.user < slot.user + slot.size;
        if slot.user.checked_add(slot.size).is_none() {
            return Err(shape);
        }
        if self.slots.iter().any(overlaps) {
            return Err(MapError::Overlap { guest: slot.guest, len: slot.size });
        }
        let (guest, len, offset) = (slot.guest, slot.size, slot.offset);
        let map = bound.map(&self.map, MapRequest { guest, len, offset, fd, writable: true })?;
        let mut slots = self.slots.clone();
        slots.push(slot);
        Ok(Memory { map, slots })
    }

    /// Without a region; None if there is no such one.
    pub fn without(&self, region: &MemoryRegion) -> Option<Memory> {
        let slot = Slot::of(region);
        let at = self.slots.iter().position(|other| other.is(&slot))?;
        let map = self.map.unmap(slot.guest, slot.size).ok()?;
        let mut slots = self.slots.clone();
        slots.remove(at);
        Some(Memory { map, slots })
    }

    /// Names of its files while they are held for the next daemon.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.slots.iter().map(|slot| slot.name().to_string())
    }

    /// What is recorded of it.
    pub fn record(&self) -> Vec<u8> {
        self.slots.iter().flat_map(|slot| slot.region().as_bytes().to_vec()).collect()
    }

    /// What a previous daemon recorded, as far as its files are there. None: no record of memory.
    pub fn restore(record: &[u8], found: &mut Found, bound: &MemoryBound) -> Option<Memory> {
        let regions = <[MemoryRegion]>::ref_from_bytes(record).ok()?;
        let mut memory = Memory::default();
        for region in regions {
            let name = Slot::of(region).name().to_string();
            let more = found_file(found, &name, |file| memory.with(region, file, bound));
            memory = more.unwrap_or(memory);
        }
        Some(memory)
    }

    /// The guest's address for one of the front end's.
    pub fn guest(&self, user: u64) -> Option<u64> {
        let inside = |slot: &&Slot| user >= slot.user && user - slot.user < slot.size;
        self.slots.iter().find(inside).map(|slot| slot.guest + (user - slot.user))
    }
}
