//! A frame on its way through the stages.

use vmlane_port::{FramePort, Token, TxFrame};

use crate::Slot;
use crate::handover::Origin;
use crate::ingress::Checked;
use crate::multicast::Group;

/// A frame that was fetched from a port.
///
/// The frame stays where its port stored it. Were it moved, the copy would load as one word what was just
/// stored as two, and wait until all stores to the receivers' memory before it are done.
pub struct Fetched<'f, 'a> {
    pub end: &'a dyn FramePort,
    pub token: Token,
    pub tx: &'f TxFrame<'a>,
}

/// A frame that was admitted, with what the stages know of it.
#[derive(Clone, Copy)]
pub struct Flight<'f> {
    pub sent: Checked<'f>,
    /// Where it comes from.
    pub slot: Slot,
    pub group: u16,
    pub uplink: bool,
    /// Another worker handed it over: it goes to ports of this one only.
    pub remote: bool,
    pub origin: Origin,
    /// The port that it was fetched from, and what that one calls it.
    pub end: &'f dyn FramePort,
    pub token: Token,
    pub vlan: u16,
    /// Of the tables by which it found its way, where another frame with its headers would go the same way
    /// as long as they stay what they are, and no other port would get it.
    pub epoch: Option<u64>,
    /// Its burst has more frames behind it, and it is worth while to wait for them.
    pub more: bool,
    /// It may be merged with others.
    pub merges: bool,
    /// What it is, if it goes to a group address.
    pub multicast: Group,
}
