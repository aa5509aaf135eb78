//! A chain of descriptors as both ring formats give it, and what can be wrong with one.

use vmlane_mem::Fault;

/// Pieces of one chain, indirect tables included. Linux uses at most a few dozen.
pub const MAX_SEGMENTS: usize = 1024;

/// A piece of guest memory that a descriptor names; it is not known yet whether it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub addr: u64,
    pub len: u32,
    /// The device may write it; it may read it otherwise.
    pub writable: bool,
}

/// A place in a ring: where a chain starts. A free-running index in split rings; in packed ones the
/// descriptor's number, and the wrap counter in bit 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(pub u16);

/// A place or an index in a word of its own: were two neighbours loaded as one word just after one of them
/// was stored, the load would wait until that store, and all stores to the guest's memory before it, are
/// done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Index(u32);

impl Index {
    pub fn new(value: u16) -> Index {
        Index(value.into())
    }

    #[inline]
    pub fn get(self) -> u16 {
        self.0 as u16
    }

    #[inline]
    pub fn set(&mut self, value: u16) {
        self.0 = value.into();
    }
}

/// A chain that was read. One word, so that it is stored and loaded as one (`Index` says why that matters).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken(u64);

impl Taken {
    #[inline]
    pub(super) fn new(id: u16, count: u16, at: Cursor, next: Cursor) -> Taken {
        let [id, count, at, next] = [id, count, at.0, next.0].map(u64::from);
        Taken(id | count << 16 | at << 32 | next << 48)
    }

    /// What its completion names.
    #[inline]
    pub fn id(self) -> u16 {
        self.0 as u16
    }

    /// Descriptors of the ring that it takes.
    #[inline]
    pub fn count(self) -> u16 {
        (self.0 >> 16) as u16
    }

    #[inline]
    pub fn at(self) -> Cursor {
        Cursor((self.0 >> 32) as u16)
    }

    #[inline]
    pub fn next(self) -> Cursor {
        Cursor((self.0 >> 48) as u16)
    }
}

/// A ring that breaks the rules. The device stops reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("more chains are available than the ring holds")]
    Index,
    #[error("descriptor {0} does not exist")]
    Descriptor(u16),
    #[error("a chain without end")]
    Loop,
    #[error("a chain of more than {MAX_SEGMENTS} pieces")]
    Long,
    #[error("an indirect table where none may be, or of an impossible size")]
    Table,
    #[error(transparent)]
    Memory(#[from] Fault),
}

/// Why a ring cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRing {
    #[error("a ring of {0} descriptors")]
    Size(u16),
    #[error("part of a ring at {0:#x}, which is not aligned")]
    Unaligned(u64),
    #[error("position {0:#x} is outside the ring")]
    Position(u32),
    #[error(transparent)]
    Memory(#[from] Fault),
}

/// How many chains ahead buffers are fetched, and descriptors. The driver has just written both on another
/// CPU.
pub(super) const NEAR: u16 = 8;
pub(super) const FAR: u16 = 16;
