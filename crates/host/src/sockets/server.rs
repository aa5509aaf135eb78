//! The thread that serves host sockets. It alone owns the tables; nothing in it waits for a process.

mod asked;
mod calls;
mod clients;
mod hybrid;
mod left;
mod programs;
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
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use vmlane_access::Peer;
use vmlane_port::Budget;
use vmlane_vsock::{FIRST_FREE_PORT, Failed, HOST, HostAccess, HostRules, Router};
use vmlane_wire::host::{PORT_ANY, Reply, SWITCH};

use self::asked::Hybrids;
use self::clients::Clients;
use self::route_table::RouteTable;
use self::turns::Turns;
use super::client::{Account, Arrival, Asked, Client, Dialect, Opening, Ring, State, arrival};
use super::hybrid_views::Shown;
use super::mail::{Guest, Mail, Mailbox, Token};
use super::socket::{self, Io};
use super::stream::{Kind, Turn};
use super::{Bounds, Datagrams};

/// How long a guest may take to answer unless the process says otherwise: what AF_VSOCK has.
const CONNECT: Duration = Duration::from_secs(2);
const LONGEST_CONNECT: Duration = Duration::from_secs(60);
/// Bytes that the programs of one user may leave behind in streams that they closed.
const SPILL: usize = 64 << 20;
/// The same of a VM with a hybrid socket: what a guest may whose device is ours.
const VM_SPILL: usize = 16 << 20;
/// Guests' requests that are answered before clients have their turn.
const REQUESTS: usize = 64;
/// Connections that are accepted at one socket before others have their turn.
const ACCEPTS: usize = 64;
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
    /// VMs whose devices are ours: their hybrid Unix sockets.
    guests: HashMap<u32, Guest>,
    /// VMs whose VMMs have the sockets.
    hybrids: Hybrids,
    /// Other hosts.
    routes: RouteTable,
    clients: Clients,
    /// Listeners by port.
    listeners: HashMap<u32, Token>,
    budgets: HashMap<Account, Arc<Budget>>,
    turns: Turns,
    next_token: Token,
    next_port: u32,
    buffer: Vec<u8>,
}

impl Server {
    pub fn new(
        router: Arc<Router>,
        mailbox: Arc<Mailbox>,
        datagrams: Datagrams,
        rules: Arc<Mutex<HostRules>>,
        (socket, bounds): (OwnedFd, Bounds),
        shown: Arc<Mutex<Shown>>,
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
            hybrids: Hybrids::new(shown),
            routes: RouteTable::new(&bounds),
            clients: Clients::new(&bounds),
            listeners: HashMap::new(),
            budgets: HashMap::new(),
            turns: Turns::default(),
            next_token: FIRST_TOKEN,
            // From 2^30 on as Firecracker's, but not where a previous daemon began: guests may still hold
            // their ends of its connections.
            next_port: (1 << 30) + moment() % (1 << 29),
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
            self.turns.begin_round();
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
            for token in self.turns.take_listening(self.listening.keys().copied()) {
                self.accept_clients(token);
            }
            self.mailbox.take(&mut mails);
            for mail in mails.drain(..) {
                if matches!(mail, Mail::Stop) {
                    return self.end();
                }
                self.read(mail);
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
            let Some(call) = self.mailbox.next_request() else { return };
            match call.key.server.0 {
                HOST => self.requested(call),
                cid if self.hybrids.path(cid).is_some() => self.ask_vmm(call),
                _ => self.ask_route(call),
            }
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let wait = if self.turns.is_busy() || self.mailbox.has_requests() {
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

    fn read(&mut self, mail: Mail) {
        match mail {
            Mail::Joined(token, stream, side) => self.joined(token, stream, side),
            Mail::Failed(token, why) => {
                let errno = match why {
                    Failed::Refused => Errno::CONNRESET,
                    Failed::Gone => Errno::TIMEDOUT,
                    Failed::Absent => Errno::NODEV,
                };
                self.fail(token, errno);
            }
            Mail::Wake(token) => {
                if let Some(waker) = self.clients.get(token).and_then(|client| client.waker.as_ref()) {
                    waker.fetched();
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
            }
            Mail::Hybrid(cid, path, stats) => self.hybrids.set(cid, path, stats),
            Mail::RemoveHybrid(cid) => self.remove_hybrid(cid),
            Mail::Listen(cid, port, socket) => {
                if let Err(error) = self.open(socket, Dialect::Forward(cid, port)) {
                    tracing::error!(%error, cid, port, "opening the socket of a forward");
                }
            }
            Mail::Unlisten(cid, port) => {
                self.listening.retain(|_, listening| listening.dialect != Dialect::Forward(cid, port));
            }
            Mail::GivenUp(call) => {
                self.vmm_given_up(call);
                self.call_given_up(call);
            }
            Mail::ListenRoute(socket) => {
                if let Err(error) = self.open(socket, Dialect::Route) {
                    tracing::error!(%error, "opening the socket of the helper for streams between hosts");
                }
            }
            Mail::Routes(routes, peers) => self.set_routes(routes, peers),
            Mail::Rules(rules) => *self.rules.lock() = rules,
            Mail::Stop => {}
        }
    }

    /// Connections wait at a listening socket.
    fn accept_clients(&mut self, token: Token) {
        for _ in 0..ACCEPTS {
            let Some(ListeningSocket { socket, dialect }) = self.listening.get(&token) else { return };
            let dialect = *dialect;
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
                    tracing::warn!(%error, "accepting a host program");
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
                self.on_event(token, epoll::EventFlags::IN);
            }
        }
        self.turns.accept_more(token);
    }

    /// At a VM's own socket: root, the daemon's user, the VM's owner. Who may what at the others is for the rules to say.
    fn is_owner(&self, dialect: Dialect, peer: &Peer) -> bool {
        let owner = match dialect {
            Dialect::Native => return true,
            Dialect::Hybrid(cid) | Dialect::Forward(cid, _) => {
                self.router.vms().get(cid).and_then(|vm| vm.owner)
            }
            Dialect::Route => self.routes.helper(),
        };
        self.is_ours(peer) || owner.is_some_and(|owner| owner.includes(peer))
    }

    /// Root's processes, and those of the daemon's user.
    fn is_ours(&self, peer: &Peer) -> bool {
        peer.uid == 0 || peer.uid == self.rules.lock().owner
    }

    /// Gives a client a place, if there is one.
    fn admit(&mut self, client: Client) -> Option<Token> {
        let of_process = self.clients.of_process(&client.peer);
        let of_process = if client.account.is_user() { of_process } else { 0 };
        if !self.clients.has_room(client.account) || of_process >= self.bounds.of_process {
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
        if !client.account.is_user() {
            self.hybrids.ends(token);
            self.route_ends(client.account);
        }
        match client.state {
            State::Asking { .. } | State::Changing => {}
            State::Asked(call) => self.hybrids.over(&self.router, call, Failed::Gone),
            State::Connecting(opening, ..) => {
                self.routes.forget(opening.call);
                self.router.close(opening.call);
            }
            State::Line(socket) => {
                let _ = epoll::delete(&self.epoll, &socket);
                self.line_ends();
            }
            // The process has never had it.
            State::Accepting(opening, _) => self.router.withdraw(opening.call),
            State::Streaming(stream) => {
                self.router.close(stream.call);
                self.half_ends(&stream);
            }
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
            && let State::Connecting(_, Dialect::Forward(cid, _), _) = &client.state
        {
            self.hybrids.count(Some(*cid), |stats| stats.connects_refused.inc());
        }
        self.route_fails(token);
        if let Some(client) = self.clients.get(token)
            && matches!(
                client.state,
                State::Asking { dialect: Dialect::Native | Dialect::Route, .. }
                    | State::Connecting(_, Dialect::Native | Dialect::Route, _)
            )
        {
            client.reply(Reply::new(errno.raw_os_error(), 0, 0), None);
        }
        self.close(token);
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while let Some(token) = self.clients.expired(now) {
            self.vmm_is_late(token);
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
            State::Asked(call) => {
                let call = *call;
                self.vmm_answers(token, call, hung_up);
            }
            // What it wrote before it went is still to be delivered, here and below.
            State::Connecting(Opening { ring: Ring::Ours(pump), .. }, Dialect::Forward(..), _) => {
                pump.hung_up |= hung_up;
            }
            State::Connecting(..) if hung_up => self.close(token),
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
                    Kind::Ring { .. } | Kind::Left(_)
                        if hung_up || flags.intersects(epoll::EventFlags::RDHUP) =>
                    {
                        self.leaves(token);
                    }
                    Kind::Ring { .. } => {}
                    Kind::Left(_) => self.orphan_signals(token),
                    Kind::Helpers(_) => {
                        self.helper_signals(token, hung_up || flags.intersects(epoll::EventFlags::RDHUP));
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

    fn turn(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(token) else { return };
        let State::Streaming(stream) = &mut client.state else { return };
        let account = client.account;
        if self.turns.is_over(account) {
            return self.turns.again(token);
        }
        let switched = client.waker.as_ref().is_some_and(|waker| waker.has_switched());
        let (turn, moved) = stream.turn(&self.router, &client.socket, switched, &mut self.buffer);
        self.turns.charge(account, moved.up + moved.down);
        self.hybrids.moved(account, moved);
        match turn {
            Turn::Waits => {}
            Turn::Again => self.turns.again(token),
            Turn::Over => self.leaves(token),
            Turn::Reset => self.reset(token),
            Turn::Switch => self.switch(token),
        }
    }

    /// The process has left bytes unread: its peer hears of a reset.
    fn reset(&mut self, token: Token) {
        self.reset_program(token);
        if let Some(client) = self.clients.get(token)
            && let State::Streaming(stream) = &client.state
        {
            self.router.reset(stream.call);
        }
        self.close(token);
    }

    /// The process uses its ring no more: the socket carries the stream from here on.
    fn switch(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(token) else { return };
        let State::Streaming(stream) = &mut client.state else { return };
        if let Some(waker) = &client.waker {
            waker.stop_signals();
        }
        let switched = stream.switch().is_ok() && socket::write(&*client.socket, &[SWITCH]) == Io::Done(1);
        self.watch_bytes(token, true);
        if switched { self.turns.again(token) } else { self.close(token) }
    }

    /// Does its socket carry the stream? One that carries signals is read by the stream's worker, and only its end is of interest
    /// here.
    fn watch_bytes(&self, token: Token, bytes: bool) {
        let Some(client) = self.clients.get(token) else { return };
        let of_bytes =
            if bytes { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let wanted = of_bytes | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        if let Err(error) =
            epoll::modify(&self.epoll, &*client.socket, epoll::EventData::new_u64(token), wanted)
        {
            tracing::warn!(%error, "waiting for a host program");
        }
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
            (Asked::Route(message), _) => self.route_record(token, &message),
            (Asked::Line(_), Dialect::Native | Dialect::Forward(..) | Dialect::Route) => Err(Errno::PROTO),
        };
        if let Err(errno) = outcome {
            self.fail(token, errno);
        }
    }

    /// The client's request has been understood.
    fn becomes(&mut self, token: Token, state: State, deadline: Option<Instant>) {
        self.clients.set_state(token, state);
        self.clients.set_deadline(token, deadline);
    }

    /// The next port for an end of this host.
    fn own_port(&mut self) -> u32 {
        self.next_port = self.next_port.wrapping_add(1);
        if self.next_port < FIRST_FREE_PORT || self.next_port == PORT_ANY {
            self.next_port = 1 << 30;
        }
        self.next_port
    }
}
