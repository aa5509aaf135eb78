//! The running rings of one VM's device: packets out, packets in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::virtio::queue::{Broken, Queue, Segment, Taken};
use crate::virtio::recall::Recall;
use crate::virtio::vhost::{Lines, Setup};
use vmlane_mem::{Fault, MemoryMap, Spans, copy_spans};
use vmlane_wire::virtio::feature;
use vmlane_wire::virtio_vsock::{END_OF_MESSAGE, END_OF_RECORD, HEADER, Header, MAX_PAYLOAD, SEQPACKET, op};
use vmlane_worker::{Doorbells, Work};
use zerocopy::{FromBytes, IntoBytes};

use super::patience::Wait;
use super::stats::GuestStats;

const RX: usize = 0;
const TX: usize = 1;
/// Packets of our own that wait for buffers. While as many do, the guest's are not looked at.
const MAX_REPLIES: usize = 256;
/// Beyond so many they are forgotten.
const TOO_MANY_REPLIES: usize = 2 * MAX_REPLIES;

/// Descriptors that are looked at to see whether a packet can be delivered as a whole. Linux needs 34 for the longest
/// one.
const LOOKED_AT: u64 = 1024;

/// How long a driver may wait to hear that its packets are sent, while the worker is awake: it hears before the worker
/// sleeps. It frees their memory then; an interrupt costs an emulated guest as much as a packet.
const LATE: Duration = Duration::from_micros(500);
/// With so many bytes unheard of, a sender may wait for nothing else: Linux (since 6.7) charges packets to their socket until
/// they are freed, and does not wake a sender that got credit while they hold more than half of its `sk_sndbuf`, 104 KiB by
/// default (`skb_set_owner_w` in `virtio_transport_common.c`, `sock_writeable`).
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
    /// Its receiver has no buffer.
    pub waits: Option<Wait>,
}

/// One VM's rings. A worker owns it. Many fields, because what two rings, the packets on their way in each direction and the
/// charge of this round need is looked at together in every turn.
pub struct Port {
    rx: Queue,
    tx: Queue,
    pub seqpacket: bool,
    /// The guest's driver has begun anew: it knows of no connection.
    pub fresh: bool,
    memory: MemoryMap,
    segments: Vec<Segment>,
    /// The payload of `outgoing`.
    payload: Spans,
    outgoing: Option<Outgoing>,
    head: Spans,
    into: Spans,
    /// Headers of packets that the daemon sends to this guest.
    replies: VecDeque<Header>,
    /// Since when the driver wants to hear that packets are sent, and the descriptors of those it has not
    /// heard of.
    owed: Option<Instant>,
    unheard: u16,
    /// What those packets take of their sockets' memory, about, in bytes.
    held: usize,
    recall: Recall,
    /// Descriptors read that its VM was not charged for yet begin here; its receive ring is read up to here in this
    /// round.
    charged: u64,
    walk_until: u64,
    /// That was not enough in this round.
    limited: bool,
    /// Bytes that its VM was not charged for yet.
    copied: usize,
    broken: bool,
    lines: Arc<dyn Lines>,
    /// Of its VM.
    pub stats: Arc<GuestStats>,
    bell: Option<Bell>,
}

/// A port's doorbell among those of all.
struct Bell {
    among: Arc<Doorbells>,
    lines: Arc<dyn Lines>,
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.lines.doorbell().into_iter().for_each(|file| self.among.remove(file));
    }
}

/// An invalid packet is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense;

/// Room for the guest to receive in is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoBuffers;

impl Port {
    /// The rings of `setup`. None if not both of them can run.
    pub fn new(cid: u32, setup: Setup, lines: Arc<dyn Lines>) -> Option<Port> {
        let Setup { features, memory, rings } = setup;
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
        rx.quiet();
        let mut port = Port {
            rx,
            tx,
            seqpacket: features & SEQPACKET != 0,
            fresh: fresh && features & feature::VERSION_1 != 0,
            segments: Vec::with_capacity(64),
            payload: Spans::new(memory.clone(), false),
            outgoing: None,
            head: Spans::new(memory.clone(), true),
            into: Spans::new(memory.clone(), true),
            memory,
            replies: VecDeque::new(),
            owed: None,
            unheard: 0,
            held: 0,
            recall: Recall::new(&*lines),
            charged: 0,
            walk_until: u64::MAX,
            limited: false,
            copied: 0,
            broken: false,
            lines,
            stats: Arc::default(),
            bell: None,
        };
        port.disarm();
        Some(port)
    }

    /// Takes the packet that the guest sends next, if there is one and none is under way.
    pub fn fetch(&mut self) -> Result<Option<Outgoing>, Nonsense> {
        if let Some(outgoing) = self.outgoing.take() {
            return Ok(Some(outgoing));
        }
        if self.broken || self.replies.len() >= MAX_REPLIES {
            return Ok(None);
        }
        self.segments.clear();
        let taken = match self.tx.read(self.tx.next, &mut self.segments) {
            Ok(Some(taken)) => taken,
            Ok(None) => return Ok(None),
            Err(broken) => {
                self.breaks(TX, broken);
                return Ok(None);
            }
        };
        self.tx.next = taken.next();
        match self.parse(taken) {
            Some(outgoing) => Ok(Some(outgoing)),
            None => {
                self.sent(&taken, 0);
                Err(Nonsense)
            }
        }
    }

    fn parse(&mut self, taken: Taken) -> Option<Outgoing> {
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
            done: 0,
            waits: None,
        })
    }

    /// The packet is not delivered wholly: it is fetched again.
    pub fn keep(&mut self, outgoing: Outgoing) {
        self.outgoing = Some(outgoing);
    }

    /// The packet is delivered or dropped.
    pub fn finish(&mut self, outgoing: &Outgoing) {
        self.stats.packets_sent.bump(1);
        self.stats.bytes_sent.bump(outgoing.done as u64);
        self.sent(&outgoing.taken, outgoing.len);
    }

    fn sent(&mut self, taken: &Taken, payload: usize) {
        self.tx.complete(taken.id(), taken.count(), 0);
        self.unheard = self.unheard.saturating_add(taken.count());
        self.held = self.held.saturating_add(PACKET + payload);
    }

    /// Gives what is left of `outgoing`, whose payload is in `from`, to this guest: several packets if
    /// its buffers are small.
    pub fn deliver(&mut self, from: &Port, outgoing: &mut Outgoing) -> Result<(), NoBuffers> {
        if !self.holds(outgoing.len - outgoing.done) {
            return Err(NoBuffers);
        }
        loop {
            let left = outgoing.len - outgoing.done;
            let here = self.send(outgoing.header, &from.payload, outgoing.done, left)?;
            outgoing.done += here;
            if outgoing.done == outgoing.len {
                return Ok(());
            }
        }
    }

    /// Sends this guest one packet with up to `len` bytes of `from`, from `at` on. Returns how many it took.
    pub fn send(
        &mut self,
        mut header: Header,
        from: &Spans,
        at: usize,
        len: usize,
    ) -> Result<usize, NoBuffers> {
        let Some((taken, room)) = self.buffer()? else { return Err(NoBuffers) };
        let here = len.min(room);
        if self.spread(here).is_err() {
            self.breaks(RX, Broken::Descriptor(taken.id()));
            return Err(NoBuffers);
        }
        header.len = (here as u32).into();
        if here < len {
            // The message does not end here.
            header.flags = (header.flags.get() & !(END_OF_MESSAGE | END_OF_RECORD)).into();
        }
        copy_spans(&self.into, 0, from, at, here);
        self.head.write(0, header.as_bytes());
        self.log(here);
        self.rx.next = taken.next();
        self.rx.complete(taken.id(), taken.count(), (HEADER + here) as u32);
        self.stats.packets_received.bump(1);
        self.stats.bytes_received.bump(here as u64);
        Ok(here)
    }

    /// The payload of the packet that was fetched last.
    pub fn payload(&self) -> &Spans {
        &self.payload
    }

    /// Are there buffers for `len` bytes? A packet that is delivered at once is never half delivered
    /// when the daemon dies. One that half of the ring would not hold goes in parts.
    fn holds(&mut self, len: usize) -> bool {
        let (mut at, mut room, mut descriptors) = (self.rx.next, 0usize, 0);
        let enough = self.rx.walked() + LOOKED_AT;
        while room < len && descriptors < self.rx.size() / 2 && self.rx.walked() < enough && !self.broken {
            if !self.may_walk() {
                return false;
            }
            self.segments.clear();
            match self.rx.read(at, &mut self.segments) {
                Ok(Some(taken)) => {
                    let bytes: usize = self.segments.iter().map(|segment| segment.len as usize).sum();
                    room = room.saturating_add(bytes.saturating_sub(HEADER));
                    descriptors += taken.count();
                    at = taken.next();
                }
                Ok(None) => return false,
                Err(broken) => self.breaks(RX, broken),
            }
        }
        !self.broken
    }

    /// The next buffer and the payload bytes that it holds; its pieces are in `segments`.
    fn buffer(&mut self) -> Result<Option<(Taken, usize)>, NoBuffers> {
        if self.broken || !self.may_walk() {
            return Err(NoBuffers);
        }
        // A packet of this guest's own that is under way has been parsed already.
        self.segments.clear();
        let taken = match self.rx.read(self.rx.next, &mut self.segments) {
            Ok(taken) => taken,
            Err(broken) => {
                self.breaks(RX, broken);
                return Err(NoBuffers);
            }
        };
        let Some(taken) = taken else { return Ok(None) };
        let all: usize = self.segments.iter().map(|segment| segment.len as usize).sum();
        let writable = self.segments.iter().all(|segment| segment.writable);
        match all.checked_sub(HEADER).filter(|&room| room > 0 && writable) {
            Some(room) => Ok(Some((taken, room))),
            None => {
                self.breaks(RX, Broken::Descriptor(taken.id()));
                Err(NoBuffers)
            }
        }
    }

    /// May the receive ring be read on, in this round?
    fn may_walk(&mut self) -> bool {
        let may = self.rx.walked() < self.walk_until;
        self.limited |= !may;
        may
    }

    /// A round begins, in which so many descriptors of the receive ring may be read. True if those of the last one
    /// were too few.
    pub fn begin_round(&mut self, descriptors: usize) -> bool {
        self.walk_until = self.rx.walked() + descriptors as u64;
        std::mem::take(&mut self.limited)
    }

    /// Bytes of a stream of its own were copied to the guest: it is charged for them.
    pub fn owe(&mut self, bytes: usize) {
        self.copied += bytes;
    }

    /// What the rings have caused since this was last asked.
    pub fn take_work(&mut self) -> Work {
        let walked = self.rx.walked() + self.tx.walked();
        let descriptors = (walked - std::mem::replace(&mut self.charged, walked)) as usize;
        Work { bytes: std::mem::take(&mut self.copied), descriptors, ..Work::default() }
    }

    /// Resolves the pieces of a buffer for a header and `len` bytes.
    fn spread(&mut self, len: usize) -> Result<(), Fault> {
        self.head.clear();
        self.into.clear();
        let mut before = 0;
        for piece in &self.segments {
            let bytes = (piece.len as usize).min(HEADER + len - before);
            let of_head = bytes.min(HEADER.saturating_sub(before));
            if of_head > 0 {
                self.head.push(piece.addr, of_head)?;
            }
            if bytes > of_head {
                self.into.push(piece.addr.wrapping_add(of_head as u64), bytes - of_head)?;
            }
            before += bytes;
        }
        Ok(())
    }

    /// A header and `len` bytes were written to the buffer.
    fn log(&self, len: usize) {
        let Some(log) = self.rx.log() else { return };
        let mut left = HEADER + len;
        for piece in &self.segments {
            let here = left.min(piece.len as usize);
            log.mark(piece.addr, here);
            left -= here;
        }
    }

    /// Sends this guest a packet without payload, now or when there is room. It is forgotten if too
    /// many wait: a guest that takes none gets none.
    pub fn reply(&mut self, header: Header) {
        if self.replies.len() < TOO_MANY_REPLIES {
            self.replies.push_back(header);
        }
    }

    /// Is there room for more of them? A caller that can wait, waits until there is.
    pub fn takes_replies(&self) -> bool {
        self.replies.len() < MAX_REPLIES
    }

    /// Delivers waiting replies. True if one was.
    pub fn send_replies(&mut self) -> bool {
        let mut moved = false;
        while let Some(header) = self.replies.front().copied() {
            let Ok(Some((taken, _))) = self.buffer() else { break };
            if self.spread(0).is_err() {
                self.breaks(RX, Broken::Descriptor(taken.id()));
                break;
            }
            self.head.write(0, header.as_bytes());
            self.log(0);
            self.rx.next = taken.next();
            self.rx.complete(taken.id(), taken.count(), HEADER as u32);
            self.stats.packets_received.bump(1);
            self.replies.pop_front();
            moved = true;
        }
        moved
    }

    /// Makes what was done visible. The driver hears of packets for it at once. Of packets that it sent it hears when half of
    /// its ring is given back, or a little later; if they hold much memory, before the packets for it, since these may be the
    /// credit that a sender waits for.
    pub fn flush(&mut self, now: Instant) {
        let calls = self.rx.publish();
        if self.tx.publish() {
            self.owed.get_or_insert(now);
        }
        let due = |since| {
            self.unheard >= self.tx.size() / 2
                || calls && self.held >= HELD
                || now.saturating_duration_since(since) >= LATE
        };
        if self.owed.is_some_and(due) {
            self.deliver_withheld(now);
        }
        if calls {
            self.lines.call(RX);
            self.recall.called(now);
        }
    }

    /// Nothing moves: a driver whose packets hold much memory hears of them now.
    pub fn deliver_held(&mut self, now: Instant) {
        if self.held >= HELD {
            self.deliver_withheld(now);
        }
    }

    /// A guest that may have slept through a call is called again, whatever other guests do meanwhile.
    pub fn repeat_call(&mut self, now: Instant) {
        if !self.recall.is_pending() {
            return;
        }
        // What is withheld is not to be heard yet.
        let heard = self.rx.is_heard() && (self.owed.is_some() || self.tx.is_heard());
        if self.recall.is_due(now, heard) {
            self.lines.call(RX);
        }
    }

    /// Is the guest to be called again?
    pub fn repeats(&self) -> bool {
        self.recall.is_pending()
    }

    /// Is the driver to hear something when its time has come?
    pub fn withholds(&self) -> bool {
        self.owed.is_some()
    }

    /// The driver hears it now: nothing waits for its time while the worker sleeps.
    pub fn deliver_withheld(&mut self, now: Instant) {
        if self.owed.take().is_some() {
            (self.unheard, self.held) = (0, 0);
            self.lines.call(TX);
            self.recall.called(now);
        }
    }

    /// A fault of ours ended this port: its driver is told. Nothing but the drop follows.
    pub fn fail(&mut self) {
        self.broken = true;
        self.owed = None;
        self.lines.fail(RX);
        self.lines.fail(TX);
    }

    #[cold]
    fn breaks(&mut self, ring: usize, broken: Broken) {
        tracing::debug!(ring, %broken, "a virtio ring broke");
        self.broken = true;
        self.lines.fail(ring);
    }

    pub fn has_buffers(&self) -> bool {
        !self.broken && self.rx.is_there(self.rx.next)
    }

    /// Asks the driver to announce packets, and buffers if some are waited for.
    pub fn arm(&mut self, for_buffers: bool) {
        self.tx.listen();
        if for_buffers {
            self.rx.listen();
        }
    }

    /// After a fence: is there something to do already?
    pub fn waits(&self) -> bool {
        let sends = self.outgoing.is_none() && self.replies.len() < MAX_REPLIES;
        let replies = !self.replies.is_empty() && self.has_buffers();
        !self.broken && (replies || sends && self.tx.is_there(self.tx.next))
    }

    /// A packet of this guest waits for its receiver.
    pub fn holds_packet(&self) -> bool {
        self.outgoing.is_some()
    }

    pub fn holds_replies(&self) -> bool {
        !self.replies.is_empty() && !self.broken
    }

    pub fn disarm(&mut self) {
        self.tx.quiet();
        self.rx.quiet();
        self.lines.clear();
    }

    /// Its doorbell is one of `doorbells` from now on, if it has one.
    pub fn announce_to(&mut self, doorbells: Arc<Doorbells>, cid: u32) {
        let Some(file) = self.lines.doorbell() else { return };
        match doorbells.add(file, cid.into()) {
            Ok(()) => self.bell = Some(Bell { among: doorbells, lines: self.lines.clone() }),
            Err(error) => {
                tracing::warn!(cid, %error, "a virtio-vsock device has no doorbell; it is looked at all the time")
            }
        }
    }

    /// Does the worker hear its doorbell?
    pub fn announces(&self) -> bool {
        self.bell.is_some()
    }

    /// Will its guest announce what it does, once it is asked to? Else, and while something of its is under way, it has to
    /// be looked at.
    pub fn may_doze(&self) -> bool {
        let under_way = self.holds_packet() || self.holds_replies() || self.limited;
        self.announces() && !under_way && !self.withholds() && !self.repeats()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.unheard = self.tx.size();
        self.flush(Instant::now());
        // What is under way is taken again from its beginning when the rings run next, unless
        // part of it is delivered: then it is lost, as its connection is.
        let first = match &self.outgoing {
            Some(outgoing) if outgoing.done == 0 => outgoing.taken.at(),
            _ => self.tx.next,
        };
        self.tx.leave(first);
        let next = self.rx.next;
        self.rx.leave(next);
    }
}
