//! One mapping of a shared file.
#![allow(unsafe_code)] // mmap and the raw copies into it

use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::address_space::Charge;
use crate::file::{FileId, HUGE, PAGE};
use crate::{bulk, sigbus};

/// A mapped piece of guest memory; unmapped when the last holder drops it.
#[derive(Debug)]
pub(crate) struct Region {
    pub guest: u64,
    pub len: u64,
    pub writable: bool,
    base: NonNull<u8>,
    mapping: Arc<Mapping>,
}

/// A mapping of guest memory in which huge pages have room.
#[derive(Clone, Debug)]
pub(crate) struct Large {
    pub mapping: Weak<Mapping>,
    pub file: FileId,
    /// Where in the file the first place for a huge page is, and how many there are.
    pub first: u64,
    pub count: usize,
}

/// In the order in which they were made.
static LARGE: Mutex<Vec<Large>> = Mutex::new(Vec::new());

/// Those that are there now.
pub(crate) fn large() -> Vec<Large> {
    let mut all = LARGE.lock();
    all.retain(|large| large.mapping.strong_count() > 0);
    all.clone()
}

/// Whole pages of a file, as many as a region needs.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// Where in its file it begins.
    offset: u64,
    _charge: Charge,
    /// `None` only while dropping: the guard must go before the mapping does.
    guard: Option<sigbus::Guard>,
}

// SAFETY: the mapping is shared memory that any thread may access; all accesses go through raw
// copies or atomics, never through references to the bytes.
unsafe impl Send for Region {}
// SAFETY: as above; no interior state besides the mapping itself.
unsafe impl Sync for Region {}
// SAFETY: as a region's.
unsafe impl Send for Mapping {}
// SAFETY: as a region's.
unsafe impl Sync for Mapping {}

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
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Arc::new(Mapping::new(bytes, fd, offset - before, (writable, page))?);
        // SAFETY: less than the first page, which is mapped.
        let base = unsafe { mapping.start.add(before as usize) };
        Ok(Region { guest, len, writable, base, mapping })
    }

    /// It as one of a file in which huge pages have room; None: they have none.
    pub fn large(&self, file: FileId) -> Option<Large> {
        let Mapping { len, offset, .. } = *self.mapping;
        let before = self.mapping.before_huge();
        let count = len.saturating_sub(before) / HUGE;
        let mapping = Arc::downgrade(&self.mapping);
        (self.mapping.is_aligned() && count > 0).then_some(Large {
            mapping,
            file,
            first: offset + before as u64,
            count,
        })
    }

    /// Lists it as such.
    pub fn list(&self, file: FileId) {
        let Some(large) = self.large(file) else { return };
        let mut all = LARGE.lock();
        if all.len() == all.capacity() {
            all.retain(|large| large.mapping.strong_count() > 0);
        }
        all.push(large);
    }

    /// The file turned out shorter than promised; contents are zeros now.
    pub fn poisoned(&self) -> bool {
        self.mapping.poisoned()
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
    fn new(len: u64, fd: impl AsFd, offset: u64, (writable, page): (bool, u64)) -> io::Result<Mapping> {
        let charge = Charge::take(len)?;
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let start = if page == PAGE {
            map_file(len, prot, fd, offset)?
        } else {
            // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
            unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset)? }
        };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // From here on, dropping unmaps it.
        let mut mapping = Mapping { start, len, offset, _charge: charge, guard: None };
        // What a guest has in its memory belongs into no core dump of this process.
        // SAFETY: our own mapping, of which only an attribute changes.
        unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontDump)? };
        mapping.guard = Some(sigbus::Guard::new(start.as_ptr() as usize, len));
        Ok(mapping)
    }

    pub fn poisoned(&self) -> bool {
        self.guard.as_ref().is_some_and(sigbus::Guard::poisoned)
    }

    /// Can a huge page of the file be mapped as one? Address and offset lie equally far behind a multiple of
    /// its size.
    fn is_aligned(&self) -> bool {
        beyond(self.start.as_ptr() as usize, self.offset) == 0
    }

    /// The address of a place for a huge page, by its number.
    pub fn huge_range(&self, number: usize) -> *mut u8 {
        let at = self.before_huge() + number * HUGE;
        assert!(at + HUGE <= self.len, "range {number} is outside a mapping of {:#x} bytes", self.len);
        // SAFETY: just checked to lie inside the mapping.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// Bytes before the first one.
    fn before_huge(&self) -> usize {
        let start = self.start.as_ptr() as usize;
        start.next_multiple_of(HUGE) - start
    }
}

/// How far an address is behind one at which huge pages of a file, mapped from `offset` on, can be mapped as
/// such.
fn beyond(address: usize, offset: u64) -> usize {
    address.wrapping_sub(offset as usize) % HUGE
}

/// How often such an address is looked for: other threads map, too.
const TRIES: usize = 4;

/// Maps a file (of small pages) where its huge pages can be mapped as such, if there is such a place to be
/// had.
fn map_file(len: usize, prot: ProtFlags, fd: impl AsFd, offset: u64) -> io::Result<*mut c_void> {
    let map = |wish, len| {
        // SAFETY: a fresh mapping replaces nothing: an address is a wish, and the kernel takes another one
        // where it is in use.
        unsafe { mmap(wish, len, prot, MapFlags::SHARED, &fd, offset) }
    };
    let unmap = |start, len| {
        // SAFETY: called with what was just mapped, whose address has not left this function.
        unsafe { munmap(start, len) }
    };
    let mut start = map(std::ptr::null_mut(), len)?;
    for _ in 0..TRIES {
        if len < HUGE || beyond(start as usize, offset) == 0 {
            break;
        }
        unmap(start, len)?;
        // Where there is room for more there is room at one of its first addresses. A file may be mapped
        // beyond its end.
        let wide = len.saturating_add(HUGE);
        let mut wish = std::ptr::null_mut();
        if let Ok(room) = map(wish, wide) {
            unmap(room, wide)?;
            wish = room.wrapping_byte_add((HUGE - beyond(room as usize, offset)) % HUGE);
        }
        start = map(wish, len)?;
    }
    Ok(start)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: mapped by `new` with this length; every user holds the region alive by `Arc`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping of whole pages: {unmapped:?}");
    }
}
