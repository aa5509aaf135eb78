//! Configuration space as storage: bytes, a mask of those a guest may write, and a few bits the
//! device looks at.
//!
//! A VMM that attaches the function keeps BAR addresses and the MSI-X table to itself; it reads the
//! BAR *kind* (I/O, 64-bit) from here and forwards most writes. So registers behave like hardware's
//! (sizing included) but carry no action: a device looks at [`ConfigSpace::bus_master`] and the like
//! after a write. Every access of any width and offset is answered byte by byte.

use vmlane_wire::pci::{
    CONFIG_SIZE, EXTENDED_CONFIG_SIZE, HEADER_END, MsiCapability, MsixCapability, bar, command, offset,
    status,
};
use zerocopy::IntoBytes;

use super::{AccessError, CONFIG_REGION};

/// A base address register: its kind and its size in bytes, a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    Io {
        size: u32,
    },
    Mem32 {
        size: u32,
    },
    /// Takes this register and the next one.
    Mem64 {
        size: u64,
    },
}

/// Why a configuration space cannot be built. A mistake in a device model, never a guest's doing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("BAR {index}: {bar:?} does not exist, is not a power of two, or collides with another BAR")]
    Bar { index: usize, bar: Bar },
    #[error(
        "capability {id:#x} at {at:#x}+{len} is unaligned, overlaps another or lies outside the first 256 bytes"
    )]
    Capability { id: u8, at: usize, len: usize },
    #[error("MSI-X with {vectors} vectors: between 1 and 2048 are possible")]
    Vectors { vectors: u16 },
}

/// Vector table and pending bits of MSI-X, each in a BAR at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    pub vectors: u16,
    pub table: (u8, u32),
    pub pba: (u8, u32),
}

/// Builds a [`ConfigSpace`]; the first mistake is reported by [`Self::build`].
#[derive(Debug)]
pub struct ConfigBuilder {
    space: ConfigSpace,
    /// Bytes of the capability area in use.
    taken: [bool; CONFIG_SIZE],
    /// Where the number of the next capability goes.
    link: usize,
    error: Option<ConfigError>,
}

impl ConfigBuilder {
    fn new(vendor: u16, device: u16) -> ConfigBuilder {
        let mut space = ConfigSpace {
            bytes: vec![0; CONFIG_SIZE],
            writable: vec![0; CONFIG_SIZE],
            initial: Vec::new(),
            msi: None,
            msix: None,
        };
        space.put(offset::VENDOR_ID, &vendor.to_le_bytes());
        space.put(offset::DEVICE_ID, &device.to_le_bytes());
        let command = command::IO
            | command::MEMORY
            | command::BUS_MASTER
            | command::PARITY
            | command::SERR
            | command::INTX_DISABLE;
        space.allow(offset::COMMAND, &command.to_le_bytes());
        for byte in [offset::CACHE_LINE, offset::LATENCY, offset::INTERRUPT_LINE] {
            space.allow(byte, &[0xff]);
        }
        ConfigBuilder { space, taken: [false; CONFIG_SIZE], link: offset::CAPABILITIES, error: None }
    }

    /// Base class, sub-class and programming interface, as `0xBBSSPP`.
    pub fn class(mut self, class: u32) -> ConfigBuilder {
        self.space.put(offset::CLASS, &class.to_le_bytes()[..3]);
        self
    }

    pub fn revision(mut self, revision: u8) -> ConfigBuilder {
        self.space.put(offset::REVISION, &[revision]);
        self
    }

    pub fn subsystem(mut self, vendor: u16, id: u16) -> ConfigBuilder {
        self.space.put(offset::SUBSYSTEM_VENDOR, &vendor.to_le_bytes());
        self.space.put(offset::SUBSYSTEM_ID, &id.to_le_bytes());
        self
    }

    /// Interrupt pin: 0 none, 1 INTA.
    pub fn interrupt_pin(mut self, pin: u8) -> ConfigBuilder {
        self.space.put(offset::INTERRUPT_PIN, &[pin]);
        self
    }

    /// Min_Gnt and Max_Lat, in quarters of a microsecond.
    pub fn timing(mut self, min_grant: u8, max_latency: u8) -> ConfigBuilder {
        self.space.put(offset::MIN_GRANT, &[min_grant, max_latency]);
        self
    }

    /// Makes room for PCI Express extended capabilities: 4096 bytes instead of 256.
    pub fn extended(mut self) -> ConfigBuilder {
        self.space.bytes.resize(EXTENDED_CONFIG_SIZE, 0);
        self.space.writable.resize(EXTENDED_CONFIG_SIZE, 0);
        self
    }

    /// Base address register `index`.
    pub fn bar(mut self, index: usize, bar: Bar) -> ConfigBuilder {
        let (size, flags, registers) = match bar {
            Bar::Io { size } => (u64::from(size), bar::IO, 1),
            Bar::Mem32 { size } => (u64::from(size), 0, 1),
            Bar::Mem64 { size } => (size, bar::MEM64, 2),
        };
        // The low bits say what kind it is, so nothing smaller than this can be told apart.
        let least = if flags == bar::IO { 4 } else { 16 };
        // A number beyond the last register is refused below, so it may be clipped here.
        let at = offset::BAR0 + 4 * index.min(6);
        let end = at + 4 * registers;
        let fits = end <= offset::BAR0 + 24 && size.is_power_of_two() && size >= least;
        if !fits || self.taken[at..end].contains(&true) {
            return self.fail(ConfigError::Bar { index, bar });
        }
        self.taken[at..end].fill(true);
        self.space.put(at, &flags.to_le_bytes());
        self.space.allow(at, &(!(size - 1)).to_le_bytes()[..4 * registers]);
        self
    }

    /// One 64-bit MSI message, its capability at `at`.
    pub fn msi(mut self, at: usize) -> ConfigBuilder {
        self.space.msi = Some(at);
        self.capability(at, MsiCapability::one().as_bytes(), MsiCapability::writable().as_bytes())
    }

    /// MSI-X, its capability at `at`.
    pub fn msix(mut self, at: usize, msix: Msix) -> ConfigBuilder {
        let Msix { vectors, table, pba } = msix;
        if !(1..=MsixCapability::MAX_VECTORS).contains(&vectors) {
            return self.fail(ConfigError::Vectors { vectors });
        }
        self.space.msix = Some(at);
        let capability = MsixCapability::new(vectors, table, pba);
        self.capability(at, capability.as_bytes(), MsixCapability::writable().as_bytes())
    }

    /// Any capability: its bytes (number first, link second) and the bits a guest may write.
    pub fn capability(mut self, at: usize, bytes: &[u8], writable: &[u8]) -> ConfigBuilder {
        let (id, len) = (bytes.first().copied().unwrap_or(0), bytes.len());
        let end = at.saturating_add(len);
        let fits = at >= HEADER_END
            && at.is_multiple_of(4)
            && end <= CONFIG_SIZE
            && len >= 2
            && writable.len() <= len;
        if !fits || self.taken[at..end].contains(&true) {
            return self.fail(ConfigError::Capability { id, at, len });
        }
        self.taken[at..end].fill(true);
        self.space.put(at, bytes);
        self.space.allow(at, writable);
        // Identity of the list is never the guest's to write.
        self.space.writable[at..at + 2].fill(0);
        self.space.bytes[at + 1] = 0;
        self.space.bytes[self.link] = at as u8;
        self.link = at + 1;
        self.space.put(offset::STATUS, &status::CAPABILITIES.to_le_bytes());
        self
    }

    /// The space as it is after power-on.
    pub fn build(mut self) -> Result<ConfigSpace, ConfigError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.space.initial = self.space.bytes.clone();
        Ok(self.space)
    }

    fn fail(mut self, error: ConfigError) -> ConfigBuilder {
        self.error.get_or_insert(error);
        self
    }
}

/// The configuration space of one function.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: Vec<u8>,
    writable: Vec<u8>,
    initial: Vec<u8>,
    msi: Option<usize>,
    msix: Option<usize>,
}

impl ConfigSpace {
    /// Starts a type 0 header.
    pub fn builder(vendor: u16, device: u16) -> ConfigBuilder {
        ConfigBuilder::new(vendor, device)
    }

    /// Bytes, as [`super::Region::size`] wants them.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Reads any number of bytes at any offset.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), AccessError> {
        let range = self.range(offset, data.len())?;
        data.copy_from_slice(&self.bytes[range]);
        Ok(())
    }

    /// Writes what the guest may write; read-only bits keep their value.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        let range = self.range(offset, data.len())?;
        for ((byte, mask), new) in self.bytes[range.clone()].iter_mut().zip(&self.writable[range]).zip(data) {
            *byte = *byte & !mask | new & mask;
        }
        Ok(())
    }

    /// Function reset: commands and message-signalled interrupts are off. BAR addresses and the
    /// interrupt line stay, as they do for a physical function reset through VFIO: firmware put them
    /// there, and whoever resets a function does not run firmware again.
    pub fn reset(&mut self) {
        let bars = offset::BAR0..offset::BAR0 + 24;
        let kept: Vec<u8> = self.bytes[bars.clone()].to_vec();
        let line = self.bytes[offset::INTERRUPT_LINE];
        self.bytes.copy_from_slice(&self.initial);
        self.bytes[bars].copy_from_slice(&kept);
        self.bytes[offset::INTERRUPT_LINE] = line;
    }

    /// The guest lets the function read and write its memory.
    pub fn bus_master(&self) -> bool {
        self.command() & command::BUS_MASTER != 0
    }

    /// Memory BARs answer.
    pub fn memory_enabled(&self) -> bool {
        self.command() & command::MEMORY != 0
    }

    /// I/O BARs answer.
    pub fn io_enabled(&self) -> bool {
        self.command() & command::IO != 0
    }

    /// The line interrupt may not be asserted.
    pub fn intx_disabled(&self) -> bool {
        self.command() & command::INTX_DISABLE != 0
    }

    pub fn msi_enabled(&self) -> bool {
        self.msi.is_some_and(|at| self.word(at + 2) & MsiCapability::ENABLE != 0)
    }

    pub fn msix_enabled(&self) -> bool {
        self.msix.is_some_and(|at| self.word(at + 2) & MsixCapability::ENABLE != 0)
    }

    fn command(&self) -> u16 {
        self.word(offset::COMMAND)
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn range(&self, offset: u64, len: usize) -> Result<std::ops::Range<usize>, AccessError> {
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(len)?));
        range.filter(|range| range.end <= self.bytes.len()).ok_or(AccessError::OutOfRange {
            region: CONFIG_REGION as u32,
            offset,
            len,
        })
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }
}

#[cfg(test)]
mod tests;
