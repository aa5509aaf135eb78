//! Streams whose ends fail on request, whatever devices they are of.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::trigger::{Fault, Trigger};
use crate::{
    Budget, End, PortFault, Resumed, RingSlice, Shutdown, Side, StreamAddress, StreamEnd, StreamId,
    StreamPort, Streams,
};

/// The workers as devices see them: each end that is joined is wrapped on its way. Whose it is, its [`Budget`] tells.
pub struct FaultyStreams {
    inner: Arc<dyn Streams>,
    owners: Mutex<Vec<Owner>>,
}

struct Owner {
    budget: Weak<Budget>,
    trigger: Arc<Trigger>,
}

impl FaultyStreams {
    /// Nothing fails until [`FaultyStreams::arm`] says so.
    pub fn new(inner: Arc<dyn Streams>) -> FaultyStreams {
        FaultyStreams { inner, owners: Mutex::default() }
    }

    /// The worker's next look at a stream with an end of this owner goes wrong.
    pub fn arm(&self, owner: &Arc<Budget>, fault: Fault) {
        self.trigger(owner).arm(fault);
    }

    /// One for all ends of an owner.
    fn trigger(&self, owner: &Arc<Budget>) -> Arc<Trigger> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let budget = Arc::downgrade(owner);
        if let Some(known) = owners.iter().find(|known| known.budget.ptr_eq(&budget)) {
            return known.trigger.clone();
        }
        owners.retain(|known| known.budget.strong_count() > 0);
        let trigger = Arc::<Trigger>::default();
        owners.push(Owner { budget, trigger: trigger.clone() });
        trigger
    }

    fn wrap(&self, end: StreamEnd) -> StreamEnd {
        let trigger = self.trigger(&end.budget);
        StreamEnd { port: Box::new(FaultyStream { inner: end.port, trigger }), ..end }
    }
}

impl Streams for FaultyStreams {
    fn join(&self, ends: [StreamEnd; 2]) -> StreamId {
        self.inner.join(ends.map(|end| self.wrap(end)))
    }

    fn resume(&self, lane: Resumed) -> StreamId {
        let ends = lane.ends.map(|end| end.map(|end| self.wrap(end)));
        self.inner.resume(Resumed { ends, ..lane })
    }

    fn leave(&self, ends: &[(StreamId, Side)]) {
        self.inner.leave(ends);
    }

    crate::forward! { inner;
        fn kick(&self, lane: StreamId);
        fn shutdown(&self, lane: StreamId, side: Side, what: Shutdown);
        fn reset(&self, lane: StreamId, side: Side);
    }
}

/// Fails where a worker looks at a port now and then, also while no bytes move.
struct FaultyStream {
    inner: Box<dyn StreamPort>,
    trigger: Arc<Trigger>,
}

impl StreamPort for FaultyStream {
    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        self.trigger.fire();
        self.inner.renotify_reader()
    }

    crate::forward! { inner;
        fn readable(&mut self) -> Result<usize, PortFault>;
        fn source(&self) -> RingSlice<'_>;
        fn consume(&mut self, len: usize) -> Result<(), PortFault>;
        fn publish_room(&mut self) -> Result<(), PortFault>;
        fn arm_readable(&mut self) -> Result<bool, PortFault>;
        fn writable(&mut self) -> Result<usize, PortFault>;
        fn sink(&self) -> RingSlice<'_>;
        fn keep_free(&self) -> usize;
        fn produce(&mut self, len: usize) -> Result<(), PortFault>;
        fn fill(&mut self, from: RingSlice<'_>, len: usize) -> Result<(), PortFault>;
        fn arm_writable(&mut self) -> Result<bool, PortFault>;
        fn remind(&mut self) -> Result<(), PortFault>;
        fn notify_both(&mut self);
        fn withholds(&mut self) -> bool;
        fn notifies(&self) -> bool;
        fn doorbell(&self) -> Option<BorrowedFd<'_>>;
        fn answer_doorbell(&mut self) -> bool;
        fn requests(&self) -> Option<u64>;
        fn address(&self) -> Option<StreamAddress>;
        fn keep(&mut self, bytes: &[u8]);
        fn end(&mut self, end: End);
    }
}
