//! The memory that a capture's records go through: a file that the daemon makes and a client maps.
//!
//! ```text
//! page 0           written by the daemon: what the file is, counts of each point
//! page 1           written by the client: the cell up to which it has read
//! cells * 8 bytes  written by the daemon: for each cell its position + 1 if a record that is complete begins there
//! cells * 64 bytes written by the daemon: records, each a header and bytes
//! ```
//!
//! Positions count cells and never repeat, so a number in the second table that is not its cell's position +
//! 1 is an old one. Bytes of guests never lie in that table: none can pretend that a record begins. Several
//! workers may write at once: each takes its cells by one compare-and-exchange on a word that the client does
//! not see, writes, and then marks the first one. The client's position is loaded once for a record and must
//! lie between what was written and what the ring holds; one that does not lie there counts as a full ring.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vmlane_mem::Window;
use vmlane_port::MAX_FRAME;
use vmlane_wire::ethernet::TAG;
use vmlane_wire::virtio_vsock;
use vmlane_wire::vmci::MAX_DATAGRAM_PAYLOAD;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header in front of what passed a `vsock:` point (LINKTYPE_VSOCK).
pub const VSOCK_HEADER: usize = 32;
/// Points of one capture, at most.
pub const MAX_POINTS: usize = 64;
/// Bytes of a record's data, at most: the longest datagram with the header that a capture puts in front of
/// it. The longest frame with a tag more is shorter, and so is the longest packet between two virtio-vsock
/// guests with both headers.
pub const MAX_RECORD: usize = VSOCK_HEADER + MAX_DATAGRAM_PAYLOAD;
const _: () = assert!(MAX_RECORD >= MAX_FRAME + TAG);
const _: () = assert!(MAX_RECORD >= VSOCK_HEADER + virtio_vsock::HEADER + virtio_vsock::MAX_PAYLOAD);

const MAGIC: u64 = u64::from_le_bytes(*b"vmlanecp");
const VERSION: u64 = 2;
const PAGE: usize = 4096;
const CELL: usize = 64;
const HEADER: usize = size_of::<Header>();

/// Words of page 0.
mod word {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 8;
    pub const CELLS: usize = 16;
    pub const POINTS: usize = 24;
    /// Not 0 once no record is added any more.
    pub const ENDED: usize = 32;
    /// Of each point: recorded, lost, present.
    pub const COUNTS: usize = 64;
    pub const OF_POINT: usize = 32;
}
const _: () = assert!(word::COUNTS + MAX_POINTS * word::OF_POINT <= PAGE);
/// The client's word.
const READ: usize = PAGE;
const MARKS: usize = 2 * PAGE;

/// Why there is no ring.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The file does not hold what a daemon puts there.
    #[error("the daemon sent a capture ring of another form ({0}); use a vmlane of the daemon's version")]
    Form(&'static str),
    /// The host has no memory for it.
    #[error("memory for the capture: {0}")]
    Host(#[from] io::Error),
}

/// Which way a frame or bytes went, as seen from what is attached to the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Sent by it.
    Out,
    /// Delivered to it.
    In,
}

/// What a record's bytes are: a frame, or what sockets of a VM exchange, behind a header as Linux' `vsockmon`
/// has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An Ethernet frame.
    Frame,
    /// Something of a stream, or a packet of a connection between two virtio-vsock guests.
    Stream,
    /// A datagram.
    Datagram,
    /// A packet of a connection that no guest has sent: the daemon refuses, or asks.
    OfDaemon,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Frame, Kind::Stream, Kind::Datagram, Kind::OfDaemon];
}

/// Flags of a record. Below them, two bits are its kind.
const IN: u8 = 4;
const PARTIAL_CHECKSUM: u8 = 8;

/// What a record begins with.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    time: U64,
    len: U32,
    kept: U32,
    lost: U32,
    point: U16,
    gso: U16,
    dropped: u8,
    flags: u8,
    reserved: [u8; 6],
}
const _: () = assert!(HEADER == 32);

/// What is known about a record beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When, in nanoseconds since 1970.
    pub time: u64,
    /// Bytes of the frame on the wire, whatever was recorded of them.
    pub len: u32,
    /// Which point.
    pub point: u16,
    /// What the bytes are.
    pub kind: Kind,
    /// Which way.
    pub direction: Direction,
    /// Why it was dropped: the number of a [`vmlane_port::DropReason`] + 1, or 0.
    pub dropped: u8,
    /// Its TCP or UDP checksum is not filled in yet.
    pub partial_checksum: bool,
    /// Payload bytes of each segment of a super-frame, or 0.
    pub gso: u16,
}

/// A record as a client gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What is known beside the bytes.
    pub mark: Mark,
    /// Records of the same point that were lost since the one before.
    pub lost: u32,
    /// The recorded bytes.
    pub data: Vec<u8>,
}

/// What became of the records of one point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// In the ring, or read from it.
    pub recorded: u64,
    /// Not recorded, because the ring was full.
    pub lost: u64,
    /// The point exists.
    pub present: bool,
}

/// How much room a ring has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    cells: u64,
}

impl Layout {
    /// Of a ring with room for about so many bytes: a power of two of cells.
    fn of_bytes(bytes: usize) -> Layout {
        let least = (HEADER + MAX_RECORD).div_ceil(CELL).next_power_of_two();
        Layout { cells: (bytes / CELL).next_power_of_two().clamp(least, 1 << 24) as u64 }
    }

    fn mark(self, position: u64) -> usize {
        MARKS + (position & (self.cells - 1)) as usize * 8
    }

    fn data(self) -> usize {
        MARKS + self.cells as usize * 8
    }

    fn file(self) -> u64 {
        (self.data() + self.cells as usize * CELL).next_multiple_of(PAGE) as u64
    }

    /// Where byte `at` of the record at a position lies, and how many bytes follow before the ring begins
    /// anew.
    fn byte(self, position: u64, at: usize) -> (usize, usize) {
        let ring = self.cells as usize * CELL;
        let offset = ((position & (self.cells - 1)) as usize * CELL + at) & (ring - 1);
        (self.data() + offset, ring - offset)
    }

    /// Cells of a record with so many bytes of data.
    fn cells_of(data: usize) -> u64 {
        (HEADER + data).div_ceil(CELL) as u64
    }
}

/// Counts of one point, as workers keep them.
#[derive(Default)]
struct PointCounts {
    recorded: AtomicU64,
    lost: AtomicU64,
    /// Lost since the last record.
    since: AtomicU32,
}

/// The daemon's half: any number of threads may write.
pub struct Ring {
    window: Window,
    file: OwnedFd,
    layout: Layout,
    /// The next cell that no one has taken.
    next: AtomicU64,
    points: Vec<PointCounts>,
}

/// Cells that were taken for a record; nothing is to be seen of it until [`Ring::publish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub u64);

impl Ring {
    /// Makes a ring with room for about `bytes` bytes (some 66 kB at least, 1 GiB at most), for so many
    /// points.
    pub fn new(bytes: usize, points: usize) -> Result<Ring, RingError> {
        let layout = Layout::of_bytes(bytes);
        let (window, file) = Window::of_file("vmlane-capture", layout.file())?;
        // Every page is there before a worker needs it.
        let zeroes = [0; PAGE];
        (0..window.len()).step_by(PAGE).for_each(|at| window.write(at, &zeroes));
        let points = points.min(MAX_POINTS);
        for (at, value) in [
            (word::VERSION, VERSION),
            (word::CELLS, layout.cells),
            (word::POINTS, points as u64),
            (word::MAGIC, MAGIC),
        ] {
            window.store_u64(at, value);
        }
        let points = (0..points).map(|_| PointCounts::default()).collect();
        Ok(Ring { window, file, layout, next: AtomicU64::new(0), points })
    }

    /// The file that the client is to map.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.layout.file()
    }

    /// Takes cells for a record of `data` bytes of a point. None: the ring is full, and the loss is counted.
    #[inline]
    pub(crate) fn take(&self, point: u16, data: usize) -> Option<Slot> {
        let cells = Layout::cells_of(data);
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            let read = self.window.load_u64(READ);
            let used = next.checked_sub(read).filter(|&used| used <= self.layout.cells);
            if used.is_none_or(|used| self.layout.cells - used < cells) {
                // Another worker may have gone on: then what was loaded does not belong together.
                match self.next.load(Ordering::Relaxed) {
                    now if now != next => next = now,
                    _ => {
                        self.lose(point);
                        return None;
                    }
                }
                continue;
            }
            let taken =
                self.next.compare_exchange_weak(next, next + cells, Ordering::Relaxed, Ordering::Relaxed);
            match taken {
                Ok(_) => return Some(Slot(next)),
                Err(now) => next = now,
            }
        }
    }

    #[cold]
    fn lose(&self, point: u16) {
        if let Some(counts) = self.points.get(usize::from(point)) {
            counts.since.fetch_add(1, Ordering::Relaxed);
            let lost = counts.lost.fetch_add(1, Ordering::Relaxed) + 1;
            self.window.store_u64(count_word(point) + 8, lost);
        }
    }

    /// Writes bytes of the record's data, from its byte `at` on.
    #[inline]
    pub(crate) fn write(&self, slot: Slot, at: usize, data: &[u8]) {
        self.write_raw(slot, HEADER + at, data);
    }

    #[inline]
    fn write_raw(&self, slot: Slot, at: usize, data: &[u8]) {
        let (to, room) = self.layout.byte(slot.0, at);
        let (first, second) = data.split_at_checked(room).unwrap_or((data, &[]));
        self.window.write(to, first);
        if !second.is_empty() {
            self.window.write(self.layout.data(), second);
        }
    }

    /// The record is complete: `mark`, and `kept` bytes of data that were written.
    #[inline]
    pub(crate) fn publish(&self, slot: Slot, mark: &Mark, kept: usize) {
        let mut lost = 0;
        if let Some(counts) = self.points.get(usize::from(mark.point)) {
            if counts.since.load(Ordering::Relaxed) > 0 {
                lost = counts.since.swap(0, Ordering::Relaxed);
            }
            let recorded = counts.recorded.fetch_add(1, Ordering::Relaxed) + 1;
            self.window.store_u64(count_word(mark.point), recorded);
        }
        let flags = mark.kind as u8
            | if mark.direction == Direction::In { IN } else { 0 }
            | if mark.partial_checksum { PARTIAL_CHECKSUM } else { 0 };
        let header = Header {
            time: mark.time.into(),
            len: mark.len.into(),
            kept: (kept as u32).into(),
            lost: lost.into(),
            point: mark.point.into(),
            gso: mark.gso.into(),
            dropped: mark.dropped,
            flags,
            reserved: [0; 6],
        };
        self.write_raw(slot, 0, header.as_bytes());
        self.window.store_u64(self.layout.mark(slot.0), slot.0 + 1);
    }

    /// A point exists, or does not.
    pub(crate) fn set_present(&self, point: u16, present: bool) {
        self.window.store_u64(count_word(point) + 16, present.into());
    }

    /// What was counted for a point.
    pub fn counts(&self, point: u16) -> Counts {
        let counts = self.points.get(usize::from(point));
        let load = |count: fn(&PointCounts) -> &AtomicU64| {
            counts.map_or(0, |counts| count(counts).load(Ordering::Relaxed))
        };
        Counts {
            recorded: load(|counts| &counts.recorded),
            lost: load(|counts| &counts.lost),
            present: self.window.load_u64(count_word(point) + 16) != 0,
        }
    }

    /// No thread writes any more: the client gets exact counts, and sees that it is over.
    pub fn end(&self) {
        for point in 0..self.points.len() as u16 {
            let Counts { recorded, lost, .. } = self.counts(point);
            self.window.store_u64(count_word(point), recorded);
            self.window.store_u64(count_word(point) + 8, lost);
        }
        self.window.store_u64(word::ENDED, 1);
    }
}

/// The first of a point's words; points are fewer than [`MAX_POINTS`].
fn count_word(point: u16) -> usize {
    word::COUNTS + usize::from(point).min(MAX_POINTS - 1) * word::OF_POINT
}

/// The client's half.
pub struct Reader {
    window: Window,
    layout: Layout,
    points: usize,
    at: u64,
}

impl Reader {
    /// Maps a ring that a daemon made.
    pub fn new(file: &OwnedFd) -> Result<Reader, RingError> {
        let head = Window::of_part(file, 0, PAGE as u64)?;
        if head.load_u64(word::MAGIC) != MAGIC {
            return Err(RingError::Form("no ring"));
        }
        if head.load_u64(word::VERSION) != VERSION {
            return Err(RingError::Form("another version"));
        }
        let (cells, points) = (head.load_u64(word::CELLS), head.load_u64(word::POINTS));
        if !cells.is_power_of_two() || cells > 1 << 24 || points > MAX_POINTS as u64 {
            return Err(RingError::Form("impossible sizes"));
        }
        let layout = Layout { cells };
        let window = Window::of_part(file, 0, layout.file())?;
        let at = window.load_u64(READ);
        Ok(Reader { window, layout, points: points as usize, at })
    }

    /// The next record that is complete.
    pub fn take(&mut self) -> Result<Option<Record>, RingError> {
        if self.window.load_u64(self.layout.mark(self.at)) != self.at + 1 {
            return Ok(None);
        }
        let mut header = Header::new_zeroed();
        self.read(0, header.as_mut_bytes());
        let Header { time, len, kept, lost, point, gso, dropped, flags, .. } = header;
        let (kept, point) = (kept.get() as usize, point.get());
        if kept > MAX_RECORD || usize::from(point) >= self.points {
            return Err(RingError::Form("an impossible record"));
        }
        let mark = Mark {
            time: time.get(),
            len: len.get(),
            point,
            kind: *Kind::ALL.get(usize::from(flags & 3)).unwrap_or(&Kind::Frame),
            direction: if flags & IN != 0 { Direction::In } else { Direction::Out },
            dropped,
            partial_checksum: flags & PARTIAL_CHECKSUM != 0,
            gso: gso.get(),
        };
        let mut data = vec![0; kept];
        self.read(HEADER, &mut data);
        self.at += Layout::cells_of(kept);
        self.window.store_u64(READ, self.at);
        Ok(Some(Record { mark, lost: lost.get(), data }))
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        let (from, room) = self.layout.byte(self.at, at);
        let len = out.len();
        if let Some((first, second)) = out.split_at_mut_checked(room.min(len)) {
            self.window.read(from, first);
            if !second.is_empty() {
                self.window.read(self.layout.data(), second);
            }
        }
    }

    /// Counts of a point.
    pub fn counts(&self, point: u16) -> Counts {
        let at = count_word(point);
        Counts {
            recorded: self.window.load_u64(at),
            lost: self.window.load_u64(at + 8),
            present: self.window.load_u64(at + 16) != 0,
        }
    }

    /// Has the daemon ended the capture? Records may still be in the ring.
    pub fn ended(&self) -> bool {
        self.window.load_u64(word::ENDED) != 0
    }
}

#[cfg(test)]
mod tests;
