//! The receive ring of one VM's device: its buffers, and the packets that are written into them.
//!
//! Buffers are read ahead, as many as the next packet takes, and each is read once: one that was read waits
//! here until a packet is written into it.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::virtio::queue::{Broken, Queue, Segment, Taken};
use crate::virtio::vhost::Lines;
use atomic_refcell::AtomicRefCell;
use vmlane_mem::{Fault, MemoryMap, Spans};
use vmlane_wire::virtio_vsock::{END_OF_MESSAGE, END_OF_RECORD, HEADER, Header};
use vmlane_worker::Work;
use zerocopy::IntoBytes;

use super::bridge::Name;
use super::kept::{Kept, Replies, Shown, Transaction, Words};
use super::stats::GuestStats;

/// The ring's number.
pub const RX: usize = 0;
/// Packets of our own that wait for buffers. While as many do, the guest's are not examined.
const MAX_REPLIES: usize = 256;

/// Pieces of buffers that are read ahead, to see whether a packet can be delivered as a whole. Linux needs 34
/// for the longest one.
const AHEAD: usize = 1024;

/// Bytes delivered before their receiver is shown them: it reads while the next ones are copied.
pub const SHOWN: usize = 16 << 10;

/// Shared by the rings' owner and the ends of streams: all are on one thread.
pub type Inlet = AtomicRefCell<Receive>;

/// Room for the guest to receive in is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoBuffers;

/// A buffer that was read and is not used yet.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    taken: Taken,
    /// How many descriptors name its bytes.
    pieces: usize,
    /// Payload bytes that it holds.
    room: usize,
}

/// The ring, and what waits for its buffers.
pub struct Receive {
    pub ring: Queue,
    /// Buffers that were read, in order, and the pieces of all of them.
    unused: VecDeque<Buffer>,
    pieces: Vec<Segment>,
    /// Payload bytes that they hold, and descriptors of the ring that they take.
    room: usize,
    descriptors: u16,
    /// Where a packet goes: its header, its payload.
    head: Spans,
    into: Spans,
    /// Headers of packets that the daemon sends to this guest.
    replies: Replies,
    /// Connections whose peers' bytes wait for buffers.
    waiting: Vec<Name>,
    /// A stream has written to it since its owner last saw to it.
    pub written: bool,
    /// Bytes of streams that its VM was not charged for yet; descriptors begin here.
    pub copied: usize,
    charged: u64,
    /// The driver wants to be notified of what was shown.
    calls: bool,
    /// It is read up to here in this round. That was not enough.
    walk_until: u64,
    limited: bool,
    broken: bool,
    lines: Arc<dyn Lines>,
    /// Of its VM.
    pub stats: Arc<GuestStats>,
    kept: Arc<Kept>,
    transaction: Arc<Transaction>,
    /// The transaction has it.
    added: bool,
    me: Weak<Inlet>,
}

/// What a ring of either kind is shared with.
pub struct Shares {
    pub lines: Arc<dyn Lines>,
    pub kept: Arc<Kept>,
    pub transaction: Arc<Transaction>,
}

impl Receive {
    /// The ring of the guest `cid`. `replies`: those that wait for it.
    pub fn new(ring: Queue, memory: &MemoryMap, replies: Replies, shares: &Shares) -> Arc<Inlet> {
        Arc::new_cyclic(|me| Inlet::new(Receive::of(ring, memory, replies, shares, me.clone())))
    }

    fn of(ring: Queue, memory: &MemoryMap, replies: Replies, shares: &Shares, me: Weak<Inlet>) -> Receive {
        Receive {
            ring,
            unused: VecDeque::new(),
            pieces: Vec::with_capacity(64),
            room: 0,
            descriptors: 0,
            head: Spans::new(memory.clone(), true),
            into: Spans::new(memory.clone(), true),
            replies,
            waiting: Vec::new(),
            written: false,
            copied: 0,
            charged: 0,
            calls: false,
            walk_until: u64::MAX,
            limited: false,
            broken: false,
            lines: shares.lines.clone(),
            stats: Arc::default(),
            kept: shares.kept.clone(),
            transaction: shares.transaction.clone(),
            added: false,
            me,
        }
    }

    /// Writes a packet to the guest with up to `len` bytes of payload, of which `copy` puts the first ones
    /// into the list that it is given: so many as that is long. Returns how many these are.
    #[inline]
    pub fn send(
        &mut self,
        mut header: Header,
        len: usize,
        copy: impl FnOnce(&Spans),
    ) -> Result<usize, NoBuffers> {
        let buffer = self.next_buffer()?;
        let here = len.min(buffer.room);
        if self.spread(&buffer, here).is_err() {
            return Err(self.breaks(Broken::Descriptor(buffer.taken.id())));
        }
        header.len = (here as u32).into();
        if here < len {
            // The message does not end here.
            header.flags = (header.flags.get() & !(END_OF_MESSAGE | END_OF_RECORD)).into();
        }
        copy(&self.into);
        self.head.write(0, header.as_bytes());
        self.log(&buffer, here);
        self.complete(&buffer, HEADER + here);
        self.stats.packets_received.bump(1);
        self.stats.bytes_received.bump(here as u64);
        Ok(here)
    }

    /// Are there buffers for `len` bytes? A packet that is delivered at once is never half delivered
    /// when the daemon dies. One that half of the ring would not hold, or very many pieces, goes in parts.
    pub fn has_room(&mut self, len: usize) -> bool {
        while self.room < len && self.descriptors < self.ring.size() / 2 && self.pieces.len() < AHEAD {
            if self.read_ahead().is_err() {
                return false;
            }
        }
        !self.broken
    }

    /// Bytes that can be sent at once, up to `most` or a little more. 0: there are no buffers.
    pub fn room(&mut self, most: usize) -> usize {
        self.has_room(most);
        if self.broken { 0 } else { self.room }
    }

    /// The connection is to have its turn when there are buffers.
    pub fn wait(&mut self, name: Name) {
        self.waiting.push(name);
    }

    /// Connections that have waited, if there are buffers now.
    pub fn take_waiting(&mut self) -> Vec<Name> {
        if self.waiting.is_empty() || self.holds_replies() || !self.has_buffers() {
            return Vec::new();
        }
        std::mem::take(&mut self.waiting)
    }

    pub fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty() && !self.broken
    }

    /// Is the driver to be called, after what was shown? Once.
    pub fn take_calls(&mut self) -> bool {
        self.written = false;
        std::mem::take(&mut self.calls)
    }

    /// Something has changed that becomes valid with the next commit.
    fn add(&mut self) {
        if !std::mem::replace(&mut self.added, true)
            && let Some(me) = self.me.upgrade()
        {
            self.transaction.add(me);
        }
    }

    pub fn set_transaction(&mut self, transaction: Arc<Transaction>) {
        self.transaction = transaction;
    }

    /// The next buffer, whose pieces are the first of all. It is not used yet.
    #[inline]
    fn next_buffer(&mut self) -> Result<Buffer, NoBuffers> {
        if self.unused.is_empty() {
            self.read_ahead()?;
        }
        self.unused.front().copied().filter(|_| !self.broken).ok_or(NoBuffers)
    }

    /// Reads one buffer more.
    #[inline]
    fn read_ahead(&mut self) -> Result<(), NoBuffers> {
        if self.broken || !self.try_walk() {
            return Err(NoBuffers);
        }
        let before = self.pieces.len();
        let taken = match self.ring.read(self.ring.next, &mut self.pieces) {
            Ok(taken) => taken.ok_or(NoBuffers)?,
            Err(broken) => return Err(self.breaks(broken)),
        };
        let pieces = self.pieces.get(before..).unwrap_or_default();
        let all: usize = pieces.iter().map(|piece| piece.len as usize).sum();
        let writable = pieces.iter().all(|piece| piece.writable);
        let Some(room) = all.checked_sub(HEADER).filter(|&room| room > 0 && writable) else {
            return Err(self.breaks(Broken::Descriptor(taken.id())));
        };
        self.unused.push_back(Buffer { taken, pieces: pieces.len(), room });
        self.room = self.room.saturating_add(room);
        self.descriptors = self.descriptors.saturating_add(taken.count());
        self.ring.next = taken.next();
        Ok(())
    }

    /// The next buffer has got so many bytes, header included.
    #[inline]
    fn complete(&mut self, buffer: &Buffer, bytes: usize) {
        self.unused.pop_front();
        self.pieces.drain(..buffer.pieces.min(self.pieces.len()));
        self.room = self.room.saturating_sub(buffer.room);
        self.descriptors = self.descriptors.saturating_sub(buffer.taken.count());
        self.ring.complete(buffer.taken.id(), buffer.taken.count(), bytes as u32);
        self.add();
    }

    /// May the ring be read on, in this round?
    fn try_walk(&mut self) -> bool {
        let may = self.ring.walked() < self.walk_until;
        self.limited |= !may;
        may
    }

    /// A round begins, in which so many descriptors may be read. True if those of the last one were too few.
    pub fn begin_round(&mut self, descriptors: usize) -> bool {
        self.walk_until = self.ring.walked() + descriptors as u64;
        std::mem::take(&mut self.limited)
    }

    /// Has it been read as far as it may be in this round, although that was too little?
    pub fn is_limited(&self) -> bool {
        self.limited
    }

    /// Resolves the pieces of the next buffer for a header and `len` bytes.
    fn spread(&mut self, buffer: &Buffer, len: usize) -> Result<(), Fault> {
        self.head.clear();
        self.into.clear();
        let mut before = 0;
        for piece in self.pieces.iter().take(buffer.pieces) {
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

    /// A header and `len` bytes were written to the next buffer.
    fn log(&self, buffer: &Buffer, len: usize) {
        let Some(log) = self.ring.log() else { return };
        let mut left = HEADER + len;
        for piece in self.pieces.iter().take(buffer.pieces) {
            let here = left.min(piece.len as usize);
            log.mark(piece.addr, here);
            left -= here;
        }
    }

    /// Sends this guest a packet without payload, now or when there is room. It is forgotten if too
    /// many wait: a guest that takes none gets none.
    pub fn reply(&mut self, header: Header) {
        self.replies.push(header);
        self.add();
    }

    /// None of them is of interest any more.
    pub fn forget_replies(&mut self) {
        self.replies.clear();
        self.add();
    }

    /// Is there room for more of them? A caller that can wait, waits until there is.
    pub fn takes_replies(&self) -> bool {
        self.replies.len() < MAX_REPLIES
    }

    /// May the guest send more, which will cause replies?
    pub fn may_cause_replies(&self) -> bool {
        !self.broken && self.takes_replies()
    }

    /// What it has caused since this was last asked.
    pub fn take_work(&mut self) -> Work {
        let walked = self.ring.walked();
        let descriptors = (walked - std::mem::replace(&mut self.charged, walked)) as usize;
        Work { bytes: std::mem::take(&mut self.copied), descriptors, ..Work::default() }
    }

    /// Delivers waiting replies. True if one was.
    #[inline]
    pub fn send_replies(&mut self) -> bool {
        if self.replies.is_empty() {
            return false;
        }
        let mut moved = false;
        while let Some(header) = self.replies.front() {
            if self.send(header, 0, |_| ()).is_err() {
                break;
            }
            self.replies.pop();
            moved = true;
        }
        moved
    }

    /// Do some wait?
    pub fn holds_replies(&self) -> bool {
        !self.replies.is_empty() && !self.broken
    }

    pub fn has_buffers(&self) -> bool {
        !self.broken && (!self.unused.is_empty() || self.ring.is_there(self.ring.next))
    }

    pub fn is_broken(&self) -> bool {
        self.broken
    }

    #[cold]
    fn breaks(&mut self, broken: Broken) -> NoBuffers {
        tracing::debug!(ring = RX, %broken, "a virtio ring broke");
        self.fail();
        NoBuffers
    }

    /// It is used no more, and its driver is notified.
    #[cold]
    pub fn fail(&mut self) {
        self.broken = true;
        self.lines.fail(RX);
    }

    /// The ring's next owner continues at the first buffer that is not used. Nothing is written to it from
    /// here on.
    pub fn leave(&mut self) {
        self.broken = true;
        let first = self.unused.front().map_or(self.ring.next, |buffer| buffer.taken.at());
        self.ring.leave(first);
    }
}

impl Shown for Receive {
    fn note(&mut self, words: &mut Words) {
        words.note_ring(&self.kept, &self.ring);
        self.replies.note(words);
    }

    fn show(&mut self) {
        self.added = false;
        self.calls |= self.ring.publish();
    }
}
