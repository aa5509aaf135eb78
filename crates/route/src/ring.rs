//! The ring of a stream, in whichever half the helper has it: as a process of the daemon's, or, where the
//! daemon has left a program's ring to the helper, as the daemon would.

use std::io;
use std::os::fd::OwnedFd;

use vmlane_sock::ring::{self, Incoming, Outgoing, Voice};
use vmlane_wire::host::{RING, SIGNAL};

use rustix::net::{SendFlags, send};

use crate::far::Far;
use crate::program::{Program, Received};

/// See the module's text. The other side of it is the daemon, or the program.
pub enum StreamRing {
    Daemon {
        out: Outgoing,
        incoming: Incoming,
        voice: Voice,
    },
    /// Without its socket: the program uses the ring no more, and the daemon does in its place.
    Program {
        ring: Far,
        program: Option<Program>,
    },
}

/// What the program wants of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Signalled {
    /// There may be something new in the ring.
    pub recheck: bool,
    /// The program hands its ring over to the daemon.
    pub switches: bool,
}

fn signal_daemon(line: &OwnedFd) {
    let _ = send(line, &[SIGNAL], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

impl StreamRing {
    /// A ring that the daemon has made for this stream.
    pub fn of_daemon(memory: OwnedFd) -> io::Result<StreamRing> {
        let (out, incoming) = ring::map(memory, RING)?;
        Ok(StreamRing::Daemon { voice: out.voice(), out, incoming })
    }

    /// A program's.
    pub fn of_program(memory: OwnedFd, program: Program) -> io::Result<StreamRing> {
        Ok(StreamRing::Program { ring: Far::map(memory)?, program: Some(program) })
    }

    /// Signals the other side to check the ring. `line`: the daemon's.
    fn signal(&self, line: &OwnedFd) {
        match self {
            StreamRing::Program { program: Some(program), .. } => program.signal(),
            _ => signal_daemon(line),
        }
    }

    /// Bytes that wait. Whether more can come is to be asked before.
    pub fn ready(&mut self) -> io::Result<usize> {
        match self {
            StreamRing::Daemon { incoming, .. } => incoming.ready(),
            StreamRing::Program { ring, .. } => ring.ready(),
        }
    }

    /// No more bytes will come behind those that are ready.
    pub fn is_over(&self) -> bool {
        use vmlane_wire::host::ended::{DETACHED, FINISHED, RESET};
        self.ended() & (FINISHED | DETACHED | RESET) != 0
    }

    /// How the stream ended there so far.
    pub fn ended(&self) -> u64 {
        match self {
            StreamRing::Daemon { incoming, .. } => incoming.ended(),
            StreamRing::Program { ring, .. } => ring.ended(),
        }
    }

    /// Copies bytes that are ready.
    pub fn peek(&self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            StreamRing::Daemon { incoming, .. } => incoming.peek(out),
            StreamRing::Program { ring, .. } => Ok(ring.peek(out)),
        }
    }

    /// Gives bytes back as room.
    pub fn consume(&mut self, len: usize, line: &OwnedFd) -> Signalled {
        match self {
            StreamRing::Daemon { incoming, .. } => {
                if incoming.consume(len) {
                    signal_daemon(line);
                }
                Signalled::default()
            }
            StreamRing::Program { ring, .. } => {
                if ring.consume(len) {
                    self.announce(line)
                } else {
                    Signalled::default()
                }
            }
        }
    }

    /// About to wait for bytes. True if there are some already.
    pub fn arm_bytes(&mut self) -> io::Result<bool> {
        match self {
            StreamRing::Daemon { incoming, .. } => incoming.arm(),
            // A program always signals bytes in an empty ring.
            StreamRing::Program { .. } => Ok(self.is_over() || self.ready()? > 0),
        }
    }

    /// Bytes are not waited for.
    pub fn disarm_bytes(&self) {
        if let StreamRing::Daemon { incoming, .. } = self {
            incoming.disarm();
        }
    }

    /// Bytes of room.
    pub fn room(&mut self) -> io::Result<usize> {
        match self {
            StreamRing::Daemon { out, .. } => out.room(),
            StreamRing::Program { ring, .. } => ring.room(),
        }
    }

    /// Writes what fits of `data`.
    pub fn write(&mut self, data: &[u8], line: &OwnedFd) -> io::Result<usize> {
        let (len, signal) = match self {
            StreamRing::Daemon { out, .. } => {
                let moved = out.write(data)?;
                (moved.len, moved.kick)
            }
            StreamRing::Program { ring, .. } => ring.write(data)?,
        };
        if signal {
            self.signal(line);
        }
        Ok(len)
    }

    /// About to wait for room, which there was none of. True if there is some already.
    pub fn arm_room(&mut self) -> io::Result<bool> {
        match self {
            StreamRing::Daemon { out, .. } => out.arm(),
            // A program always signals room in a full ring.
            StreamRing::Program { ring, .. } => Ok(ring.room()? > 0),
        }
    }

    /// Room is not waited for.
    pub fn disarm_room(&self) {
        if let StreamRing::Daemon { out, .. } = self {
            out.disarm();
        }
    }

    /// The other side takes no more bytes.
    pub fn is_refused(&self) -> bool {
        use vmlane_wire::host::ended::{DETACHED, REFUSED, RESET};
        self.ended() & (REFUSED | DETACHED | RESET) != 0
    }

    /// Announces what the peer does no more, as `ANNOUNCED_*`.
    pub fn announce_end(&mut self, what: u64, line: &OwnedFd) -> Signalled {
        match self {
            StreamRing::Daemon { voice, .. } => voice.announce_end(what),
            StreamRing::Program { ring, .. } => {
                ring.announce_end(what);
                return self.announce(line);
            }
        }
        signal_daemon(line);
        Signalled::default()
    }

    /// Notifies a program that waits of bytes it was not notified of yet.
    pub fn notify_bytes(&mut self, line: &OwnedFd) {
        if let StreamRing::Program { ring, .. } = self
            && ring.take_due_bytes()
        {
            self.signal(line);
        }
    }

    /// The stream's turn is over: notifications that the other side waits for and did not get.
    pub fn rest(&mut self, line: &OwnedFd) -> Signalled {
        self.notify_bytes(line);
        let StreamRing::Program { ring, program } = self else { return Signalled::default() };
        if ring.take_due_room() {
            return self.announce(line);
        }
        let received =
            program.as_mut().map_or(Received::Nothing, |program| program.drain_filled(ring.asks()));
        self.on_received(received)
    }

    /// There is room, or an end.
    fn announce(&mut self, line: &OwnedFd) -> Signalled {
        match self {
            StreamRing::Program { program: Some(program), .. } => {
                let received = program.announce();
                self.on_received(received)
            }
            _ => {
                signal_daemon(line);
                Signalled::default()
            }
        }
    }

    /// The program's socket has something.
    pub fn answer(&mut self) -> Signalled {
        let StreamRing::Program { ring, program: Some(program) } = self else { return Signalled::default() };
        let received = program.answer(ring);
        self.on_received(received)
    }

    fn on_received(&mut self, received: Received) -> Signalled {
        let switches = received == Received::Switch;
        if switches && let StreamRing::Program { program, .. } = self {
            *program = None;
        }
        Signalled { recheck: received != Received::Nothing, switches }
    }
}
