//! Copies of frames that wait for their mirror's turn.
//!
//! They lie in a memory file of the mirror's own, in cells of 64 bytes: each record begins with a short
//! header and goes on at the file's begin where its end is reached. Positions count cells and never repeat. A
//! writer takes its cells by one compare-and-exchange, writes, and then marks the first one with its
//! position; the one reader describes records where they lie and gives their cells back in order. Nothing is
//! allocated, locked or waited for; what finds no room is lost.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};
use vmlane_mem::{MapError, MapRequest, MemoryMap, Spans, Window};
use vmlane_port::{MAX_FRAME, Offload};
use vmlane_wire::ethernet::Tci;

/// Bytes of a mirror's memory: some 2,700 frames of 1,500 bytes.
pub const BYTES: usize = 4 << 20;
const CELL: usize = 64;
const CELLS: u64 = (BYTES / CELL) as u64;
/// Bytes in front of a frame.
const HEADER: usize = 32;
/// In a header, instead of a frame's length: the record is of no use.
const VOID: u64 = u64::MAX;

const _: () = assert!(CELLS.is_power_of_two() && HEADER + MAX_FRAME < BYTES);

/// Where a record begins, in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position(pub u64);

/// A frame without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes of the copy.
    pub len: usize,
    /// What is still to be done to it.
    pub offload: Offload,
    /// A tag that is not among its bytes.
    pub tag: Option<Tci>,
}

impl Head {
    fn words(&self) -> [u64; 3] {
        let word = |kind: u64, a: u16, b: u16, c: bool| {
            kind | u64::from(c) << 8 | u64::from(a) << 16 | u64::from(b) << 32
        };
        let offload = match self.offload {
            Offload::None => word(0, 0, 0, false),
            Offload::Checksum { start, field } => word(1, start, field, false),
            Offload::Segment { header, mss } => word(2, header, mss, false),
            Offload::Tunnel { header, mss, outer_sum } => word(3, header, mss, outer_sum),
        };
        [self.len as u64, offload, self.tag.map_or(0, |tag| 1 << 16 | u64::from(tag.0))]
    }

    /// None: the record is of no use.
    fn of_words([len, offload, tag]: [u64; 3]) -> Option<Head> {
        let len = usize::try_from(len).ok().filter(|&len| len <= MAX_FRAME)?;
        let (a, b) = ((offload >> 16) as u16, (offload >> 32) as u16);
        let offload = match offload & 0xff {
            0 => Offload::None,
            1 => Offload::Checksum { start: a, field: b },
            2 => Offload::Segment { header: a, mss: b },
            _ => Offload::Tunnel { header: a, mss: b, outer_sum: offload >> 8 & 1 != 0 },
        };
        Some(Head { len, offload, tag: (tag >> 16 != 0).then_some(Tci(tag as u16)) })
    }
}

/// Cells of a record with a frame of so many bytes.
fn cells(len: usize) -> u64 {
    (HEADER + len).div_ceil(CELL) as u64
}

/// Where byte `at` of a record lies, and how many bytes follow before the memory's end.
fn place(position: Position, at: usize) -> (usize, usize) {
    let offset = ((position.0 % CELLS) as usize * CELL + at) % BYTES;
    (offset, BYTES - offset)
}

/// The memory, and what is in it.
pub struct Ring {
    window: Window,
    /// The same memory, for frames in flight.
    memory: MemoryMap,
    /// For each cell: its position + 1 if a complete record begins there.
    marks: Box<[AtomicU64]>,
    /// The next cell that no one has taken.
    next: AtomicU64,
    /// The first cell that is not free.
    first: AtomicU64,
    /// Who reads sleeps, or is about to: the next record rings the bell.
    armed: AtomicBool,
    doorbell: OwnedFd,
}

impl Ring {
    /// An empty one. All its memory is there before a worker needs it.
    pub fn new() -> io::Result<Ring> {
        let (window, file) = Window::of_file("vmlane-mirror", BYTES as u64)?;
        (0..BYTES).step_by(4096).for_each(|at| window.write(at, &[0; 4096]));
        let memory = map(file).map_err(io::Error::other)?;
        let marks = (0..CELLS).map(|_| AtomicU64::new(0)).collect();
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let [next, first] = [0, 0].map(AtomicU64::new);
        Ok(Ring { window, memory, marks, next, first, armed: AtomicBool::new(false), doorbell })
    }

    /// A list for pieces of this memory.
    pub fn spans(&self) -> Spans {
        Spans::new(self.memory.clone(), false)
    }

    /// Takes room for a frame of `len` bytes. None: there is not so much.
    #[inline]
    pub fn take(&self, len: usize) -> Option<Position> {
        let cells = cells(len);
        let take = |next: u64| {
            // The cells of what is read meanwhile are free only later.
            let used = next.wrapping_sub(self.first.load(Ordering::Acquire));
            (used <= CELLS && cells <= CELLS - used).then(|| next + cells)
        };
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(Position)
    }

    /// Writes bytes of the frame, from its byte `at` on.
    #[inline]
    pub fn write(&self, to: Position, at: usize, bytes: &[u8]) {
        let (offset, room) = place(to, HEADER + at);
        let (first, second) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
        self.window.write(offset, first);
        if !second.is_empty() {
            self.window.write(0, second);
        }
    }

    /// The same, of bytes `[from, from + len)` of a list.
    #[inline]
    pub fn write_spans(&self, to: Position, at: usize, spans: &Spans, from: usize, len: usize) {
        let (offset, room) = place(to, HEADER + at);
        let first = len.min(room);
        spans.read_into(from, first, &self.window, offset);
        if len > first {
            spans.read_into(from + first, len - first, &self.window, 0);
        }
    }

    /// The frame that goes with `head` is complete, and may be read once it is [`Self::publish`]ed.
    #[inline]
    pub fn describe(&self, at: Position, head: &Head) {
        let [len, offload, tag] = head.words();
        // A header lies in one cell.
        let (offset, _) = place(at, 0);
        for (number, word) in [cells(head.len), len, offload, tag].into_iter().enumerate() {
            self.window.store_u64(offset + 8 * number, word);
        }
    }

    /// What was described may be read.
    #[inline]
    pub fn publish(&self, at: Position) {
        if let Some(mark) = self.marks.get((at.0 % CELLS) as usize) {
            mark.store(at.0 + 1, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::AcqRel) {
            // One that is full has rung already.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// Whether the next record rings the doorbell. Who arms polls for a record after this.
    pub fn arm(&self, armed: bool) {
        self.armed.store(armed, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !armed {
            let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
        }
    }

    /// Readable after it rang, until [`Self::arm`] is called with false.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Where to read if nothing was read yet, or all that was is done with.
    pub fn first(&self) -> Position {
        Position(self.first.load(Ordering::Acquire))
    }

    /// What was described is not to be read after all.
    #[cold]
    pub fn discard(&self, at: Position) {
        self.window.store_u64(place(at, 0).0 + 8, VOID);
        self.publish(at);
    }

    /// Does a complete record begin there?
    pub fn has_record(&self, at: Position) -> bool {
        let mark = self.marks.get((at.0 % CELLS) as usize);
        mark.is_some_and(|mark| mark.load(Ordering::Acquire) == at.0 + 1)
    }

    /// The next record from `from` on that is complete and of use; `from` moves behind it. None: there is
    /// none yet, and `from` moves behind those that are of no use.
    pub fn read(&self, from: &mut Position) -> Option<(Position, Head)> {
        loop {
            let at = *from;
            if !self.has_record(at) {
                return None;
            }
            let (offset, _) = place(at, 0);
            let [cells, words @ ..] = [0, 8, 16, 24].map(|word| self.window.load_u64(offset + word));
            from.0 += cells;
            if let Some(head) = Head::of_words(words) {
                return Some((at, head));
            }
        }
    }

    /// Has `spans` be a record's frame, of `len` bytes.
    pub fn locate(&self, at: Position, len: usize, spans: &mut Spans) {
        let (offset, room) = place(at, HEADER);
        let first = len.min(room);
        // The memory is the ring's own, so it is mapped.
        let _ = spans.set(offset as u64, first);
        if len > first {
            let _ = spans.push(0, len - first);
        }
    }

    /// All records before this one are done with.
    pub fn free(&self, before: Position) {
        self.first.store(before.0, Ordering::Release);
    }
}

fn map(fd: OwnedFd) -> Result<MemoryMap, MapError> {
    MemoryMap::default().map(MapRequest { guest: 0, len: BYTES as u64, offset: 0, fd, writable: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(ring: &Ring, bytes: &[u8], offload: Offload, tag: Option<Tci>) -> Option<Position> {
        let at = ring.take(bytes.len())?;
        ring.write(at, 0, bytes);
        ring.describe(at, &Head { len: bytes.len(), offload, tag });
        ring.publish(at);
        Some(at)
    }

    fn get(ring: &Ring, from: &mut Position) -> Option<(Head, Vec<u8>)> {
        let (at, head) = ring.read(from)?;
        let mut spans = ring.spans();
        ring.locate(at, head.len, &mut spans);
        let mut bytes = vec![0; head.len];
        spans.read(0, &mut bytes);
        Some((head, bytes))
    }

    fn bytes(len: usize, number: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 + number) as u8).collect()
    }

    #[test]
    fn frames_of_any_length_come_out_as_they_went_in_also_around_the_end() {
        let ring = Ring::new().unwrap();
        let mut from = Position(0);
        let offloads = [
            Offload::None,
            Offload::Checksum { start: 34, field: 50 },
            Offload::Segment { header: 66, mss: 1448 },
            Offload::Tunnel { header: 120, mss: 1400, outer_sum: true },
        ];
        for number in 0..800 {
            let frame = bytes([0, 1, 60, 1514, 65_000, MAX_FRAME][number % 6], number);
            let (offload, tag) = (offloads[number % 4], (number % 3 == 0).then_some(Tci(number as u16)));
            put(&ring, &frame, offload, tag).unwrap();
            let (head, read) = get(&ring, &mut from).unwrap();
            assert_eq!(head, Head { len: frame.len(), offload, tag });
            assert!(read == frame, "frame {number}");
            assert_eq!(ring.read(&mut from), None);
            ring.free(from);
        }
        assert!(from.0 > 3 * CELLS);
    }

    #[test]
    fn a_full_ring_takes_nothing_until_what_was_read_is_free() {
        let ring = Ring::new().unwrap();
        let frame = bytes(1500, 1);
        let count = std::iter::from_fn(|| put(&ring, &frame, Offload::None, None)).count();
        assert!((2600..2800).contains(&count), "{count}");
        let mut from = Position(0);
        assert!(get(&ring, &mut from).is_some());
        assert_eq!(ring.take(1500), None, "read, and not given back");
        ring.free(from);
        assert!(put(&ring, &frame, Offload::None, None).is_some());
        assert_eq!(std::iter::from_fn(|| get(&ring, &mut from)).count(), count);
    }

    #[test]
    fn what_is_not_complete_is_not_read_and_what_is_discarded_never() {
        let ring = Ring::new().unwrap();
        let first = ring.take(100).unwrap();
        ring.describe(first, &Head { len: 100, offload: Offload::None, tag: None });
        put(&ring, &bytes(60, 2), Offload::None, None).unwrap();
        let mut from = Position(0);
        assert_eq!(ring.read(&mut from), None, "the second one waits for the first");
        ring.discard(first);
        assert_eq!(get(&ring, &mut from).unwrap().1, bytes(60, 2));
    }
}
