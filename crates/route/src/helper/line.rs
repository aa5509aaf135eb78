//! The daemon's side: the line, and its calls.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use vmlane_wire::route::{FLAG_RING, Op, Record, Refusal};

use super::state::{Entry, Helper, LINE, Stage};
use crate::daemon::{self, Line};
use crate::frame::Frame;
use crate::link::{Phase, Token};

/// Between attempts to reach the daemon.
const RETRY: Duration = Duration::from_millis(300);
/// Messages of the line that are read before others have their turn.
const MESSAGES: usize = 256;

impl Helper {
    /// Tries to reach the daemon, if it is not there.
    pub(super) fn reach_daemon(&mut self, now: Instant) {
        let Line::Down { retry, .. } = &self.line else { return };
        if *retry > now {
            return;
        }
        let record = Record::message(Op::Line, 0, Default::default(), FLAG_RING, "");
        let asked = daemon::ask(&self.settings.socket, &record).and_then(|socket| {
            self.watch(&socket, LINE, epoll::EventFlags::IN)?;
            Ok(socket)
        });
        match asked {
            Ok(socket) => self.line = Line::Asking(socket),
            Err(error) => self.line_down(&error),
        }
    }

    fn line_down(&mut self, error: &io::Error) {
        let text = match error.raw_os_error() {
            Some(errno) if errno == rustix::io::Errno::BUSY.raw_os_error() => {
                "another helper is there already; end it".to_owned()
            }
            _ => error.to_string(),
        };
        let before = match &self.line {
            Line::Down { why, .. } => why.clone(),
            Line::Asking(_) | Line::Up { .. } => String::new(),
        };
        if before != text {
            tracing::warn!(socket = %self.settings.socket.display(), "no daemon: {text}; trying on");
        }
        self.line = Line::Down { retry: Instant::now() + RETRY, why: text };
        for peer in self.peers.values_mut() {
            peer.reported = None;
        }
        self.strangers_reported = None;
    }

    /// Something happened at the line. True: the daemon is there from now on, and knows nothing of the peers
    /// yet.
    pub(super) fn line_event(&mut self) -> bool {
        let was_up = matches!(self.line, Line::Up { .. });
        let outcome = match &self.line {
            Line::Down { .. } => return false,
            Line::Asking(socket) => match daemon::answer(socket) {
                Ok(None) => return false,
                Ok(Some((reply, mut fds))) => match (reply.error.get(), fds.pop()) {
                    (0, Some(line)) => self.line_up(line),
                    (0, None) => Err(io::ErrorKind::InvalidData.into()),
                    (errno, _) => Err(io::Error::from_raw_os_error(errno)),
                },
                Err(error) => Err(error),
            },
            Line::Up { .. } => self.listen_to_line(),
        };
        if let Err(error) = outcome {
            self.line_down(&error);
        }
        !was_up && matches!(self.line, Line::Up { .. })
    }

    fn line_up(&mut self, line: OwnedFd) -> io::Result<()> {
        self.watch(&line, LINE, epoll::EventFlags::IN)?;
        let none = Line::Down { retry: Instant::now(), why: String::new() };
        let Line::Asking(asked) = std::mem::replace(&mut self.line, none) else { return Ok(()) };
        tracing::info!("the daemon is there");
        self.line = Line::Up { _asked: asked, line };
        Ok(())
    }

    fn listen_to_line(&mut self) -> io::Result<()> {
        for _ in 0..MESSAGES {
            let Line::Up { line, .. } = &self.line else { return Ok(()) };
            let message = daemon::message(line)?;
            if message.is_empty() {
                // The other connection may have ended.
                return Ok(());
            }
            let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the daemon speaks another version");
            match Record::parse(&message).ok_or_else(wrong)? {
                (record, Op::Call, text) => self.call(&record, text),
                (record, Op::GivenUp, _) => {
                    if let Some(&token) = self.calls.get(&record.number.get()) {
                        self.drop_stream(token, Some(&|stream| Frame::Reset { stream }));
                    }
                }
                _ => return Err(wrong()),
            }
        }
        Ok(())
    }

    /// Sends a message to the daemon. False: it has no room, or is not there.
    pub(super) fn send_to_daemon(&self, message: &[u8]) -> bool {
        let Line::Up { line, .. } = &self.line else { return false };
        daemon::send(line, message).unwrap_or(false)
    }

    fn refuse_call(&self, number: u64, why: Refusal) {
        let message = Record::message(Op::Refuse, number, Default::default(), why as u32, "");
        if !self.send_to_daemon(&message) {
            tracing::debug!(number, "the daemon cannot be notified that a call was refused");
        }
    }

    /// The daemon wants a stream to a peer.
    fn call(&mut self, record: &Record, text: &str) {
        let number = record.number.get();
        let (name, groups) = text.split_once('\n').unwrap_or((text, ""));
        let token = self.token();
        let link = self.peers.get(name).and_then(|peer| peer.link);
        let link =
            link.and_then(|link| self.links.get_mut(&link)).filter(|link| link.lane.phase == Phase::Up);
        let Some(link) = link else { return self.refuse_call(number, Refusal::Absent) };
        let lane = &mut link.lane;
        let room = lane.streams.len() < self.settings.bounds.streams.min(lane.takes);
        let Some(stream) = room.then(|| lane.own_number()).flatten() else {
            return self.refuse_call(number, Refusal::Full);
        };
        lane.streams.insert(stream, token);
        let (ends, flags, groups) = (record.ends(), record.flags.get(), groups.to_owned());
        lane.queue(&Frame::Open { stream, ends, flags, groups });
        let link = lane.token;
        self.entries.insert(token, Entry { link, number: stream, stage: Stage::Calling(number) });
        self.calls.insert(number, token);
        self.again(link);
    }

    /// The peer has refused what the daemon asked for.
    pub(super) fn call_refused(&mut self, token: Token, why: Refusal) {
        if let Some(Entry { stage: Stage::Calling(number), .. }) = self.entries.get(&token) {
            self.refuse_call(*number, why);
        }
        self.drop_stream(token, None);
    }

    /// Asks the daemon for the ring of a stream. Returns what it is waited for with.
    pub(super) fn ask_for_ring(&self, token: Token, message: &[u8], accepts: bool) -> io::Result<Stage> {
        if !matches!(self.line, Line::Up { .. }) {
            return Err(rustix::io::Errno::NODEV.into());
        }
        let socket = daemon::ask(&self.settings.socket, message)?;
        self.watch(&socket, token, epoll::EventFlags::IN)?;
        Ok(Stage::Asking { socket, accepts, early: Vec::new() })
    }
}
