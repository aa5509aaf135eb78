//! What the worker counts.

use vmlane_stats::counters;

counters! {
    /// What the worker did.
    pub struct VsockStats {
        /// Packets that guests sent.
        packets,
        /// Payload bytes delivered.
        bytes,
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
