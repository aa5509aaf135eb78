//! A guest's two queues of one queue pair: where its pages are, and how the guest is notified.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use vmlane_mem::{Pages, Word};
use vmlane_port::byte_ring::{Reading, Writing};
use vmlane_port::queue_pair::{Notice, OtherSide, Protocol, QueueMemory};
use vmlane_port::{End, PortFault, StreamAddress, StreamInfo};
use vmlane_wire::vmci::{Handle, RawHandle, queue_header};
use zerocopy::IntoBytes;

use crate::vmci::notice::Address;
use crate::vmci::notifier::Notifier;

/// A real guest's two queues: header page, then data pages, each.
pub struct GuestQueues {
    produce: Pages,
    consume: Pages,
    page_size: usize,
    indices: Indices,
    notifier: Arc<Notifier>,
    /// That of `notifier`: asked for at every check.
    protocol: Protocol,
    /// Bytes taken and given that the VM's counters do not have yet.
    counts: (Cell<u64>, Cell<u64>),
}

/// The words of the two header pages that are in use.
struct Indices {
    /// The guest's: tail of its produce ring, head of its consume ring.
    guest_tail: Word,
    guest_head: Word,
    /// Ours: tail of the guest's consume ring, head of its produce ring.
    our_tail: Word,
    our_head: Word,
}

impl GuestQueues {
    /// `page_size`: bytes of a header page, behind which the data begin.
    pub fn new(produce: Pages, consume: Pages, page_size: usize, notifier: Arc<Notifier>) -> GuestQueues {
        let indices = Indices {
            guest_tail: produce.word(queue_header::PRODUCER_TAIL),
            guest_head: produce.word(queue_header::CONSUMER_HEAD),
            our_tail: consume.word(queue_header::PRODUCER_TAIL),
            our_head: consume.word(queue_header::CONSUMER_HEAD),
        };
        let protocol = notifier.protocol();
        let counts = Default::default();
        GuestQueues { produce, consume, page_size, indices, notifier, protocol, counts }
    }

    /// The head of the produce ring and the tail of the consume ring, as the guest was shown them last.
    pub fn shown(&self) -> (u64, u64) {
        (self.indices.our_head.load(), self.indices.our_tail.load())
    }

    fn flush(&self) {
        let stats = &self.notifier.inbox().stats;
        stats.stream_bytes_sent.add(self.counts.0.take());
        stats.stream_bytes_received.add(self.counts.1.take());
    }
}

/// Writes the two header pages as a guest expects to find them after ALLOC.
pub fn initialise_headers(produce: &Pages, consume: &Pages, handle: Handle) {
    for pages in [produce, consume] {
        pages.write(queue_header::HANDLE, RawHandle::from(handle).as_bytes());
        pages.store_u64(queue_header::PRODUCER_TAIL, 0);
        pages.store_u64(queue_header::CONSUMER_HEAD, 0);
    }
}

impl QueueMemory for GuestQueues {
    fn load_tail(&self) -> u64 {
        self.indices.guest_tail.load()
    }

    fn load_head(&self) -> u64 {
        self.indices.guest_head.load()
    }

    fn store_tail(&self, tail: u64) {
        self.indices.our_tail.store_fenced(tail);
    }

    fn store_head(&self, head: u64) {
        self.indices.our_head.store_fenced(head);
    }

    fn fence(&self) {
        // Every store of an index is a full barrier already; only the compiler is to be held back.
        compiler_fence(Ordering::SeqCst);
    }

    fn rings(&self) -> (&Pages, &Pages, usize) {
        (&self.produce, &self.consume, self.page_size)
    }

    fn notify(&self, notice: Notice) {
        self.notifier.notify(notice);
    }

    fn protocol(&self) -> Protocol {
        self.protocol
    }

    fn check_announced(&self, reading: &Reading, writing: &Writing) -> Result<(), PortFault> {
        if self.protocol == Protocol::Pkt {
            let notifier = &self.notifier;
            if writing.used() > 0 && notifier.guest_waits_for_bytes.swap(false, Ordering::SeqCst) {
                notifier.notify(Notice::Wrote);
            }
            if reading.room() > 0 && notifier.guest_waits_for_room.swap(false, Ordering::SeqCst) {
                notifier.notify(Notice::Read);
            }
        }
        Ok(())
    }

    fn wait_for(&self, notice: Notice, index: u64) {
        self.notifier.wait_for(notice, index);
    }
}

impl OtherSide for GuestQueues {
    fn info(&self) -> StreamInfo<'_> {
        let address = self.notifier.address().map(|Address { cid, port, peer_cid, peer_port }| {
            StreamAddress { cid, port, peer_cid, peer_port }
        });
        StreamInfo { announces: self.notifier.connected(), address, doorbell: None }
    }

    fn check(&self) -> Result<(), PortFault> {
        self.flush();
        if self.produce.poisoned() || self.consume.poisoned() {
            return Err(PortFault::memory_gone());
        }
        Ok(())
    }

    fn flush_deferred(&self) -> bool {
        self.notifier.deferring()
    }

    fn requests(&self) -> u64 {
        self.notifier.inbox().stats.datagrams_sent.get()
    }

    fn took(&self, bytes: usize) {
        self.counts.0.set(self.counts.0.get() + bytes as u64);
    }

    fn gave(&self, bytes: usize) {
        self.counts.1.set(self.counts.1.get() + bytes as u64);
    }

    fn keep(&self, tail: u64, bytes: &[u8]) {
        self.notifier.keep(tail, bytes);
    }

    fn end(&self, end: End) {
        self.notifier.end(end);
    }

    fn broke(&self) {
        self.notifier.inbox().stats.broken_rings.inc();
    }
}

impl Drop for GuestQueues {
    fn drop(&mut self) {
        self.flush();
        self.notifier.close();
    }
}
