//! A queue pair's memory from the guest's side: what `vmci_queue_pair.c` does with it.

use vmlane_mem::Pages;
use vmlane_port::RingSlice;
use vmlane_wire::vmci::{Handle, QueuePairAlloc, queue_header};
use zerocopy::IntoBytes;

use super::ram::{PAGE, Placement, Ram};

/// What a guest asks for with QUEUEPAIR_ALLOC.
#[derive(Clone, Copy, Debug)]
pub struct PairSpec {
    pub handle: Handle,
    pub peer: u32,
    pub flags: u32,
    pub produce: u64,
    pub consume: u64,
}

/// Two rings of a guest. The guest writes its produce header only, the device the other one only.
pub struct Queues {
    pub handle: Handle,
    pub produce_size: u64,
    pub consume_size: u64,
    pub produce: Pages,
    pub consume: Pages,
    /// Guest addresses: produce header, produce data, consume header, consume data.
    pub addresses: Vec<u64>,
}

fn pages(size: u64) -> usize {
    size.div_ceil(PAGE as u64) as usize + 1
}

impl Queues {
    /// Memory for the pair; the device does not know it yet.
    pub fn new(ram: &Ram, spec: &PairSpec, placement: Placement) -> Queues {
        let (produce, consume) = (pages(spec.produce), pages(spec.consume));
        let addresses = ram.alloc(produce + consume, placement);
        Queues {
            handle: spec.handle,
            produce_size: spec.produce,
            consume_size: spec.consume,
            produce: ram.pages(&addresses[..produce]),
            consume: ram.pages(&addresses[produce..]),
            addresses,
        }
    }

    /// The payload of QUEUEPAIR_ALLOC.
    pub fn alloc_call(&self, spec: &PairSpec, ppn64: bool) -> Vec<u8> {
        alloc_call(spec, &self.addresses, ppn64)
    }

    /// Bytes the guest may write now.
    pub fn room(&self) -> u64 {
        let tail = self.produce.load_u64(queue_header::PRODUCER_TAIL);
        let head = self.consume.load_u64(queue_header::CONSUMER_HEAD);
        assert!(head < self.produce_size, "the device moved the head to {head:#x}");
        self.produce_size - 1 - distance(head, tail, self.produce_size)
    }

    /// Bytes the guest has written that the device has not taken, as far as it can see.
    pub fn unsent(&self) -> u64 {
        self.produce_size - 1 - self.room()
    }

    /// Bytes the guest may read now.
    pub fn ready(&self) -> u64 {
        let tail = self.consume.load_u64(queue_header::PRODUCER_TAIL);
        let head = self.produce.load_u64(queue_header::CONSUMER_HEAD);
        assert!(tail < self.consume_size, "the device moved the tail to {tail:#x}");
        distance(head, tail, self.consume_size)
    }

    /// Bytes of room in the ring that the guest reads.
    pub fn unread_room(&self) -> u64 {
        self.consume_size - 1 - self.ready()
    }

    /// Writes what fits. Returns the number of bytes.
    pub fn enqueue(&self, data: &[u8]) -> usize {
        let len = data.len().min(self.room() as usize);
        let tail = self.produce.load_u64(queue_header::PRODUCER_TAIL);
        ring(&self.produce, self.produce_size, tail).write(&data[..len]);
        self.produce.store_u64(queue_header::PRODUCER_TAIL, (tail + len as u64) % self.produce_size);
        len
    }

    /// Reads what is there. Returns the number of bytes.
    pub fn dequeue(&self, out: &mut [u8]) -> usize {
        let len = out.len().min(self.ready() as usize);
        let head = self.produce.load_u64(queue_header::CONSUMER_HEAD);
        ring(&self.consume, self.consume_size, head).read(&mut out[..len]);
        self.produce.store_u64(queue_header::CONSUMER_HEAD, (head + len as u64) % self.consume_size);
        len
    }

    /// Where the guest writes next, and where it reads next.
    pub fn own_indices(&self) -> (u64, u64) {
        (
            self.produce.load_u64(queue_header::PRODUCER_TAIL),
            self.produce.load_u64(queue_header::CONSUMER_HEAD),
        )
    }
}

/// The payload of QUEUEPAIR_ALLOC for any list of page addresses.
pub fn alloc_call(spec: &PairSpec, addresses: &[u64], ppn64: bool) -> Vec<u8> {
    let call = QueuePairAlloc {
        handle: spec.handle.into(),
        peer: spec.peer.into(),
        flags: spec.flags.into(),
        produce_size: spec.produce.into(),
        consume_size: spec.consume.into(),
        num_ppns: (addresses.len() as u64).into(),
    };
    let mut payload = call.as_bytes().to_vec();
    for address in addresses {
        let ppn = address / PAGE as u64;
        if ppn64 {
            payload.extend_from_slice(&ppn.to_le_bytes());
        } else {
            payload.extend_from_slice(&(ppn as u32).to_le_bytes());
        }
    }
    payload
}

fn distance(from: u64, to: u64, size: u64) -> u64 {
    if to >= from { to - from } else { to + size - from }
}

fn ring(pages: &Pages, size: u64, at: u64) -> RingSlice<'_> {
    RingSlice { pages, base: PAGE, size: size as usize, at: at as usize }
}
