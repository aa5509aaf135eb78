//! Whose frame it is that another worker delivers.

use crate::Slot;

/// The port that has a frame in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub slot: Slot,
    pub owner: u16,
    /// Which of the ends that were attached to the port, counted.
    pub attachment: u32,
}
