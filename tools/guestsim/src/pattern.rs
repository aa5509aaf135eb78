//! Streams of bytes that can be made and checked at any position.

/// A stream distinguished from others by its seed.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    pub seed: u64,
}

impl Pattern {
    pub fn new(seed: u64) -> Pattern {
        Pattern { seed }
    }

    fn word(&self, index: u64) -> u64 {
        let mixed = (index ^ self.seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    }

    /// The bytes from position `at` on.
    pub fn fill(&self, mut at: u64, mut out: &mut [u8]) {
        while !out.is_empty() {
            let word = self.word(at / 8).to_le_bytes();
            let skip = (at % 8) as usize;
            let here = out.len().min(8 - skip);
            let (head, rest) = out.split_at_mut(here);
            head.copy_from_slice(&word[skip..skip + here]);
            at += here as u64;
            out = rest;
        }
    }

    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(at, &mut bytes);
        bytes
    }

    /// Panics at the first byte that is not this stream's.
    pub fn check(&self, at: u64, got: &[u8]) {
        let expected = self.bytes(at, got.len());
        if let Some(wrong) = (0..got.len()).find(|index| got[*index] != expected[*index]) {
            panic!(
                "stream {:#x}: byte {} is {:#x} instead of {:#x} ({} bytes from {at})",
                self.seed,
                at + wrong as u64,
                got[wrong],
                expected[wrong],
                got.len()
            );
        }
    }
}
