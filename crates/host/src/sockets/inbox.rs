//! The inbox of the thread that serves host sockets: messages of workers, sessions, the operator.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::net::SendFlags;
use vmlane_port::shared_ring::{Asks, RingProcess};
use vmlane_port::{End, Side, StreamId};
use vmlane_vsock::{Call, ConnectError, Failed, HostRules, Remote, WaitingCalls};
use vmlane_wire::host::{SIGNAL, SWITCH};

use super::hybrid::HybridStats;
use super::route::{PeerShared, Routes};
use super::socket::{self, Io};

/// A client of the thread, or a listening socket.
pub type Token = u64;

/// One VM that host programs may reach.
#[derive(Clone, Debug)]
pub struct Guest {
    pub cid: u32,
    /// Its hybrid Unix socket.
    pub uds: PathBuf,
}

/// Connects of guests that may wait for the thread.
const MOST_REQUESTS: usize = 1024;

pub enum Message {
    Joined(Token, StreamId, Side),
    Failed(Token, Failed),
    /// Something happened in its ring.
    Wake(Token),
    AddGuest(Guest, OwnedFd),
    /// A VM is served from now on, whose VMM has this hybrid socket, or that changes.
    Hybrid(u32, PathBuf, Arc<HybridStats>),
    /// It is served no more.
    RemoveHybrid(u32),
    /// The socket of a VM's forward of this port.
    Listen(u32, u32, OwnedFd),
    Unlisten(u32, u32),
    /// A connection to a VM whose VMM has been asked for it.
    GivenUp(Call),
    RemoveGuest(u32),
    Rules(HostRules),
    /// The socket of the helper for streams between hosts.
    ListenRoute(OwnedFd),
    /// What is configured of other hosts, and what is shared of each, with its number.
    Routes(Option<Arc<Routes>>, HashMap<String, (u32, Arc<PeerShared>)>),
    Stop,
}

/// What waits for the thread. The number of guests' requests is bounded, and one guest cannot use it up; the
/// number of messages is bounded by the number of clients: each has one of a kind at most. A request that is
/// given up is of a client, too, unless it is so before the thread has made one of it.
pub struct Inbox {
    waiting: Mutex<Waiting>,
    event: OwnedFd,
}

struct Waiting {
    messages: Vec<Message>,
    requests: WaitingCalls,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.requests.is_empty()
    }
}

impl Inbox {
    pub fn new() -> std::io::Result<Inbox> {
        let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let waiting = Waiting { messages: Vec::new(), requests: WaitingCalls::new(MOST_REQUESTS) };
        Ok(Inbox { waiting: Mutex::new(waiting), event })
    }

    pub fn event(&self) -> &OwnedFd {
        &self.event
    }

    pub fn send(&self, message: Message) {
        let mut waiting = self.waiting.lock();
        let first = waiting.is_empty();
        waiting.messages.push(message);
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

    /// All messages that have come. `into` is emptied first.
    pub fn take(&self, into: &mut Vec<Message>) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        into.clear();
        std::mem::swap(into, &mut self.waiting.lock().messages);
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

/// Reads of a socket with signals at a time: its process can send more meanwhile, and keeps no one else
/// waiting by it.
const READS: usize = 4;
/// So many bytes in it are no signals: its process has filled it, so that it cannot be polled writable.
const FILLED: usize = 64;

/// How workers and one stream's process reach each other: by its own socket if it uses the ring itself, else
/// through the thread that pumps.
pub struct StreamWaker {
    token: Token,
    inbox: Arc<Inbox>,
    /// Of a process that uses the ring itself: workers read its signals, until it hands the ring over.
    socket: Option<Arc<OwnedFd>>,
    signal: Mutex<Option<Arc<OwnedFd>>>,
    /// A wake came while there was no socket for signals.
    missed: AtomicBool,
    /// A wake is in the inbox already.
    queued: AtomicBool,
    /// The process has handed the ring over.
    switched: AtomicBool,
    /// The ends that the process has announced, as far as the thread was notified.
    announced: AtomicU64,
    /// The process has filled its socket, and that was left as it is.
    filled: AtomicBool,
}

impl StreamWaker {
    /// Of the client `token`; `socket`: its own, if it uses the ring itself.
    pub fn new(token: Token, inbox: Arc<Inbox>, socket: Option<Arc<OwnedFd>>) -> StreamWaker {
        StreamWaker {
            token,
            inbox,
            signal: Mutex::new(socket.clone()),
            socket,
            missed: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            switched: AtomicBool::new(false),
            announced: AtomicU64::new(0),
            filled: AtomicBool::new(false),
        }
    }

    /// The thread has taken the wake out of the inbox.
    pub fn fetched(&self) {
        self.queued.store(false, Ordering::SeqCst);
    }

    /// The process has handed the ring over: from then on the thread alone reads its socket.
    pub fn has_switched(&self) -> bool {
        self.switched.load(Ordering::SeqCst)
    }

    /// The process hands its ring over, as reported by the helper that read its signals.
    pub fn switch(&self) {
        self.switched.store(self.socket.is_some(), Ordering::SeqCst);
    }

    /// Takes the signals of a process whose helper is gone; the thread is woken if it hands its ring over.
    pub fn take_orphans_signals(&self) {
        if let Some(socket) = self.of_ring() {
            self.take_signals(socket);
        }
    }

    /// The socket of a process that uses the ring itself.
    fn of_ring(&self) -> Option<&Arc<OwnedFd>> {
        self.socket.as_ref().filter(|_| !self.has_switched())
    }

    /// Takes the signals that have come; true if there were any. That its socket ends is for the thread,
    /// which gets that event by itself.
    fn take_signals(&self, socket: &OwnedFd) -> bool {
        self.filled.store(false, Ordering::SeqCst);
        let mut bytes = [0; 4096];
        let mut any = false;
        for _ in 0..READS {
            let Io::Done(len) = socket::read(socket, &mut bytes) else { break };
            any = true;
            // Behind it nothing may come before the thread has answered.
            if bytes.get(len - 1) == Some(&SWITCH) {
                self.switched.store(true, Ordering::SeqCst);
                self.wake_thread();
                break;
            }
            if len < bytes.len() {
                break;
            }
        }
        any
    }

    /// Empties the socket of a process that may have filled it, so that it cannot be polled writable. A
    /// signal that was taken may have asked for one, and what it announced, or what could not be signalled
    /// any more, is for the thread to handle: the stream's turn may be beyond its last check.
    fn empty(&self, socket: &OwnedFd) {
        if self.take_signals(socket) {
            self.send_signal();
            self.wake_thread();
        }
    }

    fn send_signal(&self) -> bool {
        let signal = self.signal.lock();
        let Some(socket) = &*signal else {
            self.missed.store(true, Ordering::SeqCst);
            return false;
        };
        // One that does not fetch its signals has some already.
        let _ = rustix::net::send(socket, &[SIGNAL], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        true
    }

    /// From here on nothing but the thread that pumps writes to the socket.
    pub fn stop_signals(&self) {
        *self.signal.lock() = None;
    }

    /// The process has its answer, which a signal must not come before: from here on it gets signals at
    /// `socket`, at once the one that it missed.
    pub fn start_signals(&self, socket: Arc<OwnedFd>) {
        let mut signal = self.signal.lock();
        if self.missed.swap(false, Ordering::SeqCst) {
            let _ = rustix::net::send(&socket, &[SIGNAL], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        *signal = Some(socket);
    }

    fn wake_thread(&self) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.inbox.send(Message::Wake(self.token));
        }
    }
}

impl RingProcess for StreamWaker {
    fn wake(&self, room: bool) {
        self.send_signal();
        match self.of_ring() {
            Some(socket) if room => self.empty(socket),
            Some(_) => {}
            None => self.wake_thread(),
        }
    }

    fn ended(&self, _end: End) {
        match self.of_ring() {
            Some(socket) => self.empty(socket),
            None => self.wake_thread(),
        }
    }

    fn broke(&self) {
        self.wake_thread();
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|socket| socket.as_fd())
    }

    /// A process that has found room by itself goes on with a filled socket, and cannot signal.
    fn poll_signals(&self, asks: &dyn Fn() -> Asks) {
        if self.filled.load(Ordering::Relaxed)
            && !asks().blocked
            && let Some(socket) = self.of_ring()
        {
            self.empty(socket);
        }
    }

    fn answer_doorbell(&self, asks: &dyn Fn() -> Asks) -> bool {
        let Some(socket) = self.of_ring() else { return false };
        // One that waits for room may have filled its socket, so that it cannot be polled writable: what is
        // in there is taken when there is room. A few signals are taken in any case: where they fill the
        // socket, the next one is lost.
        if asks().blocked && socket::peek(socket, &mut [0; FILLED]) == Io::Done(FILLED) {
            self.filled.store(true, Ordering::SeqCst);
        } else {
            self.take_signals(socket);
        }
        let asks = asks();
        if self.announced.swap(asks.announced, Ordering::SeqCst) != asks.announced {
            self.wake_thread();
        }
        let switched = self.has_switched();
        if (asks.bytes || asks.room) && !switched {
            self.send_signal();
        }
        !switched
    }
}

impl Remote for StreamWaker {
    fn joined(&self, _: Call, stream: StreamId, side: Side) {
        self.inbox.send(Message::Joined(self.token, stream, side));
    }

    fn failed(&self, _: Call, why: Failed) {
        self.inbox.send(Message::Failed(self.token, why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use vmlane_vsock::{Key, Role};

    const QUIET: Asks = Asks { bytes: false, room: false, blocked: false, announced: 0 };

    fn waker() -> (StreamWaker, Arc<Inbox>, std::os::unix::net::UnixStream) {
        let inbox = Arc::new(Inbox::new().expect("an eventfd"));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).and_then(|()| theirs.set_nonblocking(true)).expect("sockets");
        (StreamWaker::new(7, inbox.clone(), Some(Arc::new(ours.into()))), inbox, theirs)
    }

    fn wakes(inbox: &Inbox) -> usize {
        let mut messages = Vec::new();
        inbox.take(&mut messages);
        messages.iter().filter(|inbox| matches!(inbox, Message::Wake(7))).count()
    }

    #[test]
    fn an_end_announced_while_signals_are_taken_wakes_the_thread() {
        let (waker, inbox, mut theirs) = waker();
        theirs.write_all(&[SIGNAL]).expect("a signal");
        let announced = std::cell::Cell::new(0);
        // The process is done, and signals that, behind the first check of its ring.
        let asks = || {
            let asks = Asks { announced: announced.get(), ..QUIET };
            if announced.replace(1) == 0 {
                (&theirs).write_all(&[SIGNAL]).expect("a signal");
            }
            asks
        };
        assert!(waker.answer_doorbell(&asks));
        assert_eq!(wakes(&inbox), 1, "no further signal will come");
    }

    #[test]
    fn signals_are_taken_but_not_what_fills_the_socket_of_one_that_waits_for_room() {
        let (waker, inbox, mut theirs) = waker();
        let blocked = || Asks { blocked: true, ..QUIET };
        let waiting = || match socket::peek(waker.socket.as_ref().expect("a socket"), &mut [0; 4096]) {
            Io::Done(len) => len,
            _ => 0,
        };
        theirs.write_all(&[SIGNAL; 5]).expect("signals");
        assert!(waker.answer_doorbell(&blocked));
        assert_eq!(waiting(), 0, "the next signals find room");
        theirs.write_all(&[SIGNAL; 1280]).expect("it is filled");
        assert!(waker.answer_doorbell(&blocked));
        waker.poll_signals(&blocked);
        assert_eq!((waiting(), wakes(&inbox)), (1280, 0));
        // It has found room by itself.
        waker.poll_signals(&|| QUIET);
        assert_eq!((waiting(), wakes(&inbox)), (0, 1), "the stream gets another turn");
        let mut signal = [9; 2];
        assert_eq!((theirs.read(&mut signal).expect("a signal"), signal[0]), (1, SIGNAL));
    }

    #[test]
    fn one_that_hands_its_ring_over_is_left_to_the_thread() {
        let (waker, inbox, mut theirs) = waker();
        theirs.write_all(&[SIGNAL, SWITCH]).expect("signals");
        assert!(!waker.answer_doorbell(&|| Asks { bytes: true, ..QUIET }));
        assert_eq!((waker.has_switched(), wakes(&inbox)), (true, 1));
        assert!(theirs.read(&mut [0]).is_err(), "nothing may come before the thread's answer");
        theirs.write_all(b"bytes of the stream").expect("bytes");
        assert!(!waker.answer_doorbell(&|| QUIET));
        assert_eq!(socket::read(waker.socket.as_ref().expect("a socket"), &mut [0; 64]), Io::Done(19));
    }

    fn call(client: u32, number: u64) -> Call {
        Call { key: Key { client: (client, 1000), server: (2, 80) }, number, role: Role::Server }
    }

    #[test]
    fn a_guest_that_opens_and_gives_up_faster_than_it_is_served_fills_nothing() {
        let inbox = Inbox::new().expect("an eventfd");
        for number in 0..100_000 {
            assert_eq!(inbox.request(call(3, number)), Ok(()));
            inbox.withdraw(call(3, number));
        }
        assert!(!inbox.has_requests());
        let taken = (0..10_000).filter(|&number| inbox.request(call(3, number)).is_ok()).count();
        assert_eq!(taken, MOST_REQUESTS / 2);
        assert_eq!(inbox.request(call(4, 10_000)), Ok(()), "another guest is served");
        assert_eq!(std::iter::from_fn(|| inbox.next_request()).count(), taken + 1);
    }
}
