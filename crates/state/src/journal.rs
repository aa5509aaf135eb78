//! Records in a shared file that is valid after every store: what a killed process had committed is
//! there, whole, and what it had not is not.
//!
//! A file has two halves. Records are appended to the half in use; a commit is one store of a word that
//! names the half and how far it is valid. A record replaces the one of the same key before it. When a
//! half is full of replaced records the live ones are copied to the other half, and the same word
//! changes over.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use vmlane_mem::Window;

use crate::LAYOUT;

/// What a record is about: a kind and two numbers.
pub type Key = (u32, u64, u64);

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
}
const SECOND: u64 = 1 << 63;
/// Bytes of an entry in front of its payload: checksum, length, kind, flags, two numbers.
const ENTRY: usize = 40;
/// The record is gone.
const REMOVED: u32 = 1;
/// A half is tidied up once it has so many bytes, and this many times what is live.
const TIDY: usize = 64 << 10;
const TIDY_FACTOR: usize = 4;

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("it has {have} bytes, {need} are needed")]
    Short { have: u64, need: u64 },
    #[error("it does not begin as a state file does")]
    Magic,
    #[error("its layout is version {have}, this daemon knows {LAYOUT}")]
    Layout { have: u32 },
    #[error("it is of kind {have}, not {want}")]
    Kind { have: u32, want: u32 },
    #[error("its entry at {at:#x} is damaged")]
    Damaged { at: usize },
    #[error("a record of kind {kind} makes no sense")]
    Record { kind: u32 },
    #[error("{0} is missing")]
    Missing(String),
    #[error("{0}")]
    Host(#[from] io::Error),
}

/// Records of one owner (or of several that commit under one lock).
pub struct Journal {
    window: Window,
    file: OwnedFd,
    half: usize,
    inner: Mutex<Inner>,
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
        window.store_u64(at::MAGIC, MAGIC);
        Ok(Journal { window, file, half, inner: Mutex::default() })
    }

    /// One that a predecessor left, and its records. Nothing in it is believed.
    pub fn open(file: OwnedFd, kind: u32, half: usize) -> Result<(Journal, Records), Unusable> {
        let have = rustix::fs::fstat(&file).map_err(io::Error::from)?.st_size as u64;
        if have < size(half) {
            return Err(Unusable::Short { have, need: size(half) });
        }
        let window = Window::over_file(&file, size(half))?;
        if window.load_u64(at::MAGIC) != MAGIC {
            return Err(Unusable::Magic);
        }
        match window.load_u32(at::LAYOUT) {
            LAYOUT => {}
            have => return Err(Unusable::Layout { have }),
        }
        match window.load_u32(at::KIND) {
            have if have == kind => {}
            have => return Err(Unusable::Kind { have, want: kind }),
        }
        if window.load_u64(at::HALF) != half as u64 {
            return Err(Unusable::Magic);
        }
        let committed = window.load_u64(at::COMMITTED);
        let (second, len) = (committed & SECOND != 0, (committed & !SECOND) as usize);
        if len > half {
            return Err(Unusable::Damaged { at: len });
        }
        let mut bytes = vec![0; len];
        window.read(HEAD + if second { half } else { 0 }, &mut bytes);
        let mut inner = Inner { second, len, ..Inner::default() };
        inner.index(&bytes)?;
        let payload = |at: usize| {
            let len = u32_at(&bytes, at + 8).unwrap_or(0) as usize;
            bytes[at + ENTRY..at + ENTRY + len].to_vec()
        };
        let mut records: Records = inner.live.iter().map(|(key, &(at, _))| (*key, payload(at))).collect();
        records.sort_by_key(|(key, _)| *key);
        Ok((Journal { window, file, half, inner: Mutex::new(inner) }, records))
    }

    /// The file, to be held for a successor.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Adds a record to those that the next [`Journal::commit`] makes valid. Stage and commit under one
    /// lock of yours.
    pub fn stage(&self, key: Key, record: &[u8]) {
        append(&mut self.inner.lock().staged, key, 0, record);
    }

    /// The same for a record's end.
    pub fn stage_removal(&self, key: Key) {
        append(&mut self.inner.lock().staged, key, REMOVED, &[]);
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
    }

    /// Makes one record valid, whatever is staged.
    pub fn write(&self, key: Key, record: &[u8]) {
        self.write_all(&[(key, Some(record))]);
    }

    /// Makes several records (or their ends) valid at once, whatever is staged.
    pub fn write_all(&self, records: &[(Key, Option<&[u8]>)]) {
        let mut bytes = Vec::with_capacity(256);
        for (key, record) in records {
            append(&mut bytes, *key, if record.is_some() { 0 } else { REMOVED }, record.unwrap_or_default());
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
        self.window.store_u64(at::COMMITTED, word(second, 0));
    }

    fn base(&self, second: bool) -> usize {
        HEAD + if second { self.half } else { 0 }
    }

    fn append(&self, inner: &mut Inner, bytes: &[u8]) {
        if inner.full {
            return;
        }
        let crowded = inner.len + bytes.len() > self.half;
        if crowded || inner.len > TIDY.min(self.half / 2) && inner.len > TIDY_FACTOR * inner.live_bytes {
            self.tidy(inner);
        }
        if inner.len + bytes.len() > self.half {
            // A successor must not believe what is no longer true.
            inner.full = true;
            self.window.store_u64(at::MAGIC, 0);
            return;
        }
        self.window.write(self.base(inner.second) + inner.len, bytes);
        inner.note(bytes, inner.len);
        inner.len += bytes.len();
        self.window.store_u64(at::COMMITTED, word(inner.second, inner.len));
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
        self.window.store_u64(at::COMMITTED, word(inner.second, len));
        // Its memory goes back; if that fails it is only not free.
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(&self.file, hole, from as u64, self.half as u64);
    }

    /// True once it ran out of room: nothing in it survives.
    pub fn is_full(&self) -> bool {
        self.inner.lock().full
    }
}

fn word(second: bool, len: usize) -> u64 {
    len as u64 | if second { SECOND } else { 0 }
}

impl Inner {
    /// Takes note of entries that lie at `base`; they are known to be sound.
    fn note(&mut self, bytes: &[u8], base: usize) {
        let mut at = 0;
        while let Some((key, removed, len)) = entry(&bytes[at..]) {
            let place = (base + at, len);
            let old = if removed { self.live.remove(&key) } else { self.live.insert(key, place) };
            self.live_bytes -= old.map_or(0, |(_, len)| len);
            self.live_bytes += if removed { 0 } else { len };
            at += len;
        }
    }

    fn index(&mut self, bytes: &[u8]) -> Result<(), Unusable> {
        let mut at = 0;
        while at < bytes.len() {
            let (_, _, len) = entry(&bytes[at..]).ok_or(Unusable::Damaged { at })?;
            let sum = u64::from_le_bytes(bytes[at..at + 8].try_into().map_err(|_| Unusable::Damaged { at })?);
            if sum != checksum(&bytes[at + 8..at + len]) {
                return Err(Unusable::Damaged { at });
            }
            at += len;
        }
        self.note(bytes, 0);
        Ok(())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Key, whether it is a removal, and bytes with the head, of the entry that `bytes` begin with.
fn entry(bytes: &[u8]) -> Option<(Key, bool, usize)> {
    let payload = u32_at(bytes, 8)? as usize;
    let len = payload.checked_next_multiple_of(8)?.checked_add(ENTRY)?;
    let key = (u32_at(bytes, 12)?, u64_at(bytes, 16)?, u64_at(bytes, 24)?);
    let removed = u32_at(bytes, 32)? & REMOVED != 0;
    (len <= bytes.len()).then_some((key, removed, len))
}

/// Entry: checksum 8, payload length 4, kind 4, numbers 8 + 8, flags 4, padding 4, payload.
fn append(out: &mut Vec<u8>, (kind, a, b): Key, flags: u32, record: &[u8]) {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&(record.len() as u32).to_le_bytes());
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&a.to_le_bytes());
    out.extend_from_slice(&b.to_le_bytes());
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(record);
    let padding = record.len().next_multiple_of(8) - record.len();
    out.extend_from_slice(&[0; 8][..padding]);
    let sum = checksum(&out[start + 8..]);
    out[start..start + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Over whole words: quick, and enough against what is not meant to deceive.
fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325u64 ^ bytes.len() as u64;
    for word in bytes.as_chunks::<8>().0 {
        sum = (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        sum ^= sum >> 29;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: usize = 128 << 10;

    fn reopen(journal: &Journal) -> Result<Records, Unusable> {
        Journal::open(journal.file().try_clone().unwrap(), 7, HALF).map(|(_, records)| records)
    }

    #[test]
    fn what_is_committed_is_found_and_nothing_else() {
        let journal = Journal::create("test", 7, HALF).unwrap();
        journal.stage((1, 2, 3), b"first");
        assert_eq!(reopen(&journal).unwrap(), []);
        journal.commit();
        journal.write((1, 2, 4), b"second");
        journal.stage((1, 2, 3), b"changed");
        journal.stage_removal((1, 2, 4));
        assert_eq!(reopen(&journal).unwrap().len(), 2);
        journal.commit();
        assert_eq!(reopen(&journal).unwrap(), [((1, 2, 3), b"changed".to_vec())]);
        journal.clear();
        assert_eq!(reopen(&journal).unwrap(), []);
    }

    #[test]
    fn a_half_full_of_old_records_is_tidied_up() {
        let journal = Journal::create("test", 7, HALF).unwrap();
        for round in 0..100_000u64 {
            journal.write((round as u32 % 10, 0, 0), &round.to_le_bytes());
        }
        let records = reopen(&journal).unwrap();
        assert_eq!(records.len(), 10);
        assert!(records.iter().all(|(key, record)| {
            let round = u64::from_le_bytes(record[..].try_into().unwrap());
            round >= 99_990 && round as u32 % 10 == key.0
        }));
        assert!(!journal.is_full());
    }

    #[test]
    fn one_that_ran_out_of_room_is_not_believed() {
        let journal = Journal::create("test", 7, HALF).unwrap();
        for key in 0..100 {
            journal.write((key, 0, 0), &[1; 4000]);
        }
        assert!(journal.is_full());
        assert!(matches!(reopen(&journal), Err(Unusable::Magic)));
    }

    #[test]
    fn cut_scribbled_and_foreign_files_are_refused() {
        let journal = || {
            let journal = Journal::create("test", 7, HALF).unwrap();
            journal.write((1, 0, 0), b"something of some length");
            journal.write((2, 0, 0), b"more");
            journal
        };
        let short = vmlane_mem::memfd("short", 4096).unwrap();
        assert!(matches!(Journal::open(short, 7, HALF), Err(Unusable::Short { .. })));
        let other = journal();
        assert!(matches!(
            Journal::open(other.file().try_clone().unwrap(), 8, HALF),
            Err(Unusable::Kind { have: 7, want: 8 })
        ));
        other.window.store_u32(at::LAYOUT, LAYOUT + 1);
        assert!(matches!(reopen(&other), Err(Unusable::Layout { .. })));
        // Any byte of what is committed, but for the padding that no checksum is needed for.
        for at in (0..HEAD + 112).filter(|at| (0..32).contains(at) || *at >= HEAD) {
            let journal = journal();
            let mut byte = [0];
            journal.window.read(at, &mut byte);
            journal.window.write(at, &[byte[0] ^ 0x55]);
            if let Ok(records) = reopen(&journal) {
                // The word of the commit may say less than there is, never something else.
                assert!((at::COMMITTED..at::COMMITTED + 8).contains(&at) || at == 28, "{at}: {records:?}");
            }
        }
    }
}
