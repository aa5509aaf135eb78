//! Messages over a socket, as the VMM's side sends and receives them.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use vmlane_wire::vfio_user::{HEADER, Header};
use zerocopy::FromBytes;

/// The most descriptors of one message; QEMU announces 8.
const MAX_FDS: usize = 16;

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

/// Sends bytes in one piece, descriptors with their first byte.
pub(super) fn send(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    let sent = sent.map_err(io::Error::from)?;
    if sent < bytes.len() {
        io::Write::write_all(&mut &*stream, &bytes[sent..])?;
    }
    Ok(())
}

/// Receives one message, whatever it is.
pub(super) fn receive(mut stream: &UnixStream) -> Result<(Header, Answer), ClientError> {
    let mut head = [0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [io::IoSliceMut::new(&mut head)];
    let got = recvmsg(stream, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC).map_err(io::Error::from)?;
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fd = fds.last().or(fd);
        }
    }
    if got.bytes == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    stream.read_exact(&mut head[got.bytes..])?;
    let header =
        Header::read_from_bytes(&head).map_err(|_| ClientError::Answer { command: 0, what: "no header" })?;
    let size = header.size.get() as usize;
    let command = header.command.get();
    let len =
        size.checked_sub(HEADER).ok_or(ClientError::Answer { command, what: "size below the header's" })?;
    let mut payload = vec![0; len];
    stream.read_exact(&mut payload)?;
    Ok((header, Answer { payload, fd }))
}
