//! The ring of a stream, in whichever half the helper has it: as a process of the daemon's, or, where the
//! daemon has left a program's ring to the helper, as the daemon would.

use std::io;
use std::os::fd::OwnedFd;

use vmlane_sock::ring::{self, Incoming, Outgoing, Voice};
use vmlane_wire::host::{RING, SIGNAL};

use rustix::net::{SendFlags, send};

use crate::far::Far;
use crate::program::{Heard, Program};

/// See the module's text. The other side of it is the daemon, or the program.
pub enum Ring {
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
    pub looks: bool,
    /// The program hands its ring over to the daemon.
    pub switches: bool,
}

fn signal_daemon(line: &OwnedFd) {
    let _ = send(line, &[SIGNAL], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

impl Ring {
    /// A ring that the daemon has made for this stream.
    pub fn of_daemon(memory: OwnedFd) -> io::Result<Ring> {
        let (out, incoming) = ring::map(memory, RING)?;
        Ok(Ring::Daemon { voice: out.voice(), out, incoming })
    }

    /// A program's.
    pub fn of_program(memory: OwnedFd, program: Program) -> io::Result<Ring> {
        Ok(Ring::Program { ring: Far::map(memory)?, program: Some(program) })
    }

    /// The other side is told to look. `line`: the daemon's.
    fn signal(&self, line: &OwnedFd) {
        match self {
            Ring::Program { program: Some(program), .. } => program.signal(),
            _ => signal_daemon(line),
        }
    }

    /// Bytes that wait. Whether more can come is to be asked before.
    pub fn ready(&mut self) -> io::Result<usize> {
        match self {
            Ring::Daemon { incoming, .. } => incoming.ready(),
            Ring::Program { ring, .. } => ring.ready(),
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
            Ring::Daemon { incoming, .. } => incoming.ended(),
            Ring::Program { ring, .. } => ring.ended(),
        }
    }

    /// Copies bytes that are ready.
    pub fn peek(&self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Ring::Daemon { incoming, .. } => incoming.peek(out),
            Ring::Program { ring, .. } => Ok(ring.peek(out)),
        }
    }

    /// Gives bytes back as room.
    pub fn consume(&mut self, len: usize, line: &OwnedFd) -> Signalled {
        match self {
            Ring::Daemon { incoming, .. } => {
                if incoming.consume(len) {
                    signal_daemon(line);
                }
                Signalled::default()
            }
            Ring::Program { ring, .. } => {
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
            Ring::Daemon { incoming, .. } => incoming.arm(),
            // A program always tells of bytes in an empty ring.
            Ring::Program { .. } => Ok(self.is_over() || self.ready()? > 0),
        }
    }

    /// Bytes are not waited for.
    pub fn disarm_bytes(&self) {
        if let Ring::Daemon { incoming, .. } = self {
            incoming.disarm();
        }
    }

    /// Bytes of room.
    pub fn room(&mut self) -> io::Result<usize> {
        match self {
            Ring::Daemon { out, .. } => out.room(),
            Ring::Program { ring, .. } => ring.room(),
        }
    }

    /// Writes what fits of `data`.
    pub fn write(&mut self, data: &[u8], line: &OwnedFd) -> io::Result<usize> {
        let (len, signal) = match self {
            Ring::Daemon { out, .. } => {
                let moved = out.write(data)?;
                (moved.len, moved.kick)
            }
            Ring::Program { ring, .. } => ring.write(data)?,
        };
        if signal {
            self.signal(line);
        }
        Ok(len)
    }

    /// About to wait for room, which there was none of. True if there is some already.
    pub fn arm_room(&mut self) -> io::Result<bool> {
        match self {
            Ring::Daemon { out, .. } => out.arm(),
            // A program always tells of room in a full ring.
            Ring::Program { ring, .. } => Ok(ring.room()? > 0),
        }
    }

    /// Room is not waited for.
    pub fn disarm_room(&self) {
        if let Ring::Daemon { out, .. } = self {
            out.disarm();
        }
    }

    /// The other side takes no more bytes.
    pub fn is_refused(&self) -> bool {
        use vmlane_wire::host::ended::{DETACHED, REFUSED, RESET};
        self.ended() & (REFUSED | DETACHED | RESET) != 0
    }

    /// Says what the peer does no more, as `ANNOUNCED_*`.
    pub fn say(&mut self, what: u64, line: &OwnedFd) -> Signalled {
        match self {
            Ring::Daemon { voice, .. } => voice.announce_end(what),
            Ring::Program { ring, .. } => {
                ring.say(what);
                return self.announce(line);
            }
        }
        signal_daemon(line);
        Signalled::default()
    }

    /// Tells a program that waits of bytes that it was not told of yet.
    pub fn tell_bytes(&mut self, line: &OwnedFd) {
        if let Ring::Program { ring, .. } = self
            && ring.owes_bytes()
        {
            self.signal(line);
        }
    }

    /// The stream's turn is over: what the other side waits for and was not told of.
    pub fn rest(&mut self, line: &OwnedFd) -> Signalled {
        self.tell_bytes(line);
        let Ring::Program { ring, program } = self else { return Signalled::default() };
        if ring.owes_room() {
            return self.announce(line);
        }
        let looked = program.as_mut().map_or(Heard::Nothing, |program| program.look_after(ring.asks()));
        self.heard(looked)
    }

    /// There is room, or an end.
    fn announce(&mut self, line: &OwnedFd) -> Signalled {
        match self {
            Ring::Program { program: Some(program), .. } => {
                let heard = program.announce();
                self.heard(heard)
            }
            _ => {
                signal_daemon(line);
                Signalled::default()
            }
        }
    }

    /// The program's socket has something.
    pub fn answer(&mut self) -> Signalled {
        let Ring::Program { ring, program: Some(program) } = self else { return Signalled::default() };
        let heard = program.answer(ring);
        self.heard(heard)
    }

    fn heard(&mut self, heard: Heard) -> Signalled {
        let switches = heard == Heard::Switch;
        if switches && let Ring::Program { program, .. } = self {
            *program = None;
        }
        Signalled { looks: heard != Heard::Nothing, switches }
    }
}
