//! What waits for one guest: datagrams in order, and at most one notice of a kind per connection.
//!
//! Workers and other VMs' sessions put things in, the guest's own session takes them out. The lock
//! is held for a push or a pop, never while guest memory is touched. Bounds: ordinary datagrams by
//! bytes, in all and per sender; notices by the number of connections (rule M8), so none is refused.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vmlane_wire::vmci::{CAUSE_DATAGRAM, padded};

use super::notices::{Notice, Notices};
use super::signals::Signals;
use super::stats::VmciStats;

enum Item {
    /// From another VM, charged to it.
    Datagram { from: u32, bytes: Box<[u8]> },
    /// From the device itself: events, resets, shutdowns. Bounded by what they are about.
    Own(Box<[u8]>),
    Notice(Arc<Notices>, Notice),
}

#[derive(Default)]
struct Inner {
    items: VecDeque<Item>,
    /// Bytes of [`Item::Datagram`]s.
    bytes: usize,
    from: HashMap<u32, usize>,
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
    /// `limit`: bytes of ordinary datagrams that may wait.
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

    /// Queues another VM's datagram. False if the queue, or that VM's half of it, is full. A queue
    /// with nothing from this sender always takes one: the largest datagram is half of the default.
    pub fn push(&self, from: u32, bytes: Box<[u8]>) -> bool {
        let len = bytes.len();
        let mut inner = self.inner.lock();
        let own = inner.from.get(&from).copied().unwrap_or(0);
        if inner.bytes + len > self.limit || (own > 0 && own + len > self.limit / 2) {
            return false;
        }
        inner.bytes += len;
        *inner.from.entry(from).or_default() += len;
        inner.items.push_back(Item::Datagram { from, bytes });
        drop(inner);
        self.announce();
        true
    }

    /// Queues a packet of the device itself.
    pub fn push_own(&self, bytes: Box<[u8]>) {
        self.inner.lock().items.push_back(Item::Own(bytes));
        self.announce();
    }

    /// Queues a notice; the caller has made sure that none of its kind waits.
    pub fn push_notice(&self, notices: Arc<Notices>, notice: Notice) {
        self.inner.lock().items.push_back(Item::Notice(notices, notice));
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

    /// Bytes of ordinary datagrams waiting.
    pub fn bytes(&self) -> usize {
        self.inner.lock().bytes
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
            match inner.items.pop_front() {
                Some(Item::Datagram { from, bytes }) => {
                    inner.bytes -= len;
                    if let Some(own) = inner.from.get_mut(&from) {
                        *own -= len;
                        if *own == 0 {
                            inner.from.remove(&from);
                        }
                    }
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
