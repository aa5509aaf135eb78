//! Guest addresses to mapped memory: an immutable snapshot, replaced as a whole on every change.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::file::{Backing, FileError, PAGE};
use crate::pages::Pages;
use crate::region::Region;
use crate::window::Window;

/// Regions one VM may map; QEMU needs about ten, more with memory hot-plug.
pub const MAX_REGIONS: usize = 64;

/// A piece of guest memory to map: `len` bytes at guest address `guest`, found at `offset` of `fd`.
#[derive(Debug)]
pub struct MapRequest {
    pub guest: u64,
    pub len: u64,
    pub offset: u64,
    pub fd: OwnedFd,
    pub writable: bool,
}

/// Why a change of the memory map was refused. The map in force stays as it was.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    #[error("memory region {guest:#x}+{len:#x} at file offset {offset:#x} is empty, unaligned or overflows")]
    Shape { guest: u64, len: u64, offset: u64 },
    #[error("memory region {guest:#x}+{len:#x} overlaps one that is mapped already")]
    Overlap { guest: u64, len: u64 },
    #[error("memory region {guest:#x} needs {need:#x} bytes of its file, which has {have:#x}")]
    FileTooSmall { guest: u64, need: u64, have: u64 },
    #[error("more than {MAX_REGIONS} memory regions")]
    TooMany,
    #[error(
        "memory region {guest:#x}+{len:#x} is more than the {limit:#x} bytes of memory that the VM may have"
    )]
    TooLarge { guest: u64, len: u64, limit: u64 },
    #[error("memory region {guest:#x}: {source}")]
    File { guest: u64, source: FileError },
    #[error("unmapping {guest:#x}+{len:#x} would cut a mapped region in two")]
    Cut { guest: u64, len: u64 },
    #[error("mapping guest memory at {guest:#x}: {source}")]
    Host { guest: u64, source: io::Error },
}

/// A guest address that is not (or not wholly, or not writably) backed by mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("guest memory {addr:#x}+{len:#x} is not mapped or not writable")]
pub struct Fault {
    pub addr: u64,
    pub len: u64,
}

/// What one VM's guest addresses mean. Cheap to clone; holders keep the mappings alive.
#[derive(Clone, Debug, Default)]
pub struct MemoryMap {
    /// Sorted by guest address, never overlapping.
    regions: Arc<Vec<Arc<Region>>>,
}

impl MemoryMap {
    /// The mapping of a file of ours, for lists of pieces of it: an address is an offset in the file.
    pub fn of_file(window: &Window) -> MemoryMap {
        MemoryMap { regions: Arc::new(vec![window.region().clone()]) }
    }

    /// The map with one region more.
    pub fn map(&self, request: MapRequest) -> Result<MemoryMap, MapError> {
        self.map_within(request, u64::MAX)
    }

    /// The same, of at most `limit` bytes in all.
    pub fn map_within(&self, request: MapRequest, limit: u64) -> Result<MemoryMap, MapError> {
        let MapRequest { guest, len, offset, fd, writable } = request;
        let end = guest.checked_add(len);
        let file_end = offset.checked_add(len);
        let aligned = [guest, len, offset].iter().all(|value| value.is_multiple_of(PAGE));
        let (Some(end), Some(file_end), true, true) = (end, file_end, aligned, len > 0) else {
            return Err(MapError::Shape { guest, len, offset });
        };
        if self.regions.len() >= MAX_REGIONS {
            return Err(MapError::TooMany);
        }
        if self.regions.iter().any(|region| region.guest < end && guest < region.guest + region.len) {
            return Err(MapError::Overlap { guest, len });
        }
        if self.len().checked_add(len).is_none_or(|sum| sum > limit) {
            return Err(MapError::TooLarge { guest, len, limit });
        }
        let Backing { len: have, page, id, reports_pages } =
            Backing::of(fd.as_fd()).map_err(|source| MapError::File { guest, source })?;
        if file_end > have {
            return Err(MapError::FileTooSmall { guest, need: file_end, have });
        }
        let region = Region::of_pages(guest, len, &fd, offset, (writable, page))
            .map_err(|source| MapError::Host { guest, source })?;
        if writable && page == PAGE && reports_pages {
            region.list(id);
        }
        let mut regions: Vec<_> = self.regions.iter().cloned().collect();
        let at = regions.partition_point(|other| other.guest < guest);
        regions.insert(at, Arc::new(region));
        Ok(MemoryMap { regions: Arc::new(regions) })
    }

    /// The map without the regions inside `[guest, guest + len)`; a region may not be cut.
    pub fn unmap(&self, guest: u64, len: u64) -> Result<MemoryMap, MapError> {
        let end = guest.checked_add(len).ok_or(MapError::Shape { guest, len, offset: 0 })?;
        let mut regions = Vec::with_capacity(self.regions.len());
        for region in self.regions.iter() {
            let region_end = region.guest + region.len;
            if region_end <= guest || region.guest >= end {
                regions.push(region.clone());
            } else if region.guest < guest || region_end > end {
                return Err(MapError::Cut { guest, len });
            }
        }
        Ok(MemoryMap { regions: Arc::new(regions) })
    }

    /// Its regions, each as one of `file`.
    #[cfg(test)]
    pub(crate) fn large(&self, file: crate::file::FileId) -> Vec<crate::region::Large> {
        self.regions.iter().filter_map(|region| region.large(file)).collect()
    }

    /// Guest address and bytes of every region.
    pub fn regions(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.regions.iter().map(|region| (region.guest, region.len))
    }

    /// Is there memory at `addr`?
    pub fn is_mapped(&self, addr: u64) -> bool {
        self.find(addr).is_some()
    }

    /// The empty map.
    pub fn unmap_all(&self) -> MemoryMap {
        MemoryMap::default()
    }

    /// True once a memory file turned out shorter than promised: its contents are lost.
    pub fn poisoned(&self) -> bool {
        self.regions.iter().any(|region| region.poisoned())
    }

    /// Bytes mapped.
    pub fn len(&self) -> u64 {
        self.regions.iter().map(|region| region.len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    fn find(&self, addr: u64) -> Option<&Arc<Region>> {
        let after = self.regions.partition_point(|region| region.guest <= addr);
        let region = self.regions.get(after.checked_sub(1)?)?;
        (addr - region.guest < region.len).then_some(region)
    }

    /// Are these clones of one map?
    pub(crate) fn is(&self, other: &MemoryMap) -> bool {
        Arc::ptr_eq(&self.regions, &other.regions)
    }

    /// The region around `addr`, if it may be used so.
    pub(crate) fn region(&self, addr: u64, writable: bool) -> Option<&Region> {
        self.find(addr).filter(|region| region.writable || !writable).map(Arc::as_ref)
    }

    /// `[addr, addr + len)` to be held: inside one region, `addr` a multiple of 8.
    pub fn window(&self, addr: u64, len: usize, writable: bool) -> Result<Window, Fault> {
        let fault = Fault { addr, len: len as u64 };
        let region = self.find(addr).filter(|region| region.writable || !writable).ok_or(fault)?;
        if len == 0 || !addr.is_multiple_of(8) || region.len - (addr - region.guest) < len as u64 {
            return Err(fault);
        }
        Ok(Window::new(region.at(addr - region.guest), len, writable, region.clone()))
    }

    /// Walks `[addr, addr + len)` piece by piece after checking that all of it is mapped.
    fn each(
        &self,
        addr: u64,
        len: usize,
        writable: bool,
        mut piece: impl FnMut(&Region, u64, std::ops::Range<usize>),
    ) -> Result<(), Fault> {
        let fault = Fault { addr, len: len as u64 };
        addr.checked_add(len as u64).ok_or(fault)?;
        for dry in [true, false] {
            let mut done = 0;
            while done < len {
                let at = addr + done as u64;
                let region = self.find(at).filter(|region| region.writable || !writable).ok_or(fault)?;
                let offset = at - region.guest;
                let here = (len - done).min(usize::try_from(region.len - offset).unwrap_or(usize::MAX));
                if !dry {
                    piece(region, offset, done..done + here);
                }
                done += here;
            }
        }
        Ok(())
    }

    /// Copies guest bytes out, once.
    pub fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        let len = out.len();
        self.each(addr, len, false, |region, offset, range| region.read(offset, &mut out[range]))
    }

    /// Copies bytes in; nothing is written unless all of the range is mapped writable.
    pub fn write(&self, addr: u64, data: &[u8]) -> Result<(), Fault> {
        self.each(addr, data.len(), true, |region, offset, range| region.write(offset, &data[range]))
    }

    /// Checks that `[addr, addr + len)` is mapped writable.
    pub fn check_writable(&self, addr: u64, len: usize) -> Result<(), Fault> {
        self.each(addr, len, true, |_, _, _| {})
    }

    /// Publishes a 32-bit little-endian word after all earlier writes (release). 4-byte aligned.
    pub fn store_u32(&self, addr: u64, value: u32) -> Result<(), Fault> {
        let fault = Fault { addr, len: 4 };
        if !addr.is_multiple_of(4) {
            return Err(fault);
        }
        let region = self.find(addr).filter(|region| region.writable).ok_or(fault)?;
        region.store_u32(addr - region.guest, value);
        Ok(())
    }

    /// Resolves whole pages of `1 << shift` bytes, writable, in the order given: a queue's memory.
    pub fn pages(&self, addrs: impl Iterator<Item = u64>, shift: u32) -> Result<Pages, Fault> {
        let size = 1u64 << shift;
        let mut pointers = Vec::with_capacity(addrs.size_hint().0);
        let mut keep: Vec<Arc<Region>> = Vec::new();
        for addr in addrs {
            let fault = Fault { addr, len: size };
            let region = self.find(addr).filter(|region| region.writable).ok_or(fault)?;
            if !addr.is_multiple_of(size) || region.len - (addr - region.guest) < size {
                return Err(fault);
            }
            pointers.push(region.at(addr - region.guest));
            if !keep.iter().any(|kept| Arc::ptr_eq(kept, region)) {
                keep.push(region.clone());
            }
        }
        Ok(Pages::new(pointers, shift, keep))
    }
}
