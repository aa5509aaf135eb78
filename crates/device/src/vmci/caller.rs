//! The guest that makes a call, and how it names memory.

use vmlane_mem::MemoryMap;

use super::stats::VmciStats;

/// How a guest names pages in its calls.
#[derive(Clone, Copy, Debug)]
pub struct PageFormat {
    pub shift: u32,
    /// 64-bit page numbers; else 32-bit.
    pub ppn64: bool,
}

/// The calling guest, as far as one call goes.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    pub cid: u32,
    pub memory: &'a MemoryMap,
    pub pages: PageFormat,
    pub stats: &'a VmciStats,
    /// Number of the request that the call came with: done once, by either daemon.
    pub request: u64,
}

/// A page number as an address, unless that overflows.
pub(super) fn shifted(ppn: u64, shift: u32) -> Option<u64> {
    ppn.checked_mul(1 << shift)
}
