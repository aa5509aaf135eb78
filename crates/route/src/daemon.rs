//! The socket of the daemon: records there, replies back, descriptors with them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use vmlane_wire::host::{MAGIC, REPLY, Reply};
use vmlane_wire::route::{MOST_TEXT, RECORD};
use zerocopy::FromBytes;

/// The line to the daemon.
pub enum Line {
    /// `why`: what was wrong with the last attempt, reported once.
    Down {
        retry: Instant,
        why: String,
    },
    Asking(OwnedFd),
    Up {
        /// Its end means that the daemon is gone, as the line's does.
        _asked: OwnedFd,
        line: OwnedFd,
    },
}

/// Connects to the daemon and sends `message`, without waiting.
pub fn ask(path: &Path, message: &[u8]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    match rustix::net::send(&socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)? {
        len if len == message.len() => Ok(socket),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// What the daemon answers, once it is there.
pub fn answer(socket: &OwnedFd) -> io::Result<Option<(Reply, Vec<OwnedFd>)>> {
    let mut bytes = [0; REPLY];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [io::IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = match rustix::net::recvmsg(socket, parts, &mut control, flags) {
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        other => other?,
    };
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    if message.bytes == 0 {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    let reply = Reply::read_from_bytes(&bytes).ok().filter(|reply| reply.magic.get() == MAGIC);
    let reply = reply.filter(|_| message.bytes == REPLY);
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the daemon speaks another version");
    Ok(Some((reply.ok_or_else(wrong)?, fds)))
}

/// The next message of the line; an empty one if none is there.
pub fn message(line: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; RECORD + MOST_TEXT];
    match rustix::net::recv(line, &mut bytes[..], RecvFlags::DONTWAIT) {
        Ok((0, _)) => Err(io::ErrorKind::ConnectionReset.into()),
        Ok((len, _)) => {
            bytes.truncate(len);
            Ok(bytes)
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// Sends a message over the line. False: it has no room now.
pub fn send(line: &OwnedFd, message: &[u8]) -> io::Result<bool> {
    match rustix::net::send(line, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
