//! The memory that an uplink shares with its peer: two rings, and a buffer for each of their descriptors.
//!
//! It is made anew for each connection, so a peer that is gone reaches nothing of the next one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use vmlane_mem::{Fault, MapRequest, MemoryMap, Window, memfd};
use vmlane_wire::virtio::split_bytes;

/// Descriptors of a ring, and buffers.
pub const RING: u16 = 512;
/// Bytes of a buffer, the header's included: an ordinary frame fits; a longer one takes several. An odd
/// number of cache lines: with a power of two, the first lines of all buffers would compete for a few places
/// in the CPUs' caches.
pub const BUFFER: usize = 33 * 64;
/// The first byte's address, for the peer's rings and for its descriptors. Not 0, which some back ends take
/// for none.
pub const BASE: u64 = 1 << 32;
const PAGE: u64 = 4096;
const LINE: usize = 64;

/// Addresses of a ring's parts and of its buffers.
#[derive(Clone, Copy, Debug)]
pub struct RingAddresses {
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    pub buffers: u64,
}

/// A ring's parts, mapped.
#[derive(Debug)]
pub struct Areas {
    pub descriptors: Window,
    pub available: Window,
    pub used: Window,
}

/// The buffers of a ring, one after another.
#[derive(Debug)]
pub struct Buffers {
    window: Window,
    at: u64,
}

impl Buffers {
    /// The address of a buffer.
    #[inline]
    pub fn address(&self, id: u16) -> u64 {
        self.at + (usize::from(id) * BUFFER) as u64
    }

    /// The first 16 bytes of a buffer, little endian, each word loaded once. No call and no private copy: a
    /// copy that is stored as two words and loaded as one waits for all stores before it.
    #[inline]
    pub fn first_words(&self, id: u16) -> [u64; 2] {
        [0, 8].map(|at| self.window.load_u64(usize::from(id) * BUFFER + at))
    }

    /// Copies in what a buffer is to begin with.
    #[inline]
    pub fn write(&self, id: u16, data: &[u8]) {
        self.window.write(usize::from(id) * BUFFER, data);
    }

    /// Has the CPU fetch the first `lines` cache lines of a buffer, if there is such a one.
    #[inline]
    pub fn prefetch(&self, id: usize, lines: usize) {
        (0..lines).for_each(|line| self.window.prefetch(id * BUFFER + line * LINE));
    }

    /// The same for a buffer that is written soon.
    #[inline]
    pub fn prefetch_write(&self, id: usize, lines: usize) {
        (0..lines).for_each(|line| self.window.prefetch_write(id * BUFFER + line * LINE));
    }
}

/// All that a connection's rings need.
#[derive(Debug)]
pub struct Memory {
    file: OwnedFd,
    pub map: MemoryMap,
    /// Of the ring that the peer sends by, and of the one that it receives by.
    pub places: [RingAddresses; 2],
    len: u64,
}

impl Memory {
    /// Zeroed memory; no peer has it yet.
    pub fn new() -> io::Result<Memory> {
        let mut end = BASE;
        let mut take = |bytes: usize| {
            let at = end;
            end += (bytes as u64).next_multiple_of(PAGE);
            at
        };
        let places = [(); 2].map(|()| {
            let [descriptors, available, used] = split_bytes(RING).map(&mut take);
            RingAddresses { descriptors, available, used, buffers: take(usize::from(RING) * BUFFER) }
        });
        let len = end - BASE;
        let file = memfd("uplink", len)?;
        let request = MapRequest { guest: BASE, len, offset: 0, fd: file.try_clone()?, writable: true };
        let map = MemoryMap::default().map(request).map_err(io::Error::other)?;
        Ok(Memory { file, map, places, len })
    }

    /// The file, sealed against shrinking, and its bytes.
    pub fn file(&self) -> (BorrowedFd<'_>, u64) {
        (self.file.as_fd(), self.len)
    }

    /// A ring and its buffers, mapped.
    pub fn areas(&self, place: &RingAddresses) -> Result<(Areas, Buffers), Fault> {
        let [descriptors, available, used] = split_bytes(RING);
        // Windows end at a multiple of 8; the pages do not end before.
        let window = |at, len: usize| self.map.window(at, len.next_multiple_of(8), true);
        let areas = Areas {
            descriptors: window(place.descriptors, descriptors)?,
            available: window(place.available, available)?,
            used: window(place.used, used)?,
        };
        let window = window(place.buffers, usize::from(RING) * BUFFER)?;
        Ok((areas, Buffers { window, at: place.buffers }))
    }
}
