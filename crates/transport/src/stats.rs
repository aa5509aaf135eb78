//! What one device's sessions did, counted, and the memory that they may map; readers never disturb them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vmlane_mem::{MapError, MapRequest, MemoryMap};
use vmlane_stats::{Counter, Counters as _, Kept, counters};

/// What `vmlane stats` reports of one device's sessions, and the bounds of its memory.
#[derive(Debug, Default)]
pub struct SessionStats {
    /// They may outlive the daemon.
    pub counts: Kept<SessionCounts>,
    /// Memory regions mapped now (a gauge), and how often there would have been too many.
    pub regions: AtomicU64,
    pub refused_regions: Counter,
    pub memory: MemoryBound,
    /// Of a vhost-user device: a driver has run its rings since the session began or the device was reset.
    pub(crate) has_run: AtomicBool,
}

counters! {
    /// Counters of one device, over all its sessions.
    pub struct SessionCounts {
        /// Connections served, the present one included; one that went on with another daemon counts once.
        sessions,
        /// Connections turned away because another VMM was being served.
        refused,
        /// Connections closed because their process was not the owner's, root's or the daemon's user's.
        refused_peers,
        messages,
        reads,
        writes,
        /// Writes (counted in `writes` too) whose sender asked for no reply.
        posted_writes,
        /// Requests answered with an error, or that would have been had an answer been wanted.
        errors,
        /// Faults in device code that were contained.
        panics,
        resets,
        dma_maps,
        dma_unmaps,
        /// Interrupts delivered to a connected vector.
        irqs_raised,
        /// Streams that could not be understood any further.
        protocol_errors,
        /// Descriptors closed because no message wanted them.
        surplus_fds,
    }
}

/// How much guest memory a device may map.
#[derive(Debug)]
pub struct MemoryBound {
    limit: AtomicU64,
    used: AtomicU64,
    refused: Counter,
}

impl Default for MemoryBound {
    fn default() -> MemoryBound {
        MemoryBound { limit: u64::MAX.into(), used: 0.into(), refused: Counter::default() }
    }
}

impl MemoryBound {
    /// Bytes that may be mapped from now on. What is mapped stays.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes mapped now, bytes that may be, and how often a VMM wanted more.
    pub fn usage(&self) -> (u64, u64, u64) {
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        (load(&self.used), load(&self.limit), self.refused.get())
    }

    /// `map` with one region more, within the limit.
    pub(crate) fn map(&self, map: &MemoryMap, request: MapRequest) -> Result<MemoryMap, MapError> {
        let mapped = map.map_within(request, self.limit.load(Ordering::Relaxed));
        if let Err(MapError::TooLarge { .. }) = mapped {
            self.refused.inc();
        }
        mapped
    }

    /// `map` is in force.
    pub(crate) fn note(&self, map: &MemoryMap) {
        self.used.store(map.len(), Ordering::Relaxed);
    }
}

impl SessionStats {
    /// Counts on from what `counts` has.
    pub fn continuing(counts: Kept<SessionCounts>) -> SessionStats {
        SessionStats { counts, ..SessionStats::default() }
    }

    /// Memory regions mapped now, and how often the VMM wanted more than it may have.
    pub fn regions(&self) -> (u64, u64) {
        (self.regions.load(Ordering::Relaxed), self.refused_regions.get())
    }

    /// Of a vhost-user device: has a driver run its rings since the session began or the device was reset?
    pub fn has_run(&self) -> bool {
        self.has_run.load(Ordering::Relaxed)
    }

    /// Faults in device code that were contained.
    pub fn panics(&self) -> u64 {
        self.counts.panics.get()
    }

    /// Name and value of every counter.
    pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
        self.counts.snapshot()
    }
}

/// Runs device code whose failure must not keep the rest from happening. False: it failed.
pub(crate) fn guarded(stats: &SessionStats, work: impl FnOnce()) -> bool {
    let done = catch_unwind(AssertUnwindSafe(work)).is_ok();
    if !done {
        stats.counts.panics.inc();
    }
    done
}
