//! Where in its rings the device is, kept for the next daemon.
//!
//! Positions are stored after each batch, in memory that outlives the daemon. A daemon that is killed
//! between showing completions and storing has shown more than is stored: completions of the present
//! lap that follow the stored position are its own, and state which descriptors they were for. Completions
//! behind a gap belong to a batch that the driver has not been shown (its first one is shown last): they
//! are taken back.

use vmlane_mem::Window;
use vmlane_wire::vmxnet3::desc::completion_generation;

use super::place::Place;
use crate::vmxnet3::setup::Ring;

/// Words of a queue.
const WORDS: usize = 4;

/// Stores positions of queue `number` of all.
#[inline]
pub fn store<const N: usize>(window: &Window, number: usize, places: [Place; N]) {
    for (word, place) in places.into_iter().enumerate() {
        window.store_u64((number * WORDS + word) * 8, place.to_word());
    }
}

/// Positions of queue `number` of all, in rings of these sizes.
pub fn load<const N: usize>(window: &Window, number: usize, sizes: [u16; N]) -> Option<[Place; N]> {
    let mut places = [Place::default(); N];
    for (word, (place, size)) in places.iter_mut().zip(sizes).enumerate() {
        *place = Place::from_word(window.load_u64((number * WORDS + word) * 8), size)?;
    }
    Some(places)
}

/// Leaves nothing that `load` takes for positions: those of the previous daemon are lost.
pub fn forget(window: &Window) {
    (0..window.len()).step_by(8).for_each(|at| window.store_u64(at, u64::MAX));
}

/// Bytes for so many queues.
pub const fn bytes(queues: usize) -> usize {
    queues * WORDS * 8
}

/// Finds completions that were shown behind `head`, in order, and takes back what lies behind a gap.
/// Returns where the next one goes.
pub fn reconcile(ring: &Ring, head: Place, mut shown: impl FnMut(u64, u64)) -> Place {
    let (mut place, mut next, mut gap) = (head, head, false);
    for _ in 0..ring.size {
        let index = usize::from(place.index);
        let high = ring.window.load_half(index, true);
        let ours = completion_generation(high) == place.generation();
        let low = ring.window.load_half(index, false);
        gap |= !ours;
        if !gap {
            shown(low, high);
            next = place.next(ring.size);
        } else if ours {
            ring.window.store_pair(index, [low, high ^ 1 << 63]);
        }
        place = place.next(ring.size);
    }
    next
}
