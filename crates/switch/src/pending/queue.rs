//! The frames that wait for one receiver, and which of them is next.
//!
//! Frames of one owner keep their order. Among owners, room goes by bytes in proportion to their shares
//! (start-time fair queueing): each owner has a tag that grows by the bytes of each frame that it got
//! delivered, divided by its shares, and the lowest tag is served. One that had nothing waiting begins where
//! the others are: it gains nothing by silence, and while it is silent others have its part. A queue that is
//! half full takes further frames only of owners that have less than their part of it, so the ones with many
//! frames do not keep others out.

use std::time::{Duration, Instant};

use super::{Claim, PendingFrame};
use crate::Slot;

/// Frames that may wait for one receiver.
pub const MAX_PENDING: usize = 1024;
/// Owners whose frames wait at once: for more, memory is allocated.
const USUAL_OWNERS: usize = 64;
/// A tag from which on all are made smaller.
const LARGE_TAG: u64 = 1 << 48;
/// No frame.
const END: u16 = u16::MAX;
const _: () = assert!(MAX_PENDING < END as usize);

/// A place for a frame. Places are used again, so nothing is allocated while frames flow.
#[derive(Clone, Copy, Debug)]
struct Place {
    frame: PendingFrame,
    /// The next one of the same owner, or the next free one.
    next: u16,
}

/// The frames of one owner: a list of places.
#[derive(Clone, Copy, Debug)]
struct OfOwner {
    claim: Claim,
    first: u16,
    last: u16,
    count: usize,
    tag: u64,
}

/// The frames that wait for one receiver.
#[derive(Debug)]
pub struct PendingQueue {
    places: Vec<Place>,
    free: u16,
    /// Owners that have frames.
    owners: Vec<OfOwner>,
    /// Which of these is served.
    current: usize,
    /// The tag of the one that was served last.
    served: u64,
    count: usize,
    /// When the receiver last took a frame, or the first one began to wait.
    progress: Instant,
    /// The receiver took nothing for too long: until it has room again, nothing waits for it.
    pub stalled: bool,
}

/// What a tag grows by: bytes a share, in parts that do not vanish when they are divided.
fn growth(bytes: u32, shares: u16) -> u64 {
    // Even a frame without bytes costs something.
    (u64::from(bytes.max(1)) << 16) / u64::from(shares.max(1))
}

impl PendingQueue {
    pub fn new(now: Instant) -> PendingQueue {
        let (places, owners) = (Vec::with_capacity(MAX_PENDING), Vec::with_capacity(USUAL_OWNERS));
        PendingQueue { places, owners, ..PendingQueue::small(now) }
    }

    /// The same, for which memory is allocated when frames wait.
    pub fn small(now: Instant) -> PendingQueue {
        PendingQueue {
            places: Vec::new(),
            free: END,
            owners: Vec::new(),
            current: 0,
            served: 0,
            count: 0,
            progress: now,
            stalled: false,
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn place(&self, at: u16) -> Option<&Place> {
        self.places.get(usize::from(at))
    }

    /// Adds a frame, if there is a place for one of its owner. False: there is none.
    pub fn push(&mut self, frame: PendingFrame, claim: Claim) -> bool {
        let at = self.owners.iter().position(|of| of.claim.owner == claim.owner);
        if self.count >= MAX_PENDING || !self.has_part(at, claim) {
            return false;
        }
        if self.count == 0 {
            self.progress = frame.since;
            // Tags matter among those that wait at the same time only.
            self.served = 0;
        }
        let at = at.unwrap_or_else(|| {
            self.owners.push(OfOwner { claim, first: END, last: END, count: 0, tag: self.served });
            self.owners.len() - 1
        });
        if let Some(of) = self.owners.get_mut(at) {
            of.claim = claim;
        }
        self.append(at, frame);
        true
    }

    /// In a queue that is half full: has the owner less than its part?
    fn has_part(&self, at: Option<usize>, claim: Claim) -> bool {
        if self.count < MAX_PENDING / 2 {
            return true;
        }
        let Some(own) = at.and_then(|at| self.owners.get(at)) else { return true };
        let all: usize = self.owners.iter().map(|of| usize::from(of.claim.shares)).sum();
        self.owners.len() == 1 || own.count * all < MAX_PENDING * usize::from(claim.shares)
    }

    fn take_place(&mut self, frame: PendingFrame) -> u16 {
        if let Some(place) = self.places.get_mut(usize::from(self.free)) {
            let at = self.free;
            self.free = place.next;
            *place = Place { frame, next: END };
            return at;
        }
        self.places.push(Place { frame, next: END });
        self.places.len() as u16 - 1
    }

    /// The frame that is to be delivered next.
    pub fn front(&self) -> Option<PendingFrame> {
        self.place(self.owners.get(self.current)?.first).map(|place| place.frame)
    }

    /// The frames of its owner, it first, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = &PendingFrame> {
        let first = self.owners.get(self.current).map_or(END, |of| of.first);
        let places = std::iter::successors(self.place(first), |place| self.place(place.next));
        places.map(|place| &place.frame)
    }

    /// The first frame's segments before `next` were delivered. True if those are more than before.
    pub fn advance(&mut self, next: u16, now: Instant) -> bool {
        let first = self.owners.get(self.current).map_or(END, |of| of.first);
        let Some(front) = self.places.get_mut(usize::from(first)) else { return false };
        let moved = next > front.frame.next;
        front.frame.next = next;
        if moved {
            self.progress = now;
        }
        moved
    }

    /// The receiver took the first frame, or refused it for ever.
    pub fn pop(&mut self, now: Instant) -> Option<PendingFrame> {
        let frame = self.pop_of_turn(now);
        self.end_turn();
        frame
    }

    /// The same, and the next frame is one of the same owner until [`Self::end_turn`].
    pub fn pop_of_turn(&mut self, now: Instant) -> Option<PendingFrame> {
        self.progress = now;
        let frame = self.take_first(self.current)?;
        let of = self.owners.get_mut(self.current)?;
        self.served = of.tag;
        of.tag += growth(frame.len, of.claim.shares);
        Some(frame)
    }

    /// The next frame is that of the owner whose turn it is now.
    pub fn end_turn(&mut self) {
        self.clean(self.current);
        if self.served > LARGE_TAG {
            self.owners.iter_mut().for_each(|of| of.tag = of.tag.saturating_sub(self.served));
            self.served = 0;
        }
        self.choose();
    }

    /// Has this owner frames?
    pub fn has_of(&self, owner: u16) -> bool {
        self.owners.iter().any(|of| of.claim.owner == owner)
    }

    /// It is the turn of owner number `at` of those that have frames, whosever it would be. False: there is
    /// none.
    pub fn begin_turn_of(&mut self, at: usize) -> bool {
        let is_there = at < self.owners.len();
        if is_there {
            self.current = at;
        }
        is_there
    }

    /// Takes out an owner's first frame.
    fn take_first(&mut self, owner: usize) -> Option<PendingFrame> {
        let of = self.owners.get_mut(owner)?;
        let at = of.first;
        let place = self.places.get_mut(usize::from(at))?;
        of.first = place.next;
        of.count -= 1;
        place.next = self.free;
        self.free = at;
        self.count -= 1;
        Some(place.frame)
    }

    /// Forgets an owner that has no frames any more.
    fn clean(&mut self, owner: usize) {
        if self.owners.get(owner).is_some_and(|of| of.count == 0) {
            self.owners.swap_remove(owner);
        }
    }

    /// Finds whose turn it is.
    fn choose(&mut self) {
        let lowest = (0..).zip(&self.owners).min_by_key(|(_, of)| of.tag);
        self.current = lowest.map_or(0, |(at, _)| at);
    }

    /// Whose first frame has waited for longer than its sender's frames may: the oldest such one, for
    /// [`Self::take_expired`].
    pub fn find_expired(&self, now: Instant, hold: impl Fn(Slot) -> Duration) -> Option<usize> {
        let expired = |of: &OfOwner| {
            let PendingFrame { sender, since, .. } = self.place(of.first)?.frame;
            (now.saturating_duration_since(since) > hold(sender)).then_some(since)
        };
        let waited = (0..).zip(&self.owners).filter_map(|(at, of)| Some((expired(of)?, at)));
        waited.min_by_key(|(since, _)| *since).map(|(_, at)| at)
    }

    /// Takes out that frame.
    pub fn take_expired(&mut self, owner: usize) -> Option<PendingFrame> {
        let frame = self.take_first(owner);
        if self.owners.get(owner).is_some_and(|of| of.count == 0) {
            self.clean(owner);
            self.choose();
        }
        frame
    }

    /// Takes out all frames of a sender.
    pub fn remove_of(&mut self, sender: Slot) -> Vec<vmlane_port::Token> {
        let mut removed = Vec::new();
        let mut at = 0;
        while let Some(&OfOwner { count, .. }) = self.owners.get(at) {
            // All are taken out, and those that stay are put back.
            for _ in 0..count {
                let Some(frame) = self.take_first(at) else { break };
                if frame.sender == sender {
                    removed.push(frame.token);
                } else {
                    self.append(at, frame);
                }
            }
            if self.owners.get(at).is_some_and(|of| of.count == 0) {
                self.clean(at);
            } else {
                at += 1;
            }
        }
        self.choose();
        removed
    }

    /// Puts a frame behind an owner's last one.
    fn append(&mut self, owner: usize, frame: PendingFrame) {
        let place = self.take_place(frame);
        let Some(of) = self.owners.get_mut(owner) else { return };
        let last = std::mem::replace(&mut of.last, place);
        of.count += 1;
        self.count += 1;
        if of.first == END {
            of.first = place;
        } else if let Some(before) = self.places.get_mut(usize::from(last)) {
            before.next = place;
        }
    }

    /// All frames: those of an owner in their order.
    pub fn frames(&self) -> impl Iterator<Item = &PendingFrame> {
        self.owners.iter().flat_map(|of| {
            let places = std::iter::successors(self.place(of.first), |place| self.place(place.next));
            places.map(|place| &place.frame)
        })
    }

    /// Has the receiver taken nothing for longer than it may?
    pub fn is_overdue(&self, now: Instant, hold: Duration) -> bool {
        self.count > 0 && now.saturating_duration_since(self.progress) > hold
    }
}
