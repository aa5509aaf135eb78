//! One contiguous piece of guest memory held for long: a descriptor ring, a shared area, a register
//! page.
#![allow(unsafe_code)] // atomics and raw copies inside a mapping

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::file::{Backing, PAGE, memfd};
use crate::region::Region;
use crate::shared::{Atomics, Shared};
use crate::word::Word;

/// Bytes of two words.
const PAIR: usize = 16;

/// `len` bytes at an address that is a multiple of 8. Words are accessed atomically; offsets are
/// checked, and one outside (a caller's bug, never a guest's doing) panics.
#[derive(Debug)]
pub struct Window {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    region: Arc<Region>,
}

// SAFETY: a pointer into a shared mapping kept alive by `region`; accessed atomically or by raw copies.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    pub(crate) fn new(base: NonNull<u8>, len: usize, writable: bool, region: Arc<Region>) -> Window {
        debug_assert!((base.as_ptr() as usize).is_multiple_of(8));
        Window { base, len, writable, region }
    }

    /// A fresh shared file of `len` bytes (whole pages), zeroed and mapped here: memory that a VMM maps
    /// too.
    pub fn of_file(name: &str, len: u64) -> io::Result<(Window, OwnedFd)> {
        let fd = memfd(name, len)?;
        let region = Arc::new(Region::new(0, len, &fd, 0, true)?);
        Ok((Window::new(region.at(0), len as usize, true, region), fd))
    }

    /// The first `len` bytes (whole pages) of a file that exists, mapped here.
    pub fn over_file(file: &OwnedFd, len: u64) -> io::Result<Window> {
        let region = Arc::new(Region::new(0, len, file, 0, true)?);
        Ok(Window::new(region.at(0), len as usize, true, region))
    }

    /// `len` bytes (cut to a multiple of 8, at least 8) at `offset` (of a page) of a file that another
    /// process owns, if it has them. It may lose them later: [`Self::poisoned`].
    pub fn of_part(file: &OwnedFd, offset: u64, len: u64) -> io::Result<Window> {
        let len = len & !7;
        let Backing { len: have, page, .. } = Backing::of(file.as_fd()).map_err(io::Error::other)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= have);
        if len == 0 || !offset.is_multiple_of(PAGE) || !inside {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let region = Arc::new(Region::of_pages(0, len, file, offset, (true, page))?);
        Ok(Window::new(region.at(0), len as usize, true, region))
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True once the file under it turned out shorter than promised.
    pub fn poisoned(&self) -> bool {
        self.region.poisoned()
    }

    #[inline]
    fn at(&self, offset: usize, len: usize, align: usize) -> *mut u8 {
        if !(offset.is_multiple_of(align) && offset <= self.len && len <= self.len - offset) {
            outside(offset, len, self.len);
        }
        // SAFETY: just checked to lie inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    #[inline]
    fn word16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: aligned (`base` is, and `offset`), inside a mapping that lives as long as `self`.
        unsafe { AtomicU16::from_ptr(self.at(offset, 2, 2).cast()) }
    }

    #[inline]
    fn word32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: aligned (`base` is, and `offset`), inside a mapping that lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4, 4).cast()) }
    }

    #[inline]
    fn word64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8, 8).cast()) }
    }

    /// The window as an array of pairs of words, such as descriptors: loads one word of pair `index`
    /// (acquire).
    #[inline]
    pub fn load_half(&self, index: usize, second: bool) -> u64 {
        let word = self.pair(index, second);
        u64::from_le(word.load(Ordering::Acquire))
    }

    /// Stores pair `index`, its second word last (release). The window is writable.
    #[inline]
    pub fn store_pair(&self, index: usize, [first, second]: [u64; 2]) {
        assert!(self.writable);
        self.pair(index, false).store(first.to_le(), Ordering::Release);
        self.pair(index, true).store(second.to_le(), Ordering::Release);
    }

    #[inline]
    fn pair(&self, index: usize, second: bool) -> &AtomicU64 {
        if index >= self.len / PAIR {
            outside(index * PAIR, PAIR, self.len);
        }
        // SAFETY: the pair lies inside the mapping, and at a multiple of 8 as `base` does.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(index * PAIR + 8 * usize::from(second)).cast()) }
    }

    /// The 64-bit word at `offset`, found once; it keeps the mapping alive.
    pub fn word(&self, offset: usize) -> Word {
        let at = NonNull::from(self.word64(offset)).cast();
        Word::new(at, Arc::new([self.region.clone()]))
    }

    /// The atomics at `offset`, found once; they keep the mapping alive. The window is writable.
    pub fn shared<T: Atomics>(&self, offset: usize) -> Shared<T> {
        assert!(self.writable && align_of::<T>() <= 8);
        // SAFETY: inside a mapping, none of which is at address 0.
        let at = unsafe { NonNull::new_unchecked(self.at(offset, size_of::<T>(), 8).cast()) };
        Shared::new(at, self.region.clone())
    }

    /// Has the CPU fetch the cache line at `offset`, if that is inside.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        if offset < self.len {
            // SAFETY: inside the mapping.
            prefetch(unsafe { self.base.as_ptr().add(offset) });
        }
    }

    /// The same for a line that is written soon.
    #[inline]
    pub fn prefetch_write(&self, offset: usize) {
        if offset < self.len {
            // SAFETY: inside the mapping.
            prefetch_write(unsafe { self.base.as_ptr().add(offset) });
        }
    }

    /// Loads a little-endian word (acquire).
    #[inline]
    pub fn load_u16(&self, offset: usize) -> u16 {
        u16::from_le(self.word16(offset).load(Ordering::Acquire))
    }

    /// Stores a little-endian word (release). The window is writable.
    #[inline]
    pub fn store_u16(&self, offset: usize, value: u16) {
        assert!(self.writable);
        self.word16(offset).store(value.to_le(), Ordering::Release);
    }

    /// Loads a little-endian word (acquire).
    #[inline]
    pub fn load_u32(&self, offset: usize) -> u32 {
        u32::from_le(self.word32(offset).load(Ordering::Acquire))
    }

    /// Loads a little-endian word (acquire).
    #[inline]
    pub fn load_u64(&self, offset: usize) -> u64 {
        u64::from_le(self.word64(offset).load(Ordering::Acquire))
    }

    /// Stores a little-endian word (release). The window is writable.
    #[inline]
    pub fn store_u32(&self, offset: usize, value: u32) {
        assert!(self.writable);
        self.word32(offset).store(value.to_le(), Ordering::Release);
    }

    /// Stores a little-endian word (release). The window is writable.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) {
        assert!(self.writable);
        self.word64(offset).store(value.to_le(), Ordering::Release);
    }

    /// Sets bits in a little-endian word; returns the word before.
    pub fn set_bits_u32(&self, offset: usize, bits: u32) -> u32 {
        assert!(self.writable);
        u32::from_le(self.word32(offset).fetch_or(bits.to_le(), Ordering::SeqCst))
    }

    /// Clears bits in a little-endian word; returns the word before.
    pub fn clear_bits_u32(&self, offset: usize, bits: u32) -> u32 {
        assert!(self.writable);
        u32::from_le(self.word32(offset).fetch_and(!bits.to_le(), Ordering::SeqCst))
    }

    /// Copies bytes out, once.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let from = self.at(offset, out.len(), 1);
        // SAFETY: checked to lie inside the mapping; the destination is private.
        unsafe { libc::memmove(out.as_mut_ptr().cast(), from.cast(), out.len()) };
    }

    /// Copies bytes in. The window is writable.
    pub fn write(&self, offset: usize, data: &[u8]) {
        assert!(self.writable);
        let to = self.at(offset, data.len(), 1);
        // SAFETY: checked to lie inside the mapping, which is writable; the source is private.
        unsafe { libc::memmove(to.cast(), data.as_ptr().cast(), data.len()) };
    }

    /// Where `len` bytes from `offset` on lie. The window is writable.
    pub(crate) fn bytes_mut(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(self.writable);
        self.at(offset, len, 1)
    }
}

#[cold]
fn outside(offset: usize, len: usize, window: usize) -> ! {
    panic!("{offset:#x}+{len} is outside a window of {window:#x} bytes, or unaligned");
}

/// A hint that the cache line at `at` is read soon.
#[inline]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint; it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// A hint that the cache line at `at` is written soon.
#[inline]
pub(crate) fn prefetch_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it never faults, and CPUs without it take it for no operation.
    unsafe {
        std::arch::asm!("prefetchw [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Has the CPU fetch the first `lines` cache lines of a value that another CPU wrote.
#[inline]
pub fn prefetch_value<T>(value: &T, lines: usize) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    (0..lines).for_each(|line| prefetch(start.wrapping_add(64 * line)));
}

/// The same for a value that is written soon.
#[inline]
pub fn prefetch_value_write<T>(value: &T, lines: usize) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    (0..lines).for_each(|line| prefetch_write(start.wrapping_add(64 * line)));
}
