//! What workers of streams count.

use vmlane_stats::counters;

counters! {
    /// What the workers did, all of them together.
    pub struct WorkerStats {
        /// Bytes copied from end to end.
        bytes,
        /// Turns that moved something.
        turns,
        /// Streams put to sleep.
        sleeps,
        /// Times a worker parked.
        parks,
        /// Streams joined.
        joined,
        /// Streams ended because an end broke the rules of its ring.
        broken,
        /// Streams ended because our own code panicked on them.
        panics,
        /// Bytes kept for a peer after their sender had left.
        overflow_bytes,
        /// Bytes lost because their sender left and its budget was spent.
        lost_bytes,
        /// Safety net: notices that had got lost. Stays 0 unless there is a bug here or in a guest.
        lost_notices,
        /// Safety net: bytes taken without a notice from a sender that stood still.
        still_senders,
        /// Turns put off because the opener of the stream had used up its share of the round.
        deferred,
        /// Rings topped up that their readers had made room in without announcing it yet.
        refills,
    }
}
