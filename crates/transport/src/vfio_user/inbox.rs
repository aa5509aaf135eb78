//! The receiving half of a session: bytes and descriptors in, whole messages out.
//!
//! One fixed buffer, one `recvmsg` a read. A read may bring several messages or a piece of one. The
//! kernel ends a read at the first chunk that carried descriptors, so those belong to the last
//! message *begun* in that read; they wait beside it until it is complete.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use vmlane_wire::vfio_user::{HEADER, Header, MAX_MESSAGE, split};

/// Descriptors one message may carry; QEMU refuses servers that announce more than 16.
pub const MAX_FDS: usize = 16;

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
    buffer: Box<[u8]>,
    /// Bytes received and not yet taken: `buffer[start..end]`.
    start: usize,
    end: usize,
    /// Position in the stream of `buffer[start]`.
    position: u64,
    /// Descriptors by the position of the message they came with. Two entries at most: a message
    /// under way and the one that ended the last read.
    fds: Vec<(u64, Vec<OwnedFd>)>,
    /// Descriptors closed because a message brought too many.
    pub surplus: u64,
}

impl Inbox {
    pub fn new() -> Inbox {
        let buffer = vec![0; MAX_MESSAGE].into_boxed_slice();
        Inbox { buffer, start: 0, end: 0, position: 0, fds: Vec::new(), surplus: 0 }
    }

    /// Bytes of an unfinished message.
    pub fn pending(&self) -> usize {
        self.end - self.start
    }

    /// Reads once. Call only when [`Self::next`] has returned nothing, so that there is room.
    pub fn receive(&mut self, socket: impl AsFd, wait: bool) -> Result<Received, Errno> {
        // Usually everything has been taken and this moves nothing.
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);

        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let room = &mut self.buffer[self.end..];
        let got = loop {
            match recvmsg(&socket, &mut [IoSliceMut::new(room)], &mut control, flags) {
                Ok(got) => break got.bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !wait => return Ok(Received::Nothing),
                Err(Errno::CONNRESET) => return Ok(Received::Closed),
                Err(error) => return Err(error),
            }
        };
        if got == 0 {
            return Ok(Received::Closed);
        }
        self.end += got;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                let owner = self.last_begun();
                self.keep(owner, fds);
            }
        }
        Ok(Received::Bytes)
    }

    /// The next complete message, or nothing when more must be received first.
    pub fn next(&mut self) -> Result<Option<Message<'_>>, StreamError> {
        let have = self.pending();
        let Some((header, _)) = split::<Header>(&self.buffer[self.start..self.end]) else { return Ok(None) };
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
        self.start += size;
        self.position += size as u64;
        Ok(Some(Message { header, payload: &self.buffer[payload], fds }))
    }

    /// Stream position of the last message of which at least one byte has arrived.
    fn last_begun(&self) -> u64 {
        let (mut at, mut last) = (self.start, self.start);
        while at < self.end {
            last = at;
            let Some((header, _)) = split::<Header>(&self.buffer[at..self.end]) else { break };
            // A size that makes no sense ends the session when this message's turn comes.
            let size = header.size.get() as usize;
            if !(HEADER..=self.end - at).contains(&size) {
                break;
            }
            at += size;
        }
        self.position + (last - self.start) as u64
    }

    fn keep(&mut self, owner: u64, fds: impl Iterator<Item = OwnedFd>) {
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
