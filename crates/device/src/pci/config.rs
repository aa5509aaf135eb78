//! Configuration space as storage: bytes, a mask of those a guest may write, and a few bits the
//! device examines.
//!
//! A VMM that attaches the function keeps BAR addresses and the MSI-X table to itself; it reads the
//! BAR *kind* (I/O, 64-bit) from here and forwards most writes. So registers behave like hardware's
//! (sizing included) but carry no action: a device examines [`ConfigSpace::bus_master`] and the like
//! after a write. Every access of any width and offset is answered byte by byte.

mod builder;

use vmlane_wire::pci::{command, offset};

use super::{AccessError, CONFIG_REGION};

pub use builder::ConfigBuilder;

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

/// The configuration space of one function.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: Vec<u8>,
    writable: Vec<u8>,
    initial: Vec<u8>,
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
        let bytes = self.range(offset, data.len()).and_then(|range| self.bytes.get(range));
        data.copy_from_slice(bytes.ok_or(out_of_range(offset, data.len()))?);
        Ok(())
    }

    /// Writes what the guest may write; read-only bits keep their value.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        let range = self.range(offset, data.len()).ok_or(out_of_range(offset, data.len()))?;
        let bytes = self.bytes.iter_mut().zip(&self.writable).skip(range.start);
        for ((byte, mask), new) in bytes.zip(data) {
            *byte = *byte & !mask | new & mask;
        }
        Ok(())
    }

    /// All of it, for the next daemon.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes over what a previous daemon had, as far as a guest can write it. `None` if it is no
    /// configuration space of this size.
    pub fn restore(&mut self, bytes: &[u8]) -> Option<()> {
        (bytes.len() == self.bytes.len()).then_some(())?;
        self.write(0, bytes).ok()
    }

    /// Function reset: commands and message-signalled interrupts are off. BAR addresses and the
    /// interrupt line stay, as they do for a physical function reset through VFIO: firmware put them
    /// there, and a reset of a function does not run firmware again.
    pub fn reset(&mut self) {
        let stays =
            |at: usize| (offset::BAR0..offset::BAR0 + 24).contains(&at) || at == offset::INTERRUPT_LINE;
        for (at, (byte, initial)) in self.bytes.iter_mut().zip(&self.initial).enumerate() {
            if !stays(at) {
                *byte = *initial;
            }
        }
    }

    /// The guest lets the function read and write its memory.
    pub fn bus_master(&self) -> bool {
        self.word(offset::COMMAND) & command::BUS_MASTER != 0
    }

    fn word(&self, at: usize) -> u16 {
        let word = self.bytes.get(at..).and_then(|bytes| bytes.first_chunk::<2>());
        word.map_or(0, |word| u16::from_le_bytes(*word))
    }

    /// The bytes that an access speaks of, if there are so many.
    fn range(&self, offset: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(offset).ok()?;
        let range = start..start.checked_add(len)?;
        (range.end <= self.bytes.len()).then_some(range)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes.iter_mut().skip(at).zip(bytes).for_each(|(place, byte)| *place = *byte);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable.iter_mut().skip(at).zip(mask).for_each(|(place, mask)| *place = *mask);
    }
}

fn out_of_range(offset: u64, len: usize) -> AccessError {
    AccessError::OutOfRange { region: CONFIG_REGION as u32, offset, len }
}

#[cfg(test)]
mod tests;
