//! One thread, no waiting: what moving bytes from a ring to another costs at the least.

use std::io;
use std::time::{Duration, Instant};

use super::memory::Mapping;
use super::one_way::RING;
use crate::report::Sample;

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

/// Bytes of a page, and of the memory in which the pages of [`copy_pages`] lie.
const PAGE: usize = 4096;
const MEMORY: usize = 32 << 20;

/// The same for rings whose pages lie anywhere in a guest's memory, as queue pairs' do: a page at a time.
pub fn copy_pages(block: usize, length: Duration) -> io::Result<Sample> {
    assert!(block >= PAGE && RING.is_multiple_of(block));
    let from = Mapping::new(MEMORY)?;
    let mut to = Mapping::new(MEMORY)?;
    let [sources, targets] = [1, 2].map(anywhere);
    let mut laps = 0;
    let start = Instant::now();
    while start.elapsed() < length {
        for (source, target) in sources.iter().zip(&targets) {
            to.copy_from(*target, &from, *source, PAGE);
        }
        laps += 1;
    }
    Ok(Sample::gbits(laps * RING as u64, start.elapsed()))
}

/// Where the pages of a ring lie: no two in the same place, in no order.
fn anywhere(seed: u64) -> Vec<usize> {
    let mut state = seed;
    let mut pages: Vec<(u64, usize)> = (0..MEMORY / PAGE)
        .map(|page| {
            // Knuth's generator; its upper bits are the random ones.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32, page * PAGE)
        })
        .collect();
    pages.sort_unstable();
    pages.into_iter().map(|(_, at)| at).take(RING / PAGE).collect()
}

/// Where frames of one length lie at their sender and go to at their receiver.
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    /// Bytes of a frame; one every `stride` bytes, `frames` of them.
    pub len: usize,
    pub stride: usize,
    pub frames: usize,
    /// Bytes of its first buffer; one every `head_stride` bytes, `heads` of them.
    pub head: usize,
    pub head_stride: usize,
    pub heads: usize,
    /// Bytes of each further buffer; `bodies` of them side by side.
    pub body: usize,
    pub bodies: usize,
}

/// Copies frames into a receiver's buffers, round and round: what a NIC has to do at the least.
pub fn copy_frames(scatter: Scatter, length: Duration) -> io::Result<Sample> {
    let Scatter { len, stride, frames, head, head_stride, heads, body, bodies } = scatter;
    let from = Mapping::new(stride * frames)?;
    let mut to_heads = Mapping::new(head_stride * heads)?;
    let mut to_bodies = Mapping::new(body * bodies)?;
    let (mut next_head, mut next_body, mut copied) = (0, 0, 0);
    let start = Instant::now();
    while start.elapsed() < length {
        for frame in 0..frames {
            let mut at = head.min(len);
            to_heads.copy_from(next_head * head_stride, &from, frame * stride, at);
            next_head = (next_head + 1) % heads;
            while at < len {
                let here = body.min(len - at);
                to_bodies.copy_from(next_body * body, &from, frame * stride + at, here);
                next_body = (next_body + 1) % bodies;
                at += here;
            }
        }
        copied += (frames * len) as u64;
    }
    Ok(Sample::gbits(copied, start.elapsed()))
}
