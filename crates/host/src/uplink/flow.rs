//! Which of several queues a frame goes to.

use vmlane_port::{Network, RxFrame, Transport};

/// Bytes of addresses in an Ethernet header.
pub const ADDRESSES: usize = 12;

/// The queue of a packet's flow. Flows are distinguished by their addresses and ports as they stand in the
/// head, whatever the protocol: what matters is that a flow stays where it is.
pub fn queue_of(packet: &RxFrame<'_>, count: usize) -> usize {
    if count == 1 {
        return 0;
    }
    let layers = &packet.layers;
    let (from, to) = match layers.network {
        Network::V4 => (layers.network_at + 12, layers.network_at + 20),
        Network::V6 => (layers.network_at + 8, layers.network_at + 40),
        Network::Other => (0, ADDRESSES as u16),
    };
    let ports = if layers.fragment || layers.transport == Transport::Other { 0 } else { 4 };
    let addresses = packet.head.get(usize::from(from)..usize::from(to)).unwrap_or_default();
    let at = usize::from(layers.transport_at);
    let ports = packet.head.get(at..at + ports).unwrap_or_default();
    let mix = |sum: u32, &byte: &u8| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193); // FNV-1a
    let sum = addresses.iter().chain(ports).fold(0x811c_9dc5, mix);
    (sum ^ sum >> 16) as usize % count
}
