//! Records as bytes: little-endian words one after the other, read back with every length checked.

/// Puts a record together.
#[derive(Clone, Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn new() -> Writer {
        Writer::default()
    }

    pub fn u8(&mut self, value: u8) -> &mut Writer {
        self.0.push(value);
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn flag(&mut self, value: bool) -> &mut Writer {
        self.u8(value.into())
    }

    /// Present or not, then the value.
    pub fn option(&mut self, value: Option<u64>) -> &mut Writer {
        self.flag(value.is_some()).u64(value.unwrap_or(0))
    }

    /// A length, then the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
        self
    }

    /// A length, then the words.
    pub fn words(&mut self, words: impl ExactSizeIterator<Item = u64>) -> &mut Writer {
        self.u32(words.len() as u32);
        for word in words {
            self.u64(word);
        }
        self
    }
}

/// Reads a record; `None` where it ends too early or holds what cannot be.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    pub fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub fn option(&mut self) -> Option<Option<u64>> {
        let there = self.flag()?;
        let value = self.u64()?;
        Some(there.then_some(value))
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    pub fn words(&mut self) -> Option<Vec<u64>> {
        let len = self.u32()? as usize;
        let bytes = self.take(len.checked_mul(8)?)?;
        Some(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// Everything was read.
    pub fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(7).u32(8).u64(9).flag(true).option(Some(10)).option(None).bytes(b"text");
        out.words([11, 12].into_iter());
        out.0
    }

    type All<'a> = (u8, u32, u64, bool, Option<u64>, Option<u64>, &'a [u8], Vec<u64>);

    fn read(bytes: &[u8]) -> Option<All<'_>> {
        let mut from = Reader::new(bytes);
        let (a, b, c, d) = (from.u8()?, from.u32()?, from.u64()?, from.flag()?);
        let (e, f, g, h) = (from.option()?, from.option()?, from.bytes()?, from.words()?);
        from.end().map(|()| (a, b, c, d, e, f, g, h))
    }

    #[test]
    fn what_is_written_is_read_and_nothing_shorter_or_longer_is() {
        let whole = all();
        let expected = (7, 8, 9, true, Some(10), None, &b"text"[..], vec![11, 12]);
        assert_eq!(read(&whole), Some(expected));
        for len in 0..whole.len() {
            assert_eq!(read(&whole[..len]), None, "{len} bytes");
        }
        assert_eq!(read(&[&whole[..], &[0]].concat()), None);
    }

    #[test]
    fn lengths_and_flags_that_cannot_be_are_nothing() {
        assert_eq!(Reader::new(&[2]).flag(), None);
        assert_eq!(Reader::new(&[2, 0, 0, 0, 0, 0, 0, 0, 0]).option(), None);
        for huge in [5, 0x2000_0000, 0x2000_0001, u32::MAX] {
            let bytes = [&huge.to_le_bytes()[..], &[0; 16]].concat();
            assert_eq!(Reader::new(&bytes).words(), None, "{huge} words");
        }
        assert_eq!(Reader::new(&u32::MAX.to_le_bytes()).bytes(), None);
    }
}
