//! Streams whose ends fail on request, whatever devices they are of.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use vmlane_port::wrap::{Fault, StreamWrapper};
use vmlane_port::{Budget, PortFault, Resumed, Shutdown, Side, StreamEnd, StreamId, StreamPort, Streams};

use crate::trigger::Trigger;

/// The workers as devices see them: each end that is joined is wrapped on its way. Whose it is, its
/// [`Budget`] has.
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
        let mut owners = self.owners.lock();
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

    fn kick(&self, lane: StreamId) {
        self.inner.kick(lane);
    }

    fn shutdown(&self, lane: StreamId, side: Side, what: Shutdown) {
        self.inner.shutdown(lane, side, what);
    }

    fn reset(&self, lane: StreamId, side: Side) {
        self.inner.reset(lane, side);
    }
}

/// Fails where a worker looks at a port now and then, also while no bytes move.
struct FaultyStream {
    inner: Box<dyn StreamPort>,
    trigger: Arc<Trigger>,
}

impl StreamWrapper for FaultyStream {
    fn inner(&self) -> &dyn StreamPort {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn StreamPort {
        &mut *self.inner
    }

    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        self.trigger.fire();
        self.inner.renotify_reader()
    }
}
