//! One thread, no waiting: what moving bytes from a ring to another costs at the least.

use std::io;
use std::time::{Duration, Instant};

use super::memory::Mapping;
use super::{RING, Sample};

/// Copies blocks of `block` bytes from one ring's memory to another's, round and round.
pub fn copy_ring(block: usize, length: Duration) -> io::Result<Sample> {
    assert!(block > 0 && RING.is_multiple_of(block));
    let from = Mapping::new(RING)?;
    let mut to = Mapping::new(RING)?;
    let mut laps = 0;
    let start = Instant::now();
    while start.elapsed() < length {
        for at in (0..RING).step_by(block) {
            to.copy_from(at, &from, at, block);
        }
        laps += 1;
    }
    Ok(Sample::gbits(laps * RING as u64, start.elapsed()))
}
