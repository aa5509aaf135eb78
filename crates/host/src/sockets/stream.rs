//! One stream of a host program: its end, and what goes between its socket and the ring.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::Shutdown as Shut;
use vmlane_port::shared_ring::SharedMap;
use vmlane_port::{Shutdown, Side, StreamId};
use vmlane_sock::ring::{Incoming, Outgoing};
use vmlane_vsock::{Call, Router};
use vmlane_wire::host::{ANNOUNCED_RECEIVE, ANNOUNCED_SEND, RING, ended};

use super::left::Left;
use super::socket::{self, Io, Read};

/// Bytes moved each way before others have their turn.
const QUOTA: usize = 512 << 10;

/// What a turn of a stream led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It waits for its socket or its ring.
    Waits,
    /// There is more to do.
    Again,
    /// It is over: hang up.
    Over,
    /// The process has gone and left bytes unread: its peer is to be notified.
    Reset,
    /// The process leaves its ring to us.
    Switch,
}

/// How the bytes travel.
pub enum StreamKind {
    /// The process uses the ring itself; its socket carries signals, which the stream's worker reads.
    Ring { map: SharedMap, announced: u64 },
    /// The process writes and reads its socket.
    Plain(Box<Pump>),
    /// The process uses the ring itself, with the helper for other hosts at its other side.
    Left(SharedMap),
    /// It is that helper.
    Helpers(SharedMap),
}

/// Between a socket and a ring.
pub struct Pump {
    pub out: Outgoing,
    pub incoming: Incoming,
    /// The socket has something for us, as far as is known.
    pub can_read: bool,
    pub can_write: bool,
    /// The process has closed its socket.
    pub hung_up: bool,
    /// Nothing more is read from the process.
    finished: bool,
    /// Nothing more is written to the process.
    delivered: bool,
    refused: bool,
    /// A process that goes and leaves bytes unread resets the connection.
    resets: bool,
    reset: bool,
}

/// Bytes that a turn has moved: from the process, and to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    pub up: usize,
    pub down: usize,
}

impl Pump {
    pub fn new(out: Outgoing, incoming: Incoming) -> Pump {
        Pump {
            out,
            incoming,
            can_read: true,
            can_write: true,
            hung_up: false,
            finished: false,
            delivered: false,
            refused: false,
            resets: false,
            reset: false,
        }
    }

    /// The process is a VMM, which learns of a reset of its guest's only by bytes that stay unread.
    pub fn of_vmm(self) -> Pump {
        Pump { resets: true, ..self }
    }
}

/// A joined end.
pub struct Stream {
    pub call: Call,
    pub stream: StreamId,
    pub side: Side,
    pub kind: StreamKind,
    /// Of a process's whose ring was left to the helper.
    pub left: Option<Left>,
}

impl Stream {
    /// Takes the ring over from the process; ends that it has announced still count.
    pub fn switch(&mut self) -> std::io::Result<()> {
        let (map, announced) = match &self.kind {
            StreamKind::Ring { map, announced } => (map, *announced),
            StreamKind::Left(map) => (map, map.announced()),
            StreamKind::Plain(_) | StreamKind::Helpers(_) => return Ok(()),
        };
        let (out, incoming) = vmlane_sock::ring::halves(map.memory(), RING)?;
        let mut pump = Pump::new(out, incoming);
        pump.finished = announced & ANNOUNCED_SEND != 0;
        pump.delivered = announced & ANNOUNCED_RECEIVE != 0;
        self.kind = StreamKind::Plain(Box::new(pump));
        Ok(())
    }

    /// Does what can be done now, and returns how many bytes that moved. `switched`: the process has handed
    /// its ring over. `buffer` is scratch space.
    pub fn turn(
        &mut self,
        router: &Arc<Router>,
        socket: &OwnedFd,
        switched: bool,
        buffer: &mut [u8],
    ) -> (Turn, Moved) {
        let end = End { router, stream: self.stream, side: self.side, left: self.left.as_ref() };
        match &mut self.kind {
            StreamKind::Ring { map, announced } => {
                forward_ends(&end, map, announced);
                (if switched { Turn::Switch } else { Turn::Waits }, Moved::default())
            }
            StreamKind::Left(_) => (if switched { Turn::Switch } else { Turn::Waits }, Moved::default()),
            StreamKind::Helpers(_) => (Turn::Waits, Moved::default()),
            StreamKind::Plain(pump) => {
                let mut moved = Moved::default();
                let turn = pump.turn(&end, socket, buffer, &mut moved);
                (turn, moved)
            }
        }
    }
}

struct End<'a> {
    router: &'a Arc<Router>,
    stream: StreamId,
    side: Side,
    left: Option<&'a Left>,
}

impl End<'_> {
    fn kick(&self, kick: bool) {
        match self.left {
            Some(left) if kick => left.signal(),
            None if kick => self.router.streams().kick(self.stream),
            _ => {}
        }
    }

    fn shutdown(&self, what: Shutdown) {
        if let Some(left) = self.left {
            return left.announce_end(if what == Shutdown::Send {
                ANNOUNCED_SEND
            } else {
                ANNOUNCED_RECEIVE
            });
        }
        self.router.streams().shutdown(self.stream, self.side, what);
    }
}

/// Forwards the ends that a process with a ring of its own has announced since the last time. The worker may
/// have taken the signal that announced bytes or room in the middle of a turn, behind its last check: it is
/// to check again.
fn forward_ends(end: &End<'_>, map: &SharedMap, announced: &mut u64) {
    let now = map.announced();
    if now & ANNOUNCED_RECEIVE & !*announced != 0 {
        end.shutdown(Shutdown::Receive);
    }
    if now & ANNOUNCED_SEND & !*announced != 0 {
        end.shutdown(Shutdown::Send);
    }
    *announced |= now;
    end.kick(true);
}

impl Pump {
    fn turn(&mut self, end: &End<'_>, socket: &OwnedFd, buffer: &mut [u8], moved: &mut Moved) -> Turn {
        let up = self.upwards(end, socket, buffer, &mut moved.up);
        let (Ok(up), Ok(down)) = (up, self.downwards(end, socket, buffer, &mut moved.down)) else {
            return Turn::Over;
        };
        if self.reset {
            return Turn::Reset;
        }
        let gone = self.incoming.ended() & (ended::DETACHED | ended::RESET) != 0;
        if (self.hung_up && self.finished) || (gone && self.delivered) {
            return Turn::Over;
        }
        if up || down { Turn::Again } else { Turn::Waits }
    }

    /// From the process to the guest. True if there is more.
    #[expect(clippy::indexing_slicing, reason = "`room` and what was read are at most the buffer's length")]
    fn upwards(
        &mut self,
        end: &End<'_>,
        socket: &OwnedFd,
        buffer: &mut [u8],
        moved: &mut usize,
    ) -> std::io::Result<bool> {
        if self.out.is_refused() && !self.refused {
            self.refused = true;
            self.finished = true;
            // The process gets the error when it writes.
            socket::shut(socket, Shut::Read);
        }
        while self.can_read && !self.finished {
            if *moved >= QUOTA {
                return Ok(true);
            }
            let room = self.out.room()?;
            if room == 0 && !self.out.arm()? {
                return Ok(false);
            }
            let room = self.out.room()?.min(buffer.len());
            match socket::read_stream(socket, &mut buffer[..room]) {
                Read::Done(len) => {
                    let done = self.out.write(&buffer[..len])?;
                    end.kick(done.kick);
                    *moved += len;
                }
                Read::WouldBlock => self.can_read = false,
                Read::Reset if self.resets => {
                    self.finished = true;
                    self.reset = true;
                }
                Read::End | Read::Reset => {
                    self.finished = true;
                    end.shutdown(Shutdown::Send);
                }
            }
        }
        self.out.disarm();
        Ok(false)
    }

    /// From the guest to the process. True if there is more.
    #[expect(clippy::indexing_slicing, reason = "a peek copies no more than the buffer has")]
    fn downwards(
        &mut self,
        end: &End<'_>,
        socket: &OwnedFd,
        buffer: &mut [u8],
        moved: &mut usize,
    ) -> std::io::Result<bool> {
        while !self.delivered {
            if *moved >= QUOTA {
                return Ok(true);
            }
            let over = self.incoming.is_over();
            let ready = self.incoming.peek(buffer)?;
            if ready == 0 && over {
                self.delivered = true;
                socket::shut(socket, Shut::Write);
                break;
            }
            if ready == 0 {
                if self.incoming.arm()? {
                    continue;
                }
                return Ok(false);
            }
            if !self.can_write {
                break;
            }
            match socket::write(socket, &buffer[..ready]) {
                Io::Done(len) => {
                    let kick = self.incoming.consume(len);
                    end.kick(kick);
                    *moved += len;
                }
                Io::WouldBlock => self.can_write = false,
                Io::Over => {
                    // The reader is gone, so the guest need not write.
                    self.delivered = true;
                    end.shutdown(Shutdown::Receive);
                }
            }
        }
        self.incoming.disarm();
        Ok(false)
    }
}
