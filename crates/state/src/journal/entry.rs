//! One entry of a journal: a head, the payload, padding to whole words, and a tail, which is the same as the
//! head but for [`TAIL`].
//!
//! Bytes of a head: checksum of the whole entry 8, payload length 4, kind 4, numbers 8 + 8, flags 4, zero 4,
//! checksum of the head 8.

use super::sums::Sums;

/// What a record is about: a kind and two numbers.
pub type Key = (u32, u64, u64);

/// Bytes of a head.
pub const ENTRY: usize = 48;
/// Where the checksum of a head is.
const HEAD_SUM: usize = ENTRY - 8;
/// The record is gone.
pub const REMOVED: u32 = 1;
/// The head is the one behind the payload.
pub const TAIL: u32 = 2;

/// What an entry reports of itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub sum: u64,
    pub payload: usize,
    pub key: Key,
    pub flags: u32,
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
    pub fn at(bytes: &[u8], at: usize, sums: Sums) -> Option<Head> {
        let bytes = bytes.get(at..at.checked_add(ENTRY)?)?;
        (u64_at(bytes, HEAD_SUM)? == sums.of_head(bytes.get(..HEAD_SUM)?)).then(|| Head::of(bytes))?
    }

    /// Bytes of the whole entry.
    pub fn entry(&self) -> Option<usize> {
        self.payload.checked_next_multiple_of(8)?.checked_add(2 * ENTRY)
    }
}

/// The tail of the entry at `at`, whose head is of no use, if that is the first sound thing behind it.
pub fn tail_of(bytes: &[u8], at: usize, sums: Sums) -> Option<Head> {
    let places = (at.checked_add(ENTRY)?..bytes.len()).step_by(8);
    let (place, tail) = places.filter_map(|at| Some((at, Head::at(bytes, at, sums)?))).next()?;
    (tail.flags & TAIL != 0 && at.checked_add(tail.entry()?)? == place + ENTRY).then_some(tail)
}

/// Key, whether it is a removal, and bytes with head and tail, of the entry that `bytes` begin with.
pub fn entry(bytes: &[u8]) -> Option<(Key, bool, usize)> {
    let head = Head::of(bytes)?;
    let len = head.entry()?;
    (len <= bytes.len()).then_some((head.key, head.flags & REMOVED != 0, len))
}

/// The record in the sound entry that `bytes` begin with.
pub fn payload(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(ENTRY..)?.get(..Head::of(bytes)?.payload)
}

/// Adds an entry to `out`.
pub fn append(out: &mut Vec<u8>, sums: Sums, (kind, a, b): Key, flags: u32, record: &[u8]) {
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
    out.resize(out.len() + padding, 0);
    out.extend_from_slice(&head);
    let Some((first, payload, last)) = out.get_mut(start..).and_then(parts_mut) else { return };
    let sum = sums.of_entry(&head[8..HEAD_SUM], payload);
    head[..8].copy_from_slice(&sum.to_le_bytes());
    for (place, flags) in [(first, flags), (last, flags | TAIL)] {
        head[32..36].copy_from_slice(&flags.to_le_bytes());
        let sum = sums.of_head(&head[..HEAD_SUM]);
        head[HEAD_SUM..].copy_from_slice(&sum.to_le_bytes());
        *place = head;
    }
}

/// Head, payload and tail of a whole entry.
fn parts_mut(entry: &mut [u8]) -> Option<(&mut [u8; ENTRY], &mut [u8], &mut [u8; ENTRY])> {
    let (head, rest) = entry.split_first_chunk_mut()?;
    let (payload, tail) = rest.split_last_chunk_mut()?;
    Some((head, payload, tail))
}

/// Of everything between the checksums: what the head states, and the payload. None: too short for an entry.
pub fn body_sum(sums: Sums, entry: &[u8]) -> Option<u64> {
    let (head, rest) = entry.split_first_chunk::<ENTRY>()?;
    let (payload, _) = rest.split_last_chunk::<ENTRY>()?;
    Some(sums.of_entry(&head[8..HEAD_SUM], payload))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
