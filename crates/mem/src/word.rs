//! One word of guest memory that is examined over and over.
#![allow(unsafe_code)] // atomics on mapped memory

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::region::Region;

/// One word of some pages, found once: an index that is examined over and over. Little-endian in
/// memory.
#[derive(Debug)]
pub struct Word {
    at: NonNull<u64>,
    /// Keeps the mapping under `at` alive.
    _keep: Arc<[Arc<Region>]>,
}

// SAFETY: a pointer into a shared mapping kept alive by `_keep`; accessed atomically only.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

/// # Safety
/// `at` is in a mapping that lives for `'a`.
#[inline]
pub(crate) unsafe fn atomic<'a>(at: NonNull<u64>) -> &'a AtomicU64 {
    // SAFETY: alive (the caller's promise), aligned (pages are, and offsets are multiples of eight), and
    // only ever accessed atomically by this process.
    unsafe { AtomicU64::from_ptr(at.as_ptr()) }
}

impl Word {
    /// `at` lies in one of the mappings, at a multiple of eight.
    pub(crate) fn new(at: NonNull<u64>, keep: Arc<[Arc<Region>]>) -> Word {
        Word { at, _keep: keep }
    }

    #[inline]
    fn atomic(&self) -> &AtomicU64 {
        // SAFETY: `_keep` keeps the mapping alive as long as `self`.
        unsafe { atomic(self.at) }
    }

    /// Loads it (acquire): what was written before it is visible after.
    #[inline]
    pub fn load(&self) -> u64 {
        u64::from_le(self.atomic().load(Ordering::Acquire))
    }

    /// Stores it (release).
    #[inline]
    pub fn store(&self, value: u64) {
        self.atomic().store(value.to_le(), Ordering::Release);
    }

    /// Stores it and orders it (and all before it) before every later load of the caller: a store and
    /// a full fence in one.
    #[inline]
    pub fn store_fenced(&self, value: u64) {
        if cfg!(target_arch = "x86_64") {
            // A locked exchange is a full barrier, and cheaper than a store with a fence behind it.
            self.atomic().swap(value.to_le(), Ordering::SeqCst);
        } else {
            self.store(value);
            fence(Ordering::SeqCst);
        }
    }
}
