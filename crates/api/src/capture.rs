//! A capture: what is asked for, what the daemon answers, and the connection that it lives on.
//!
//! The answer to `capture` comes with a descriptor, the file of the ring that records go through. The connection is the capture's
//! from then on: the capture ends when the client closes it or sends one more byte, which is answered once nothing is recorded
//! any more. If the daemon closes it, the daemon has ended.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::message::LineError;

/// What to capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaptureRequest {
    /// Names of points; none and no VM: all that there are.
    pub points: Vec<String>,
    /// All points of these VMs, too.
    pub vms: Vec<String>,
    /// Bytes of each frame.
    pub snap: u32,
    /// Bytes of records that may wait for the client.
    pub buffer: u64,
    pub vlan: Option<u16>,
    pub mac: Option<String>,
    pub cid: Option<u32>,
    pub port: Option<u32>,
    /// A packet filter as `tcpdump -ddd` prints it.
    pub program: Option<String>,
}

/// A capture that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// Its points, in the order of their numbers.
    pub points: Vec<CapturePoint>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturePoint {
    pub name: String,
    /// `frames` or `streams`.
    pub kind: String,
}

/// The client's end of a capture's connection.
#[derive(Debug)]
pub struct CaptureLink {
    stream: UnixStream,
}

impl CaptureLink {
    pub(crate) fn new(stream: UnixStream) -> CaptureLink {
        CaptureLink { stream }
    }

    /// Has the daemon ended?
    pub fn closed(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut files = [PollFd::new(&self.stream, PollFlags::IN)];
        // The daemon says nothing unasked: whatever comes is its end.
        poll(&mut files, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Ends the capture and waits until nothing is added to the ring any more. False: the daemon has ended.
    pub fn stop(&mut self, timeout: Duration) -> bool {
        let _ = self.stream.set_read_timeout(Some(timeout));
        self.stream.write_all(b"\n").is_ok() && self.stream.read_exact(&mut [0]).is_ok()
    }
}

/// Sends a line and a descriptor with its first byte.
pub fn send_with_file(stream: &UnixStream, line: &[u8], file: BorrowedFd<'_>) -> Result<(), LineError> {
    let fds = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let sent = loop {
        match sendmsg(stream, &[IoSlice::new(line)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) => break sent,
            Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
    };
    crate::message::write(stream, line.get(sent..).unwrap_or_default(), Duration::from_secs(5))
}

/// Receives a line, without its newline, and the descriptor that came with it.
pub(crate) fn receive_with_file(
    stream: &UnixStream,
    limit: usize,
    timeout: Duration,
) -> Result<(Vec<u8>, Option<OwnedFd>), LineError> {
    let deadline = Instant::now() + timeout;
    let (mut line, mut file) = (Vec::new(), None);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LineError::TimedOut { after: timeout });
        }
        stream.set_read_timeout(Some(left))?;
        // Byte by byte behind the first: what follows the line is not for this call.
        let mut bytes = [0; 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        match recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) if got.bytes == 0 => {
                return Err(if line.is_empty() { LineError::Closed } else { LineError::Cut });
            }
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => return Err(LineError::TimedOut { after: timeout }),
            Err(error) => return Err(io::Error::from(error).into()),
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                file = fds.last().or(file);
            }
        }
        match bytes {
            [b'\n'] => return Ok((line, file)),
            [byte] => line.push(byte),
        }
        if line.len() >= limit {
            return Err(LineError::TooLong { limit });
        }
    }
}
