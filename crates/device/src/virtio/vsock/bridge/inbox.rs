//! What the router reports of connections to the worker of virtio-vsock guests, from any thread.
//!
//! Each guest has an inbox of its own, so that one that takes nothing costs no other guest anything. What
//! waits in one is bounded: requests by their number, events of requests that the guest has received by its
//! connections.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vmlane_port::{Side, StreamId};
use vmlane_vsock::{Call, ConnectError, Endpoint, Failed, Remote, WaitingCalls};
use vmlane_worker::Parking;

use super::name::Name;

/// Requests that may wait for one guest.
const MOST_REQUESTS: usize = 1024;

/// An event of a connection that the guest knows of.
pub enum CallEvent {
    GivenUp(Call),
    Joined(Name, Call, StreamId),
    Failed(Name, Call),
}

/// All guests' inboxes, and what wakes the worker.
pub struct Inboxes {
    guests: Mutex<HashMap<u32, Arc<GuestInbox>>>,
    signal: Arc<WorkerSignal>,
}

/// Wakes the worker, should it sleep.
struct WorkerSignal {
    /// Something happened in some inbox since they were last checked.
    changed: AtomicBool,
    parking: Arc<Parking>,
}

/// One guest's.
pub struct GuestInbox {
    queued: Mutex<Queued>,
    /// Something happened since it was last checked.
    changed: AtomicBool,
    signal: Arc<WorkerSignal>,
}

struct Queued {
    requests: WaitingCalls,
    events: VecDeque<CallEvent>,
    /// The VM is gone, and the inbox is not read any more.
    closed: bool,
}

impl WorkerSignal {
    fn notify(&self) {
        self.changed.store(true, Ordering::SeqCst);
        self.parking.wake();
    }
}

impl Inboxes {
    /// For the worker that sleeps in `parking`.
    pub fn new(parking: Arc<Parking>) -> Arc<Inboxes> {
        let signal = Arc::new(WorkerSignal { changed: AtomicBool::new(false), parking });
        Arc::new(Inboxes { guests: Mutex::default(), signal })
    }

    /// The inbox of the guest `cid`.
    pub fn guest(&self, cid: u32) -> Arc<GuestInbox> {
        let mut guests = self.guests.lock();
        guests.entry(cid).or_insert_with(|| Arc::new(GuestInbox::new(self.signal.clone()))).clone()
    }

    /// The VM `cid` is gone: what waits for it is returned, and nothing waits for it any more.
    pub fn forget(&self, cid: u32) -> Vec<Call> {
        let Some(guest) = self.guests.lock().remove(&cid) else { return Vec::new() };
        let mut queued = guest.queued.lock();
        queued.closed = true;
        queued.events.clear();
        std::iter::from_fn(|| queued.requests.pop()).collect()
    }

    pub fn has_changed(&self) -> bool {
        self.signal.changed.load(Ordering::SeqCst)
    }

    /// Has something happened since this was last asked?
    pub fn take_change(&self) -> bool {
        self.has_changed() && self.signal.changed.swap(false, Ordering::SeqCst)
    }
}

impl GuestInbox {
    fn new(signal: Arc<WorkerSignal>) -> GuestInbox {
        let requests = WaitingCalls::new(MOST_REQUESTS);
        let queued = Mutex::new(Queued { requests, events: VecDeque::new(), closed: false });
        GuestInbox { queued, changed: AtomicBool::new(false), signal }
    }

    fn notify(&self) {
        self.changed.store(true, Ordering::SeqCst);
        self.signal.notify();
    }

    /// Has something happened since this was last asked?
    pub fn take_change(&self) -> bool {
        self.changed.load(Ordering::SeqCst) && self.changed.swap(false, Ordering::SeqCst)
    }

    fn put(&self, event: CallEvent) {
        let mut queued = self.queued.lock();
        if !queued.closed {
            queued.events.push_back(event);
        }
        drop(queued);
        self.notify();
    }

    /// The oldest event, if `may_take` returns true for it.
    pub fn pop_event(&self, may_take: impl FnOnce(&CallEvent) -> bool) -> Option<CallEvent> {
        let mut queued = self.queued.lock();
        let takes = queued.events.front().is_some_and(may_take);
        if takes { queued.events.pop_front() } else { None }
    }

    /// The request that has waited longest of those that `may` be taken.
    pub fn pop_request(&self, may: impl FnMut(&Call) -> bool) -> Option<Call> {
        self.queued.lock().requests.pop_if(may)
    }

    /// Does a request wait?
    pub fn has_requests(&self) -> bool {
        !self.queued.lock().requests.is_empty()
    }

    /// Does anything wait?
    pub fn has_queued(&self) -> bool {
        let queued = self.queued.lock();
        !queued.events.is_empty() || !queued.requests.is_empty()
    }
}

/// What answers for a VM with virtio-vsock.
pub struct GuestEndpoint(Arc<GuestInbox>);

impl GuestEndpoint {
    pub fn new(cid: u32, inboxes: &Inboxes) -> GuestEndpoint {
        GuestEndpoint(inboxes.guest(cid))
    }
}

impl Endpoint for GuestEndpoint {
    fn requested(&self, call: Call, _: Option<u64>) -> Result<(), ConnectError> {
        let mut queued = self.0.queued.lock();
        if queued.closed {
            return Err(ConnectError::Unreachable);
        }
        queued.requests.push(call)?;
        drop(queued);
        self.0.notify();
        Ok(())
    }

    fn given_up(&self, call: Call) {
        // A request that the guest has not received is forgotten.
        if !self.0.queued.lock().requests.withdraw(call) {
            self.0.put(CallEvent::GivenUp(call));
        }
    }
}

/// What is notified of one connection of a guest.
pub struct GuestRemote {
    pub name: Name,
    pub inbox: Arc<GuestInbox>,
}

impl Remote for GuestRemote {
    fn joined(&self, call: Call, stream: StreamId, _: Side) {
        self.inbox.put(CallEvent::Joined(self.name, call, stream));
    }

    fn failed(&self, call: Call, _: Failed) {
        self.inbox.put(CallEvent::Failed(self.name, call));
    }
}
