//! Bytes on their way into a ring, and out of one.

use vmlane_mem::{Pages, Spans, copy};

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

    /// Copies `len` bytes of `from`, from its byte `at` on, into the ring.
    pub fn write_spans(&self, from: &Spans, at: usize, len: usize) {
        let head = len.min(self.size - self.at);
        from.write_to_pages(at, self.pages, self.base + self.at, head);
        from.write_to_pages(at + head, self.pages, self.base, len - head);
    }

    /// Copies the first `len` bytes to byte `at` of `to`, which is writable.
    pub fn read_to_spans(&self, to: &Spans, at: usize, len: usize) {
        let head = len.min(self.size - self.at);
        to.read_from_pages(at, self.pages, self.base + self.at, head);
        to.read_from_pages(at + head, self.pages, self.base, len - head);
    }
}

/// Bytes that one port hands to another one, where they lie.
#[derive(Clone, Copy)]
pub enum Bytes<'a> {
    /// In the ring of a port.
    Ring(RingSlice<'a>),
    /// In private memory.
    Private(&'a [u8]),
    /// Wherever a port has them that has no ring.
    Elsewhere(&'a dyn Scattered),
}

/// Bytes that lie in several places, known to their port alone. Offsets are from the first byte that is not
/// consumed.
pub trait Scattered {
    /// How many bytes lie there at most.
    fn most(&self) -> usize;

    /// Copies the first `len` to a ring.
    fn copy_to(&self, to: RingSlice<'_>, len: usize);

    /// Copies `len` from `from` on to byte `at` of `to`, which is writable.
    fn copy_to_spans(&self, from: usize, to: &Spans, at: usize, len: usize);

    /// Copies `out.len()` bytes from `from` on.
    fn read(&self, from: usize, out: &mut [u8]);
}

impl Bytes<'_> {
    /// How many bytes the place holds in which these are.
    pub fn most(self) -> usize {
        match self {
            Bytes::Ring(ring) => ring.size,
            Bytes::Private(bytes) => bytes.len(),
            Bytes::Elsewhere(bytes) => bytes.most(),
        }
    }

    /// Copies the first `len` of them to a ring.
    #[inline]
    pub fn copy_to(self, to: RingSlice<'_>, len: usize) {
        match self {
            Bytes::Ring(from) => transfer(to, from, len),
            Bytes::Private(bytes) => to.write(bytes.get(..len).unwrap_or(bytes)),
            Bytes::Elsewhere(bytes) => bytes.copy_to(to, len),
        }
    }

    /// Copies as many as `to` is long, from byte `from` on, to `to`, which is writable.
    pub fn copy_to_spans(self, from: usize, to: &Spans) {
        let len = to.len();
        match self {
            Bytes::Ring(ring) => ring.advanced(from).read_to_spans(to, 0, len),
            Bytes::Private(bytes) => to.write(0, bytes.get(from..from + len).unwrap_or_default()),
            Bytes::Elsewhere(bytes) => bytes.copy_to_spans(from, to, 0, len),
        }
    }

    /// Copies `out.len()` of them out, from byte `from` on.
    pub fn read(self, from: usize, out: &mut [u8]) {
        match self {
            Bytes::Ring(ring) => ring.advanced(from).read(out),
            Bytes::Private(bytes) => {
                if let Some(bytes) = bytes.get(from..from + out.len()) {
                    out.copy_from_slice(bytes);
                }
            }
            Bytes::Elsewhere(bytes) => bytes.read(from, out),
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
