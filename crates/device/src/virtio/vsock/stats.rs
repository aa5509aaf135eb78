//! What the worker counts.

use vmlane_stats::{Kept, counters};

counters! {
    /// What the worker did.
    pub struct VsockStats {
        /// Packets that guests sent.
        packets,
        /// Payload bytes delivered.
        bytes,
        /// Of those, bytes that streams' workers go on with: to VMCI guests and to the host.
        relayed_bytes,
        /// Descriptors read from guests' rings.
        descriptors,
        /// Turns that a VM did not have because it had had its share of the worker.
        deferred,
        /// Packets answered with RST.
        refused,
        /// Packets whose source was not their sender.
        forged,
        /// Chains that are no packets.
        malformed,
        /// Connections reset because their receiver had no buffers for too long.
        stalled,
        /// Times the worker slept.
        sleeps,
        /// Faults of our own that were contained.
        panics,
    }
}

counters! {
    /// What one VM's device did.
    pub struct GuestCounts {
        /// Packets that the guest sent.
        packets_sent,
        /// Packets that it was given.
        packets_received,
        /// Payload bytes of those that it sent and that were delivered.
        bytes_sent,
        /// Payload bytes that it was given.
        bytes_received,
        /// Its packets that were answered with RST.
        refused,
        /// Its packets whose source was another one.
        forged,
        /// Its chains that are no packets.
        malformed,
        /// Of those, connects because it had as many connections as it may.
        over_connections,
        /// Connections reset because it had no buffers for too long.
        stalled,
        /// Turns that it did not have because it had had its share of the worker.
        deferred,
        /// Faults of our own that were contained while its worker served it.
        panics,
    }
}

/// They may outlive the daemon.
pub type GuestStats = Kept<GuestCounts>;
