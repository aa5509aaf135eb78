//! What one VM's VMCI device did, counted by name; refusals by reason.

use vmlane_stats::{Counter, Kept, counters};
use vmlane_wire::vmci::VmciError;

counters! {
    /// Counters of one VM's VMCI device.
    pub struct VmciCounts {
        /// Datagrams the guest sent, hypervisor calls included.
        datagrams_sent,
        /// Datagrams handed to the guest, notices and events included.
        datagrams_received,
        /// Hypervisor calls among those sent.
        hypercalls,
        /// WROTE packets from the guest: its writer's notices.
        wrote_sent,
        /// READ packets from the guest: its reader's notices.
        read_sent,
        /// WAITING_READ and WAITING_WRITE packets from the guest (older notification protocol).
        waiting_sent,
        /// WROTE packets to the guest.
        wrote_received,
        /// READ packets to the guest.
        read_received,
        /// Interrupts raised.
        interrupts,
        /// Batches of datagrams the guest fetched.
        batches,
        /// Bytes taken from the guest's stream rings.
        stream_bytes_sent,
        /// Bytes put into the guest's stream rings.
        stream_bytes_received,
        /// Stream connections the guest asked for.
        connects,
        /// Stream connections established, either way.
        established,
        /// Connections refused with a reset: no listener, or a packet out of turn.
        resets_sent,
        /// Queue pairs created or attached.
        queue_pairs,
        /// Doorbells rung by the guest.
        doorbells_rung,
        /// Doorbells rung for the guest.
        doorbells_received,
        /// Resets: driver unload, reboot, function reset, a new probe.
        resets,
        /// Refused: sizes that do not fit the datagram or the protocol.
        refused_size,
        /// Refused: a source that is not the sender.
        refused_source,
        /// Refused: no such context, or one that this VM may not talk to.
        refused_destination,
        /// Refused: the receiver's queue is full.
        refused_full,
        /// Refused: an unknown or malformed hypervisor call.
        refused_call,
        /// Refused: a quota of this VM is spent (queue pairs, connections, doorbells).
        refused_quota,
        /// Of those: too many queue pairs, too many bytes in them, too many connections, too many doorbells
        /// and datagram maps, too many packets about its own affairs that it has not fetched.
        over_queue_pairs,
        over_queue_pair_bytes,
        over_connections,
        over_doorbells,
        over_notices,
        /// Datagrams of others refused because this VM's inbox, or the sender's share of it, was full.
        over_inbox,
        /// Refused: a queue pair of another VM, or one in the wrong state.
        refused_queue_pair,
        /// Refused: guest addresses outside its memory.
        refused_address,
        /// Refused: a control packet that its connection does not allow now.
        refused_state,
        /// Accesses to registers that do not exist, or of a width they do not have.
        register_holes,
        /// Streams ended because the guest broke its ring's indices.
        broken_rings,
    }
}

/// They may outlive the daemon.
pub type VmciStats = Kept<VmciCounts>;

/// What a VM has had its share of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    QueuePairs,
    QueuePairBytes,
    Connections,
    Doorbells,
    Notices,
}

impl Quota {
    fn counter(self, stats: &VmciStats) -> &Counter {
        match self {
            Quota::QueuePairs => &stats.over_queue_pairs,
            Quota::QueuePairBytes => &stats.over_queue_pair_bytes,
            Quota::Connections => &stats.over_connections,
            Quota::Doorbells => &stats.over_doorbells,
            Quota::Notices => &stats.over_notices,
        }
    }
}

/// Why a datagram or a call was refused: what the guest receives as an error and what is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Size(VmciError),
    Source,
    Destination,
    Full,
    Call(VmciError),
    /// A quota of the VM is spent.
    Quota(Quota),
    QueuePair(VmciError),
    Address,
}

impl Refusal {
    /// Counts the refusal and returns the value for RESULT_LOW.
    pub fn count(self, stats: &VmciStats) -> i32 {
        let (counter, error) = match self {
            Refusal::Size(error) => (&stats.refused_size, error),
            Refusal::Source => (&stats.refused_source, VmciError::NoAccess),
            // One answer for "does not exist" and "not yours to talk to": CIDs cannot be probed.
            Refusal::Destination => (&stats.refused_destination, VmciError::InvalidResource),
            Refusal::Full => (&stats.refused_full, VmciError::NoResources),
            Refusal::Call(error) => (&stats.refused_call, error),
            Refusal::Quota(quota) => {
                quota.counter(stats).inc();
                (&stats.refused_quota, VmciError::NoResources)
            }
            Refusal::QueuePair(error) => (&stats.refused_queue_pair, error),
            Refusal::Address => (&stats.refused_address, VmciError::InvalidArgs),
        };
        counter.inc();
        error.code()
    }
}
