//! The messages of daemon and keeper: one packet each, a letter first, a name behind it.
//!
//! | packet | means |
//! | --- | --- |
//! | `P` name, one descriptor | hold it by that name, in place of one that was |
//! | `D` name | drop it |
//! | `A` prefix | drop all whose names begin so |
//! | `H` seconds, a space, prefix | without a daemon for so long, drop all whose names begin so; 0: hold them as long as it takes |
//! | `L` | list: a `P` each, an `H` for each prefix that was dropped so, then `.` |
//! | `E` | end |
//!
//! Nothing is answered but `L`: a packet that was sent is carried out, whatever becomes of its sender. A
//! letter that is not known is ignored, on either side: they may be of two versions.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

pub const PUT: u8 = b'P';
pub const DROP: u8 = b'D';
pub const DROP_ALL: u8 = b'A';
pub const HOLD: u8 = b'H';
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

/// What follows the letter of [`HOLD`]. Of a time, whole seconds count, and at least one.
pub fn hold(prefix: &str, at_most: Option<Duration>) -> String {
    let seconds = at_most.map_or(0, |time| time.as_secs().max(1));
    format!("{seconds} {prefix}")
}

/// A prefix, and how long its names are held without a daemon; `None`: as long as it takes.
pub fn parse_hold(name: &str) -> Option<(&str, Option<Duration>)> {
    let (seconds, prefix) = name.split_once(' ')?;
    let seconds: u32 = seconds.parse().ok()?;
    Some((prefix, (seconds > 0).then(|| Duration::from_secs(seconds.into()))))
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
