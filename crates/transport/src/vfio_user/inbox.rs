//! The receiving half of a session: bytes and descriptors in, whole messages out.
//!
//! One fixed buffer (in the session's message file), one `recvmsg` a read. A read may bring several messages
//! or a piece of one. The kernel ends a read at the first chunk that carried descriptors, so those belong to
//! the last message *begun* in that read; they wait beside it until it is complete.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use vmlane_wire::vfio_user::{HEADER, Header, MAX_MESSAGE, split};

/// Descriptors one message may carry; QEMU refuses servers that announce more than 16.
pub use crate::fds::MAX_FDS;
use crate::fds::receive;
use crate::kept::MessageFile;

/// A stream that cannot be followed any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error("message size {size} is less than its header, {HEADER} bytes")]
    Short { size: usize },
    #[error("message size {size} exceeds the bound of {MAX_MESSAGE} bytes")]
    Long { size: usize },
    #[error("end of stream after {have} bytes of an unfinished message")]
    Cut { have: usize },
}

/// A complete message.
pub struct Message<'a> {
    pub header: Header,
    pub payload: &'a [u8],
    pub fds: Vec<OwnedFd>,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Bytes,
    /// Only when asked not to wait.
    Nothing,
    Closed,
}

pub struct Inbox {
    /// Number of the message at `start`, counted over all daemons that served the session.
    number: u64,
    /// Bytes received and not yet done with: `start..end` of the message file.
    start: usize,
    end: usize,
    /// Bytes of the message that is being served.
    serving: usize,
    /// Position in the stream of `start`.
    position: u64,
    /// Descriptors by the position of the message they came with. Two entries at most: a message
    /// under way and the one that ended the last read.
    fds: Vec<(u64, Vec<OwnedFd>)>,
    /// Descriptors closed because a message brought too many.
    pub surplus: u64,
}

impl Inbox {
    pub fn new() -> Inbox {
        let (number, fds) = (1, Vec::new());
        Inbox { number, start: 0, end: 0, serving: 0, position: 0, fds, surplus: 0 }
    }

    /// Continues a previous daemon's message file. `served`: bytes of the request at its cursor, if that
    /// daemon had carried it out. It may have been killed before it cleared them, or halfway.
    #[expect(clippy::indexing_slicing, reason = "both ends are cut to the length of the buffer")]
    pub fn resume(message_file: &mut MessageFile, served: Option<usize>) -> Inbox {
        let (mut number, mut start) = message_file.cursor();
        let buffer = message_file.inbound_mut();
        start = start.min(buffer.len());
        if let Some(size) = served {
            let next = start.saturating_add(size).min(buffer.len());
            buffer[start..next].fill(0);
            (number, start) = (number + 1, next);
        }
        let mut end = start;
        while let Some(size) = message_at(&buffer[end..]) {
            end = end.saturating_add(size).min(buffer.len());
        }
        if end == start {
            (start, end) = (0, 0);
        }
        message_file.set_cursor(number, start);
        Inbox { number, start, end, ..Inbox::new() }
    }

    /// Number of the message that [`Inbox::next`] gives.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Where it begins, and its bytes.
    pub fn serving(&self) -> (usize, usize) {
        (self.start, self.serving)
    }

    /// Gives requests that a previous daemon had taken their descriptors: number of the request, descriptor.
    /// Those of requests that are still in the socket come again with them.
    pub fn restore_fds(&mut self, message_file: &MessageFile, fds: impl IntoIterator<Item = (u64, OwnedFd)>) {
        for (number, fd) in fds {
            let before = number.checked_sub(self.number);
            if let Some(position) = before.and_then(|before| self.position_of(message_file, before)) {
                self.keep(position, std::iter::once(fd));
            }
        }
    }

    /// Stream position of the message with `before` others in front of it, if some of it is there.
    fn position_of(&self, message_file: &MessageFile, before: u64) -> Option<u64> {
        let mut at = self.start;
        for _ in 0..before {
            // An invalid size leads beyond the end.
            at = at.checked_add(message_at(message_file.inbound().get(at..self.end)?)?)?;
        }
        (at < self.end).then(|| self.position + (at - self.start) as u64)
    }

    /// Descriptors that the last read brought, and the number of the message they belong to.
    pub fn last_fds(&self, message_file: &MessageFile) -> Option<(u64, &[OwnedFd])> {
        let (owner, fds) = self.fds.last()?;
        let before =
            (0..).find(|before| self.position_of(message_file, *before).is_none_or(|at| at >= *owner))?;
        Some((self.number + before, fds))
    }

    /// Bytes of an unfinished message.
    pub fn pending(&self) -> usize {
        self.end - self.start
    }

    /// Reads once. Call only when [`Self::next`] has returned nothing, so that there is room.
    /// At most `most` bytes.
    #[expect(clippy::indexing_slicing, reason = "`end` never passes the end of the buffer")]
    pub fn receive(
        &mut self,
        message_file: &mut MessageFile,
        socket: impl AsFd,
        wait: bool,
        most: usize,
    ) -> Result<Received, Errno> {
        self.make_room(message_file);

        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let room = &mut message_file.inbound_mut()[self.end..];
        let len = room.len().min(most);
        let mut fds = Vec::new();
        match receive(socket, &mut room[..len], flags, |fd| fds.push(fd)) {
            Ok(0) | Err(Errno::CONNRESET) => return Ok(Received::Closed),
            Err(Errno::AGAIN) if !wait => return Ok(Received::Nothing),
            got => self.end += got?,
        }
        if !fds.is_empty() {
            let owner = self.last_begun(message_file);
            self.keep(owner, fds);
        }
        Ok(Received::Bytes)
    }

    /// Begins with the first byte again if a message of any size might find no room. Usually everything
    /// has been served and there is nothing to move.
    #[expect(clippy::indexing_slicing, reason = "`end` never passes the end of the buffer")]
    fn make_room(&mut self, message_file: &mut MessageFile) {
        if self.start == 0 || self.pending() == 0 {
            return;
        }
        let buffer = message_file.inbound_mut();
        buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        buffer[self.end..].fill(0);
        message_file.set_cursor(self.number, 0);
    }

    /// The next complete message, or nothing when more must be received first. It is there until
    /// [`Inbox::done`].
    #[expect(
        clippy::indexing_slicing,
        reason = "start and end are inside the buffer, and a message between them"
    )]
    pub fn next<'m>(&mut self, message_file: &'m MessageFile) -> Result<Option<Message<'m>>, StreamError> {
        let have = self.pending();
        let buffer = message_file.inbound();
        let Some((header, _)) = split::<Header>(&buffer[self.start..self.end]) else { return Ok(None) };
        let header = *header;
        let size = header.size.get() as usize;
        if size < HEADER {
            return Err(StreamError::Short { size });
        }
        if size > MAX_MESSAGE {
            return Err(StreamError::Long { size });
        }
        if have < size {
            return Ok(None);
        }
        let fds = self.claim();
        let payload = self.start + HEADER..self.start + size;
        self.serving = size;
        Ok(Some(Message { header, payload: &buffer[payload], fds }))
    }

    /// The message was served. Its bytes go first: a header that is left would be a request.
    #[expect(clippy::indexing_slicing, reason = "the message that was served lies inside the buffer")]
    pub fn done(&mut self, message_file: &mut MessageFile) {
        let size = std::mem::take(&mut self.serving);
        message_file.inbound_mut()[self.start..self.start + size].fill(0);
        self.start += size;
        self.position += size as u64;
        self.number += 1;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        message_file.set_cursor(self.number, self.start);
    }

    /// Stream position of the last message of which at least one byte has arrived.
    #[expect(clippy::indexing_slicing, reason = "`at` is below `end`, which is inside the buffer")]
    fn last_begun(&self, message_file: &MessageFile) -> u64 {
        let (mut at, mut last) = (self.start, self.start);
        while at < self.end {
            last = at;
            let Some((header, _)) = split::<Header>(&message_file.inbound()[at..self.end]) else { break };
            // An invalid size ends the session when this message's turn comes.
            let size = header.size.get() as usize;
            if !(HEADER..=self.end - at).contains(&size) {
                break;
            }
            at += size;
        }
        self.position + (last - self.start) as u64
    }

    fn keep(&mut self, owner: u64, fds: impl IntoIterator<Item = OwnedFd>) {
        if self.fds.last().is_none_or(|(position, _)| *position != owner) {
            self.fds.push((owner, Vec::new()));
        }
        let Some((_, kept)) = self.fds.last_mut() else { return };
        for fd in fds {
            // One byte at a time, each with descriptors, must not pile them up.
            if kept.len() < MAX_FDS { kept.push(fd) } else { self.surplus += 1 }
        }
    }

    fn claim(&mut self) -> Vec<OwnedFd> {
        match self.fds.first() {
            Some((owner, _)) if *owner == self.position => self.fds.remove(0).1,
            _ => Vec::new(),
        }
    }
}

/// Size of the message that begins `bytes`, if one does. An invalid size ends the session when its turn
/// comes.
fn message_at(bytes: &[u8]) -> Option<usize> {
    let (header, _) = split::<Header>(bytes)?;
    let size = header.size.get() as usize;
    (size != 0).then_some(size.max(HEADER))
}

/// What the next read will bring.
pub struct Sight {
    /// How many bytes; later ones are not to be read with them, for they may bring descriptors.
    pub bytes: usize,
    /// How many whole messages are in front of the one that the descriptors belong to.
    pub before: u64,
    pub fds: Vec<OwnedFd>,
}

/// Waits for bytes and examines them without taking them. Call with nothing pending.
#[expect(clippy::indexing_slicing, reason = "`at` stays below `bytes`, which were read into the buffer")]
pub fn peek(socket: impl AsFd, scratch: &mut [u8]) -> Result<Sight, Errno> {
    let mut fds = Vec::new();
    let bytes = receive(socket, scratch, RecvFlags::PEEK, |fd| fds.push(fd))?;
    // The read ends with what brought the descriptors: they belong to its last message.
    let (mut at, mut before) = (0, 0);
    while let Some(size) = message_at(&scratch[at..bytes]).filter(|size| at + size < bytes) {
        (at, before) = (at + size, before + 1);
    }
    Ok(Sight { bytes, before, fds })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd() -> OwnedFd {
        vmlane_mem::memfd("with a request", 4096).unwrap()
    }

    /// Puts a request that claims `size` bytes, at `at`.
    fn put(message_file: &mut MessageFile, at: usize, size: u32) {
        message_file.inbound_mut()[at + 4..at + 8].copy_from_slice(&size.to_le_bytes());
    }

    #[test]
    fn a_request_that_was_carried_out_is_no_request() {
        let mut message_file = MessageFile::create().unwrap();
        message_file.set_cursor(7, 0);
        put(&mut message_file, 0, 36);
        put(&mut message_file, 36, 20);
        let inbox = Inbox::resume(&mut message_file, Some(36));
        assert_eq!((inbox.number(), inbox.start, inbox.pending()), (8, 36, 20));
        assert_eq!(message_file.cursor(), (8, 36));
        // Nor is it when nothing came behind it, or when it was cleared in part.
        let mut message_file = MessageFile::create().unwrap();
        message_file.set_cursor(7, 0);
        message_file.inbound_mut()[20..36].fill(1);
        let mut inbox = Inbox::resume(&mut message_file, Some(36));
        assert_eq!((inbox.number(), inbox.pending()), (8, 0));
        assert!(inbox.next(&message_file).unwrap().is_none());
        assert!(message_file.inbound().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn descriptors_find_their_requests() {
        let mut message_file = MessageFile::create().unwrap();
        message_file.set_cursor(7, 0);
        put(&mut message_file, 0, 36);
        put(&mut message_file, 36, 48);
        let mut inbox = Inbox::resume(&mut message_file, None);
        // Of one that is done, of both that are there, and of one that is still in the socket.
        inbox.restore_fds(&message_file, [6, 7, 8, 8, 9].map(|number| (number, fd())));
        assert_eq!(inbox.last_fds(&message_file).map(|(number, fds)| (number, fds.len())), Some((8, 2)));
        assert_eq!(inbox.next(&message_file).unwrap().map(|message| message.fds.len()), Some(1));
        inbox.done(&mut message_file);
        assert_eq!(inbox.next(&message_file).unwrap().map(|message| message.fds.len()), Some(2));
    }

    #[test]
    fn sizes_that_make_no_sense_lead_nowhere() {
        let mut message_file = MessageFile::create().unwrap();
        put(&mut message_file, 0, u32::MAX);
        let mut inbox = Inbox::resume(&mut message_file, None);
        let number = inbox.number();
        inbox.restore_fds(&message_file, [1, 2, u64::MAX / 2].map(|more| (number + more, fd())));
        assert_eq!(inbox.last_fds(&message_file).map(|(_, fds)| fds.len()), None);
        assert!(inbox.next(&message_file).is_err());
    }
}
