//! What daemon and keeper say to each other: one packet each, a letter first, a name behind it.
//!
//! | packet | means |
//! | --- | --- |
//! | `P` name, one descriptor | hold it by that name, in place of one that was |
//! | `D` name | drop it |
//! | `A` prefix | drop all whose names begin so |
//! | `L` | list: a `P` each, then `.` |
//! | `E` | end |
//!
//! Nothing is answered but `L`: a packet that was sent is carried out, whatever becomes of its sender.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

pub const PUT: u8 = b'P';
pub const DROP: u8 = b'D';
pub const DROP_ALL: u8 = b'A';
pub const LIST: u8 = b'L';
pub const LISTED: u8 = b'.';
pub const END: u8 = b'E';

/// Bytes of the longest name.
pub const NAME: usize = 250;

/// A packet as received.
#[derive(Debug)]
pub struct Packet {
    pub what: u8,
    pub name: String,
    pub fd: Option<OwnedFd>,
}

/// Sends one packet.
pub fn send(socket: impl AsFd, what: u8, name: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    if name.len() > NAME {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a name is too long"));
    }
    let letter = [what];
    let parts = [IoSlice::new(&letter), IoSlice::new(name.as_bytes())];
    let fds = fd.map(|fd| [fd]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    loop {
        match sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives one packet; `None`: the other end is gone.
pub fn receive(socket: impl AsFd) -> io::Result<Option<Packet>> {
    let mut bytes = [0; NAME + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let len = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => break got.bytes,
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    let Some((&what, name)) = bytes.get(..len).and_then(|packet| packet.split_first()) else {
        return Ok(None);
    };
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fd = fds.last().or(fd);
        }
    }
    let name = String::from_utf8_lossy(name).into_owned();
    Ok(Some(Packet { what, name, fd }))
}
