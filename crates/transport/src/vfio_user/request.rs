//! One VMM's requests, carried out on one device.
//!
//! Every function here may be interrupted by a panic in device code; what the session itself knows
//! (the memory map) is changed before the device is notified, so that it holds whatever the device does.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlane_device::pci::{AccessError, Expected, PciDevice, REGIONS};
use vmlane_mem::{MapError, MapRequest, MemoryMap};
use vmlane_state::Scope;
use vmlane_wire::vfio_user::{
    Command, DeviceInfo, DmaMap, DmaUnmap, IrqInfo, Kind, RegionAccess, RegionInfo, SetIrqs, SparseMmap,
    Version, irq_index, split,
};
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::error::RequestError;
use super::inbox::{MAX_FDS, Message};
use super::reply::Reply;
use super::set_irqs::{set_irqs, vectors};
use crate::handle::MemoryWatch;
use crate::irq::IrqSet;
use crate::kept::{MemoryName, hold};
use crate::stats::SessionStats;

/// Most bytes one register access may move; announced to the VMM.
pub const MAX_ACCESS: usize = 4096;

/// A region as announced, kept so that an access need not ask the device for descriptors again.
#[derive(Clone, Copy, Default)]
struct Extent {
    size: u64,
    readable: bool,
    writable: bool,
}

pub struct Requests<'d> {
    pub device: &'d mut dyn PciDevice,
    pub irqs: Arc<IrqSet>,
    pub map: MemoryMap,
    pub stats: Arc<SessionStats>,
    /// The device's wish after the last request.
    pub expected: Expected,
    /// Where descriptors are held for the next daemon.
    pub scope: Scope,
    watch: Arc<MemoryWatch>,
    /// The request at hand may have been carried out, in part or whole, by a previous daemon.
    pub again: bool,
    extents: [Extent; REGIONS],
}

impl<'d> Requests<'d> {
    pub fn new(
        device: &'d mut dyn PciDevice,
        irqs: Arc<IrqSet>,
        stats: Arc<SessionStats>,
        scope: Scope,
        watch: Arc<MemoryWatch>,
    ) -> Requests<'d> {
        Requests {
            device,
            irqs,
            map: MemoryMap::default(),
            stats,
            expected: Expected::default(),
            scope,
            watch,
            again: false,
            extents: Default::default(),
        }
    }

    /// Asks the device for its regions; called before the first request.
    pub fn survey(&mut self) {
        for (index, extent) in self.extents.iter_mut().enumerate() {
            let region = self.device.region(index);
            *extent = Extent { size: region.size, readable: region.readable, writable: region.writable };
        }
    }

    /// Carries one request out; what is to be answered goes into `reply`.
    pub fn handle(&mut self, message: Message<'_>, reply: &mut Reply) -> Result<(), RequestError> {
        let Message { header, payload, fds } = message;
        match header.kind() {
            Kind::Request => {}
            // Nothing was asked, so nothing is answered either; see `Session`.
            Kind::Reply => return Err(RequestError::Unsupported { what: "a reply without a request" }),
            Kind::Unknown(kind) => return Err(RequestError::Kind { kind }),
        }
        let code = header.command.get();
        let command = Command::from_code(code).ok_or(RequestError::Unknown { code })?;
        match command {
            Command::RegionRead => self.region_read(payload, reply),
            Command::RegionWrite => self.region_write(payload, header.no_reply(), reply),
            Command::Version => version(payload, reply),
            Command::DmaMap => self.dma_map(payload, fds),
            Command::DmaUnmap => self.dma_unmap(payload, reply),
            Command::DeviceInfo => device_info(payload, reply),
            Command::RegionInfo => self.region_info(payload, reply),
            Command::IrqInfo => self.irq_info(payload, reply),
            Command::SetIrqs => {
                let (set, data) = fixed::<SetIrqs>(payload)?;
                set_irqs(&self.irqs, &self.scope, self.device.irq_counts(), (set, data), fds)?;
                self.device.irqs_changed();
                Ok(())
            }
            Command::DeviceReset => {
                self.stats.counts.resets.inc();
                self.device.reset();
                Ok(())
            }
            Command::RegionIoFds => Err(RequestError::Unsupported { what: "DEVICE_GET_REGION_IO_FDS" }),
            Command::DmaRead => Err(RequestError::Unsupported { what: "DMA_READ towards the device" }),
            Command::DmaWrite => Err(RequestError::Unsupported { what: "DMA_WRITE towards the device" }),
            Command::DirtyPages => Err(RequestError::Unsupported { what: "DIRTY_PAGES" }),
        }
    }

    fn region_read(&mut self, payload: &[u8], reply: &mut Reply) -> Result<(), RequestError> {
        self.stats.counts.reads.inc();
        let (access, _) = fixed::<RegionAccess>(payload)?;
        let (region, len) = self.checked(access, |extent| extent.readable)?;
        reply.put(access);
        self.device.read(region, access.offset.get(), reply.space(len))?;
        Ok(())
    }

    fn region_write(&mut self, payload: &[u8], posted: bool, reply: &mut Reply) -> Result<(), RequestError> {
        self.stats.counts.writes.inc();
        if posted {
            self.stats.counts.posted_writes.inc();
        }
        let (access, data) = fixed::<RegionAccess>(payload)?;
        let (region, len) = self.checked(access, |extent| extent.writable)?;
        if data.len() != len {
            return Err(RequestError::Payload { have: payload.len(), need: size_of::<RegionAccess>() + len });
        }
        reply.put(access);
        self.device.write(region, access.offset.get(), data, posted)?;
        Ok(())
    }

    /// Region and length of an access that lies inside what was announced.
    fn checked(
        &self,
        access: &RegionAccess,
        allowed: impl Fn(&Extent) -> bool,
    ) -> Result<(usize, usize), RequestError> {
        let (region, offset, len) = (access.region.get(), access.offset.get(), access.count.get() as usize);
        if !(1..=MAX_ACCESS).contains(&len) {
            return Err(RequestError::Field { name: "access count", value: len as u64 });
        }
        let index = region as usize;
        let end = offset.checked_add(len as u64);
        let extent = self.extents.get(index).filter(|extent| allowed(extent));
        match (extent, end) {
            (Some(extent), Some(end)) if end <= extent.size => Ok((index, len)),
            _ => Err(AccessError::OutOfRange { region, offset, len }.into()),
        }
    }

    fn dma_map(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Result<(), RequestError> {
        let (map, _) = fixed::<DmaMap>(payload)?;
        self.stats.counts.dma_maps.inc();
        // ROMs, shadowed pieces below 1 MiB and the device's own BARs come without a file. They hold
        // nothing a driver would use; refusing them would only make the VMM complain.
        let Some(fd) = fds.into_iter().next() else { return Ok(()) };
        let (guest, len, offset) = (map.address.get(), map.size.get(), map.offset.get());
        if self.again && self.map.window(guest, 8, false).is_ok() {
            // The previous daemon had come this far.
            return Ok(());
        }
        let writable = map.writable();
        let kept = fd.try_clone();
        let mapped = self.stats.memory.map(&self.map, MapRequest { guest, len, offset, fd, writable });
        if matches!(mapped, Err(MapError::TooMany)) {
            self.stats.refused_regions.inc();
        }
        self.map = mapped?;
        self.note_map();
        if let Ok(fd) = kept {
            hold(&self.scope, &MemoryName { guest, len, offset, writable }.to_string(), &fd);
        }
        self.device.memory(&self.map);
        Ok(())
    }

    /// Another map is in force; the device is notified of it afterwards.
    pub(super) fn note_map(&self) {
        self.stats.regions.store(self.map.regions().count() as u64, Ordering::Relaxed);
        self.stats.memory.note(&self.map);
        let map = self.map.clone();
        if map.is_empty() { self.watch.clear() } else { self.watch.set(move || map.poisoned()) }
    }

    fn dma_unmap(&mut self, payload: &[u8], reply: &mut Reply) -> Result<(), RequestError> {
        let (unmap, _) = fixed::<DmaUnmap>(payload)?;
        self.stats.counts.dma_unmaps.inc();
        let (mut start, mut len) = (unmap.address.get(), unmap.size.get());
        let rest = match unmap.flags.get() {
            0 => self.map.unmap(start, len)?,
            DmaUnmap::ALL => {
                (start, len) = (0, u64::MAX);
                self.map.unmap_all()
            }
            DmaUnmap::DIRTY_BITMAP => {
                return Err(RequestError::Unsupported { what: "a bitmap of dirty pages" });
            }
            flags => return Err(RequestError::Field { name: "unmap flags", value: flags.into() }),
        };
        let gone: Vec<_> = self.map.regions().filter(|(guest, ..)| !rest.is_mapped(*guest)).collect();
        self.map = rest;
        self.note_map();
        self.device.unmap(start, len);
        self.device.memory(&self.map);
        for (guest, len) in gone {
            self.scope.remove_all(&format!("s/mem.{guest:x}.{len:x}."));
        }
        reply.put(unmap);
        Ok(())
    }

    fn region_info(&mut self, payload: &[u8], reply: &mut Reply) -> Result<(), RequestError> {
        let (request, _) = fixed::<RegionInfo>(payload)?;
        let index = request.index.get() as usize;
        let Some(extent) = self.extents.get_mut(index) else {
            return Err(RequestError::Field { name: "region index", value: index as u64 });
        };
        let region = self.device.region(index);
        *extent = Extent { size: region.size, readable: region.readable, writable: region.writable };
        let mut flags = 0;
        for (set, flag) in [
            (region.readable, RegionInfo::READ),
            (region.writable, RegionInfo::WRITE),
            (region.mmap.is_some(), RegionInfo::MMAP),
        ] {
            flags |= if set { flag } else { 0 };
        }
        // Without a list of areas the client maps the whole region from the descriptor.
        let sparse = region.mmap.as_ref().filter(|mapping| mapping.len < region.size);
        let sparse = sparse.map(|mapping| SparseMmap::first(mapping.len));
        let (mut argsz, mut cap_offset) = (size_of::<RegionInfo>() as u32, 0);
        if sparse.is_some() {
            (flags, cap_offset) = (flags | RegionInfo::CAPS, argsz);
            argsz += size_of::<SparseMmap>() as u32;
        }
        reply.put(&RegionInfo {
            argsz: U32::new(argsz),
            flags: U32::new(flags),
            index: request.index,
            cap_offset: U32::new(cap_offset),
            size: region.size.into(),
            offset: 0.into(),
        });
        // A client that asked with less room asks again.
        sparse.filter(|_| request.argsz.get() >= argsz).iter().for_each(|sparse| reply.put(sparse));
        if let Some(mapping) = region.mmap {
            reply.attach(mapping.file);
        }
        Ok(())
    }

    fn irq_info(&mut self, payload: &[u8], reply: &mut Reply) -> Result<(), RequestError> {
        let (request, _) = fixed::<IrqInfo>(payload)?;
        let index = request.index.get();
        if index >= irq_index::COUNT {
            return Err(RequestError::Field { name: "interrupt index", value: index.into() });
        }
        let count = vectors(self.device.irq_counts(), index);
        let flags = match index {
            _ if count == 0 => 0,
            irq_index::INTX => IrqInfo::EVENTFD | IrqInfo::MASKABLE | IrqInfo::AUTOMASKED,
            _ => IrqInfo::EVENTFD,
        };
        reply.put(&IrqInfo {
            argsz: U32::new(size_of::<IrqInfo>() as u32),
            flags: U32::new(flags),
            index: request.index,
            count: U32::new(count),
        });
        Ok(())
    }
}

/// The layout a command begins with, and what follows it.
fn fixed<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    payload: &[u8],
) -> Result<(&T, &[u8]), RequestError> {
    split(payload).ok_or(RequestError::Payload { have: payload.len(), need: size_of::<T>() })
}

/// Agrees on version 0.0. The peer's capabilities are not examined: nothing sent from here exceeds
/// what every peer must accept (one descriptor, answers of the size it asked for).
fn version(payload: &[u8], reply: &mut Reply) -> Result<(), RequestError> {
    let (version, data) = fixed::<Version>(payload)?;
    if version.major.get() != 0 {
        return Err(RequestError::Field { name: "major version", value: version.major.get().into() });
    }
    if !data.is_empty()
        && std::ffi::CStr::from_bytes_with_nul(data).ok().is_none_or(|text| text.to_str().is_err())
    {
        return Err(RequestError::VersionData);
    }
    reply.put(&Version { major: U16::ZERO, minor: U16::ZERO });
    let capabilities = format!(
        "{{\"capabilities\":{{\"max_msg_fds\":{MAX_FDS},\"max_data_xfer_size\":{MAX_ACCESS},\"pgsizes\":4096}}}}\0"
    );
    reply.space(capabilities.len()).copy_from_slice(capabilities.as_bytes());
    Ok(())
}

fn device_info(payload: &[u8], reply: &mut Reply) -> Result<(), RequestError> {
    fixed::<DeviceInfo>(payload)?;
    reply.put(&DeviceInfo {
        argsz: U32::new(size_of::<DeviceInfo>() as u32),
        flags: U32::new(DeviceInfo::RESET | DeviceInfo::PCI),
        num_regions: U32::new(REGIONS as u32),
        num_irqs: U32::new(irq_index::COUNT),
    });
    Ok(())
}
