//! Memory that the front end keeps for a back end: where chains in flight are noted, and dirty pages.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use vmlane_device::virtio::log::DirtyLog;
use vmlane_device::virtio::queue::{Record, record_bytes};
use vmlane_mem::{Window, memfd};
use vmlane_wire::vhost_user::{InflightArea, LogBase};
use vmlane_wire::virtio::MAX_RING;

use super::error::RequestError;

/// Bytes of the largest log: one for 16 TiB of guest memory.
const MAX_LOG: u64 = 512 << 20;

/// Where chains in flight are noted, ring by ring.
#[derive(Clone, Debug)]
pub struct Inflight {
    window: Arc<Window>,
    rings: usize,
    ring_size: u16,
}

/// What a message describes, as far as it can be.
fn shape(area: &InflightArea, most: usize) -> Result<(usize, u16), RequestError> {
    let (rings, size) = (usize::from(area.rings.get()), area.ring_size.get());
    if rings == 0 || rings > most {
        return Err(RequestError::Field { name: "number of rings in flight", value: rings as u64 });
    }
    if size == 0 || size > MAX_RING {
        return Err(RequestError::Field { name: "size of rings in flight", value: size.into() });
    }
    Ok((rings, size))
}

impl Inflight {
    /// New memory for what `area` asks for, at most `most` rings: what to answer, and the file.
    pub fn create(area: &InflightArea, most: usize) -> Result<(InflightArea, OwnedFd), RequestError> {
        let (rings, size) = shape(area, most)?;
        let bytes = (rings * record_bytes(size)).next_multiple_of(4096) as u64;
        let file = memfd("vmlane-inflight", bytes).map_err(RequestError::Memory)?;
        Ok((InflightArea { size: bytes.into(), offset: 0.into(), ..*area }, file))
    }

    /// The memory in `file`, which the front end had from us or from a previous daemon.
    pub fn open(area: &InflightArea, file: &OwnedFd, most: usize) -> Result<Inflight, RequestError> {
        let (rings, ring_size) = shape(area, most)?;
        let need = (rings * record_bytes(ring_size)) as u64;
        if area.size.get() < need {
            return Err(RequestError::Field { name: "bytes for chains in flight", value: area.size.get() });
        }
        let window = Window::of_part(file, area.offset.get(), need).map_err(RequestError::Memory)?;
        Ok(Inflight { window: Arc::new(window), rings, ring_size })
    }

    /// The record of a ring; None: there is none for it.
    pub fn record(&self, ring: usize, size: u16) -> Option<Record> {
        let fits = ring < self.rings && size <= self.ring_size;
        fits.then(|| Record::new(&self.window, ring, self.ring_size)).flatten()
    }

    pub fn poisoned(&self) -> bool {
        self.window.poisoned()
    }
}

/// The log that a front end wants kept.
pub fn log(base: &LogBase, file: &OwnedFd) -> Result<DirtyLog, RequestError> {
    let size = base.size.get();
    if size > MAX_LOG {
        return Err(RequestError::Field { name: "bytes of the log", value: size });
    }
    let window = Window::of_part(file, base.offset.get(), size).map_err(RequestError::Memory)?;
    Ok(DirtyLog::new(Arc::new(window)))
}
