//! Bytes with descriptors, off a stream socket and onto one.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Descriptors that one read may bring.
pub const MAX_FDS: usize = 16;

/// Reads once. The bytes read, and `keep` is given the descriptors that came with them.
pub fn receive(
    socket: impl AsFd,
    to: &mut [u8],
    flags: RecvFlags,
    keep: impl FnMut(OwnedFd),
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let got = retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(to)], &mut control, flags))?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    rights.flatten().for_each(keep);
    Ok(got.bytes)
}

/// Sends once, with a descriptor. The bytes sent, of which the first one carries it.
pub fn send(socket: impl AsFd, bytes: &[u8], fd: &OwnedFd) -> Result<usize, Errno> {
    let fds = [fd.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL))
}
