//! One mapping of a shared file.
#![allow(unsafe_code)] // mmap and the raw copies into it

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::address_space::Charge;
use crate::file::PAGE;
use crate::{bulk, sigbus};

/// A mapped piece of guest memory; unmapped when the last holder drops it.
#[derive(Debug)]
pub(crate) struct Region {
    pub guest: u64,
    pub len: u64,
    pub writable: bool,
    base: NonNull<u8>,
    mapping: Mapping,
}

/// Whole pages of a file, as many as a region needs.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
    _charge: Charge,
    /// `None` only while dropping: the guard must go before the mapping does.
    guard: Option<sigbus::Guard>,
}

// SAFETY: the mapping is shared memory that any thread may access; all accesses go through raw
// copies or atomics, never through references to the bytes.
unsafe impl Send for Region {}
// SAFETY: as above; no interior state besides the mapping itself.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes of `fd` at `offset`, a multiple of 4 KiB. The caller has checked sizes.
    pub fn new(guest: u64, len: u64, fd: impl AsFd, offset: u64, writable: bool) -> io::Result<Region> {
        Region::of_pages(guest, len, fd, offset, (writable, PAGE))
    }

    /// The same of a file with pages of `page` bytes, which is mapped by whole ones: it is as long as that.
    pub fn of_pages(
        guest: u64,
        len: u64,
        fd: impl AsFd,
        offset: u64,
        (writable, page): (bool, u64),
    ) -> io::Result<Region> {
        let before = offset % page;
        let bytes = len.checked_add(before).and_then(|bytes| bytes.checked_next_multiple_of(page));
        let mapping = Mapping::new(bytes.ok_or(io::ErrorKind::OutOfMemory)?, fd, offset - before, writable)?;
        // SAFETY: less than the first page, which is mapped.
        let base = unsafe { mapping.start.add(before as usize) };
        Ok(Region { guest, len, writable, base, mapping })
    }

    /// The file turned out shorter than promised; contents are zeros now.
    pub fn poisoned(&self) -> bool {
        self.mapping.guard.as_ref().is_some_and(sigbus::Guard::poisoned)
    }

    /// Host address of the byte at `offset`. The caller keeps `offset` inside the region.
    pub fn at(&self, offset: u64) -> NonNull<u8> {
        assert!(offset < self.len, "offset {offset:#x} is outside a region of {:#x} bytes", self.len);
        // SAFETY: just checked to lie inside the mapping.
        unsafe { self.base.add(offset as usize) }
    }

    pub fn read(&self, offset: u64, out: &mut [u8]) {
        assert!(offset <= self.len && out.len() as u64 <= self.len - offset);
        // SAFETY: source checked to lie inside the mapping; destination is a private slice. The
        // source may change meanwhile: any mix of old and new bytes is acceptable to callers.
        unsafe { bulk::copy(out.as_mut_ptr(), self.base.add(offset as usize).as_ptr(), out.len()) };
    }

    pub fn write(&self, offset: u64, data: &[u8]) {
        assert!(self.writable && offset <= self.len && data.len() as u64 <= self.len - offset);
        // SAFETY: destination checked to lie inside a writable mapping; source is a private slice.
        unsafe { bulk::copy(self.base.add(offset as usize).as_ptr(), data.as_ptr(), data.len()) };
    }

    /// Publishes a word after everything written before it. `offset` must be 4-byte aligned.
    pub fn store_u32(&self, offset: u64, value: u32) {
        assert!(self.writable && offset.is_multiple_of(4) && offset + 4 <= self.len);
        // SAFETY: inside a writable mapping, aligned (mappings are page-aligned), accessed atomically.
        unsafe { AtomicU32::from_ptr(self.base.add(offset as usize).as_ptr().cast()) }
            .store(value.to_le(), Ordering::Release);
    }
}

impl Mapping {
    fn new(len: u64, fd: impl AsFd, offset: u64, writable: bool) -> io::Result<Mapping> {
        let charge = Charge::take(len)?;
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset)? };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // From here on, dropping unmaps it.
        let mut mapping = Mapping { start, len, _charge: charge, guard: None };
        // What a guest has in its memory belongs into no core dump of this process.
        // SAFETY: our own mapping, of which only an attribute changes.
        unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontDump)? };
        mapping.guard = Some(sigbus::Guard::new(start.as_ptr() as usize, len));
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: mapped by `new` with this length; every user holds the region alive by `Arc`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping of whole pages: {unmapped:?}");
    }
}
