//! One stream: its ring, which the daemon shares, and how far both directions have come.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use vmlane_sock::ring::{self, Incoming, Outgoing, Voice};
use vmlane_wire::host::{RING, SAID_CLOSE, SAID_RECEIVE, SAID_SEND, SIGNAL, ended};

use crate::credit::{Credit, Given};
use crate::frame::{Frame, HEADER, MOST_DATA, Violation, data_header};

/// See the module's text. To drop one resets the stream, unless [`Stream::close`] was called.
pub struct Stream {
    id: u32,
    /// Signals to and from the daemon.
    socket: OwnedFd,
    out: Outgoing,
    incoming: Incoming,
    voice: Voice,
    given: Given,
    credit: Credit,
    /// What the peer was told: bits of [`ended`].
    told: u64,
    /// What the peer has said: bits of `SAID_*`.
    heard: u64,
}

/// What a turn led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It waits: for bytes of the daemon, or for credit.
    Waits,
    /// There is more to send.
    Again,
    /// It is over: the peer was told, and the stream is to be dropped.
    Over,
}

impl Stream {
    pub fn new(id: u32, socket: OwnedFd, memory: OwnedFd) -> io::Result<Stream> {
        let (out, incoming) = ring::map(memory, RING)?;
        Ok(Stream {
            id,
            socket,
            voice: out.voice(),
            out,
            incoming,
            given: Given::default(),
            credit: Credit::default(),
            told: 0,
            heard: 0,
        })
    }

    fn signal(&self) {
        let _ = rustix::net::send(&self.socket, &[SIGNAL], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes the daemon's signals. False: it has closed the stream, or is gone.
    pub fn take_signals(&self) -> bool {
        let mut bytes = [0; 64];
        loop {
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Puts what there is to say behind `plain`: bytes, as far as there is credit, then how the stream ended.
    pub fn turn(&mut self, plain: &mut Vec<u8>) -> io::Result<Turn> {
        self.tell_room(plain)?;
        // Asked for before the bytes: none come behind it.
        let over = self.incoming.is_over();
        let ready = self.incoming.ready()?;
        let len = self.credit.of(ready.min(MOST_DATA));
        if len > 0 {
            let at = plain.len();
            plain.extend_from_slice(&data_header(self.id, len));
            plain.resize(at + HEADER + len, 0);
            let taken = self.incoming.peek(plain.get_mut(at + HEADER..).unwrap_or_default())?;
            debug_assert_eq!(taken, len);
            self.credit.spend(len);
            if self.incoming.consume(len) {
                self.signal();
            }
            return Ok(if self.credit.of(1) > 0 { Turn::Again } else { Turn::Waits });
        }
        self.tell_refused(plain);
        if ready > 0 {
            // The peer's credit wakes it. An end is heard of without being asked for.
            self.incoming.disarm();
            return Ok(Turn::Waits);
        }
        if over {
            return Ok(self.tell_end(plain));
        }
        Ok(if self.incoming.arm()? { Turn::Again } else { Turn::Waits })
    }

    /// The daemon's end takes no more.
    fn tell_refused(&mut self, plain: &mut Vec<u8>) {
        if self.incoming.ended() & ended::REFUSED & !self.told != 0 {
            self.told |= ended::REFUSED;
            Frame::Fin { stream: self.id, send: false, receive: true }.write(plain);
        }
    }

    /// All bytes are sent, and none will come.
    fn tell_end(&mut self, plain: &mut Vec<u8>) -> Turn {
        let ended = self.incoming.ended();
        if ended & ended::RESET != 0 {
            Frame::Reset { stream: self.id }.write(plain);
            return Turn::Over;
        }
        if ended & ended::DETACHED != 0 {
            Frame::Close { stream: self.id }.write(plain);
            self.close();
            return Turn::Over;
        }
        if self.told & ended::FINISHED == 0 {
            self.told |= ended::FINISHED;
            Frame::Fin { stream: self.id, send: true, receive: false }.write(plain);
        }
        Turn::Waits
    }

    /// Tells the peer what there is room for.
    fn tell_room(&mut self, plain: &mut Vec<u8>) -> io::Result<()> {
        if self.heard & (SAID_SEND | SAID_CLOSE) != 0 {
            return Ok(());
        }
        let mut room = self.out.room()?;
        if self.given.is_used_up() && room == 0 && self.out.arm()? {
            room = self.out.room()?;
        }
        if room > 0 && self.given.is_used_up() {
            self.out.disarm();
        }
        if let Some(bytes) = self.given.give(room) {
            Frame::Credit { stream: self.id, bytes }.write(plain);
        }
        Ok(())
    }

    /// The peer has room for more. False: that cannot be.
    pub fn add_credit(&mut self, bytes: u32) -> bool {
        self.credit.add(bytes)
    }

    /// The peer is about to send so many bytes.
    pub fn expect(&mut self, len: usize) -> Result<(), Violation> {
        if self.heard & (SAID_SEND | SAID_CLOSE) != 0 {
            return Err(Violation::Turn { kind: "DATA", stream: self.id });
        }
        if self.given.take(len) { Ok(()) } else { Err(Violation::Credit { stream: self.id }) }
    }

    /// Bytes of the peer's, which [`Self::expect`] allowed: there is room for them.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let moved = self.out.write(bytes)?;
        if moved.kick {
            self.signal();
        }
        if moved.len == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// The peer sends, or receives, no more.
    pub fn finish(&mut self, send: bool, receive: bool) {
        let said = if send { SAID_SEND } else { 0 } | if receive { SAID_RECEIVE } else { 0 };
        self.heard |= said;
        self.voice.say(said);
        self.signal();
    }

    /// The peer is done, or the daemon's end: what was written still counts when this is dropped.
    pub fn close(&mut self) {
        self.heard |= SAID_CLOSE;
        self.voice.say(SAID_CLOSE);
    }
}
