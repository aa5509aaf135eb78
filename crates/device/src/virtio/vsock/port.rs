//! The running rings of one VM's device: packets out, packets in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::virtio::queue::{Broken, Queue, Segment, Taken};
use crate::virtio::recall::Recall;
use crate::virtio::vhost::{Lines, Setup};
use vmlane_mem::{MemoryMap, Spans, copy_spans};
use vmlane_wire::virtio::feature;
use vmlane_wire::virtio_vsock::{HEADER, Header, MAX_PAYLOAD, SEQPACKET, op};
use vmlane_worker::{Doorbells, Work};
use zerocopy::FromBytes;

use super::backlog::Waiting;
use super::bridge::Name;
use super::kept::{Part, Replies, Transaction};
use super::receive::{Inlet, NoBuffers, RX, Receive, Shares};
use super::stats::GuestStats;
use super::transmit::{Outlet, Transmit};

const TX: usize = 1;

/// How long a driver may wait to be notified that its packets are sent, while the worker is awake: it is
/// notified before the worker sleeps. It frees their memory then; an interrupt costs an emulated guest as
/// much as a packet.
const LATE: Duration = Duration::from_micros(500);
/// With so many bytes unheard of, a sender may wait for nothing else: Linux (since 6.7) charges packets to
/// their socket until they are freed, and does not wake a sender that got credit while they hold more than
/// half of its `sk_sndbuf`, 104 KiB by default (`skb_set_owner_w` in `virtio_transport_common.c`,
/// `sock_writeable`).
const HELD: usize = 32 << 10;
/// What a packet takes beside its payload there, about.
const PACKET: usize = 1 << 10;

/// A packet that a guest sent, until it is delivered.
#[derive(Debug)]
pub struct Outgoing {
    taken: Taken,
    pub header: Header,
    /// Payload bytes, and how many of them are delivered.
    pub len: usize,
    pub done: usize,
    /// What it reports of its connection was noted.
    pub passed: bool,
    /// Since when its receiver has had no buffer for it.
    pub waits: Option<Instant>,
}

/// One VM's rings. A worker owns it. Many fields, because what two rings, the packets on their way in each
/// direction and the charge of this round need is examined together in every turn.
pub struct Port {
    rx: Arc<Inlet>,
    tx: Arc<Outlet>,
    pub seqpacket: bool,
    /// The guest's driver has begun anew: it knows of no connection.
    pub fresh: bool,
    memory: MemoryMap,
    segments: Vec<Segment>,
    /// The payload of `outgoing`.
    payload: Spans,
    outgoing: Option<Outgoing>,
    unreported: Unreported,
    recall: Recall,
    /// Descriptors read that its VM was not charged for yet begin here.
    charged: u64,
    broken: bool,
    pub shares: Shares,
    /// Of its VM.
    pub stats: Arc<GuestStats>,
    doorbell: Option<Doorbell>,
}

/// Packets that are sent and of which the driver was not notified.
#[derive(Default)]
struct Unreported {
    /// Since when it wants to be.
    since: Option<Instant>,
    descriptors: u16,
    /// What they take of their sockets' memory, about, in bytes.
    bytes: usize,
}

/// A port's doorbell among those of all.
struct Doorbell {
    among: Arc<Doorbells>,
    lines: Arc<dyn Lines>,
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        self.lines.doorbell().into_iter().for_each(|file| self.among.remove(file));
    }
}

/// An invalid packet is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Port {
    /// The rings of `setup`. None if not both of them can run.
    pub fn new(cid: u32, setup: Setup, shares: Shares) -> Option<Port> {
        let Setup { features, memory, rings, resumed } = setup;
        let Shares { lines, kept, transaction } = &shares;
        let ring = |number: usize| {
            let ring = rings.get(number)?.as_ref()?;
            let fresh = ring.is_at_start();
            match Queue::new(ring, features, &memory) {
                Ok(queue) => Some((queue, fresh)),
                Err(error) => {
                    tracing::warn!(cid, ring = number, %error, "a virtio ring cannot run");
                    lines.fail(number);
                    None
                }
            }
        };
        let ((mut rx, _), (tx, fresh)) = (ring(RX)?, ring(TX)?);
        let fresh = fresh && !resumed && features & feature::VERSION_1 != 0;
        rx.suppress_kicks();
        let replies = Replies::open(kept.clone(), cid);
        let tx = Transmit::new(tx, transaction.clone(), kept.clone());
        let mut port = Port {
            rx: Receive::new(rx, &memory, replies, &shares),
            tx,
            seqpacket: features & SEQPACKET != 0,
            fresh,
            segments: Vec::with_capacity(64),
            payload: Spans::new(memory.clone(), false),
            outgoing: None,
            memory,
            unreported: Unreported::default(),
            recall: Recall::new(&**lines),
            charged: 0,
            broken: false,
            shares,
            stats: Arc::default(),
            doorbell: None,
        };
        port.disarm();
        Some(port)
    }

    /// Forgets what there was for the driver before this one, which has begun anew.
    pub fn forget_last_driver(&mut self) {
        self.rx.borrow_mut().forget_replies();
        self.tx.borrow_mut().keep(Part::default());
    }

    /// What the rings do is counted there from now on.
    pub fn count_in(&mut self, stats: Arc<GuestStats>) {
        self.rx.borrow_mut().stats = stats.clone();
        self.stats = stats;
    }

    /// Takes the packet that the guest sends next, if there is one and none is under way.
    pub fn fetch(&mut self) -> Result<Option<Outgoing>, Malformed> {
        if let Some(outgoing) = self.outgoing.take() {
            return Ok(Some(outgoing));
        }
        if self.broken || !self.rx.borrow().may_cause_replies() {
            return Ok(None);
        }
        self.segments.clear();
        let mut tx = self.tx.borrow_mut();
        let next = tx.ring.next;
        let taken = match tx.ring.read(next, &mut self.segments) {
            Ok(Some(taken)) => taken,
            Ok(None) => return Ok(None),
            Err(broken) => {
                drop(tx);
                self.breaks(broken);
                return Ok(None);
            }
        };
        tx.ring.next = taken.next();
        let part = std::mem::take(&mut tx.part);
        drop(tx);
        match self.parse(taken, part) {
            Some(outgoing) => Ok(Some(outgoing)),
            None => {
                self.sent(&taken, 0);
                Err(Malformed)
            }
        }
    }

    fn parse(&mut self, taken: Taken, part: Part) -> Option<Outgoing> {
        self.payload.clear();
        let (mut header, mut have) = ([0; HEADER], 0);
        for segment in &self.segments {
            if segment.writable {
                return None;
            }
            let bytes = segment.len as usize;
            let here = bytes.min(HEADER - have);
            if here > 0 {
                self.memory.read(segment.addr, header.get_mut(have..have + here)?).ok()?;
                have += here;
            }
            if bytes > here {
                self.payload.push(segment.addr.checked_add(here as u64)?, bytes - here).ok()?;
            }
        }
        let header = Header::read_from_bytes(&header).ok().filter(|_| have == HEADER)?;
        let len = if header.op.get() == op::RW { header.len.get() as usize } else { 0 };
        (len <= self.payload.len().min(MAX_PAYLOAD)).then_some(Outgoing {
            taken,
            header,
            len,
            done: part.done.min(len),
            passed: part.passed,
            waits: None,
        })
    }

    /// The packet is not delivered wholly: it is fetched again.
    pub fn keep(&mut self, outgoing: Outgoing) {
        let Outgoing { done, passed, .. } = outgoing;
        self.tx.borrow_mut().keep(Part { done, passed });
        self.outgoing = Some(outgoing);
    }

    /// The packet is delivered or dropped.
    pub fn finish(&mut self, outgoing: &Outgoing) {
        self.stats.packets_sent.bump(1);
        self.stats.bytes_sent.bump(outgoing.done as u64);
        self.sent(&outgoing.taken, outgoing.len);
    }

    fn sent(&mut self, taken: &Taken, payload: usize) {
        self.tx.borrow_mut().complete(taken);
        self.unreported.descriptors = self.unreported.descriptors.saturating_add(taken.count());
        self.unreported.bytes = self.unreported.bytes.saturating_add(PACKET + payload);
    }

    /// Gives what is left of `outgoing`, whose payload is in `from`, to this guest: several packets if
    /// its buffers are small. Replies go first: a reset must not be overtaken by what comes after it.
    pub fn deliver(&mut self, from: &Port, outgoing: &mut Outgoing) -> Result<(), NoBuffers> {
        let mut rx = self.rx.borrow_mut();
        rx.send_replies();
        if !rx.has_room(outgoing.len - outgoing.done) {
            return Err(NoBuffers);
        }
        loop {
            let (left, at) = (outgoing.len - outgoing.done, outgoing.done);
            let copy = |into: &Spans| copy_spans(into, 0, &from.payload, at, into.len());
            let here = rx.send(outgoing.header, left, copy)?;
            outgoing.done += here;
            if outgoing.done == outgoing.len {
                return Ok(());
            }
        }
    }

    /// Gives what is left of a packet that has waited to this guest. True: all of it.
    pub fn deliver_waiting(&mut self, packet: &mut Waiting) -> bool {
        let Waiting { header, bytes, done, .. } = packet;
        let mut rx = self.rx.borrow_mut();
        rx.send_replies();
        if !rx.has_room(bytes.len() - *done) {
            return false;
        }
        loop {
            let rest = bytes.get(*done..).unwrap_or_default();
            let copy = |into: &Spans| into.write(0, rest.get(..into.len()).unwrap_or_default());
            let Ok(here) = rx.send(*header, rest.len(), copy) else { return false };
            *done += here;
            if *done == bytes.len() {
                return true;
            }
        }
    }

    /// Where the guest receives, for ends of streams on this thread.
    pub fn inlet(&self) -> &Arc<Inlet> {
        &self.rx
    }

    /// The payload of the packet that was fetched last.
    pub fn payload(&self) -> &Spans {
        &self.payload
    }

    /// A round begins, in which so many descriptors of the receive ring may be read. True if those of the
    /// last one were too few.
    pub fn begin_round(&mut self, descriptors: usize) -> bool {
        self.rx.borrow_mut().begin_round(descriptors)
    }

    /// What the packets that the guest sent have caused since this was last asked.
    pub fn take_work(&mut self) -> Work {
        let walked = self.tx.borrow().ring.walked();
        let descriptors = (walked - std::mem::replace(&mut self.charged, walked)) as usize;
        Work { descriptors, ..Work::default() }
    }

    /// Sends this guest a packet without payload, now or when there is room ([`Receive::reply`]).
    pub fn reply(&mut self, header: Header) {
        self.rx.borrow_mut().reply(header);
    }

    /// Is there room for more of them? A caller that can wait, waits until there is.
    pub fn takes_replies(&self) -> bool {
        self.rx.borrow().takes_replies()
    }

    /// Makes what was done visible. The driver is notified of packets for it at once. Of packets that it sent
    /// it is notified when half of its ring is completed, or a little later; if they hold much memory, before
    /// the packets for it, since these may be the credit that a sender waits for.
    pub fn flush(&mut self, now: Instant) {
        self.shares.transaction.commit();
        let calls = self.rx.borrow_mut().take_calls();
        let mut tx = self.tx.borrow_mut();
        if tx.take_calls() {
            self.unreported.since.get_or_insert(now);
        }
        let half = tx.ring.size() / 2;
        drop(tx);
        let due = |since| {
            self.unreported.descriptors >= half
                || calls && self.unreported.bytes >= HELD
                || now.saturating_duration_since(since) >= LATE
        };
        if self.unreported.since.is_some_and(due) {
            self.flush_deferred(now);
        }
        if calls {
            self.shares.lines.call(RX);
            self.recall.called(now);
        }
    }

    /// A round is over: waiting replies are delivered, what was done is visible. True if there was a reply,
    /// and what the receive ring has caused.
    pub fn end_round(&mut self, now: Instant) -> (bool, Work) {
        let mut rx = self.rx.borrow_mut();
        let (replied, work) = (rx.send_replies(), rx.take_work());
        drop(rx);
        self.flush(now);
        (replied, work)
    }

    /// Nothing moves: a driver whose packets hold much memory is notified of them now.
    pub fn deliver_held(&mut self, now: Instant) {
        if self.unreported.bytes >= HELD {
            self.flush_deferred(now);
        }
    }

    /// A guest that may have slept through a call is called again, whatever other guests do meanwhile.
    pub fn repeat_call(&mut self, now: Instant) {
        if !self.recall.is_pending() {
            return;
        }
        // What is deferred is not to be reported yet.
        let notified = self.rx.borrow().ring.is_notified()
            && (self.unreported.since.is_some() || self.tx.borrow().ring.is_notified());
        if self.recall.take_due(now, notified) {
            self.shares.lines.call(RX);
        }
    }

    /// Is the guest to be called again?
    pub fn repeats(&self) -> bool {
        self.recall.is_pending()
    }

    /// Is the driver to be notified of something when its time has come?
    pub fn defers(&self) -> bool {
        self.unreported.since.is_some()
    }

    /// The driver is notified now: nothing waits for its time while the worker sleeps.
    pub fn flush_deferred(&mut self, now: Instant) {
        if self.unreported.since.take().is_some() {
            (self.unreported.descriptors, self.unreported.bytes) = (0, 0);
            self.shares.lines.call(TX);
            self.recall.called(now);
        }
    }

    /// A fault of ours ended this port: its driver is notified. Nothing but the drop follows.
    pub fn fail(&mut self) {
        self.broken = true;
        self.unreported.since = None;
        self.rx.borrow_mut().fail();
        self.shares.lines.fail(TX);
    }

    #[cold]
    fn breaks(&mut self, broken: Broken) {
        tracing::debug!(ring = TX, %broken, "a virtio ring broke");
        self.broken = true;
        self.shares.lines.fail(TX);
    }

    pub fn has_buffers(&self) -> bool {
        !self.broken && self.rx.borrow().has_buffers()
    }

    /// Asks the driver to announce packets, and buffers if some are waited for.
    pub fn arm(&mut self, for_buffers: bool) {
        self.tx.borrow_mut().ring.listen();
        if for_buffers {
            self.rx.borrow_mut().ring.listen();
        }
    }

    /// After a fence: is there something to do already?
    pub fn waits(&self) -> bool {
        let rx = self.rx.borrow();
        let sends = self.outgoing.is_none() && rx.takes_replies();
        let fills = (rx.holds_replies() || rx.is_waited_for()) && rx.has_buffers();
        let sent = || {
            let tx = self.tx.borrow();
            tx.ring.is_there(tx.ring.next)
        };
        !self.broken && !rx.is_broken() && (fills || sends && sent())
    }

    /// Connections whose peers' bytes have waited for buffers that are there now.
    pub fn take_waiting(&self) -> Vec<Name> {
        self.rx.borrow_mut().take_waiting()
    }

    /// Do such bytes wait?
    pub fn is_waited_for(&self) -> bool {
        self.rx.borrow().is_waited_for()
    }

    /// A packet of this guest waits for its receiver.
    pub fn holds_packet(&self) -> bool {
        self.outgoing.is_some()
    }

    pub fn holds_replies(&self) -> bool {
        self.rx.borrow().holds_replies() && !self.broken
    }

    pub fn disarm(&mut self) {
        self.tx.borrow_mut().ring.suppress_kicks();
        self.rx.borrow_mut().ring.suppress_kicks();
        self.shares.lines.clear();
    }

    /// Its doorbell is one of `doorbells` from now on, if it has one.
    pub fn announce_to(&mut self, doorbells: Arc<Doorbells>, cid: u32, device: &str) {
        let Some(file) = self.shares.lines.doorbell() else { return };
        match doorbells.add(file, cid.into()) {
            Ok(()) => self.doorbell = Some(Doorbell { among: doorbells, lines: self.shares.lines.clone() }),
            Err(error) => {
                tracing::warn!(device, %error, "a virtio-vsock device has no doorbell; it is polled all the time")
            }
        }
    }

    /// From here on what is done becomes valid with another worker's transactions; nothing is under way in
    /// one of the last's.
    pub fn set_transaction(&mut self, transaction: &Arc<Transaction>) {
        self.rx.borrow_mut().set_transaction(transaction.clone());
        self.tx.borrow_mut().set_transaction(transaction.clone());
        self.shares.transaction = transaction.clone();
    }

    /// It is among none from here on.
    pub fn leave_doorbells(&mut self) {
        self.doorbell = None;
    }

    /// Does the worker receive its doorbell?
    pub fn announces(&self) -> bool {
        self.doorbell.is_some()
    }

    /// Will its guest announce what it does, once it is asked to? Else, and while something of its is under
    /// way, it has to be polled.
    pub fn announces_all(&self) -> bool {
        let rx = self.rx.borrow();
        let fills = rx.holds_replies() || rx.is_waited_for() || rx.is_limited();
        let under_way = self.holds_packet() || fills;
        self.announces() && !under_way && !self.defers() && !self.repeats()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.unreported.descriptors = u16::MAX;
        self.flush(Instant::now());
        // What is under way is taken again when the rings run next, and goes on where it was.
        let mut tx = self.tx.borrow_mut();
        let first = self.outgoing.as_ref().map_or(tx.ring.next, |outgoing| outgoing.taken.at());
        tx.ring.leave(first);
        drop(tx);
        self.rx.borrow_mut().leave();
    }
}
