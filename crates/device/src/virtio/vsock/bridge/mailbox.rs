//! What the router says of connections to the worker of virtio-vsock guests, from any thread.
//!
//! Each guest has a mailbox of its own, so that one that takes nothing costs no other guest anything. What
//! waits in one is bounded: requests by their number, news of requests that the guest has heard of by its
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

/// What the router said of a connection that the guest knows of.
pub enum News {
    GivenUp(Call),
    Joined(Name, Call, StreamId),
    Failed(Name, Call),
}

/// All guests' mailboxes, and what wakes the worker.
pub struct Mailbox {
    guests: Mutex<HashMap<u32, Arc<GuestMailbox>>>,
    signal: Arc<WorkerSignal>,
}

/// Wakes the worker, should it sleep.
struct WorkerSignal {
    /// Something happened in some mailbox since they were last looked at.
    changed: AtomicBool,
    parking: Arc<Parking>,
}

/// One guest's.
pub struct GuestMailbox {
    mail: Mutex<Mail>,
    /// Something happened since it was last looked at.
    changed: AtomicBool,
    signal: Arc<WorkerSignal>,
}

struct Mail {
    requests: WaitingCalls,
    news: VecDeque<News>,
    /// The VM is gone, and the mailbox is not read any more.
    closed: bool,
}

impl WorkerSignal {
    fn notify(&self) {
        self.changed.store(true, Ordering::SeqCst);
        self.parking.wake();
    }
}

impl Mailbox {
    /// For the worker that sleeps in `parking`.
    pub fn new(parking: Arc<Parking>) -> Arc<Mailbox> {
        let signal = Arc::new(WorkerSignal { changed: AtomicBool::new(false), parking });
        Arc::new(Mailbox { guests: Mutex::default(), signal })
    }

    /// The mailbox of the guest `cid`.
    pub fn guest(&self, cid: u32) -> Arc<GuestMailbox> {
        let mut guests = self.guests.lock();
        guests.entry(cid).or_insert_with(|| Arc::new(GuestMailbox::new(self.signal.clone()))).clone()
    }

    /// The VM `cid` is gone: what waits for it is returned, and nothing waits for it any more.
    pub fn forget(&self, cid: u32) -> Vec<Call> {
        let Some(guest) = self.guests.lock().remove(&cid) else { return Vec::new() };
        let mut mail = guest.mail.lock();
        mail.closed = true;
        mail.news.clear();
        std::iter::from_fn(|| mail.requests.pop()).collect()
    }

    pub fn has_changed(&self) -> bool {
        self.signal.changed.load(Ordering::SeqCst)
    }

    /// Has something happened since this was last asked?
    pub fn take_change(&self) -> bool {
        self.has_changed() && self.signal.changed.swap(false, Ordering::SeqCst)
    }
}

impl GuestMailbox {
    fn new(signal: Arc<WorkerSignal>) -> GuestMailbox {
        let requests = WaitingCalls::new(MOST_REQUESTS);
        let mail = Mutex::new(Mail { requests, news: VecDeque::new(), closed: false });
        GuestMailbox { mail, changed: AtomicBool::new(false), signal }
    }

    fn notify(&self) {
        self.changed.store(true, Ordering::SeqCst);
        self.signal.notify();
    }

    /// Has something happened since this was last asked?
    pub fn take_change(&self) -> bool {
        self.changed.load(Ordering::SeqCst) && self.changed.swap(false, Ordering::SeqCst)
    }

    fn put(&self, news: News) {
        let mut mail = self.mail.lock();
        if !mail.closed {
            mail.news.push_back(news);
        }
        drop(mail);
        self.notify();
    }

    /// The oldest news, if `may_hear` says so.
    pub fn pop_news(&self, may_hear: impl FnOnce(&News) -> bool) -> Option<News> {
        let mut mail = self.mail.lock();
        let hears = mail.news.front().is_some_and(may_hear);
        if hears { mail.news.pop_front() } else { None }
    }

    /// The request that has waited longest of those that `may` be heard.
    pub fn pop_request(&self, may: impl FnMut(&Call) -> bool) -> Option<Call> {
        self.mail.lock().requests.pop_if(may)
    }

    /// Does a request wait?
    pub fn holds_requests(&self) -> bool {
        !self.mail.lock().requests.is_empty()
    }

    /// Does anything wait?
    pub fn holds_mail(&self) -> bool {
        let mail = self.mail.lock();
        !mail.news.is_empty() || !mail.requests.is_empty()
    }
}

/// What answers for a VM with virtio-vsock.
pub struct GuestEndpoint(Arc<GuestMailbox>);

impl GuestEndpoint {
    pub fn new(cid: u32, mailbox: &Mailbox) -> GuestEndpoint {
        GuestEndpoint(mailbox.guest(cid))
    }
}

impl Endpoint for GuestEndpoint {
    fn requested(&self, call: Call, _: Option<u64>) -> Result<(), ConnectError> {
        let mut mail = self.0.mail.lock();
        if mail.closed {
            return Err(ConnectError::Unreachable);
        }
        mail.requests.push(call)?;
        drop(mail);
        self.0.notify();
        Ok(())
    }

    fn given_up(&self, call: Call) {
        // A request that the guest has not heard of is forgotten.
        if !self.0.mail.lock().requests.withdraw(call) {
            self.0.put(News::GivenUp(call));
        }
    }
}

/// What hears of one connection of a guest.
pub struct GuestRemote {
    pub name: Name,
    pub mailbox: Arc<GuestMailbox>,
}

impl Remote for GuestRemote {
    fn joined(&self, call: Call, stream: StreamId, _: Side) {
        self.mailbox.put(News::Joined(self.name, call, stream));
    }

    fn failed(&self, call: Call, _: Failed) {
        self.mailbox.put(News::Failed(self.name, call));
    }
}
