//! Bytes between a socket and TLS, which come in at the end and leave at the front.

use crate::frame::Sink;

/// Room that is kept for the next time.
const KEPT: usize = 512 << 10;

/// A queue of bytes in one piece.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Has it less memory?
    pub fn is_smaller(&self, other: &Buffer) -> bool {
        self.bytes.len() < other.bytes.len()
    }

    /// What waits.
    pub fn filled(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..self.end).unwrap_or_default()
    }

    /// At least `len` bytes of room at the end.
    pub fn room(&mut self, len: usize) -> &mut [u8] {
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > KEPT {
                self.bytes = Vec::new();
            }
        }
        if self.bytes.len() < self.end + len {
            if self.start > 0 {
                self.bytes.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.len());
            }
            if self.bytes.len() < self.end + len {
                self.bytes.resize((self.end + len).next_power_of_two(), 0);
            }
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// So many bytes were written to [`Self::room`].
    pub fn add(&mut self, len: usize) {
        self.end = (self.end + len).min(self.bytes.len());
    }

    /// All that waits is done with.
    pub fn clear(&mut self) {
        self.start = self.end;
    }

    /// So many bytes of [`Self::filled`] are done with.
    pub fn take(&mut self, len: usize) {
        self.start = (self.start + len).min(self.end);
    }
}

impl Sink for Buffer {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.room(bytes.len()).get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
            self.add(bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_the_order_in_which_they_came() {
        let mut buffer = Buffer::default();
        let (mut written, mut read) = (0u32, 0u32);
        for round in 0..1000usize {
            let len = round * 7 % 1500;
            let room = buffer.room(len);
            room[..len].iter_mut().for_each(|byte| {
                *byte = written as u8;
                written += 1;
            });
            buffer.add(len);
            let len = buffer.len().min(round * 13 % 1700);
            buffer.filled()[..len].iter().for_each(|byte| {
                assert_eq!(*byte, read as u8);
                read += 1;
            });
            buffer.take(len);
        }
        assert_eq!(buffer.len() as u32, written - read);
        assert!(buffer.bytes.len() <= KEPT);
    }
}
