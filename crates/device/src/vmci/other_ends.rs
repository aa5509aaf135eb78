//! Ends that belong to endpoints of other kinds, which the router joins with guests' ends. It may be called
//! with the hypervisor's lock held; what follows waits here until that is free.

use std::collections::HashMap;
use std::sync::Arc;

use vmlane_port::{StreamEnd, StreamId};
use vmlane_vsock::{Call, Calls, Event, Key, Remote, RestoredEnd, Role, Router};
use vmlane_wire::vmci::Handle;

use super::stats::Refusal;

/// The other end of a joined pair, if it is an endpoint of another kind.
pub struct RoutedPeer {
    pub cid: u32,
    pub handle: Handle,
    pub stream: StreamId,
}

/// See the module's text.
pub struct OtherEnds {
    router: Arc<Router>,
    /// What is notified of guests' ends.
    guest_ends: Arc<dyn Remote>,
    /// Calls to make once the lock is free.
    after: Calls,
    /// Those of joined pairs, by the number of their connection.
    joined: HashMap<u64, RoutedPeer>,
}

impl OtherEnds {
    pub fn new(router: Arc<Router>, guest_ends: Arc<dyn Remote>) -> OtherEnds {
        OtherEnds { router, guest_ends, after: Calls::default(), joined: HashMap::new() }
    }

    /// Does anything answer for `cid`?
    pub fn has_endpoint(&self, cid: u32) -> bool {
        self.router.has_endpoint(cid)
    }

    /// A guest asks for a connection.
    pub fn open(&mut self, key: Key, size: u64) -> Result<Call, Refusal> {
        let opened = self.router.open_later(key, self.guest_ends.clone(), size);
        let (call, calls) = opened.map_err(|_| Refusal::Destination)?;
        self.after.extend(calls);
        Ok(call)
    }

    /// The router is notified of what became of the guest's end.
    pub fn apply(&mut self, call: Call, event: Event<StreamEnd>) -> Option<StreamId> {
        let applied = self.router.apply_as(call, event, Some(self.guest_ends.clone()));
        self.after.extend(applied.calls);
        applied.stream.filter(|_| applied.taken)
    }

    /// A guest's end of a previous daemon's connection is joined with the other one again.
    pub fn rejoin(&mut self, restored: (Call, RestoredEnd), end: StreamEnd) -> Option<(Call, StreamId)> {
        let (joined, calls) = self.router.rejoin(restored, (end, self.guest_ends.clone()));
        self.after.extend(calls);
        joined
    }

    /// The pair `handle` of the connection `call` is joined.
    pub fn join(&mut self, call: Call, handle: Handle, stream: StreamId) {
        let cid = match call.role {
            Role::Client => call.key.server.0,
            Role::Server => call.key.client.0,
        };
        self.joined.insert(call.number, RoutedPeer { cid, handle, stream });
    }

    /// The other end has left its joined pair.
    pub fn leave(&mut self, call: Call) -> Option<RoutedPeer> {
        self.joined.remove(&call.number)
    }

    /// What is to be done now that the lock is free.
    pub fn take_calls(&mut self) -> Calls {
        std::mem::take(&mut self.after)
    }
}
