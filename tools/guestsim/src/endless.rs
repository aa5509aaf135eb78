//! One end of a stream that always has bytes to send and takes everything: for tests of workers of streams.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use vmlane_mem::{MapRequest, MemoryMap, Pages, memfd};
use vmlane_port::{Bytes, End, Notifications, PortFault, RingSlice, StreamInfo, StreamPort, Survival};

/// Bytes of its ring.
pub const RING: usize = 64 << 10;

/// In place of how much an end has: its rings make no sense.
pub const BROKEN: usize = usize::MAX;

/// What such ends have counted.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Bytes that were taken from them.
    pub sent: Arc<AtomicU64>,
    /// How often some were.
    pub turns: Arc<AtomicU64>,
    /// How often they were asked what they have.
    pub polls: Arc<AtomicU64>,
}

/// An owner's end that always has a whole chunk to send, and takes everything.
pub struct Endless {
    pages: Pages,
    /// Bytes it has at a time.
    chunk: usize,
    counts: Counts,
}

impl Endless {
    /// One that has `chunk` bytes at a time, 0: none.
    pub fn new(chunk: usize, counts: Counts) -> Endless {
        let map = if (1..BROKEN).contains(&chunk) { map() } else { UNUSED.clone() };
        Endless {
            pages: map.pages((0..RING as u64).step_by(4096), 12).expect("pages of this memory"),
            chunk,
            counts,
        }
    }

    fn ring(&self) -> RingSlice<'_> {
        RingSlice { pages: &self.pages, base: 0, size: RING, at: 0 }
    }
}

/// The memory of all that send nothing.
static UNUSED: LazyLock<MemoryMap> = LazyLock::new(map);

fn map() -> MemoryMap {
    let fd: OwnedFd = memfd("endless", RING as u64).expect("a memory file");
    let request = MapRequest { guest: 0, len: RING as u64, offset: 0, fd, writable: true };
    MemoryMap::default().map(request).expect("a mapping")
}

impl StreamPort for Endless {
    fn readable(&mut self) -> Result<usize, PortFault> {
        self.counts.polls.fetch_add(1, Ordering::Relaxed);
        if self.chunk == BROKEN {
            return Err(PortFault::out_of_ring("tail", u64::MAX, RING as u64));
        }
        Ok(self.chunk)
    }

    fn source(&self) -> Bytes<'_> {
        Bytes::Ring(self.ring())
    }

    fn consume(&mut self, len: usize) -> Result<(), PortFault> {
        self.counts.sent.fetch_add(len as u64, Ordering::Relaxed);
        self.counts.turns.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn arm_readable(&mut self) -> Result<bool, PortFault> {
        Ok(self.chunk == 0)
    }

    fn writable(&mut self) -> Result<usize, PortFault> {
        Ok(RING)
    }

    fn keep_free(&self) -> usize {
        0
    }

    fn fill(&mut self, from: Bytes<'_>, len: usize) -> Result<(), PortFault> {
        from.copy_to(self.ring(), len);
        Ok(())
    }

    fn arm_writable(&mut self) -> Result<bool, PortFault> {
        Ok(true)
    }

    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        Ok(())
    }

    fn end(&mut self, _end: End) {}

    fn info(&self) -> StreamInfo<'_> {
        StreamInfo::default()
    }

    fn notifications(&mut self) -> Option<&mut dyn Notifications> {
        None
    }

    fn survival(&mut self) -> Option<&mut dyn Survival> {
        None
    }
}
