//! A shared file of our own, mapped: only daemons use it, one after the other.
#![allow(unsafe_code)] // mmap, and slices over it

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Unusable;

/// `len` bytes of a file that cannot shrink.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory, owned by this value in this process.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A fresh file, zeroed.
    pub fn create(name: &str, len: usize) -> io::Result<(Mapping, OwnedFd)> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
        Ok((Mapping::map(&file, len)?, file))
    }

    /// A file that a previous daemon made.
    pub fn open(file: &OwnedFd, len: usize) -> Result<Mapping, Unusable> {
        let have = rustix::fs::fstat(file).map_err(io::Error::from)?.st_size as u64;
        let sealed = rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if have < len as u64 || !sealed {
            return Err(Unusable::Short { have, need: len as u64 });
        }
        Ok(Mapping::map(file, len)?)
    }

    fn map(file: &OwnedFd, len: usize) -> io::Result<Mapping> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, len })
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped with this length as long as `self` lives, of a file that cannot shrink; only
        // this value's owner writes.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed for one.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    /// The word at `at`; 0 outside the mapping.
    pub fn word(&self, at: usize) -> u64 {
        let bytes = self.bytes().get(at..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Stores a word in one piece, after everything stored before it. `at` is a multiple of 8.
    pub fn set_word(&mut self, at: usize, value: u64) {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len);
        // SAFETY: inside the mapping and aligned (mappings are page-aligned).
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
            .store(value.to_le(), std::sync::atomic::Ordering::Release);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; slices into it have ended with their borrows.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
