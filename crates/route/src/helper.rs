//! The one thread of the helper: it waits for the daemon, for peers and for streams, and owns all that is
//! known of them.
//!
//! Nothing in it waits for anything else than `epoll`. Each peer has its turn: so many bytes in, so many out.

mod frames;
mod line;
mod peers;
mod state;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use vmlane_port::{Budget, Distinct};
use vmlane_worker::{Decision, Inputs, Policy, Ports, SLEEP};

use self::state::{CONTROL, Entry, FIRST, LINE, LISTENER, Logs, PROGRAM, Stage};
pub use self::state::{Helper, Load};
use crate::buffer::Buffer;
use crate::daemon::Line;
use crate::frame::Frame;
use crate::link::{self, BATCH, Link, Phase, Token};
use crate::settings::Settings;
use crate::status::{PeerState, Status};
use crate::stream::Turn;
use crate::tls::{FilesError, Identity};

/// How often deadlines are checked.
const TICK: Duration = Duration::from_millis(200);
/// Events that are asked for at once.
const EVENTS: usize = 256;
/// How long the helper spins and yields, at most, before it sleeps: a round trip passes four waits of
/// helpers.
const SPIN: Duration = Duration::from_micros(100);
/// Stop.
const STOP: u8 = b's';
/// Read the configuration again.
const RELOAD: u8 = b'r';
/// What the streams of all peers may keep in windows.
const WINDOWS: usize = 256 << 20;
/// Streams of one peer that have their turn before another peer's.
const TURNS: usize = 64;

/// Why the helper does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("listening at {address}: {cause}; choose another address in [route]")]
    Listen { address: std::net::SocketAddr, cause: io::Error },
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for StartError {
    fn from(error: Errno) -> StartError {
        StartError::Io(error.into())
    }
}

impl Helper {
    /// `control`: [`STOP`](Self::STOP) and [`RELOAD`](Self::RELOAD) are read from it.
    pub fn start(settings: Settings, load: Load, control: OwnedFd) -> Result<Helper, StartError> {
        let identity = Identity::load(&settings.files, &settings.name)?;
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(&*epoll, &control, epoll::EventData::new_u64(CONTROL), epoll::EventFlags::IN)?;
        let mut helper = Helper {
            windows: Arc::new(Budget::new(WINDOWS)),
            unproved: peers::admission(&settings, &BTreeMap::new()),
            load,
            identity,
            epoll,
            control,
            listener: None,
            accepts_later: false,
            line: Line::Down { retry: Instant::now(), why: String::new() },
            links: HashMap::new(),
            entries: HashMap::new(),
            calls: HashMap::new(),
            peers: settings.peers.iter().map(|peer| (peer.name.clone(), PeerState::default())).collect(),
            strangers: Status { state: "helper", ..Status::default() },
            strangers_reported: None,
            spare: Buffer::default(),
            busy: Distinct::default(),
            logs: Logs::default(),
            last: FIRST,
            ticked: Instant::now(),
            policy: Policy::new(SPIN, SLEEP),
            settings,
        };
        helper.listen()?;
        Ok(helper)
    }

    /// Ends the helper.
    pub const STOP: u8 = STOP;
    /// Has it read the configuration again.
    pub const RELOAD: u8 = RELOAD;

    fn listen(&mut self) -> Result<(), StartError> {
        (self.listener, self.accepts_later) = (None, false);
        let Some(address) = self.settings.listen else { return Ok(()) };
        let socket = link::listen(address).map_err(|cause| StartError::Listen { address, cause })?;
        self.watch(&socket, LISTENER, epoll::EventFlags::IN)?;
        tracing::info!(%address, name = self.settings.name, "waiting for other hosts");
        self.listener = Some(socket);
        Ok(())
    }

    /// Runs until it is asked to stop.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        self.tick();
        loop {
            self.wait(&mut events)?;
            for event in events.drain(..) {
                match event.data.u64() {
                    CONTROL => match self.control_byte() {
                        Some(STOP) => return Ok(()),
                        Some(RELOAD) => self.reload(),
                        _ => {}
                    },
                    LISTENER => self.accept(),
                    LINE => {
                        if self.line_event() {
                            self.report_status();
                        }
                    }
                    token if self.links.contains_key(&token) => self.link_event(token, event.flags),
                    token => self.entry_event(token),
                }
            }
            for _ in 0..self.busy.len() {
                if let Some(token) = self.busy.pop() {
                    self.serve(token);
                }
            }
            if self.ticked.elapsed() >= TICK {
                self.tick();
            }
        }
    }

    /// What has come. Where there is nothing to do without it, the helper spins and yields for a while, and
    /// then sleeps.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        if !self.busy.is_empty() {
            return self.poll(events, Duration::ZERO);
        }
        let start = Instant::now();
        self.policy.gap_begins(Some(start));
        for rounds in 0.. {
            self.poll(events, Duration::ZERO)?;
            let now = Instant::now();
            let idle = now.saturating_duration_since(start);
            if !events.is_empty() {
                self.policy.found(now);
                break;
            }
            self.policy.resumed(now);
            let ports = Ports::Armed(Some(TICK));
            let inputs = Inputs { now, idle, rounds, moved: 0, ports };
            match self.policy.decide(&inputs) {
                decision @ (Decision::Spin | Decision::Yield) => self.policy.pause(decision, now),
                Decision::Nap(_) | Decision::Sleep(_) => {
                    self.poll(events, TICK)?;
                    if !events.is_empty() {
                        self.policy.found(Instant::now());
                    }
                    break;
                }
            }
        }
        Ok(())
    }

    /// What has come, or comes within `time`. A signal ends it early.
    fn poll(&self, events: &mut Vec<epoll::Event>, time: Duration) -> io::Result<()> {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        match epoll::wait(&*self.epoll, rustix::buffer::spare_capacity(events), Some(&time)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn control_byte(&self) -> Option<u8> {
        let mut byte = [0];
        matches!(rustix::io::read(&self.control, &mut byte), Ok(1)).then_some(byte[0])
    }

    /// Reads the configuration and the certificates again. What is open stays, unless its peer is gone.
    fn reload(&mut self) {
        let loaded = (self.load)().and_then(|settings| {
            let identity = Identity::load(&settings.files, &settings.name);
            identity.map(|identity| (settings, identity)).map_err(|error| error.to_string())
        });
        let (settings, identity) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                return tracing::error!(
                    "reading the configuration again: {error}; the one before stays in force"
                );
            }
        };
        let listens = settings.listen != self.settings.listen;
        self.settings = settings;
        self.identity = identity;
        self.peers_change();
        if listens && let Err(error) = self.listen() {
            tracing::error!("{error}");
        }
        tracing::info!("the configuration and the certificates were read again");
    }

    /// Something happened at a stream's socket, or at its program's.
    fn entry_event(&mut self, event: Token) {
        let (token, of_program) = (event & !PROGRAM, event & PROGRAM != 0);
        let Some(entry) = self.entries.get_mut(&token) else { return };
        let link = entry.link;
        match &mut entry.stage {
            Stage::Calling(_) => {}
            Stage::Asking { .. } => self.daemon_answers(token),
            Stage::Streaming(stream) if of_program => {
                stream.take_programs_signals();
                self.wake(link, token);
            }
            Stage::Streaming(stream) => {
                if stream.take_signals() {
                    self.wake(link, token);
                } else {
                    // The daemon is gone, or has had enough of it.
                    self.drop_stream(token, Some(&|stream| Frame::Reset { stream }));
                }
            }
        }
    }

    /// A peer's turn: what it has sent, then what there is to send to it.
    fn serve(&mut self, token: Token) {
        let Some(mut link) = self.links.remove(&token) else { return };
        link.wire.use_spare(&mut self.spare);
        let received = self.receive(&mut link);
        link.wire.take_back(&mut self.spare);
        let served = received.and_then(|()| self.send_pending(&mut link));
        let queued = self.settings.bounds.queued;
        match served {
            Ok(()) => {
                let again = link.is_busy(queued);
                self.links.insert(token, link);
                if again {
                    self.again(token);
                }
            }
            Err(error) => {
                // What it still has to get: the alert about its certificate, for one.
                let _ = link.wire.flush(&mut Buffer::default());
                self.link_ends(link, &error);
            }
        }
    }

    /// Streams that have something to send have their turns, as long as the network takes it.
    fn send_pending(&mut self, link: &mut Link) -> Result<(), link::LinkError> {
        if link.lane.phase <= Phase::Connecting {
            return Ok(());
        }
        let queued = self.settings.bounds.queued;
        if link.lane.phase == Phase::Up {
            for _ in 0..TURNS.min(link.lane.ready.len()) {
                if link.wire.waiting() + link.lane.plain.len() >= queued {
                    break;
                }
                let Some(token) = link.lane.ready.pop() else { break };
                self.stream_turn(link, token);
                if link.lane.plain.len() >= BATCH {
                    link.wire.flush(&mut link.lane.plain)?;
                }
            }
        }
        if link.lane.phase == Phase::Handshaking {
            return link.wire.flush(&mut Buffer::default());
        }
        link.wire.flush(&mut link.lane.plain)
    }

    fn stream_turn(&mut self, link: &mut Link, token: Token) {
        let Some(Entry { number, stage: Stage::Streaming(stream), .. }) = self.entries.get_mut(&token) else {
            return;
        };
        let (number, before) = (*number, link.lane.plain.len());
        let turn = stream.turn(&mut link.lane.plain, BATCH);
        link.lane.sent += link.lane.plain.len().saturating_sub(before) as u64;
        match turn {
            Ok(Turn::Waits) => {}
            Ok(Turn::Again) => link.lane.ready.push(token),
            Ok(Turn::Over) => {
                self.entries.remove(&token);
                link.lane.forget(number);
            }
            Err(error) => {
                if let Some(held_back) = self.logs.rings.allow() {
                    tracing::error!(%error, held_back, "a stream's ring is broken; the stream is reset");
                }
                link.lane.queue(&Frame::Reset { stream: number });
                self.entries.remove(&token);
                link.lane.forget(number);
            }
        }
    }
}
