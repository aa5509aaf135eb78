//! The messages of the daemon and its uplink helper, a packet each: the daemon a [`Request`], the
//! helper a [`Reply`] with the files.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use vmlane_config::UplinkKind;
use vmlane_host::uplink::TapOptions;

use super::kind::{Facts, Seen};

/// Bytes of the longest packet: an error with the names of a file and an interface.
const LONGEST: usize = 8 << 10;
/// Files of a packet: queues', and two more.
const FILES: usize = TapOptions::MOST_QUEUES as usize + 2;

/// What is wanted of an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    /// Open it; make it if there is none.
    Open,
    /// Open it if there is one.
    OpenIfThere,
    /// Report its MTU.
    Inspect,
    /// Remove the name of a socket that the helper has made.
    Remove,
}

/// All that the daemon can ask for: about what one `[[uplink]]` leads to, or led to. The configuration
/// decides what that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Repeated by the reply.
    pub number: u32,
    /// Counted from 0 in the order of the file; of [`Wish::Remove`]: the number that came with the socket.
    pub index: usize,
    pub wish: Wish,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    pub number: u32,
    pub outcome: Result<Interface, Refusal>,
}

/// Why not.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub text: String,
    /// The interface is not there, and may come.
    pub missing: bool,
}

impl From<String> for Refusal {
    fn from(text: String) -> Refusal {
        Refusal { text, missing: false }
    }
}

/// Which uplink it is, and what was asked about it. The file may have changed since the daemon read it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    pub kind: UplinkKind,
    /// Of one that is open now: its files come with it.
    pub opened: Option<Facts>,
    /// Of [`Wish::Inspect`].
    pub seen: Option<Seen>,
}

pub fn send(socket: impl AsFd, packet: &impl Serialize, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(packet)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The next packet and its files; `None`: the other end is gone.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = [0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let len = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => break got.bytes,
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            files.extend(fds);
        }
    }
    match bytes.get(..len) {
        Some([]) | None => Ok(None),
        Some(packet) => Ok(Some((serde_json::from_slice(packet)?, files))),
    }
}
