//! What the worker counts.

use vmlane_stats::counters;

counters! {
    /// What the worker did.
    pub struct VsockStats {
        /// Packets that guests sent.
        packets,
        /// Payload bytes delivered.
        bytes,
        /// Descriptors read from guests' rings.
        descriptors,
        /// Turns that a VM did not have because it had had its share of the worker.
        deferred,
        /// Packets answered with RST.
        refused,
        /// Packets whose source was not their sender.
        forged,
        /// Chains that are no packets.
        nonsense,
        /// Connections reset because their receiver had no buffers for too long.
        stalled,
        /// Times the worker slept.
        sleeps,
        /// Faults of our own that were contained.
        panics,
    }
}
