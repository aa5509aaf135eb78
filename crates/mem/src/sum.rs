//! The Internet checksum's sum (RFC 1071) over bytes that come in parts of any length.
#![allow(unsafe_code)] // functions compiled for AVX2, called where the CPU has it; copies between raw pointers

/// Bytes of a vector register.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 32;

/// A running one's-complement sum. Parts may be odd: the next one then continues in the middle of a
/// 16-bit word.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Of native-endian 16-bit words, not folded.
    total: u64,
    odd: bool,
}

impl Sum {
    /// Starts from a value already in the checksum's byte order (such as a pseudo header's sum).
    pub fn from_be(value: u16) -> Sum {
        Sum { total: u64::from(value.to_be()), odd: false }
    }

    /// Adds `data`.
    #[inline]
    pub fn add(&mut self, data: &[u8]) {
        // SAFETY: the slice is valid for its length.
        unsafe { self.add_shared(data.as_ptr(), data.len()) };
    }

    /// Adds the sum of the native-endian 16-bit words of `len` bytes, not folded.
    #[inline]
    fn add_words(&mut self, words: u64, len: usize) {
        // Moving a sum by one byte swaps its bytes (RFC 1071, 2B).
        self.total += if self.odd { u64::from(fold(words).swap_bytes()) } else { words };
        self.odd ^= len % 2 == 1;
    }

    /// Copies `len` bytes and adds them as they were copied: what is stored is what is summed, even if
    /// the source changes meanwhile.
    ///
    /// # Safety
    /// `from` is valid for reads and `to` for writes of `len` bytes. They may be shared memory, and may
    /// overlap if it does not matter what is written then.
    #[inline]
    pub(crate) unsafe fn copy(&mut self, to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.take::<true>(to, from, len) }
    }

    /// Adds `len` bytes of memory that may change meanwhile: each is loaded once.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes. They may be shared memory.
    #[inline]
    pub(crate) unsafe fn add_shared(&mut self, from: *const u8, len: usize) {
        // SAFETY: the caller's promise; nothing is stored.
        unsafe { self.take::<false>(std::ptr::null_mut(), from, len) }
    }

    /// Adds `len` bytes, and stores them at `to` if `STORE`.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, and so is `to` for writes if `STORE`.
    #[inline]
    unsafe fn take<const STORE: bool>(&mut self, to: *mut u8, from: *const u8, len: usize) {
        #[cfg(target_arch = "x86_64")]
        if len >= 2 * LINE && std::arch::is_x86_feature_detected!("avx2") {
            let whole = len / (2 * LINE) * (2 * LINE);
            // SAFETY: the CPU has AVX2; both are valid for `whole` bytes, and for the rest behind them.
            // Without `STORE`, `to` is a number only.
            let words = unsafe {
                take_avx2::<STORE>(to, from, whole)
                    + take_words::<STORE>(to.wrapping_add(whole), from.add(whole), len - whole)
            };
            return self.add_words(words, len);
        }
        // SAFETY: the caller's promise.
        self.add_words(unsafe { take_words::<STORE>(to, from, len) }, len);
    }

    /// Adds one 16-bit number at an even place.
    #[inline]
    pub fn add_u16(&mut self, value: u16) {
        debug_assert!(!self.odd);
        self.total += u64::from(value.to_be());
    }

    /// The folded sum as a number, not complemented: what a partial checksum holds.
    #[inline]
    pub fn folded(self) -> u16 {
        u16::from_be(fold(self.total))
    }

    /// The checksum: the complement of the folded sum.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.folded()
    }
}

#[inline]
fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// A value at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct Anywhere<T>(pub T);

/// The sum of the 16-bit words of `len` bytes, which are copied if `STORE`. Every word is loaded once.
///
/// # Safety
/// `from` is valid for reads of `len` bytes, and so is `to` for writes if `STORE`.
#[inline]
unsafe fn take_words<const STORE: bool>(to: *mut u8, from: *const u8, len: usize) -> u64 {
    /// Takes a value; volatile: it is loaded exactly once.
    #[inline(always)]
    unsafe fn word<const STORE: bool, T: Copy>(to: *mut u8, from: *const u8, at: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe {
            let word = from.add(at).cast::<Anywhere<T>>().read_volatile();
            if STORE {
                to.add(at).cast::<Anywhere<T>>().write(word);
            }
            word.0
        }
    }
    let (mut sum, mut at) = (0u64, 0);
    // SAFETY: all of these end at or before `len`.
    unsafe {
        while len - at >= 8 {
            let two: u64 = word::<STORE, _>(to, from, at);
            sum += (two & 0xffff_ffff) + (two >> 32);
            at += 8;
        }
        if len - at >= 4 {
            sum += u64::from(word::<STORE, u32>(to, from, at));
            at += 4;
        }
        if len - at >= 2 {
            sum += u64::from(word::<STORE, u16>(to, from, at));
            at += 2;
        }
        if len > at {
            sum += u64::from(u16::from_ne_bytes([word::<STORE, u8>(to, from, at), 0]));
        }
    }
    sum
}

/// The sum of the 32-bit words of `len` bytes (a multiple of 64), which are copied if `STORE`. Every vector
/// is loaded once.
///
/// # Safety
/// The CPU has AVX2; `from` is valid for reads of `len` bytes, and so is `to` for writes if `STORE`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn take_avx2<const STORE: bool>(to: *mut u8, from: *const u8, len: usize) -> u64 {
    use std::arch::x86_64::*;
    let zero = _mm256_setzero_si256();
    let (mut low, mut high) = ([zero; 2], [zero; 2]);
    let mut at = 0;
    while at < len {
        // SAFETY: inside the range, which has whole pairs. Volatile: loaded exactly once.
        let pair = [0, LINE]
            .map(|next| unsafe { from.add(at + next).cast::<Anywhere<__m256i>>().read_volatile().0 });
        for (half, words) in pair.into_iter().enumerate() {
            if STORE {
                // SAFETY: inside the range.
                unsafe { to.add(at + half * LINE).cast::<Anywhere<__m256i>>().write(Anywhere(words)) };
            }
            low[half] = _mm256_add_epi64(low[half], _mm256_unpacklo_epi32(words, zero));
            high[half] = _mm256_add_epi64(high[half], _mm256_unpackhi_epi32(words, zero));
        }
        at += 2 * LINE;
    }
    let sum = _mm256_add_epi64(_mm256_add_epi64(low[0], low[1]), _mm256_add_epi64(high[0], high[1]));
    let mut lanes = [0u64; 4];
    // SAFETY: 32 private bytes.
    unsafe { lanes.as_mut_ptr().cast::<Anywhere<__m256i>>().write(Anywhere(sum)) };
    // A lane holds less than 2^32 for each vector: no overflow.
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::Sum;

    fn plain(data: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in data.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn parts_of_any_length_sum_to_the_whole() {
        let data: Vec<u8> = (0..4099u32).map(|at| (at * 131 % 251) as u8).collect();
        for len in [0, 1, 2, 31, 32, 33, 127, 128, 129, 4099] {
            for cut in [0, 1, 7, 64, 129] {
                let (one, two) = data[..len].split_at(cut.min(len));
                let mut sum = Sum::default();
                sum.add(one);
                sum.add(two);
                assert_eq!(sum.folded(), plain(&data[..len]), "{len} bytes cut at {cut}");
            }
        }
    }

    #[test]
    fn what_is_copied_is_summed() {
        let from: Vec<u8> = (0..3000u32).map(|at| (at * 89 % 253) as u8).collect();
        for len in [0, 1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257, 2047, 3000 - 7] {
            for (at, first) in [(0, 0), (1, 5), (7, 64), (3, 33)] {
                let (mut to, mut sum, mut read) = (vec![0; 3100], Sum::default(), Sum::default());
                let first = first.min(len);
                for (at_to, at_from, len) in [(0, at, first), (first, at + first, len - first)] {
                    // SAFETY: inside both vectors.
                    unsafe { sum.copy(to[at_to..].as_mut_ptr(), from[at_from..].as_ptr(), len) };
                    // SAFETY: inside the vector.
                    unsafe { read.add_shared(from[at_from..].as_ptr(), len) };
                }
                assert_eq!(to[..len], from[at..at + len]);
                assert!(to[len..].iter().all(|byte| *byte == 0));
                assert_eq!(sum.folded(), plain(&from[at..at + len]), "{len} bytes from {at}");
                assert_eq!(read.folded(), sum.folded(), "{len} bytes from {at}, only read");
            }
        }
    }

    #[test]
    fn rfc_1071_s_example() {
        let mut sum = Sum::default();
        sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.checksum(), !0xddf2);
    }
}
