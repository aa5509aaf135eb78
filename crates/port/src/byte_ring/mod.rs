//! A byte ring with two indices, each written by one side, as a reader and as a writer of it that trusts the
//! other side's index no further than it can check.
//!
//! ```text
//!            consumed            readable                room
//!   ... ----------------|========================|-----------------...
//!                     head                     tail
//!                 (reader's index)        (writer's index)
//! ```
//!
//! Both indices are below `size` and wrap there; a full ring has one byte free, so that it differs from an
//! empty one. The other side's index is loaded once per decision and then accepted or refused: it must lie
//! inside the ring, and not behind where it was before. What lies between accepted indices is copied once
//! ([`transfer`]), across the ring's end where need be; only then does this side's index move.
//!
//! VMCI queue pairs, the rings of host programs (both with the daemon and with the route helper) and those of
//! virtio-vsock connections are these. A port over them loads and stores the indices.

mod slice;
mod unnotified;

use vmlane_mem::Pages;

use crate::PortFault;

pub use self::slice::{Bytes, RingSlice, Scattered, transfer};
pub use self::unnotified::Unnotified;

/// The ring that the other side writes and this side reads: plain data, valid after every call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reading {
    /// Bytes of the ring; it holds one less.
    pub size: u64,
    /// First byte not yet copied.
    pub cur: u64,
    /// The head that the other side sees; may trail `cur` while the stream is awake (M7).
    pub published: u64,
    /// The tail at the last check.
    pub tail: u64,
    /// Heads that others took the place of since the other side was notified of room. Should its tail turn
    /// out to make the ring full as one of these has it, it may have gone to sleep for room that there is.
    pub heads: Unnotified,
}

/// The ring that this side writes and the other side reads: plain data, valid after every call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Writing {
    /// Bytes of the ring; it holds one less.
    pub size: u64,
    /// The tail that the other side sees: always exact.
    pub tail: u64,
    /// The head at the last check.
    pub head: u64,
    /// The head right after the last bytes were published; what the other side had read by then.
    pub head_at_produce: u64,
    /// Bytes were published without a notice since the last one.
    pub unannounced: bool,
    /// Tails that others took the place of since the other side was notified of bytes. Should its head turn
    /// out to be at one of these, it may have gone to sleep for bytes that there are.
    pub tails: Unnotified,
}

/// Bytes from index `from` forward to index `to` in a ring of `size`.
#[inline]
pub fn distance(from: u64, to: u64, size: u64) -> u64 {
    if to >= from { to - from } else { to + size - from }
}

/// `index`, `len` bytes further in a ring of `size`.
#[inline]
pub fn advance(index: u64, len: u64, size: u64) -> u64 {
    let sum = index + len;
    if sum >= size { sum - size } else { sum }
}

impl Reading {
    /// An empty ring, both indices zero.
    pub fn new(size: u64) -> Reading {
        Reading { size, cur: 0, published: 0, tail: 0, heads: Unnotified::default() }
    }

    /// Accepts a tail just loaded: inside the ring, and not behind the previous one.
    #[inline]
    pub fn accept(&mut self, tail: u64) -> Result<(), PortFault> {
        if tail == self.tail {
            return Ok(()); // as it was when it was accepted
        }
        if tail >= self.size {
            return Err(PortFault::out_of_ring("producer_tail", tail, self.size));
        }
        if distance(self.published, tail, self.size) < distance(self.published, self.tail, self.size) {
            return Err(PortFault::backwards("producer_tail", self.tail, tail));
        }
        self.tail = tail;
        Ok(())
    }

    /// Bytes that are not copied yet.
    #[inline]
    pub fn pending(&self) -> u64 {
        distance(self.cur, self.tail, self.size)
    }

    /// Bytes that the other side may still write, as far as it can see.
    #[inline]
    pub fn room(&self) -> u64 {
        if self.size == 0 { 0 } else { self.size - 1 - distance(self.published, self.tail, self.size) }
    }

    /// A fresh check: bytes that are not copied yet, by a tail just loaded.
    #[inline]
    pub fn poll(&mut self, tail: u64) -> Result<usize, PortFault> {
        self.accept(tail)?;
        Ok(self.pending() as usize)
    }

    /// Where they lie, in a ring whose first byte is at `base` of `pages`.
    #[inline]
    pub fn source<'a>(&self, pages: &'a Pages, base: usize) -> RingSlice<'a> {
        RingSlice { pages, base, size: self.size as usize, at: self.cur as usize }
    }

    /// `len` of them are copied.
    #[inline]
    pub fn consume(&mut self, len: usize) {
        self.cur = advance(self.cur, len as u64, self.size);
    }

    /// Copied bytes of which the other side does not know yet that they are room.
    #[inline]
    pub fn lag(&self) -> u64 {
        distance(self.published, self.cur, self.size)
    }

    /// The other side sees the head `new` from now on. Everything up to `tail` stays pending, and the next
    /// tail is checked against the new head.
    #[inline]
    pub fn publish(&mut self, new: u64) {
        self.heads.push(self.published, new, self.size);
        self.published = new;
    }

    /// May the other side have gone to sleep because its ring was full at one of the last heads? Asked after
    /// each check of its tail; it is to be notified then.
    #[inline]
    pub fn take_full(&mut self) -> bool {
        self.heads.take(advance(self.tail, 1, self.size), self.published, self.size)
    }

    /// The same for any head since it was notified last.
    pub fn take_any_full(&mut self) -> bool {
        self.heads.take_any(advance(self.tail, 1, self.size), self.published, self.size)
    }

    /// For a model that asks for the last heads alone, so that states which differ in the others are one.
    #[doc(hidden)]
    pub fn with_last_heads(self) -> Reading {
        Reading { heads: self.heads.last(), ..self }
    }
}

impl Writing {
    /// An empty ring, both indices zero.
    pub fn new(size: u64) -> Writing {
        let (tails, unannounced) = (Unnotified::default(), false);
        Writing { size, tail: 0, head: 0, head_at_produce: 0, unannounced, tails }
    }

    /// Accepts a head just loaded: between the previous one and the tail.
    #[inline]
    pub fn accept(&mut self, head: u64) -> Result<(), PortFault> {
        if head == self.head {
            return Ok(()); // as it was when it was accepted
        }
        if head >= self.size {
            return Err(PortFault::out_of_ring("consumer_head", head, self.size));
        }
        if distance(self.head, head, self.size) > distance(self.head, self.tail, self.size) {
            return Err(PortFault::backwards("consumer_head", self.head, head));
        }
        self.head = head;
        Ok(())
    }

    /// Bytes that the other side has not read.
    #[inline]
    pub fn used(&self) -> u64 {
        if self.size == 0 {
            return 0;
        }
        distance(self.head, self.tail, self.size)
    }

    /// Bytes of room, as of the last check.
    #[inline]
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(1) - self.used()
    }

    /// A fresh check: bytes of room, by a head just loaded.
    #[inline]
    pub fn poll(&mut self, head: u64) -> Result<usize, PortFault> {
        self.accept(head)?;
        Ok(self.free() as usize)
    }

    /// Where the room is, in a ring whose first byte is at `base` of `pages`.
    #[inline]
    pub fn sink<'a>(&self, pages: &'a Pages, base: usize) -> RingSlice<'a> {
        RingSlice { pages, base, size: self.size as usize, at: self.tail as usize }
    }

    /// `len` bytes are there: the tail to be published. Returns the one before.
    #[inline]
    pub fn produce(&mut self, len: usize) -> u64 {
        let old = self.tail;
        self.tail = advance(old, len as u64, self.size);
        self.tails.push(old, self.tail, self.size);
        old
    }

    /// May the other side have gone to sleep because its ring was empty at one of the last tails? Asked after
    /// each check of its head; it is to be notified then.
    #[inline]
    pub fn take_empty(&mut self) -> bool {
        self.tails.take(self.head, self.tail, self.size)
    }

    /// The same for any tail since it was notified last.
    pub fn take_any_empty(&mut self) -> bool {
        self.tails.take_any(self.head, self.tail, self.size)
    }

    /// For a model that asks for the last tails alone, so that states which differ in the others are one.
    #[doc(hidden)]
    pub fn with_last_tails(self) -> Writing {
        Writing { tails: self.tails.last(), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_outside_the_ring_or_behind_its_past_is_refused() {
        let mut reading = Reading::new(16);
        assert!(reading.accept(16).is_err() && reading.accept(u64::MAX).is_err());
        reading.accept(10).unwrap();
        assert!(reading.accept(9).is_err(), "backwards");
        assert_eq!((reading.pending(), reading.room()), (10, 5));
        let mut writing = Writing::new(16);
        writing.tail = 4;
        assert!(writing.accept(16).is_err());
        assert!(writing.accept(5).is_err(), "beyond what was written");
        writing.accept(3).unwrap();
        assert!(writing.accept(2).is_err(), "backwards");
        assert_eq!(writing.used(), 1);
    }

    #[test]
    fn indices_begin_anew_at_the_end() {
        let mut reading = Reading { cur: 14, published: 14, tail: 14, ..Reading::new(16) };
        reading.accept(3).unwrap();
        assert_eq!((reading.pending(), reading.room()), (5, 10));
        assert_eq!((advance(14, 5, 16), distance(14, 3, 16)), (3, 5));
        // The whole of a ring but one byte.
        reading.accept(13).unwrap();
        assert_eq!((reading.pending(), reading.room()), (15, 0));
        assert!(reading.accept(14).is_err(), "a ring that is more than full");
    }

    /// Every pair of indices against every next one: what is accepted keeps both counts within the ring.
    #[test]
    fn no_accepted_index_makes_more_bytes_than_the_ring_has() {
        const SIZE: u64 = 7;
        for (published, tail, next) in (0..SIZE * SIZE * 10).map(|n| (n / 70, n / 10 % SIZE, n % 10)) {
            let mut reading = Reading { cur: published, published, tail, ..Reading::new(SIZE) };
            let before = reading.pending();
            if reading.accept(next).is_ok() {
                assert!(next < SIZE && reading.pending() >= before);
                assert_eq!(reading.pending() + reading.room(), SIZE - 1);
            }
        }
    }
}
