//! Shared memory for the baseline benchmarks: a memfd mapping.
//!
//! `unsafe` is opened here because the point is to measure memcpy on memory as the daemon and its guests
//! share it. The safe face rests on two facts: a `Mapping` is never resized or unmapped while it lives, and
//! it is only reached through `&mut`.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// Reached through `&mut` alone: see the head of the file.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// `len` bytes of a memfd, written once so that no page fault is measured.
    pub fn new(len: usize) -> io::Result<Mapping> {
        let file = rustix::fs::memfd_create("vmlane-enginebench", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing of ours; the memfd
        // is known to no one else and is never truncated.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, &file, 0)?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        // SAFETY: `base` is valid for `len` bytes, and no one else knows it yet.
        unsafe { base.as_ptr().write_bytes(0x5a, len) };
        Ok(Mapping { base, len })
    }

    /// Copies a block out of `from`, as one memcpy.
    pub fn copy_from(&mut self, at: usize, from: &Mapping, from_at: usize, len: usize) {
        assert!(at + len <= self.len && from_at + len <= from.len);
        // SAFETY: both ranges are inside their mappings (asserted), and two mappings never overlap:
        // `&mut self` cannot be `from`.
        unsafe {
            from.base.as_ptr().add(from_at).copy_to_nonoverlapping(self.base.as_ptr().add(at), len);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped, and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
