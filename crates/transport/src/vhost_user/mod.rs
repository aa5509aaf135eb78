//! A vhost-user session, the back end's side: one VMM, one socket, one device.
//!
//! Follows `docs/interop/vhost-user.rst` of QEMU. Whatever the front end changes, the device is
//! stopped, the change is made, and the rings that can run then are run again: there is no state in
//! between. Requests that make no sense are refused where an answer is wanted and change nothing; a
//! panic in device code is contained the same way. A session ends when the peer closes, when its
//! stream is no longer valid, when its memory file was cut short, or when it is told to stop.

mod error;
mod inbox;
mod lines;
mod memory;
mod request;
mod rings;
mod shared;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::SendFlags;
use vmlane_device::virtio::vhost::VhostDevice;
use vmlane_wire::vhost_user::request::SET_LOG_BASE;
use vmlane_wire::vhost_user::{HEADER, Header, protocol};
use zerocopy::IntoBytes;

use self::inbox::{Message, StreamError, receive};
pub use self::lines::RingLines;
use self::request::{Answer, Requests};
use crate::fds;
use crate::handle::SessionHandle;
use crate::stats::SessionStats;
use vmlane_port::LogLimit;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum SessionEnd {
    #[error("the peer closed the connection")]
    Closed,
    #[error("stopped")]
    Stopped,
    #[error("the stream is not valid: {0}")]
    Broken(#[from] StreamError),
    #[error("a guest memory file is shorter than what was mapped of it")]
    MemoryLost,
}

/// One VMM served. The device is borrowed: it outlives its VMMs.
pub struct Session<'d> {
    handle: SessionHandle,
    requests: Requests<'d>,
    stats: Arc<SessionStats>,
    log: LogLimit,
}

impl<'d> Session<'d> {
    pub fn new(
        stream: UnixStream,
        device: &'d mut dyn VhostDevice,
        lines: Arc<RingLines>,
        stats: Arc<SessionStats>,
    ) -> io::Result<Session<'d>> {
        stream.set_nonblocking(false)?;
        stats.counts.sessions.inc();
        let handle = SessionHandle::new(stream);
        let requests = Requests::new(device, lines, stats.clone(), handle.memory().clone());
        Ok(Session { handle, requests, stats, log: LogLimit::default() })
    }

    pub fn handle(&self) -> SessionHandle {
        self.handle.clone()
    }

    /// Serves until the peer closes or cannot be served any longer. Afterwards no ring runs and
    /// nothing is mapped, ready for the next VMM.
    pub fn run(mut self) -> SessionEnd {
        let end = self.serve();
        let lost = self.requests.memory_lost();
        if let SessionEnd::Broken(_) = end {
            self.stats.counts.protocol_errors.inc();
        }
        if catch_unwind(AssertUnwindSafe(|| self.requests.leave())).is_err() {
            self.stats.counts.panics.inc();
        }
        match end {
            _ if self.handle.is_stopped() => SessionEnd::Stopped,
            _ if lost => SessionEnd::MemoryLost,
            end => end,
        }
    }

    fn serve(&mut self) -> SessionEnd {
        loop {
            let message = match receive(self.handle.stream()) {
                Ok(Some(message)) => message,
                Ok(None) => return SessionEnd::Closed,
                Err(error) => return error.into(),
            };
            self.stats.counts.messages.inc();
            self.stats.counts.surplus_fds.add(message.surplus);
            let header = message.header;
            let answer = self.dispatch(message);
            if let Err(error) = self.answer(&header, answer) {
                let gone = matches!(error, Errno::PIPE | Errno::CONNRESET);
                return if gone { SessionEnd::Closed } else { StreamError::from(error).into() };
            }
            if self.requests.memory_lost() {
                return SessionEnd::MemoryLost;
            }
        }
    }

    /// Carries a request out; None: it failed.
    fn dispatch(&mut self, message: Message) -> Option<Answer> {
        let code = message.header.request.get();
        // Unwind safety: requests change what they know as a whole or not at all, and after a panic
        // the device is stopped.
        match catch_unwind(AssertUnwindSafe(|| self.requests.handle(message))) {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(error)) => {
                self.stats.counts.errors.inc();
                if let Some(held_back) = self.log.allow() {
                    tracing::debug!(request = code, %error, held_back, "request refused");
                }
                None
            }
            Err(_) => {
                self.stats.counts.errors.inc();
                self.stats.counts.panics.inc();
                if let Some(held_back) = self.log.allow() {
                    tracing::error!(request = code, held_back, "fault in device code; device stopped");
                }
                if catch_unwind(AssertUnwindSafe(|| self.requests.stop())).is_err() {
                    self.stats.counts.panics.inc();
                }
                None
            }
        }
    }

    fn answer(&self, asked: &Header, answer: Option<Answer>) -> Result<(), Errno> {
        let acknowledged = asked.needs_reply() && self.requests.agreed(protocol::REPLY_ACK);
        let code = asked.request.get();
        match answer {
            Some(Answer::Payload(payload)) => self.send(code, &payload),
            Some(Answer::File(payload, file)) => self.send_with(code, &payload, &file),
            // An empty answer says that the configuration space cannot be read.
            None if request::answers_with_config(code) => self.send(code, &[]),
            None if code == SET_LOG_BASE => self.send(code, 1u64.as_bytes()),
            // A front end that waits for a value gets zeros rather than nothing.
            None if let Some(len) = request::answer_len(code) => self.send(code, &vec![0; len]),
            Some(Answer::Done) if acknowledged => self.send(code, 0u64.as_bytes()),
            None if acknowledged => self.send(code, 1u64.as_bytes()),
            _ => Ok(()),
        }
    }

    /// The first byte carries the descriptor.
    #[expect(clippy::indexing_slicing, reason = "no more is sent than there is")]
    fn send_with(&self, code: u32, payload: &[u8], file: &OwnedFd) -> Result<(), Errno> {
        let bytes = [Header::reply(code, payload.len()).as_bytes(), payload].concat();
        let sent = fds::send(self.handle.stream(), &bytes, file)?;
        self.write(&bytes[sent..])
    }

    fn send(&self, code: u32, payload: &[u8]) -> Result<(), Errno> {
        let mut bytes = Vec::with_capacity(HEADER + payload.len());
        bytes.extend_from_slice(Header::reply(code, payload.len()).as_bytes());
        bytes.extend_from_slice(payload);
        self.write(&bytes)
    }

    #[expect(clippy::indexing_slicing, reason = "no more is sent than there is")]
    fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut sent = 0;
        while sent < bytes.len() {
            match rustix::net::send(self.handle.stream(), &bytes[sent..], SendFlags::NOSIGNAL) {
                Ok(more) => sent += more,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
