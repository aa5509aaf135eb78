//! Which bits of headers are compared.

use vmlane_port::MAX_HEAD;

/// Ethernet, IPv6 and TCP with all options, 114 bytes, in whole words.
pub const MAX_HEADERS: usize = 128;
const _: () = assert!(MAX_HEADERS <= MAX_HEAD);

/// The bits of headers in which all segments of a flow are equal.
#[derive(Debug)]
pub struct Mask([u8; MAX_HEADERS]);

impl Default for Mask {
    fn default() -> Mask {
        Mask([0; MAX_HEADERS])
    }
}

impl Mask {
    /// Begins anew: all bits of the first `header` bytes.
    pub fn begin(&mut self, header: usize) {
        self.0.fill(0);
        self.set(0..header, u8::MAX);
    }

    pub fn set(&mut self, range: std::ops::Range<usize>, bits: u8) {
        self.0.get_mut(range).into_iter().for_each(|bytes| bytes.fill(bits));
    }

    /// Do these begin with headers, of `header` bytes, that are equal?
    #[inline]
    pub fn equal(&self, a: &[u8; MAX_HEADERS], b: &[u8; MAX_HEADERS], header: usize) -> bool {
        let words = a.as_chunks().0.iter().zip(b.as_chunks().0).zip(self.0.as_chunks().0);
        let differs =
            |((&a, &b), &mask)| (u64::from_ne_bytes(a) ^ u64::from_ne_bytes(b)) & u64::from_ne_bytes(mask);
        words.take(header.div_ceil(8)).map(differs).fold(0, |all, one| all | one) == 0
    }
}
