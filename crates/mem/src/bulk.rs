//! The copy of many bytes between guests' memories.
#![allow(unsafe_code)] // copies between raw pointers, with AVX2 where the CPU has it

/// From this length on, vectors beat `memmove`, which turns to `rep movsb` for such lengths: that is
/// slower where the bytes are in another level of the cache (a tenth, with 4 KiB on AMD EPYC).
const MANY: usize = 512;

/// Copies `len` bytes.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes. They may be shared memory, and may
/// overlap if it does not matter what is written then.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= MANY && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2; the caller's promise.
        return unsafe { copy_avx2(to, from, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { libc::memmove(to.cast(), from.cast(), len) };
}

/// See [`copy`].
///
/// # Safety
/// As there, and the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_avx2(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};
    /// Four vectors at a time.
    const STEP: usize = 128;
    let whole = len / STEP * STEP;
    let mut at = 0;
    while at < whole {
        // SAFETY: `at + STEP` is at most `len`.
        unsafe {
            let from = from.add(at).cast::<__m256i>();
            let to = to.add(at).cast::<__m256i>();
            let vectors = [0, 1, 2, 3].map(|next| _mm256_loadu_si256(from.add(next)));
            for (next, vector) in vectors.into_iter().enumerate() {
                _mm256_storeu_si256(to.add(next), vector);
            }
        }
        at += STEP;
    }
    // SAFETY: `len - whole` bytes are left of each.
    unsafe { libc::memmove(to.add(whole).cast(), from.add(whole).cast(), len - whole) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_byte_is_copied_and_no_other() {
        let from: Vec<u8> = (0..9000u32).map(|at| (at * 37 % 251) as u8).collect();
        for len in [0, 1, 511, 512, 513, 639, 640, 641, 4096, 8999] {
            for (at, to_at) in [(0, 0), (1, 3)] {
                let mut to = vec![0xff; 9100];
                // SAFETY: inside both vectors.
                unsafe { super::copy(to[to_at..].as_mut_ptr(), from[at..].as_ptr(), len.min(9000 - at)) };
                let len = len.min(9000 - at);
                assert_eq!(to[to_at..to_at + len], from[at..at + len]);
                assert!(to[..to_at].iter().chain(&to[to_at + len..]).all(|byte| *byte == 0xff));
            }
        }
    }
}
