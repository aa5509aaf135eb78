//! A list of guest pages resolved once: the memory of a queue, and the copy between two of them.
#![allow(unsafe_code)] // raw copies between mapped pages, atomics on them

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::bulk;
use crate::region::Region;
use crate::window::prefetch;
use crate::word::{Word, atomic};

/// Whole pages, logically contiguous, physically anywhere (facts: nearly random in real guests).
#[derive(Debug)]
pub struct Pages {
    pages: Box<[NonNull<u8>]>,
    shift: u32,
    /// Keeps the mappings under `pages` alive.
    keep: Arc<[Arc<Region>]>,
}

/// Bytes of a page that are fetched ahead: the CPU's own prefetcher finds what comes after them.
const AHEAD: usize = 256;

// SAFETY: pointers into shared mappings kept alive by `keep`; accessed by raw copies and atomics only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub(crate) fn new(pages: Vec<NonNull<u8>>, shift: u32, keep: Vec<Arc<Region>>) -> Pages {
        Pages { pages: pages.into_boxed_slice(), shift, keep: keep.into() }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.pages.len() << self.shift
    }

    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// True once the file under one of the pages turned out shorter than promised.
    pub fn poisoned(&self) -> bool {
        self.keep.iter().any(|region| region.poisoned())
    }

    /// Guest address ranges (start, bytes) of the regions that the pages lie in.
    pub fn guest_ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.keep.iter().map(|region| (region.guest, region.len))
    }

    /// Does one of those ranges overlap `[start, start + len)`?
    pub fn touches(&self, start: u64, len: u64) -> bool {
        self.guest_ranges().any(|(at, size)| at < start.saturating_add(len) && start < at + size)
    }

    #[inline]
    pub(crate) fn check(&self, offset: usize, len: usize) {
        if !(offset <= self.len() && len <= self.len() - offset) {
            outside(offset, len, self.len());
        }
    }

    /// Has the CPU fetch the beginning of the page at `offset`, which is copied next: pages lie anywhere, so
    /// its own prefetcher does not find them.
    #[inline]
    fn prefetch(&self, offset: usize) {
        let Some(page) = self.pages.get(offset >> self.shift) else { return };
        for line in (0..AHEAD).step_by(64) {
            prefetch(page.as_ptr().wrapping_add(line));
        }
    }

    /// Where `[offset, offset + len)` lies, if it is all in one page.
    #[inline]
    fn one_run(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let size = 1usize << self.shift;
        let within = offset & (size - 1);
        let page = self.pages.get(offset >> self.shift).filter(|_| len <= size - within)?;
        // SAFETY: `within` is less than the page's size.
        Some(unsafe { page.as_ptr().add(within) })
    }

    /// The longest contiguous run at `offset`, at most `max` bytes. `offset` is inside the pages.
    #[inline]
    pub(crate) fn run(&self, offset: usize, max: usize) -> (*mut u8, usize) {
        let size = 1usize << self.shift;
        let index = offset >> self.shift;
        let within = offset & (size - 1);
        let start = self.pages[index];
        let mut len = size - within;
        let mut last = index;
        while len < max {
            match self.pages.get(last + 1) {
                Some(next) if next.as_ptr() as usize == self.pages[last].as_ptr() as usize + size => {
                    len += size;
                    last += 1;
                }
                _ => break,
            }
        }
        // SAFETY: `within` is less than the page's size.
        (unsafe { start.as_ptr().add(within) }, len.min(max))
    }

    /// Copies `[offset, offset + out.len())` out, once.
    pub fn read(&self, mut offset: usize, mut out: &mut [u8]) {
        self.check(offset, out.len());
        while !out.is_empty() {
            let (from, len) = self.run(offset, out.len());
            let (head, rest) = out.split_at_mut(len);
            // SAFETY: `from` is valid for `len` bytes of a live mapping; `head` is private.
            unsafe { libc::memmove(head.as_mut_ptr().cast(), from.cast(), len) };
            out = rest;
            offset += len;
        }
    }

    /// Copies `data` in at `offset`.
    pub fn write(&self, mut offset: usize, mut data: &[u8]) {
        self.check(offset, data.len());
        while !data.is_empty() {
            let (to, len) = self.run(offset, data.len());
            // SAFETY: `to` is valid for `len` bytes of a live writable mapping.
            unsafe { libc::memmove(to.cast(), data.as_ptr().cast(), len) };
            data = &data[len..];
            offset += len;
        }
    }

    /// The 64-bit word at `offset`, which is inside the pages and a multiple of eight.
    #[inline]
    fn address(&self, offset: usize) -> NonNull<u64> {
        assert!(offset.is_multiple_of(8));
        let page = self.pages[offset >> self.shift];
        // SAFETY: what is added is less than the page's size.
        unsafe { page.add(offset & ((1 << self.shift) - 1)) }.cast()
    }

    /// The same, for many accesses.
    pub fn word(&self, offset: usize) -> Word {
        Word::new(self.address(offset), self.keep.clone())
    }

    /// Loads a 64-bit little-endian word (acquire): what was written before it is visible after.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> u64 {
        // SAFETY: `address` is in a mapping that lives as long as `self`.
        u64::from_le(unsafe { atomic(self.address(offset)) }.load(Ordering::Acquire))
    }

    /// Stores a 64-bit little-endian word (release).
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) {
        // SAFETY: as above; pages are writable.
        unsafe { atomic(self.address(offset)) }.store(value.to_le(), Ordering::Release);
    }
}

#[cold]
fn outside(offset: usize, len: usize, pages: usize) -> ! {
    panic!("{offset:#x}+{len:#x} is outside {pages:#x} bytes of pages");
}

/// Copies `len` bytes between two sets of pages, guest to guest: the one copy.
///
/// Panics when a range is outside its pages (a caller's bug, never a guest's doing). The pages may
/// overlap: a guest may list one page twice, and hurts only its own bytes by that.
#[inline]
pub fn copy(to: &Pages, to_offset: usize, from: &Pages, from_offset: usize, len: usize) {
    to.check(to_offset, len);
    from.check(from_offset, len);
    let (Some(target), Some(source)) = (to.one_run(to_offset, len), from.one_run(from_offset, len)) else {
        return copy_runs(to, to_offset, from, from_offset, len);
    };
    // SAFETY: both runs are valid for `len` bytes of live mappings, the target writable. If they overlap, it
    // is the guest's own doing, and what is written then does not matter.
    unsafe { bulk::copy(target, source, len) };
}

/// The same for ranges that were checked, over any number of pages.
fn copy_runs(to: &Pages, mut to_offset: usize, from: &Pages, mut from_offset: usize, mut len: usize) {
    while len > 0 {
        let (source, source_len) = from.run(from_offset, len);
        let (target, target_len) = to.run(to_offset, len);
        let here = source_len.min(target_len);
        if here < len {
            from.prefetch(from_offset + here);
            to.prefetch(to_offset + here);
        }
        // SAFETY: as in `copy`.
        unsafe { bulk::copy(target, source, here) };
        from_offset += here;
        to_offset += here;
        len -= here;
    }
}
