//! A vhost-user session, the back end's side: one VMM, one socket, one device.
//!
//! Follows `docs/interop/vhost-user.rst` of QEMU. Whatever the front end changes, the device is
//! stopped, the change is made, and the rings that can run then are run again: there is no state in
//! between. Requests that make no sense are refused where an answer is wanted and change nothing; a
//! panic in device code is contained the same way. A session ends when the peer closes, when its
//! stream is no longer valid, when its memory file was cut short, or when it is asked to stop.
//!
//! The session of a device that survives ([`VhostDevice::survival`]) is continued by the next daemon.
//! Requests are received into a shared file and answered from there (`kept/message_file.rs`), and what has
//! come of each is recorded before it is answered (`checkpoint.rs`; `docs/survival.md`). Messages have no
//! numbers here, and equal ones may follow each other: they are counted.

mod agreed;
mod checkpoint;
mod error;
mod inbox;
mod lines;
mod memory;
mod request;
mod rings;
mod shared;

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustix::io::Errno;
use vmlane_device::virtio::vhost::VhostDevice;
use vmlane_state::Scope;
use vmlane_wire::vhost_user::request::SET_LOG_BASE;
use vmlane_wire::vhost_user::{Header, protocol};
use zerocopy::IntoBytes;

use self::checkpoint::Keep;
pub use self::checkpoint::Prepared;
use self::inbox::{Message, StreamError};
pub use self::lines::RingLines;
use self::request::{Answer, Requests};
use crate::fds;
use crate::handle::SessionHandle;
use crate::kept::{Done, Inbound, MessageFile, StoredAnswer, hold_inbound};
use crate::stats::{SessionStats, guarded};
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
    message_file: MessageFile,
    keep: Keep,
    /// What a previous daemon left to be done before anything else.
    unfinished: Option<Unfinished>,
    stats: Arc<SessionStats>,
    log: LogLimit,
}

/// What a previous daemon had not finished.
struct Unfinished {
    anew: bool,
    /// The request that it had carried out; its answer may not have been sent.
    done: Option<Done>,
    inbound: Vec<Inbound>,
}

impl<'d> Session<'d> {
    /// A front end that has just connected. If the device survives, what the next daemon needs is held in
    /// `scope`.
    pub fn new(
        stream: UnixStream,
        device: &'d mut dyn VhostDevice,
        lines: Arc<RingLines>,
        stats: Arc<SessionStats>,
        scope: &Scope,
    ) -> io::Result<Session<'d>> {
        stream.set_nonblocking(false)?;
        let mut message_file = MessageFile::create()?;
        message_file.set_cursor(1, 0);
        let keep = Keep::begin(scope, &stream, &message_file, device)?;
        stats.counts.sessions.inc();
        Ok(Session::begin(stream, message_file, keep, device, lines, stats))
    }

    /// A previous daemon's front end, with whatever it had asked. The device has taken over.
    pub fn resume(
        prepared: Prepared,
        device: &'d mut dyn VhostDevice,
        lines: Arc<RingLines>,
        stats: Arc<SessionStats>,
    ) -> Session<'d> {
        let Prepared { stream, message_file, keep, agreed, questions, anew, done, inbound } = prepared;
        let mut session = Session::begin(stream, message_file, keep, device, lines, stats);
        session.requests.resume(agreed, questions);
        session.unfinished = Some(Unfinished { anew, done, inbound });
        session
    }

    fn begin(
        stream: UnixStream,
        message_file: MessageFile,
        keep: Keep,
        device: &'d mut dyn VhostDevice,
        lines: Arc<RingLines>,
        stats: Arc<SessionStats>,
    ) -> Session<'d> {
        let handle = SessionHandle::new(stream);
        let (memory, scope) = (handle.memory().clone(), keep.scope().clone());
        let requests = Requests::new(device, lines, stats.clone(), memory, scope);
        Session { handle, requests, message_file, keep, unfinished: None, stats, log: LogLimit::default() }
    }

    pub fn handle(&self) -> SessionHandle {
        self.handle.clone()
    }

    /// Serves until the peer closes or cannot be served any longer. Afterwards no ring runs and
    /// nothing is mapped, ready for the next VMM.
    pub fn run(mut self) -> SessionEnd {
        let Err(end) = self.serve();
        let lost = self.requests.memory_lost();
        if let SessionEnd::Broken(_) = end {
            self.stats.counts.protocol_errors.inc();
        }
        guarded(&self.stats, || self.requests.leave());
        self.keep.end();
        match end {
            _ if self.handle.is_stopped() => SessionEnd::Stopped,
            _ if lost => SessionEnd::MemoryLost,
            end => end,
        }
    }

    fn serve(&mut self) -> Result<Infallible, SessionEnd> {
        if let Some(unfinished) = self.unfinished.take() {
            self.finish(unfinished)?;
        }
        loop {
            // Requests that wait come first: a chain may lie in memory that one of them brings.
            if self.requests.waits()
                && !inbox::is_waiting(self.handle.stream())
                && !guarded(&self.stats, || self.requests.go())
            {
                guarded(&self.stats, || self.requests.stop());
            }
            let (number, _) = self.message_file.cursor();
            let scope = self.keep.scope();
            let hold = |fds: &[OwnedFd]| {
                hold_inbound(scope, number, fds, is_usable);
                tracing::trace!(number, "request seen");
            };
            let received = inbox::receive(self.handle.stream(), &mut self.message_file, hold)?;
            let (message, surplus) = received.ok_or(SessionEnd::Closed)?;
            self.stats.counts.surplus_fds.add(surplus);
            self.carry_out(message)?;
        }
    }

    /// Sends the answer that a previous daemon had not sent, or carries out the request that it had taken.
    fn finish(&mut self, Unfinished { anew, done, inbound }: Unfinished) -> Result<(), SessionEnd> {
        guarded(&self.stats, || self.requests.recover(anew));
        if let Some(done) = done.filter(|done| done.number == self.message_file.cursor().0) {
            self.message_file.send(self.handle.stream(), done.stored).map_err(gone)?;
            self.clear(done.size);
        }
        let (next, _) = self.message_file.cursor();
        let (fds, over): (Vec<_>, Vec<_>) = inbound.into_iter().partition(|(number, ..)| *number == next);
        for (number, place, _) in over.iter().filter(|(number, ..)| *number < next) {
            self.keep.scope().remove(&format!("s/in.{number}.{place}"));
        }
        let fds = fds.into_iter().map(|(.., fd)| fd).collect();
        match Message::of(&self.message_file, fds)? {
            Some(message) => self.carry_out(message),
            None => Ok(()),
        }
    }

    /// Carries a request out, which may have been done before, records that, and answers it.
    fn carry_out(&mut self, message: Message) -> Result<(), SessionEnd> {
        self.stats.counts.messages.inc();
        let (header, size, brought) = (message.header, message.size(), !message.fds.is_empty());
        let (number, _) = self.message_file.cursor();
        tracing::trace!(number, "request taken");
        let answer = self.dispatch(message);
        tracing::trace!(number, "request carried out");
        self.answer(number, size, self.reply(&header, answer)).map_err(gone)?;
        self.clear(size);
        tracing::trace!(number, "request cleared");
        if brought {
            self.keep.scope().remove_all(&format!("s/in.{number}."));
        }
        if self.requests.memory_lost() { Err(SessionEnd::MemoryLost) } else { Ok(()) }
    }

    /// Records what was done before the answer leaves: from then on the next daemon only answers. One that
    /// carries a descriptor leaves first, since the next daemon would have to make that anew.
    fn answer(&mut self, number: u64, size: usize, (bytes, file): Reply) -> Result<(), Errno> {
        let stream = self.handle.stream();
        let stored = match file {
            // A few bytes: they go in one piece.
            Some(file) => fds::send(stream, &bytes, &file).map(|_| StoredAnswer::default())?,
            None if bytes.is_empty() => StoredAnswer::default(),
            None => self.message_file.put(&bytes)?,
        };
        self.keep.done(Done { number, size, stored }, &self.requests.agreed);
        tracing::trace!(number, "request recorded");
        self.message_file.send(stream, stored)?;
        tracing::trace!(number, "request answered");
        Ok(())
    }

    /// The request at hand is done with. Its bytes go first: a header that is left would be a request.
    fn clear(&mut self, size: usize) {
        let (number, _) = self.message_file.cursor();
        self.message_file.inbound_mut().iter_mut().take(size).for_each(|byte| *byte = 0);
        self.message_file.set_cursor(number + 1, 0);
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
                guarded(&self.stats, || self.requests.stop());
                None
            }
        }
    }

    /// What is answered: bytes, none if nothing is, and a descriptor that goes with them.
    fn reply(&self, asked: &Header, answer: Option<Answer>) -> Reply {
        let acknowledged = asked.needs_reply() && self.requests.agreed(protocol::REPLY_ACK);
        let code = asked.request.get();
        let with = |payload: &[u8]| [Header::reply(code, payload.len()).as_bytes(), payload].concat();
        let bytes = match answer {
            Some(Answer::Payload(payload)) => with(&payload),
            Some(Answer::File(payload, file)) => return (with(&payload), Some(file)),
            // An empty answer means that the configuration space cannot be read.
            None if request::answers_with_config(code) => with(&[]),
            None if code == SET_LOG_BASE => with(1u64.as_bytes()),
            // A front end that waits for a value gets zeros rather than nothing.
            None if let Some(len) = request::answer_len(code) => with(&vec![0; len]),
            Some(Answer::Done) if acknowledged => with(0u64.as_bytes()),
            None if acknowledged => with(1u64.as_bytes()),
            _ => Vec::new(),
        };
        (bytes, None)
    }
}

/// See [`Session::reply`].
type Reply = (Vec<u8>, Option<OwnedFd>);

/// The end of a front end that is gone, or whose socket fails.
fn gone(error: Errno) -> SessionEnd {
    let gone = matches!(error, Errno::PIPE | Errno::CONNRESET);
    if gone { SessionEnd::Closed } else { StreamError::from(error).into() }
}

/// Can a request use the descriptor?
fn is_usable(fd: &OwnedFd) -> bool {
    vmlane_mem::may_hold_guest_memory(fd) || lines::is_usable(fd)
}
