//! A NIC as its operator wants it, and what its control side counts.

use vmlane_stats::{Kept, counters};
use vmlane_wire::ethernet::Mac;

/// What an operator decides about a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetConfig {
    pub mac: Mac,
    /// The largest MTU of the guest that the port carries.
    pub mtu: u16,
    /// The most pairs of queues; at least 1.
    pub queues: u8,
    /// The guest may be given super-frames whole.
    pub lro: bool,
    /// Packed rings are on offer.
    pub packed: bool,
}

counters! {
    /// Counters of one NIC's control side.
    pub struct VirtioNetCounts {
        /// Times rings were started.
        starts,
        /// Times rings were stopped.
        stops,
        /// Rings that could not be started: their addresses or sizes make no sense.
        bad_rings,
        /// Rings that broke while they ran: chains that cannot be.
        broken_rings,
        /// Interrupts raised.
        calls,
    }
}

/// They may outlive the daemon.
pub type VirtioNetStats = Kept<VirtioNetCounts>;
