//! What other threads tell the thread that serves host sockets: workers, sessions, the operator.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::net::SendFlags;
use vmlane_device::vmci::Waker;
use vmlane_port::{End, Side, StreamId};
use vmlane_vsock::{Call, Failed, HostRules, Remote};
use vmlane_wire::host::SIGNAL;

/// A client of the thread, or a door.
pub type Token = u64;

/// One VM that host programs may reach.
#[derive(Clone, Debug)]
pub struct Guest {
    pub cid: u32,
    pub group: String,
    /// Its hybrid Unix socket.
    pub uds: PathBuf,
}

pub enum Mail {
    /// A guest wants to connect.
    Requested(Call),
    Joined(Token, StreamId, Side),
    Failed(Token, Failed),
    /// Something happened in its ring.
    Wake(Token),
    AddGuest(Guest, OwnedFd),
    RemoveGuest(u32),
    Rules(HostRules),
    Stop,
}

/// The thread's letter box.
pub struct Mailbox {
    mails: Mutex<Vec<Mail>>,
    bell: OwnedFd,
}

impl Mailbox {
    pub fn new() -> std::io::Result<Mailbox> {
        let bell = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Mailbox { mails: Mutex::default(), bell })
    }

    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    pub fn send(&self, mail: Mail) {
        let mut mails = self.mails.lock();
        let first = mails.is_empty();
        mails.push(mail);
        drop(mails);
        if first {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Everything that has come. `into` is emptied first.
    pub fn take(&self, into: &mut Vec<Mail>) {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        into.clear();
        std::mem::swap(into, &mut *self.mails.lock());
    }
}

/// How workers reach one stream's process: by its own socket if it uses the ring itself, else through
/// the thread that pumps.
pub struct Bell {
    pub token: Token,
    pub mailbox: Arc<Mailbox>,
    pub signal: Mutex<Option<Arc<OwnedFd>>>,
    /// A wake came while there was no socket for signals.
    pub missed: AtomicBool,
    /// A wake is in the letter box already.
    pub ringing: AtomicBool,
}

impl Bell {
    /// From here on nothing but the thread that pumps writes to the socket.
    pub fn silence(&self) {
        *self.signal.lock() = None;
    }

    /// The process has its answer, which a signal must not come before: from here on it gets signals at `socket`,
    /// at once the one that it missed.
    pub fn open(&self, socket: Arc<OwnedFd>) {
        let mut signal = self.signal.lock();
        if self.missed.swap(false, Ordering::SeqCst) {
            let _ = rustix::net::send(&socket, &[SIGNAL], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        *signal = Some(socket);
    }

    pub fn ring(&self) {
        if !self.ringing.swap(true, Ordering::SeqCst) {
            self.mailbox.send(Mail::Wake(self.token));
        }
    }
}

impl Waker for Bell {
    fn wake(&self, room: bool) {
        let signal = self.signal.lock();
        let pumped = signal.is_none();
        if pumped {
            self.missed.store(true, Ordering::SeqCst);
        }
        if let Some(socket) = &*signal {
            // One that does not fetch its signals has some already.
            let _ = rustix::net::send(socket, &[SIGNAL], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        drop(signal);
        // One that waits for room cannot be polled writable until its socket is emptied.
        if room || pumped {
            self.ring();
        }
    }

    fn ended(&self, _end: End) {
        self.ring();
    }

    fn broke(&self) {
        self.ring();
    }
}

impl Remote for Bell {
    fn joined(&self, _: Call, lane: StreamId, side: Side) {
        self.mailbox.send(Mail::Joined(self.token, lane, side));
    }

    fn failed(&self, _: Call, why: Failed) {
        self.mailbox.send(Mail::Failed(self.token, why));
    }
}
