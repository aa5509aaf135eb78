//! PCI configuration space: where the fields are, what their bits mean, MSI and MSI-X layouts.
//!
//! Offsets and bits are those of the PCI Local Bus Specification 3.0, chapter 6.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of configuration space without, and with, PCI Express extended space.
pub const CONFIG_SIZE: usize = 256;
pub const EXTENDED_CONFIG_SIZE: usize = 4096;
/// First byte after the standard header: capabilities live from here to 255.
pub const HEADER_END: usize = 0x40;

/// Offsets of the type 0 header.
pub mod offset {
    pub const VENDOR_ID: usize = 0x00;
    pub const DEVICE_ID: usize = 0x02;
    pub const COMMAND: usize = 0x04;
    pub const STATUS: usize = 0x06;
    pub const REVISION: usize = 0x08;
    pub const CLASS: usize = 0x09;
    pub const CACHE_LINE: usize = 0x0c;
    pub const LATENCY: usize = 0x0d;
    pub const BAR0: usize = 0x10;
    pub const SUBSYSTEM_VENDOR: usize = 0x2c;
    pub const SUBSYSTEM_ID: usize = 0x2e;
    pub const ROM: usize = 0x30;
    pub const CAPABILITIES: usize = 0x34;
    pub const INTERRUPT_LINE: usize = 0x3c;
    pub const INTERRUPT_PIN: usize = 0x3d;
    pub const MIN_GRANT: usize = 0x3e;
}

/// Bits of the command register.
pub mod command {
    pub const IO: u16 = 1 << 0;
    pub const MEMORY: u16 = 1 << 1;
    pub const BUS_MASTER: u16 = 1 << 2;
    pub const PARITY: u16 = 1 << 6;
    pub const SERR: u16 = 1 << 8;
    pub const INTX_DISABLE: u16 = 1 << 10;
}

/// Bits of the status register.
pub mod status {
    pub const CAPABILITIES: u16 = 1 << 4;
}

/// Low bits of a base address register.
pub mod bar {
    pub const IO: u32 = 1;
    pub const MEM64: u32 = 4;
}

/// The MSI capability of a function with 64-bit addresses and no per-vector masking.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MsiCapability {
    id: u8,
    pub next: u8,
    pub control: U16,
    pub address: U64,
    pub data: U16,
}
const _: () = assert!(size_of::<MsiCapability>() == 14);

impl MsiCapability {
    pub const ID: u8 = 0x05;
    /// Control register: switched on.
    pub const ENABLE: u16 = 1;
    /// Control register: 64-bit addresses.
    pub const ADDRESS64: u16 = 1 << 7;

    /// One message offered.
    pub fn one() -> MsiCapability {
        MsiCapability {
            id: MsiCapability::ID,
            next: 0,
            control: U16::new(MsiCapability::ADDRESS64),
            address: U64::ZERO,
            data: U16::ZERO,
        }
    }

    /// What a driver may write: enable and message count, address (4-aligned), data.
    pub fn writable() -> MsiCapability {
        MsiCapability {
            id: 0,
            next: 0,
            control: U16::new(MsiCapability::ENABLE | 0x70),
            address: U64::new(!3),
            data: U16::new(!0),
        }
    }
}

/// The MSI-X capability.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MsixCapability {
    id: u8,
    pub next: u8,
    pub control: U16,
    /// BAR number in the low three bits, offset above.
    table: U32,
    pba: U32,
}
const _: () = assert!(size_of::<MsixCapability>() == 12);

impl MsixCapability {
    pub const ID: u8 = 0x11;
    pub const ENABLE: u16 = 1 << 15;
    pub const MASK_ALL: u16 = 1 << 14;
    /// Most vectors the control register can announce.
    pub const MAX_VECTORS: u16 = 2048;

    /// `vectors` (1 to 2048), table and pending bits each as (BAR, 8-aligned offset).
    pub fn new(vectors: u16, table: (u8, u32), pba: (u8, u32)) -> MsixCapability {
        let place = |(bar, offset): (u8, u32)| U32::new(offset & !7 | u32::from(bar & 7));
        MsixCapability {
            id: MsixCapability::ID,
            next: 0,
            control: U16::new(vectors.saturating_sub(1) & 0x7ff),
            table: place(table),
            pba: place(pba),
        }
    }

    /// What a driver may write: enable and mask-all.
    pub fn writable() -> MsixCapability {
        let control = U16::new(MsixCapability::ENABLE | MsixCapability::MASK_ALL);
        MsixCapability { id: 0, next: 0, control, table: U32::ZERO, pba: U32::ZERO }
    }

    /// (BAR, offset) of the vector table.
    pub fn table(&self) -> (u8, u32) {
        ((self.table.get() & 7) as u8, self.table.get() & !7)
    }

    /// (BAR, offset) of the pending bits.
    pub fn pba(&self) -> (u8, u32) {
        ((self.pba.get() & 7) as u8, self.pba.get() & !7)
    }
}
