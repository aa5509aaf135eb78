//! Records in a shared file that is valid after every store: what a killed process had committed is
//! there, whole, and what it had not is not.
//!
//! A file has two halves. Records are appended to the half in use; a commit is one store of a word that
//! names the half and how far it is valid. A record replaces the one of the same key before it. When a
//! half is full of replaced records the live ones are copied to the other half, and the same word
//! changes over.
//!
//! Something may have scribbled on the file: every record states twice what it is about, in front of its
//! bytes and behind them, so that damage is known by whom it hurts. Checksums are made with a key that is not
//! in the file (`secret.rs`): bytes of a guest that are kept in a record are never taken for records, and who
//! has the file alone cannot add one.

mod entry;
mod sums;
#[cfg(test)]
pub mod tests;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

pub use self::entry::Key;
use self::entry::{ENTRY, Head, REMOVED, TAIL, append, body_sum, entry, payload, tail_of};
use self::sums::Sums;
use crate::LAYOUT;
use crate::secret::secret;
use crate::shared_file::{Window, give_back, open_any, open_file};
use crate::unusable::Unusable;

/// The records found, the last of each key.
pub type Records = Vec<(Key, Vec<u8>)>;

const MAGIC: u64 = u64::from_le_bytes(*b"vmlanest");
/// Bytes in front of the halves.
const HEAD: usize = 4096;
mod at {
    pub const MAGIC: usize = 0;
    pub const LAYOUT: usize = 8;
    pub const KIND: usize = 12;
    pub const HALF: usize = 16;
    /// Which half (bit 63), and how many bytes of it are valid.
    pub const COMMITTED: usize = 24;
    /// A number of the file's own that checksums begin with.
    pub const SALT: usize = 32;
}
const SECOND: u64 = 1 << 63;
/// A half is compacted once it has this many bytes, and this many times what is live.
const TIDY: usize = 64 << 10;
const TIDY_FACTOR: usize = 4;

/// Records of one owner (or of several that commit under one lock).
pub struct Journal {
    window: Window,
    file: OwnedFd,
    half: usize,
    sums: Sums,
    inner: Mutex<Inner>,
    commits: AtomicU64,
}

#[derive(Default)]
struct Inner {
    second: bool,
    len: usize,
    /// Where the record of each key lies in the half in use, and its bytes with the head.
    live: HashMap<Key, (usize, usize)>,
    live_bytes: usize,
    staged: Vec<u8>,
    /// It ran out of room: what it holds is no use any more.
    full: bool,
    /// Records that did not fit.
    lost: u64,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("half", &self.half).finish_non_exhaustive()
    }
}

fn size(half: usize) -> u64 {
    (HEAD + 2 * half) as u64
}

impl Journal {
    /// An empty one in a file of its own, with `half` bytes (whole pages) for live records and those they
    /// replaced. The file is sparse.
    pub fn create(name: &str, kind: u32, half: usize) -> io::Result<Journal> {
        let (window, file) = Window::of_file(name, size(half))?;
        window.store_u32(at::LAYOUT, LAYOUT);
        window.store_u32(at::KIND, kind);
        window.store_u64(at::HALF, half as u64);
        let salt = RandomState::new().build_hasher().finish();
        window.store_u64(at::SALT, salt);
        let sums = Sums::new(secret()?, salt);
        window.store_u64(at::COMMITTED, word(sums, false, 0));
        window.store_u64(at::MAGIC, MAGIC);
        Ok(Journal { window, file, half, sums, inner: Mutex::default(), commits: AtomicU64::new(0) })
    }

    /// One that a previous daemon left, and its records. Nothing in it is believed. Its halves may be smaller
    /// than `half`: an older daemon's were.
    pub fn open(file: OwnedFd, kind: u32, half: usize) -> Result<(Journal, Records), Unusable> {
        let (journal, records, damaged) = Journal::open_in_part(file, kind, half)?;
        match damaged.first() {
            None => Ok((journal, records)),
            Some(&(kind, ..)) => Err(Unusable::Record { kind }),
        }
    }

    /// The layout in which a file is written, one that this program knows or another.
    pub fn layout_of(file: &OwnedFd) -> Result<u32, Unusable> {
        Ok(open_any(file, MAGIC, HEAD as u64)?.1)
    }

    /// The same for one with many owners: also returns which records are damaged, and thereby lost. An error
    /// if it is not known which.
    pub fn open_in_part(
        file: OwnedFd,
        kind: u32,
        half: usize,
    ) -> Result<(Journal, Records, Vec<Key>), Unusable> {
        let head = open_file(&file, MAGIC, HEAD as u64)?;
        match head.load_u32(at::KIND) {
            have if have == kind => {}
            have => return Err(Unusable::Kind { have, want: kind }),
        }
        let half = match head.load_u64(at::HALF) {
            stored if (1..=half as u64).contains(&stored) => stored as usize,
            _ => return Err(Unusable::Magic),
        };
        let window = open_file(&file, MAGIC, size(half))?;
        let committed = window.load_u64(at::COMMITTED);
        let sums = Sums::new(secret()?, window.load_u64(at::SALT));
        let (second, len) = (committed & SECOND != 0, committed as u32 as usize);
        if len > half || committed != word(sums, second, len) {
            return Err(Unusable::Damaged { at: len });
        }
        let mut bytes = vec![0; len];
        window.read(HEAD + if second { half } else { 0 }, &mut bytes);
        let mut inner = Inner { second, len, ..Inner::default() };
        let damaged = inner.index(&bytes, sums)?;
        let record = |(key, &(at, _)): (&Key, &(usize, usize))| {
            let payload = bytes.get(at..).and_then(payload).ok_or(Unusable::Damaged { at })?;
            Ok((*key, payload.to_vec()))
        };
        let mut records = inner.live.iter().map(record).collect::<Result<Records, Unusable>>()?;
        records.sort_by_key(|(key, _)| *key);
        let (inner, commits) = (Mutex::new(inner), AtomicU64::new(0));
        Ok((Journal { window, file, half, sums, inner, commits }, records, damaged))
    }

    /// Scribbles on live records of a file, while it may be written to: for tests of what damage does.
    /// Returns how many there were; `None` stands for the commit word.
    #[doc(hidden)]
    pub fn spoil(file: OwnedFd, which: impl Fn(Option<Key>) -> bool) -> Result<usize, Unusable> {
        let head = Window::over_file(&file, HEAD as u64)?;
        let half = head.load_u64(at::HALF) as usize;
        let committed = head.load_u64(at::COMMITTED);
        let (second, len) = (committed & SECOND != 0, committed as u32 as usize);
        let window = Window::over_file(&file, size(half))?;
        let base = HEAD + if second { half } else { 0 };
        let mut bytes = vec![0; len.min(half)];
        window.read(base, &mut bytes);
        // Checksums are not examined: a test has no key.
        let mut inner = Inner::default();
        inner.note(&bytes, 0);
        let places = inner.live.iter().filter(|(key, _)| which(Some(**key)));
        let mut places: Vec<usize> = places.map(|(_, (at, _))| base + at).collect();
        places.extend(which(None).then_some(at::COMMITTED));
        for &at in &places {
            window.store_u64(at, !window.load_u64(at));
        }
        Ok(places.len())
    }

    /// The file, to be held for the next daemon.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Adds a record to those that the next [`Journal::commit`] makes valid. Stage and commit under one
    /// lock of yours.
    pub fn stage(&self, key: Key, record: &[u8]) {
        append(&mut self.inner.lock().staged, self.sums, key, 0, record);
    }

    /// The same for a record's end.
    pub fn stage_removal(&self, key: Key) {
        append(&mut self.inner.lock().staged, self.sums, key, REMOVED, &[]);
    }

    /// Makes all that was staged valid, at once.
    pub fn commit(&self) {
        let mut inner = self.inner.lock();
        if inner.staged.is_empty() {
            return;
        }
        let staged = std::mem::take(&mut inner.staged);
        self.append(&mut inner, &staged);
        inner.staged = staged;
        inner.staged.clear();
        inner.staged.shrink_to(TIDY);
        self.commits.fetch_add(1, Ordering::Release);
    }

    /// How many [`Journal::commit`]s made something valid so far: what was staged when there were `n` is
    /// valid once there are more.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Acquire)
    }

    /// Makes one record valid, whatever is staged.
    pub fn write(&self, key: Key, record: &[u8]) {
        self.write_all(&[(key, Some(record))]);
    }

    /// Makes several records (or their ends) valid at once, whatever is staged.
    pub fn write_all(&self, records: &[(Key, Option<&[u8]>)]) {
        let mut bytes = Vec::with_capacity(256);
        for (key, record) in records {
            let flags = if record.is_some() { 0 } else { REMOVED };
            append(&mut bytes, self.sums, *key, flags, record.unwrap_or_default());
        }
        let mut inner = self.inner.lock();
        self.append(&mut inner, &bytes);
    }

    /// Bytes of live records.
    pub fn live_bytes(&self) -> usize {
        self.inner.lock().live_bytes
    }

    /// Forgets every record.
    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        let second = !inner.second;
        *inner = Inner { second, ..Inner::default() };
        self.window.store_u64(at::COMMITTED, word(self.sums, second, 0));
    }

    fn base(&self, second: bool) -> usize {
        HEAD + if second { self.half } else { 0 }
    }

    fn append(&self, inner: &mut Inner, bytes: &[u8]) {
        if inner.full {
            inner.lost += 1;
            return;
        }
        let crowded = inner.len + bytes.len() > self.half;
        if crowded || inner.len > TIDY.min(self.half / 2) && inner.len > TIDY_FACTOR * inner.live_bytes {
            self.tidy(inner);
        }
        if inner.len + bytes.len() > self.half {
            // The next daemon must not believe what is no longer true.
            inner.full = true;
            inner.lost = 1;
            self.window.store_u64(at::MAGIC, 0);
            return;
        }
        self.window.write(self.base(inner.second) + inner.len, bytes);
        inner.note(bytes, inner.len);
        inner.len += bytes.len();
        self.window.store_u64(at::COMMITTED, word(self.sums, inner.second, inner.len));
    }

    /// Copies what is live to the other half and changes over.
    fn tidy(&self, inner: &mut Inner) {
        let (from, to) = (self.base(inner.second), self.base(!inner.second));
        let mut len = 0;
        let mut bytes = Vec::new();
        for place in inner.live.values_mut() {
            bytes.resize(place.1, 0);
            self.window.read(from + place.0, &mut bytes);
            self.window.write(to + len, &bytes);
            place.0 = len;
            len += place.1;
        }
        inner.second = !inner.second;
        inner.len = len;
        self.window.store_u64(at::COMMITTED, word(self.sums, inner.second, len));
        // Its memory goes back; if that fails it is only not free.
        let _ = give_back(&self.window, &self.file, from, self.half);
    }

    /// How many records did not fit since it ran out of room.
    pub fn lost_records(&self) -> u64 {
        self.inner.lock().lost
    }

    /// True once it ran out of room: nothing in it survives.
    pub fn is_full(&self) -> bool {
        self.inner.lock().full
    }
}

/// The word of a commit: which half (bit 63), a checksum (bits 62 to 32), how many bytes of it are valid.
fn word(sums: Sums, second: bool, len: usize) -> u64 {
    let content = len as u64 | if second { SECOND } else { 0 };
    content | (sums.of_commit(content) >> 33) << 32
}

impl Inner {
    /// Takes note of entries that lie at `base`; they are known to be sound.
    fn note(&mut self, bytes: &[u8], base: usize) {
        let mut at = 0;
        while let Some((key, removed, len)) = bytes.get(at..).and_then(entry) {
            let place = (base + at, len);
            let old = if removed { self.live.remove(&key) } else { self.live.insert(key, place) };
            self.live_bytes -= old.map_or(0, |(_, len)| len);
            self.live_bytes += if removed { 0 } else { len };
            at += len;
        }
    }

    /// Takes note of a previous daemon's entries. Returns the keys of those that are damaged and were not
    /// replaced since; an error if there are some whose keys cannot be known.
    fn index(&mut self, bytes: &[u8], sums: Sums) -> Result<Vec<Key>, Unusable> {
        let mut damaged = HashSet::new();
        let mut at = 0;
        while at < bytes.len() {
            let head = Head::at(bytes, at, sums).filter(|head| head.flags & TAIL == 0);
            let found = head.or_else(|| tail_of(bytes, at, sums)).ok_or(Unusable::Damaged { at })?;
            let end = found.entry().and_then(|len| at.checked_add(len)).ok_or(Unusable::Damaged { at })?;
            let entry = bytes.get(at..end).ok_or(Unusable::Damaged { at })?;
            let tail = Head::at(bytes, end - ENTRY, sums);
            let agrees = |tail: Head| Head { flags: tail.flags & !TAIL, ..tail } == found;
            if head.is_some() && tail.is_some_and(agrees) && body_sum(sums, entry) == Some(found.sum) {
                self.note(entry, at);
                damaged.remove(&found.key);
            } else {
                self.forget(found.key);
                damaged.insert(found.key);
            }
            at += entry.len();
        }
        let mut damaged: Vec<Key> = damaged.into_iter().collect();
        damaged.sort_unstable();
        Ok(damaged)
    }

    fn forget(&mut self, key: Key) {
        self.live_bytes -= self.live.remove(&key).map_or(0, |(_, len)| len);
    }
}
