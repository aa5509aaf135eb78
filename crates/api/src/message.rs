//! Messages with a limit: how requests and answers are cut out of a socket. A zero byte ends each.
//!
//! A peer may send slowly, send too much or not send at all; each of these ends in an error after a
//! known time and a known number of bytes.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Why there is no message.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// The peer closed its end between two messages.
    #[error("the connection was closed")]
    Closed,
    #[error("the connection was closed in the middle of a message")]
    Cut,
    #[error("a message is longer than {limit} bytes")]
    TooLong { limit: usize },
    #[error("no complete message arrived within {} s", .after.as_secs_f64())]
    TimedOut { after: Duration },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads messages from a socket.
#[derive(Debug)]
pub struct MessageReader {
    stream: UnixStream,
    limit: usize,
    buffer: Vec<u8>,
    takes_file: bool,
    file: Option<OwnedFd>,
}

impl MessageReader {
    /// No message may have more than `limit` bytes. Descriptors are not taken: the kernel closes those that a
    /// peer sends.
    pub fn new(stream: UnixStream, limit: usize) -> MessageReader {
        MessageReader { stream, limit, buffer: Vec::new(), takes_file: false, file: None }
    }

    /// The same, of a peer that may send descriptors.
    pub(crate) fn with_files(stream: UnixStream, limit: usize) -> MessageReader {
        MessageReader { takes_file: true, ..MessageReader::new(stream, limit) }
    }

    /// The descriptor that came last.
    pub(crate) fn take_file(&mut self) -> Option<OwnedFd> {
        self.file.take()
    }

    /// The next message without its end, complete within `timeout`, however it trickles in.
    pub fn next(&mut self, timeout: Duration) -> Result<Vec<u8>, MessageError> {
        let deadline = Instant::now() + timeout;
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer.iter().skip(searched).position(|byte| *byte == 0) {
                let mut message: Vec<u8> = self.buffer.drain(..=searched + end).collect();
                message.pop();
                return Ok(message);
            }
            searched = self.buffer.len();
            if searched >= self.limit {
                return Err(MessageError::TooLong { limit: self.limit });
            }
            self.fill(deadline, timeout)?;
        }
    }

    fn fill(&mut self, deadline: Instant, timeout: Duration) -> Result<(), MessageError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(MessageError::TimedOut { after: timeout });
        }
        self.stream.set_read_timeout(Some(left))?;
        let (mut chunk, mut space) = ([0; 4096], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
        let mut control = match self.takes_file {
            true => RecvAncillaryBuffer::new(&mut space),
            false => RecvAncillaryBuffer::default(),
        };
        let room = chunk.len().min(self.limit - self.buffer.len());
        let mut into = [IoSliceMut::new(chunk.get_mut(..room).unwrap_or_default())];
        let count = match recvmsg(&self.stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => received.bytes,
            Err(Errno::INTR) => return Ok(()),
            Err(Errno::AGAIN) => return Err(MessageError::TimedOut { after: timeout }),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.file = files.last().or(self.file.take());
            }
        }
        match count {
            0 if self.buffer.is_empty() => Err(MessageError::Closed),
            0 => Err(MessageError::Cut),
            count => {
                self.buffer.extend(chunk.iter().take(count));
                Ok(())
            }
        }
    }
}

/// Writes all of `bytes` within `timeout`.
pub fn write(mut stream: &UnixStream, mut bytes: &[u8], timeout: Duration) -> Result<(), MessageError> {
    let deadline = Instant::now() + timeout;
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(MessageError::TimedOut { after: timeout });
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(MessageError::Closed),
            Ok(count) => bytes = bytes.get(count..).ok_or(MessageError::Closed)?,
            Err(error) if is_timeout(&error) => return Err(MessageError::TimedOut { after: timeout }),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes all of `bytes` likewise, and sends a descriptor with the first of them.
pub fn write_with_file(
    stream: &UnixStream,
    bytes: &[u8],
    file: BorrowedFd<'_>,
    timeout: Duration,
) -> Result<(), MessageError> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    stream.set_write_timeout(Some(timeout))?;
    let sent = loop {
        match sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) => break sent,
            Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
    };
    write(stream, bytes.get(sent..).unwrap_or_default(), timeout)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// Until a time-out that is expected, and one that is not.
    const SOON: Duration = Duration::from_millis(50);
    const LATE: Duration = Duration::from_secs(60);

    fn pair(limit: usize) -> (UnixStream, MessageReader) {
        let (near, far) = UnixStream::pair().unwrap();
        (near, MessageReader::new(far, limit))
    }

    #[test]
    fn messages_are_cut_at_their_ends_wherever_the_reads_end() {
        let (mut near, mut reader) = pair(100);
        near.write_all(b"one\0t\no\0th").unwrap();
        assert_eq!(reader.next(LATE).unwrap(), b"one");
        assert_eq!(reader.next(LATE).unwrap(), b"t\no");
        near.write_all(b"ree\0").unwrap();
        assert_eq!(reader.next(LATE).unwrap(), b"three");
        near.write_all(b"cut").unwrap();
        drop(near);
        assert!(matches!(reader.next(LATE), Err(MessageError::Cut)));
    }

    #[test]
    fn a_message_may_have_exactly_the_limit() {
        let (mut near, mut reader) = pair(5);
        near.write_all(b"1234\x0012345\0").unwrap();
        assert_eq!(reader.next(LATE).unwrap(), b"1234");
        assert!(matches!(reader.next(LATE), Err(MessageError::TooLong { limit: 5 })));
    }

    #[test]
    fn descriptors_are_taken_where_they_are_expected_and_nowhere_else() {
        for takes in [true, false] {
            let (near, far) = UnixStream::pair().unwrap();
            let mut reader =
                if takes { MessageReader::with_files(far, 100) } else { MessageReader::new(far, 100) };
            write_with_file(&near, b"{}\0more\0", near.as_fd(), LATE).unwrap();
            assert_eq!(reader.next(LATE).unwrap(), b"{}");
            assert_eq!(reader.take_file().is_some(), takes);
            assert_eq!(reader.next(LATE).unwrap(), b"more");
            assert!(reader.take_file().is_none());
        }
    }

    #[test]
    fn a_trickle_does_not_move_the_deadline() {
        // A deadline that moved would end with a message too long.
        let (mut near, mut reader) = pair(1000);
        let trickle = std::thread::spawn(move || {
            while near.write_all(b"x").is_ok() {
                std::thread::sleep(SOON / 5);
            }
        });
        assert!(matches!(reader.next(SOON), Err(MessageError::TimedOut { .. })));
        drop(reader);
        trickle.join().unwrap();
    }

    #[test]
    fn a_peer_that_does_not_read_ends_the_write() {
        let (near, _reader) = pair(100);
        let bytes = vec![0; 8 << 20];
        assert!(matches!(write(&near, &bytes, SOON), Err(MessageError::TimedOut { .. })));
    }
}
