//! Indirect tables: copied out as a whole, once.

use vmlane_mem::MemoryMap;
use vmlane_wire::virtio::desc;

use super::chain::{Broken, MAX_SEGMENTS, Segment};

/// Where tables are read to.
pub struct Reader<'a> {
    pub memory: &'a MemoryMap,
    /// The driver may use tables.
    pub allowed: bool,
    pub table: &'a mut Vec<u8>,
}

/// Adds a piece, unless there are too many.
#[inline]
pub fn push(segments: &mut Vec<Segment>, first: usize, segment: Segment) -> Result<(), Broken> {
    if segments.len() - first >= MAX_SEGMENTS {
        return Err(Broken::Long);
    }
    segments.push(segment);
    Ok(())
}

impl Reader<'_> {
    fn load(&mut self, addr: u64, len: u32) -> Result<usize, Broken> {
        let len = len as usize;
        let whole = len.is_multiple_of(desc::SIZE) && len > 0;
        if !self.allowed || !whole || len > MAX_SEGMENTS * desc::SIZE {
            return Err(Broken::Table);
        }
        if self.table.len() < len {
            self.table.resize(len, 0);
        }
        self.memory.read(addr, self.table.get_mut(..len).ok_or(Broken::Table)?)?;
        Ok(len / desc::SIZE)
    }

    /// Address, length, and the two halves of the last word of entry `index`.
    fn entry(&self, index: usize) -> (u64, u32, u16, u16) {
        let Some(entry) =
            self.table.get(index * desc::SIZE..).and_then(|rest| rest.first_chunk::<{ desc::SIZE }>())
        else {
            return (0, 0, 0, 0);
        };
        let word = u128::from_le_bytes(*entry);
        (word as u64, (word >> 64) as u32, (word >> 96) as u16, (word >> 112) as u16)
    }

    /// Pieces of a split ring's table, chained like a ring's descriptors.
    pub fn chained(
        &mut self,
        addr: u64,
        len: u32,
        segments: &mut Vec<Segment>,
        first: usize,
    ) -> Result<(), Broken> {
        let entries = self.load(addr, len)?;
        let mut index = 0;
        for _ in 0..entries {
            let (addr, len, flags, next) = self.entry(usize::from(index));
            if flags & desc::INDIRECT != 0 {
                return Err(Broken::Table);
            }
            push(segments, first, Segment { addr, len, writable: flags & desc::WRITE != 0 })?;
            if flags & desc::NEXT == 0 {
                return Ok(());
            }
            if usize::from(next) >= entries {
                return Err(Broken::Descriptor(next));
            }
            index = next;
        }
        Err(Broken::Loop)
    }

    /// Pieces of a packed ring's table, one after another.
    pub fn listed(
        &mut self,
        addr: u64,
        len: u32,
        segments: &mut Vec<Segment>,
        first: usize,
    ) -> Result<(), Broken> {
        let entries = self.load(addr, len)?;
        for index in 0..entries {
            let (addr, len, _, flags) = self.entry(index);
            if flags & desc::INDIRECT != 0 {
                return Err(Broken::Table);
            }
            push(segments, first, Segment { addr, len, writable: flags & desc::WRITE != 0 })?;
        }
        Ok(())
    }
}
