//! One mapping of a shared file.
#![allow(unsafe_code)] // mmap and the raw copies into it

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{bulk, sigbus};

/// A mapped piece of guest memory; unmapped when the last holder drops it.
#[derive(Debug)]
pub(crate) struct Region {
    pub guest: u64,
    pub len: u64,
    pub writable: bool,
    base: NonNull<u8>,
    /// `None` only while dropping: the guard must go before the mapping does.
    guard: Option<sigbus::Guard>,
}

// SAFETY: the mapping is shared memory that any thread may access; all accesses go through raw
// copies or atomics, never through references to the bytes.
unsafe impl Send for Region {}
// SAFETY: as above; no interior state besides the mapping itself.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes of `fd` at `offset`. The caller has checked sizes and alignment.
    pub fn new(guest: u64, len: u64, fd: impl AsFd, offset: u64, writable: bool) -> io::Result<Region> {
        let bytes = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, fd, offset)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        match sigbus::Guard::new(base.as_ptr() as usize, bytes) {
            Ok(guard) => Ok(Region { guest, len, writable, base, guard: Some(guard) }),
            Err(error) => {
                // SAFETY: just mapped above, no other code knows the address.
                let _ = unsafe { munmap(base.as_ptr().cast(), bytes) };
                Err(error)
            }
        }
    }

    /// The file turned out shorter than promised; contents are zeros now.
    pub fn poisoned(&self) -> bool {
        self.guard.as_ref().is_some_and(sigbus::Guard::poisoned)
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

impl Drop for Region {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: mapped by `new` with this length; every user holds the region alive by `Arc`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len as usize) };
    }
}

/// An anonymous shared file of `len` bytes, sealed against shrinking: memory for synthetic guests
/// and host endpoints.
pub fn memfd(name: &str, len: u64) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len)?;
    rustix::fs::fcntl_add_seals(&fd, rustix::fs::SealFlags::SHRINK)?;
    Ok(fd)
}
