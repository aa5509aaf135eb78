//! System calls on the sockets of host programs; none blocks.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// What a call that may not block did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    Done(usize),
    WouldBlock,
    /// Reading: the end. Writing: the reader is gone.
    Over,
}

fn outcome(result: Result<usize, Errno>, end: bool) -> Io {
    match result {
        Ok(0) if end => Io::Over,
        Ok(len) => Io::Done(len),
        Err(Errno::AGAIN | Errno::INTR) => Io::WouldBlock,
        Err(_) => Io::Over,
    }
}

pub fn read(socket: impl AsFd, out: &mut [u8]) -> Io {
    outcome(rustix::net::recv(socket, out, RecvFlags::DONTWAIT).map(|(len, _)| len), true)
}

/// What reading a stream has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    Done(usize),
    WouldBlock,
    End,
    /// The writer is gone and had not read all that was written to it.
    Reset,
}

pub fn read_stream(socket: impl AsFd, out: &mut [u8]) -> Read {
    match rustix::net::recv(socket, out, RecvFlags::DONTWAIT) {
        Err(Errno::CONNRESET) => Read::Reset,
        result => match outcome(result.map(|(len, _)| len), true) {
            Io::Done(len) => Read::Done(len),
            Io::WouldBlock => Read::WouldBlock,
            Io::Over => Read::End,
        },
    }
}

pub fn peek(socket: impl AsFd, out: &mut [u8]) -> Io {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    outcome(rustix::net::recv(socket, out, flags).map(|(len, _)| len), true)
}

pub fn write(socket: impl AsFd, data: &[u8]) -> Io {
    outcome(rustix::net::send(socket, data, SendFlags::DONTWAIT | SendFlags::NOSIGNAL), false)
}

/// A record with descriptors, whole or not at all: it is far smaller than any socket's buffer.
pub fn write_with(socket: impl AsFd, data: &[u8], fds: &[BorrowedFd<'_>]) -> Io {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Io::Over;
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    outcome(rustix::net::sendmsg(socket, &[io::IoSlice::new(data)], &mut control, flags), false)
}

pub fn shut(socket: impl AsFd, how: Shutdown) {
    let _ = rustix::net::shutdown(socket, how);
}

pub fn accept(listening: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(listening, SocketFlags::CLOEXEC)
}

pub fn pair(kind: SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// Connects to a process's Unix socket, without waiting. WouldBlock: its backlog is full.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// A listening socket at `path`, made with its `mode` under another name and put in the place of
/// whatever a dead daemon left there.
pub fn listen(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = std::path::PathBuf::from(fresh);
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&fresh)?)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(mode))?;
    rustix::net::listen(&socket, 1024)?;
    std::fs::rename(&fresh, path)?;
    Ok(socket)
}
