//! What a worker has done and no guest has seen yet.
//!
//! A packet leaves its sender's ring and comes into its receiver's. If the daemon died after one ring was
//! shown and before the other, the next daemon would deliver the packet twice or never. So all that changes
//! is first written to a log, as words and where they belong; one store makes the log valid; then the words
//! are stored, and the rings shown. The next daemon stores the words of a valid log again, and
//! [`recover`](crate::virtio::queue::recover) shows what was not shown.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use atomic_refcell::AtomicRefCell;
use vmlane_mem::Window;
use vmlane_state::{Unusable, open_file};

use super::file::{Kept, Part, create};
use super::layout as at;
use crate::virtio::queue::Queue;

const MAGIC: u64 = u64::from_le_bytes(*b"vmlanetx");

/// Offsets in a log, behind what every file begins with.
mod log {
    /// How many entries are valid; 0: nothing is under way.
    pub const COUNT: usize = 16;
    /// In one line of the cache with that.
    pub const ENTRIES: usize = 24;
}
/// Bytes of an entry: whose word it is, where, what.
const ENTRY: usize = 24;
/// Entries of a log, which is sparse. More words than these become valid in several steps: all connections of
/// some VMs have ended at once then.
const ENTRIES: usize = 1 << 17;
const LEN: u64 = ((log::ENTRIES + ENTRIES * ENTRY) as u64).next_multiple_of(4096);

/// A word that changes.
#[derive(Debug)]
struct Change {
    /// Where it is stored; none if its ring stores it when it is shown.
    window: Option<Arc<Window>>,
    id: u64,
    at: usize,
    value: u64,
}

/// Words that change.
#[derive(Debug, Default)]
pub struct Words(Vec<Change>);

/// Something whose state becomes valid with a transaction, such as a ring.
pub trait Shown: Send + Sync {
    /// Adds what changes.
    fn note(&mut self, words: &mut Words);

    /// What was added is valid: the guest may see it.
    fn show(&mut self);
}

/// Shared by a worker's rings; all are on one thread. Any thread may ask for the number of commits.
pub struct Transaction {
    inner: AtomicRefCell<Inner>,
    /// How often something has become valid.
    commits: AtomicU64,
}

struct Inner {
    log: Window,
    words: Words,
    /// What has changed. They are not dropped before they have been shown.
    rings: Vec<Arc<AtomicRefCell<dyn Shown>>>,
}

impl Transaction {
    /// With its log, to be held for the next daemon before the first commit.
    pub fn create() -> io::Result<(Arc<Transaction>, OwnedFd)> {
        let (log, file) = create("vmlane-transaction", MAGIC, LEN)?;
        let (words, rings) = (Words::default(), Vec::new());
        let inner = AtomicRefCell::new(Inner { log, words, rings });
        Ok((Arc::new(Transaction { inner, commits: AtomicU64::new(0) }), file))
    }

    /// This word of a device changes.
    pub fn set(&self, kept: &Kept, at: usize, value: u64) {
        self.inner.borrow_mut().words.set(kept, at, value);
    }

    /// This ring has changed. Once until it is shown.
    pub fn add(&self, ring: Arc<AtomicRefCell<dyn Shown>>) {
        self.inner.borrow_mut().rings.push(ring);
    }

    /// How often something has become valid: what is freed now may be written to once this has changed.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Makes all that was done valid at once, and shows it. No ring is borrowed.
    pub fn commit(&self) {
        let inner = &mut *self.inner.borrow_mut();
        if inner.rings.is_empty() && inner.words.0.is_empty() {
            return;
        }
        // Should one of them panic, none is tried again.
        let mut rings = std::mem::take(&mut inner.rings);
        rings.iter().for_each(|ring| ring.borrow_mut().note(&mut inner.words));
        // One word alone, or one ring, is valid with the store by which it changes.
        let logged = inner.words.0.len() > 1;
        // The words of the rings are in the last part.
        for part in inner.words.0.rchunks(ENTRIES).rev() {
            if logged {
                inner.log.store_u64(log::COUNT, 0);
                for (number, change) in part.iter().enumerate() {
                    change.write(&inner.log, log::ENTRIES + number * ENTRY);
                }
                inner.log.store_u64(log::COUNT, part.len() as u64);
            }
            part.iter().for_each(Change::store);
        }
        inner.words.0.clear();
        rings.drain(..).for_each(|ring| ring.borrow_mut().show());
        inner.rings = rings;
        if logged {
            inner.log.store_u64(log::COUNT, 0);
        }
        self.commits.store(self.commits() + 1, Ordering::Relaxed);
    }
}

impl Words {
    pub fn set(&mut self, kept: &Kept, at: usize, value: u64) {
        self.0.push(Change { window: Some(kept.window.clone()), id: kept.id, at, value });
    }

    /// What the record of `ring` holds once its completions are shown: the ring itself stores it then.
    pub fn note_ring(&mut self, kept: &Kept, ring: &Queue) {
        let word = ring.unshown();
        self.0.extend(word.map(|(at, value)| Change { window: None, id: kept.id, at, value }));
    }

    pub fn note_part(&mut self, kept: &Kept, part: Part) {
        if kept.part() != part {
            self.set(kept, at::PART, part.word());
        }
    }
}

impl Change {
    fn store(&self) {
        self.window.iter().for_each(|window| window.store_u64(self.at, self.value));
    }

    fn write(&self, log: &Window, at: usize) {
        log.store_u64(at, self.id);
        log.store_u64(at + 8, self.at as u64);
        log.store_u64(at + 16, self.value);
    }
}

/// Finishes what a previous daemon's worker had begun to make valid, in the files that are there.
pub fn redo(file: &OwnedFd, kept: &[Arc<Kept>]) -> Result<(), Unusable> {
    let log = open_file(file, MAGIC, LEN)?;
    let count = usize::try_from(log.load_u64(log::COUNT)).ok().filter(|&count| count <= ENTRIES);
    for number in 0..count.ok_or(Unusable::Damaged { at: log::COUNT })? {
        let entry = log::ENTRIES + number * ENTRY;
        let [id, place, value] = [0, 8, 16].map(|word| log.load_u64(entry + word));
        // Of a session that has ended since, it is gone.
        let Some(kept) = kept.iter().find(|kept| kept.id == id) else { continue };
        let place = usize::try_from(place).ok().filter(|place| (at::PART..at::END).contains(place));
        let place = place.filter(|place| place.is_multiple_of(8)).ok_or(Unusable::Damaged { at: entry })?;
        kept.window.store_u64(place, value);
    }
    log.store_u64(log::COUNT, 0);
    Ok(())
}
