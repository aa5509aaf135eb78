//! What driver and device share in guest memory: DriverShared, queue descriptors, variable blocks.
//!
//! A device copies each of them out once and examines the copy only. Words that change while frames
//! flow are reached by their offsets, in [`at`].

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First word of DriverShared.
pub const MAGIC: u32 = 0xbabe_fee1;

/// Offsets of words that are accessed in place.
pub mod at {
    /// DriverShared: the interrupt control word, without and with the extended interrupt block.
    pub const INTERRUPT_CONTROL: usize = 0x6c;
    pub const EXTENDED_INTERRUPT_CONTROL: usize = 0x2d4;
    /// DriverShared: the moderation level of index 0, the others behind it; in either block.
    pub const LEVELS: usize = 0x53;
    pub const EXTENDED_LEVELS: usize = 0x2dc;
    /// DriverShared: event bits.
    pub const EVENTS: usize = 0x2b8;
    /// DriverShared: arguments of a command.
    pub const COMMAND_INFO: usize = 0x2c0;
    /// DriverShared: the extended interrupt block.
    pub const EXTENDED: usize = 0x2d0;
    /// Queue descriptor, either kind.
    pub const TX_THRESHOLD: usize = 0x04;
    pub const STOPPED: usize = 0x50;
    pub const ERROR: usize = 0x54;
    pub const STATISTICS: usize = 0x58;
}

/// A block elsewhere in memory, with its version and length.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlockRef {
    pub version: U32,
    /// Bytes.
    pub len: U32,
    pub addr: U64,
}
const _: () = assert!(size_of::<BlockRef>() == 16);

/// Interrupts as the driver set them up.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InterruptBlock {
    pub auto_mask: u8,
    /// Interrupt indices in use.
    pub count: u8,
    /// Index of events.
    pub event: u8,
    /// Moderation of each index: 0 none, 7 the most, 8 as the device sees fit.
    pub levels: [u8; 25],
    /// Changes while frames flow: [`at::INTERRUPT_CONTROL`].
    pub control: U32,
    reserved: [u8; 8],
}
const _: () = assert!(size_of::<InterruptBlock>() == 0x78 - 0x50);

impl InterruptBlock {
    /// An index is masked when it fires.
    pub fn auto_mask(&self) -> bool {
        self.auto_mask != 0
    }
}

/// The same with 65 indices: revision 6 on, with more than 8 transmit or 16 receive queues.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtendedInterruptBlock {
    pub auto_mask: u8,
    pub count: u8,
    pub event: u8,
    reserved: u8,
    pub control: U32,
    reserved2: [u8; 4],
    pub levels: [u8; 65],
    pad: [u8; 3],
}
const _: () = assert!(size_of::<ExtendedInterruptBlock>() == 80);

const LEVELS_IN_BLOCK: usize = std::mem::offset_of!(ExtendedInterruptBlock, levels);
const _: () = assert!(at::EXTENDED + LEVELS_IN_BLOCK == at::EXTENDED_LEVELS);
const CONTROL_IN_BLOCK: usize = std::mem::offset_of!(ExtendedInterruptBlock, control);
const _: () = assert!(at::EXTENDED + CONTROL_IN_BLOCK == at::EXTENDED_INTERRUPT_CONTROL);

impl ExtendedInterruptBlock {
    pub fn auto_mask(&self) -> bool {
        self.auto_mask != 0
    }
}

/// DriverShared as every driver has it, with a field for each of the driver's; [`ExtendedInterruptBlock`] may
/// follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DriverShared {
    pub magic: U32,
    size: U32,
    pub driver_version: U32,
    /// Kind and version of the guest's system; drivers lie.
    pub guest_info: U32,
    /// Always 1, whatever revision is chosen.
    revision: U32,
    upt_revision: U32,
    pub features: U64,
    driver_data: U64,
    pub queue_table: U64,
    driver_data_len: U32,
    /// Bytes.
    pub queue_table_len: U32,
    pub mtu: U32,
    /// The most buffers of a packet under LRO; 0: no limit named.
    pub max_rx_sg: U16,
    pub tx_queues: u8,
    pub rx_queues: u8,
    reserved: [u8; 16],
    pub interrupts: InterruptBlock,
    pub rx_mode: U32,
    /// Bytes.
    pub multicast_len: U16,
    pad: U16,
    pub multicast_table: U64,
    /// A bit for each VLAN id.
    pub vlan_table: [U64; 64],
    pub rss: BlockRef,
    pub wake_up: BlockRef,
    plugin: BlockRef,
    pub events: U32,
    reserved2: U32,
    pub command_info: [u8; 16],
}
const _: () = assert!(size_of::<DriverShared>() == at::EXTENDED);
const _: () = assert!(std::mem::offset_of!(DriverShared, interrupts) == 0x50);
const _: () = assert!(0x50 + std::mem::offset_of!(InterruptBlock, levels) == at::LEVELS);
const _: () = assert!(0x50 + std::mem::offset_of!(InterruptBlock, control) == at::INTERRUPT_CONTROL);
const _: () = assert!(std::mem::offset_of!(DriverShared, vlan_table) == 0x88);
const _: () = assert!(std::mem::offset_of!(DriverShared, rss) == 0x288);
const _: () = assert!(std::mem::offset_of!(DriverShared, events) == at::EVENTS);
const _: () = assert!(std::mem::offset_of!(DriverShared, command_info) == at::COMMAND_INFO);

/// Bytes of DriverShared with the extended interrupt block.
pub const EXTENDED_SIZE: usize = at::EXTENDED + size_of::<ExtendedInterruptBlock>();

/// Bytes of a queue descriptor.
pub const QUEUE_SIZE: usize = 256;

/// A transmit queue's descriptor, with a field for each of the driver's.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TxQueueDesc {
    deferred: U32,
    threshold: U32,
    reserved: U64,
    pub ring: U64,
    pub data_ring: U64,
    pub completions: U64,
    driver_data: U64,
    reserved2: U64,
    /// Descriptors.
    pub ring_size: U32,
    pub data_ring_size: U32,
    pub completions_size: U32,
    driver_data_len: U32,
    /// Interrupt index.
    pub vector: u8,
    pad: u8,
    /// Bytes of a slot; 0 in old drivers stands for 128.
    pub data_slot: U16,
    pad2: [u8; 4],
    status: [u8; 8],
    statistics: [U64; 10],
    pad3: [u8; 88],
}
const _: () = assert!(size_of::<TxQueueDesc>() == QUEUE_SIZE);
const _: () = assert!(std::mem::offset_of!(TxQueueDesc, vector) == 0x48);
const _: () = assert!(std::mem::offset_of!(TxQueueDesc, status) == at::STOPPED);
const _: () = assert!(std::mem::offset_of!(TxQueueDesc, statistics) == at::STATISTICS);

/// A receive queue's descriptor, with a field for each of the driver's.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RxQueueDesc {
    update_producer: u8,
    pad: [u8; 7],
    reserved: U64,
    /// The second may be 0.
    pub rings: [U64; 2],
    pub completions: U64,
    driver_data: U64,
    /// From revision 3 on.
    pub data_ring: U64,
    /// Descriptors; the second may be 0.
    pub ring_sizes: [U32; 2],
    pub completions_size: U32,
    driver_data_len: U32,
    pub vector: u8,
    pad2: u8,
    /// Bytes of a slot of the data ring; 0: none.
    pub data_slot: U16,
    pad3: [u8; 4],
    status: [u8; 8],
    statistics: [U64; 10],
    pad4: [u8; 88],
}
const _: () = assert!(size_of::<RxQueueDesc>() == QUEUE_SIZE);
const _: () = assert!(std::mem::offset_of!(RxQueueDesc, data_ring) == 0x30);
const _: () = assert!(std::mem::offset_of!(RxQueueDesc, vector) == 0x48);
const _: () = assert!(std::mem::offset_of!(RxQueueDesc, status) == at::STOPPED);

/// What receive-side scaling hashes, and with what.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RssBlock {
    /// Bits of [`RssBlock::IPV4`] and the following.
    pub hash_type: U16,
    pub function: U16,
    /// Bytes, at most 40.
    pub key_len: U16,
    /// Entries, at most 128.
    pub table_len: U16,
    pub key: [u8; 40],
    /// Queue numbers.
    pub table: [u8; 128],
}
const _: () = assert!(size_of::<RssBlock>() == 176);

impl RssBlock {
    pub const IPV4: u16 = 1;
    pub const TCP4: u16 = 2;
    pub const IPV6: u16 = 4;
    pub const TCP6: u16 = 8;
    /// `function`: Toeplitz, the only one.
    pub const TOEPLITZ: u16 = 1;
}

/// A coalescing scheme.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Coalesce {
    pub mode: U32,
    /// STATIC: transmit depth, transmit completion depth, receive depth. RATE: interrupts a second.
    pub parameters: [U32; 3],
}
const _: () = assert!(size_of::<Coalesce>() == 16);

impl Coalesce {
    pub const DISABLED: u32 = 0;
    pub const ADAPTIVE: u32 = 1;
    pub const STATIC: u32 = 2;
    pub const RATE: u32 = 3;

    pub fn new(mode: u32, parameters: [u32; 3]) -> Coalesce {
        Coalesce { mode: U32::new(mode), parameters: parameters.map(U32::new) }
    }
}
