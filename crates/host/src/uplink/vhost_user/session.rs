//! The thread behind an uplink: connects to the peer, or waits for it to connect; attaches the port, waits
//! until the connection ends, and begins again.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use vmlane_port::role::{Role, enter};
use vmlane_port::{Frames, PortId};
use vmlane_transport::EventFdOwner;

use super::front::{Front, FrontError, timespec};
use super::listening::{Arrival, Entrance};
use super::memory::Memory;
use super::port::{Lines, Link, VhostUserPort};
use super::ring::Broken;

/// Between two tries to reach a peer that is not there.
const RETRY: Duration = Duration::from_secs(1);
/// Between two connections to a peer that breaks rules, at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(32);
/// A connection that lasted so long clears what was before.
const GOOD: Duration = Duration::from_secs(60);

/// Gets a connected socket of the peer's; the text is the reason why there is none.
pub type Connect = Box<dyn FnMut() -> Result<OwnedFd, String> + Send>;

/// Where an uplink's peers come from.
pub enum Peers {
    /// They listen.
    Connect(Connect),
    /// They connect, and are served one at a time.
    Accept(Entrance),
}

/// How a connection ended, or why there was none.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("{0}")]
    NoPeer(String),
    #[error(transparent)]
    Front(#[from] FrontError),
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer breaks the rules of its rings: {0}")]
    Broken(Broken),
}

impl End {
    /// The peer may do better at once when it is there again.
    fn is_harmless(&self) -> bool {
        matches!(self, End::NoPeer(_) | End::Closed | End::Front(FrontError::Closed))
    }
}

/// An uplink in force. Its connection ends when it is dropped, and with it the thread.
#[derive(Debug)]
pub struct VhostUser {
    stop: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl VhostUser {
    /// Serves `port` of the switch with an uplink whose peers come from `peers`, for packets of at most `mtu`
    /// bytes.
    pub fn start(
        (name, mtu): (&str, u16),
        peers: Peers,
        frames: Arc<dyn Frames>,
        port: PortId,
    ) -> io::Result<VhostUser> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let session = Session {
            name: name.to_owned(),
            mtu,
            peers,
            frames,
            port,
            stop: stop.clone(),
            // It may start a thread, which this uplink's own may not.
            owner: EventFdOwner::new(),
            reported: String::new(),
        };
        let thread = std::thread::Builder::new().name(format!("vhf-{name}")).spawn(move || session.run())?;
        Ok(VhostUser { stop, thread: Some(thread) })
    }
}

impl Drop for VhostUser {
    fn drop(&mut self) {
        // The counter of an event fd that is used once is not full.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

struct Session {
    name: String,
    mtu: u16,
    peers: Peers,
    frames: Arc<dyn Frames>,
    port: PortId,
    /// Readable when the uplink is to end.
    stop: Arc<OwnedFd>,
    owner: Arc<EventFdOwner>,
    /// The last reason logged for there being no connection.
    reported: String,
}

impl Session {
    fn run(mut self) {
        enter(Role::Uplink);
        let mut pause = RETRY;
        loop {
            let begin = Instant::now();
            let end = match self.next_peer() {
                Arrival::Peer(socket) => self.serve(&socket),
                Arrival::Failed(why) => Err(End::NoPeer(why)),
                Arrival::Stop => return,
            };
            let Err(end) = end else { return };
            if end.is_harmless() || begin.elapsed() >= GOOD {
                pause = RETRY;
            }
            self.report(&end, pause);
            if self.stops_within(pause) {
                return;
            }
            if !end.is_harmless() {
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
        }
    }

    fn next_peer(&mut self) -> Arrival {
        match &mut self.peers {
            Peers::Connect(connect) => connect().map_or_else(Arrival::Failed, Arrival::Peer),
            Peers::Accept(entrance) => entrance.wait(self.stop.as_fd()),
        }
    }

    /// A peer that stays away is reported once.
    fn report(&mut self, end: &End, pause: Duration) {
        let why = end.to_string();
        if why != self.reported {
            let (uplink, again) = (&self.name, format!("{} s", pause.as_secs()));
            tracing::warn!(uplink, again, "no connection: {why}; the uplink's port waits");
            self.reported = why;
        }
    }

    /// One connection, until it ends. Ok: the uplink is to end.
    fn serve(&mut self, socket: &OwnedFd) -> Result<(), End> {
        let connected = self.connected(socket);
        let (port, link, features) = match connected {
            Err(FrontError::Stopped) => return Ok(()),
            connected => connected?,
        };
        let uplink = &self.name;
        tracing::info!(uplink, features = format_args!("{features:#x}"), "connected");
        self.reported.clear();
        self.frames.attach(self.port, Box::new(port));
        let end = self.watch(socket, &link);
        self.frames.detach(self.port);
        end
    }

    /// Sets a connection up.
    fn connected(&self, socket: &OwnedFd) -> Result<(VhostUserPort, Arc<Link>, u64), FrontError> {
        let mut front = Front::new(socket, self.stop.as_fd());
        let features = front.agree()?;
        let (memory, lines, link) = (Memory::new()?, Lines::new(&self.owner)?, Arc::new(Link::new()?));
        let stats = self.frames.stats(self.port);
        // Its rings are filled before the peer polls them.
        let port = VhostUserPort::new(&memory, (features, self.mtu), lines, link.clone(), stats)?;
        front.start(&memory, port.lines())?;
        Ok((port, link, features))
    }

    /// Waits for the end.
    fn watch(&self, socket: &OwnedFd, link: &Link) -> Result<(), End> {
        let entrance = match &self.peers {
            Peers::Accept(entrance) => Some(entrance),
            Peers::Connect(_) => None,
        };
        let mut turned_away = false;
        loop {
            // Without an entrance, one of the others stands for it.
            let more = entrance.map_or(self.stop.as_fd(), |entrance| entrance.as_fd());
            let mut files = [
                PollFd::new(socket, PollFlags::IN),
                PollFd::new(link, PollFlags::IN),
                PollFd::new(&self.stop, PollFlags::IN),
                PollFd::from_borrowed_fd(more, PollFlags::IN),
            ];
            match poll(&mut files, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(FrontError::from(error).into()),
            }
            let [socket_ready, link_ready, stop, more] = files.map(|file| !file.revents().is_empty());
            if stop {
                return Ok(());
            }
            if let Some(broken) = link.broken().filter(|_| link_ready) {
                return Err(End::Broken(broken));
            }
            if socket_ready {
                match recv(socket, &mut [0u8; 1], RecvFlags::DONTWAIT) {
                    // A back end sends nothing of its own accord.
                    Ok((_, 1..)) => return Err(FrontError::Answer(0).into()),
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Ok(_) | Err(_) => return Err(End::Closed),
                }
            }
            // Not before the end of this one is seen: then it may be the same peer, started again.
            if more && entrance.is_some_and(Entrance::turn_away) && !std::mem::replace(&mut turned_away, true)
            {
                let uplink = &self.name;
                tracing::warn!(uplink, "a second peer has connected and is turned away, as others will be");
            }
        }
    }

    /// Waits. True if the uplink is to end.
    fn stops_within(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut files = [PollFd::new(&self.stop, PollFlags::IN)];
            match poll(&mut files, Some(&timespec(left))) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(_) if left.is_zero() => return false,
                Err(_) => {}
            }
        }
    }
}
