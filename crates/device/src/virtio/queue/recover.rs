//! Where a ring continues whose device died.

use std::sync::atomic::Ordering;

use vmlane_mem::MemoryMap;
use vmlane_wire::virtio::{desc, feature};

use super::record::Record;
use crate::virtio::vhost::RingSetup;

/// User Mode Linux begins packed rings at 0 without the mark of the first lap (arch/um/drivers/virtio_uml.c,
/// vu_setup_vq). After a whole lap, which that position would mean, the first descriptor has the device's
/// mark; where it does not, the ring is at its beginning.
///
/// DPDK's virtio-user knows where the driver is and nothing of the device (drivers/net/virtio/virtio_user,
/// virtio_user_kick_queue; as a back end, DPDK takes the one for the other). A device at 0 without the mark
/// would be a whole lap behind, or more.
fn first_lap(setup: &RingSetup, features: u64, memory: &MemoryMap) -> Option<u32> {
    const WRAP: u32 = 1 << 15;
    const BEGIN: u32 = WRAP | WRAP << 16;
    let position = setup.position.load(Ordering::Acquire);
    if features & feature::PACKED == 0 {
        return None;
    }
    if position >> 16 == 0 && position & WRAP != 0 {
        return Some(position | position << 16);
    }
    if position != 0 {
        return None;
    }
    let mut flags = [0; 2];
    memory.read(setup.descriptors.checked_add(14)?, &mut flags).ok()?;
    (u16::from_le_bytes(flags) & desc::USED == 0).then_some(BEGIN)
}

/// The index of the used ring. `noted`: a record that is written before the ring is, and so may be ahead of
/// it: what it holds is shown.
fn split(setup: &RingSetup, noted: Option<&Record>, memory: &MemoryMap) -> Option<u32> {
    let at = setup.device.checked_add(2)?;
    let mut index = [0; 2];
    memory.read(at, &mut index).ok()?;
    let index = u16::from_le_bytes(index);
    let ahead = noted.map(Record::split_used).filter(|used| used.wrapping_sub(index) <= setup.size);
    if let Some(used) = ahead.filter(|used| *used != index) {
        memory.write(at, &used.to_le_bytes()).ok()?;
    }
    Some(ahead.unwrap_or(index).into())
}

/// Where a ring whose device died continues, if its record has it: a position as SET_VRING_BASE has it. The
/// record and the ring are the VMM's and the guest's: what comes out is checked by [`super::Queue::new`].
pub fn recover(setup: &RingSetup, features: u64, memory: &MemoryMap) -> Option<u32> {
    let known = setup.record.as_ref().filter(|record| record.is_of(setup.size));
    if features & feature::PACKED == 0
        && let Some(record) = &setup.record
    {
        // Also where nothing was recorded: Cloud Hypervisor, which keeps such memory, reports where the
        // driver is instead of how far a device came (virtio-devices/src/vhost_user/vu_common_ctrl.rs,
        // setup_vhost_user).
        return split(setup, known.filter(|_| record.is_own()), memory);
    }
    let Some(record) = known else { return first_lap(setup, features, memory) };
    const WRAP: u16 = 1 << 15;
    let (new, old, count) = record.places();
    let (index, lap) = (old & !WRAP, old & WRAP != 0);
    if index >= setup.size || new & !WRAP >= setup.size || count > setup.size {
        return None;
    }
    let ring = memory.window(setup.descriptors, desc::SIZE * usize::from(setup.size), true).ok()?;
    // The device's mark at the old place, whatever the driver has put there since: it was published.
    let published = |word: u64| (word >> 48) as u16 & desc::USED != 0;
    if count > 0 && published(ring.load_half(index.into(), true)) != lap {
        // Some may have been stored, but not the first one, which comes last.
        for at in (0..usize::from(count)).rev() {
            let (place, word) = record.noted(at);
            if place >= setup.size {
                return None;
            }
            ring.store_u64(desc::SIZE * usize::from(place) + 8, word);
        }
    }
    record.packed(new, new, 0);
    Some(u32::from(new) | u32::from(new) << 16)
}
