//! What a NIC's control side did, counted; and the driver's statistics, written where it reads them.

use std::sync::atomic::{AtomicU32, Ordering};

use vmlane_mem::Window;
use vmlane_stats::{Kept, counters};
use vmlane_wire::vmxnet3::shared::{QUEUE_SIZE, at};

use super::setup::Shared;

counters! {
    /// Counters of one NIC's registers and commands.
    pub struct NicCounts {
        /// Commands written.
        commands,
        /// Commands without a meaning, or of a later revision than the driver chose.
        unknown_commands,
        /// Commands that the vCPU did not wait for: the VMM posts writes, and guests suffer.
        posted_commands,
        /// Activations that succeeded.
        activations,
        /// Activations refused because of what the driver put into memory.
        refused_activations,
        /// Times the data path was stopped: QUIESCE and whatever implies it.
        quiesces,
        /// RESET commands.
        resets,
        /// Function resets by the VMM: power-on, reboot.
        function_resets,
        /// Changes of filter, features, scaling or moderation while active.
        updates,
        /// Times the driver asked for statistics.
        stats_reads,
        /// Changes of the link's state.
        link_changes,
        /// Trapped doorbells and interrupt masks.
        trapped_writes,
        /// Accesses to registers that do not exist, or of a width they do not have.
        register_holes,
        /// Values that a register or a block may not have; ignored.
        bad_values,
        /// Guest addresses that commands named and that are not in its memory.
        bad_addresses,
        /// Times memory was taken away under an active NIC.
        lost_memory,
    }
}

/// They may outlive the daemon.
pub type NicStats = Kept<NicCounts>;

/// Error code of a queue that stopped through no fault of the guest.
pub const QUEUE_LOST: u32 = 0x8000_0006;

/// Writes ten rows each into the descriptors of all queues, transmit queues first.
pub fn write_statistics(table: &Window, shared: &Shared) {
    let queues = shared.tx_stats.iter().chain(&shared.rx_stats);
    for (queue, counters) in queues.enumerate() {
        let row = |row: usize| queue * QUEUE_SIZE + at::STATISTICS + 8 * row;
        for (number, counter) in counters.0.iter().enumerate() {
            table.store_u64(row(number), counter.get());
        }
    }
}

/// Writes what stopped which queue. An activation that a fault of ours ended stopped them all.
pub fn write_status(table: &Window, shared: &Shared) {
    let otherwise = if shared.failed.load(Ordering::Acquire) { QUEUE_LOST } else { 0 };
    let errors = shared.tx_errors.iter().chain(&shared.rx_errors);
    for (queue, error) in errors.map(|error: &AtomicU32| error.load(Ordering::Acquire)).enumerate() {
        let error = if error == 0 { otherwise } else { error };
        table.store_u32(queue * QUEUE_SIZE + at::ERROR, error);
        table.store_u32(queue * QUEUE_SIZE + at::STOPPED, u32::from(error != 0));
    }
}
