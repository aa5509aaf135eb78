//! What waits for one guest: datagrams in order, and at most one notice of a kind per connection.
//!
//! Workers and other VMs' sessions put things in, the guest's own session takes them out. The lock
//! is held for a push or a pop, never while guest memory is touched. Bounds: datagrams by bytes, in all
//! and per sender, those that set up connections on an account of their own; notices by the number of
//! connections (rule M8), so none is refused.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use vmlane_port::queue_pair::Notice;
use vmlane_state::Journal;
use vmlane_wire::vmci::{CAUSE_DATAGRAM, padded};

use super::account::{Account, Accounts, Charged};
use super::notice::{NOTICE_LEN, Notices};
use super::record;
use super::signals::Signals;
use super::stats::VmciStats;

/// Packets of the device itself that may wait for a VM before it gets no new queue pairs. A pair adds
/// nine at most (attached, four ends, four notices), and pairs have a quota: so there is a bound.
pub const MAX_OWN: usize = 16_384;

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
    /// With its number, for those that are recorded: notices are not, the next daemon sends them again.
    items: VecDeque<(u64, Item)>,
    /// Number of the next one; grows over all daemons.
    next: u64,
    /// Numbers that the guest has and a record still speaks of.
    consumed: Vec<u64>,
    /// Items that were put in and that were taken out, ever.
    queued: u64,
    dequeued: u64,
    /// For [`Item::Datagram`]s.
    accounts: Accounts,
    /// Number of the other items.
    own: usize,
    /// How many commits the log has once all items are recorded.
    recorded_by: u64,
}

impl Inner {
    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }
}

/// The inbound queue of one guest.
pub struct Inbox {
    inner: Mutex<Inner>,
    limit: usize,
    cid: u32,
    log: Option<Arc<Journal>>,
    pub signals: Signals,
    pub stats: Arc<VmciStats>,
    /// An interrupt is on its way and the guest has not come to fetch yet.
    announced: AtomicBool,
    /// The device is out of service: it answers, and does nothing.
    quarantined: AtomicBool,
}

impl Inbox {
    /// `limit`: bytes of ordinary datagrams that may wait; of control packets half as many may.
    /// What waits for `cid` is recorded in `log`, numbered from `first` on.
    pub fn new(
        limit: usize,
        signals: Signals,
        stats: Arc<VmciStats>,
        (cid, log, first): (u32, Option<Arc<Journal>>, u64),
    ) -> Inbox {
        Inbox {
            inner: Mutex::new(Inner { next: first, ..Inner::default() }),
            limit,
            cid,
            log,
            signals,
            stats,
            announced: AtomicBool::new(false),
            quarantined: AtomicBool::new(false),
        }
    }

    /// Takes the device out of service, or back into it.
    pub fn set_quarantined(&self, on: bool) {
        self.quarantined.store(on, Ordering::Release);
    }

    #[inline]
    pub fn is_quarantined(&self) -> bool {
        self.quarantined.load(Ordering::Acquire)
    }

    /// Queues another VM's datagram. False if the queue, or that VM's share of it, is full. One ordinary
    /// datagram of a sender of which none waits is taken if it fits at all: the largest is half of the
    /// default limit.
    pub fn push(&self, account: Account, from: u32, bytes: Box<[u8]>) -> bool {
        let ordinary = account == Account::Ordinary;
        let limit = if ordinary { self.limit } else { self.limit / 2 };
        let mut inner = self.inner.lock();
        if !inner.accounts.of(account).take(from, bytes.len(), limit, ordinary) {
            drop(inner);
            self.stats.over_inbox.inc();
            return false;
        }
        let number = inner.number();
        let record = || record::waiting(Some((account, from)), &bytes);
        self.stage(&mut inner, number, record);
        inner.items.push_back((number, Item::Datagram { account, from, bytes }));
        inner.queued += 1;
        drop(inner);
        self.announce();
        true
    }

    /// Queues a packet of the device itself, as part of what the caller commits.
    pub fn push_own(&self, bytes: Box<[u8]>) {
        let mut inner = self.inner.lock();
        let number = inner.number();
        self.stage(&mut inner, number, || record::waiting(None, &bytes));
        self.add_own(inner, (number, Item::Own(bytes)));
    }

    fn stage(&self, inner: &mut Inner, number: u64, record: impl FnOnce() -> Vec<u8>) {
        if let Some(log) = &self.log {
            log.stage(record::item(self.cid, number), &record());
            inner.recorded_by = log.commits() + 1;
        }
    }

    /// The same, committed at once and together with `also`.
    pub fn push_with(&self, bytes: Box<[u8]>, also: (vmlane_state::Key, &[u8])) {
        let mut inner = self.inner.lock();
        let number = inner.number();
        if let Some(log) = &self.log {
            let waiting = record::waiting(None, &bytes);
            log.write_all(&[
                (record::item(self.cid, number), Some(waiting.as_slice())),
                (also.0, Some(also.1)),
            ]);
        }
        self.add_own(inner, (number, Item::Own(bytes)));
    }

    /// Queues a notice; the caller has made sure that none of its kind waits.
    pub fn push_notice(&self, notices: Arc<Notices>, notice: Notice) {
        self.add_own(self.inner.lock(), (0, Item::Notice(notices, notice)));
    }

    fn add_own(&self, mut inner: MutexGuard<'_, Inner>, item: (u64, Item)) {
        inner.own += 1;
        inner.queued += 1;
        inner.items.push_back(item);
        drop(inner);
        self.announce();
    }

    /// Numbers what comes from now on from `first` on.
    pub fn number_from(&self, first: u64) {
        self.inner.lock().next = first;
    }

    /// What was waiting by the records, in order, in front of everything else.
    pub fn restore_first(&self, waiting: Vec<(u64, Charged, Box<[u8]>)>) {
        let mut inner = self.inner.lock();
        for (number, account, bytes) in waiting.into_iter().rev() {
            let item = match account {
                Some((account, from)) => {
                    inner.accounts.of(account).restore(from, bytes.len());
                    Item::Datagram { account, from, bytes }
                }
                None => {
                    inner.own += 1;
                    Item::Own(bytes)
                }
            };
            inner.items.push_front((number, item));
            inner.queued += 1;
        }
    }

    /// The previous daemon had delivered everything below `number`.
    pub fn drop_below(&self, number: u64) {
        let mut out = Vec::new();
        loop {
            let waits = self.inner.lock().items.iter().any(|(own, _)| (1..number).contains(own));
            if !waits || !self.pop_into(&mut out, usize::MAX) {
                return;
            }
            out.clear();
        }
    }

    /// Number below which the guest has everything.
    pub fn taken(&self) -> u64 {
        let inner = self.inner.lock();
        inner.items.iter().map(|(number, _)| *number).find(|number| *number != 0).unwrap_or(inner.next)
    }

    /// What the guest has got is recorded by its device: the records of it may go.
    pub fn forget_consumed(&self) {
        let mut inner = self.inner.lock();
        let consumed = std::mem::take(&mut inner.consumed);
        if let Some(log) = &self.log
            && !consumed.is_empty()
        {
            let gone: Vec<_> =
                consumed.iter().map(|&number| (record::item(self.cid, number), None)).collect();
            log.write_all(&gone);
        }
    }

    /// Whether a guest was notified of something or not: it polls.
    pub fn announce_again(&self) {
        self.announced.store(true, Ordering::SeqCst);
        self.signals.raise(CAUSE_DATAGRAM);
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
        self.inner.lock().accounts.bytes()
    }

    /// Items that were put in so far, in all: once as many were taken out, the guest has what was the last
    /// one now.
    pub fn queued(&self) -> u64 {
        self.inner.lock().queued
    }

    /// Items that were taken out so far, in all.
    pub fn dequeued(&self) -> u64 {
        self.inner.lock().dequeued
    }

    /// Packets of the device itself that wait.
    pub fn own(&self) -> usize {
        self.inner.lock().own
    }

    /// Appends what waits, as many whole datagrams as fit into `room`. What is not recorded yet does not
    /// leave, for its sender's request might be done again: `commits` returns once it is. What comes
    /// meanwhile stays.
    pub fn pop_all(&self, out: &mut Vec<u8>, room: usize, commits: impl FnOnce()) {
        let inner = self.inner.lock();
        let last = inner.queued;
        let recorded = self.log.as_ref().is_none_or(|log| log.commits() >= inner.recorded_by);
        drop(inner);
        if !recorded {
            commits();
        }
        while self.pop_up_to(last, out, room - out.len()) {}
    }

    /// Appends the next datagram, padded with zeros to 8 bytes, if it fits into `room`. Returns
    /// false if nothing waits or the next one does not fit.
    pub fn pop_into(&self, out: &mut Vec<u8>, room: usize) -> bool {
        self.pop_up_to(u64::MAX, out, room)
    }

    /// The same of the first `last` items that were ever put in.
    fn pop_up_to(&self, last: u64, out: &mut Vec<u8>, room: usize) -> bool {
        let mut inner = self.inner.lock();
        let start = out.len();
        while inner.dequeued < last {
            let Some((_, item)) = inner.items.front() else { return false };
            let len = match item {
                Item::Datagram { bytes, .. } | Item::Own(bytes) => bytes.len(),
                Item::Notice(..) => NOTICE_LEN,
            };
            if padded(len) > room {
                return false;
            }
            let (number, item) = inner.items.pop_front().unzip();
            inner.dequeued += 1;
            if let Some(number) = number.filter(|number| *number != 0 && self.log.is_some()) {
                inner.consumed.push(number);
            }
            inner.own -= usize::from(matches!(item, Some(Item::Own(_) | Item::Notice(..))));
            match item {
                Some(Item::Datagram { account, from, bytes }) => {
                    inner.accounts.of(account).give_back(from, len);
                    out.extend_from_slice(&bytes);
                }
                Some(Item::Own(bytes)) => out.extend_from_slice(&bytes),
                Some(Item::Notice(notices, notice)) => match notices.take(notice, &self.stats) {
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
        false
    }

    /// Forgets everything that waits.
    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        if let Some(log) = &self.log {
            let numbers = inner.items.iter().map(|(number, _)| *number).chain(inner.consumed.iter().copied());
            numbers.filter(|number| *number != 0).for_each(|number| {
                log.stage_removal(record::item(self.cid, number));
            });
        }
        let (next, queued) = (inner.next, inner.queued);
        *inner = Inner { next, queued, dequeued: queued, ..Inner::default() };
        drop(inner);
        self.announced.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::irq::NoInterrupts;

    const LEN: usize = 32;

    fn inbox(log: Option<Arc<Journal>>) -> Inbox {
        let signals = Signals::new(Arc::new(NoInterrupts), Arc::default());
        Inbox::new(1 << 16, signals, Arc::default(), (3, log, 1))
    }

    fn push(inbox: &Inbox) {
        assert!(inbox.push(Account::Ordinary, 4, vec![1; LEN].into()));
    }

    #[test]
    fn what_is_not_recorded_is_waited_for_and_what_comes_meanwhile_stays() {
        // Is there a log, is it committed before the fetch; is it waited for then?
        for (logged, committed, waits) in [(false, false, false), (true, true, false), (true, false, true)] {
            let log = logged.then(|| Arc::new(Journal::create("inbox", 1, 1 << 16).unwrap()));
            let commit = || log.iter().for_each(|log| log.commit());
            let inbox = inbox(log.clone());
            push(&inbox);
            if committed {
                commit();
            }
            let (mut out, mut waited) = (Vec::new(), false);
            inbox.pop_all(&mut out, 1 << 16, || {
                waited = true;
                commit();
                push(&inbox);
            });
            assert_eq!((waited, out.len()), (waits, LEN), "logged: {logged}, committed: {committed}");
            assert_eq!(inbox.queued() - inbox.dequeued(), u64::from(waits));
        }
    }
}
