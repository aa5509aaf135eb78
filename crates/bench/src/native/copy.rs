//! One thread, no waiting: what moving bytes from a ring to another costs at the least.

use std::io;
use std::time::{Duration, Instant};

use super::memory::Mapping;
use super::{RING, Sample};

/// Copies blocks of `block` bytes from one ring's memory to another's, round and round.
pub fn copy_ring(block: usize, length: Duration) -> io::Result<Sample> {
    copy_blocks(block, block, RING, length)
}

/// The same between two areas of `area` bytes with a block every `stride` bytes.
pub fn copy_blocks(block: usize, stride: usize, area: usize, length: Duration) -> io::Result<Sample> {
    assert!(block > 0 && block <= stride && area.is_multiple_of(stride));
    let from = Mapping::new(area)?;
    let mut to = Mapping::new(area)?;
    let mut blocks = 0;
    let start = Instant::now();
    while start.elapsed() < length {
        for at in (0..area).step_by(stride) {
            to.copy_from(at, &from, at, block);
        }
        blocks += (area / stride) as u64;
    }
    Ok(Sample::gbits(blocks * block as u64, start.elapsed()))
}
