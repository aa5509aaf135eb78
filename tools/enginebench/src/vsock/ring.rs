//! A split ring with event index from its driver's side: who notifies whom is decided as Linux decides it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

use vmlane_device::virtio::queue::Segment;
use vmlane_guestsim::vhost_user::RingEvents;
use vmlane_guestsim::virtio::DriverRing;

/// One ring that a back end serves.
pub struct GuestRing {
    ring: DriverRing,
    events: RingEvents,
    /// Chains made available so far (mod 2^16), and how many of them the last kick was thought about for.
    posted: u16,
    announced: u16,
    /// Completions taken (mod 2^16).
    taken: u16,
}

impl GuestRing {
    /// Over a ring that `posted` chains wait in already.
    pub fn new(ring: DriverRing, posted: u16, events: RingEvents) -> GuestRing {
        GuestRing { ring, events, posted, announced: 0, taken: 0 }
    }

    /// Makes a chain available, without a word; its id.
    pub fn post(&mut self, pieces: &[Segment]) -> u16 {
        self.posted = self.posted.wrapping_add(1);
        self.ring.post(pieces)
    }

    /// Kicks, if the device asked to be notified of one of the chains posted since the last call.
    pub fn kick(&mut self) {
        fence(Ordering::SeqCst);
        // avail_event, behind the used ring (virtio 1.2, 2.7.10).
        let asked = self.ring.device.load_u16(4 + 8 * usize::from(self.ring.size));
        let (new, old) = (self.posted, std::mem::replace(&mut self.announced, self.posted));
        if new.wrapping_sub(asked).wrapping_sub(1) < new.wrapping_sub(old) {
            // A full counter means that the kick is pending anyway.
            let _ = rustix::io::write(&self.events.kick, &1u64.to_ne_bytes());
        }
    }

    /// The next completion: the chain's id, and the bytes written to it.
    pub fn take(&mut self) -> Option<(u16, u32)> {
        let done = self.ring.take()?;
        self.taken = self.taken.wrapping_add(1);
        Some(done)
    }

    pub fn has_completion(&self) -> bool {
        self.ring.device.load_u16(2) != self.taken
    }

    /// Asks to be notified of the next completion. A full fence and a fresh check must follow.
    pub fn listen(&self) {
        // used_event, behind the available ring.
        self.ring.driver.store_u16(4 + 2 * usize::from(self.ring.size), self.taken);
    }

    /// Readable when the device has called.
    pub fn call(&self) -> &OwnedFd {
        &self.events.call
    }
}
