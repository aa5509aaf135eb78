//! Frames that wait for a receiver's buffers. They stay where their sender left them.
//!
//! A frame waits for a limited time, and the receivers of one owner hold a limited part of what a sender to
//! several owners may have in flight: one that takes frames slowly, but takes them, must not keep its senders
//! from others.
//!
//! Where several owners' frames wait for one receiver, they get its room by their shares ([`queue`]).

mod queue;

use std::time::{Duration, Instant};

use vmlane_port::Token;
use vmlane_port::fair::may_take;
use vmlane_wire::ethernet::Tci;

use crate::{Slot, place_of};
pub use queue::PendingQueue;

/// A frame that waits for a receiver's buffers.
#[derive(Clone, Copy, Debug)]
pub struct PendingFrame {
    pub sender: Slot,
    pub token: Token,
    /// Its bytes.
    pub len: u32,
    /// The tag that the receiver sees.
    pub tag: Option<Tci>,
    /// Segments delivered before.
    pub next: u16,
    /// When it began to wait.
    pub since: Instant,
}

/// Whose frame it is, and which part of a full receiver's room that owner gets, in proportion to those of
/// others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    pub owner: u16,
    pub shares: u16,
}

/// How many frames of each sender wait, and for whose ports.
#[derive(Debug, Default)]
pub struct Held {
    /// By slot.
    senders: Vec<OfSender>,
}

#[derive(Debug, Default)]
struct OfSender {
    /// Its own owner and shares.
    claim: Claim,
    /// Frames that it may have in flight.
    places: usize,
    total: usize,
    /// By the number of the receivers' owner.
    by_owner: Vec<u16>,
    /// The owner that it last sent to, and when that was another one than before.
    last: Option<u16>,
    changed: Option<Instant>,
}

/// For how long a sender that sent to other owners counts as one that does.
pub const OTHERS: Duration = Duration::from_millis(100);

impl OfSender {
    #[inline]
    fn sends_to_others(&self, now: Instant) -> bool {
        self.changed.is_some_and(|at| now.saturating_duration_since(at) < OTHERS)
    }
}

impl Held {
    fn of(&mut self, sender: Slot) -> &mut OfSender {
        place_of(&mut self.senders, sender)
    }

    /// What is attached to `sender` has so many frames in flight, at most.
    pub fn set_places(&mut self, sender: Slot, places: usize) {
        self.of(sender).places = places;
    }

    /// Whose port `sender` is, and its shares.
    pub fn set_claim(&mut self, sender: Slot, claim: Claim) {
        self.of(sender).claim = claim;
    }

    /// What was set so.
    pub fn claim(&self, sender: Slot) -> Claim {
        self.senders.get(usize::from(sender)).map(|of| of.claim).unwrap_or_default()
    }

    /// A frame of `sender` goes to a port of `owner`, and to no other.
    #[inline]
    pub fn note(&mut self, sender: Slot, owner: u16, now: Instant) {
        let of = self.of(sender);
        if of.last != Some(owner) {
            of.changed = of.last.map(|_| now);
            of.last = Some(owner);
        }
    }

    /// Does `sender` send to other owners, too?
    pub fn sends_to_others(&self, sender: Slot, now: Instant) -> bool {
        self.senders.get(usize::from(sender)).is_some_and(|of| of.sends_to_others(now))
    }

    /// One more frame of `sender` is to wait for a port of `owner`. False: it must not. A sender with one
    /// receiver only waits for that one, and loses nothing: no other receiver is there to suffer.
    pub fn take(&mut self, sender: Slot, owner: u16, now: Instant) -> bool {
        let of = self.of(sender);
        let alone = !of.sends_to_others(now) && of.total < of.places;
        let own = place_of(&mut of.by_owner, owner);
        let may = alone || may_take(usize::from(*own), of.total, of.places);
        if may {
            *own += 1;
            of.total += 1;
        }
        may
    }

    /// A frame of `sender` waits no longer for a port of `owner`.
    pub fn give_back(&mut self, sender: Slot, owner: u16) {
        let of = self.of(sender);
        if let Some(own) = of.by_owner.get_mut(usize::from(owner)).filter(|own| **own > 0) {
            *own -= 1;
            of.total -= 1;
        }
    }

    /// Counts anew: all frames that wait, by sender and the receiver's owner.
    pub fn recount(&mut self, waiting: impl Iterator<Item = (Slot, u16)>) {
        for of in &mut self.senders {
            of.total = 0;
            of.by_owner.fill(0);
        }
        for (sender, owner) in waiting {
            let of = self.of(sender);
            of.total += 1;
            *place_of(&mut of.by_owner, owner) += 1;
        }
    }
}

#[cfg(test)]
mod tests;
