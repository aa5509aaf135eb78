//! The sending half of a session: one answer at a time, one system call each.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
use vmlane_wire::vfio_user::{HEADER, Header};
use zerocopy::{Immutable, IntoBytes};

/// An answer being put together; its buffer is used again for the next one.
pub struct Reply {
    /// Room for the header first, then the payload.
    bytes: Vec<u8>,
    fd: Option<OwnedFd>,
}

impl Reply {
    pub fn new() -> Reply {
        Reply { bytes: Vec::with_capacity(8192), fd: None }
    }

    /// Forgets what an earlier, perhaps failed, request left.
    pub fn begin(&mut self) {
        self.bytes.clear();
        self.bytes.resize(HEADER, 0);
        self.fd = None;
    }

    pub fn put(&mut self, layout: &(impl IntoBytes + Immutable)) {
        self.bytes.extend_from_slice(layout.as_bytes());
    }

    /// `len` bytes of zeros to be filled in.
    pub fn space(&mut self, len: usize) -> &mut [u8] {
        let at = self.bytes.len();
        self.bytes.resize(at + len, 0);
        &mut self.bytes[at..]
    }

    /// The descriptor travels with the answer.
    pub fn attach(&mut self, fd: OwnedFd) {
        self.fd = Some(fd);
    }

    /// Sends what was put together as the answer to `request`.
    pub fn send(&mut self, socket: impl AsFd, request: &Header) -> Result<(), Errno> {
        let header = Header::reply(request, self.bytes.len() - HEADER);
        self.bytes[..HEADER].copy_from_slice(header.as_bytes());
        self.flush(socket)
    }

    /// Sends an error as the answer to `request`, and nothing of what was put together.
    pub fn send_error(&mut self, socket: impl AsFd, request: &Header, errno: Errno) -> Result<(), Errno> {
        self.begin();
        let code = errno.raw_os_error().unsigned_abs();
        self.bytes.copy_from_slice(Header::failure(request, code).as_bytes());
        self.flush(socket)
    }

    fn flush(&mut self, socket: impl AsFd) -> Result<(), Errno> {
        let mut sent = 0;
        while sent < self.bytes.len() {
            let rest = &self.bytes[sent..];
            let result = match &self.fd {
                Some(fd) => send_with(&socket, rest, fd),
                None => send(&socket, rest, SendFlags::NOSIGNAL),
            };
            match result {
                Ok(more) => {
                    sent += more;
                    // The descriptor went with the first byte.
                    self.fd = None;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn send_with(socket: impl AsFd, bytes: &[u8], fd: &OwnedFd) -> Result<usize, Errno> {
    let fds = [fd.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}
