//! Shaping: how much a port may send and receive, by VMware's three numbers.
//!
//! *In* is from the VM into the switch, *out* from the switch to the VM, as in vSphere's words ingress and
//! egress. Each has a [`Bucket`] of its own. What is shaped in stays in its guest's ring until there are
//! tokens ([`ShapedPort`] fetches nothing before): the guest waits, nothing is dropped. What is shaped out
//! waits in a bounded queue of copies ([`FrameQueue`]): its sender has its frame back at once, and what does
//! not fit is dropped. Senders share that queue by their shares.
//!
//! A link that the operator set down lets nothing through: what its guest sends is dropped, and what is for
//! it.
//!
//! A port is wrapped only while any of that concerns it, or has: others pay nothing.

mod bucket;
mod port;
mod queue;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use vmlane_port::{Offload, RxFrame, TxFrame};

use crate::ingress::MAX_SEGMENTS;
use crate::pending::Claim;
use crate::spec::Shape;
use bucket::Bucket;
pub use port::ShapedPort;
pub use queue::{FrameQueue, LEAST_BYTES, MOST_BYTES};

/// The shortest frame of Ethernet, without its check sequence.
const SHORTEST: u64 = 60;

/// Bytes of a super-frame once it is cut: its headers in front of each segment.
fn cut_bytes(len: usize, header: usize, mss: usize) -> u64 {
    let payload = len.saturating_sub(header);
    let segments = payload.div_ceil(mss.max(1)).clamp(1, MAX_SEGMENTS);
    (payload + segments * header) as u64
}

/// Bytes of a frame on a wire, from its first address to the end of its payload. Preamble, tag, check
/// sequence and the gap between frames are not counted.
fn sent_bytes(frame: &TxFrame<'_>) -> u64 {
    let bytes = match frame.offload {
        Offload::Segment { header, mss } | Offload::Tunnel { header, mss, .. } if mss > 0 => {
            cut_bytes(frame.len(), header.into(), mss.into())
        }
        _ => frame.len() as u64,
    };
    bytes.max(SHORTEST)
}

/// The same of a frame that arrives.
pub fn received_bytes(frame: &RxFrame<'_>) -> u64 {
    let bytes = match frame.aggregate {
        Some(aggregate) => cut_bytes(frame.len(), aggregate.header.into(), aggregate.mss.into()),
        None => frame.len() as u64,
    };
    bytes.max(SHORTEST)
}

/// From the VM into the switch.
struct Input {
    bucket: Bucket,
    /// Nothing was fetched since then for want of tokens.
    blocked: Option<Instant>,
}

/// From the switch to the VM.
struct Output {
    bucket: Bucket,
    /// None: there was no memory for it. What has no token is dropped then.
    queue: Option<FrameQueue>,
    /// Since when frames wait.
    waiting: Option<Instant>,
    /// Since when the guest has had no buffers for the first frame of the queue.
    refused: Option<Instant>,
}

/// What shapes one port, or keeps everything from it.
pub struct Shaper {
    /// The operator set the link down: no frame passes.
    down: bool,
    input: Option<Input>,
    output: Option<Output>,
}

impl Shaper {
    /// With full buckets and an empty queue, which is allocated here.
    pub fn new(shape: Shape, down: bool, now: Instant) -> Shaper {
        let input = shape.input.map(|rate| Input { bucket: Bucket::new(rate, now), blocked: None });
        let output = shape.output.map(|rate| {
            let queue = FrameQueue::new(&rate).inspect_err(|error: &io::Error| {
                tracing::error!(%error, "no memory for the queue of a shaped port: frames are dropped instead");
            });
            Output { bucket: Bucket::new(rate, now), queue: queue.ok(), waiting: None, refused: None }
        });
        Shaper { down, input, output }
    }

    /// Does it limit anything?
    pub fn limits(&self) -> bool {
        self.down || self.input.is_some() || self.output.is_some()
    }

    /// Does it keep everything from the port?
    pub fn is_down(&self) -> bool {
        self.down
    }

    /// As for a port to which something was attached just now.
    fn forget(&mut self) {
        if let Some(input) = &mut self.input {
            input.blocked = None;
        }
        if let Some(output) = &mut self.output {
            (output.waiting, output.refused) = (None, None);
            output.queue.iter_mut().for_each(FrameQueue::clear);
        }
    }
}

/// Where a port's shaper is while no end has it. The worker's port and the end share it; neither reads it
/// while frames flow.
#[derive(Clone, Default)]
pub struct ShaperCell {
    shaper: Arc<Mutex<Option<Box<Shaper>>>>,
    /// Whose frames are delivered next: owner and shares.
    claim: Arc<AtomicU32>,
}

impl ShaperCell {
    /// In force from the end's next refresh on, or for the next end.
    pub fn put(&self, shaper: Box<Shaper>) {
        *self.shaper.lock() = Some(shaper);
    }

    /// An end is done with its shaper. One that was put meanwhile counts.
    fn give_back(&self, mut shaper: Box<Shaper>) {
        shaper.forget();
        self.shaper.lock().get_or_insert(shaper);
    }

    /// None: the port is not shaped, or its end has the shaper.
    pub fn take(&self) -> Option<Box<Shaper>> {
        self.shaper.lock().take()
    }

    /// The worker sets whose frames come next.
    #[inline]
    pub fn set_claim(&self, claim: Claim) {
        self.claim.store(u32::from(claim.owner) << 16 | u32::from(claim.shares), Ordering::Relaxed);
    }

    /// What it set.
    fn claim(&self) -> Claim {
        let word = self.claim.load(Ordering::Relaxed);
        Claim { owner: (word >> 16) as u16, shares: word as u16 }
    }
}
