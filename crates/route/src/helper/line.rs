//! The daemon's side: the line, calls, and rings for streams.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use vmlane_wire::route::{FLAG_RING, Op, Record, Refusal};

use super::{Entry, Helper, LINE, PROGRAM, Stage, refusal};
use crate::credit::Window;
use crate::daemon::{self, Line};
use crate::frame::Frame;
use crate::link::{Phase, Token};
use crate::program::Program;
use crate::ring::Ring;
use crate::stream::Stream;

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
            peer.told = None;
        }
        self.strangers_told = None;
    }

    pub(super) fn line_event(&mut self) {
        let outcome = match &self.line {
            Line::Down { .. } => return,
            Line::Asking(socket) => match daemon::answer(socket) {
                Ok(None) => return,
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
    }

    fn line_up(&mut self, line: OwnedFd) -> io::Result<()> {
        self.watch(&line, LINE, epoll::EventFlags::IN)?;
        let none = Line::Down { retry: Instant::now(), why: String::new() };
        let Line::Asking(asked) = std::mem::replace(&mut self.line, none) else { return Ok(()) };
        tracing::info!("the daemon is there");
        self.line = Line::Up { _asked: asked, line };
        self.tell_daemon();
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

    /// Says something to the daemon. False: it has no room, or is not there.
    pub(super) fn say(&self, message: &[u8]) -> bool {
        let Line::Up { line, .. } = &self.line else { return false };
        daemon::say(line, message).unwrap_or(false)
    }

    fn refuse_call(&self, number: u64, why: Refusal) {
        let message = Record::message(Op::Refuse, number, Default::default(), why as u32, "");
        if !self.say(&message) {
            tracing::debug!(number, "the daemon does not hear that a call was refused");
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
        lane.say(&Frame::Open { stream, ends, flags, groups });
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

    /// The daemon says something about the ring of a stream.
    pub(super) fn daemon_answers(&mut self, token: Token) {
        let Some(Entry { stage: Stage::Asking { socket, accepts, .. }, .. }) = self.entries.get(&token)
        else {
            return;
        };
        let accepts = *accepts;
        let refuse = |this: &mut Helper, error: &io::Error| {
            let why = refusal(error);
            match accepts {
                true => this.drop_stream(token, Some(&|stream| Frame::Reset { stream })),
                false => this.drop_stream(token, Some(&|stream| Frame::Refuse { stream, why })),
            }
        };
        let answer = match daemon::answer(socket) {
            Ok(None) => return,
            Ok(Some((reply, fds))) => match reply.error.get() {
                0 => Ok(fds.into_iter()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            },
            Err(error) => Err(error),
        };
        let mut files = match answer {
            Ok(files) => files,
            Err(error) => return refuse(self, &error),
        };
        let Some(memory) = files.next() else { return refuse(self, &io::ErrorKind::InvalidData.into()) };
        let Some(entry) = self.entries.remove(&token) else { return };
        let Entry { link, number, stage: Stage::Asking { socket, early, .. } } = entry else { return };
        let peers = self.links.get(&link).map(|link| link.lane.windows.clone());
        let Some(peers) = peers else { return };
        let window = Window::new([peers, self.windows.clone()]);
        let ring = match files.next() {
            None => Ring::of_daemon(memory),
            // A program's own, and the daemon's end of its socket.
            Some(program) => Program::new(program, self.epoll.clone(), token | PROGRAM)
                .and_then(|program| Ring::of_program(memory, program)),
        };
        let stream = match ring {
            Ok(ring) => Stream::new(number, socket, ring, window),
            Err(error) => {
                if let Some(held_back) = self.logs.rings.allow() {
                    tracing::error!(%error, held_back, "the ring of a stream");
                }
                self.entries.insert(token, Entry { link, number, stage: Stage::Calling(0) });
                return refuse(self, &error);
            }
        };
        let stage = Stage::Streaming(Box::new(stream));
        self.entries.insert(token, Entry { link, number, stage });
        if !accepts && let Some(link) = self.links.get_mut(&link) {
            link.lane.say(&Frame::Accept { stream: number });
        }
        self.wake(link, token);
        for frame in early {
            self.stream_frame(token, &frame);
        }
    }
}
