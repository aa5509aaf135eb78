//! VMCI: registers, handles, datagrams, hypervisor calls, queue headers, result codes.
//!
//! Source: Linux `include/linux/vmw_vmci_defs.h` (values and layouts), `docs/devices/vmci.md`.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

pub const VENDOR_ID: u16 = 0x15ad;
pub const DEVICE_ID: u16 = 0x0740;

/// Register file: the same offsets in BAR 0 (ports) and at [`MMIO_OFFSET`] of BAR 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u64)]
pub enum Reg {
    Status = 0x00,
    Control = 0x04,
    Icr = 0x08,
    Imr = 0x0c,
    DataOut = 0x10,
    DataIn = 0x14,
    Caps = 0x18,
    ResultLow = 0x1c,
    ResultHigh = 0x20,
    DataOutLow = 0x24,
    DataOutHigh = 0x28,
    DataInLow = 0x2c,
    DataInHigh = 0x30,
    GuestPageShift = 0x34,
}

impl Reg {
    /// The register at byte `offset` of the register file.
    pub fn at(offset: u64) -> Option<Reg> {
        Reg::try_read_from_bytes(offset.as_bytes()).ok()
    }

    /// Byte offset in the register file.
    pub const fn offset(self) -> u64 {
        self as u64
    }
}

/// Bytes of BAR 0 (I/O ports).
pub const BAR0_SIZE: u64 = 64;
/// Bytes of BAR 1; Linux compares for exactly this size before it uses MMIO and DMA datagrams.
pub const BAR1_SIZE: u64 = 0x40000;
/// Where the register file lies in BAR 1.
pub const MMIO_OFFSET: u64 = 0x20000;

pub const CONTROL_RESET: u32 = 1;
pub const CONTROL_INT_ENABLE: u32 = 2;
pub const CONTROL_INT_DISABLE: u32 = 4;

/// Interrupt causes: bits of ICR and IMR; the vector has the bit's number.
pub const CAUSE_DATAGRAM: u32 = 1;
pub const CAUSE_NOTIFICATION: u32 = 2;
pub const CAUSE_DMA_DATAGRAM: u32 = 4;

pub const CAPS_DATAGRAM: u32 = 1 << 2;
pub const CAPS_NOTIFICATIONS: u32 = 1 << 3;
pub const CAPS_PPN64: u32 = 1 << 4;
pub const CAPS_DMA_DATAGRAM: u32 = 1 << 5;

pub const CID_HYPERVISOR: u32 = 0;
pub const CID_HOST: u32 = 2;
pub const CID_ANY: u32 = u32::MAX;

/// Largest routable datagram, header included.
pub const MAX_DATAGRAM: usize = 17 * 4096;
/// Largest payload of one.
pub const MAX_DATAGRAM_PAYLOAD: usize = MAX_DATAGRAM - DATAGRAM_HEADER;
/// Largest hypervisor datagram that makes sense: a 128 MiB queue pair's page list.
pub const MAX_HYPERCALL: usize = 262_224;
/// Bytes of a datagram header.
pub const DATAGRAM_HEADER: usize = 24;
/// Both sizes of a queue pair together, at most.
pub const MAX_QUEUE_PAIR: u64 = 128 << 20;
/// Resource ids below are reserved.
pub const FIRST_FREE_RESOURCE: u32 = 1024;
/// Resource id of a context's event handler.
pub const EVENT_RESOURCE: u32 = 0;
/// "Nothing here": the resource id that ends a batch of received datagrams.
pub const INVALID_ID: u32 = u32::MAX;

/// A 32-bit context id and a 32-bit resource id: an endpoint, a doorbell, a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle {
    pub context: u32,
    pub resource: u32,
}

impl Handle {
    pub const INVALID: Handle = Handle { context: INVALID_ID, resource: INVALID_ID };

    pub const fn new(context: u32, resource: u32) -> Handle {
        Handle { context, resource }
    }
}

impl std::fmt::Display for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{{{}, {}}}", self.context, self.resource)
    }
}

/// A handle as it lies in memory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawHandle {
    context: U32,
    resource: U32,
}
const _: () = assert!(size_of::<RawHandle>() == 8);

impl From<RawHandle> for Handle {
    fn from(raw: RawHandle) -> Handle {
        Handle { context: raw.context.get(), resource: raw.resource.get() }
    }
}

impl From<Handle> for RawHandle {
    fn from(handle: Handle) -> RawHandle {
        RawHandle { context: U32::new(handle.context), resource: U32::new(handle.resource) }
    }
}

/// The 24 bytes in front of every datagram.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DatagramHeader {
    dst: RawHandle,
    src: RawHandle,
    payload_size: U64,
}
const _: () = assert!(size_of::<DatagramHeader>() == DATAGRAM_HEADER);

impl DatagramHeader {
    pub fn new(dst: Handle, src: Handle, payload_size: usize) -> DatagramHeader {
        DatagramHeader { dst: dst.into(), src: src.into(), payload_size: U64::new(payload_size as u64) }
    }

    pub fn dst(&self) -> Handle {
        self.dst.into()
    }

    pub fn src(&self) -> Handle {
        self.src.into()
    }

    /// Bytes after the header, as the sender claims.
    pub fn payload_size(&self) -> u64 {
        self.payload_size.get()
    }
}

/// A whole datagram as one buffer: header, payload.
pub fn datagram(dst: Handle, src: Handle, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(DATAGRAM_HEADER + payload.len());
    bytes.extend_from_slice(DatagramHeader::new(dst, src, payload.len()).as_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A size padded to the 8 bytes at which the next datagram of a batch starts.
pub const fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// The header of a DMA send or receive buffer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DmaHeader {
    busy: U32,
    opcode: U32,
    size: U32,
    reserved: U32,
    result: U64,
}
/// Bytes of a [`DmaHeader`]; inline data or the element list follow.
pub const DMA_HEADER: usize = 24;
/// Offset of `busy` in it.
pub const DMA_BUSY: u64 = 0;
/// Offset of `result` in it.
pub const DMA_RESULT: u64 = 16;
const _: () = assert!(size_of::<DmaHeader>() == DMA_HEADER);

/// `opcode`: the data follow the header.
pub const DMA_INLINE: u32 = 0;
/// `opcode`: a list of `size` [`DmaElement`]s follows the header.
pub const DMA_LIST: u32 = 1;
/// Elements accepted in a list (Linux uses one).
pub const DMA_MAX_ELEMENTS: u32 = 18;

impl DmaHeader {
    pub fn new(busy: u32, opcode: u32, size: u32) -> DmaHeader {
        DmaHeader {
            busy: busy.into(),
            opcode: opcode.into(),
            size: size.into(),
            reserved: 0.into(),
            result: 0.into(),
        }
    }

    pub fn opcode(&self) -> u32 {
        self.opcode.get()
    }

    pub fn size(&self) -> u32 {
        self.size.get()
    }
}

/// One piece of a scattered DMA buffer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DmaElement {
    pub addr: U64,
    pub size: U64,
}
const _: () = assert!(size_of::<DmaElement>() == 16);

/// Hypervisor calls: the resource id of a datagram to context 0.
pub mod call {
    pub const RESOURCES_QUERY: u32 = 0;
    pub const GET_CONTEXT_ID: u32 = 1;
    pub const SET_NOTIFY_BITMAP: u32 = 2;
    pub const DOORBELL_LINK: u32 = 3;
    pub const DOORBELL_UNLINK: u32 = 4;
    pub const DOORBELL_NOTIFY: u32 = 5;
    pub const DATAGRAM_REQUEST_MAP: u32 = 6;
    pub const DATAGRAM_REMOVE_MAP: u32 = 7;
    pub const EVENT_SUBSCRIBE: u32 = 8;
    pub const EVENT_UNSUBSCRIBE: u32 = 9;
    pub const QUEUEPAIR_ALLOC: u32 = 10;
    pub const QUEUEPAIR_DETACH: u32 = 11;
    /// Ids below are served; a bit each in the answer to RESOURCES_QUERY.
    pub const COUNT: u32 = 12;
    /// Ids one RESOURCES_QUERY may ask for.
    pub const MAX_QUERY: u32 = 31;
}

/// QUEUEPAIR_ALLOC's fixed part; the page list follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct QueuePairAlloc {
    pub handle: RawHandle,
    pub peer: U32,
    pub flags: U32,
    pub produce_size: U64,
    pub consume_size: U64,
    pub num_ppns: U64,
}
const _: () = assert!(size_of::<QueuePairAlloc>() == 40);

/// Fail unless the pair exists.
pub const QP_ATTACH_ONLY: u32 = 1;
/// Both ends inside one guest; never reaches a device from Linux.
pub const QP_LOCAL: u32 = 2;
pub const QP_NONBLOCK: u32 = 4;
pub const QP_PINNED: u32 = 8;
pub const QP_ALL_FLAGS: u32 = 15;
/// Flags that creator and attacher need not share.
pub const QP_ASYMMETRIC: u32 = QP_ATTACH_ONLY | QP_NONBLOCK | QP_PINNED;

/// Queue header page: the handle, then two indices.
pub mod queue_header {
    pub const HANDLE: usize = 0;
    pub const PRODUCER_TAIL: usize = 8;
    pub const CONSUMER_HEAD: usize = 16;
}

/// Events: datagrams from {0, 0} to {cid, 0}.
pub mod event {
    pub const QP_PEER_ATTACH: u32 = 3;
    pub const QP_PEER_DETACH: u32 = 4;
    /// Events that can be subscribed to.
    pub const COUNT: u32 = 5;
}

/// An event about a queue pair: payload of 24 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct QueuePairEvent {
    event: U32,
    pad: U32,
    handle: RawHandle,
    peer: U32,
    pad2: U32,
}
const _: () = assert!(size_of::<QueuePairEvent>() == 24);

impl QueuePairEvent {
    /// `peer` is the context that attached or detached.
    pub fn new(event: u32, handle: Handle, peer: u32) -> QueuePairEvent {
        QueuePairEvent {
            event: event.into(),
            pad: 0.into(),
            handle: handle.into(),
            peer: peer.into(),
            pad2: 0.into(),
        }
    }
}

/// An event about a context: payload of 16 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ContextEvent {
    event: U32,
    pad: U32,
    cid: U32,
    pad2: U32,
}
const _: () = assert!(size_of::<ContextEvent>() == 16);

impl ContextEvent {
    pub fn new(event: u32, cid: u32) -> ContextEvent {
        ContextEvent { event: event.into(), pad: 0.into(), cid: cid.into(), pad2: 0.into() }
    }
}

/// Why a call failed: the negative numbers of `vmw_vmci_defs.h`, and what Linux makes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum VmciError {
    /// EHOSTUNREACH to a program.
    InvalidResource = -1,
    InvalidArgs = -2,
    NoMem = -3,
    /// EPERM.
    NoAccess = -7,
    /// EADDRINUSE.
    DuplicateEntry = -9,
    PayloadTooLarge = -11,
    /// ENOBUFS.
    NoResources = -19,
    Unavailable = -20,
    NotFound = -21,
    /// EADDRINUSE.
    AlreadyExists = -22,
    EventUnknown = -29,
    QueuePairMismatch = -31,
}

impl VmciError {
    /// The value for RESULT_LOW.
    pub fn code(self) -> i32 {
        self as i32
    }
}
