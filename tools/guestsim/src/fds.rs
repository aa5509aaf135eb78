//! Messages with descriptors over a Unix socket, as a VMM and its back ends exchange them.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// The most descriptors of a message that is received; QEMU announces 8.
const MOST_RECEIVED: usize = 16;

/// Sends bytes, descriptors with their first one.
pub fn send(mut stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    // Fuzzers have timers.
    let sent = retry_on_intr(|| sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL))?;
    stream.write_all(&bytes[sent..])
}

/// Receives a header and its descriptors. An end before its first byte is an error, too.
pub fn receive<const N: usize>(mut stream: &UnixStream) -> io::Result<([u8; N], Vec<OwnedFd>)> {
    let mut head = [0; N];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_RECEIVED))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut head)];
    let got = retry_on_intr(|| recvmsg(stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            fds.extend(some);
        }
    }
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.read_exact(&mut head[got.bytes..])?;
    Ok((head, fds))
}
