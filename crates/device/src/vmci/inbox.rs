//! What waits for one guest: datagrams in order, and at most one notice of a kind per connection.
//!
//! Workers and other VMs' sessions put things in, the guest's own session takes them out. The lock
//! is held for a push or a pop, never while guest memory is touched. Bounds: datagrams by bytes, in all
//! and per sender, those that set up connections on an account of their own; notices by the number of
//! connections (rule M8), so none is refused.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vmlane_wire::vmci::{CAUSE_DATAGRAM, padded};

use super::notices::{Notice, Notices};
use super::signals::Signals;
use super::stats::VmciStats;

/// Packets of the device itself that may wait for a VM before it gets no new queue pairs. A pair adds
/// nine at most (attached, four ends, four notices), and pairs have a quota: so there is a bound.
pub const MAX_OWN: usize = 16_384;

/// What a datagram from another VM is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Datagram sockets and the like.
    Ordinary,
    /// Packets that set up connections: floods of the others cannot keep them out.
    Control,
}

/// Bytes that wait on one account.
#[derive(Default)]
struct Charges {
    bytes: usize,
    from: HashMap<u32, usize>,
}

impl Charges {
    /// Charges `len` bytes to `from` if its share allows. A share is as large as what is still free, so
    /// one sender gets half, two a third each, and whoever comes next finds room.
    fn take(&mut self, from: u32, len: usize, limit: usize, first_is_free: bool) -> bool {
        let own = self.from.get(&from).copied().unwrap_or(0);
        let free = limit.saturating_sub(self.bytes);
        if len > free || (own + len > free && !(own == 0 && first_is_free)) {
            return false;
        }
        self.bytes += len;
        *self.from.entry(from).or_default() += len;
        true
    }

    fn give_back(&mut self, from: u32, len: usize) {
        self.bytes -= len;
        if let Some(own) = self.from.get_mut(&from) {
            *own -= len;
            if *own == 0 {
                self.from.remove(&from);
            }
        }
    }
}

enum Item {
    /// From another VM, charged to it.
    Datagram {
        account: Account,
        from: u32,
        bytes: Box<[u8]>,
    },
    /// From the device itself: events, resets, shutdowns. Bounded by what they are about.
    Own(Box<[u8]>),
    Notice(Arc<Notices>, Notice),
}

#[derive(Default)]
struct Inner {
    items: VecDeque<Item>,
    /// For [`Item::Datagram`]s, by [`Account`].
    charges: [Charges; 2],
    /// Number of the other items.
    own: usize,
}

/// The inbound queue of one guest.
pub struct Inbox {
    inner: Mutex<Inner>,
    limit: usize,
    pub signals: Signals,
    pub stats: Arc<VmciStats>,
    /// An interrupt is on its way and the guest has not come to fetch yet.
    announced: AtomicBool,
    /// For tests of fault containment: the next register access panics.
    injected_panic: AtomicBool,
}

impl Inbox {
    /// `limit`: bytes of ordinary datagrams that may wait; of control packets half as many may.
    pub fn new(limit: usize, signals: Signals, stats: Arc<VmciStats>) -> Inbox {
        Inbox {
            inner: Mutex::default(),
            limit,
            signals,
            stats,
            announced: AtomicBool::new(false),
            injected_panic: AtomicBool::new(false),
        }
    }

    /// Makes the next register access of this device panic.
    pub fn inject_panic(&self) {
        self.injected_panic.store(true, Ordering::Relaxed);
    }

    /// Panics if that was asked for.
    pub fn obey_injection(&self) {
        if self.injected_panic.load(Ordering::Relaxed) && self.injected_panic.swap(false, Ordering::Relaxed) {
            panic!("injected on request");
        }
    }

    /// Queues another VM's datagram. False if the queue, or that VM's share of it, is full. One ordinary
    /// datagram of a sender of which none waits is taken if it fits at all: the largest is half of the
    /// default limit.
    pub fn push(&self, account: Account, from: u32, bytes: Box<[u8]>) -> bool {
        let ordinary = account == Account::Ordinary;
        let limit = if ordinary { self.limit } else { self.limit / 2 };
        let mut inner = self.inner.lock();
        if !inner.charges[account as usize].take(from, bytes.len(), limit, ordinary) {
            return false;
        }
        inner.items.push_back(Item::Datagram { account, from, bytes });
        drop(inner);
        self.announce();
        true
    }

    /// Queues a packet of the device itself.
    pub fn push_own(&self, bytes: Box<[u8]>) {
        self.add_own(Item::Own(bytes));
    }

    /// Queues a notice; the caller has made sure that none of its kind waits.
    pub fn push_notice(&self, notices: Arc<Notices>, notice: Notice) {
        self.add_own(Item::Notice(notices, notice));
    }

    fn add_own(&self, item: Item) {
        let mut inner = self.inner.lock();
        inner.own += 1;
        inner.items.push_back(item);
        drop(inner);
        self.announce();
    }

    fn announce(&self) {
        if !self.announced.swap(true, Ordering::SeqCst) {
            self.signals.raise(CAUSE_DATAGRAM);
        }
    }

    /// The guest has come to fetch: later arrivals need an interrupt of their own.
    pub fn fetching(&self) {
        self.announced.store(false, Ordering::SeqCst);
        self.stats.batches.inc();
    }

    /// After a fetch: raises the interrupt again if something is left.
    pub fn fetched(&self) {
        if !self.inner.lock().items.is_empty() {
            self.announce();
        }
    }

    /// Bytes of other VMs' datagrams waiting.
    pub fn bytes(&self) -> usize {
        self.inner.lock().charges.iter().map(|charges| charges.bytes).sum()
    }

    /// Packets of the device itself that wait.
    pub fn own(&self) -> usize {
        self.inner.lock().own
    }

    /// Appends the next datagram, padded with zeros to 8 bytes, if it fits into `room`. Returns
    /// false if nothing waits or the next one does not fit.
    pub fn pop_into(&self, out: &mut Vec<u8>, room: usize) -> bool {
        let mut inner = self.inner.lock();
        let start = out.len();
        loop {
            let Some(item) = inner.items.front() else { return false };
            let len = match item {
                Item::Datagram { bytes, .. } | Item::Own(bytes) => bytes.len(),
                Item::Notice(..) => super::notices::NOTICE_LEN,
            };
            if padded(len) > room {
                return false;
            }
            let item = inner.items.pop_front();
            inner.own -= usize::from(matches!(item, Some(Item::Own(_) | Item::Notice(..))));
            match item {
                Some(Item::Datagram { account, from, bytes }) => {
                    inner.charges[account as usize].give_back(from, len);
                    out.extend_from_slice(&bytes);
                }
                Some(Item::Own(bytes)) => out.extend_from_slice(&bytes),
                Some(Item::Notice(notices, notice)) => match notices.take(notice) {
                    Some(packet) => out.extend_from_slice(&packet),
                    // Its connection has ended meanwhile.
                    None => continue,
                },
                None => return false,
            }
            out.resize(start + padded(len), 0);
            self.stats.datagrams_received.inc();
            return true;
        }
    }

    /// Forgets everything that waits.
    pub fn clear(&self) {
        *self.inner.lock() = Inner::default();
        self.announced.store(false, Ordering::SeqCst);
    }
}
