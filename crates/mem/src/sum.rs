//! The Internet checksum's sum (RFC 1071) over bytes that come in parts of any length.
#![allow(unsafe_code)] // a function compiled for AVX2 is called where the CPU has it

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
        let sum = fold(sum_of(data));
        // Moving a sum by one byte swaps its bytes (RFC 1071, 2B).
        self.total += u64::from(if self.odd { sum.swap_bytes() } else { sum });
        self.odd ^= data.len() % 2 == 1;
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

#[inline]
fn sum_of(data: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if data.len() >= 128 && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2.
        return unsafe { sum_avx2(data) };
    }
    sum_portable(data)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(data: &[u8]) -> u64 {
    sum_portable(data)
}

/// Sums 32-bit words in eight lanes, which compilers turn into vector code.
#[inline(always)]
fn sum_portable(data: &[u8]) -> u64 {
    let mut lanes = [0u64; 8];
    let mut blocks = data.chunks_exact(32);
    for block in &mut blocks {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(4)) {
            *lane += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
    let mut sum = lanes.iter().sum::<u64>();
    let mut words = blocks.remainder().chunks_exact(2);
    for word in &mut words {
        sum += u64::from(u16::from_ne_bytes([word[0], word[1]]));
    }
    if let [last] = words.remainder() {
        sum += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    sum
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
    fn rfc_1071_s_example() {
        let mut sum = Sum::default();
        sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.checksum(), !0xddf2);
    }
}
