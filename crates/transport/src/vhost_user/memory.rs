//! The guest's memory as a front end describes it: by its own addresses and the guest's.

use std::os::fd::OwnedFd;

use vmlane_mem::{MapError, MapRequest, MemoryMap};
use vmlane_wire::vhost_user::MemoryRegion;

use crate::stats::MemoryBound;

/// Regions that ADD_MEM_REG may bring, all in all.
pub const MAX_SLOTS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    user: u64,
    guest: u64,
    size: u64,
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
        let slot = Slot { user: region.user.get(), guest: region.guest.get(), size: region.size.get() };
        let shape = MapError::Shape { guest: slot.guest, len: slot.size, offset: region.offset.get() };
        let overlaps =
            |other: &Slot| slot.user < other.user + other.size && other.user < slot.user + slot.size;
        if slot.user.checked_add(slot.size).is_none() {
            return Err(shape);
        }
        if self.slots.iter().any(overlaps) {
            return Err(MapError::Overlap { guest: slot.guest, len: slot.size });
        }
        let (guest, len, offset) = (slot.guest, slot.size, region.offset.get());
        let map = bound.map(&self.map, MapRequest { guest, len, offset, fd, writable: true })?;
        let mut slots = self.slots.clone();
        slots.push(slot);
        Ok(Memory { map, slots })
    }

    /// Without a region; None if there is no such one.
    pub fn without(&self, region: &MemoryRegion) -> Option<Memory> {
        let slot = Slot { user: region.user.get(), guest: region.guest.get(), size: region.size.get() };
        let at = self.slots.iter().position(|other| *other == slot)?;
        let map = self.map.unmap(slot.guest, slot.size).ok()?;
        let mut slots = self.slots.clone();
        slots.remove(at);
        Some(Memory { map, slots })
    }

    /// The guest's address for one of the front end's.
    pub fn guest(&self, user: u64) -> Option<u64> {
        let inside = |slot: &&Slot| user >= slot.user && user - slot.user < slot.size;
        self.slots.iter().find(inside).map(|slot| slot.guest + (user - slot.user))
    }
}
