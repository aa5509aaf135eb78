//! When the hypervisor's records are written.
//!
//! Code that changes a table notes what it changed in [`Inner::dirty`]; before the hypervisor's lock is given
//! up, all of it is written as it is then, together with the number of the request that did it. So a
//! next daemon finds a request either done, with its result, or not begun.

use vmlane_state::{Journal, Writer};

use super::{
    CONNECTION, CONTEXT, DOORBELL, Dirty, EXECUTED, NOTIFIED, OVERFLOW, PAGES, PAIR, WELL_KNOWN, address,
};
use crate::vmci::caller::Caller;
use crate::vmci::connection::Connection;
use crate::vmci::contexts::Context;
use crate::vmci::pairs::PairName;
use crate::vmci::tables::{Hypervisor, Inner};

impl Inner {
    fn pair_by_serial(&self, serial: u64) -> Option<Vec<u8>> {
        let (name, pair) = self.pairs.by_serial(serial)?;
        let end_left = match name {
            PairName::Current(_) => None,
            PairName::Orphan((cid, ..)) => Some(cid),
        };
        Some(pair.to_record(name.handle(), end_left))
    }

    /// Stages `what` as it is now.
    fn stage(&self, log: &Journal, what: Dirty) {
        let put = |key, record: Option<Vec<u8>>| match record {
            Some(record) => log.stage(key, &record),
            None => log.stage_removal(key),
        };
        match what {
            Dirty::Context(cid) => {
                let known = |context: &&Context| {
                    context.ready || context.bitmap_at.is_some() || context.buffers_high != [0; 2]
                };
                let context = self.contexts.get(cid).filter(known);
                let record = context.map(|context| {
                    let mut out = Writer::new();
                    let (addr, shift) = context.bitmap_at.unwrap_or_default();
                    out.flag(context.ready)
                        .flag(context.slow)
                        .option(context.bitmap_at.map(|_| addr))
                        .u32(shift)
                        .u32(context.buffers_high[0])
                        .u32(context.buffers_high[1]);
                    out.0
                });
                put((CONTEXT, cid.into(), 0), record);
            }
            Dirty::Doorbell(cid, resource) => {
                let index = self.contexts.get(cid).and_then(|context| context.doorbells.get(&resource));
                let record = index.map(|index| (*index as u64).to_le_bytes().to_vec());
                put((DOORBELL, cid.into(), resource.into()), record);
            }
            Dirty::WellKnown(cid, resource) => {
                let owned = self.well_known.is_of(cid, resource);
                put((WELL_KNOWN, cid.into(), resource.into()), owned.then(Vec::new));
            }
            Dirty::Pair(serial) => {
                let record = self.pair_by_serial(serial);
                if record.is_none() {
                    for (kind, side) in
                        [PAGES, OVERFLOW, NOTIFIED].into_iter().flat_map(|kind| [(kind, 0), (kind, 1)])
                    {
                        log.stage_removal((kind, serial, side));
                    }
                }
                put((PAIR, serial, 0), record);
            }
            Dirty::Connection(key) => {
                let record = self.connections.get(&key).map(Connection::to_record);
                put((CONNECTION, address(key.client), address(key.server)), record);
            }
            Dirty::Executed(cid) => put((EXECUTED, cid.into(), 0), None),
        }
    }
}

impl Hypervisor {
    /// Writes what has changed, before the lock is given up.
    pub(in crate::vmci) fn commit(&self, inner: &mut Inner) {
        let mut dirty = std::mem::take(&mut inner.dirty);
        if let Some(log) = &self.log {
            dirty.iter().for_each(|what| inner.stage(log, *what));
            log.commit();
        }
        dirty.clear();
        inner.dirty = dirty;
    }

    /// Returns once all changes that were under way are written.
    pub(in crate::vmci) fn await_commit(&self) {
        drop(self.inner.lock());
    }

    /// The same as [`Hypervisor::commit`], and that `caller`'s request is done with `result`.
    pub(in crate::vmci) fn commit_result(&self, inner: &mut Inner, caller: Caller<'_>, result: i32) {
        if let Some(log) = self.log.as_ref().filter(|_| caller.request != 0) {
            let mut out = Writer::new();
            out.u64(caller.request).u32(result as u32);
            log.stage((EXECUTED, caller.cid.into(), 0), &out.0);
        }
        self.commit(inner);
    }

    /// The result of `caller`'s request, if a previous daemon has carried it out.
    pub(in crate::vmci) fn executed(&self, caller: Caller<'_>) -> Option<i32> {
        let inner = self.inner.lock();
        inner.executed.get(&caller.cid).filter(|(request, _)| *request == caller.request).map(|done| done.1)
    }
}
