//! The thread that serves host sockets. It alone owns the tables; nothing in it waits for a process.

mod calls;
mod clients;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::SocketType;
use vmlane_access::{Owner, Peer};
use vmlane_port::Budget;
use vmlane_vsock::{FIRST_FREE_PORT, Failed, HostAccess, HostRules, Router};
use vmlane_wire::host::{ALL_FLAGS, FLAG_ALONE, FLAG_RING, Op, PEER, PORT_ANY, Reply, Request, SWITCH};
use vmlane_wire::vmci::{CID_HOST, MAX_DATAGRAM_PAYLOAD};
use zerocopy::FromBytes;

use self::clients::Clients;
use super::client::{Arrival, Asked, Client, Dialect, Opening, Ring, State, arrival};
use super::mail::{Guest, Mail, Mailbox, Token};
use super::socket::{self, Io};
use super::stream::{Kind, Turn};
use super::{Bounds, Datagrams};

/// How long a guest may take to answer unless the process says otherwise: what AF_VSOCK has.
const CONNECT: Duration = Duration::from_secs(2);
const LONGEST_CONNECT: Duration = Duration::from_secs(60);
/// Bytes that the programs of one user may leave behind in streams that they closed.
const SPILL: usize = 64 << 20;
/// Guests' requests that are answered before clients have their turn.
const REQUESTS: usize = 64;
/// Where a failed accept is tried again.
const RETRY: Duration = Duration::from_millis(100);
const MAILBOX: Token = 0;
const FIRST_TOKEN: Token = 1;

/// A number that is another one at every start.
fn moment() -> u32 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.subsec_nanos())
}

/// A listening socket.
struct ListeningSocket {
    socket: OwnedFd,
    dialect: Dialect,
}

/// See the module's text. Many fields: one thread serves every kind of client, and each kind has a table.
pub struct Server {
    router: Arc<Router>,
    mailbox: Arc<Mailbox>,
    datagrams: Datagrams,
    rules: Arc<Mutex<HostRules>>,
    bounds: Bounds,
    epoll: OwnedFd,
    listening: HashMap<Token, ListeningSocket>,
    guests: HashMap<u32, Guest>,
    /// Of VMs that have one of their own.
    owners: HashMap<u32, Owner>,
    clients: Clients,
    /// Listeners by port.
    listeners: HashMap<u32, Token>,
    budgets: HashMap<u32, Arc<Budget>>,
    ready: VecDeque<Token>,
    next_token: Token,
    next_port: u32,
    /// A connection could not be accepted; try again soon.
    retry: bool,
    buffer: Vec<u8>,
}

impl Server {
    pub fn new(
        router: Arc<Router>,
        mailbox: Arc<Mailbox>,
        datagrams: Datagrams,
        rules: Arc<Mutex<HostRules>>,
        socket: OwnedFd,
        bounds: Bounds,
    ) -> io::Result<Server> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, mailbox.event(), epoll::EventData::new_u64(MAILBOX), epoll::EventFlags::IN)?;
        let mut server = Server {
            router,
            mailbox,
            datagrams,
            rules,
            bounds,
            epoll,
            listening: HashMap::new(),
            guests: HashMap::new(),
            owners: HashMap::new(),
            clients: Clients::new(bounds.clients, bounds.unasked),
            listeners: HashMap::new(),
            budgets: HashMap::new(),
            ready: VecDeque::new(),
            next_token: FIRST_TOKEN,
            // From 2^30 on as Firecracker's, but not where a previous daemon began: guests may still hold
            // their ends of its connections.
            next_port: (1 << 30) + moment() % (1 << 29),
            retry: false,
            buffer: vec![0; 128 << 10],
        };
        server.open(socket, Dialect::Native)?;
        Ok(server)
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        self.next_token
    }

    fn open(&mut self, socket: OwnedFd, dialect: Dialect) -> io::Result<()> {
        let token = self.token();
        epoll::add(
            &self.epoll,
            &socket,
            epoll::EventData::new_u64(token),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        self.listening.insert(token, ListeningSocket { socket, dialect });
        Ok(())
    }

    pub fn run(mut self) {
        let mut mails = Vec::new();
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
        loop {
            let timeout = self.timeout();
            let events = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "waiting for host sockets; they are served no more");
                    return self.end();
                }
            };
            for event in events.iter() {
                match event.data.u64() {
                    MAILBOX => {}
                    token if self.listening.contains_key(&token) => self.accept_clients(token),
                    token => self.on_event(token, event.flags),
                }
            }
            if std::mem::take(&mut self.retry) {
                let tokens: Vec<Token> = self.listening.keys().copied().collect();
                tokens.into_iter().for_each(|token| self.accept_clients(token));
            }
            self.mailbox.take(&mut mails);
            for mail in mails.drain(..) {
                if matches!(mail, Mail::Stop) {
                    return self.end();
                }
                self.read(mail);
            }
            self.answer_requests();
            for _ in 0..self.ready.len() {
                if let Some(token) = self.ready.pop_front() {
                    self.turn(token);
                }
            }
            self.expire();
        }
    }

    /// Answers guests' requests, as many as leave time for streams.
    fn answer_requests(&mut self) {
        for _ in 0..REQUESTS {
            let Some(call) = self.mailbox.next_request() else { return };
            self.requested(call);
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let wait = if !self.ready.is_empty() || self.mailbox.has_requests() {
            Duration::ZERO
        } else if self.retry {
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

    fn read(&mut self, mail: Mail) {
        match mail {
            Mail::Joined(token, stream, side) => self.joined(token, stream, side),
            Mail::Failed(token, why) => {
                let errno = if why == Failed::Refused { Errno::CONNRESET } else { Errno::TIMEDOUT };
                self.fail(token, errno);
            }
            Mail::Wake(token) => {
                if let Some(waker) = self.clients.get(token).and_then(|client| client.waker.as_ref()) {
                    waker.queued.store(false, Ordering::SeqCst);
                }
                self.turn(token);
            }
            Mail::AddGuest(guest, socket) => {
                if let Err(error) = self.open(socket, Dialect::Hybrid(guest.cid)) {
                    tracing::error!(%error, path = %guest.uds.display(), "opening a VM's Unix socket");
                }
                self.guests.insert(guest.cid, guest);
            }
            Mail::RemoveGuest(cid) => {
                self.listening.retain(|_, listening| listening.dialect != Dialect::Hybrid(cid));
                self.guests.remove(&cid);
                self.owners.remove(&cid);
            }
            Mail::Owner(cid, None) => {
                self.owners.remove(&cid);
            }
            Mail::Owner(cid, Some(owner)) => {
                self.owners.insert(cid, owner);
            }
            Mail::Rules(rules) => *self.rules.lock() = rules,
            Mail::Stop => {}
        }
    }

    /// Connections wait at a listening socket.
    fn accept_clients(&mut self, token: Token) {
        loop {
            let Some(ListeningSocket { socket, dialect }) = self.listening.get(&token) else { return };
            let dialect = *dialect;
            let socket = match socket::accept(socket) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    tracing::warn!(%error, "accepting a host program");
                    self.retry = true;
                    return;
                }
            };
            let Ok(peer) = Peer::of(&socket).map(Arc::new) else { continue };
            if !self.is_owner(dialect, &peer) {
                tracing::warn!(
                    pid = peer.pid,
                    uid = peer.uid,
                    "not the VM's owner; its connection was closed"
                );
                continue;
            }
            if !self.clients.may_ask(peer.uid) {
                continue; // closed: the user has too many connections without a request
            }
            let state = State::Asking { dialect, bytes: Vec::new() };
            let deadline = Some(Instant::now() + self.bounds.request);
            if let Some(token) =
                self.admit(Client { socket: Arc::new(socket), peer, state, deadline, waker: None })
            {
                self.on_event(token, epoll::EventFlags::IN);
            }
        }
    }

    /// At a VM's own socket: root, the daemon's user, the VM's owner. Who may what at the others is for the rules to say.
    fn is_owner(&self, dialect: Dialect, peer: &Peer) -> bool {
        let Dialect::Hybrid(cid) = dialect else { return true };
        if peer.uid == 0 || peer.uid == self.rules.lock().owner {
            return true;
        }
        self.owners.get(&cid).is_some_and(|owner| owner.includes(peer))
    }

    /// Gives a client a place, if there is one.
    fn admit(&mut self, client: Client) -> Option<Token> {
        let of_process = self.clients.of_process(&client.peer);
        if !self.clients.has_room(client.peer.uid) || of_process >= self.bounds.of_process {
            tracing::debug!(pid = client.peer.pid, "a host program has too many sockets");
            return None;
        }
        let token = self.token();
        let wanted =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &*client.socket, epoll::EventData::new_u64(token), wanted).ok()?;
        self.clients.insert(token, client);
        Some(token)
    }

    /// The client goes, with all it had.
    fn close(&mut self, token: Token) {
        let Some(client) = self.clients.remove(token) else { return };
        let _ = epoll::delete(&self.epoll, &*client.socket);
        match client.state {
            State::Asking { .. } | State::Changing => {}
            State::Connecting(opening, ..) => self.router.close(opening.call),
            // The process has never had it.
            State::Accepting(opening, _) => self.router.withdraw(opening.call),
            State::Streaming(stream) => self.router.close(stream.call),
            State::Listening { port, .. } => {
                self.listeners.remove(&port);
            }
            State::Datagrams { port, socket } => {
                let _ = epoll::delete(&self.epoll, &*socket);
                self.datagrams.lock().remove(&port);
            }
        }
    }

    /// The client hears why, and goes.
    fn fail(&mut self, token: Token, errno: Errno) {
        if let Some(client) = self.clients.get(token)
            && matches!(
                client.state,
                State::Asking { dialect: Dialect::Native, .. } | State::Connecting(_, Dialect::Native, _)
            )
        {
            client.reply(Reply::new(errno.raw_os_error(), 0, 0), None);
        }
        self.close(token);
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while let Some(token) = self.clients.expired(now) {
            self.fail(token, Errno::TIMEDOUT);
        }
    }

    /// Something happened at a client's socket.
    fn on_event(&mut self, token: Token, flags: epoll::EventFlags) {
        let Some(client) = self.clients.get_mut(token) else { return };
        let hung_up = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        match &mut client.state {
            State::Asking { dialect, bytes } => {
                let dialect = *dialect;
                match arrival(&client.socket, dialect, bytes) {
                    Arrival::Later => {}
                    Arrival::Never => self.fail(token, Errno::PROTO),
                    Arrival::Whole(asked) => self.ask(token, dialect, asked),
                }
            }
            State::Connecting(..) if hung_up => self.close(token),
            // What it wrote before it went is still to be delivered.
            State::Accepting(Opening { ring: Ring::Ours(pump), .. }, _) => pump.hung_up |= hung_up,
            State::Accepting(..) if hung_up => self.close(token),
            State::Connecting(..) | State::Accepting(..) | State::Changing => {}
            State::Streaming(stream) => {
                match &mut stream.kind {
                    Kind::Plain(pump) => {
                        pump.can_read = true;
                        pump.can_write = true;
                        pump.hung_up |= hung_up;
                        self.turn(token);
                    }
                    // What it wrote is in its ring, and is taken when it leaves.
                    Kind::Ring { .. } if hung_up => self.close(token),
                    Kind::Ring { .. } => self.turn(token),
                }
            }
            State::Listening { .. } => {
                if hung_up || socket::peek(&*client.socket, &mut [0]) == Io::Over {
                    self.close(token);
                }
            }
            State::Datagrams { .. } => self.datagrams_from(token, hung_up),
        }
    }

    fn turn(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(token) else { return };
        let State::Streaming(stream) = &mut client.state else { return };
        match stream.turn(&self.router, &client.socket, &mut self.buffer) {
            Turn::Waits => {}
            Turn::Again => self.ready.push_back(token),
            Turn::Over => self.close(token),
            Turn::Switch => self.switch(token),
        }
    }

    /// The process uses its ring no more: the socket carries the stream from here on.
    fn switch(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(token) else { return };
        let State::Streaming(stream) = &mut client.state else { return };
        if let Some(waker) = &client.waker {
            waker.stop_signals();
        }
        let switched = stream.switch().is_ok() && socket::write(&*client.socket, &[SWITCH]) == Io::Done(1);
        if switched { self.ready.push_back(token) } else { self.close(token) }
    }

    fn allows(&self, peer: &Peer, wish: HostAccess<'_>) -> bool {
        self.rules.lock().allows(peer, wish)
    }

    fn ask(&mut self, token: Token, dialect: Dialect, asked: Asked) {
        let outcome = match (asked, dialect) {
            (Asked::Line(port), Dialect::Hybrid(cid)) => {
                self.connect(token, dialect, (cid, port), false, CONNECT)
            }
            (Asked::Record(request), _) => self.record(token, request),
            (Asked::Line(_), Dialect::Native) => Err(Errno::PROTO),
        };
        if let Err(errno) = outcome {
            self.fail(token, errno);
        }
    }

    fn record(&mut self, token: Token, request: Request) -> Result<(), Errno> {
        let Some(op) = request.op().filter(|_| request.flags.get() & !ALL_FLAGS == 0) else {
            return Err(Errno::PROTO);
        };
        let Some(peer) = self.clients.get(token).map(|client| client.peer.clone()) else { return Ok(()) };
        let ring = request.flags.get() & FLAG_RING != 0;
        match op {
            Op::Connect => {
                let cid = request.cid.get();
                let group = self.router.group_of(cid).ok_or(Errno::NODEV)?;
                if !self.allows(&peer, HostAccess::Connect(&group)) {
                    return Err(Errno::ACCESS);
                }
                let patience = match request.arg.get() {
                    0 => CONNECT,
                    millis => Duration::from_millis(millis.into()).min(LONGEST_CONNECT),
                };
                self.connect(token, Dialect::Native, (cid, request.port.get()), ring, patience)
            }
            Op::Listen => {
                let port =
                    self.free_port(request.port.get(), |server, port| server.listeners.contains_key(&port))?;
                if !self.allows(&peer, HostAccess::Listen(port)) {
                    return Err(Errno::ACCESS);
                }
                self.listeners.insert(port, token);
                self.becomes(token, State::Listening { port, ring }, None);
                self.answer(token, port, None)
            }
            Op::Datagram => {
                let taken = |server: &Server, port| server.datagrams.lock().contains_key(&port);
                let port = self.free_port(request.port.get(), taken)?;
                // Resources 0 and 1 are events and stream control.
                if port <= 1 {
                    return Err(Errno::ADDRNOTAVAIL);
                }
                if !self.allows(&peer, HostAccess::Listen(port)) {
                    return Err(Errno::ACCESS);
                }
                let (ours, theirs) = socket::pair(SocketType::SEQPACKET).map_err(|_| Errno::NFILE)?;
                let ours = Arc::new(ours);
                let wanted = epoll::EventFlags::IN | epoll::EventFlags::ET;
                epoll::add(&self.epoll, &*ours, epoll::EventData::new_u64(token), wanted)?;
                self.datagrams.lock().insert(port, (ours.clone(), peer));
                self.becomes(token, State::Datagrams { port, socket: ours.clone() }, None);
                self.answer(token, port, Some(&theirs))?;
                if request.flags.get() & FLAG_ALONE != 0
                    && let Some(client) = self.clients.get_mut(token)
                {
                    let _ = epoll::delete(&self.epoll, &*client.socket);
                    client.socket = ours;
                }
                Ok(())
            }
        }
    }

    fn answer(&mut self, token: Token, port: u32, fd: Option<&OwnedFd>) -> Result<(), Errno> {
        let told =
            self.clients.get(token).is_some_and(|client| client.reply(Reply::new(0, CID_HOST, port), fd));
        if !told {
            self.close(token);
        }
        Ok(())
    }

    /// The client's request has been understood.
    fn becomes(&mut self, token: Token, state: State, deadline: Option<Instant>) {
        self.clients.set_state(token, state);
        self.clients.set_deadline(token, deadline);
    }

    fn free_port(&mut self, wanted: u32, taken: impl Fn(&Server, u32) -> bool) -> Result<u32, Errno> {
        if wanted != PORT_ANY {
            return if taken(self, wanted) { Err(Errno::ADDRINUSE) } else { Ok(wanted) };
        }
        // There are more ports than clients.
        for _ in 0..=self.bounds.clients {
            let port = self.own_port();
            if !taken(self, port) {
                return Ok(port);
            }
        }
        Err(Errno::ADDRNOTAVAIL)
    }

    /// The next port for an end of this host.
    fn own_port(&mut self) -> u32 {
        self.next_port = self.next_port.wrapping_add(1);
        if self.next_port < FIRST_FREE_PORT || self.next_port == PORT_ANY {
            self.next_port = 1 << 30;
        }
        self.next_port
    }

    /// Datagrams of a process to guests. Like all datagrams they may get lost.
    fn datagrams_from(&mut self, token: Token, hung_up: bool) {
        let Some(client) = self.clients.get(token) else { return };
        let State::Datagrams { port, socket } = &client.state else { return };
        let (port, socket, peer) = (*port, socket.clone(), client.peer.clone());
        if self.buffer.len() < PEER + MAX_DATAGRAM_PAYLOAD {
            self.buffer.resize(PEER + MAX_DATAGRAM_PAYLOAD, 0);
        }
        for _ in 0..64 {
            match socket::read(&*socket, &mut self.buffer) {
                Io::Done(len) => {
                    let datagram = self.buffer.get(..len).unwrap_or_default();
                    let Ok((to, payload)) = vmlane_wire::host::Peer::read_from_prefix(datagram) else {
                        continue;
                    };
                    let group = self.router.group_of(to.cid.get());
                    if group.is_some_and(|group| self.allows(&peer, HostAccess::Connect(&group))) {
                        let from = (CID_HOST, port);
                        let _ = self.router.send_datagram(from, (to.cid.get(), to.port.get()), payload);
                    }
                }
                Io::WouldBlock => {
                    if hung_up {
                        self.close(token);
                    }
                    return;
                }
                Io::Over => return self.close(token),
            }
        }
        // The rest comes with its own edge: ask for it.
        let wanted = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let _ = epoll::modify(&self.epoll, &*socket, epoll::EventData::new_u64(token), wanted);
    }
}
