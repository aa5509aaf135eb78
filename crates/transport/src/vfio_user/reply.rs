//! The answering half of a session: one answer at a time, one system call each.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use vmlane_wire::vfio_user::{HEADER, Header};
use zerocopy::{Immutable, IntoBytes};

use crate::fds;
use crate::kept::{MessageFile, StoredAnswer};

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
        self.bytes.get_mut(at..).unwrap_or_default()
    }

    /// The descriptor travels with the answer.
    pub fn attach(&mut self, fd: OwnedFd) {
        self.fd = Some(fd);
    }

    /// Completes what was put together as the answer to `request`.
    #[expect(clippy::indexing_slicing, reason = "the header is there from the beginning")]
    pub fn finish(&mut self, request: &Header) {
        let header = Header::reply(request, self.bytes.len() - HEADER);
        self.bytes[..HEADER].copy_from_slice(header.as_bytes());
    }

    /// Makes it an error, and nothing of what was put together.
    pub fn finish_error(&mut self, request: &Header, errno: Errno) {
        self.begin();
        let code = errno.raw_os_error().unsigned_abs();
        self.bytes.copy_from_slice(Header::failure(request, code).as_bytes());
    }

    /// The answer, once finished.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Sends the answer, which lies in the message file as `stored`.
    pub fn send(
        &mut self,
        socket: impl AsFd,
        message_file: &mut MessageFile,
        stored: StoredAnswer,
    ) -> Result<(), Errno> {
        let Some(fd) = self.fd.take() else { return message_file.send(socket, stored) };
        // Only messages of a few bytes have one: they go in one piece.
        fds::send(&socket, &self.bytes, &fd)?;
        message_file.sent(stored)
    }

    /// Sends the answer of a session that has no message file.
    pub fn send_plain(&self, socket: impl AsFd) -> Result<(), Errno> {
        send(socket, &self.bytes, SendFlags::NOSIGNAL).map(drop)
    }
}
