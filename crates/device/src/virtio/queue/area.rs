//! A part of a ring whose address is not a multiple of 8.

use vmlane_mem::{MemoryMap, Window};

use super::chain::BadRing;

/// Bytes of guest memory at a multiple of 2 or 4. Offsets count from its first byte.
#[derive(Debug)]
pub struct Area {
    window: Window,
    from: usize,
}

impl Area {
    pub fn new(memory: &MemoryMap, addr: u64, len: usize, align: u64) -> Result<Area, BadRing> {
        if !addr.is_multiple_of(align) {
            return Err(BadRing::Unaligned(addr));
        }
        let from = (addr % 8) as usize;
        Ok(Area { window: memory.window(addr - from as u64, len + from, true)?, from })
    }

    #[inline]
    pub fn load_u16(&self, at: usize) -> u16 {
        self.window.load_u16(self.from + at)
    }

    #[inline]
    pub fn store_u16(&self, at: usize, value: u16) {
        self.window.store_u16(self.from + at, value);
    }

    /// Has the CPU fetch the cache line at `at` for writing.
    #[inline]
    pub fn prefetch_write(&self, at: usize) {
        self.window.prefetch_write(self.from + at);
    }

    #[inline]
    pub fn load_u32(&self, at: usize) -> u32 {
        self.window.load_u32(self.from + at)
    }

    #[inline]
    pub fn store_u32(&self, at: usize, value: u32) {
        self.window.store_u32(self.from + at, value);
    }
}
