//! One entry of the table of mappings: a range of addresses that a signal handler reads while other threads
//! change it.
//!
//! The two words of the range have a version, odd while they change: a reader that saw it change leaves the
//! entry alone. What a reader looks for is a mapping that it uses itself, so that the entry it needs does not
//! change.

use crate::sync::{AtomicBool, AtomicUsize, Ordering, fence};

/// Where a mapping is. Threads register and free entries; a handler on any thread may read them at the same
/// time.
#[derive(Debug)]
pub struct Slot {
    used: AtomicBool,
    version: AtomicUsize,
    start: AtomicUsize,
    len: AtomicUsize,
    /// How often the mapping was replaced by zeros.
    hits: AtomicUsize,
}

impl Slot {
    pub fn new() -> Slot {
        Slot {
            used: AtomicBool::new(false),
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            hits: AtomicUsize::new(0),
        }
    }

    /// Registers `[start, start + len)`, if the entry is free.
    pub fn claim(&self, start: usize, len: usize) -> bool {
        if self.used.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        self.hits.store(0, Ordering::Relaxed);
        self.set(start, len);
        true
    }

    /// The entry is free again. To be called before its mapping is unmapped.
    pub fn free(&self) {
        self.set(0, 0);
        self.used.store(false, Ordering::Release);
    }

    /// Changes the range. Only the thread that has claimed the entry does.
    fn set(&self, start: usize, len: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // No reader sees a word of the new range and the version of the old one.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Start and bytes of the registered range, if `address` is in it.
    pub fn range_around(&self, address: usize) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let len = self.len.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (whole && address.checked_sub(start)? < len).then_some((start, len))
    }

    /// The mapping was replaced by zeros. Returns how often it had been before.
    pub fn count_hit(&self) -> usize {
        self.hits.fetch_add(1, Ordering::Relaxed)
    }

    pub fn is_hit(&self) -> bool {
        self.hits.load(Ordering::Relaxed) > 0
    }
}
