//! Calls to the hypervisor: datagrams to context 0. Source: `docs/devices/vmci.md`, "Calls".

use vmlane_wire::vmci::{
    CAUSE_NOTIFICATION, CID_HYPERVISOR, DatagramHeader, Handle, RawHandle, VmciError, call, event,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::caller::{Caller, shifted};
use super::record::Dirty;
use super::stats::{Quota, Refusal};
use super::tables::Hypervisor;

const BAD_SIZE: Refusal = Refusal::Size(VmciError::InvalidArgs);

fn read<T: FromBytes + Immutable + KnownLayout>(payload: &[u8]) -> Result<T, Refusal> {
    T::read_from_prefix(payload).map(|(value, _)| value).map_err(|_| BAD_SIZE)
}

/// Whether `datagram` is the call that gives up a queue pair.
pub(super) fn is_detach(datagram: &[u8]) -> bool {
    let detach = Handle::new(CID_HYPERVISOR, call::QUEUEPAIR_DETACH);
    DatagramHeader::read_from_prefix(datagram).is_ok_and(|(header, _)| header.dst() == detach)
}

impl Hypervisor {
    pub(super) fn hypercall(&self, caller: Caller<'_>, id: u32, payload: &[u8]) -> Result<i32, Refusal> {
        match id {
            call::RESOURCES_QUERY => resources_query(payload),
            call::GET_CONTEXT_ID => Ok(caller.cid as i32),
            call::SET_NOTIFY_BITMAP => self.set_notify_bitmap(caller, payload),
            call::DOORBELL_LINK => self.doorbell_link(caller, payload),
            call::DOORBELL_UNLINK => self.doorbell_unlink(caller, payload),
            call::DOORBELL_NOTIFY => self.doorbell_notify(caller.cid, payload),
            call::DATAGRAM_REQUEST_MAP => self.request_map(caller, payload),
            call::DATAGRAM_REMOVE_MAP => self.remove_map(caller, payload),
            // All applicable events are sent to everyone; Linux keeps its subscriptions to itself.
            call::EVENT_SUBSCRIBE | call::EVENT_UNSUBSCRIBE => known_event(payload),
            call::QUEUEPAIR_ALLOC => self.queue_pair_alloc(caller, payload),
            call::QUEUEPAIR_DETACH => self.queue_pair_detach(caller, read::<RawHandle>(payload)?.into()),
            _ => Err(Refusal::Call(VmciError::InvalidResource)),
        }
    }

    fn set_notify_bitmap(&self, caller: Caller<'_>, payload: &[u8]) -> Result<i32, Refusal> {
        let ppn = if caller.pages.ppn64 {
            read::<U64>(payload)?.get()
        } else {
            u64::from(read::<U32>(payload)?.get())
        };
        let addr = shifted(ppn, caller.pages.shift).ok_or(Refusal::Address)?;
        let page = [addr].into_iter();
        let pages = caller.memory.pages(page, caller.pages.shift).map_err(|_| Refusal::Address)?;
        let mut inner = self.inner.lock();
        let context = inner.contexts.known_mut(caller.cid)?;
        context.bitmap = Some(pages);
        context.bitmap_at = Some((addr, caller.pages.shift));
        inner.dirty.push(Dirty::Context(caller.cid));
        self.commit_result(&mut inner, caller, 0);
        Ok(0)
    }

    fn doorbell_link(&self, caller: Caller<'_>, payload: &[u8]) -> Result<i32, Refusal> {
        let cid = caller.cid;
        let (handle, index) = read::<[U64; 2]>(payload).map(|[raw, index]| (handle(raw), index.get()))?;
        let mut inner = self.inner.lock();
        let context = inner.contexts.known_mut(cid)?;
        let page = context.bitmap.as_ref().map_or(4096, |pages| pages.len()) as u64;
        if handle.context != cid || index >= page {
            return Err(Refusal::Call(VmciError::InvalidArgs));
        }
        if context.doorbells.contains_key(&handle.resource) {
            return Err(Refusal::Call(VmciError::DuplicateEntry));
        }
        if context.doorbells.len() >= context.limits.doorbells {
            return Err(Refusal::Quota(Quota::Doorbells));
        }
        context.doorbells.insert(handle.resource, index as usize);
        inner.dirty.push(Dirty::Doorbell(cid, handle.resource));
        self.commit_result(&mut inner, caller, 0);
        Ok(0)
    }

    fn doorbell_unlink(&self, caller: Caller<'_>, payload: &[u8]) -> Result<i32, Refusal> {
        let cid = caller.cid;
        let handle: Handle = read::<RawHandle>(payload)?.into();
        let mut inner = self.inner.lock();
        let linked = handle.context == cid
            && inner.contexts.known_mut(cid)?.doorbells.remove(&handle.resource).is_some();
        if !linked {
            return Err(Refusal::Call(VmciError::NotFound));
        }
        inner.dirty.push(Dirty::Doorbell(cid, handle.resource));
        self.commit_result(&mut inner, caller, 0);
        Ok(0)
    }

    /// Rings a doorbell of any VM that the caller may talk to: sets its byte, raises vector 1.
    fn doorbell_notify(&self, cid: u32, payload: &[u8]) -> Result<i32, Refusal> {
        let handle: Handle = read::<RawHandle>(payload)?.into();
        let inner = self.inner.lock();
        inner.contexts.known(cid)?.stats.doorbells_rung.inc();
        let inbox = inner.contexts.reach(cid, handle.context)?.clone();
        let target = inner.contexts.known(handle.context)?;
        let index = *target.doorbells.get(&handle.resource).ok_or(Refusal::Call(VmciError::NotFound))?;
        let bitmap = target.bitmap.as_ref().filter(|pages| index < pages.len());
        bitmap.ok_or(Refusal::Call(VmciError::NotFound))?.write(index, &[1]);
        target.stats.doorbells_received.inc();
        drop(inner);
        inbox.signals.raise(CAUSE_NOTIFICATION);
        Ok(0)
    }

    /// Pre-2010 drivers: a resource of the well-known context is mapped to the first guest that asks.
    fn request_map(&self, caller: Caller<'_>, payload: &[u8]) -> Result<i32, Refusal> {
        let cid = caller.cid;
        let resource = read::<U32>(payload)?.get();
        let mut inner = self.inner.lock();
        let (vm, limits) = (inner.contexts.vm(cid)?, inner.contexts.known(cid)?.limits);
        let well_known = &mut inner.well_known;
        if well_known.owner(&vm.group, resource).is_some() {
            return Err(Refusal::Call(VmciError::AlreadyExists));
        }
        if well_known.count_of(cid) >= limits.doorbells.min(64) {
            return Err(Refusal::Quota(Quota::Doorbells));
        }
        well_known.take((&vm.group, cid), resource);
        inner.dirty.push(Dirty::WellKnown(cid, resource));
        self.commit_result(&mut inner, caller, 0);
        Ok(0)
    }

    fn remove_map(&self, caller: Caller<'_>, payload: &[u8]) -> Result<i32, Refusal> {
        let cid = caller.cid;
        let resource = read::<U32>(payload)?.get();
        let mut inner = self.inner.lock();
        let vm = inner.contexts.vm(cid)?;
        if !inner.well_known.give_up((&vm.group, cid), resource) {
            return Err(Refusal::Call(VmciError::NotFound));
        }
        inner.dirty.push(Dirty::WellKnown(cid, resource));
        self.commit_result(&mut inner, caller, 0);
        Ok(0)
    }
}

fn handle(raw: U64) -> Handle {
    let raw = raw.get();
    Handle::new(raw as u32, (raw >> 32) as u32)
}

fn resources_query(payload: &[u8]) -> Result<i32, Refusal> {
    let count = read::<U32>(payload)?.get();
    if count > call::MAX_QUERY {
        return Err(Refusal::Call(VmciError::InvalidArgs));
    }
    let ids = payload.get(8..8 + 4 * count as usize).ok_or(BAD_SIZE)?;
    let known = ids
        .chunks_exact(4)
        .enumerate()
        .filter(|(_, id)| U32::read_from_bytes(id).is_ok_and(|id| id.get() < call::COUNT));
    Ok(known.fold(0, |bits, (index, _)| bits | 1 << index))
}

fn known_event(payload: &[u8]) -> Result<i32, Refusal> {
    if read::<U32>(payload)?.get() < event::COUNT {
        Ok(0)
    } else {
        Err(Refusal::Call(VmciError::EventUnknown))
    }
}
