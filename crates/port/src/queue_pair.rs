//! One end of a queue pair as a stream port: a VMCI guest's, or that of a process of the host
//! ([`crate::shared_ring`]).
//!
//! A queue pair is two byte rings. The guest writes *only* its produce header page (the tail of its
//! produce ring, the head of its consume ring); the device writes *only* its consume header page (the
//! tail of the consume ring, the head of the produce ring). No field has two writers, each is loaded
//! once per decision and checked before use. Rules M1 to M8: `docs/devices/vmci.md`.
//!
//! ```text
//! guest writes   produce ring --> device reads     tail: guest     head: device
//! guest reads    consume ring <-- device writes    tail: device    head: guest
//! ```

use vmlane_mem::Pages;

use crate::byte_ring::{Reading, Writing, advance};
use crate::{Bytes, End, Notifications, PortFault, RingSlice, StreamInfo, StreamPort, Survival};

/// What one end notifies the other of: bytes and room. Of each kind one waits at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Notice {
    /// There are bytes.
    Wrote = 1,
    /// There is room.
    Read = 2,
    /// It waits for bytes (older protocol).
    WaitingRead = 4,
    /// It waits for room (older protocol).
    WaitingWrite = 8,
}

/// How the two ends notify each other of bytes and room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Inferred from the indices: empty to non-empty, full to non-full.
    Qstate,
    /// Announced: an end that is about to wait reports it first.
    Pkt,
}

/// The memory of one guest's queue pair and the notifier of this guest: what the rules need. The
/// model in `device/tests/it/interleavings` is another implementation.
pub trait QueueMemory: OtherSide {
    /// Tail of the produce ring: the guest's.
    fn load_tail(&self) -> u64;
    /// Head of the consume ring: the guest's.
    fn load_head(&self) -> u64;
    /// Tail of the consume ring: ours.
    fn store_tail(&self, tail: u64);
    /// Head of the produce ring: ours.
    fn store_head(&self, head: u64);
    /// Orders every store before it against every load after it.
    fn fence(&self);
    /// The pages of the produce ring and of the consume ring, and where data begin in each.
    fn rings(&self) -> (&Pages, &Pages, usize);
    /// Sends the guest a notice, unless one of its kind is still on its way.
    fn notify(&self, notice: Notice);

    /// How bytes and room are announced.
    fn protocol(&self) -> Protocol {
        Protocol::Qstate
    }

    /// Called whenever an index is checked: has the guest announced that it waits for something that is
    /// there (older protocol)?
    fn check_announced(&self, _reading: &Reading, _writing: &Writing) -> Result<(), PortFault> {
        Ok(())
    }

    /// The device is about to wait until `index` is passed (older protocol).
    fn wait_for(&self, _notice: Notice, _index: u64) {}
}

/// The guest or the process behind the memory, as far as the rules do not ask for it: what it does not have,
/// it leaves out.
pub trait OtherSide: Send {
    /// See [`StreamPort::info`].
    fn info(&self) -> StreamInfo<'_> {
        StreamInfo::default()
    }

    /// Called now and then: is the memory still there?
    fn check(&self) -> Result<(), PortFault> {
        Ok(())
    }

    /// See [`Notifications::flush_deferred`].
    fn flush_deferred(&self) -> bool {
        false
    }

    /// See [`Notifications::answer_doorbell`].
    fn answer_doorbell(&self) -> bool {
        false
    }

    /// Requests that the guest has made so far.
    fn requests(&self) -> u64 {
        0
    }

    /// `bytes` were taken from the guest.
    fn took(&self, _bytes: usize) {}
    /// `bytes` were given to it.
    fn gave(&self, _bytes: usize) {}

    /// The peer has left `bytes`, which go to index `tail` and behind.
    fn keep(&self, _tail: u64, _bytes: &[u8]) {}

    /// See [`StreamPort::end`].
    fn end(&self, _end: End) {}

    /// The guest broke the rules of its ring.
    fn broke(&self) {}
}

/// A queue pair's end. `M` is the guest's memory, or the model's.
pub struct QueuePairPort<M> {
    /// See [`QueueMemory`].
    pub memory: M,
    /// The produce ring, which the device reads.
    pub reading: Reading,
    /// The consume ring, which the device writes.
    pub writing: Writing,
}

impl<M: QueueMemory> QueuePairPort<M> {
    /// An end whose indices are all zero. Sizes in bytes, from the guest's view.
    pub fn new(memory: M, produce_size: u64, consume_size: u64) -> Self {
        QueuePairPort { memory, reading: Reading::new(produce_size), writing: Writing::new(consume_size) }
    }

    /// An end that a previous daemon served. `cur`: the first byte of the produce ring that the peer does
    /// not have, which is the tail that the peer sees, because both rings are of one size and began
    /// together; `None` if there is no peer any more. The guest's own words are checked like any others.
    pub fn resumed(
        memory: M,
        produce_size: u64,
        consume_size: u64,
        (published, tail): (u64, u64),
        cur: Option<u64>,
    ) -> Option<Self> {
        let inside = |index: u64, size: u64| index < size || size == 0 && index == 0;
        let cur = cur.unwrap_or(published);
        let head = memory.load_head();
        let sound = inside(published, produce_size) && inside(cur, produce_size);
        if !sound || !inside(tail, consume_size) || !inside(head, consume_size) {
            return None;
        }
        let mut port = QueuePairPort::new(memory, produce_size, consume_size);
        port.reading = Reading { cur, published, tail: cur, ..port.reading };
        port.writing = Writing { tail, head, head_at_produce: head, unannounced: true, ..port.writing };
        Some(port)
    }

    #[inline]
    fn pkt(&self) -> bool {
        self.memory.protocol() == Protocol::Pkt
    }

    /// Bytes that wait, by one load of the guest's tail. M3, also for a guest without fences, whose tail
    /// became visible after the head was published: it is notified of the room if its ring was full before.
    #[inline]
    fn poll_tail(&mut self) -> Result<usize, PortFault> {
        let waiting = self.reading.poll(self.memory.load_tail()).inspect_err(|_| self.memory.broke())?;
        if self.reading.take_full() {
            self.memory.notify(Notice::Read);
        }
        Ok(waiting)
    }

    /// Bytes of room, by one load of the guest's head. M2, also for a guest without fences, whose head became
    /// visible after the tail was published: it is notified of the bytes if its ring was empty before.
    #[inline]
    fn poll_head(&mut self) -> Result<usize, PortFault> {
        let head = self.memory.load_head();
        self.accept_head(head)
    }

    #[inline]
    fn accept_head(&mut self, head: u64) -> Result<usize, PortFault> {
        let room = self.writing.poll(head).inspect_err(|_| self.memory.broke())?;
        if self.writing.take_empty() {
            self.memory.notify(Notice::Wrote);
        }
        Ok(room)
    }

    /// Shows the guest the head `new`, and wakes it if it may sleep for room (M3).
    fn publish(&mut self, new: u64) -> Result<(), PortFault> {
        if new == self.reading.published {
            return Ok(());
        }
        self.memory.store_head(new);
        self.reading.publish(new);
        self.memory.fence();
        self.poll_tail()?;
        if self.pkt() { self.check_announced() } else { Ok(()) }
    }

    #[inline]
    fn check_announced(&self) -> Result<(), PortFault> {
        self.memory.check_announced(&self.reading, &self.writing)
    }

    /// Shows the guest all the room there is (M3).
    pub fn publish_room(&mut self) -> Result<(), PortFault> {
        self.publish(self.reading.cur)
    }

    /// Where there is room in the guest's consume ring.
    pub fn sink(&self) -> RingSlice<'_> {
        let (_, consume, base) = self.memory.rings();
        self.writing.sink(consume, base)
    }

    /// `len` bytes are there: publishes them, and wakes the guest if it may be asleep (M2).
    #[inline]
    pub fn produce(&mut self, len: usize) -> Result<(), PortFault> {
        let old = self.writing.produce(len);
        self.memory.store_tail(self.writing.tail);
        self.memory.fence();
        let head = self.memory.load_head();
        // M2: the ring was empty before these bytes, the guest may have gone to sleep on it.
        self.writing.unannounced = head != old;
        self.writing.head_at_produce = head;
        self.memory.gave(len);
        self.accept_head(head)?;
        if self.pkt() { self.check_announced() } else { Ok(()) }
    }
}

impl<M: QueueMemory + 'static> StreamPort for QueuePairPort<M> {
    fn readable(&mut self) -> Result<usize, PortFault> {
        if self.reading.size == 0 {
            return Ok(0);
        }
        self.check_announced()?;
        self.poll_tail()
    }

    fn source(&self) -> Bytes<'_> {
        let (produce, _, base) = self.memory.rings();
        Bytes::Ring(self.reading.source(produce, base))
    }

    fn consume(&mut self, len: usize) -> Result<(), PortFault> {
        self.reading.consume(len);
        self.memory.took(len);
        let lag = self.reading.lag();
        // M7: one byte stays unreported, so the guest never sees an empty ring and sends no WROTE;
        // and room is reported half a ring at a time, so a blocked writer is woken for a good reason.
        if lag > 1 && lag * 2 >= self.reading.size {
            let behind = advance(self.reading.cur, self.reading.size - 1, self.reading.size);
            self.publish(behind)?;
        }
        Ok(())
    }

    fn arm_readable(&mut self) -> Result<bool, PortFault> {
        if self.reading.size == 0 {
            return Ok(true);
        }
        self.publish_room()?;
        if self.pkt() {
            let next = advance(self.reading.cur, 1, self.reading.size);
            self.memory.wait_for(Notice::WaitingRead, next);
        }
        self.memory.fence();
        let waiting = self.poll_tail()?;
        Ok(waiting == 0 && self.reading.published == self.reading.cur)
    }

    fn writable(&mut self) -> Result<usize, PortFault> {
        if self.writing.size == 0 {
            return Ok(0);
        }
        self.check_announced()?;
        self.poll_head()
    }

    fn keep_free(&self) -> usize {
        usize::from(self.writing.size > 2)
    }

    fn fill(&mut self, from: Bytes<'_>, len: usize) -> Result<(), PortFault> {
        from.copy_to(self.sink(), len);
        self.produce(len)
    }

    fn arm_writable(&mut self) -> Result<bool, PortFault> {
        if self.writing.size == 0 {
            return Ok(true);
        }
        if self.pkt() {
            let next = advance(self.writing.tail, 1, self.writing.size);
            self.memory.wait_for(Notice::WaitingWrite, next);
        }
        self.memory.fence();
        Ok(self.poll_head()? == 0)
    }

    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        self.memory.check()?;
        if !self.writing.unannounced {
            return Ok(());
        }
        // A guest that has read since it saw the last bytes knows of them all. One that has not may
        // sleep with a low-water mark above what its last WROTE announced.
        self.writing.unannounced = false;
        self.poll_head()?;
        if self.writing.head == self.writing.head_at_produce && self.writing.used() > 0 {
            self.memory.notify(Notice::Wrote);
        }
        Ok(())
    }

    fn end(&mut self, end: End) {
        self.memory.end(end);
    }

    fn info(&self) -> StreamInfo<'_> {
        self.memory.info()
    }

    fn notifications(&mut self) -> Option<&mut dyn Notifications> {
        Some(self)
    }

    fn survival(&mut self) -> Option<&mut dyn Survival> {
        Some(self)
    }
}

impl<M: QueueMemory> Notifications for QueuePairPort<M> {
    fn flush_deferred(&mut self) -> bool {
        self.memory.flush_deferred()
    }

    fn notify_late(&mut self) -> Result<(), PortFault> {
        if self.reading.size > 0 {
            self.poll_tail()?;
            if self.reading.take_any_full() {
                self.memory.notify(Notice::Read);
            }
        }
        if self.writing.size > 0 {
            self.poll_head()?;
            if self.writing.take_any_empty() {
                self.memory.notify(Notice::Wrote);
            }
        }
        Ok(())
    }

    fn notify_both(&mut self) {
        self.memory.notify(Notice::Wrote);
        self.memory.notify(Notice::Read);
    }

    fn answer_doorbell(&mut self) -> bool {
        self.memory.answer_doorbell()
    }

    fn requests(&self) -> Option<u64> {
        Some(self.memory.requests())
    }
}

impl<M: QueueMemory> Survival for QueuePairPort<M> {
    fn keep(&mut self, bytes: &[u8]) {
        self.memory.keep(self.writing.tail, bytes);
    }
}
