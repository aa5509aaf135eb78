//! What the worker counts.

use vmlane_stats::counters;

counters! {
    /// What the worker did.
    pub struct WorkerStats {
        /// Rounds in which a frame moved, other than those of senders that were paused then.
        rounds,
        /// Sleeps of the shortest kind.
        naps,
        /// Longer sleeps, for which ports announce their next frame.
        sleeps,
        /// Faults of our own that were contained; each ended one port.
        panics,
    }
}
