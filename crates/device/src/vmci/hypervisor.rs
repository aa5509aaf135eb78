//! The VMCI devices of all VMs: their contexts, datagrams between them.
//!
//! The daemon plays the hypervisor. A sender is known by its session, never by what its packet claims;
//! no traffic of any kind crosses groups.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vmlane_port::Budget;
use vmlane_state::Journal;
use vmlane_vsock::{DatagramError, Failed, Key, Router, SocketAddress, Watch};
use vmlane_wire::vmci::{
    CID_ANY, CID_HYPERVISOR, DATAGRAM_HEADER, DatagramHeader, EVENT_RESOURCE, Handle, INVALID_ID,
    MAX_DATAGRAM_PAYLOAD, MAX_HYPERCALL, VmciError,
};
use vmlane_wire::vmci_stream::{CONTROL_RESOURCE, HYPERVISOR_CONTROL_RESOURCE};
use zerocopy::FromBytes;

use crate::irq::Interrupts;

use super::account::Account;
use super::caller::Caller;
use super::contexts::Context;
use super::inbox::Inbox;
use super::record::{self, Dirty};
use super::routed::{GuestEnds, VmciEndpoint};
use super::signals::Signals;
use super::spec::Limits;
use super::stats::{Refusal, VmciStats};
use super::tables::{Hypervisor, Inner};

/// The old "well-known" context: its resources are mapped to the first guest that asked for them.
const CID_WELL_KNOWN: u32 = 1;
/// Connections that are not established expire after this long without progress.
const HANDSHAKE: Duration = Duration::from_secs(30);

impl Hypervisor {
    /// A hypervisor without devices. `router` knows the VMs, and joins its guests with endpoints of other
    /// kinds; its workers move the bytes of all streams.
    pub fn new(router: Arc<Router>) -> Arc<Hypervisor> {
        Hypervisor::recorded(router, None)
    }

    /// One whose state is recorded for the next daemon.
    pub fn recorded(router: Arc<Router>, log: Option<Journal>) -> Arc<Hypervisor> {
        Arc::new_cyclic(|me| {
            let guest_ends = Arc::new(GuestEnds(me.clone()));
            let inner = Mutex::new(Inner::new(router.clone(), guest_ends));
            let streams = router.streams().clone();
            Hypervisor { inner, router, streams, me: me.clone(), log: log.map(Arc::new) }
        })
    }

    /// Knows all VMs, and joins guests with endpoints of other kinds.
    pub fn router(&self) -> &Arc<Router> {
        &self.router
    }

    /// What a VM's device may use from now on.
    pub fn set_limits(&self, cid: u32, limits: Limits) {
        if let Some(context) = self.inner.lock().contexts.get_mut(cid) {
            context.limits = limits;
        }
    }

    /// Forgets a VM's device, before the VM is forgotten; what it had open ends first.
    pub fn remove(&self, cid: u32) {
        self.reset(cid);
        let mut inner = self.inner.lock();
        inner.disown_connections(cid);
        if inner.contexts.remove(cid).is_some() {
            self.router.clear_endpoint(cid);
        }
        inner.dirty.push(Dirty::Context(cid));
        self.commit(&mut inner);
    }

    /// The VM has so many bytes of RAM now.
    pub(super) fn set_memory(&self, cid: u32, bytes: u64) {
        if let Some(context) = self.inner.lock().contexts.get_mut(cid) {
            context.memory = bytes;
        }
    }

    /// A VM has a device from here on, which counts in `stats`, and whose queue is returned. `None`: there is
    /// no such VM, or it has one.
    pub(super) fn open(
        &self,
        cid: u32,
        limits: Limits,
        irqs: Arc<dyn Interrupts>,
        stats: VmciStats,
    ) -> Option<Arc<Inbox>> {
        let mut inner = self.inner.lock();
        let first = record::first_number(inner.generation);
        inner.contexts.vm(cid).ok().filter(|_| !inner.contexts.is_guest(cid))?;
        let stats = Arc::new(stats);
        let signals = Signals::new(irqs, stats.clone());
        let numbered = (cid, self.log.clone(), first);
        let inbox = Arc::new(Inbox::new(limits.inbox_bytes, signals, stats.clone(), numbered));
        inner.contexts.insert(cid, Context::new(limits, inbox.clone(), stats));
        self.router.set_endpoint(cid, Arc::new(VmciEndpoint { hypervisor: self.me.clone(), cid }));
        Some(inbox)
    }

    /// The driver is there (its probe is over). `slow`: it sends byte by byte.
    pub(super) fn set_ready(&self, cid: u32, slow: bool) {
        let mut inner = self.inner.lock();
        if let Some(context) = inner.contexts.get_mut(cid) {
            context.ready = !context.inbox.is_quarantined();
            context.slow = slow;
            inner.dirty.push(Dirty::Context(cid));
            self.commit(&mut inner);
        }
    }

    /// Where the driver's buffers are, as its device was set up: kept here, too, for a device whose own state
    /// is lost. Their vCPUs wait for answers there.
    pub(super) fn set_buffers_high(&self, cid: u32, high: [u32; 2]) {
        let mut inner = self.inner.lock();
        if let Some(context) = inner.contexts.get_mut(cid).filter(|context| context.buffers_high != high) {
            context.buffers_high = high;
            inner.dirty.push(Dirty::Context(cid));
            self.commit(&mut inner);
        }
    }

    pub(super) fn buffers_high(&self, cid: u32) -> [u32; 2] {
        self.inner.lock().contexts.get(cid).map_or([0; 2], |context| context.buffers_high)
    }

    /// A datagram from `caller`: `bytes` are a private copy, header first. Returns the value for
    /// RESULT_LOW: negative error, or what the destination defines (total size when routed).
    pub fn send(&self, caller: Caller<'_>, bytes: &[u8]) -> i32 {
        caller.stats.datagrams_sent.inc();
        if let Some(result) = self.executed(caller) {
            return result;
        }
        self.dispatch(caller, bytes).unwrap_or_else(|refusal| refusal.count(caller.stats))
    }

    fn dispatch(&self, caller: Caller<'_>, bytes: &[u8]) -> Result<i32, Refusal> {
        let (header, rest) =
            DatagramHeader::read_from_prefix(bytes).map_err(|_| Refusal::Size(VmciError::InvalidArgs))?;
        let size = usize::try_from(header.payload_size()).ok().filter(|size| *size <= MAX_HYPERCALL);
        let payload = size.and_then(|size| rest.get(..size)).ok_or(Refusal::Size(VmciError::InvalidArgs))?;
        let (dst, src) = (header.dst(), header.src());
        if dst.context == CID_HYPERVISOR {
            if src.context != caller.cid && src != Handle::INVALID {
                return Err(Refusal::Source);
            }
            if dst.resource == HYPERVISOR_CONTROL_RESOURCE {
                return Err(Refusal::Destination);
            }
            caller.stats.hypercalls.inc();
            return self.hypercall(caller, dst.resource, payload);
        }
        if src.context != caller.cid {
            return Err(Refusal::Source);
        }
        // A resource of ~0 would end the batch that the receiver parses, and hide what lies behind it.
        if dst.context == CID_ANY || dst.resource == INVALID_ID {
            return Err(Refusal::Size(VmciError::InvalidArgs));
        }
        if payload.len() > MAX_DATAGRAM_PAYLOAD {
            return Err(Refusal::Size(VmciError::PayloadTooLarge));
        }
        let total = DATAGRAM_HEADER + payload.len();
        let bytes = bytes.get(..total).ok_or(Refusal::Size(VmciError::InvalidArgs))?;
        if dst.resource == CONTROL_RESOURCE {
            self.control(caller, src, dst.context, payload, total as i32)?;
        } else {
            self.route(caller, dst, bytes)?;
        }
        Ok(total as i32)
    }

    fn route(&self, caller: Caller<'_>, dst: Handle, bytes: &[u8]) -> Result<(), Refusal> {
        let from = caller.cid;
        let mut inner = self.inner.lock();
        let to = if dst.context == CID_WELL_KNOWN {
            inner
                .well_known
                .owner(&inner.contexts.vm(from)?.group, dst.resource)
                .ok_or(Refusal::Destination)?
        } else {
            dst.context
        };
        // Resource 0 takes events, which only the device itself sends.
        if dst.resource == EVENT_RESOURCE {
            return Err(Refusal::Source);
        }
        if !inner.contexts.is_guest(to) {
            drop(inner);
            let (header, payload) =
                DatagramHeader::read_from_prefix(bytes).map_err(|_| Refusal::Size(VmciError::InvalidArgs))?;
            let sent = self.router.send_datagram((from, header.src().resource), (to, dst.resource), payload);
            return sent.map_err(|error| match error {
                DatagramError::Unreachable => Refusal::Destination,
                DatagramError::Port | DatagramError::TooLarge | DatagramError::Full => Refusal::Full,
            });
        }
        let inbox = inner.contexts.reach(from, to)?.clone();
        let watch = self.router.watch_datagram();
        if !inbox.push(Account::Ordinary, from, bytes.into()) {
            return Err(Refusal::Full);
        }
        if let Some(watch) = watch {
            show(watch, (to, dst.resource), bytes);
        }
        self.commit_result(&mut inner, caller, bytes.len() as i32);
        Ok(())
    }

    /// Everything a context holds goes: driver unloaded, function reset, VMM gone, a new probe. Its
    /// CID and its counters stay. Blocks until no worker touches its memory any more.
    pub fn reset(&self, cid: u32) {
        let (leaving, dirty) = {
            let mut inner = self.inner.lock();
            let Some(context) = inner.contexts.get_mut(cid) else { return };
            context.ready = false;
            context.bitmap = None;
            context.bitmap_at = None;
            let doorbells = std::mem::take(&mut context.doorbells).into_keys();
            let gone = doorbells.map(|resource| Dirty::Doorbell(cid, resource));
            context.inbox.signals.reset();
            context.inbox.clear();
            let mut gone: Vec<Dirty> = gone.collect();
            gone.push(Dirty::Context(cid));
            inner.dirty.extend(gone);
            if let Ok(vm) = inner.contexts.vm(cid) {
                let resources = inner.well_known.give_up_all((&vm.group, cid));
                inner.dirty.extend(resources.into_iter().map(|resource| Dirty::WellKnown(cid, resource)));
            }
            inner.apart(|inner| {
                let leaving = inner.detach_all(cid, |_| true);
                inner.orphan_pairs(cid);
                inner.forget_connections(cid);
                leaving
            })
        };
        self.streams.leave(&leaving);
        self.run_after();
        let mut inner = self.inner.lock();
        // Ends that were notified while the context left may have queued something for it.
        if let Some(context) = inner.contexts.get(cid) {
            context.inbox.clear();
        }
        inner.executed.remove(&cid);
        inner.dirty.extend(dirty);
        inner.dirty.push(Dirty::Executed(cid));
        self.commit(&mut inner);
    }

    /// Guest addresses `[start, start + len)` go away: whatever lies there ends as if detached.
    pub fn unmap(&self, cid: u32, start: u64, len: u64) {
        let (leaving, dirty) = {
            let mut inner = self.inner.lock();
            let Some(context) = inner.contexts.get_mut(cid) else { return };
            if context.bitmap.as_ref().is_some_and(|pages| pages.touches(start, len)) {
                context.bitmap = None;
                context.bitmap_at = None;
                inner.dirty.push(Dirty::Context(cid));
            }
            inner.apart(|inner| {
                inner.detach_all(cid, |ranges| {
                    ranges.iter().any(|&(at, size)| at < start.saturating_add(len) && start < at + size)
                })
            })
        };
        self.streams.leave(&leaving);
        let mut inner = self.inner.lock();
        inner.dirty.extend(dirty);
        self.commit(&mut inner);
        drop(inner);
        self.run_after();
    }

    /// Takes a VM's device out of service, or back into it. Its guest holds nothing any more when this
    /// returns, and is answered whatever it asks; its driver must be loaded anew afterwards. Must not be
    /// called by a worker.
    pub fn set_quarantined(&self, cid: u32, on: bool) {
        if let Some(inbox) = self.inbox(cid) {
            inbox.set_quarantined(on);
            self.reset(cid);
        }
    }

    /// What identifies whose a stream's end is: the budget that all ends of this VM share. `None` if it has
    /// no VMCI device.
    pub fn stream_owner(&self, cid: u32) -> Option<Arc<Budget>> {
        self.inner.lock().contexts.get(cid).map(|context| context.budget.clone())
    }

    fn inbox(&self, cid: u32) -> Option<Arc<Inbox>> {
        self.inner.lock().contexts.get(cid).map(|context| context.inbox.clone())
    }

    /// Drops connections whose set-up has stopped. Call it every few seconds.
    pub fn expire(&self) {
        self.expire_at(Instant::now());
    }

    /// The same as if it were `now`.
    pub fn expire_at(&self, now: Instant) {
        let mut inner = self.inner.lock();
        let old: Vec<Key> = inner
            .connections
            .iter()
            .filter(|(_, connection)| connection.is_stale(now, HANDSHAKE))
            .map(|(key, _)| *key)
            .collect();
        for key in old {
            inner.remove_connection_as(key, Failed::Gone);
        }
        inner.pass_on_waiting(now);
        self.commit(&mut inner);
        drop(inner);
        self.run_after();
    }
}

/// Shows a datagram that was delivered, header first, to captures.
#[cold]
fn show(watch: Watch, to: SocketAddress, bytes: &[u8]) {
    if let Ok((header, payload)) = DatagramHeader::read_from_prefix(bytes) {
        watch.delivered((header.src().context, header.src().resource), to, payload);
    }
}
