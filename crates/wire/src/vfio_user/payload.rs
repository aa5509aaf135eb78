//! What follows the header: the fixed layouts of each command, and the meaning of their flags.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Protocol version; a NUL-terminated JSON text of capabilities may follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Version {
    pub major: U16,
    pub minor: U16,
}
const _: () = assert!(size_of::<Version>() == 4);

/// Guest memory appears; the file, if there is one, travels with the message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DmaMap {
    pub argsz: U32,
    pub flags: U32,
    pub offset: U64,
    pub address: U64,
    pub size: U64,
}
const _: () = assert!(size_of::<DmaMap>() == 32);

impl DmaMap {
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 2;

    pub fn writable(&self) -> bool {
        self.flags.get() & DmaMap::WRITE != 0
    }
}

/// Guest memory goes away. Also the reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DmaUnmap {
    pub argsz: U32,
    pub flags: U32,
    pub address: U64,
    pub size: U64,
}
const _: () = assert!(size_of::<DmaUnmap>() == 24);

impl DmaUnmap {
    /// Wants a bitmap of dirtied pages with the reply.
    pub const DIRTY_BITMAP: u32 = 1;
    /// Everything, whatever `address` and `size` are.
    pub const ALL: u32 = 2;
}

/// Request and reply of `DEVICE_GET_INFO`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DeviceInfo {
    pub argsz: U32,
    pub flags: U32,
    pub num_regions: U32,
    pub num_irqs: U32,
}
const _: () = assert!(size_of::<DeviceInfo>() == 16);

impl DeviceInfo {
    pub const RESET: u32 = 1;
    pub const PCI: u32 = 2;
}

/// Request and reply of `DEVICE_GET_REGION_INFO`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegionInfo {
    pub argsz: U32,
    pub flags: U32,
    pub index: U32,
    pub cap_offset: U32,
    pub size: U64,
    pub offset: U64,
}
const _: () = assert!(size_of::<RegionInfo>() == 32);

impl RegionInfo {
    pub const READ: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const MMAP: u32 = 4;
    /// A list of capabilities follows, if `argsz` of the request has room for it.
    pub const CAPS: u32 = 8;
}

/// The capability of a region of which one area can be mapped, and nothing else of it (VFIO's *sparse mmap*).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SparseMmap {
    pub id: U16,
    pub version: U16,
    /// Offset of the next capability; 0: this is the last one.
    pub next: U32,
    /// Areas that follow.
    pub areas: U32,
    pub reserved: U32,
    pub offset: U64,
    pub size: U64,
}
const _: () = assert!(size_of::<SparseMmap>() == 32);

impl SparseMmap {
    /// The first `size` bytes can be mapped; the last capability.
    pub fn first(size: u64) -> SparseMmap {
        SparseMmap {
            id: U16::new(1),
            version: U16::new(1),
            next: U32::ZERO,
            areas: U32::new(1),
            reserved: U32::ZERO,
            offset: U64::ZERO,
            size: U64::new(size),
        }
    }
}

/// Request and reply of `DEVICE_GET_IRQ_INFO`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IrqInfo {
    pub argsz: U32,
    pub flags: U32,
    pub index: U32,
    pub count: U32,
}
const _: () = assert!(size_of::<IrqInfo>() == 16);

impl IrqInfo {
    pub const EVENTFD: u32 = 1;
    pub const MASKABLE: u32 = 2;
    pub const AUTOMASKED: u32 = 4;
}

/// Kinds of interrupt, as indices of [`IrqInfo`] and [`SetIrqs`].
pub mod irq_index {
    pub const INTX: u32 = 0;
    pub const MSI: u32 = 1;
    pub const MSIX: u32 = 2;
    pub const ERR: u32 = 3;
    pub const REQ: u32 = 4;
    /// How many there are.
    pub const COUNT: u32 = 5;
}

/// Connects, triggers or masks interrupts; boolean bytes or file descriptors may come with it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SetIrqs {
    pub argsz: U32,
    pub flags: U32,
    pub index: U32,
    pub start: U32,
    pub count: U32,
}
const _: () = assert!(size_of::<SetIrqs>() == 20);

/// What comes with a [`SetIrqs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqData {
    None,
    Bool,
    EventFd,
}

/// What a [`SetIrqs`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqAction {
    Mask,
    Unmask,
    Trigger,
}

impl SetIrqs {
    pub const DATA_NONE: u32 = 1;
    pub const DATA_BOOL: u32 = 2;
    pub const DATA_EVENTFD: u32 = 4;
    pub const MASK: u32 = 8;
    pub const UNMASK: u32 = 16;
    pub const TRIGGER: u32 = 32;

    /// Exactly one data flag and exactly one action flag, or nothing.
    pub fn operation(&self) -> Option<(IrqData, IrqAction)> {
        let flags = self.flags.get();
        let data = match flags & 0x7 {
            SetIrqs::DATA_NONE => IrqData::None,
            SetIrqs::DATA_BOOL => IrqData::Bool,
            SetIrqs::DATA_EVENTFD => IrqData::EventFd,
            _ => return None,
        };
        let action = match flags & !0x7 {
            SetIrqs::MASK => IrqAction::Mask,
            SetIrqs::UNMASK => IrqAction::Unmask,
            SetIrqs::TRIGGER => IrqAction::Trigger,
            _ => return None,
        };
        Some((data, action))
    }
}

/// Starts `REGION_READ` and `REGION_WRITE`, both ways; data follows in read replies and writes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegionAccess {
    pub offset: U64,
    pub region: U32,
    pub count: U32,
}
const _: () = assert!(size_of::<RegionAccess>() == 16);
