//! The PCI function as its guest sees it: what a VMM keeps to itself under vfio-user is here.
//!
//! That is the MSI-X table, whether and how interrupts are switched on, and which BARs exist: the guest's bus
//! has no I/O space, so I/O BARs are hidden from it. All else is the device's.

use std::ops::Range;
use std::sync::Arc;

use vmlane_device::pci::{AccessError, CONFIG_REGION, PciDevice};
use vmlane_mem::MemoryMap;
use vmlane_wire::pci::{MsiCapability, MsixCapability, bar, command, offset};
use zerocopy::FromBytes;

use super::interrupts::{InterruptKind, Messages};
use super::message::{Message, Op};

/// Bytes of one access of the device; longer ones of the guest are carried out in such pieces.
const PIECE: usize = 8;
/// Bytes of one access of the guest.
pub const MAX_DATA: usize = 4096;
/// Bars of a function.
const BARS: usize = 6;

pub struct Function {
    device: Box<dyn PciDevice>,
    interrupts: Arc<Messages>,
    /// Bytes of the configuration space that are not the guest's to see.
    hidden: Vec<Range<u64>>,
    /// Where the capabilities are.
    msi: Option<u64>,
    msix: Option<u64>,
    /// BAR and offset of the MSI-X table.
    table: Option<(u8, u64)>,
    memory: MemoryMap,
    /// Number of the access at hand.
    number: u64,
}

impl Function {
    pub fn new(mut device: Box<dyn PciDevice>, interrupts: Arc<Messages>) -> Function {
        let mut space = vec![0; usize::try_from(device.region(CONFIG_REGION).size).unwrap_or(0)];
        // It has as many bytes as its length field gives.
        let _ = device.read(CONFIG_REGION, 0, &mut space);
        let capability = |id| capability(&space, id);
        let msix = capability(MsixCapability::ID);
        let layout = msix.and_then(|at| MsixCapability::read_from_prefix(space.get(at..)?).ok());
        let layout = layout.map(|(layout, _)| layout);
        let vectors = layout.map_or(0, |layout| (layout.control.get() & 0x7ff) + 1);
        interrupts.set_vectors(vectors);
        let mut function = Function {
            hidden: io_bars(&space),
            msi: capability(MsiCapability::ID).map(|at| at as u64),
            msix: msix.map(|at| at as u64),
            table: layout.map(|layout| (layout.table().0, layout.table().1.into())),
            device,
            interrupts,
            memory: MemoryMap::default(),
            number: 0,
        };
        function.note_kind();
        function
    }

    /// Carries out an access: `data` is what the guest sends, or what it gets.
    pub fn access(&mut self, message: &Message, data: &mut [u8]) -> Result<(), AccessError> {
        self.number += 1;
        self.device.begin(self.number);
        let (region, at) = (usize::from(message.bar), message.addr.get());
        match message.op() {
            Some(Op::ConfigRead) => self.read_config(at, data),
            Some(Op::ConfigWrite) => self.write_config(at, data),
            Some(Op::Read) => {
                check_bar(region, at, data.len())?;
                pieces(at, data).try_for_each(|(at, piece)| self.read_bar(region, at, piece))
            }
            Some(Op::Write | Op::Fill) => {
                check_bar(region, at, data.len())?;
                pieces(at, data).try_for_each(|(at, piece)| self.write_bar(region, at, piece))
            }
            // Messages of the function, not of its guest.
            Some(Op::Line | Op::Message) | None => Err(out_of_range(region, at, data.len())),
        }
    }

    /// The guest's memory from now on; what was mapped before is used no more.
    pub fn set_memory(&mut self, memory: MemoryMap) {
        if !self.memory.is_empty() {
            self.device.unmap(0, u64::MAX);
        }
        self.device.memory(&memory);
        self.memory = memory;
    }

    /// As after power-on, but for the memory.
    pub fn reset(&mut self) {
        self.device.reset();
        self.interrupts.reset();
        self.note_kind();
    }

    fn read_config(&mut self, at: u64, data: &mut [u8]) -> Result<(), AccessError> {
        self.device.read(CONFIG_REGION, at, data)?;
        for (at, byte) in (at..).zip(data) {
            if self.hidden.iter().any(|hidden| hidden.contains(&at)) {
                *byte = 0;
            }
        }
        Ok(())
    }

    fn write_config(&mut self, at: u64, data: &[u8]) -> Result<(), AccessError> {
        let end = at.saturating_add(data.len() as u64);
        if self.hidden.iter().any(|hidden| at < hidden.end && hidden.start < end) {
            return Ok(());
        }
        self.device.write(CONFIG_REGION, at, data, true)?;
        self.note_kind();
        Ok(())
    }

    fn note_kind(&mut self) {
        let kind = self.kind();
        if self.interrupts.set_kind(kind) {
            self.device.irqs_changed();
        }
    }

    /// The interrupt mode of the configuration space.
    fn kind(&mut self) -> InterruptKind {
        let msix = self.msix.map_or(0, |at| self.config_word(at + 2));
        if msix & MsixCapability::ENABLE != 0 {
            return InterruptKind::Msix { masked: msix & MsixCapability::MASK_ALL != 0 };
        }
        if let Some(at) = self.msi
            && self.config_word(at + 2) & MsiCapability::ENABLE != 0
        {
            return InterruptKind::Msi { data: self.config_word(at + 12) };
        }
        let pin = self.config_word(offset::INTERRUPT_LINE as u64) >> 8;
        let is_off = self.config_word(offset::COMMAND as u64) & command::INTX_DISABLE != 0;
        if pin == 0 || is_off { InterruptKind::Off } else { InterruptKind::Line { pin: pin as u8 } }
    }

    /// Zero where there is none.
    fn config_word(&mut self, at: u64) -> u16 {
        let mut word = [0; 2];
        let read = self.device.read(CONFIG_REGION, at, &mut word);
        read.map_or(0, |()| u16::from_le_bytes(word))
    }

    /// The offset in the MSI-X table of an access to it.
    fn in_table(&self, region: usize, at: u64) -> Option<u64> {
        let (bar, start) = self.table.filter(|(bar, _)| usize::from(*bar) == region)?;
        debug_assert!(usize::from(bar) < BARS);
        at.checked_sub(start).filter(|offset| *offset < self.interrupts.table_len())
    }

    fn read_bar(&mut self, region: usize, at: u64, data: &mut [u8]) -> Result<(), AccessError> {
        if let Some(offset) = self.in_table(region, at) {
            self.interrupts.read_table(offset, data);
            return Ok(());
        }
        self.check_end(region, at, data.len())?;
        self.device.read(region, at, data)
    }

    fn write_bar(&mut self, region: usize, at: u64, data: &[u8]) -> Result<(), AccessError> {
        if let Some(offset) = self.in_table(region, at) {
            if self.interrupts.write_table(offset, data) {
                self.device.irqs_changed();
            }
            return Ok(());
        }
        self.check_end(region, at, data.len())?;
        // The guest has gone on: its bus does not wait for writes.
        self.device.write(region, at, data, true)
    }

    /// As a vfio-user session checks it: devices rely on it.
    fn check_end(&self, region: usize, at: u64, len: usize) -> Result<(), AccessError> {
        let size = self.device.region(region).size;
        let inside = at.checked_add(len as u64).is_some_and(|end| end <= size);
        if inside { Ok(()) } else { Err(out_of_range(region, at, len)) }
    }
}

fn pieces(at: u64, data: &mut [u8]) -> impl Iterator<Item = (u64, &mut [u8])> {
    (at..).step_by(PIECE).zip(data.chunks_mut(PIECE))
}

fn check_bar(region: usize, at: u64, len: usize) -> Result<(), AccessError> {
    let inside = region < BARS && at.checked_add(len as u64).is_some();
    if inside { Ok(()) } else { Err(out_of_range(region, at, len)) }
}

fn out_of_range(region: usize, offset: u64, len: usize) -> AccessError {
    AccessError::OutOfRange { region: region as u32, offset, len }
}

/// Where the capability is, in a configuration space of ours.
fn capability(space: &[u8], id: u8) -> Option<usize> {
    let mut at = usize::from(*space.get(offset::CAPABILITIES)?);
    // A list without end has more links than fit.
    for _ in 0..space.len() / 4 {
        let [this, next] = *space.get(at..)?.first_chunk::<2>()?;
        match (at, this == id) {
            (0, _) => return None,
            (_, true) => return Some(at),
            _ => at = usize::from(next),
        }
    }
    None
}

/// The bytes of the registers of I/O BARs.
fn io_bars(space: &[u8]) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let mut index = 0;
    while index < BARS {
        let at = offset::BAR0 + 4 * index;
        let register = space.get(at).map_or(0, |byte| u32::from(*byte));
        if register & bar::IO != 0 {
            ranges.push(at as u64..at as u64 + 4);
        }
        index += if register & bar::MEM64 != 0 && register & bar::IO == 0 { 2 } else { 1 };
    }
    ranges
}
