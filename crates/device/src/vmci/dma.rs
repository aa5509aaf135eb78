//! Datagrams by DMA buffers: Linux 5.18 and later. Source: `docs/devices/vmci.md`, "DMA path".
//!
//! A vCPU spins with interrupts off until `busy` changes, so every path here ends by changing it,
//! whatever the guest wrote, unless the header itself cannot be written.

use vmlane_mem::MemoryMap;
use vmlane_wire::vmci::{
    DATAGRAM_HEADER, DMA_BUSY, DMA_HEADER, DMA_INLINE, DMA_LIST, DMA_MAX_ELEMENTS, DMA_RESULT, DmaElement,
    DmaHeader, MAX_DATAGRAM, VmciError,
};
use zerocopy::FromBytes;

use super::inbox::Inbox;
use super::tables::Hypervisor;

/// Bytes a receive buffer may have at most; Linux offers 69632.
const MAX_RECEIVE: usize = 1 << 20;
/// Ends a batch: a destination of {~0, ~0}.
const TERMINATOR: [u8; DATAGRAM_HEADER] = [0xff; DATAGRAM_HEADER];

/// Why a buffer cannot be used.
pub struct BadBuffer;

/// The guest's header and the ranges (address, bytes) it describes.
fn describe(memory: &MemoryMap, addr: u64) -> Result<Vec<(u64, usize)>, BadBuffer> {
    let mut raw = [0; DMA_HEADER];
    memory.read(addr, &mut raw).map_err(|_| BadBuffer)?;
    let header = DmaHeader::read_from_bytes(&raw).map_err(|_| BadBuffer)?;
    let body = addr.checked_add(DMA_HEADER as u64).ok_or(BadBuffer)?;
    let mut ranges = Vec::with_capacity(1);
    match header.opcode() {
        DMA_INLINE => ranges.push((body, header.size() as usize)),
        DMA_LIST if header.size() <= DMA_MAX_ELEMENTS => {
            for index in 0..u64::from(header.size()) {
                let mut raw = [0; size_of::<DmaElement>()];
                memory.read(body + index * raw.len() as u64, &mut raw).map_err(|_| BadBuffer)?;
                let element = DmaElement::read_from_bytes(&raw).map_err(|_| BadBuffer)?;
                let size = usize::try_from(element.size.get()).map_err(|_| BadBuffer)?;
                ranges.push((element.addr.get(), size));
            }
        }
        _ => return Err(BadBuffer),
    }
    let total = ranges.iter().try_fold(0usize, |sum, (_, size)| sum.checked_add(*size)).ok_or(BadBuffer)?;
    if total <= MAX_RECEIVE { Ok(ranges) } else { Err(BadBuffer) }
}

/// Copies the datagram out of the send buffer at `addr`, once, into `out`.
pub fn fetch(memory: &MemoryMap, addr: u64, out: &mut Vec<u8>) -> Result<(), BadBuffer> {
    out.clear();
    let ranges = describe(memory, addr)?;
    let total: usize = ranges.iter().map(|(_, size)| size).sum();
    if total > MAX_DATAGRAM {
        return Err(BadBuffer);
    }
    out.resize(total, 0);
    let mut rest = &mut out[..];
    for (addr, size) in ranges {
        let (here, after) = rest.split_at_mut(size);
        memory.read(addr, here).map_err(|_| BadBuffer)?;
        rest = after;
    }
    Ok(())
}

/// Notifies the guest that its send is done. Returns false if the header cannot be written.
pub fn finish_send(memory: &MemoryMap, addr: u64, result: i32) -> bool {
    let at = |offset| addr.saturating_add(offset);
    let _ = memory.write(at(DMA_RESULT), &i64::from(result).to_le_bytes());
    // Only now may the vCPU continue.
    memory.store_u32(at(DMA_BUSY), 0).is_ok()
}

/// Fills the receive buffer at `addr` with as many whole datagrams of `inbox` as fit, and ends it.
/// `batch` is scratch space.
pub fn deliver(
    memory: &MemoryMap,
    addr: u64,
    source: Option<(&Inbox, &Hypervisor)>,
    batch: &mut Vec<u8>,
) -> Result<(), BadBuffer> {
    batch.clear();
    let ranges = describe(memory, addr)?;
    for (addr, size) in &ranges {
        memory.check_writable(*addr, *size).map_err(|_| BadBuffer)?;
    }
    let total: usize = ranges.iter().map(|(_, size)| size).sum();
    if let Some((inbox, hypervisor)) = source {
        inbox.pop_all(batch, total, || hypervisor.await_commit());
    }
    if total - batch.len() >= DATAGRAM_HEADER {
        batch.extend_from_slice(&TERMINATOR);
    }
    let mut rest = &batch[..];
    for (addr, size) in ranges {
        let (here, after) = rest.split_at(size.min(rest.len()));
        memory.write(addr, here).map_err(|_| BadBuffer)?;
        rest = after;
    }
    Ok(())
}

/// Notifies the guest that its buffer is filled: `busy` becomes 1 with everything before it visible.
pub fn finish_receive(memory: &MemoryMap, addr: u64) -> bool {
    addr.checked_add(DMA_BUSY).is_some_and(|at| memory.store_u32(at, 1).is_ok())
}

/// The result of a send whose buffer cannot be used.
pub const BAD_BUFFER: VmciError = VmciError::InvalidArgs;
/// The result of a send while the device is out of service.
pub const OUT_OF_SERVICE: VmciError = VmciError::Unavailable;

/// What a guest asked for.
#[derive(Clone, Copy)]
pub enum Request {
    Send,
    Receive,
}

/// A request under way. Should the code that serves it panic, the guest is answered nevertheless:
/// its vCPU, or its interrupt thread, would wait for ever and outlive no unloading of the driver.
pub struct Awaited {
    pub memory: MemoryMap,
    pub request: Request,
    pub addr: u64,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        match self.request {
            Request::Send => finish_send(&self.memory, self.addr, BAD_BUFFER.code()),
            Request::Receive => {
                let _ = deliver(&self.memory, self.addr, None, &mut Vec::new());
                finish_receive(&self.memory, self.addr)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use vmlane_mem::{MapRequest, memfd};

    use super::*;

    /// A vCPU that waits for `busy` would spin for ever.
    #[test]
    fn what_the_guest_waits_for_comes_although_the_device_panicked() {
        const BYTES: u64 = 4096;
        for panics in [false, true] {
            let fd = memfd("dma", BYTES).expect("a file");
            let request = MapRequest { guest: 0, len: BYTES, offset: 0, fd, writable: true };
            let memory = MemoryMap::default().map(request).expect("memory");
            memory.store_u32(DMA_BUSY, 1).expect("memory");
            let serve = || {
                let _awaited = Awaited { memory: memory.clone(), request: Request::Send, addr: 0 };
                assert!(!panics, "a fault in the device");
            };
            assert_eq!(catch_unwind(AssertUnwindSafe(serve)).is_err(), panics);
            let (mut busy, mut result) = ([0; 4], [0; 8]);
            memory.read(DMA_BUSY, &mut busy).expect("memory");
            memory.read(DMA_RESULT, &mut result).expect("memory");
            let expected = if panics { (0, i64::from(BAD_BUFFER.code())) } else { (1, 0) };
            assert_eq!((u32::from_le_bytes(busy), i64::from_le_bytes(result)), expected);
        }
    }
}
