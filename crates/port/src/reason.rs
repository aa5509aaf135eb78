//! Why a frame was not delivered.

use vmlane_stats::{Kept, counters};

/// A reason, counted at the port whose doing it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Sender: shorter than an Ethernet header, or longer than its MTU or any frame may be.
    BadLength,
    /// Sender: a descriptor chain that cannot be (no end, too long, unknown type).
    BadDescriptor,
    /// Sender: bytes outside its memory.
    BadAddress,
    /// Sender: an offload request that does not match the frame.
    BadOffload,
    /// Sender: a source address that is not its own, where the policy forbids it.
    ForgedSource,
    /// Sender or receiver: the guest changed its address, where the policy forbids it.
    MacChanged,
    /// Sender: a tag that its port group does not take.
    BadVlan,
    /// Sender: no receiver; the address is unknown.
    NoReceiver,
    /// Receiver: no buffers. When a port returns this, the frame may wait; it is dropped when it has waited
    /// too long.
    NoBuffers,
    /// Receiver: too slow. The frame waited for its buffers as long as a frame may, or so many of its
    /// sender's frames waited that the sender needs the rest of its places for other receivers.
    SlowReceiver,
    /// Receiver: posted buffers too small or too few for a frame of this length.
    NoRoom,
    /// Receiver: longer than its MTU, and it takes no aggregates.
    TooLong,
    /// Receiver: its descriptors or buffers lie outside its memory, or are of an impossible kind.
    BadReceiver,
    /// Receiver: it does not want the frame (filter).
    Filtered,
    /// Receiver: detached while the frame waited.
    Gone,
    /// Receiver: the uplink refused it.
    Uplink,
    /// Sender: broadcast or multicast beyond its share.
    Flood,
    /// Sender or receiver: the operator set the port's link down.
    LinkDown,
    /// Receiver: no token for it, and no room where frames wait for tokens (traffic shaping).
    Shaped,
    /// Receiver: lost on request, by its wire or a laboratory's daemon (`faults::Impairment`).
    Impaired,
    /// Receiver: the interface of the uplink is down, or gone.
    UplinkDown,
    /// Sender: an uplink of a team, through which the network sends back what a VM sent through another one.
    Reflected,
    /// Receiver: so many frames were under way on its wire as may be.
    WireFull,
}

impl DropReason {
    /// All of them, in the order of [`DropReason::number`].
    const ALL: [DropReason; 23] = [
        DropReason::BadLength,
        DropReason::BadDescriptor,
        DropReason::BadAddress,
        DropReason::BadOffload,
        DropReason::ForgedSource,
        DropReason::MacChanged,
        DropReason::BadVlan,
        DropReason::NoReceiver,
        DropReason::NoBuffers,
        DropReason::SlowReceiver,
        DropReason::NoRoom,
        DropReason::TooLong,
        DropReason::BadReceiver,
        DropReason::Filtered,
        DropReason::Gone,
        DropReason::Uplink,
        DropReason::Flood,
        DropReason::LinkDown,
        DropReason::Shaped,
        DropReason::Impaired,
        DropReason::UplinkDown,
        DropReason::Reflected,
        DropReason::WireFull,
    ];

    /// A number for records of captures; never 0.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    /// The reason with a number.
    pub fn from_number(number: u8) -> Option<DropReason> {
        Self::ALL.get(usize::from(number.checked_sub(1)?)).copied()
    }

    /// Its name: that of its counter without `drop_`.
    pub fn name(self) -> &'static str {
        match self {
            DropReason::BadLength => "bad_length",
            DropReason::BadDescriptor => "bad_descriptor",
            DropReason::BadAddress => "bad_address",
            DropReason::BadOffload => "bad_offload",
            DropReason::ForgedSource => "forged_source",
            DropReason::MacChanged => "mac_changed",
            DropReason::BadVlan => "bad_vlan",
            DropReason::NoReceiver => "no_receiver",
            DropReason::NoBuffers => "no_buffers",
            DropReason::SlowReceiver => "slow_receiver",
            DropReason::NoRoom => "no_room",
            DropReason::TooLong => "too_long",
            DropReason::BadReceiver => "bad_receiver",
            DropReason::Filtered => "filtered",
            DropReason::Gone => "gone",
            DropReason::Uplink => "uplink",
            DropReason::Flood => "flood",
            DropReason::LinkDown => "link_down",
            DropReason::Shaped => "shaped",
            DropReason::Impaired => "impaired",
            DropReason::UplinkDown => "uplink_down",
            DropReason::Reflected => "reflected",
            DropReason::WireFull => "wire_full",
        }
    }
}

counters! {
    /// What went through one port of the switch. `tx` and `rx` are the guest's view.
    pub struct PortCounts {
        /// Frames taken from the guest; a super-frame counts once.
        tx_frames,
        /// Their bytes.
        tx_bytes,
        /// Super-frames among them.
        tx_tso,
        /// Frames given to the guest.
        rx_frames,
        /// Their bytes.
        rx_bytes,
        /// Super-frames given whole.
        rx_aggregates,
        /// Frames made by cutting super-frames for this receiver.
        rx_segments,
        /// Frames whose checksum was completed in the copy for this receiver.
        rx_checksums,
        /// Super-frames among those given whole that were made by merging segments.
        rx_coalesced,
        /// The segments in them.
        rx_coalesced_segments,
        /// Frames that had to wait for this receiver's buffers.
        pending,
        /// Multicast groups that the guest joined beyond those that its port may be in.
        multicast_refused,
        /// Bytes taken from the guest while its port was shaped in that direction, as on a wire.
        tx_shaped_bytes,
        /// Microseconds for which the guest's frames waited in its ring for tokens.
        tx_shaped_us,
        /// Bytes given to the guest while its port was shaped in that direction, as on a wire.
        rx_shaped_bytes,
        /// Microseconds for which frames waited for tokens on their way to the guest.
        rx_shaped_us,
        /// Frames that its wire delivered twice on request.
        wire_duplicated,
        /// Frames of which its wire changed a bit on request.
        wire_corrupted,
        /// Frames that its wire let overtake others on request.
        wire_reordered,
        /// Faults of our own contained while serving this port.
        panics,
        /// Frames dropped: [`DropReason::BadLength`].
        drop_bad_length,
        /// Frames dropped: [`DropReason::BadDescriptor`].
        drop_bad_descriptor,
        /// Frames dropped: [`DropReason::BadAddress`].
        drop_bad_address,
        /// Frames dropped: [`DropReason::BadOffload`].
        drop_bad_offload,
        /// Frames dropped: [`DropReason::ForgedSource`].
        drop_forged_source,
        /// Frames dropped: [`DropReason::MacChanged`].
        drop_mac_changed,
        /// Frames dropped: [`DropReason::BadVlan`].
        drop_bad_vlan,
        /// Frames dropped: [`DropReason::NoReceiver`].
        drop_no_receiver,
        /// Frames dropped: [`DropReason::NoBuffers`].
        drop_no_buffers,
        /// Frames dropped: [`DropReason::SlowReceiver`].
        drop_slow_receiver,
        /// Frames dropped: [`DropReason::NoRoom`].
        drop_no_room,
        /// Frames dropped: [`DropReason::TooLong`].
        drop_too_long,
        /// Frames dropped: [`DropReason::BadReceiver`].
        drop_bad_receiver,
        /// Frames dropped: [`DropReason::Filtered`].
        drop_filtered,
        /// Frames dropped: [`DropReason::Gone`].
        drop_gone,
        /// Frames dropped: [`DropReason::Uplink`].
        drop_uplink,
        /// Frames dropped: [`DropReason::Flood`].
        drop_flood,
        /// Frames dropped: [`DropReason::LinkDown`].
        drop_link_down,
        /// Frames dropped: [`DropReason::Shaped`].
        drop_shaped,
        /// Frames dropped: [`DropReason::Impaired`].
        drop_impaired,
        /// Frames dropped: [`DropReason::UplinkDown`].
        drop_uplink_down,
        /// Frames dropped: [`DropReason::Reflected`].
        drop_reflected,
        /// Frames dropped: [`DropReason::WireFull`].
        drop_wire_full,
    }
}

/// They may outlive the daemon.
pub type PortStats = Kept<PortCounts>;

impl PortCounts {
    /// Counts a drop.
    pub fn drop(&self, reason: DropReason) {
        match reason {
            DropReason::BadLength => &self.drop_bad_length,
            DropReason::BadDescriptor => &self.drop_bad_descriptor,
            DropReason::BadAddress => &self.drop_bad_address,
            DropReason::BadOffload => &self.drop_bad_offload,
            DropReason::ForgedSource => &self.drop_forged_source,
            DropReason::MacChanged => &self.drop_mac_changed,
            DropReason::BadVlan => &self.drop_bad_vlan,
            DropReason::NoReceiver => &self.drop_no_receiver,
            DropReason::NoBuffers => &self.drop_no_buffers,
            DropReason::SlowReceiver => &self.drop_slow_receiver,
            DropReason::NoRoom => &self.drop_no_room,
            DropReason::TooLong => &self.drop_too_long,
            DropReason::BadReceiver => &self.drop_bad_receiver,
            DropReason::Filtered => &self.drop_filtered,
            DropReason::Gone => &self.drop_gone,
            DropReason::Uplink => &self.drop_uplink,
            DropReason::Flood => &self.drop_flood,
            DropReason::LinkDown => &self.drop_link_down,
            DropReason::Shaped => &self.drop_shaped,
            DropReason::Impaired => &self.drop_impaired,
            DropReason::UplinkDown => &self.drop_uplink_down,
            DropReason::Reflected => &self.drop_reflected,
            DropReason::WireFull => &self.drop_wire_full,
        }
        .inc();
    }
}

#[cfg(test)]
mod tests {
    use vmlane_stats::Counters;

    use super::*;

    #[test]
    fn every_reason_has_a_number_and_the_name_of_its_counter() {
        let stats = PortStats::default();
        for (number, reason) in (1..).zip(DropReason::ALL) {
            assert_eq!((reason.number(), DropReason::from_number(number)), (number, Some(reason)));
            stats.drop(reason);
            let counter = format!("drop_{}", reason.name());
            let count = stats.snapshot().into_iter().find(|(name, _)| **name == *counter);
            assert_eq!(count.map(|(_, count)| count), Some(1), "{counter}");
        }
        let counters = stats.snapshot().into_iter().filter(|(name, _)| name.starts_with("drop_")).count();
        assert_eq!(counters, DropReason::ALL.len(), "a new reason is missing in ALL");
        assert_eq!((DropReason::from_number(0), DropReason::from_number(200)), (None, None));
    }
}
