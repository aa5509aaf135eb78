//! A session's messages in a shared file: a request that a daemon had read is still there when it is
//! killed, and so is the answer it was about to send.
//!
//! Requests are received straight into the file; bytes that hold no request are zero, so the next daemon
//! next finds a request by its header. Answers are put into the file and sent from there by `sendfile`,
//! which moves the file's position in the same system call as the bytes leave: the position, which the
//! holder of the file keeps, shows what was sent. (Where the kernel sends pages by reference, an answer
//! must not be overwritten before it is read; a place is used again after thousands of others.)
//!
//! A file has room for the longest messages of vfio-user, which are longer than any of vhost-user.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use vmlane_state::{LAYOUT, Mapping, Unusable};
use vmlane_wire::vfio_user::MAX_MESSAGE;

const MAGIC: u64 = u64::from_le_bytes(*b"vmlaneml");
mod at {
    pub const MAGIC: usize = 0;
    pub const LAYOUT: usize = 8;
    /// Number of the request at hand, and where it begins.
    pub const CURSOR: usize = 16;
    pub const IN: usize = 4096;
    pub const OUT: usize = 0x20000;
}
const OUT: usize = 256 << 10;
const LEN: usize = at::OUT + OUT;
/// Bits of the cursor that hold where.
const START: u32 = 24;
const _: () = assert!(at::IN + MAX_MESSAGE <= at::OUT);

/// An answer in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredAnswer {
    pub at: u64,
    pub len: u64,
}

pub struct MessageFile {
    mapping: Mapping,
    file: OwnedFd,
    /// The file's position.
    position: u64,
}

impl MessageFile {
    pub fn create() -> io::Result<MessageFile> {
        let (mut mapping, file) = Mapping::create("vmlane-messages", LEN)?;
        mapping.set_word(at::LAYOUT, LAYOUT.into());
        mapping.set_word(at::MAGIC, MAGIC);
        let mut message_file = MessageFile { mapping, file, position: 0 };
        message_file.rewind()?;
        Ok(message_file)
    }

    /// What a previous daemon left.
    pub fn open(file: OwnedFd) -> Result<MessageFile, Unusable> {
        let mapping = Mapping::open(&file, LEN)?;
        if mapping.word(at::MAGIC) != MAGIC {
            return Err(Unusable::Magic);
        }
        let layout = mapping.word(at::LAYOUT);
        if layout != u64::from(LAYOUT) {
            return Err(Unusable::Layout { have: layout as u32 });
        }
        let position = rustix::fs::seek(&file, SeekFrom::Current(0)).map_err(io::Error::from)?;
        if mapping.word(at::CURSOR) & ((1 << START) - 1) > MAX_MESSAGE as u64 {
            return Err(Unusable::Damaged { at: at::CURSOR });
        }
        Ok(MessageFile { mapping, file, position })
    }

    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Number of the request at hand or awaited, and where it begins in [`MessageFile::inbound`].
    pub fn cursor(&self) -> (u64, usize) {
        let word = self.mapping.word(at::CURSOR);
        (word >> START, (word & ((1 << START) - 1)) as usize)
    }

    pub fn set_cursor(&mut self, number: u64, start: usize) {
        self.mapping.set_word(at::CURSOR, number << START | start as u64);
    }

    #[expect(clippy::indexing_slicing, reason = "constants, inside the mapping that was made for them")]
    pub fn inbound(&self) -> &[u8] {
        &self.mapping.bytes()[at::IN..at::IN + MAX_MESSAGE]
    }

    #[expect(clippy::indexing_slicing, reason = "constants, inside the mapping that was made for them")]
    pub fn inbound_mut(&mut self) -> &mut [u8] {
        &mut self.mapping.bytes_mut()[at::IN..at::IN + MAX_MESSAGE]
    }

    fn rewind(&mut self) -> Result<(), Errno> {
        self.position = rustix::fs::seek(&self.file, SeekFrom::Start(at::OUT as u64))?;
        Ok(())
    }

    /// Puts an answer where the next one goes. It has at most 64 KiB.
    pub fn put(&mut self, bytes: &[u8]) -> Result<StoredAnswer, Errno> {
        let room = (LEN as u64).saturating_sub(self.position);
        if self.position < at::OUT as u64 || room < bytes.len() as u64 {
            self.rewind()?;
        }
        let at = self.position as usize;
        let place = self.mapping.bytes_mut().get_mut(at..at + bytes.len()).ok_or(Errno::MSGSIZE)?;
        place.copy_from_slice(bytes);
        Ok(StoredAnswer { at: at as u64, len: bytes.len() as u64 })
    }

    /// Sends an answer, or what is left of it.
    pub fn send(&mut self, socket: impl AsFd, stored: StoredAnswer) -> Result<(), Errno> {
        let end = stored.at + stored.len;
        while (stored.at..end).contains(&self.position) {
            match rustix::fs::sendfile(&socket, &self.file, None, (end - self.position) as usize) {
                Ok(0) => return Err(Errno::IO),
                Ok(sent) => self.position += sent as u64,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// An answer was sent in another way.
    pub fn sent(&mut self, stored: StoredAnswer) -> Result<(), Errno> {
        self.position = rustix::fs::seek(&self.file, SeekFrom::Start(stored.at + stored.len))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_next_daemon_finds_in_the_file_what_was_sent() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut message_file = MessageFile::create().unwrap();
        let stored = message_file.put(b"answer").unwrap();
        // The next daemon after one that had not sent, and after one that had.
        let mut next = MessageFile::open(message_file.file().try_clone().unwrap()).unwrap();
        next.send(&near, stored).unwrap();
        let mut later = MessageFile::open(message_file.file().try_clone().unwrap()).unwrap();
        later.send(&near, stored).unwrap();
        drop(near);
        let mut got = Vec::new();
        far.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"answer");
    }

    #[test]
    fn answers_are_what_they_were_however_late_they_are_read() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut message_file = MessageFile::create().unwrap();
        for round in 0..1000u32 {
            for number in 0..10 {
                let stored = message_file.put(&(round * 10 + number).to_le_bytes().repeat(16)).unwrap();
                message_file.send(&near, stored).unwrap();
            }
            for number in 0..10 {
                let mut got = [0; 64];
                far.read_exact(&mut got).unwrap();
                assert_eq!(got.as_slice(), (round * 10 + number).to_le_bytes().repeat(16));
            }
        }
    }

    #[test]
    fn a_file_that_holds_no_messages_is_refused() {
        let short = vmlane_mem::memfd("short", 4096).unwrap();
        assert!(matches!(MessageFile::open(short), Err(Unusable::Short { .. })));
        let empty = vmlane_mem::memfd("empty", LEN as u64).unwrap();
        assert!(matches!(MessageFile::open(empty), Err(Unusable::Magic)));
        let mut other = MessageFile::create().unwrap();
        other.mapping.set_word(at::LAYOUT, 77);
        assert!(matches!(
            MessageFile::open(other.file().try_clone().unwrap()),
            Err(Unusable::Layout { have: 77 })
        ));
        let mut wild = MessageFile::create().unwrap();
        wild.mapping.set_word(at::CURSOR, u64::MAX);
        assert!(matches!(MessageFile::open(wild.file().try_clone().unwrap()), Err(Unusable::Damaged { .. })));
    }
}
