//! Forged state files: overwritten, truncated, of another version, with records that are whole and
//! wrong. Who forges a record here has the key, as only a previous daemon has: what is checked is what
//! records contain, not only their checksums.

pub mod held;
pub mod session;
pub mod vsock;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use vmlane_mem::memfd;
use vmlane_state::{Journal, Key};

use crate::Input;

/// Where a journal's front has its kind and the size of its halves, and where the first half begins.
const KIND: u64 = 12;
const HALF: u64 = 16;
const HEAD: u64 = 4096;
/// Bytes of the largest half that is tampered with.
const MAX_HALF: u64 = 8 << 20;

pub fn share(file: &OwnedFd) -> File {
    File::from(file.try_clone().expect("one more descriptor"))
}

/// A few things done to a journal's file. Records of keys that `spared` are left alone.
pub fn tamper(file: OwnedFd, input: &mut Input<'_>, spared: impl Fn(Key) -> bool) -> OwnedFd {
    for _ in 0..input.byte() % 4 {
        match input.byte() % 10 {
            0 => scribble(&file, u64::from(input.byte() % 48), input),
            1 | 2 => scribble(&file, HEAD + input.number::<2>() % 0x3000, input),
            3 => return cut(&file, input.number::<3>()),
            _ => forge(&file, input, &spared),
        }
    }
    file
}

/// Bytes of the input at an offset, as long as the file has room.
pub fn scribble(file: &OwnedFd, at: u64, input: &mut Input<'_>) {
    let file = share(file);
    let len = usize::from(1 + input.byte() % 16);
    let bytes = input.bytes(len);
    let end = file.metadata().expect("a file").len();
    if at + len as u64 <= end {
        file.write_all_at(bytes, at).expect("to be written");
    }
}

/// The first `len` bytes of a file, as another file.
pub fn cut(file: &OwnedFd, len: u64) -> OwnedFd {
    let file = share(file);
    let len = len.min(file.metadata().expect("a file").len());
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0).expect("its bytes");
    let shorter = memfd("cut", len).expect("a file");
    share(&shorter).write_all_at(&bytes, 0).expect("to be written");
    shorter
}

/// A record that is changed, taken away, or given another subject.
fn forge(file: &OwnedFd, input: &mut Input<'_>, spared: &impl Fn(Key) -> bool) {
    let mut front = [0; 12];
    if share(file).read_exact_at(&mut front, KIND).is_err() {
        return;
    }
    let kind = u32::from_le_bytes([front[0], front[1], front[2], front[3]]);
    let half =
        front[(HALF - KIND) as usize..].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    if half > MAX_HALF {
        return;
    }
    let Ok((journal, records, _)) = Journal::open_in_part(share(file).into(), kind, half as usize) else {
        return;
    };
    if records.is_empty() {
        return;
    }
    let (mut key, mut record) = records[usize::from(input.byte()) % records.len()].clone();
    match input.byte() % 8 {
        0 if !spared(key) => return journal.write_all(&[(key, None)]),
        1 => key.0 = u32::from(input.byte() % 32),
        2 => key.1 = number(input),
        3 => key.2 = number(input),
        _ => change(&mut record, input),
    }
    if !spared(key) {
        journal.write(key, &record);
    }
}

/// A small number, any number, one of the largest.
fn number(input: &mut Input<'_>) -> u64 {
    match input.byte() % 3 {
        0 => input.number::<2>(),
        1 => input.number::<8>(),
        _ => u64::MAX - input.number::<1>(),
    }
}

/// Bytes of a record overwritten, cut off or added.
pub fn change(record: &mut Vec<u8>, input: &mut Input<'_>) {
    match input.byte() % 4 {
        0 => record.truncate(input.byte().into()),
        1 => {
            let len = input.byte() % 32;
            record.extend_from_slice(input.bytes(len.into()));
        }
        _ => {
            let at = usize::from(input.number::<2>() as u16) % record.len().max(1);
            let len = usize::from(1 + input.byte() % 8).min(record.len() - at);
            let bytes = input.bytes(len);
            record[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
}
