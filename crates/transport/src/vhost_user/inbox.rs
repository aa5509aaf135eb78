//! Whole messages off a stream socket, with their descriptors.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, recv};
use vmlane_wire::vhost_user::{HEADER, Header, MAX_FDS, MAX_PAYLOAD};
use zerocopy::FromBytes;

use crate::kept::MessageFile;

/// A stream that cannot be followed any further.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("a header that is no request of version 1")]
    Header,
    #[error("a payload of {0} bytes; at most {MAX_PAYLOAD} are accepted")]
    Long(usize),
    #[error("end of stream inside a message")]
    Cut,
    #[error("socket: {0}")]
    Socket(#[from] Errno),
}

/// A complete message.
pub struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// The one that lies in the message file; None: there is none.
    #[expect(clippy::indexing_slicing, reason = "the file has room for the longest message")]
    pub fn of(message_file: &MessageFile, fds: Vec<OwnedFd>) -> Result<Option<Message>, StreamError> {
        let bytes = message_file.inbound();
        if bytes.iter().take(HEADER).all(|byte| *byte == 0) {
            return Ok(None);
        }
        let (header, size) = header(bytes)?;
        Ok(Some(Message { header, payload: bytes[HEADER..size].to_vec(), fds }))
    }

    /// Its bytes.
    pub fn size(&self) -> usize {
        HEADER + self.payload.len()
    }
}

/// What came with a message.
#[derive(Default)]
struct Descriptors {
    kept: Vec<OwnedFd>,
    surplus: u64,
}

impl Descriptors {
    /// One byte at a time, each with descriptors, must not pile them up.
    fn add(&mut self, fd: OwnedFd) {
        if self.kept.len() < MAX_FDS { self.kept.push(fd) } else { self.surplus += 1 }
    }
}

/// Receives the next message into `message_file`. None: the peer closed between two. `hold` is given its
/// descriptors before it is taken from the socket, unless it comes in pieces. Also returns how many
/// descriptors were closed because there were too many.
#[expect(clippy::indexing_slicing, reason = "both have room for the longest message")]
pub fn receive(
    socket: impl AsFd,
    message_file: &mut MessageFile,
    hold: impl Fn(&[OwnedFd]),
) -> Result<Option<(Message, u64)>, StreamError> {
    let mut bytes = [0; HEADER + MAX_PAYLOAD + 1];
    let mut fds = Descriptors::default();
    if let Some((size, seen)) = peek(&socket, &mut bytes) {
        hold(&seen.kept);
        // In one go: either all of it is in the message file, or all of it is still in the socket.
        if fill(&socket, &mut message_file.inbound_mut()[..size], &mut fds)? != size {
            return Err(StreamError::Cut);
        }
        if seen.kept.len() < fds.kept.len() {
            hold(&fds.kept);
        }
    } else {
        let Some(size) = receive_pieces(&socket, &mut bytes, &mut fds)? else { return Ok(None) };
        hold(&fds.kept);
        // Its header last: what has none is no message.
        message_file.inbound_mut()[HEADER..size].copy_from_slice(&bytes[HEADER..size]);
        message_file.inbound_mut()[..HEADER].copy_from_slice(&bytes[..HEADER]);
    }
    let message = Message::of(message_file, fds.kept)?.ok_or(StreamError::Header)?;
    Ok(Some((message, fds.surplus)))
}

/// Waits for a message and reads it without taking it: its bytes, and its descriptors. None: it is not
/// there as a whole, or is no request.
#[expect(clippy::indexing_slicing, reason = "a valid size is one that there is room for, and one byte more")]
fn peek(socket: &impl AsFd, bytes: &mut [u8]) -> Option<(usize, Descriptors)> {
    let peek_into = |bytes: &mut [u8]| {
        let mut fds = Descriptors::default();
        let have = crate::fds::receive(socket, bytes, RecvFlags::PEEK, |fd| fds.add(fd)).ok()?;
        Some((have, fds))
    };
    peek_into(&mut bytes[..HEADER])?;
    let (_, size) = header(bytes).ok()?;
    // A peek ends behind what brings descriptors, but goes on to later messages until something does, even
    // without room for any of their bytes. With room for one it is known whose they are.
    match peek_into(&mut bytes[..=size])? {
        (have, fds) if have == size => Some((size, fds)),
        (have, _) if have > size => Some((size, Descriptors::default())),
        _ => None,
    }
}

/// Is there something to receive, the end of the stream included?
pub fn is_waiting(socket: impl AsFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    retry_on_intr(|| recv(&socket, &mut [0; 1][..], flags)) != Err(Errno::AGAIN)
}

/// The header that `bytes` begin with, and how many bytes its message has.
fn header(bytes: &[u8]) -> Result<(Header, usize), StreamError> {
    let (header, _) = Header::read_from_prefix(bytes).map_err(|_| StreamError::Header)?;
    let size = header.size.get() as usize;
    if !header.is_request() {
        return Err(StreamError::Header);
    }
    if size > MAX_PAYLOAD { Err(StreamError::Long(size)) } else { Ok((header, HEADER + size)) }
}

/// Reads a message, however it comes. Its bytes.
#[expect(clippy::indexing_slicing, reason = "a valid size is one that there is room for")]
fn receive_pieces(
    socket: &impl AsFd,
    bytes: &mut [u8],
    fds: &mut Descriptors,
) -> Result<Option<usize>, StreamError> {
    match fill(socket, &mut bytes[..HEADER], fds)? {
        0 => return Ok(None),
        HEADER => {}
        _ => return Err(StreamError::Cut),
    }
    let (_, size) = header(bytes)?;
    let whole = fill(socket, &mut bytes[HEADER..size], fds)? == size - HEADER;
    if whole { Ok(Some(size)) } else { Err(StreamError::Cut) }
}

/// Reads until `to` is full or the stream ends. Returns the bytes read.
#[expect(clippy::indexing_slicing, reason = "what is there is less than what is wanted")]
fn fill(socket: &impl AsFd, to: &mut [u8], fds: &mut Descriptors) -> Result<usize, StreamError> {
    let mut have = 0;
    while have < to.len() {
        match crate::fds::receive(socket, &mut to[have..], RecvFlags::empty(), |fd| fds.add(fd)) {
            Ok(0) | Err(Errno::CONNRESET) => break,
            got => have += got?,
        }
    }
    Ok(have)
}
