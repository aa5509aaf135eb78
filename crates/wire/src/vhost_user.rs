//! vhost-user messages: a 12-byte header, then a fixed layout and perhaps data.
//!
//! Layouts follow `docs/interop/vhost-user.rst` of QEMU. All integers are little-endian here: the
//! protocol calls for "host order" and both ends share one machine. Nothing trusts a length that it received.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of [`Header`].
pub const HEADER: usize = size_of::<Header>();
/// Bytes of the largest payload accepted: a full memory table, a configuration space.
pub const MAX_PAYLOAD: usize = 1024;
/// Descriptors that a message may carry: one a region of a memory table.
pub const MAX_FDS: usize = 8;
/// Bytes of the largest configuration space (`VHOST_USER_MAX_CONFIG_SIZE`).
pub const MAX_CONFIG: usize = 256;

/// Requests of the front end.
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SEND_RARP: u32 = 19;
    pub const NET_SET_MTU: u32 = 20;
    /// Named SET_SLAVE_REQ_FD in older texts.
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
}

/// Bits of GET_PROTOCOL_FEATURES.
pub mod protocol {
    pub const MULTI_QUEUE: u64 = 1;
    pub const LOG_SHMFD: u64 = 1 << 1;
    pub const RARP: u64 = 1 << 2;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const NET_MTU: u64 = 1 << 4;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const RESET_DEVICE: u64 = 1 << 13;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
}

/// First in every message, in both directions.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    pub request: U32,
    flags: U32,
    /// Bytes behind the header.
    pub size: U32,
}

impl Header {
    const VERSION: u32 = 1;
    const VERSION_MASK: u32 = 3;
    const REPLY: u32 = 1 << 2;
    const NEED_REPLY: u32 = 1 << 3;

    /// A request of the front end.
    pub fn request(request: u32, size: usize, need_reply: bool) -> Header {
        let flags = Header::VERSION | if need_reply { Header::NEED_REPLY } else { 0 };
        Header { request: request.into(), flags: flags.into(), size: (size as u32).into() }
    }

    /// The answer to a request.
    pub fn reply(request: u32, size: usize) -> Header {
        let flags = U32::new(Header::VERSION | Header::REPLY);
        Header { request: request.into(), flags, size: (size as u32).into() }
    }

    /// A request of the version that this is.
    pub fn is_request(&self) -> bool {
        self.flags.get() & (Header::VERSION_MASK | Header::REPLY) == Header::VERSION
    }

    pub fn is_reply(&self) -> bool {
        self.flags.get() & (Header::VERSION_MASK | Header::REPLY) == Header::VERSION | Header::REPLY
    }

    /// The sender wants to know the result (with REPLY_ACK).
    pub fn needs_reply(&self) -> bool {
        self.flags.get() & Header::NEED_REPLY != 0
    }
}

/// An index and a number: SET_VRING_NUM, _BASE, _ENABLE and GET_VRING_BASE.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RingState {
    pub index: U32,
    pub number: U32,
}

/// Where a ring lies, in addresses of the front end's process.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RingAddress {
    pub index: U32,
    pub flags: U32,
    pub descriptors: U64,
    pub used: U64,
    pub available: U64,
    pub log: U64,
}

/// The front half of SET_MEM_TABLE; regions follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MemoryTable {
    pub regions: U32,
    pub padding: U32,
}

/// A region of guest memory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MemoryRegion {
    pub guest: U64,
    pub size: U64,
    pub user: U64,
    /// Of its first byte in the file.
    pub offset: U64,
}

/// The payload of ADD_MEM_REG and REM_MEM_REG.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OneRegion {
    pub padding: U64,
    pub region: MemoryRegion,
}

/// Where dirty pages are logged: SET_LOG_BASE.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogBase {
    pub size: U64,
    pub offset: U64,
}

/// Where a back end notes what is in flight: GET_INFLIGHT_FD, SET_INFLIGHT_FD. Some front ends send 4
/// bytes of padding behind it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InflightArea {
    pub size: U64,
    pub offset: U64,
    pub rings: U16,
    pub ring_size: U16,
}

/// The front half of GET_CONFIG and SET_CONFIG; `size` bytes follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConfigSpace {
    pub offset: U32,
    pub size: U32,
    pub flags: U32,
}

/// Bits of the number in SET_VRING_KICK, _CALL and _ERR.
pub const RING_INDEX: u64 = 0xff;
pub const NO_FD: u64 = 1 << 8;
