//! What other threads tell the thread that serves host sockets: workers, sessions, the operator.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::net::SendFlags;
use vmlane_access::Owner;
use vmlane_device::vmci::Waker;
use vmlane_port::{End, Side, StreamId};
use vmlane_vsock::{Call, ConnectError, Failed, HostRules, Remote, WaitingCalls};
use vmlane_wire::host::SIGNAL;

use super::hybrid::{HybridStats, HybridVm};
use super::route::{PeerShared, Routes};

/// A client of the thread, or a listening socket.
pub type Token = u64;

/// One VM that host programs may reach.
#[derive(Clone, Debug)]
pub struct Guest {
    pub cid: u32,
    pub group: String,
    /// Its hybrid Unix socket.
    pub uds: PathBuf,
}

/// Connects of guests that may wait for the thread.
const MOST_REQUESTS: usize = 1024;

pub enum Mail {
    Joined(Token, StreamId, Side),
    Failed(Token, Failed),
    /// Something happened in its ring.
    Wake(Token),
    AddGuest(Guest, OwnedFd),
    /// A VM with a hybrid socket of its VMM's is served from now on, or what is known of it changes.
    Hybrid(Box<HybridVm>, Arc<HybridStats>),
    /// It is served no more.
    RemoveHybrid(u32),
    /// The socket of a VM's forward of this port.
    Listen(u32, u32, OwnedFd),
    Unlisten(u32, u32),
    /// A connection to a VM whose VMM has been asked for it.
    GivenUp(Call),
    RemoveGuest(u32),
    /// Whose processes may connect at a VM's hybrid Unix socket.
    Owner(u32, Option<Owner>),
    Rules(HostRules),
    /// The socket of the helper for streams between hosts.
    ListenRoute(OwnedFd),
    /// What is configured of other hosts, and what is shared of each, with its number.
    Routes(Option<Arc<Routes>>, HashMap<String, (u32, Arc<PeerShared>)>),
    Stop,
}

/// What waits for the thread. The number of guests' requests is bounded, and one guest cannot use it up; the number of
/// mails is bounded by the number of clients: each has one of a kind at most. A request that is given up is of a client, too,
/// unless it is so before the thread has made one of it.
pub struct Mailbox {
    waiting: Mutex<Waiting>,
    event: OwnedFd,
}

struct Waiting {
    mails: Vec<Mail>,
    requests: WaitingCalls,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.mails.is_empty() && self.requests.is_empty()
    }
}

impl Mailbox {
    pub fn new() -> std::io::Result<Mailbox> {
        let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let waiting = Waiting { mails: Vec::new(), requests: WaitingCalls::new(MOST_REQUESTS) };
        Ok(Mailbox { waiting: Mutex::new(waiting), event })
    }

    pub fn event(&self) -> &OwnedFd {
        &self.event
    }

    pub fn send(&self, mail: Mail) {
        let mut waiting = self.waiting.lock();
        let first = waiting.is_empty();
        waiting.mails.push(mail);
        drop(waiting);
        self.ring(first);
    }

    /// A guest wants to connect. Refused if too many of its requests wait already.
    pub fn request(&self, call: Call) -> Result<(), ConnectError> {
        let mut waiting = self.waiting.lock();
        let first = waiting.is_empty();
        waiting.requests.push(call)?;
        drop(waiting);
        self.ring(first);
        Ok(())
    }

    /// The guest has given up: its request is forgotten if it waits still. False if it does not.
    pub fn withdraw(&self, call: Call) -> bool {
        self.waiting.lock().requests.withdraw(call)
    }

    fn ring(&self, first: bool) {
        if first {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// All mails that have come. `into` is emptied first.
    pub fn take(&self, into: &mut Vec<Mail>) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        into.clear();
        std::mem::swap(into, &mut self.waiting.lock().mails);
    }

    /// The request that has waited longest.
    pub fn next_request(&self) -> Option<Call> {
        self.waiting.lock().requests.pop()
    }

    /// Does a request wait?
    pub fn has_requests(&self) -> bool {
        !self.waiting.lock().requests.is_empty()
    }
}

/// How workers reach one stream's process: by its own socket if it uses the ring itself, else through
/// the thread that pumps.
pub struct StreamWaker {
    pub token: Token,
    pub mailbox: Arc<Mailbox>,
    pub signal: Mutex<Option<Arc<OwnedFd>>>,
    /// A wake came while there was no socket for signals.
    pub missed: AtomicBool,
    /// A wake is in the letter box already.
    pub queued: AtomicBool,
}

impl StreamWaker {
    /// From here on nothing but the thread that pumps writes to the socket.
    pub fn stop_signals(&self) {
        *self.signal.lock() = None;
    }

    /// The process has its answer, which a signal must not come before: from here on it gets signals at `socket`,
    /// at once the one that it missed.
    pub fn start_signals(&self, socket: Arc<OwnedFd>) {
        let mut signal = self.signal.lock();
        if self.missed.swap(false, Ordering::SeqCst) {
            let _ = rustix::net::send(&socket, &[SIGNAL], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        *signal = Some(socket);
    }

    fn wake_thread(&self) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.mailbox.send(Mail::Wake(self.token));
        }
    }
}

impl Waker for StreamWaker {
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
            self.wake_thread();
        }
    }

    fn ended(&self, _end: End) {
        self.wake_thread();
    }

    fn broke(&self) {
        self.wake_thread();
    }
}

impl Remote for StreamWaker {
    fn joined(&self, _: Call, stream: StreamId, side: Side) {
        self.mailbox.send(Mail::Joined(self.token, stream, side));
    }

    fn failed(&self, _: Call, why: Failed) {
        self.mailbox.send(Mail::Failed(self.token, why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmlane_vsock::{Key, Role};

    fn call(client: u32, number: u64) -> Call {
        Call { key: Key { client: (client, 1000), server: (2, 80) }, number, role: Role::Server }
    }

    #[test]
    fn a_guest_that_opens_and_gives_up_faster_than_it_is_served_fills_nothing() {
        let mailbox = Mailbox::new().expect("an eventfd");
        for number in 0..100_000 {
            assert_eq!(mailbox.request(call(3, number)), Ok(()));
            mailbox.withdraw(call(3, number));
        }
        assert!(!mailbox.has_requests());
        let taken = (0..10_000).filter(|&number| mailbox.request(call(3, number)).is_ok()).count();
        assert_eq!(taken, MOST_REQUESTS / 2);
        assert_eq!(mailbox.request(call(4, 10_000)), Ok(()), "another guest is heard");
        assert_eq!(std::iter::from_fn(|| mailbox.next_request()).count(), taken + 1);
    }
}
