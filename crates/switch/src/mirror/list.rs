//! The mirrors that a switch has.

use std::sync::Arc;

use vmlane_port::wrap::FrameTap;
use vmlane_port::{PortId, PortStats};

use super::ring::Ring;
use super::spec::{MirrorDirection, MirrorSpec};

/// A mirror has at most the part of so many VMs in a round: its turn must not take long.
const MOST_PARTS: usize = 8;

/// All mirrors, in the order of their making.
#[derive(Default)]
pub struct Mirrors(pub(super) Vec<Mirror>);

/// One of them.
pub struct Mirror {
    pub(super) id: PortId,
    pub(super) spec: MirrorSpec,
    pub(super) from: Vec<String>,
    /// One for each source: sources may be of different workers.
    pub(super) taps: Vec<(String, Arc<dyn FrameTap>)>,
    pub(super) ring: Arc<Ring>,
    pub(super) stats: Arc<PortStats>,
}

impl Mirror {
    pub(super) fn parts(&self) -> usize {
        let directions = if self.spec.direction == MirrorDirection::Both { 2 } else { 1 };
        (self.from.len() * directions).clamp(1, MOST_PARTS)
    }
}
