//! One stream: its ring, which it shares with the daemon or with a program, and how far both directions have
//! come.
//!
//! What comes goes into the ring, and behind it, as far as the peer was given credit for more ([`Window`]).

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use vmlane_wire::host::{ANNOUNCED_CLOSE, ANNOUNCED_RECEIVE, ANNOUNCED_SEND, SWITCH, ended};

use crate::buffer::Buffer;
use crate::credit::{Credit, Given, Window};
use crate::frame::{Frame, HEADER, MOST_DATA, Sink, Violation, data_header};
use crate::ring::{Signalled, StreamRing};

/// See the module's text. To drop one resets the stream, unless [`Stream::close`] was called.
pub struct Stream {
    id: u32,
    /// Signals to and from the daemon; its end is the stream's.
    line: OwnedFd,
    ring: StreamRing,
    /// There may be something new in the ring, of which no event will come.
    recheck: bool,
    given: Given,
    window: Window,
    /// What the ring had no room for.
    kept: Buffer,
    /// The daemon was notified that room is waited for.
    armed: bool,
    credit: Credit,
    /// Ends that were reported to the peer: bits of [`ended`].
    reported: u64,
    /// Ends that the peer has sent: bits of `ANNOUNCED_*`; and those of them that were announced to the
    /// daemon.
    received: u64,
    announced: u64,
}

/// What a turn led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It waits: for bytes of the daemon, or for credit.
    Waits,
    /// There is more to send.
    Again,
    /// It is over: the peer was notified, and the stream is to be dropped.
    Over,
}

impl Stream {
    pub fn new(id: u32, line: OwnedFd, ring: StreamRing, window: Window) -> Stream {
        Stream {
            id,
            line,
            ring,
            recheck: false,
            given: Given::default(),
            window,
            kept: Buffer::default(),
            armed: false,
            credit: Credit::default(),
            reported: 0,
            received: 0,
            announced: 0,
        }
    }

    /// What the program of a ring that it shares with us wants.
    fn signalled(&mut self, signalled: Signalled) {
        self.recheck |= signalled.recheck;
        if signalled.switches {
            // The first message here: there is room for it.
            let _ = rustix::net::send(&self.line, &[SWITCH], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// The program that shares its ring with us has signalled.
    pub fn take_programs_signals(&mut self) {
        let signalled = self.ring.answer();
        self.signalled(signalled);
    }

    /// Takes the daemon's signals. False: it has closed the stream, or is gone.
    pub fn take_signals(&self) -> bool {
        let mut bytes = [0; 64];
        loop {
            match rustix::net::recv(&self.line, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok((len, _)) if len < bytes.len() => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Puts what there is to send behind `plain`, as long as that is less than `most` bytes: bytes, as far as
    /// there is credit, then how the stream ended.
    pub fn turn(&mut self, plain: &mut Buffer, most: usize) -> io::Result<Turn> {
        let turn = self.turn_once(plain, most)?;
        if turn == Turn::Over {
            return Ok(turn);
        }
        let signalled = self.ring.rest(&self.line);
        self.signalled(signalled);
        Ok(if std::mem::take(&mut self.recheck) { Turn::Again } else { turn })
    }

    fn turn_once(&mut self, plain: &mut Buffer, most: usize) -> io::Result<Turn> {
        self.recheck = false;
        self.write_kept()?;
        if self.received & ANNOUNCED_CLOSE != 0 {
            if self.kept.is_empty() {
                self.close();
                return Ok(Turn::Over);
            }
            return Ok(Turn::Waits);
        }
        self.report_room(plain)?;
        // Asked for before the bytes: none come behind it.
        let over = self.ring.is_over();
        let ready = self.ring.ready()?;
        // With what is there already, whole records.
        let fits = most.saturating_sub(plain.len() + HEADER).clamp(1, MOST_DATA);
        let len = self.credit.of(ready.min(fits));
        if len > 0 {
            let room = plain.room(HEADER + len).get_mut(..HEADER + len).unwrap_or_default();
            if let Some((header, data)) = room.split_first_chunk_mut() {
                *header = data_header(self.id, len);
                let taken = self.ring.peek(data)?;
                debug_assert_eq!(taken, len);
            }
            plain.add(HEADER + len);
            self.credit.spend(len);
            let signalled = self.ring.consume(len, &self.line);
            self.signalled(signalled);
            if ready > len {
                return Ok(if self.credit.of(1) > 0 { Turn::Again } else { Turn::Waits });
            }
            return Ok(if over || self.ring.arm_bytes()? { Turn::Again } else { Turn::Waits });
        }
        self.report_refused(plain);
        if ready > 0 {
            // The peer's credit wakes it. An end is signalled without being asked for.
            self.ring.disarm_bytes();
            return Ok(Turn::Waits);
        }
        if over {
            return Ok(self.report_end(plain));
        }
        Ok(if self.ring.arm_bytes()? { Turn::Again } else { Turn::Waits })
    }

    /// The daemon's end takes no more.
    fn report_refused(&mut self, plain: &mut Buffer) {
        if self.ring.ended() & ended::REFUSED & !self.reported != 0 {
            self.reported |= ended::REFUSED;
            Frame::Fin { stream: self.id, send: false, receive: true }.write(plain);
        }
    }

    /// All bytes are sent, and none will come.
    fn report_end(&mut self, plain: &mut Buffer) -> Turn {
        let ended = self.ring.ended();
        if ended & ended::RESET != 0 {
            Frame::Reset { stream: self.id }.write(plain);
            return Turn::Over;
        }
        if ended & ended::DETACHED != 0 {
            Frame::Close { stream: self.id }.write(plain);
            // There is no reader.
            self.kept.clear();
            self.close();
            return Turn::Over;
        }
        if self.reported & ended::FINISHED == 0 {
            self.reported |= ended::FINISHED;
            Frame::Fin { stream: self.id, send: true, receive: false }.write(plain);
        }
        Turn::Waits
    }

    /// What waits behind the ring goes into it, as far as there is room; if there is not, the daemon signals
    /// once there is.
    fn write_kept(&mut self) -> io::Result<()> {
        while !self.kept.is_empty() {
            if self.ring.is_refused() {
                self.kept.clear();
                break;
            }
            let len = self.ring.write(self.kept.filled(), &self.line)?;
            self.kept.take(len);
            if len == 0 && !self.await_room()? {
                return Ok(());
            }
        }
        let pending = self.received & !self.announced;
        if pending & ANNOUNCED_SEND != 0 {
            self.announce_end(ANNOUNCED_SEND);
        }
        Ok(())
    }

    /// Has the daemon signal once there is room. True if there is some.
    fn await_room(&mut self) -> io::Result<bool> {
        self.armed = true;
        self.ring.arm_room()
    }

    /// Reports to the peer what there is room for.
    fn report_room(&mut self, plain: &mut Buffer) -> io::Result<()> {
        if self.received & (ANNOUNCED_SEND | ANNOUNCED_CLOSE) != 0 {
            return Ok(());
        }
        let mut room = self.ring.room()?;
        if room == 0 && self.given.is_used_up() && self.kept.is_empty() && self.await_room()? {
            room = self.ring.room()?;
        }
        if room > 0 && self.armed {
            self.armed = false;
            self.ring.disarm_room();
        }
        let room = (room + self.window.size()).saturating_sub(self.kept.len());
        if let Some(bytes) = self.given.give(room) {
            Frame::Credit { stream: self.id, bytes }.write(plain);
        }
        Ok(())
    }

    /// The peer has room for more. False: that cannot be.
    pub fn add_credit(&mut self, bytes: u32) -> bool {
        self.credit.add(bytes)
    }

    /// The peer is about to send so many bytes. `round`: a round trip of the network, if it is known.
    pub fn expect(&mut self, len: usize, now: Instant, round: Option<Duration>) -> Result<(), Violation> {
        if self.received & (ANNOUNCED_SEND | ANNOUNCED_CLOSE) != 0 {
            return Err(Violation::Turn { kind: "DATA", stream: self.id });
        }
        if !self.given.take(len) {
            return Err(Violation::Credit { stream: self.id });
        }
        self.window.count(len, self.kept.len(), now, round);
        Ok(())
    }

    /// Bytes of the peer's, which [`Self::expect`] allowed: there is room for them in the ring or behind it.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        if self.kept.is_empty() {
            let len = self.ring.write(bytes, &self.line)?;
            rest = bytes.get(len..).unwrap_or_default();
        }
        if !rest.is_empty() {
            self.kept.put(rest);
        }
        let room = self.ring.room()?;
        self.window.give_back_beyond((self.given.open() + self.kept.len()).saturating_sub(room));
        Ok(())
    }

    /// Notifies a program that waits of the bytes that were written.
    pub fn notify_bytes(&mut self) {
        self.ring.notify_bytes(&self.line);
    }

    fn announce_end(&mut self, what: u64) {
        self.announced |= what;
        let signalled = self.ring.announce_end(what, &self.line);
        self.signalled(signalled);
    }

    /// The peer sends, or receives, no more.
    pub fn finish(&mut self, send: bool, receive: bool) {
        let flags = if send { ANNOUNCED_SEND } else { 0 } | if receive { ANNOUNCED_RECEIVE } else { 0 };
        self.received |= flags;
        // What waits behind the ring comes before the end.
        let now = if self.kept.is_empty() { flags } else { flags & ANNOUNCED_RECEIVE };
        self.announce_end(now);
    }

    /// The peer is done, or the daemon's end: what was written still counts when this is dropped. False: some
    /// of it waits behind the ring, and turns are still needed.
    pub fn close(&mut self) -> bool {
        self.received |= ANNOUNCED_CLOSE;
        let done = self.kept.is_empty();
        if done {
            self.announce_end(ANNOUNCED_CLOSE);
        }
        done
    }
}
