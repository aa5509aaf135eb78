//! Records in a shared file that is valid after every store: what a killed process had committed is
//! there, whole, and what it had not is not.
//!
//! A file has two halves. Records are appended to the half in use; a commit is one store of a word that
//! names the half and how far it is valid. A record replaces the one of the same key before it. When a
//! half is full of replaced records the live ones are copied to the other half, and the same word
//! changes over.
//!
//! Something may have scribbled on the file: every record says twice what it is about, in front of its
//! bytes and behind them, so that damage is known by whom it hurts. Checksums begin with a number that no
//! guest knows: bytes of a guest that are kept in a record are never taken for records.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
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
    /// What checksums begin with.
    pub const SALT: usize = 32;
}
const SECOND: u64 = 1 << 63;
/// Bytes of a head: checksum of the whole entry 8, payload length 4, kind 4, numbers 8 + 8, flags 4,
/// checksum of the head 4. An entry is a head, the payload, padding to whole words, and a tail, which is
/// the same as the head but for [`TAIL`].
const ENTRY: usize = 40;
/// The record is gone.
const REMOVED: u32 = 1;
/// The head is the one behind the payload.
const TAIL: u32 = 2;
/// A half is compacted once it has this many bytes, and this many times what is live.
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
    #[error("a record of kind {kind} is not valid")]
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
    salt: u64,
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
        let salt = RandomState::new().build_hasher().finish();
        window.store_u64(at::SALT, salt);
        window.store_u64(at::COMMITTED, word(salt, false, 0));
        window.store_u64(at::MAGIC, MAGIC);
        Ok(Journal { window, file, half, salt, inner: Mutex::default() })
    }

    /// One that a previous daemon left, and its records. Nothing in it is believed.
    pub fn open(file: OwnedFd, kind: u32, half: usize) -> Result<(Journal, Records), Unusable> {
        match Journal::open_in_part(file, kind, half)? {
            (journal, records, damaged) if damaged.is_empty() => Ok((journal, records)),
            (.., damaged) => Err(Unusable::Record { kind: damaged[0].0 }),
        }
    }

    /// The same for one with many owners: also says which records are damaged, and thereby lost. An error
    /// if it is not known which.
    pub fn open_in_part(
        file: OwnedFd,
        kind: u32,
        half: usize,
    ) -> Result<(Journal, Records, Vec<Key>), Unusable> {
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
        let salt = window.load_u64(at::SALT);
        let (second, len) = (committed & SECOND != 0, committed as u32 as usize);
        if len > half || committed != word(salt, second, len) {
            return Err(Unusable::Damaged { at: len });
        }
        let mut bytes = vec![0; len];
        window.read(HEAD + if second { half } else { 0 }, &mut bytes);
        let mut inner = Inner { second, len, ..Inner::default() };
        let damaged = inner.index(&bytes, salt)?;
        let payload = |at: usize| {
            let len = u32_at(&bytes, at + 8).unwrap_or(0) as usize;
            bytes[at + ENTRY..at + ENTRY + len].to_vec()
        };
        let mut records: Records = inner.live.iter().map(|(key, &(at, _))| (*key, payload(at))).collect();
        records.sort_by_key(|(key, _)| *key);
        Ok((Journal { window, file, half, salt, inner: Mutex::new(inner) }, records, damaged))
    }

    /// Scribbles on live records of a file, while it may be written to: for tests of what damage does. Returns how
    /// many there were; `None` stands for the commit word.
    #[doc(hidden)]
    pub fn spoil(file: OwnedFd, which: impl Fn(Option<Key>) -> bool) -> Result<usize, Unusable> {
        let head = Window::over_file(&file, HEAD as u64)?;
        let (kind, half) = (head.load_u32(at::KIND), head.load_u64(at::HALF) as usize);
        let (journal, ..) = Journal::open_in_part(file, kind, half)?;
        let inner = journal.inner.lock();
        let base = journal.base(inner.second);
        let places = inner.live.iter().filter(|(key, _)| which(Some(**key)));
        let mut places: Vec<usize> = places.map(|(_, (at, _))| base + at).collect();
        places.extend(which(None).then_some(at::COMMITTED));
        for &at in &places {
            journal.window.store_u64(at, !journal.window.load_u64(at));
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
        append(&mut self.inner.lock().staged, self.salt, key, 0, record);
    }

    /// The same for a record's end.
    pub fn stage_removal(&self, key: Key) {
        append(&mut self.inner.lock().staged, self.salt, key, REMOVED, &[]);
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
            let flags = if record.is_some() { 0 } else { REMOVED };
            append(&mut bytes, self.salt, *key, flags, record.unwrap_or_default());
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
        self.window.store_u64(at::COMMITTED, word(self.salt, second, 0));
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
            // The next daemon must not believe what is no longer true.
            inner.full = true;
            self.window.store_u64(at::MAGIC, 0);
            return;
        }
        self.window.write(self.base(inner.second) + inner.len, bytes);
        inner.note(bytes, inner.len);
        inner.len += bytes.len();
        self.window.store_u64(at::COMMITTED, word(self.salt, inner.second, inner.len));
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
        self.window.store_u64(at::COMMITTED, word(self.salt, inner.second, len));
        // Its memory goes back; if that fails it is only not free.
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(&self.file, hole, from as u64, self.half as u64);
    }

    /// True once it ran out of room: nothing in it survives.
    pub fn is_full(&self) -> bool {
        self.inner.lock().full
    }
}

/// The word of a commit: which half (bit 63), a checksum (bits 62 to 32), how many bytes of it are valid.
fn word(salt: u64, second: bool, len: usize) -> u64 {
    let said = len as u64 | if second { SECOND } else { 0 };
    said | (mixed(salt ^ said) >> 33) << 32
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

    /// Takes note of a previous daemon's entries. Returns the keys of those that are damaged and were not
    /// replaced since; an error if there are some whose keys cannot be known.
    fn index(&mut self, bytes: &[u8], salt: u64) -> Result<Vec<Key>, Unusable> {
        let mut damaged = HashSet::new();
        let mut at = 0;
        while at < bytes.len() {
            let head = Head::at(bytes, at, salt).filter(|head| head.flags & TAIL == 0);
            let found = head.or_else(|| tail_of(bytes, at, salt)).ok_or(Unusable::Damaged { at })?;
            let end = found.entry().and_then(|len| at.checked_add(len)).ok_or(Unusable::Damaged { at })?;
            let entry = bytes.get(at..end).ok_or(Unusable::Damaged { at })?;
            let tail = Head::at(bytes, end - ENTRY, salt);
            let agrees = |tail: Head| Head { flags: tail.flags & !TAIL, ..tail } == found;
            if head.is_some() && tail.is_some_and(agrees) && found.sum == body_sum(salt, entry) {
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

/// The tail of the entry at `at`, whose head is of no use, if that is the first sound thing behind it.
fn tail_of(bytes: &[u8], at: usize, salt: u64) -> Option<Head> {
    let places = (at.checked_add(ENTRY)?..bytes.len()).step_by(8);
    let (place, tail) = places.filter_map(|at| Some((at, Head::at(bytes, at, salt)?))).next()?;
    (tail.flags & TAIL != 0 && at.checked_add(tail.entry()?)? == place + ENTRY).then_some(tail)
}

/// What an entry says of itself.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Head {
    sum: u64,
    payload: usize,
    key: Key,
    flags: u32,
}

impl Head {
    fn of(bytes: &[u8]) -> Option<Head> {
        Some(Head {
            sum: u64_at(bytes, 0)?,
            payload: u32_at(bytes, 8)? as usize,
            key: (u32_at(bytes, 12)?, u64_at(bytes, 16)?, u64_at(bytes, 24)?),
            flags: u32_at(bytes, 32)?,
        })
    }

    /// A sound head or tail at `at`.
    fn at(bytes: &[u8], at: usize, salt: u64) -> Option<Head> {
        let bytes = bytes.get(at..at.checked_add(ENTRY)?)?;
        (u32_at(bytes, ENTRY - 4)? == head_sum(salt, bytes)).then(|| Head::of(bytes))?
    }

    /// Bytes of the whole entry.
    fn entry(&self) -> Option<usize> {
        self.payload.checked_next_multiple_of(8)?.checked_add(2 * ENTRY)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Key, whether it is a removal, and bytes with head and tail, of the entry that `bytes` begin with.
fn entry(bytes: &[u8]) -> Option<(Key, bool, usize)> {
    let head = Head::of(bytes)?;
    let len = head.entry()?;
    (len <= bytes.len()).then_some((head.key, head.flags & REMOVED != 0, len))
}

fn append(out: &mut Vec<u8>, salt: u64, (kind, a, b): Key, flags: u32, record: &[u8]) {
    let start = out.len();
    let mut head = [0; ENTRY];
    head[8..12].copy_from_slice(&(record.len() as u32).to_le_bytes());
    head[12..16].copy_from_slice(&kind.to_le_bytes());
    head[16..24].copy_from_slice(&a.to_le_bytes());
    head[24..32].copy_from_slice(&b.to_le_bytes());
    head[32..36].copy_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(record);
    let padding = record.len().next_multiple_of(8) - record.len();
    out.extend_from_slice(&[0; 8][..padding]);
    let body = out.len();
    out.extend_from_slice(&head);
    let sum = body_sum(salt, &out[start..]);
    head[..8].copy_from_slice(&sum.to_le_bytes());
    for (at, flags) in [(start, flags), (body, flags | TAIL)] {
        head[32..36].copy_from_slice(&flags.to_le_bytes());
        let sum = head_sum(salt, &head);
        head[36..].copy_from_slice(&sum.to_le_bytes());
        out[at..at + ENTRY].copy_from_slice(&head);
    }
}

/// Of everything between the checksums: what the head says, and the payload.
fn body_sum(salt: u64, entry: &[u8]) -> u64 {
    let (head, rest) = entry.split_at(ENTRY);
    let flags = u64::from(u32_at(head, 32).unwrap_or(0));
    checksum(checksum(salt ^ flags, &head[8..32]), &rest[..rest.len() - ENTRY])
}

fn head_sum(salt: u64, head: &[u8]) -> u32 {
    let flags = u64::from(u32_at(head, 32).unwrap_or(0));
    (checksum(salt ^ flags, &head[..32]) >> 32) as u32
}

fn mixed(word: u64) -> u64 {
    let word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^ word >> 29
}

/// Over whole words: quick, and enough against what does not know `salt`.
fn checksum(salt: u64, bytes: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325u64 ^ salt ^ bytes.len() as u64;
    bytes.as_chunks::<8>().0.iter().fold(mixed(start), |sum, word| mixed(sum ^ u64::from_le_bytes(*word)))
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
    }

    fn three() -> (Journal, [usize; 4]) {
        let journal = Journal::create("test", 7, HALF).unwrap();
        let mut ends = [0; 4];
        for (number, record) in [&b"something of some length"[..], b"more", &[7; 100]].into_iter().enumerate()
        {
            journal.write((1 + number as u32, 0, 0), record);
            ends[number + 1] = journal.inner.lock().len;
        }
        (journal, ends)
    }

    fn scribble(journal: &Journal, at: usize, len: usize) {
        let mut bytes = vec![0; len];
        journal.window.read(at, &mut bytes);
        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        journal.window.write(at, &bytes);
    }

    fn in_part(journal: &Journal) -> Result<(Records, Vec<Key>), Unusable> {
        let opened = Journal::open_in_part(journal.file().try_clone().unwrap(), 7, HALF);
        opened.map(|(_, records, damaged)| (records, damaged))
    }

    #[test]
    fn every_byte_of_the_front_counts() {
        for at in (0..28).chain(at::SALT..at::SALT + 8) {
            let (journal, _) = three();
            scribble(&journal, at, 1);
            assert!(in_part(&journal).is_err(), "{at}");
        }
    }

    #[test]
    fn damage_is_known_by_whom_it_hurts() {
        let (_, ends) = three();
        for at in 0..ends[3] {
            for len in [1, 8, ENTRY, 64] {
                let (journal, _) = three();
                let len = len.min(ends[3] - at);
                scribble(&journal, HEAD + at, len);
                assert!(reopen(&journal).is_err());
                let hurt: Vec<u32> = (0..3)
                    .filter(|n| at < ends[n + 1] && at + len > ends[*n])
                    .map(|n| 1 + n as u32)
                    .collect();
                match in_part(&journal) {
                    Ok((records, damaged)) => {
                        assert_eq!(damaged.iter().map(|key| key.0).collect::<Vec<_>>(), hurt, "{at}, {len}");
                        assert_eq!(records.len(), 3 - hurt.len());
                    }
                    // Head and tail of one of them are gone.
                    Err(error) => assert!(len >= ENTRY, "{at}, {len}: {error}"),
                }
            }
        }
    }

    #[test]
    fn damage_to_a_replaced_record_has_no_effect() {
        let (journal, _) = three();
        scribble(&journal, HEAD + ENTRY, 1);
        journal.write((1, 0, 0), b"anew");
        assert_eq!(in_part(&journal).unwrap().1, []);
        assert_eq!(reopen(&journal).unwrap().len(), 3);
        journal.write_all(&[((1, 0, 0), None)]);
        assert_eq!(reopen(&journal).unwrap().len(), 2);
    }

    #[test]
    fn records_inside_a_guests_bytes_are_not_believed() {
        let journal = Journal::create("test", 7, HALF).unwrap();
        let mut forged = Vec::new();
        append(&mut forged, 0, (9, 9, 9), 0, b"not mine");
        journal.write((1, 0, 0), &forged);
        scribble(&journal, HEAD, ENTRY);
        assert_eq!(in_part(&journal).unwrap(), (vec![], vec![(1, 0, 0)]));
    }
}
