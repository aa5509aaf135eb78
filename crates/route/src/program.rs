//! The socket of a program whose ring the daemon has left to the helper: signals there and back, as a worker
//! of the daemon's has them with other programs.
//!
//! It is the daemon's end, of which the helper has a copy: its end means nothing here, the daemon announces
//! what it means.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use vmlane_wire::host::{SIGNAL, SWITCH};

use crate::far::{Asks, Far};

/// Reads at a time: more than a socket holds. A program that sends more meanwhile keeps no other stream
/// waiting by it.
const READS: usize = 64;
/// So many bytes are no signals: the program has filled its socket, so that it cannot be polled writable.
const FILLED: usize = 64;

/// See the module's text.
pub struct Program {
    socket: OwnedFd,
    /// What waits for its signals. They are the daemon's sockets, too: closing this copy would not end that.
    epoll: Arc<OwnedFd>,
    /// The program has filled its socket, and that was left as it is.
    filled: bool,
}

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Nothing,
    Signals,
    /// The program uses its ring no more, and waits for the daemon's word.
    Switch,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = epoll::delete(&*self.epoll, &self.socket);
    }
}

impl Program {
    /// `token`: by which `epoll` knows the socket.
    pub fn new(socket: OwnedFd, epoll: Arc<OwnedFd>, token: u64) -> std::io::Result<Program> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&*epoll, &socket, epoll::EventData::new_u64(token), flags)?;
        Ok(Program { socket, epoll, filled: false })
    }

    pub fn signal(&self) {
        // One that does not fetch its signals has some already.
        let _ = rustix::net::send(&self.socket, &[SIGNAL], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    fn receive(&self, bytes: &mut [u8], flags: RecvFlags) -> usize {
        loop {
            match rustix::net::recv(&self.socket, &mut *bytes, flags | RecvFlags::DONTWAIT) {
                Ok((len, _)) => return len,
                Err(Errno::INTR) => {}
                Err(_) => return 0,
            }
        }
    }

    /// Takes the signals that have come.
    fn take(&mut self) -> Received {
        self.filled = false;
        let mut bytes = [0; 4096];
        let mut received = Received::Nothing;
        for _ in 0..READS {
            let len = self.receive(&mut bytes, RecvFlags::empty());
            if len == 0 {
                break;
            }
            // Behind it nothing comes before the daemon has answered.
            if bytes.get(len - 1) == Some(&SWITCH) {
                return Received::Switch;
            }
            received = Received::Signals;
            if len < bytes.len() {
                break;
            }
        }
        received
    }

    /// The program has signalled. One that waits for room may have filled its socket, so that it cannot be
    /// polled writable: what is in there is taken when there is room.
    pub fn answer(&mut self, ring: &Far) -> Received {
        if ring.asks().blocked && self.receive(&mut [0; FILLED], RecvFlags::PEEK) == FILLED {
            self.filled = true;
        } else if self.take() == Received::Switch {
            return Received::Switch;
        }
        let asks = ring.asks();
        if asks.bytes || asks.room {
            self.signal();
        }
        Received::Signals
    }

    /// Notifies a program that there is room, or how its stream has ended: it may be polled writable again.
    /// `Signals`: what was taken for that has to be checked.
    pub fn announce(&mut self) -> Received {
        self.signal();
        let received = self.take();
        if received == Received::Signals {
            // One of those may have asked for this.
            self.signal();
        }
        received
    }

    /// A program that has found room by itself goes on with a filled socket, and cannot signal.
    pub fn drain_filled(&mut self, asks: Asks) -> Received {
        if self.filled && !asks.blocked { self.announce() } else { Received::Nothing }
    }
}
