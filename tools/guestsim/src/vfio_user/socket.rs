//! Messages over a socket, as the VMM's side sends and receives them.

use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use vmlane_wire::vfio_user::{HEADER, Header};
use zerocopy::FromBytes;

use crate::fds;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("socket: {0}")]
    Io(#[from] io::Error),
    #[error("command {command} was refused with errno {errno}")]
    Refused { command: u16, errno: u32 },
    #[error("answer to command {command}: {what}")]
    Answer { command: u16, what: &'static str },
}

impl ClientError {
    /// The errno of a refusal.
    pub fn errno(&self) -> Option<u32> {
        match self {
            ClientError::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

/// An answer: what follows the header, and the descriptor that came with it.
#[derive(Debug)]
pub struct Answer {
    pub payload: Vec<u8>,
    pub fd: Option<OwnedFd>,
}

/// Sends bytes, descriptors with their first one.
pub(super) fn send(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
    Ok(fds::send(stream, bytes, fds)?)
}

/// Receives one message, whatever it is.
pub(super) fn receive(mut stream: &UnixStream) -> Result<(Header, Answer), ClientError> {
    let (head, mut fds) = fds::receive::<HEADER>(stream)?;
    let header =
        Header::read_from_bytes(&head).map_err(|_| ClientError::Answer { command: 0, what: "no header" })?;
    let size = header.size.get() as usize;
    let command = header.command.get();
    let len =
        size.checked_sub(HEADER).ok_or(ClientError::Answer { command, what: "size below the header's" })?;
    let mut payload = vec![0; len];
    stream.read_exact(&mut payload)?;
    Ok((header, Answer { payload, fd: fds.pop() }))
}
