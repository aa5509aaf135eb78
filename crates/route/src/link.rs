//! The connection with one peer: its socket, its TLS, the streams on it.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, sockopt};

use vmlane_port::{Budget, Distinct};

use crate::admission::AdmissionPlace;
use crate::buffer::Buffer;
use crate::frame::{Decoder, Frame, Piece, Violation};
use crate::tls::{Ready, Tls, TlsError};

/// A descriptor that the thread waits for.
pub type Token = u64;

/// Bytes that are asked of the socket at once.
const READ: usize = 128 << 10;
/// Bytes that a turn takes from one peer before others have theirs.
const ROUND: usize = 1 << 20;
/// Frames that are encrypted and sent at once: full records.
pub const BATCH: usize = 64 << 10;
/// What the streams of a peer may keep in windows.
const WINDOWS: usize = 64 << 20;
/// Bytes that a peer may send before its name was proved: nothing calls for more than a HELLO.
const MOST_EARLY: usize = 1 << 10;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The peer's kernel has not answered.
    Connecting,
    /// Names are not proved.
    Handshaking,
    /// They are; the peer's HELLO is still to come.
    Greeting,
    Up,
}

/// The network's side.
pub struct Wire {
    pub socket: OwnedFd,
    pub tls: Tls,
    incoming: Buffer,
    outgoing: Buffer,
    decoder: Decoder,
    /// What the peer has sent before its name was proved: it sends it right behind the proof.
    early: Vec<u8>,
    /// The socket may have something, or room, as far as is known.
    pub can_read: bool,
    /// The peer sends no more, so that a read which found less than it asked for is not the last.
    pub ends: bool,
    pub can_write: bool,
}

/// The streams' side.
pub struct Lane {
    pub token: Token,
    pub phase: Phase,
    /// This host has connected to the other.
    pub dialled: bool,
    pub address: IpAddr,
    /// Among connections that have proved no name.
    pub place: Option<AdmissionPlace>,
    /// When the peer's certificate was judged.
    pub judged: Instant,
    /// Whose name was proved, or is expected.
    pub peer: Option<String>,
    /// By when the phase must be `Up`.
    pub deadline: Instant,
    pub last_received: Instant,
    pub pinged: Instant,
    /// Of the last ping.
    mark: u64,
    /// Of the network, as pings measure it.
    pub round: Option<Duration>,
    /// What windows of its streams may take.
    pub windows: Arc<Budget>,
    /// Frames that are not encrypted yet.
    pub plain: Buffer,
    /// By number on this connection: what the thread knows them by.
    pub streams: HashMap<u32, Token>,
    /// Streams to which the peer has just sent something.
    pub fresh: Vec<Token>,
    /// Streams that may have something to send.
    pub ready: Distinct<Token>,
    /// The next number of this end, and the last of the other.
    own_next: u32,
    pub peers_last: u32,
    /// Streams that the peer takes.
    pub takes: usize,
    pub sent: u64,
    pub received: u64,
}

/// See the module's text.
pub struct Link {
    pub wire: Wire,
    pub lane: Lane,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("{0}")]
    Tls(#[from] TlsError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it has closed the connection")]
    Closed,
}

impl From<Violation> for LinkError {
    fn from(violation: Violation) -> LinkError {
        LinkError::Tls(TlsError::Violation(violation))
    }
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family(address), SocketType::STREAM, flags, Some(ipproto::TCP))?)
}

/// Where other hosts connect.
pub fn listen(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = socket(address)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 256)?;
    Ok(socket)
}

/// Begins to connect.
pub fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = socket(address)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// A connection that waits at the listening socket.
pub fn accept(listening: &OwnedFd) -> io::Result<Option<(OwnedFd, IpAddr)>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::acceptfrom_with(listening, flags) {
        Ok((socket, address)) => {
            let address = address.and_then(|address| SocketAddr::try_from(address).ok());
            let address = address.ok_or_else(|| io::Error::other("a peer without an address"))?;
            Ok(Some((socket, address.ip().to_canonical())))
        }
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Link {
    pub fn new(socket: OwnedFd, tls: Tls, token: Token, address: IpAddr, deadline: Instant) -> Link {
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let dialled = matches!(tls, Tls::Client(_));
        let now = Instant::now();
        Link {
            wire: Wire {
                socket,
                tls,
                incoming: Buffer::default(),
                outgoing: Buffer::default(),
                decoder: Decoder::default(),
                early: Vec::new(),
                can_read: true,
                ends: false,
                can_write: !dialled,
            },
            lane: Lane {
                token,
                phase: if dialled { Phase::Connecting } else { Phase::Handshaking },
                dialled,
                address,
                place: None,
                judged: now,
                peer: None,
                deadline,
                last_received: now,
                pinged: now,
                mark: 0,
                round: None,
                windows: Arc::new(Budget::new(WINDOWS)),
                plain: Buffer::default(),
                streams: HashMap::new(),
                fresh: Vec::new(),
                ready: Distinct::default(),
                own_next: if dialled { 1 } else { 2 },
                peers_last: 0,
                takes: 0,
                sent: 0,
                received: 0,
            },
        }
    }

    /// Is there anything to do without waiting?
    pub fn is_busy(&self, queued: usize) -> bool {
        let sends = !self.lane.ready.is_empty() && self.wire.waiting() < queued;
        self.wire.can_read && self.lane.phase > Phase::Connecting || sends
    }
}

impl Wire {
    /// Has what is read go to `spare`, until [`Self::take_back`], unless something is left of what was read
    /// before.
    pub fn use_spare(&mut self, spare: &mut Buffer) {
        if self.incoming.is_empty() {
            std::mem::swap(&mut self.incoming, spare);
        }
    }

    /// Gives the memory back, unless something is left in it.
    pub fn take_back(&mut self, spare: &mut Buffer) {
        if self.incoming.is_empty() {
            let own = std::mem::take(&mut self.incoming);
            if spare.is_smaller(&own) {
                *spare = own;
            }
        }
    }

    /// Bytes that wait to be sent.
    pub fn waiting(&self) -> usize {
        self.outgoing.len()
    }

    /// Has the connection come about?
    pub fn connected(&self) -> io::Result<()> {
        sockopt::socket_error(&self.socket)?.map_err(io::Error::from)
    }

    /// Reads what is there, a turn's worth, and hands on its pieces. Ends early, with `Handshaking` or
    /// `Open`, where the phase changes.
    pub fn receive(
        &mut self,
        lane: &mut Lane,
        each: &mut dyn FnMut(&mut Lane, Piece<'_>) -> Result<(), Violation>,
    ) -> Result<Ready, LinkError> {
        let mut taken = 0;
        loop {
            let Wire { tls, incoming, outgoing, decoder, early, .. } = self;
            let proved = lane.phase > Phase::Handshaking;
            if proved && !early.is_empty() {
                decoder.feed(&std::mem::take(early), |piece| each(lane, piece))?;
            }
            let ready = tls.receive(incoming, outgoing, &mut |bytes| {
                if proved {
                    return decoder.feed(bytes, |piece| each(lane, piece));
                }
                early.extend_from_slice(bytes);
                if early.len() > MOST_EARLY { Err(Violation::Early) } else { Ok(()) }
            })?;
            let changed = lane.phase == Phase::Handshaking && ready == Ready::Open;
            if ready == Ready::Closed || changed || taken >= ROUND || !self.can_read {
                return Ok(ready);
            }
            // A record is at most so long that it fits; what is left of one is kept.
            let room = self.incoming.room(READ);
            let room = room.get_mut(..READ).unwrap_or_default();
            match rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(LinkError::Closed),
                Ok((len, _)) => {
                    self.incoming.add(len);
                    taken += len;
                    lane.last_received = Instant::now();
                    self.can_read = len == READ || self.ends;
                }
                Err(Errno::AGAIN) => self.can_read = false,
                Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Encrypts `plain`, and sends what the socket takes.
    pub fn flush(&mut self, plain: &mut Buffer) -> Result<(), LinkError> {
        if !plain.is_empty() {
            self.tls.send(plain.filled(), &mut self.outgoing)?;
            plain.clear();
        }
        while self.can_write && !self.outgoing.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, self.outgoing.filled(), flags) {
                Ok(len) => self.outgoing.take(len),
                Err(Errno::AGAIN) => self.can_write = false,
                Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Ok(())
    }
}

impl Lane {
    /// Forgets a stream. What the thread knows it by.
    pub fn forget(&mut self, stream: u32) -> Option<Token> {
        let token = self.streams.remove(&stream)?;
        self.ready.remove(&token);
        Some(token)
    }

    pub fn queue(&mut self, frame: &Frame) {
        frame.write(&mut self.plain);
    }

    /// Asks for an answer, which measures a round trip.
    pub fn ping(&mut self, now: Instant) {
        self.pinged = now;
        self.mark += 1;
        self.queue(&Frame::Ping(self.mark));
    }

    /// The peer has answered. What makes it late for once counts little.
    pub fn ponged(&mut self, mark: u64) {
        if mark == self.mark {
            let took = self.pinged.elapsed();
            self.round = Some(self.round.map_or(took, |round| took.min(round + took / 8)));
        }
    }

    /// The number of a stream that this host opens. None: they are used up, which takes a new connection.
    pub fn own_number(&mut self) -> Option<u32> {
        let next = self.own_next;
        self.own_next = next.checked_add(2)?;
        Some(next)
    }

    /// Was this number ever used? What still comes for it after its end means nothing.
    pub fn is_past(&self, stream: u32) -> bool {
        let own = (stream % 2 == 1) == self.dialled;
        if own { stream < self.own_next } else { stream <= self.peers_last }
    }

    /// The peer opens this one. False: the number is not its to use.
    pub fn takes_number(&mut self, stream: u32) -> bool {
        let peers = (stream % 2 == 1) != self.dialled;
        let new = peers && stream > self.peers_last;
        if new {
            self.peers_last = stream;
        }
        new
    }
}
