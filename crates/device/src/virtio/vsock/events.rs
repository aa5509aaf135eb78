//! The event queue: how a driver is notified that has connections of which this daemon knows nothing.
//!
//! A guest that was moved here, or whose daemon is another one now, is notified with
//! VIRTIO_VSOCK_EVENT_TRANSPORT_RESET: its driver resets all its sockets and reads its CID again (virtio 1.2,
//! section 5.10.6.7). QEMU keeps the queue to itself and sends the event for its own devices; front ends that
//! hand the queue over leave that to the device.

use vmlane_mem::{Fault, Spans};
use vmlane_wire::virtio_vsock::EVENT_TRANSPORT_RESET;

use crate::virtio::queue::{BadRing, Broken, Queue};
use crate::virtio::vhost::Setup;

/// Rings by number.
const TX: usize = 1;
pub const EVENTS: usize = 2;

/// Whether a session's driver is to be notified of a reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reset {
    /// Its rings have not run yet.
    #[default]
    Unknown,
    /// They came from elsewhere, and the event queue is not there yet.
    Due,
    /// It was notified, or it has begun here.
    Done,
}

/// Why a driver was not notified.
#[derive(Debug, thiserror::Error)]
pub enum Missed {
    #[error("{0}")]
    Ring(#[from] BadRing),
    #[error("{0}")]
    Chain(#[from] Broken),
    #[error("{0}")]
    Memory(#[from] Fault),
    #[error("the driver has posted no buffer for events")]
    NoBuffer,
    #[error("a buffer of the driver for events is too short, or not for the device to write")]
    Buffer,
}

impl Reset {
    /// The rings of `setup` are about to run. True: send the event now.
    pub fn take_due(&mut self, setup: &Setup) -> bool {
        let there = |number: usize| setup.rings.get(number).and_then(Option::as_ref);
        if *self == Reset::Unknown
            && let Some(tx) = there(TX)
        {
            *self = if tx.is_at_start() { Reset::Done } else { Reset::Due };
        }
        let due = *self == Reset::Due && there(EVENTS).is_some();
        if due {
            *self = Reset::Done;
        }
        due
    }
}

/// Puts the event into the driver's next buffer. True: the driver wants to be called.
pub fn send_reset(setup: &Setup) -> Result<bool, Missed> {
    let Some(Some(ring)) = setup.rings.get(EVENTS) else { return Err(Missed::NoBuffer) };
    let mut queue = Queue::new(ring, setup.features, &setup.memory)?;
    let mut pieces = Vec::new();
    let taken = queue.read(queue.next, &mut pieces)?.ok_or(Missed::NoBuffer)?;
    let event = EVENT_TRANSPORT_RESET.to_le_bytes();
    let mut into = Spans::new(setup.memory.clone(), true);
    let mut left = event.len();
    for piece in &pieces {
        if !piece.writable {
            return Err(Missed::Buffer);
        }
        let here = left.min(piece.len as usize);
        if here > 0 {
            into.push(piece.addr, here)?;
            queue.log().into_iter().for_each(|log| log.mark(piece.addr, here));
            left -= here;
        }
    }
    if left > 0 {
        return Err(Missed::Buffer);
    }
    into.write(0, &event);
    queue.next = taken.next();
    queue.complete(taken.id(), taken.count(), event.len() as u32);
    let call = queue.publish();
    let next = queue.next;
    queue.leave(next);
    Ok(call)
}
