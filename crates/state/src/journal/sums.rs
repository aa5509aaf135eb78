//! Checksums of a journal: SipHash-2-4 with a key that is in no journal.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::secret::Secret;

/// What one file's checksums are made with.
#[derive(Clone, Copy)]
pub struct Sums {
    secret: Secret,
    /// A number of the file's own, and not secret: an entry of one file is worth nothing in another.
    salt: u64,
}

/// What a checksum is of: one kind is never taken for another.
const COMMIT: u64 = 1;
const HEAD: u64 = 2;
const ENTRY: u64 = 3;

impl Sums {
    pub fn new(secret: Secret, salt: u64) -> Sums {
        Sums { secret, salt }
    }

    fn of(self, what: u64, parts: [&[u8]; 2]) -> u64 {
        let Secret(first, second) = self.secret;
        let mut hasher = SipHasher24::new_with_keys(first, second);
        hasher.write(&self.salt.to_le_bytes());
        hasher.write(&what.to_le_bytes());
        parts.into_iter().for_each(|part| hasher.write(part));
        hasher.finish()
    }

    /// Of what a commit contains.
    pub fn of_commit(self, content: u64) -> u64 {
        self.of(COMMIT, [&content.to_le_bytes(), &[]])
    }

    /// Of a head or tail, up to its own checksum.
    pub fn of_head(self, head: &[u8]) -> u64 {
        self.of(HEAD, [head, &[]])
    }

    /// Of a whole entry: what its head states, which has a fixed length, and its payload.
    pub fn of_entry(self, head: &[u8], payload: &[u8]) -> u64 {
        self.of(ENTRY, [head, payload])
    }
}
