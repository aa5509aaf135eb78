//! A list of pieces of guest memory, resolved once: a frame where its sender left it, or the buffers
//! it goes to.
#![allow(unsafe_code)] // raw copies between mapped pieces

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use crate::bulk;
use crate::map::{Fault, MemoryMap};
use crate::pages::Pages;
use crate::sum::{Anywhere, Sum};
use crate::window::Window;

/// Bytes of a cache line.
pub const CACHE_LINE: u64 = 64;

/// Cache lines of `len` bytes at `addr` worth fetching before their turn comes: all of a frame of the usual
/// MTU, which otherwise waits for memory line by line; of more only where headers are, since the CPU itself
/// fetches ahead in long copies. And none beside them: each line is fetched from the CPU of the guest that
/// wrote it.
#[inline]
pub fn lines_ahead(addr: u64, len: usize) -> usize {
    const SHORT: usize = 2048;
    let offset = (addr % CACHE_LINE) as usize;
    if len > SHORT { 2 } else { (offset + len).div_ceil(CACHE_LINE as usize) }
}

/// Bytes of a word and half of one.
const WORDS: usize = 12;

#[derive(Clone, Copy, Debug)]
struct Piece {
    base: NonNull<u8>,
    len: usize,
}

/// Pieces of one guest's memory, logically contiguous. Emptied and filled again for each frame; once
/// it has grown, nothing is allocated.
#[derive(Debug)]
pub struct Spans {
    /// Keeps the mappings under `pieces` alive.
    map: MemoryMap,
    writable: bool,
    pieces: Vec<Piece>,
    len: usize,
    /// The region that the last piece came from: the next one mostly comes from it too.
    near: Near,
}

/// A mapped region: its guest address, its bytes, where it lies.
#[derive(Clone, Copy, Debug)]
struct Near {
    guest: u64,
    len: u64,
    base: NonNull<u8>,
}

// SAFETY: pointers into shared mappings kept alive by `map`; accessed by raw copies only.
unsafe impl Send for Spans {}
// SAFETY: as above.
unsafe impl Sync for Spans {}

impl Spans {
    /// An empty list over `map`. `writable`: only pieces that may be written are taken.
    pub fn new(map: MemoryMap, writable: bool) -> Spans {
        let near = Near { guest: 0, len: 0, base: NonNull::dangling() };
        Spans { map, writable, pieces: Vec::new(), len: 0, near }
    }

    /// Forgets the pieces.
    #[inline]
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.len = 0;
    }

    /// Bytes of all pieces together.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of pieces.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Adds the guest's `[addr, addr + len)`; the list is unchanged if it is not all mapped.
    #[inline]
    pub fn push(&mut self, addr: u64, len: usize) -> Result<(), Fault> {
        let Near { guest, len: mapped, base } = self.near;
        let offset = addr.wrapping_sub(guest);
        if len > 0 && offset < mapped && len as u64 <= mapped - offset {
            // SAFETY: just checked to lie inside the region, which `map` keeps alive.
            let base = unsafe { base.add(offset as usize) };
            self.pieces.push(Piece { base, len });
            self.len += len;
            return Ok(());
        }
        self.push_far(addr, len)
    }

    /// Only `[addr, addr + len)`: [`Self::clear`] and [`Self::push`].
    #[inline]
    pub fn set(&mut self, addr: u64, len: usize) -> Result<(), Fault> {
        self.clear();
        self.push(addr, len)
    }

    /// [`Self::push`] of bytes that lie in another region than the last ones, or in several.
    #[cold]
    fn push_far(&mut self, addr: u64, len: usize) -> Result<(), Fault> {
        let fault = Fault { addr, len: len as u64 };
        addr.checked_add(len as u64).ok_or(fault)?;
        let before = self.pieces.len();
        let mut done = 0;
        while done < len {
            let Some(region) = self.map.region(addr + done as u64, self.writable) else {
                self.pieces.truncate(before);
                return Err(fault);
            };
            self.near = Near { guest: region.guest, len: region.len, base: region.at(0) };
            let offset = addr + done as u64 - region.guest;
            let here = (len - done).min(usize::try_from(region.len - offset).unwrap_or(usize::MAX));
            self.pieces.push(Piece { base: region.at(offset), len: here });
            done += here;
        }
        self.len += len;
        Ok(())
    }

    /// Empties the list; from now on its pieces are of `other`'s memory, which it keeps mapped.
    pub fn follow(&mut self, other: &Spans) {
        self.clear();
        if !self.map.is(&other.map) {
            self.map = other.map.clone();
            self.near = Near { guest: 0, len: 0, base: NonNull::dangling() };
        }
        self.writable = other.writable;
    }

    /// Adds the pieces of `other`'s `[offset, offset + len)`. False, and nothing is added: they are of other
    /// memory than this list's.
    pub fn append(&mut self, other: &Spans, offset: usize, len: usize) -> bool {
        other.check(offset, len);
        if !self.map.is(&other.map) || self.writable && !other.writable {
            return false;
        }
        other.runs(offset, len, |base, len| {
            // The pieces of a list are never null.
            if let Some(base) = NonNull::new(base) {
                self.pieces.push(Piece { base, len });
                self.len += len;
            }
        });
        true
    }

    /// Adds `[offset, offset + len)` to `sum`.
    pub fn sum(&self, offset: usize, len: usize, sum: &mut Sum) {
        self.check(offset, len);
        self.runs(offset, len, |from, len| {
            // SAFETY: the run is valid for `len` bytes of a live mapping.
            unsafe { sum.add_shared(from, len) };
        });
    }

    /// The twelve bytes at a guest address, little endian: the first eight, and the four behind them. Each
    /// word is loaded once. None: not all of them are in the region that the last piece came from. There is
    /// no private copy: one that is stored in parts and then loaded as a whole waits for all stores before
    /// it, to other guests' memory too.
    #[inline]
    pub fn near_words(&self, addr: u64) -> Option<(u64, u32)> {
        let offset = addr.wrapping_sub(self.near.guest);
        if self.near.len < WORDS as u64 || offset > self.near.len - WORDS as u64 {
            return None;
        }
        // SAFETY: just checked to lie inside the region, which `map` keeps alive.
        unsafe {
            let at = self.near.base.as_ptr().add(offset as usize);
            let first = at.cast::<Anywhere<u64>>().read_volatile().0;
            let second = at.add(size_of::<u64>()).cast::<Anywhere<u32>>().read_volatile().0;
            Some((u64::from_le(first), u32::from_le(second)))
        }
    }

    /// Writes the first `len` (at least eight) of such twelve bytes to the beginning. If `spare`, only if
    /// others are there: a store takes the cache line away from the guest's CPU, which may have it still.
    #[inline]
    pub fn write_words(&self, (first, second): (u64, u32), len: usize, spare: bool) {
        assert!(self.writable);
        self.check(0, len);
        let (first, second) = (first.to_le(), second.to_le());
        let Some(at) = self.one_run(0, WORDS).filter(|_| len == WORDS) else {
            let mut bytes = [0; WORDS];
            bytes[..8].copy_from_slice(&first.to_ne_bytes());
            bytes[8..].copy_from_slice(&second.to_ne_bytes());
            return self.write(0, &bytes[..len]);
        };
        // SAFETY: `one_run` has all twelve bytes, of a live writable mapping. A guest that changes them
        // meanwhile changes only what it reads.
        unsafe {
            let (one, two) = (at.cast::<Anywhere<u64>>(), at.add(size_of::<u64>()).cast::<Anywhere<u32>>());
            if spare && one.read_volatile().0 == first && two.read_volatile().0 == second {
                return;
            }
            one.write(Anywhere(first));
            two.write(Anywhere(second));
        }
    }

    /// Has the CPU fetch some cache lines at a guest address that is likely to be pushed soon.
    #[inline]
    pub fn prefetch(&self, addr: u64, lines: usize) {
        self.near_lines(addr, lines, crate::window::prefetch);
    }

    /// The same for bytes that are written soon.
    #[inline]
    pub fn prefetch_write(&self, addr: u64, lines: usize) {
        self.near_lines(addr, lines, crate::window::prefetch_write);
    }

    /// Has the CPU fetch the list itself, which another CPU may have written.
    #[inline]
    pub fn prefetch_list(&self) {
        crate::window::prefetch(self.pieces.as_ptr().cast());
    }

    /// Has the CPU fetch some cache lines from byte `offset` on, of the first piece only.
    #[inline]
    pub fn prefetch_bytes(&self, offset: usize, lines: usize) {
        let Some(first) = self.pieces.first() else { return };
        let rest = first.len.saturating_sub(offset).div_ceil(CACHE_LINE as usize);
        for line in 0..lines.min(rest) {
            crate::window::prefetch(first.base.as_ptr().wrapping_add(offset + line * CACHE_LINE as usize));
        }
    }

    #[inline]
    fn near_lines(&self, addr: u64, lines: usize, fetch: impl Fn(*const u8)) {
        let mut offset = addr.wrapping_sub(self.near.guest);
        for _ in 0..lines {
            if offset >= self.near.len {
                return;
            }
            // SAFETY: inside the region, which `map` keeps alive.
            fetch(unsafe { self.near.base.as_ptr().add(offset as usize) });
            offset += CACHE_LINE;
        }
    }

    /// Takes back the last `bytes`, which are no more than there are.
    pub fn shorten(&mut self, bytes: usize) {
        assert!(bytes <= self.len, "{bytes} of {} bytes taken back", self.len);
        self.len -= bytes;
        let mut left = bytes;
        while let Some(last) = self.pieces.last_mut().filter(|_| left > 0) {
            let here = last.len.min(left);
            last.len -= here;
            left -= here;
            if last.len == 0 {
                self.pieces.pop();
            }
        }
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        if !(offset <= self.len && len <= self.len - offset) {
            outside(offset, len, self.len);
        }
    }

    /// Where `[offset, offset + len)` lies, if one piece has it all.
    #[inline]
    fn one_run(&self, mut offset: usize, len: usize) -> Option<*mut u8> {
        for piece in &self.pieces {
            if offset < piece.len {
                // SAFETY: `offset` is inside the piece.
                return (len <= piece.len - offset).then(|| unsafe { piece.base.as_ptr().add(offset) });
            }
            offset -= piece.len;
        }
        None
    }

    /// Copies bytes `[from, from + len)` to byte `to` of a window, which is writable.
    pub fn read_into(&self, from: usize, len: usize, window: &Window, to: usize) {
        let to = window.bytes_mut(to, len);
        let mut done = 0;
        self.each_run(from, len, |source, len| {
            // SAFETY: the run is valid for `len` bytes of a live mapping, and all runs together fit the range
            // of the window.
            unsafe { bulk::copy(to.add(done), source, len) };
            done += len;
        });
    }

    /// Calls `each(pointer, bytes)` for the runs of `[offset, offset + len)`.
    pub(crate) fn each_run(&self, offset: usize, len: usize, mut each: impl FnMut(*const u8, usize)) {
        self.check(offset, len);
        self.runs(offset, len, |from, len| each(from, len));
    }

    /// Copies `[offset, offset + len)` to byte `at` of `pages`.
    pub fn write_to_pages(&self, offset: usize, pages: &Pages, mut at: usize, len: usize) {
        pages.check(at, len);
        self.each_run(offset, len, |mut source, mut left| {
            while left > 0 {
                let (target, here) = pages.run(at, left);
                // SAFETY: both runs are valid for `here` bytes of live mappings, the pages are writable.
                unsafe {
                    bulk::copy(target, source, here);
                    source = source.add(here);
                }
                at += here;
                left -= here;
            }
        });
    }

    /// Copies `len` bytes of `pages`, from byte `at` on, in at `offset`. The list is writable.
    pub fn read_from_pages(&self, offset: usize, pages: &Pages, mut at: usize, len: usize) {
        assert!(self.writable);
        self.check(offset, len);
        pages.check(at, len);
        self.runs(offset, len, |mut target, mut left| {
            while left > 0 {
                let (source, here) = pages.run(at, left);
                // SAFETY: both runs are valid for `here` bytes of live mappings, the list is writable.
                unsafe {
                    bulk::copy(target, source, here);
                    target = target.add(here);
                }
                at += here;
                left -= here;
            }
        });
    }

    /// Calls `each(pointer, bytes)` for the runs of `[offset, offset + len)`, which was checked.
    #[inline]
    fn runs(&self, mut offset: usize, mut len: usize, mut each: impl FnMut(*mut u8, usize)) {
        for piece in &self.pieces {
            if len == 0 {
                return;
            }
            if offset >= piece.len {
                offset -= piece.len;
                continue;
            }
            let here = (piece.len - offset).min(len);
            // SAFETY: `offset` is inside the piece.
            each(unsafe { piece.base.as_ptr().add(offset) }, here);
            offset = 0;
            len -= here;
        }
    }

    /// Copies `[offset, offset + out.len())` out, once.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        if let Some(from) = self.one_run(offset, out.len()) {
            // SAFETY: `from` is valid for `out.len()` bytes of a live mapping; `out` is private.
            unsafe { libc::memmove(out.as_mut_ptr().cast(), from.cast(), out.len()) };
            return;
        }
        let mut done = 0;
        self.runs(offset, out.len(), |from, len| {
            // SAFETY: `from` is valid for `len` bytes of a live mapping; `out` is private.
            unsafe { libc::memmove(out[done..done + len].as_mut_ptr().cast(), from.cast(), len) };
            done += len;
        });
    }

    /// Copies `data` in at `offset`. The list is writable.
    #[inline]
    pub fn write(&self, offset: usize, data: &[u8]) {
        assert!(self.writable);
        self.check(offset, data.len());
        if let Some(to) = self.one_run(offset, data.len()) {
            // SAFETY: `to` is valid for `data.len()` bytes of a live writable mapping; `data` is private.
            unsafe { libc::memmove(to.cast(), data.as_ptr().cast(), data.len()) };
            return;
        }
        let mut done = 0;
        self.runs(offset, data.len(), |to, len| {
            // SAFETY: `to` is valid for `len` bytes of a live writable mapping; `data` is private.
            unsafe { libc::memmove(to.cast(), data[done..done + len].as_ptr().cast(), len) };
            done += len;
        });
    }

    /// One `readv` of `fd` into the pieces from `offset` on, after `head` (private). Returns the bytes
    /// read, those of `head` included.
    pub fn read_from(&self, fd: impl AsFd, head: &mut [u8], offset: usize) -> io::Result<usize> {
        assert!(self.writable);
        let first = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() };
        let vectors = self.vectors(first, offset, self.len.saturating_sub(offset));
        let (list, count) = vectors.raw();
        // SAFETY: every vector points to private bytes or into a live writable mapping.
        let done = unsafe { libc::readv(raw(fd), list, count) };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    }

    /// One `writev` to `fd`: `head` (private), then `[offset, offset + len)`.
    pub fn write_to(&self, fd: impl AsFd, head: &[u8], offset: usize, len: usize) -> io::Result<usize> {
        self.check(offset, len);
        let first = libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() };
        let vectors = self.vectors(first, offset, len);
        let (list, count) = vectors.raw();
        // SAFETY: every vector points to private bytes or into a live mapping; the kernel only reads.
        let done = unsafe { libc::writev(raw(fd), list, count) };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    }

    fn vectors(&self, first: libc::iovec, offset: usize, len: usize) -> Vectors {
        let mut vectors = Vectors { few: [first; FEW], count: 1, many: Vec::new() };
        self.runs(offset, len, |base, len| {
            vectors.push(libc::iovec { iov_base: base.cast(), iov_len: len });
        });
        vectors
    }
}

#[cold]
fn outside(offset: usize, len: usize, spans: usize) -> ! {
    panic!("{offset}+{len} is outside {spans} bytes of spans");
}

/// Vectors that need no allocation: a super-frame has some 17 pieces.
const FEW: usize = 24;

struct Vectors {
    few: [libc::iovec; FEW],
    count: usize,
    /// All of them, once there are more than `few` holds.
    many: Vec<libc::iovec>,
}

impl Vectors {
    fn push(&mut self, vector: libc::iovec) {
        if self.count < FEW {
            self.few[self.count] = vector;
        } else {
            if self.many.is_empty() {
                self.many.extend_from_slice(&self.few);
            }
            self.many.push(vector);
        }
        self.count += 1;
    }

    fn raw(&self) -> (*const libc::iovec, libc::c_int) {
        let list = if self.many.is_empty() { self.few.as_ptr() } else { self.many.as_ptr() };
        (list, self.count.min(MAX_VECTORS) as libc::c_int)
    }
}

/// What one `readv` or `writev` takes (`UIO_MAXIOV`).
const MAX_VECTORS: usize = 1024;

fn raw(fd: impl AsFd) -> libc::c_int {
    use std::os::fd::AsRawFd;
    fd.as_fd().as_raw_fd()
}

/// Copies `len` bytes between two lists, guest to guest: the one copy.
///
/// Panics when a range is outside its list (a caller's bug, never a guest's doing).
#[inline]
pub fn copy_spans(to: &Spans, to_offset: usize, from: &Spans, from_offset: usize, len: usize) {
    // SAFETY: both runs are valid for `len` bytes of live mappings, the target writable.
    let copy = |to, from, len| unsafe { bulk::copy(to, from, len) };
    copy_runs((to, to_offset), (from, from_offset), len, copy);
}

/// The same, and adds what was delivered to `sum`: bytes and sum agree whatever the guests do
/// meanwhile.
pub fn copy_spans_summed(
    to: &Spans,
    to_offset: usize,
    from: &Spans,
    from_offset: usize,
    len: usize,
    sum: &mut Sum,
) {
    // SAFETY: both runs are valid for `len` bytes of live mappings, the target writable.
    let copy = |to, from, len| unsafe { sum.copy(to, from, len) };
    copy_runs((to, to_offset), (from, from_offset), len, copy);
}

/// Has `copy` copy every run of bytes that both lists have in one piece. It is given runs in live mappings,
/// of the length that it is passed, the target writable.
#[inline]
fn copy_runs(
    (to, to_offset): (&Spans, usize),
    (from, from_offset): (&Spans, usize),
    len: usize,
    mut copy: impl FnMut(*mut u8, *const u8, usize),
) {
    assert!(to.writable);
    to.check(to_offset, len);
    from.check(from_offset, len);
    if len == 0 {
        return;
    }
    if let (Some(to), Some(from)) = (to.one_run(to_offset, len), from.one_run(from_offset, len)) {
        return copy(to, from, len);
    }
    let mut target = Cursor::new(to, to_offset);
    from.runs(from_offset, len, |mut source, mut left| {
        while left > 0 {
            let (at, room) = target.run();
            let here = room.min(left);
            copy(at, source, here);
            // SAFETY: the run has `left` bytes, and `here` is no more.
            source = unsafe { source.add(here) };
            target.advance(here);
            left -= here;
        }
    });
}

/// A position in a list that only moves forward.
struct Cursor<'a> {
    pieces: &'a [Piece],
    at: usize,
}

impl<'a> Cursor<'a> {
    #[inline]
    fn new(spans: &'a Spans, offset: usize) -> Cursor<'a> {
        let mut cursor = Cursor { pieces: &spans.pieces, at: offset };
        while let Some(piece) = cursor.pieces.first().filter(|piece| cursor.at >= piece.len) {
            cursor.at -= piece.len;
            cursor.pieces = &cursor.pieces[1..];
        }
        cursor
    }

    /// The bytes from here to the end of the piece.
    #[inline]
    fn run(&self) -> (*mut u8, usize) {
        let piece = self.pieces[0];
        // SAFETY: `at` is inside the piece.
        (unsafe { piece.base.as_ptr().add(self.at) }, piece.len - self.at)
    }

    /// Forward by at most a run.
    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.at += bytes;
        if self.at == self.pieces[0].len {
            self.at = 0;
            self.pieces = &self.pieces[1..];
        }
    }
}
