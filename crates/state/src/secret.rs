//! The key of all journals' checksums: one for a daemon and its successors.
//!
//! It is in a file of its own, which the store holds like any other descriptor, and in the memory of the
//! daemon, but in no journal. Guests never see it; a process that gets hold of a journal can neither write a
//! record that the next daemon believes, nor put another file in its place.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::{Found, Store, Unusable};

/// The name of the key's file in the store.
const NAME: &str = "journal.key";

/// Nothing about the file can change.
const SEALED: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub u64, pub u64);

/// Of this process.
static SECRET: OnceLock<Secret> = OnceLock::new();

/// The process's key, made when it is first asked for unless [`share_secret`] has found one.
pub fn secret() -> io::Result<Secret> {
    match SECRET.get() {
        Some(secret) => Ok(*secret),
        None => {
            let fresh = random()?;
            Ok(*SECRET.get_or_init(|| fresh))
        }
    }
}

fn random() -> io::Result<Secret> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Secret::of(bytes))
}

impl Secret {
    fn of(bytes: [u8; 16]) -> Secret {
        let number = u128::from_le_bytes(bytes);
        Secret(number as u64, (number >> 64) as u64)
    }

    fn bytes(self) -> [u8; 16] {
        (u128::from(self.0) | u128::from(self.1) << 64).to_le_bytes()
    }
}

/// Uses the key that a previous daemon left in `found`, and otherwise has this process's key held in `store`.
/// To be called before any journal is opened. If the key that was left is of no use, neither are the
/// journals.
pub fn share_secret(store: &dyn Store, found: &mut Found) -> Result<(), Unusable> {
    let left = found.take(NAME).map(|file| read(&file));
    if let Some(Ok(left)) = left
        && SECRET.get_or_init(|| left) == &left
    {
        return Ok(());
    }
    let file = rustix::fs::memfd_create("vmlane-key", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(io::Error::from)?;
    rustix::io::write(&file, &secret()?.bytes()).map_err(io::Error::from)?;
    rustix::fs::fcntl_add_seals(&file, SEALED).map_err(io::Error::from)?;
    store.put(NAME, file.as_fd())?;
    match left {
        Some(Err(error)) => Err(error),
        _ => Ok(()),
    }
}

fn read(file: &OwnedFd) -> Result<Secret, Unusable> {
    let mut bytes = [0; 16];
    let have = rustix::fs::fstat(file).map_err(io::Error::from)?.st_size as u64;
    let sealed = rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALED));
    let need = bytes.len() as u64;
    if have != need
        || !sealed
        || rustix::io::pread(file, &mut bytes, 0).map_err(io::Error::from)? != bytes.len()
    {
        return Err(Unusable::Short { have, need });
    }
    Ok(Secret::of(bytes))
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::os::fd::BorrowedFd;

    use super::*;

    #[derive(Default)]
    struct Shelf(Mutex<Found>);

    impl Store for Shelf {
        fn put(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
            self.0.lock().0.insert(name.to_owned(), fd.try_clone_to_owned()?);
            Ok(())
        }

        fn remove(&self, _name: &str) {}

        fn remove_all(&self, _prefix: &str) {}
    }

    #[test]
    fn the_key_is_held_for_the_next_daemon_and_cannot_be_changed() {
        let shelf = Shelf::default();
        share_secret(&shelf, &mut Found::default()).unwrap();
        let mut left = std::mem::take(&mut *shelf.0.lock());
        let file = left.0[NAME].try_clone().unwrap();
        assert!(read(&file).unwrap() == secret().unwrap());
        assert!(rustix::io::pwrite(&file, &[0; 16], 0).is_err());
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        share_secret(&shelf, &mut left).unwrap();
        assert!(shelf.0.lock().is_empty(), "it is held already");
    }

    #[test]
    fn a_key_of_no_use_is_replaced_and_the_reason_reported() {
        let shelf = Shelf::default();
        let open = vmlane_mem::memfd("key", 16).unwrap();
        let mut found = Found([(NAME.to_owned(), open)].into());
        assert!(share_secret(&shelf, &mut found).is_err(), "a file that may still change is no key");
        assert!(read(&shelf.0.lock().0[NAME]).unwrap() == secret().unwrap());
    }
}
