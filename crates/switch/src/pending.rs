//! Frames that wait for a receiver's buffers. They stay where their sender left them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use vmlane_port::Token;
use vmlane_wire::ethernet::Tci;

use crate::Slot;

/// Frames that may wait for one receiver.
const MAX_PENDING: usize = 1024;
/// Of those, frames of one sender once the receiver has let frames wait for longer than it may: a
/// receiver that takes one now and then must not use up a sender's look-ahead.
const MAX_SLOW: u16 = 64;

/// A frame that waits for a receiver's buffers.
#[derive(Clone, Copy, Debug)]
pub struct PendingFrame {
    pub sender: Slot,
    pub token: Token,
    /// The tag that the receiver sees.
    pub tag: Option<Tci>,
    /// Segments delivered before.
    pub next: u16,
}

/// The frames that wait for one receiver, oldest first.
#[derive(Debug)]
pub struct PendingQueue {
    frames: VecDeque<PendingFrame>,
    /// By sender: how many of `frames` are its.
    of: Vec<u16>,
    /// When the receiver last took a frame, or the first one began to wait.
    progress: Instant,
    /// Since when frames have been waiting without a break.
    since: Instant,
    /// The receiver took nothing for too long: until it has room again, nothing waits for it.
    pub stalled: bool,
}

impl PendingQueue {
    pub fn new(now: Instant) -> PendingQueue {
        PendingQueue {
            frames: VecDeque::with_capacity(MAX_PENDING),
            of: Vec::new(),
            progress: now,
            since: now,
            stalled: false,
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    fn count_of(&mut self, sender: Slot) -> &mut u16 {
        let at = usize::from(sender);
        if self.of.len() <= at {
            self.of.resize(at + 1, 0);
        }
        #[expect(clippy::indexing_slicing, reason = "made long enough just above")]
        &mut self.of[at]
    }

    /// Adds a frame, if there is a place. False: there is none.
    pub fn push(&mut self, frame: PendingFrame, now: Instant, hold: Duration) -> bool {
        let first = self.frames.is_empty();
        let slow = !first && now.saturating_duration_since(self.since) > hold;
        if self.frames.len() >= MAX_PENDING || slow && *self.count_of(frame.sender) >= MAX_SLOW {
            return false;
        }
        if first {
            self.progress = now;
            self.since = now;
        }
        *self.count_of(frame.sender) += 1;
        self.frames.push_back(frame);
        true
    }

    /// The frame that has waited longest.
    pub fn front(&self) -> Option<PendingFrame> {
        self.frames.front().copied()
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

    /// The first frame was delivered or dropped.
    pub fn pop(&mut self, now: Instant) -> Option<PendingFrame> {
        self.progress = now;
        let frame = self.frames.pop_front()?;
        *self.count_of(frame.sender) -= 1;
        Some(frame)
    }

    /// Takes out all frames of a sender.
    pub fn remove_of(&mut self, sender: Slot) -> Vec<Token> {
        let mut removed = Vec::new();
        if self.of.get(usize::from(sender)).is_none_or(|&count| count == 0) {
            return removed;
        }
        self.frames.retain(|frame| {
            if frame.sender == sender {
                removed.push(frame.token);
            }
            frame.sender != sender
        });
        *self.count_of(sender) = 0;
        removed
    }

    /// Has the receiver taken nothing for longer than it may?
    pub fn is_overdue(&self, now: Instant, hold: Duration) -> bool {
        !self.frames.is_empty() && now.saturating_duration_since(self.progress) > hold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(sender: Slot, number: u32) -> PendingFrame {
        PendingFrame { sender, token: Token(number), tag: None, next: 0 }
    }

    #[test]
    fn a_receiver_that_is_slow_does_not_use_up_a_sender() {
        let (start, hold) = (Instant::now(), Duration::from_millis(5));
        let mut queue = PendingQueue::new(start);
        assert!((0..100).all(|number| queue.push(frame(1, number), start, hold)));
        let late = start + 2 * hold;
        assert!(queue.is_overdue(late, hold) && !queue.is_overdue(start, hold));
        assert!(!queue.push(frame(1, 100), late, hold), "one that has many there");
        assert!(queue.push(frame(2, 0), late, hold), "one that has none");
        assert!(queue.pop(late).is_some_and(|front| front.token == Token(0)));
        assert!(!queue.is_overdue(late, hold), "it took one");
    }

    #[test]
    fn the_number_is_bounded_and_senders_are_taken_out() {
        let now = Instant::now();
        let mut queue = PendingQueue::new(now);
        let taken =
            (0..2000).filter(|&number| queue.push(frame(number as Slot % 2, number), now, Duration::MAX));
        assert_eq!(taken.count(), MAX_PENDING);
        assert_eq!(queue.remove_of(0).len(), MAX_PENDING / 2);
        assert!(queue.remove_of(0).is_empty() && queue.remove_of(77).is_empty());
        assert!(queue.front().is_some_and(|front| front.sender == 1));
        assert!(queue.advance(3, now) && !queue.advance(3, now));
    }
}
