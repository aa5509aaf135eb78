//! A frame that a port lends, and where it comes from.

use vmlane_port::{FramePort, Token, TxFrame};

use crate::Slot;
use crate::handover::Lender;
use crate::multicast::Group;

/// Where a frame comes from.
#[derive(Clone, Copy)]
pub struct Origin<'a> {
    pub slot: Slot,
    pub group: u16,
    pub uplink: bool,
    /// Another worker handed it over: it goes to ports of this one only.
    pub remote: bool,
    pub lender: Lender,
    pub token: Token,
    pub vlan: u16,
    /// What lent it.
    pub end: &'a dyn FramePort,
    /// Its burst has more frames behind it, and it is worth while to wait for them.
    pub more: bool,
    /// It may be merged with others.
    pub merges: bool,
    /// What it is, if it goes to a group address.
    pub multicast: Group,
}

/// A frame and what lent it.
///
/// The frame stays where its port stored it. Were it moved, the copy would load as one word what was just stored as two, and
/// wait until all stores to the receivers' memory before it are done.
pub struct Lent<'f, 'a> {
    pub end: &'a dyn FramePort,
    pub token: Token,
    pub tx: &'f TxFrame<'a>,
}
