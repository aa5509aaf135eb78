//! Rings in a small memory for the virtio targets.

use std::sync::Arc;

use vmlane_device::virtio::queue::Segment;
use vmlane_guestsim::Ram;
use vmlane_guestsim::virtio::DriverRing;

use crate::Input;

pub const SIZE: u16 = 16;

pub fn ram() -> Arc<Ram> {
    Arc::new(Ram::new(2 << 20))
}

/// An address that is often inside memory.
pub fn address(input: &mut Input<'_>, ring: &DriverRing) -> u64 {
    let [(low, len, _), (high, ..)] = ring.ram.regions();
    match input.byte() % 4 {
        0 => input.number::<8>(),
        1 => high + input.number::<3>() % len,
        2 => low + len - input.number::<1>(),
        _ => low + input.number::<3>() % len,
    }
}

pub fn piece(input: &mut Input<'_>, ring: &DriverRing) -> Segment {
    let addr = address(input, ring);
    let len = match input.byte() % 8 {
        0 => input.number::<4>() as u32,
        _ => input.number::<2>() as u32 % 5000,
    };
    Segment { addr, len, writable: input.byte() & 1 != 0 }
}

/// One thing that a driver, or no driver, does to its ring.
pub fn act(input: &mut Input<'_>, ring: &mut DriverRing) {
    match input.byte() % 8 {
        0..=2 => {
            let count = 1 + usize::from(input.byte() % 4);
            let pieces: Vec<Segment> = (0..count).map(|_| piece(input, ring)).collect();
            ring.post(&pieces);
        }
        3 if ring.ram.free_pages() > 8 => {
            let count = 1 + usize::from(input.byte() % 8);
            let pieces: Vec<Segment> = (0..count).map(|_| piece(input, ring)).collect();
            ring.post_indirect(&pieces);
        }
        4 => {
            let (addr, len) = (address(input, ring), input.number::<2>() as u32);
            ring.post_raw(addr, len, input.number::<2>() as u16);
        }
        5 => ring.publish(input.number::<1>() as u16 % (SIZE + 2)),
        _ => {
            let window = [&ring.descriptors, &ring.driver, &ring.device][usize::from(input.byte() % 3)];
            let at = input.number::<2>() as usize * 4 % window.len();
            if at + 4 <= window.len() {
                window.store_u32(at, input.number::<4>() as u32);
            }
        }
    }
}
