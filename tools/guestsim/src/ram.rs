//! A guest's memory: one file, mapped here as the guest sees it and once more for its device.

use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use vmlane_mem::{MapRequest, MemoryMap, Pages, memfd};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Where the two halves begin: like a PC's, memory continues above 4 GiB.
const LOW: u64 = 1 << 20;
const HIGH: u64 = 1 << 32;

/// Where the pages of an allocation lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Anywhere, in any order, as in a guest that has run for a while.
    Scattered,
    /// One after the other.
    Contiguous,
}

/// Guest memory with a page allocator.
#[derive(Debug)]
pub struct Ram {
    fd: OwnedFd,
    half: u64,
    map: MemoryMap,
    allocator: Mutex<Allocator>,
}

#[derive(Debug)]
struct Allocator {
    used: Vec<bool>,
    free: usize,
    random: u64,
}

impl Ram {
    /// `bytes` of memory, rounded up to an even number of pages.
    pub fn new(bytes: u64) -> Ram {
        let half = bytes.div_ceil(2 * PAGE as u64) * PAGE as u64;
        let fd = memfd("guest-ram", 2 * half).expect("a memory file");
        let pages = (2 * half) as usize / PAGE;
        let allocator = Allocator { used: vec![false; pages], free: pages, random: 0x9e37_79b9_7f4a_7c15 };
        let map = map(&fd, half);
        Ram { fd, half, map, allocator: Mutex::new(allocator) }
    }

    /// The file.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// (guest address, bytes, offset in the file) of each region, as a VMM announces them.
    pub fn regions(&self) -> [(u64, u64, u64); 2] {
        regions(self.half)
    }

    /// A second mapping, for the device.
    pub fn device_map(&self) -> MemoryMap {
        map(&self.fd, self.half)
    }

    /// The guest's own view.
    pub fn map(&self) -> &MemoryMap {
        &self.map
    }

    /// Allocates zeroed pages; their guest addresses in logical order.
    pub fn alloc(&self, count: usize, placement: Placement) -> Vec<u64> {
        let mut allocator = self.allocator.lock();
        assert!(count <= allocator.free, "guest memory is spent: {count} pages of {}", allocator.free);
        let indices = match placement {
            Placement::Scattered => (0..count).map(|_| allocator.take_any()).collect(),
            Placement::Contiguous => allocator.take_run(count),
        };
        drop(allocator);
        let addresses: Vec<u64> = indices.into_iter().map(|index| self.address(index)).collect();
        for address in &addresses {
            self.write(*address, &[0; PAGE]);
        }
        addresses
    }

    /// Gives pages back.
    pub fn free(&self, addresses: &[u64]) {
        let mut allocator = self.allocator.lock();
        for address in addresses {
            let index = self.index(*address);
            assert!(std::mem::replace(&mut allocator.used[index], false), "{address:#x} freed twice");
            allocator.free += 1;
        }
    }

    /// Pages not in use.
    pub fn free_pages(&self) -> usize {
        self.allocator.lock().free
    }

    /// Allocated pages as one stretch of bytes.
    pub fn pages(&self, addresses: &[u64]) -> Pages {
        self.map.pages(addresses.iter().copied(), PAGE.trailing_zeros()).expect("pages of this memory")
    }

    pub fn read(&self, address: u64, out: &mut [u8]) {
        self.map.read(address, out).expect("an address of this memory");
    }

    pub fn write(&self, address: u64, data: &[u8]) {
        self.map.write(address, data).expect("an address of this memory");
    }

    fn address(&self, index: usize) -> u64 {
        let offset = (index * PAGE) as u64;
        if offset < self.half { LOW + offset } else { HIGH + offset - self.half }
    }

    fn index(&self, address: u64) -> usize {
        let offset = if address < HIGH { address - LOW } else { address - HIGH + self.half };
        offset as usize / PAGE
    }
}

impl Allocator {
    fn random(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random as usize
    }

    fn take_any(&mut self) -> usize {
        let pages = self.used.len();
        let start = self.random() % pages;
        let index = (0..pages).map(|step| (start + step) % pages).find(|index| !self.used[*index]);
        self.take(index.expect("counted before"))
    }

    /// The last run that is long enough and does not cross the hole between the halves.
    fn take_run(&mut self, count: usize) -> Vec<usize> {
        let half = self.used.len() / 2;
        let fits = |start: &usize| {
            (*start >= half || start + count <= half) && !self.used[*start..start + count].contains(&true)
        };
        let start = (0..=self.used.len() - count).rev().find(fits).expect("a long enough run of free pages");
        (start..start + count).map(|index| self.take(index)).collect()
    }

    fn take(&mut self, index: usize) -> usize {
        self.used[index] = true;
        self.free -= 1;
        index
    }
}

fn regions(half: u64) -> [(u64, u64, u64); 2] {
    [(LOW, half, 0), (HIGH, half, half)]
}

fn map(fd: &OwnedFd, half: u64) -> MemoryMap {
    regions(half).into_iter().fold(MemoryMap::default(), |map, (guest, len, offset)| {
        let fd = fd.try_clone().expect("one more descriptor");
        map.map(MapRequest { guest, len, offset, fd, writable: true }).expect("a mapping")
    })
}
