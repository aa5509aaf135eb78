//! What is to be announced.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use vmlane_wire::ethernet::Mac;

use crate::{Slot, place_of};

/// Frames that may wait.
const MOST: usize = 4096;
/// A port is announced once in this time at the most, however often its guest starts its driver anew or its
/// VMM asks for it. VMMs ask some five times after a migration, at least 50 ms apart.
const PACE: Duration = Duration::from_millis(40);

/// An address that is to be announced through an uplink.
#[derive(Clone, Copy, Debug)]
pub struct Announcement {
    pub uplink: Slot,
    /// The uplink's isolation group.
    pub group: u16,
    pub mac: Mac,
    pub vlan: u16,
}

/// What is known of the port at a slot.
#[derive(Clone, Copy, Debug, Default)]
struct OfSlot {
    waits: bool,
    last: Option<Instant>,
}

/// Ports whose addresses are to be announced, and frames of those that had their turn.
#[derive(Debug, Default)]
pub struct Announcements {
    /// Each at most once.
    ports: VecDeque<Slot>,
    slots: Vec<OfSlot>,
    frames: VecDeque<Announcement>,
}

impl Announcements {
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.frames.is_empty()
    }

    /// The addresses of the port at a slot are to be announced.
    pub fn add_port(&mut self, slot: Slot) {
        let of = place_of(&mut self.slots, slot);
        if !std::mem::replace(&mut of.waits, true) {
            self.ports.push_back(slot);
        }
    }

    /// The next port whose turn it is; it may be added anew then. Ports wait while frames do.
    pub fn next_port(&mut self, now: Instant) -> Option<Slot> {
        let turns = if self.frames.is_empty() { self.ports.len() } else { 0 };
        for _ in 0..turns {
            let slot = self.ports.pop_front()?;
            let Some(of) = self.slots.get_mut(usize::from(slot)) else { continue };
            if of.last.is_some_and(|last| now.saturating_duration_since(last) < PACE) {
                self.ports.push_back(slot);
                continue;
            }
            *of = OfSlot { waits: false, last: Some(now) };
            return Some(slot);
        }
        None
    }

    /// A frame is to leave. False: there is no place for it.
    pub fn add(&mut self, announcement: Announcement) -> bool {
        let fits = self.frames.len() < MOST;
        if fits {
            self.frames.push_back(announcement);
        }
        fits
    }

    /// The next frame that is to leave.
    pub fn next(&mut self) -> Option<Announcement> {
        self.frames.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_waits_once_and_has_one_turn_in_its_time() {
        let mut list = Announcements::default();
        let begin = Instant::now();
        for slot in [3, 7, 3, 3] {
            list.add_port(slot);
        }
        assert_eq!(
            (list.next_port(begin), list.next_port(begin), list.next_port(begin)),
            (Some(3), Some(7), None)
        );
        assert!(list.is_empty());
        // Too early; another port is not held up by that.
        list.add_port(3);
        list.add_port(5);
        assert_eq!((list.next_port(begin), list.next_port(begin)), (Some(5), None));
        assert!(!list.is_empty(), "it is put off, not forgotten");
        assert_eq!(list.next_port(begin + PACE), Some(3));
    }

    #[test]
    fn frames_have_a_bound_and_come_before_more_ports() {
        let mut list = Announcements::default();
        let frame = |vlan| Announcement { uplink: 1, group: 0, mac: Mac([2, 0, 0, 0, 0, 1]), vlan };
        let taken = (0..2 * MOST as u16).filter(|vlan| list.add(frame(*vlan))).count();
        assert_eq!(taken, MOST);
        list.add_port(3);
        assert_eq!(list.next_port(Instant::now()), None);
        let vlans = std::iter::from_fn(|| list.next()).map(|next| next.vlan);
        assert!(vlans.eq(0..MOST as u16));
        assert_eq!(list.next_port(Instant::now()), Some(3));
    }
}
