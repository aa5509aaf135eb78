//! Frames that wait for a receiver's buffers. They stay where their sender left them.
//!
//! A frame waits for a limited time, and the receivers of one owner hold a limited part of what a sender to several owners
//! may lend: one that takes frames slowly, but takes them, must not keep its senders from others.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use vmlane_port::Token;
use vmlane_port::fair::may_take;
use vmlane_wire::ethernet::Tci;

use crate::Slot;

/// Frames that may wait for one receiver.
const MAX_PENDING: usize = 1024;

/// A frame that waits for a receiver's buffers.
#[derive(Clone, Copy, Debug)]
pub struct PendingFrame {
    pub sender: Slot,
    pub token: Token,
    /// The tag that the receiver sees.
    pub tag: Option<Tci>,
    /// Segments delivered before.
    pub next: u16,
    /// When it began to wait.
    pub since: Instant,
}

/// The frames that wait for one receiver, oldest first.
#[derive(Debug)]
pub struct PendingQueue {
    frames: VecDeque<PendingFrame>,
    /// When the receiver last took a frame, or the first one began to wait.
    progress: Instant,
    /// The receiver took nothing for too long: until it has room again, nothing waits for it.
    pub stalled: bool,
}

impl PendingQueue {
    pub fn new(now: Instant) -> PendingQueue {
        PendingQueue { frames: VecDeque::with_capacity(MAX_PENDING), progress: now, stalled: false }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Adds a frame, if there is a place. False: there is none.
    pub fn push(&mut self, frame: PendingFrame) -> bool {
        if self.frames.len() >= MAX_PENDING {
            return false;
        }
        if self.frames.is_empty() {
            self.progress = frame.since;
        }
        self.frames.push_back(frame);
        true
    }

    /// The frame that has waited longest.
    pub fn front(&self) -> Option<PendingFrame> {
        self.frames.front().copied()
    }

    /// All frames, the one that has waited longest first.
    pub fn iter(&self) -> impl Iterator<Item = &PendingFrame> {
        self.frames.iter()
    }

    /// The first frame's segments before `next` were delivered. True if those are more than before.
    pub fn advance(&mut self, next: u16, now: Instant) -> bool {
        let Some(front) = self.frames.front_mut() else { return false };
        let moved = next > front.next;
        front.next = next;
        if moved {
            self.progress = now;
        }
        moved
    }

    /// The receiver took the first frame, or refused it for ever.
    pub fn pop(&mut self, now: Instant) -> Option<PendingFrame> {
        self.progress = now;
        self.frames.pop_front()
    }

    /// Takes out the first frame if it has waited for longer than `hold`.
    pub fn pop_expired(&mut self, now: Instant, hold: Duration) -> Option<PendingFrame> {
        let front = self.front()?;
        let expired = now.saturating_duration_since(front.since) > hold;
        if expired { self.frames.pop_front() } else { None }
    }

    /// Takes out all frames of a sender.
    pub fn remove_of(&mut self, sender: Slot) -> Vec<Token> {
        let mut removed = Vec::new();
        self.frames.retain(|frame| {
            if frame.sender == sender {
                removed.push(frame.token);
            }
            frame.sender != sender
        });
        removed
    }

    /// The senders of all frames.
    pub fn senders(&self) -> impl Iterator<Item = Slot> {
        self.frames.iter().map(|frame| frame.sender)
    }

    /// Has the receiver taken nothing for longer than it may?
    pub fn is_overdue(&self, now: Instant, hold: Duration) -> bool {
        !self.frames.is_empty() && now.saturating_duration_since(self.progress) > hold
    }
}

/// How many frames of each sender wait, and for whose ports.
#[derive(Debug, Default)]
pub struct Held {
    /// By slot.
    senders: Vec<OfSender>,
}

#[derive(Debug, Default)]
struct OfSender {
    /// Frames that it may lend at once.
    places: usize,
    total: usize,
    /// By the number of the receivers' owner.
    by_owner: Vec<u16>,
    /// The owner that it last sent to, and when that was another one than before.
    last: Option<u16>,
    changed: Option<Instant>,
}

/// For how long a sender that sent to other owners counts as one that does.
const OTHERS: Duration = Duration::from_millis(100);

impl OfSender {
    fn sends_to_others(&self, now: Instant) -> bool {
        self.changed.is_some_and(|at| now.saturating_duration_since(at) < OTHERS)
    }
}

impl Held {
    fn of(&mut self, sender: Slot) -> &mut OfSender {
        let at = usize::from(sender);
        if self.senders.len() <= at {
            self.senders.resize_with(at + 1, OfSender::default);
        }
        #[expect(clippy::indexing_slicing, reason = "made long enough just above")]
        &mut self.senders[at]
    }

    /// What is attached to `sender` lends so many frames at once.
    pub fn set_places(&mut self, sender: Slot, places: usize) {
        self.of(sender).places = places;
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

    /// One more frame of `sender` is to wait for a port of `owner`. False: it must not. A sender with one receiver only
    /// waits for that one, and loses nothing: no other receiver is there to suffer.
    pub fn take(&mut self, sender: Slot, owner: u16, now: Instant) -> bool {
        let of = self.of(sender);
        let alone = !of.sends_to_others(now) && of.total < of.places;
        let at = usize::from(owner);
        if of.by_owner.len() <= at {
            of.by_owner.resize(at + 1, 0);
        }
        let Some(own) = of.by_owner.get_mut(at) else { return false };
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
            let at = usize::from(owner);
            if of.by_owner.len() <= at {
                of.by_owner.resize(at + 1, 0);
            }
            of.by_owner.get_mut(at).into_iter().for_each(|own| *own += 1);
        }
    }
}

#[cfg(test)]
mod tests;
