//! A vfio-user session: one VMM, one socket, one device.
//!
//! A register access costs two system calls, one to receive and one to answer. Bad requests are
//! answered with an error and the session continues; a panic in device code is contained the same way
//! and resets the device. A session ends only when the peer closes, when its stream is not valid
//! any more, when its memory file was cut short, or when it is asked to stop.
//!
//! `VERSION` may come at any time or not at all: nothing depends on it, and a socket handed over by
//! a previous daemon has had it already. What the next daemon needs is in shared files before each answer
//! leaves (`kept/message_file.rs`, `checkpoint.rs`; `docs/survival.md`).

mod checkpoint;
mod error;
mod inbox;
mod refuse;
mod reply;
mod request;
mod set_irqs;
mod waiter;

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustix::io::Errno;
use vmlane_device::pci::{CONFIG_REGION, Checkpoint, PciDevice};
use vmlane_mem::MemoryMap;
use vmlane_state::Scope;
use vmlane_wire::vfio_user::{Command, Header, Kind, MAX_MESSAGE, RegionAccess, split};

pub use checkpoint::Prepared;
pub use error::RequestError;
pub use inbox::{MAX_FDS, StreamError};
pub(crate) use refuse::refuse;
pub use request::MAX_ACCESS;

use crate::event_fd::is_event_fd;
pub use crate::handle::SessionHandle;
use crate::irq::IrqSet;
use crate::kept::{self, Done, Inbound, MessageFile, StoredAnswer};
use crate::stats::{SessionStats, guarded};
use checkpoint::{KIND, Keep};
use inbox::{Inbox, Message, Received};
use reply::Reply;
use request::Requests;
use vmlane_port::LogLimit;
use waiter::Waiter;

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
    #[error("socket: {0}")]
    Socket(#[source] io::Error),
}

/// One VMM served. The device is borrowed: it outlives its VMMs.
pub struct Session<'d> {
    handle: SessionHandle,
    requests: Requests<'d>,
    message_file: MessageFile,
    keep: Keep,
    inbox: Inbox,
    reply: Reply,
    waiter: Waiter,
    log: LogLimit,
    /// Where bytes are examined before they are taken.
    scratch: Box<[u8]>,
    /// Highest number of a request for which descriptors are held.
    held: u64,
    /// The message before was not [`plain`]: the next one may bring descriptors, which are held for the next
    /// daemon before the message is taken.
    wary: bool,
    /// What a previous daemon left to be done before anything else.
    unfinished: Option<Unfinished>,
}

/// What a previous daemon had not finished. All of it stays as it is until the answer has left: should this
/// daemon end before, too, the next one finds the same.
struct Unfinished {
    /// The request that it had carried out; its answer may not have been sent.
    done: Option<Done>,
    inbound: Vec<Inbound>,
}

impl<'d> Session<'d> {
    /// A VMM that has just connected. What the next daemon needs is held in `scope`.
    pub fn new(
        stream: UnixStream,
        device: &'d mut dyn PciDevice,
        irqs: Arc<IrqSet>,
        stats: Arc<SessionStats>,
        scope: &Scope,
    ) -> io::Result<Session<'d>> {
        // Sleeping in the kernel is the idle state, whatever the acceptor had set.
        stream.set_nonblocking(false)?;
        let message_file = MessageFile::create()?;
        let keep = Keep::new(kept::Keep::begin(KIND, scope, &stream, &message_file, files(device))?);
        stats.counts.sessions.inc();
        let handle = SessionHandle::new(stream);
        let requests = Requests::new(device, irqs, stats, scope.clone(), handle.memory().clone());
        Ok(Session::begin(handle, requests, message_file, keep, None))
    }

    fn begin(
        handle: SessionHandle,
        requests: Requests<'d>,
        message_file: MessageFile,
        keep: Keep,
        unfinished: Option<Unfinished>,
    ) -> Session<'d> {
        Session {
            handle,
            requests,
            message_file,
            keep,
            inbox: Inbox::new(),
            reply: Reply::new(),
            waiter: Waiter::new(),
            log: LogLimit::default(),
            scratch: vec![0; MAX_MESSAGE].into(),
            held: 0,
            wary: true,
            unfinished,
        }
    }

    /// A previous daemon's VMM, with whatever it had asked. A device that cannot take over is reset.
    pub fn resume(
        prepared: Prepared,
        device: &'d mut dyn PciDevice,
        irqs: Arc<IrqSet>,
        stats: Arc<SessionStats>,
    ) -> Session<'d> {
        device.memory(&prepared.map);
        let mut prepared = prepared;
        let found = &mut prepared;
        let resumed = catch_unwind(AssertUnwindSafe(|| {
            let survival = device.survival().ok_or("the device does not survive")?;
            survival.adopt(&mut found.files);
            match &found.records {
                Ok(records) => survival.resume(Checkpoint { records }).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            }
        }));
        let reset = resumed.unwrap_or_else(|panic| Err(panic_text(&*panic).to_owned())).err();
        if let Some(error) = reset {
            tracing::error!(error, "the state of a previous daemon is of no use; device reset");
            guarded(&stats, || match device.survival() {
                Some(survival) => survival.abandon(),
                None => device.reset(),
            });
        }
        prepared.hold(files(device));
        let Prepared { stream, message_file, map, keep, done, inbound, .. } = prepared;
        let handle = SessionHandle::new(stream);
        let mut requests =
            Requests::new(device, irqs, stats, keep.files.scope.clone(), handle.memory().clone());
        requests.map = map;
        requests.note_map();
        Session::begin(handle, requests, message_file, keep, Some(Unfinished { done, inbound }))
    }

    /// Sends the answer that a previous daemon left pending, and goes on where it was. The VMM may take any
    /// time to read: this is no part of [`Session::resume`], whose caller serves others.
    fn finish(&mut self, Unfinished { done, inbound }: Unfinished) {
        let done = done.filter(|done| done.number == self.message_file.cursor().0);
        if let Some(done) = done
            && let Err(error) = self.message_file.send(self.handle.stream(), done.stored)
        {
            tracing::debug!(%error, "an answer of the previous daemon");
        }
        let mut inbox = Inbox::resume(&mut self.message_file, done.map(|done| done.size));
        self.held = inbound.last().map_or(0, |(number, ..)| *number);
        for (number, place, _) in inbound.iter().filter(|(number, ..)| *number < inbox.number()) {
            self.keep.files.scope.remove(&format!("s/in.{number}.{place}"));
        }
        inbox.restore_fds(&self.message_file, inbound.into_iter().map(|(number, _, fd)| (number, fd)));
        self.requests.again = inbox.pending() > 0;
        self.inbox = inbox;
    }

    pub fn handle(&self) -> SessionHandle {
        self.handle.clone()
    }

    /// Serves until the peer closes or cannot be served any longer. Afterwards the device is reset,
    /// without memory and without interrupts, ready for the next VMM.
    pub fn run(mut self) -> SessionEnd {
        let survey = catch_unwind(AssertUnwindSafe(|| self.requests.survey()));
        if let Err(panic) = survey {
            self.contain(&*panic, "listing regions");
        }
        if let Some(unfinished) = self.unfinished.take() {
            self.finish(unfinished);
        }
        let end = self.serve();
        if let SessionEnd::Broken(_) = end {
            self.requests.stats.counts.protocol_errors.inc();
        }
        let lost = self.requests.map.poisoned();
        self.detach();
        match end {
            _ if self.handle.is_stopped() => SessionEnd::Stopped,
            _ if lost => SessionEnd::MemoryLost,
            end => end,
        }
    }

    fn serve(&mut self) -> SessionEnd {
        // A file may have been cut short before, or while a previous daemon's device took over.
        if self.requests.map.poisoned() {
            return SessionEnd::MemoryLost;
        }
        loop {
            match self.inbox.next(&self.message_file) {
                Ok(Some(message)) => {
                    let header = message.header;
                    let number = self.inbox.number();
                    let plain = plain(&message);
                    let outcome = dispatch(&mut self.requests, &mut self.reply, number, message);
                    if let Err(error) = self.answer(&header, outcome, plain) {
                        let gone = matches!(error, Errno::PIPE | Errno::CONNRESET);
                        return if gone { SessionEnd::Closed } else { SessionEnd::Socket(error.into()) };
                    }
                    if self.requests.map.poisoned() {
                        return SessionEnd::MemoryLost;
                    }
                }
                Ok(None) => match self.receive() {
                    Ok(Received::Closed) => return self.closed(),
                    Ok(Received::Bytes | Received::Nothing) => {}
                    Err(error) => return SessionEnd::Socket(error.into()),
                },
                Err(error) => return error.into(),
            }
        }
    }

    fn receive(&mut self) -> Result<Received, Errno> {
        let surplus = self.inbox.surplus;
        let handle = self.handle.clone();
        let stream = handle.stream();
        let mut most = usize::MAX;
        let wary = self.wary && self.inbox.pending() == 0;
        if wary {
            // Descriptors are held before their message is taken: a daemon that is killed between the
            // two finds the message again.
            let sight = match inbox::peek(stream, &mut self.scratch) {
                Ok(sight) => sight,
                Err(Errno::CONNRESET) => return Ok(Received::Closed),
                Err(error) => return Err(error),
            };
            hold(&self.requests, &mut self.held, self.inbox.number() + sight.before, &sight.fds);
            most = sight.bytes.max(1);
        }
        let (message_file, inbox) = (&mut self.message_file, &mut self.inbox);
        let expected = self.requests.expected;
        let waker = if expected.after_vector_0.is_zero() { None } else { self.requests.irqs.waker() };
        let sleep = || waker.map_or(Ok(false), |waker| waker.sleep(stream));
        let received =
            self.waiter.wait(expected, sleep, |wait| inbox.receive(message_file, stream, wait, most));
        if let Ok(Received::Bytes) = received
            && !wary
            && let Some((number, fds)) = self.inbox.last_fds(&self.message_file)
        {
            hold(&self.requests, &mut self.held, number, fds);
        }
        if self.inbox.surplus != surplus {
            self.requests.stats.counts.surplus_fds.add(self.inbox.surplus - surplus);
        }
        received
    }

    fn closed(&self) -> SessionEnd {
        match self.inbox.pending() {
            0 => SessionEnd::Closed,
            have => StreamError::Cut { have }.into(),
        }
    }

    fn answer(&mut self, request: &Header, outcome: Outcome, plain: bool) -> Result<(), Errno> {
        self.requests.stats.counts.messages.inc();
        let errno = match outcome {
            Outcome::Done => None,
            Outcome::Refused(error) => {
                self.requests.stats.counts.errors.inc();
                if let Some(held_back) = self.log.allow() {
                    let command = request.command.get();
                    tracing::debug!(command, %error, held_back, "request refused");
                }
                Some(error.errno())
            }
            Outcome::Panicked(panic) => {
                self.requests.stats.counts.errors.inc();
                self.contain(&*panic, "a request");
                Some(Errno::IO)
            }
        };
        // Answering what wants no answer, or is one itself, would put the peer out of step.
        let silent = request.no_reply() || request.kind() == Kind::Reply;
        match errno {
            None => self.reply.finish(request),
            Some(errno) => self.reply.finish_error(request, errno),
        }
        let stored =
            if silent { StoredAnswer::default() } else { self.message_file.put(self.reply.bytes())? };
        let number = self.inbox.number();
        // Valid before the answer leaves: from here on the next daemon only answers.
        self.keep.done(Done { number, size: self.inbox.serving().1, stored }, &self.requests.irqs);
        let (requests, log) = (&mut self.requests, &self.keep.files.log);
        guarded(&requests.stats, || {
            requests.device.survival().into_iter().for_each(|state| state.record(log))
        });
        log.commit();
        if !silent {
            self.reply.send(self.handle.stream(), &mut self.message_file, stored)?;
        }
        self.inbox.done(&mut self.message_file);
        self.requests.again = false;
        if number <= self.held {
            self.requests.scope.remove_all(&format!("s/in.{number}."));
        }
        self.wary = !plain;
        Ok(())
    }

    /// After a fault in device code: the device is reset and continues with the same memory.
    fn contain(&mut self, panic: &(dyn Any + Send), during: &str) {
        self.requests.stats.counts.panics.inc();
        if let Some(held_back) = self.log.allow() {
            let what = panic_text(panic);
            tracing::error!(during, what, held_back, "fault in device code; device reset");
        }
        let requests = &mut self.requests;
        guarded(&requests.stats, || requests.device.reset());
        guarded(&requests.stats, || requests.device.memory(&requests.map));
    }

    /// Leaves the device without a session. Memory is still mapped while it resets, so that what is under
    /// way can be finished.
    fn detach(&mut self) {
        let requests = &mut self.requests;
        guarded(&requests.stats, || requests.device.reset());
        guarded(&requests.stats, || requests.device.unmap(0, u64::MAX));
        requests.map = MemoryMap::default();
        requests.note_map();
        guarded(&requests.stats, || requests.device.memory(&requests.map));
        requests.irqs.clear();
        guarded(&requests.stats, || requests.device.irqs_changed());
        self.keep.files.end();
    }
}

/// What the next daemon needs of a device.
fn files(device: &mut dyn PciDevice) -> Vec<(&'static str, OwnedFd)> {
    device.survival().map_or(Vec::new(), |survival| survival.files())
}

/// Holds descriptors that came with request `number` until it has been carried out. `held`: the highest of
/// them.
fn hold(requests: &Requests<'_>, held: &mut u64, number: u64, fds: &[OwnedFd]) {
    if !fds.is_empty() {
        *held = number.max(*held);
    }
    let is_usable = |fd: &OwnedFd| vmlane_mem::may_hold_guest_memory(fd) || is_event_fd(fd.as_fd());
    kept::hold_inbound(&requests.scope, number, fds, is_usable);
}

/// An access to a register of the device itself: it costs two system calls, which messages with descriptors
/// seldom follow. They do follow what switches interrupts or memory on in configuration space.
fn plain(message: &Message<'_>) -> bool {
    let access = [Command::RegionRead.code(), Command::RegionWrite.code()];
    access.contains(&message.header.command.get())
        && split::<RegionAccess>(message.payload)
            .is_some_and(|(access, _)| access.region.get() as usize != CONFIG_REGION)
}

/// What became of a request.
enum Outcome {
    Done,
    Refused(RequestError),
    Panicked(Box<dyn Any + Send>),
}

fn dispatch(requests: &mut Requests<'_>, reply: &mut Reply, number: u64, message: Message<'_>) -> Outcome {
    reply.begin();
    // Unwind safety: after a panic the device is reset and the reply begun anew, and the map in
    // `requests` is only ever replaced as a whole.
    let work = || {
        requests.device.begin(number);
        let outcome = requests.handle(message, reply);
        requests.expected = requests.device.expected();
        outcome
    };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => Outcome::Done,
        Ok(Err(error)) => Outcome::Refused(error),
        Err(panic) => Outcome::Panicked(panic),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
