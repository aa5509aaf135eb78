//! How a mirror is configured, and what others see of it.

use std::sync::Arc;

use vmlane_port::{PortId, PortStats};

/// Which frames of a source are mirrored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MirrorDirection {
    /// Those that it sends into the switch.
    In,
    /// Those that it gets from the switch.
    Out,
    /// All.
    #[default]
    Both,
}

impl MirrorDirection {
    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            MirrorDirection::In => "in",
            MirrorDirection::Out => "out",
            MirrorDirection::Both => "both",
        }
    }

    /// The direction with a name.
    pub fn of_name(name: &str) -> Option<MirrorDirection> {
        [MirrorDirection::In, MirrorDirection::Out, MirrorDirection::Both]
            .into_iter()
            .find(|direction| direction.name() == name)
    }

    pub(super) fn sees_in(self) -> bool {
        self != MirrorDirection::Out
    }

    pub(super) fn sees_out(self) -> bool {
        self != MirrorDirection::In
    }
}

/// A mirror as the operator wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorSpec {
    pub name: String,
    /// The name of the port that gets the copies.
    pub to: String,
    pub direction: MirrorDirection,
    /// Copies carry this tag instead of their own; None: their own.
    pub vlan: Option<u16>,
    /// Bytes of each frame that are copied.
    pub snap: usize,
}

/// A mirror as it is.
#[derive(Clone, Debug)]
pub struct MirrorView {
    pub spec: MirrorSpec,
    /// Names of its sources, whether or not they exist.
    pub from: Vec<String>,
    /// Copies that were delivered are counted as sent (`tx_*`), those that were dropped by reason.
    pub stats: Arc<PortStats>,
}

/// Where a mirror's port sends its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// None: the port with that name does not exist.
    pub to: Option<PortId>,
    pub vlan: Option<u16>,
    /// Its part of a round, in parts of one VM.
    pub parts: usize,
}
