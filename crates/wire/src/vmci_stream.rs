//! vSockets control packets: how a stream connection over VMCI is set up, notified and shut down.
//!
//! Source: Linux `net/vmw_vsock/vmci_transport.h`, `vmci_transport.c`; `docs/devices/vmci.md`.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned, transmute};

use crate::vmci::{Handle, RawHandle};

/// Resource id of a context's stream control endpoint.
pub const CONTROL_RESOURCE: u32 = 1;
/// The same towards and from context 0.
pub const HYPERVISOR_CONTROL_RESOURCE: u32 = 15;

/// `proto` bit 0: the "queue pair state" notification protocol, all Linux uses today.
pub const PROTO_QSTATE: u16 = 1;

/// SHUTDOWN mode bits.
pub const SHUTDOWN_RECEIVE: u64 = 1;
pub const SHUTDOWN_SEND: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes)]
#[repr(u8)]
pub enum PacketType {
    Invalid = 0,
    Request = 1,
    Negotiate = 2,
    Offer = 3,
    Attach = 4,
    Wrote = 5,
    Read = 6,
    Rst = 7,
    Shutdown = 8,
    WaitingWrite = 9,
    WaitingRead = 10,
    Request2 = 11,
    Negotiate2 = 12,
}

impl PacketType {
    pub fn from_wire(value: u8) -> Option<PacketType> {
        PacketType::try_read_from_bytes(&[value]).ok()
    }
}

/// The 32 bytes behind the datagram header. Longer payloads are allowed, shorter ones are not.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ControlPacket {
    version: u8,
    kind: u8,
    proto: U16,
    src_port: U32,
    dst_port: U32,
    reserved: U32,
    union0: U64,
    union1: U64,
}
/// Bytes of a [`ControlPacket`].
pub const CONTROL_PACKET: usize = 32;
const _: () = assert!(size_of::<ControlPacket>() == CONTROL_PACKET);

impl ControlPacket {
    pub fn new(kind: PacketType, src_port: u32, dst_port: u32) -> ControlPacket {
        ControlPacket {
            version: 1,
            kind: kind as u8,
            proto: 0.into(),
            src_port: src_port.into(),
            dst_port: dst_port.into(),
            reserved: 0.into(),
            union0: 0.into(),
            union1: 0.into(),
        }
    }

    /// REQUEST, REQUEST2, NEGOTIATE, NEGOTIATE2 with a ring size in bytes.
    pub fn with_size(mut self, size: u64, proto: u16) -> ControlPacket {
        self.union0 = size.into();
        self.proto = proto.into();
        self
    }

    /// SHUTDOWN.
    pub fn with_mode(mut self, mode: u64) -> ControlPacket {
        self.union0 = mode.into();
        self
    }

    /// OFFER, ATTACH.
    pub fn with_handle(mut self, handle: Handle) -> ControlPacket {
        self.union0 = transmute!(RawHandle::from(handle));
        self
    }

    /// WAITING_READ, WAITING_WRITE: what the sender waits for, as generation and offset.
    pub fn with_waiting(mut self, generation: u64, offset: u64) -> ControlPacket {
        self.union0 = generation.into();
        self.union1 = offset.into();
        self
    }

    /// The first 32 bytes of a payload.
    pub fn parse(payload: &[u8]) -> Option<ControlPacket> {
        ControlPacket::read_from_prefix(payload).ok().map(|(packet, _)| packet)
    }

    /// `None` for a type this protocol does not have.
    pub fn kind(&self) -> Option<PacketType> {
        PacketType::from_wire(self.kind)
    }

    pub fn src_port(&self) -> u32 {
        self.src_port.get()
    }

    pub fn dst_port(&self) -> u32 {
        self.dst_port.get()
    }

    /// The same packet between other ports.
    pub fn with_ports(mut self, src_port: u32, dst_port: u32) -> ControlPacket {
        self.src_port = src_port.into();
        self.dst_port = dst_port.into();
        self
    }

    pub fn proto(&self) -> u16 {
        self.proto.get()
    }

    /// Of REQUEST(2) and NEGOTIATE(2): ring size in bytes.
    pub fn size(&self) -> u64 {
        self.union0.get()
    }

    /// Of SHUTDOWN.
    pub fn mode(&self) -> u64 {
        self.union0.get()
    }

    /// Of OFFER and ATTACH.
    pub fn handle(&self) -> Handle {
        let raw: RawHandle = transmute!(self.union0);
        raw.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_linux_puts_them() {
        let packet = ControlPacket::new(PacketType::Offer, 0x1111, 0x2222).with_handle(Handle::new(3, 4));
        let bytes = packet.as_bytes();
        assert_eq!(bytes[..4], [1, 3, 0, 0]);
        assert_eq!(bytes[4..12], [0x11, 0x11, 0, 0, 0x22, 0x22, 0, 0]);
        assert_eq!(bytes[16..24], [3, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(packet.handle(), Handle::new(3, 4));
        let packet = ControlPacket::new(PacketType::Request2, 1, 2).with_size(262_144, PROTO_QSTATE);
        assert_eq!(packet.as_bytes()[2..4], [1, 0]);
        assert_eq!(packet.as_bytes()[16..24], 262_144u64.to_le_bytes());
    }

    #[test]
    fn every_type_has_its_number() {
        for value in 0..=12 {
            assert_eq!(PacketType::from_wire(value).map(|kind| kind as u8), Some(value));
        }
        assert_eq!(PacketType::from_wire(13), None);
    }
}
