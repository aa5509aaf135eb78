//! Bytes on their way into a ring, and out of one.

use vmlane_mem::{Pages, copy};

use super::advance;

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
