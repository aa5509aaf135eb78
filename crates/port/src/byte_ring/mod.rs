//! A byte ring with two indices, each written by one side, as a reader and as a writer of it that trusts the other
//! side's index no further than it can check.
//!
//! ```text
//!            consumed            readable                room
//!   ... ----------------|========================|-----------------...
//!                     head                     tail
//!                 (reader's index)        (writer's index)
//! ```
//!
//! Both indices are below `size` and wrap there; a full ring has one byte free, so that it differs from an empty
//! one. The other side's index is loaded once per decision and then accepted or refused: it must lie inside the
//! ring, and not behind where it was before. What lies between accepted indices is copied once
//! ([`transfer`]), across the ring's end where need be; only then does this side's index move.
//!
//! VMCI queue pairs, the rings of host programs and those of virtio-vsock connections keep these. A port over them
//! loads and stores the indices.

use vmlane_mem::{Pages, copy};

use crate::PortFault;

/// Values of an index that others took the place of since the other side was told: those at which it may have gone to sleep, if its
/// own index became visible late. The last few are known exactly; of those before them, how far back they reach.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Untold {
    recent: [u64; 3],
    /// Bytes from the first of all to the index as it is; no more than a ring has.
    reach: u64,
}

/// No index.
const NONE: u64 = u64::MAX;

impl Default for Untold {
    fn default() -> Untold {
        Untold { recent: [NONE; 3], reach: 0 }
    }
}

impl Untold {
    /// `to` has taken the place of `from`, in a ring of `size`.
    #[inline]
    pub fn push(&mut self, from: u64, to: u64, size: u64) {
        let [a, b, _] = self.recent;
        self.recent = [from, a, b];
        self.reach = (self.reach + distance(from, to, size)).min(size);
    }

    /// Is `index` one of the last? Then the other side is to be told, and knows by that of all up to there.
    #[inline]
    pub fn take(&mut self, index: u64, now: u64, size: u64) -> bool {
        let [a, b, c] = self.recent;
        (a == index || b == index || c == index) && self.forget(index, now, size)
    }

    #[cold]
    fn forget(&mut self, index: u64, now: u64, size: u64) -> bool {
        let at = self.recent.iter().position(|one| *one == index).unwrap_or(0);
        let first = at.checked_sub(1).and_then(|next| self.recent.get(next));
        self.reach = first.map_or(0, |first| distance(*first, now, size));
        self.recent.iter_mut().skip(at).for_each(|one| *one = NONE);
        true
    }

    /// For a model that asks for the last ones alone, so that states which differ in the others are one.
    #[doc(hidden)]
    pub fn last(self) -> Untold {
        Untold { reach: 0, ..self }
    }

    /// May `index` be one of them? All are forgotten: for the time when whatever the other side has stored is visible.
    pub fn take_any(&mut self, index: u64, now: u64, size: u64) -> bool {
        let reach = std::mem::take(self).reach;
        (1..=reach).contains(&distance(index, now, size))
    }
}

/// The ring that the other side writes and this side reads: plain data, valid after every call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reading {
    /// Bytes of the ring; it holds one less.
    pub size: u64,
    /// First byte not yet copied.
    pub cur: u64,
    /// The head that the other side sees; may trail `cur` while the stream is awake (M7).
    pub published: u64,
    /// The tail at the last look.
    pub tail: u64,
}

/// The ring that this side writes and the other side reads: plain data, valid after every call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Writing {
    /// Bytes of the ring; it holds one less.
    pub size: u64,
    /// The tail that the other side sees: always exact.
    pub tail: u64,
    /// The head at the last look.
    pub head: u64,
    /// The head right after the last bytes were published; what the other side had read by then.
    pub head_at_produce: u64,
    /// Bytes were published without a notice since the last one.
    pub unannounced: bool,
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
        Reading { size, cur: 0, published: 0, tail: 0 }
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
}

impl Writing {
    /// An empty ring, both indices zero.
    pub fn new(size: u64) -> Writing {
        Writing { size, tail: 0, head: 0, head_at_produce: 0, unannounced: false }
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
}

/// Where in a ring the next bytes are read or written. `at` is below `size`.
#[derive(Clone, Copy, Debug)]
pub struct RingSlice<'a> {
    /// The memory that the ring lies in.
    pub pages: &'a Pages,
    /// Byte offset of the ring's first data byte in `pages`.
    pub base: usize,
    /// Ring size in bytes; indices wrap here, not at a page boundary.
    pub size: usize,
    /// The index, in bytes.
    pub at: usize,
}

impl RingSlice<'_> {
    /// The same ring, `by` bytes further; that is no more than its size.
    pub fn advanced(self, by: usize) -> Self {
        RingSlice { at: advance(self.at as u64, by as u64, self.size as u64) as usize, ..self }
    }

    /// Copies `out.len()` bytes out of the ring.
    pub fn read(&self, out: &mut [u8]) {
        let (head, tail) = out.split_at_mut(out.len().min(self.size - self.at));
        self.pages.read(self.base + self.at, head);
        self.pages.read(self.base, tail);
    }

    /// Copies `data` into the ring.
    pub fn write(&self, data: &[u8]) {
        let (head, tail) = data.split_at(data.len().min(self.size - self.at));
        self.pages.write(self.base + self.at, head);
        self.pages.write(self.base, tail);
    }
}

/// Bytes to be copied into a ring.
#[derive(Clone, Copy, Debug)]
pub enum Bytes<'a> {
    /// In the ring of another port.
    Ring(RingSlice<'a>),
    /// In private memory.
    Private(&'a [u8]),
}

impl Bytes<'_> {
    /// Copies the first `len` of them to a ring.
    #[inline]
    pub fn copy_to(self, to: RingSlice<'_>, len: usize) {
        match self {
            Bytes::Ring(from) => transfer(to, from, len),
            Bytes::Private(bytes) => to.write(bytes.get(..len).unwrap_or(bytes)),
        }
    }
}

/// Moves `len` bytes from ring to ring: at most three pieces, for two wraps.
#[inline]
pub fn transfer(to: RingSlice<'_>, from: RingSlice<'_>, len: usize) {
    if len <= to.size - to.at && len <= from.size - from.at {
        return copy(to.pages, to.base + to.at, from.pages, from.base + from.at, len);
    }
    transfer_wrapped(to, from, len);
}

#[cold]
fn transfer_wrapped(to: RingSlice<'_>, from: RingSlice<'_>, mut len: usize) {
    let (mut to_at, mut from_at) = (to.at, from.at);
    while len > 0 {
        let here = len.min(to.size - to_at).min(from.size - from_at);
        copy(to.pages, to.base + to_at, from.pages, from.base + from_at, here);
        to_at = if to_at + here == to.size { 0 } else { to_at + here };
        from_at = if from_at + here == from.size { 0 } else { from_at + here };
        len -= here;
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
