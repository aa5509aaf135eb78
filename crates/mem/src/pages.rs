//! A list of guest pages resolved once: the memory of a queue, and the copy between two of them.
#![allow(unsafe_code)] // raw copies between mapped pages, atomics on them

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::region::Region;

/// Whole pages, logically contiguous, physically anywhere (facts: nearly random in real guests).
#[derive(Debug)]
pub struct Pages {
    pages: Box<[NonNull<u8>]>,
    shift: u32,
    /// Keeps the mappings under `pages` alive.
    keep: Vec<Arc<Region>>,
}

// SAFETY: pointers into shared mappings kept alive by `keep`; accessed by raw copies and atomics only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub(crate) fn new(pages: Vec<NonNull<u8>>, shift: u32, keep: Vec<Arc<Region>>) -> Pages {
        Pages { pages: pages.into_boxed_slice(), shift, keep }
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
    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset <= self.len() && len <= self.len() - offset,
            "{offset:#x}+{len:#x} is outside {:#x} bytes of pages",
            self.len()
        );
    }

    /// The longest contiguous run at `offset`, at most `max` bytes. `offset` is inside the pages.
    #[inline]
    fn run(&self, offset: usize, max: usize) -> (*mut u8, usize) {
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

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        let page = self.pages[offset >> self.shift];
        let within = offset & ((1 << self.shift) - 1);
        assert!(within.is_multiple_of(8));
        // SAFETY: aligned (pages are, and their sizes are multiples of eight), inside a mapping that
        // lives as long as `self`, and only ever accessed atomically by this process.
        unsafe { AtomicU64::from_ptr(page.add(within).as_ptr().cast()) }
    }

    /// Loads a 64-bit little-endian word (acquire): what was written before it is visible after.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> u64 {
        u64::from_le(self.word(offset).load(Ordering::Acquire))
    }

    /// Stores a 64-bit little-endian word (release).
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.word(offset).store(value.to_le(), Ordering::Release);
    }

    /// Stores a 64-bit little-endian word and orders it (and all before it) before every later load
    /// of the caller: a store and a full fence in one.
    #[inline]
    pub fn store_u64_fenced(&self, offset: usize, value: u64) {
        if cfg!(target_arch = "x86_64") {
            // A locked exchange is a full barrier, and cheaper than a store with a fence behind it.
            self.word(offset).swap(value.to_le(), Ordering::SeqCst);
        } else {
            self.store_u64(offset, value);
            fence(Ordering::SeqCst);
        }
    }
}

/// Copies `len` bytes between two sets of pages, guest to guest: the one copy.
///
/// Panics when a range is outside its pages (a caller's bug, never a guest's doing). The pages may
/// overlap: a guest may list one page twice, and hurts only its own bytes by that.
pub fn copy(to: &Pages, mut to_offset: usize, from: &Pages, mut from_offset: usize, mut len: usize) {
    to.check(to_offset, len);
    from.check(from_offset, len);
    while len > 0 {
        let (source, source_len) = from.run(from_offset, len);
        let (target, target_len) = to.run(to_offset, len);
        let here = source_len.min(target_len);
        // SAFETY: both runs are valid for `here` bytes of live mappings, the target writable;
        // memmove allows them to overlap.
        unsafe { libc::memmove(target.cast(), source.cast(), here) };
        from_offset += here;
        to_offset += here;
        len -= here;
    }
}
