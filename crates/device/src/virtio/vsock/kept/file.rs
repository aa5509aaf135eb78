//! The file itself, and which places of connections are in use in it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, fallocate};
use vmlane_mem::Window;
use vmlane_state::{LAYOUT, Unusable, open_file};
use vmlane_wire::virtio::MAX_RING;

use super::layout::{self as at, LEN, RINGS, lanes};
use crate::virtio::queue::{Record, record_bytes};
use crate::virtio::vsock::credit::CREDIT;

const MAGIC: u64 = u64::from_le_bytes(*b"vmlanevs");
/// Memory that a place keeps while no connection has it.
const SMALL: usize = 16 << 10;

/// Which places are in use.
#[derive(Debug, Default)]
pub struct Places {
    pub used: Vec<bool>,
    /// Free once the transaction with this number is valid: which, and how many of its bytes were ever
    /// written.
    pub leaving: Vec<(u64, usize, usize)>,
}

impl Places {
    /// So many transactions have become valid.
    pub fn release(&mut self, commits: u64, file: &OwnedFd) {
        let Places { used, leaving } = self;
        leaving.retain(|&(since, number, written)| {
            let leaves = since < commits;
            if leaves {
                if let Some(used) = used.get_mut(number) {
                    *used = false;
                }
                if written > SMALL {
                    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    // Where that fails the memory stays until the session ends.
                    let _ = fallocate(file, hole, bytes_of(number) as u64, CREDIT as u64);
                }
            }
            !leaves
        });
    }

    pub fn take(&mut self, number: usize) -> bool {
        if number >= lanes::PLACES {
            return false;
        }
        if self.used.len() <= number {
            self.used.resize(number + 1, false);
        }
        self.used.get_mut(number).is_some_and(|used| !std::mem::replace(used, true))
    }
}

/// Where the bytes of a place begin.
pub fn bytes_of(number: usize) -> usize {
    at::LANE_BYTES + number * CREDIT
}

/// One device's file, for the time of one session.
#[derive(Debug)]
pub struct Kept {
    pub(super) window: Arc<Window>,
    pub(super) id: u64,
    file: OwnedFd,
    pub(super) places: Mutex<Places>,
}

/// How far a packet has come that its guest has sent and that is not completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Payload bytes that are delivered.
    pub done: usize,
    /// What it reports of its connection was noted.
    pub passed: bool,
}

impl Part {
    pub fn word(self) -> u64 {
        self.done as u64 | u64::from(self.passed) << 63
    }
}

impl Kept {
    /// For a new session.
    pub fn create() -> io::Result<Arc<Kept>> {
        let (window, file) = create("vmlane-vsock", MAGIC, LEN)?;
        window.store_u64(at::ID, RandomState::new().build_hasher().finish());
        Ok(Kept::of(window, file))
    }

    /// What a previous daemon left. Each word is checked when it is read.
    pub fn open(file: OwnedFd) -> Result<Arc<Kept>, Unusable> {
        Ok(Kept::of(open_file(&file, MAGIC, LEN)?, file))
    }

    fn of(window: Window, file: OwnedFd) -> Arc<Kept> {
        let id = window.load_u64(at::ID);
        Arc::new(Kept { window: Arc::new(window), id, file, places: Mutex::default() })
    }

    /// To be held for the next daemon.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Where positions of a ring of `size` descriptors are noted; none for the event queue.
    pub fn record(&self, ring: usize, size: u16) -> Option<Record> {
        let at = at::RECORDS + ring * record_bytes(MAX_RING);
        (ring < RINGS && size <= MAX_RING).then(|| Record::of_ours(&self.window, at))
    }

    pub fn part(&self) -> Part {
        let word = self.window.load_u64(at::PART);
        Part { done: word as u32 as usize, passed: word >> 63 != 0 }
    }
}

/// A new file, marked.
pub fn create(name: &str, magic: u64, len: u64) -> io::Result<(Window, OwnedFd)> {
    let (window, file) = Window::of_file(name, len)?;
    window.store_u32(at::LAYOUT, LAYOUT);
    window.store_u64(at::MAGIC, magic);
    Ok((window, file))
}
