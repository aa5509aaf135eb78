//! What is known of a port outside of its worker.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64};

use crate::Slot;
use crate::carrier::Carrier;
use crate::handover::RemoteState;

/// No port's slot.
pub const NOWHERE: Slot = Slot::MAX;

/// What others may see of a port without asking the worker.
#[derive(Debug, Default)]
pub struct PortState {
    pub attached: AtomicBool,
    pub stalled: AtomicBool,
    /// Of the other end's link, if it is direct.
    pub carrier: Carrier,
    /// Frames on their way to it over an impaired wire.
    pub waiting: AtomicU32,
    /// The address in force; 0 if unknown.
    pub mac: AtomicU64,
    /// Where its last frame to one receiver went: that port's slot; [`NOWHERE`] if there was none.
    pub last_to: AtomicU16,
    /// For the switch's other workers.
    pub remote: RemoteState,
}
