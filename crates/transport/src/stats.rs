//! What one device's sessions did, counted, and the memory that they may map; readers never disturb them.

use std::sync::atomic::{AtomicU64, Ordering};

use vmlane_mem::{MapError, MapRequest, MemoryMap};

/// Counters of one device, over all its sessions, only ever incremented; and the bound of its memory. Many fields: one for
/// each thing that `vmlane stats` tells.
#[derive(Debug, Default)]
pub struct SessionStats {
    /// Connections served, the present one included.
    pub sessions: AtomicU64,
    /// Connections turned away because another VMM was being served.
    pub refused: AtomicU64,
    /// Connections closed because their process was not the owner's, root's or the daemon's user's.
    pub refused_peers: AtomicU64,
    pub messages: AtomicU64,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    /// Writes (counted in `writes` too) whose sender asked for no reply.
    pub posted_writes: AtomicU64,
    /// Requests answered with an error, or that would have been had an answer been wanted.
    pub errors: AtomicU64,
    /// Faults in device code that were contained.
    pub panics: AtomicU64,
    pub resets: AtomicU64,
    pub dma_maps: AtomicU64,
    pub dma_unmaps: AtomicU64,
    /// Interrupts delivered to a connected vector.
    pub irqs_raised: AtomicU64,
    /// Streams that could not be understood any further.
    pub protocol_errors: AtomicU64,
    /// Descriptors closed because no message wanted them.
    pub surplus_fds: AtomicU64,
    /// Memory regions mapped now (a gauge), and how often there would have been too many.
    pub regions: AtomicU64,
    pub refused_regions: AtomicU64,
    pub memory: MemoryBound,
}

/// How much guest memory a device may map.
#[derive(Debug)]
pub struct MemoryBound {
    limit: AtomicU64,
    used: AtomicU64,
    refused: AtomicU64,
}

impl Default for MemoryBound {
    fn default() -> MemoryBound {
        MemoryBound { limit: u64::MAX.into(), used: 0.into(), refused: 0.into() }
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
        (load(&self.used), load(&self.limit), load(&self.refused))
    }

    /// `map` with one region more, within the limit.
    pub(crate) fn map(&self, map: &MemoryMap, request: MapRequest) -> Result<MemoryMap, MapError> {
        let mapped = map.map_within(request, self.limit.load(Ordering::Relaxed));
        if let Err(MapError::TooLarge { .. }) = mapped {
            count(&self.refused);
        }
        mapped
    }

    /// `map` is in force.
    pub(crate) fn note(&self, map: &MemoryMap) {
        self.used.store(map.len(), Ordering::Relaxed);
    }
}

impl SessionStats {
    /// Memory regions mapped now, and how often the VMM wanted more than it may have.
    pub fn regions(&self) -> (u64, u64) {
        (self.regions.load(Ordering::Relaxed), self.refused_regions.load(Ordering::Relaxed))
    }

    /// Faults in device code that were contained.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Name and value of every counter.
    pub fn snapshot(&self) -> [(&'static str, u64); 15] {
        [
            ("sessions", &self.sessions),
            ("refused", &self.refused),
            ("refused_peers", &self.refused_peers),
            ("messages", &self.messages),
            ("reads", &self.reads),
            ("writes", &self.writes),
            ("posted_writes", &self.posted_writes),
            ("errors", &self.errors),
            ("panics", &self.panics),
            ("resets", &self.resets),
            ("dma_maps", &self.dma_maps),
            ("dma_unmaps", &self.dma_unmaps),
            ("irqs_raised", &self.irqs_raised),
            ("protocol_errors", &self.protocol_errors),
            ("surplus_fds", &self.surplus_fds),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}

/// One more. Relaxed: counters order nothing.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
