//! Packets of virtio-vsock (virtio 1.2, section 5.10.6).

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Feature bit: SOCK_SEQPACKET.
pub const SEQPACKET: u64 = 1 << 1;
/// Feature bit: SOCK_STREAM, implied where neither is agreed on.
pub const STREAM: u64 = 1;

/// Types of sockets.
pub mod kind {
    pub const STREAM: u16 = 1;
    pub const SEQPACKET: u16 = 2;
}

/// Operations.
pub mod op {
    pub const REQUEST: u16 = 1;
    pub const RESPONSE: u16 = 2;
    pub const RST: u16 = 3;
    pub const SHUTDOWN: u16 = 4;
    pub const RW: u16 = 5;
    pub const CREDIT_UPDATE: u16 = 6;
    pub const CREDIT_REQUEST: u16 = 7;
}

/// Flags of SHUTDOWN: the sender receives no more, sends no more.
pub const SHUTDOWN_RECEIVE: u32 = 1;
pub const SHUTDOWN_SEND: u32 = 2;
/// Flags of RW in SEQPACKET sockets: the message, the record ends with this packet.
pub const END_OF_MESSAGE: u32 = 1;
pub const END_OF_RECORD: u32 = 2;

/// An event: the guest's connections are gone, and its CID may be another one.
pub const EVENT_TRANSPORT_RESET: u32 = 0;

/// First in every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    pub src_cid: U64,
    pub dst_cid: U64,
    pub src_port: U32,
    pub dst_port: U32,
    /// Bytes behind the header.
    pub len: U32,
    pub kind: U16,
    pub op: U16,
    pub flags: U32,
    /// The sender's whole buffer for this connection, and how many bytes it has taken from it so far.
    pub buf_alloc: U32,
    pub fwd_cnt: U32,
}
const _: () = assert!(size_of::<Header>() == HEADER);

/// Bytes of a packet's payload, at most: what Linux sends, and all that its vhost-vsock takes
/// (`VIRTIO_VSOCK_MAX_PKT_BUF_SIZE`).
pub const MAX_PAYLOAD: usize = 64 << 10;

/// Bytes of [`Header`].
pub const HEADER: usize = 44;

impl Header {
    /// The refusal of this packet.
    pub fn reset(&self) -> Header {
        Header {
            src_cid: self.dst_cid,
            dst_cid: self.src_cid,
            src_port: self.dst_port,
            dst_port: self.src_port,
            kind: self.kind,
            op: op::RST.into(),
            ..Header::new_zeroed()
        }
    }

    /// A packet without payload.
    pub fn new(src: (u32, u32), dst: (u32, u32), kind: u16, op: u16) -> Header {
        Header {
            src_cid: u64::from(src.0).into(),
            dst_cid: u64::from(dst.0).into(),
            src_port: src.1.into(),
            dst_port: dst.1.into(),
            kind: kind.into(),
            op: op.into(),
            ..Header::new_zeroed()
        }
    }
}
