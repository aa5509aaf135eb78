//! One virtqueue whose chains are short messages: each is copied out once, answered and completed before the
//! next one.

use vmlane_device::virtio::queue::{BadRing, Broken, Queue, Segment, Taken};
use vmlane_device::virtio::vhost::RingSetup;
use vmlane_mem::{Fault, MemoryMap};

#[derive(Debug)]
pub struct Ring {
    queue: Queue,
    memory: MemoryMap,
    /// Of the chain at hand.
    segments: Vec<Segment>,
}

impl Ring {
    pub fn new(setup: &RingSetup, features: u64, memory: &MemoryMap) -> Result<Ring, BadRing> {
        let mut queue = Queue::new(setup, features, memory)?;
        queue.suppress_kicks();
        Ok(Ring { queue, memory: memory.clone(), segments: Vec::new() })
    }

    /// The next chain becomes the one at hand.
    pub fn next(&mut self) -> Result<Option<Taken>, Broken> {
        self.segments.clear();
        let taken = self.queue.read(self.queue.next, &mut self.segments)?;
        if let Some(taken) = &taken {
            self.queue.next = taken.next();
        }
        Ok(taken)
    }

    /// The first bytes of what the guest sends with it, as many as `to` holds. Returns how many there were.
    pub fn copy_out(&self, to: &mut [u8]) -> Result<usize, Fault> {
        let pieces = self.segments.iter().filter(|segment| !segment.writable);
        let mut have = 0;
        for piece in pieces {
            let Some(room) = to.get_mut(have..).filter(|room| !room.is_empty()) else { break };
            let len = room.len().min(piece.len as usize);
            self.memory.read(piece.addr, room.get_mut(..len).unwrap_or_default())?;
            have += len;
        }
        Ok(have)
    }

    /// Bytes that an answer may have.
    pub fn room(&self) -> usize {
        let pieces = self.segments.iter().filter(|segment| segment.writable);
        pieces.fold(0, |room: usize, piece| room.saturating_add(piece.len as usize))
    }

    /// Answers with `data`, as far as there is room. Returns the bytes written.
    pub fn copy_in(&self, data: &[u8]) -> Result<usize, Fault> {
        let pieces = self.segments.iter().filter(|segment| segment.writable);
        let mut done = 0;
        for piece in pieces {
            let rest = data.get(done..).unwrap_or_default();
            let part = rest.get(..piece.len as usize).unwrap_or(rest);
            if part.is_empty() {
                break;
            }
            self.memory.write(piece.addr, part)?;
            done += part.len();
        }
        Ok(done)
    }

    /// Completes the chain at hand, visibly. True if the driver wants a notification.
    pub fn complete(&mut self, taken: &Taken, len: usize) -> bool {
        self.queue.complete(taken.id(), taken.count(), len as u32);
        self.queue.publish()
    }

    /// Asks for a notification of the next chain. True: one is there already.
    pub fn listen(&mut self) -> bool {
        self.queue.listen();
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.queue.is_there(self.queue.next)
    }

    /// The driver need not announce chains.
    pub fn quiet(&mut self) {
        self.queue.suppress_kicks();
    }

    /// Has the driver seen all completions, as far as it is known?
    pub fn is_notified(&self) -> bool {
        self.queue.is_notified()
    }

    /// The next owner of the ring continues here.
    pub fn leave(mut self) {
        self.queue.leave(self.queue.next);
    }
}
