//! A control packet that is being handled: counted, and refused if nothing expects it.

use vmlane_vsock::SocketAddress;
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};

use crate::vmci::stats::{Refusal, VmciStats};
use crate::vmci::tables::Inner;

/// A control packet on its way through the tables.
pub struct Packet {
    pub sender: SocketAddress,
    /// Where the sender thinks it goes; RST comes back from there.
    pub addressed: SocketAddress,
    pub kind: PacketType,
    pub body: ControlPacket,
}

pub fn count(kind: PacketType, stats: &VmciStats) {
    match kind {
        PacketType::Wrote => stats.wrote_sent.inc(),
        PacketType::Read => stats.read_sent.inc(),
        PacketType::WaitingRead | PacketType::WaitingWrite => stats.waiting_sent.inc(),
        _ => {}
    }
}

/// Answers a packet that nothing expects with RST, unless it is one itself. As a datagram it was sent.
pub fn refuse(inner: &Inner, packet: &Packet, stats: &VmciStats) -> Result<(), Refusal> {
    if packet.kind != PacketType::Rst {
        stats.refused_state.inc();
        inner.contexts.send_reset(packet.addressed, packet.sender);
    }
    Ok(())
}
