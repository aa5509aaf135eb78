//! The thread that serves host sockets. It alone owns the tables; nothing in it waits for a process.
//!
//! This file decides what comes next, and calls the others. Each of them calls only those behind it: what
//! guests, programs, VMMs and other hosts ask for (`programs.rs`, `hybrid.rs`, `routes.rs`), how streams come
//! about (`calls.rs`, `left.rs`), have their turns (`moving.rs`) and end (`ends.rs`); then the tables, which
//! know no other.

mod asked;
mod calls;
mod clients;
mod ends;
mod hybrid;
mod left;
mod moving;
mod poller;
mod ports;
mod programs;
mod rings;
mod route_table;
mod routes;
mod turns;

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::Timespec;
use rustix::event::epoll::{Event, EventFlags};
use rustix::io::Errno;
use vmlane_access::Peer;
use vmlane_vsock::{Failed, HOST, HostRules, Router};

use self::asked::Hybrids;
use self::clients::Clients;
use self::poller::{INBOX, Poller};
use self::ports::Ports;
use self::rings::Rings;
use self::route_table::RouteTable;
use self::turns::Turns;
use super::client::{Account, Arrival, Asked, Client, Dialect, Opening, RingUse, State, arrival};
use super::hybrid_views::Shown;
use super::inbox::{Guest, Inbox, Message, Token};
use super::socket::{self, Io};
use super::stream::StreamKind;
use super::{Bounds, Datagrams};

/// How long a guest may take to answer unless the process asks for another time: what AF_VSOCK has.
const CONNECT: Duration = Duration::from_secs(2);
const LONGEST_CONNECT: Duration = Duration::from_secs(60);
/// Guests' requests that are answered before clients have their turn.
const REQUESTS: usize = 64;
/// Connections that are accepted at one socket before others have their turn.
const ACCEPTS: usize = 64;
/// Where a failed accept is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// See the module's text.
pub struct Server {
    router: Arc<Router>,
    inbox: Arc<Inbox>,
    rules: Arc<Mutex<HostRules>>,
    bounds: Bounds,
    poller: Poller,
    /// VMs whose devices are ours: their hybrid Unix sockets.
    guests: HashMap<u32, Guest>,
    /// VMs whose VMMs have the sockets.
    hybrids: Hybrids,
    /// Other hosts.
    routes: RouteTable,
    clients: Clients,
    ports: Ports,
    rings: Rings,
    turns: Turns,
    buffer: Vec<u8>,
}

impl Server {
    pub fn new(
        router: Arc<Router>,
        inbox: Arc<Inbox>,
        datagrams: Datagrams,
        rules: Arc<Mutex<HostRules>>,
        (socket, bounds): (OwnedFd, Bounds),
        shown: Arc<Mutex<Shown>>,
    ) -> io::Result<Server> {
        let mut poller = Poller::new(inbox.event())?;
        poller.listen(socket, Dialect::Native)?;
        Ok(Server {
            router,
            rings: Rings::new(inbox.clone()),
            inbox,
            rules,
            bounds,
            poller,
            guests: HashMap::new(),
            hybrids: Hybrids::new(shown),
            routes: RouteTable::new(&bounds),
            clients: Clients::new(&bounds),
            ports: Ports::new(datagrams),
            turns: Turns::default(),
            buffer: vec![0; 128 << 10],
        })
    }

    pub fn run(mut self) {
        let mut messages = Vec::new();
        let mut space = [const { MaybeUninit::<Event>::uninit() }; 64];
        loop {
            self.turns.begin_round();
            let timeout = self.timeout();
            let events = match self.poller.wait(&mut space, timeout.as_ref()) {
                Ok(events) => events,
                Err(Errno::INTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "host sockets cannot be polled; they are served no more: restart the daemon");
                    return self.end();
                }
            };
            for event in events.iter() {
                match event.data.u64() {
                    INBOX => {}
                    token if self.poller.listening(token).is_some() => self.accept_clients(token),
                    token => self.on_event(token, event.flags),
                }
            }
            for token in self.turns.take_listening(self.poller.all_listening()) {
                self.accept_clients(token);
            }
            self.inbox.take(&mut messages);
            for inbox in messages.drain(..) {
                if matches!(inbox, Message::Stop) {
                    return self.end();
                }
                self.read(inbox);
            }
            self.answer_requests();
            for _ in 0..self.turns.waiting() {
                if let Some(token) = self.turns.next() {
                    self.turn(token);
                }
            }
            self.expire();
        }
    }

    /// Answers guests' requests, as many as leave time for streams.
    fn answer_requests(&mut self) {
        for _ in 0..REQUESTS {
            let Some(call) = self.inbox.next_request() else { return };
            match call.key.server.0 {
                HOST => self.requested(call),
                cid if self.hybrids.path(cid).is_some() => self.ask_vmm(call),
                _ => self.ask_route(call),
            }
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let wait = if self.turns.is_busy() || self.inbox.has_requests() {
            Duration::ZERO
        } else if self.turns.retries() {
            RETRY
        } else {
            self.clients.first_deadline()?.saturating_duration_since(Instant::now())
        };
        Some(Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() })
    }

    fn end(mut self) {
        let tokens: Vec<Token> = self.clients.tokens();
        tokens.into_iter().for_each(|token| self.close(token));
    }

    fn read(&mut self, inbox: Message) {
        match inbox {
            Message::Joined(token, stream, side) => self.joined(token, stream, side),
            Message::Failed(token, why) => {
                let errno = match why {
                    Failed::Refused => Errno::CONNRESET,
                    Failed::Gone => Errno::TIMEDOUT,
                    Failed::Absent => Errno::NODEV,
                };
                self.fail(token, errno);
            }
            Message::Wake(token) => {
                if let Some(waker) = self.clients.get(token).and_then(|client| client.waker.as_ref()) {
                    waker.fetched();
                }
                self.turn(token);
            }
            Message::AddGuest(guest, socket) => {
                if let Err(error) = self.poller.listen(socket, Dialect::Hybrid(guest.cid)) {
                    tracing::error!(%error, path = %guest.uds.display(), "a VM's Unix socket cannot be served");
                }
                self.guests.insert(guest.cid, guest);
            }
            Message::RemoveGuest(cid) => {
                self.poller.close(|dialect| dialect == Dialect::Hybrid(cid));
                self.guests.remove(&cid);
            }
            Message::Hybrid(cid, path, stats) => self.hybrids.set(cid, path, stats),
            Message::RemoveHybrid(cid) => self.remove_hybrid(cid),
            Message::Listen(cid, port, socket) => {
                if let Err(error) = self.poller.listen(socket, Dialect::Forward(cid, port)) {
                    tracing::error!(%error, cid, port, "the socket of a forward cannot be served");
                }
            }
            Message::Unlisten(cid, port) => {
                self.poller.close(|dialect| dialect == Dialect::Forward(cid, port));
            }
            Message::GivenUp(call) => {
                self.vmm_given_up(call);
                self.call_given_up(call);
            }
            Message::ListenRoute(socket) => {
                if let Err(error) = self.poller.listen(socket, Dialect::Route) {
                    tracing::error!(%error, "the socket of the helper for streams between hosts cannot be served");
                }
            }
            Message::Routes(routes, peers) => self.set_routes(routes, peers),
            Message::Rules(rules) => *self.rules.lock() = rules,
            Message::Stop => {}
        }
    }

    /// Connections wait at a listening socket.
    fn accept_clients(&mut self, token: Token) {
        for _ in 0..ACCEPTS {
            let Some((socket, dialect)) = self.poller.listening(token) else { return };
            if let Dialect::Forward(cid, _) = dialect
                && self.turns.is_over(Account::Vm(cid))
            {
                break;
            }
            let socket = match socket::accept(socket) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    tracing::warn!(%error, "a host program's connection cannot be accepted; tried again");
                    return self.turns.retry();
                }
            };
            let Ok(peer) = Peer::of(&socket).map(Arc::new) else { continue };
            if !self.is_owner(dialect, &peer) {
                let cid = dialect.cid();
                self.hybrids.count(cid, |stats| stats.not_owner.inc());
                tracing::warn!(
                    cid,
                    pid = peer.pid,
                    uid = peer.uid,
                    "not an owner of this socket; its connection was closed"
                );
                continue;
            }
            if let Dialect::Forward(cid, port) = dialect {
                self.forward((cid, port), socket, peer);
                continue;
            }
            if !self.clients.may_ask(peer.uid) {
                continue; // closed: the user has too many connections without a request
            }
            let state = State::Asking { dialect, bytes: Vec::new() };
            let deadline = Some(Instant::now() + self.bounds.request);
            let account = Account::User(peer.uid);
            if let Some(token) =
                self.admit(Client { socket: Arc::new(socket), peer, account, state, deadline, waker: None })
            {
                self.on_event(token, EventFlags::IN);
            }
        }
        self.turns.accept_more(token);
    }

    /// At a VM's own socket: root, the daemon's user, the VM's owner. Who may do what at the others is
    /// decided by the rules.
    fn is_owner(&self, dialect: Dialect, peer: &Peer) -> bool {
        let owner = match dialect {
            Dialect::Native => return true,
            Dialect::Hybrid(cid) | Dialect::Forward(cid, _) => {
                self.router.vms().get(cid).and_then(|vm| vm.owner)
            }
            Dialect::Route => self.routes.helper(),
        };
        self.rules.lock().is_ours(peer) || owner.is_some_and(|owner| owner.includes(peer))
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while let Some(token) = self.clients.expired(now) {
            self.vmm_is_late(token);
            self.fail(token, Errno::TIMEDOUT);
        }
    }

    /// Something happened at a client's socket.
    fn on_event(&mut self, token: Token, flags: EventFlags) {
        let Some(client) = self.clients.get_mut(token) else { return };
        let hung_up = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        match &mut client.state {
            State::Asking { dialect, bytes } => {
                let dialect = *dialect;
                match arrival(&client.socket, dialect, bytes) {
                    Arrival::Later => {}
                    Arrival::Never => self.fail(token, Errno::PROTO),
                    Arrival::Whole(asked) => self.ask(token, dialect, asked),
                }
            }
            State::Asked(call) => {
                let call = *call;
                self.vmm_answers(token, call, hung_up);
            }
            // What it wrote before it went is still to be delivered, here and below.
            State::Connecting(Opening { ring: RingUse::Ours(pump), .. }, Dialect::Forward(..), _) => {
                pump.hung_up |= hung_up;
            }
            State::Connecting(..) if hung_up => self.close(token),
            State::Accepting(Opening { ring: RingUse::Ours(pump), .. }, _) => pump.hung_up |= hung_up,
            State::Accepting(..) if hung_up => self.close(token),
            State::Connecting(..) | State::Accepting(..) | State::Changing => {}
            State::Streaming(stream) => {
                match &mut stream.kind {
                    StreamKind::Plain(pump) => {
                        pump.can_read = true;
                        pump.can_write = true;
                        pump.hung_up |= hung_up;
                        self.turn(token);
                    }
                    // What it wrote is in its ring, and is taken when it leaves.
                    StreamKind::Ring { .. } | StreamKind::Left(_)
                        if hung_up || flags.intersects(EventFlags::RDHUP) =>
                    {
                        self.leaves(token);
                    }
                    StreamKind::Ring { .. } => {}
                    StreamKind::Left(_) => self.orphan_signals(token),
                    StreamKind::Helpers(_) => {
                        self.helper_signals(token, hung_up || flags.intersects(EventFlags::RDHUP));
                    }
                }
            }
            State::Listening { .. } => {
                if hung_up || socket::peek(&*client.socket, &mut [0]) == Io::Over {
                    self.close(token);
                }
            }
            State::Datagrams { .. } => self.datagrams_from(token, hung_up),
            State::Line(_) => self.line_event(token, hung_up),
        }
    }

    fn ask(&mut self, token: Token, dialect: Dialect, asked: Asked) {
        let outcome = match (asked, dialect) {
            (Asked::Line(port), Dialect::Hybrid(cid)) => {
                self.connect(token, dialect, (cid, port), false, CONNECT)
            }
            (Asked::Record(request), _) => self.record(token, request),
            (Asked::Route(message), _) => self.route_record(token, &message),
            (Asked::Line(_), Dialect::Native | Dialect::Forward(..) | Dialect::Route) => Err(Errno::PROTO),
        };
        if let Err(errno) = outcome {
            self.fail(token, errno);
        }
    }
}
