//! Streams between hosts: the helper's line, what it asks for, and what it is asked for.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::SocketType;
use vmlane_port::StreamAddress;
use vmlane_vsock::{Call, Claim, ConnectError, Failed, HOST, Key};
use vmlane_wire::host::Reply;
use vmlane_wire::route::{FLAG_RESTRICTED, FLAG_RING, FLAG_TRUSTED, MOST_TEXT, Op, RECORD, Record, Refusal};

use super::rings::Half;
use super::route_table::{AskedCall, Known, common};
use super::{LONGEST_CONNECT, Server};
use crate::sockets::client::{Account, Dialect, Opening, State};
use crate::sockets::inbox::Token;
use crate::sockets::left::LeftStream;
use crate::sockets::route::{PeerReport, PeerShared, Routes};
use crate::sockets::socket::{self, Io};

/// How long the client's end may take once another host has accepted.
const ACCEPT: Duration = Duration::from_secs(10);
/// Messages that are read from the line before others have their turn.
const MESSAGES: usize = 256;

impl Server {
    /// What is configured changes. Streams of peers that are gone or own or may reach something else end.
    pub(super) fn set_routes(&mut self, routes: Option<Arc<Routes>>, peers: HashMap<String, Known>) {
        let before = std::mem::replace(&mut self.routes.routes, routes);
        self.routes.by_id = peers.values().cloned().collect();
        let known = std::mem::replace(&mut self.routes.peers, peers);
        let same = |name: &str| {
            let of = |routes: &Option<Arc<Routes>>| routes.as_ref().and_then(|all| all.peer(name)).cloned();
            of(&before) == of(&self.routes.routes)
        };
        let changed = known.iter().filter(|(name, _)| !same(name)).map(|(_, (id, _))| *id);
        for id in changed.collect::<Vec<_>>() {
            self.clients.tokens_of(Account::Peer(id)).into_iter().for_each(|token| self.reset(token));
            let calls = self.routes.asked_of(Some(id));
            calls.into_iter().for_each(|number| self.call_fails(number, Failed::Absent));
        }
        if self.routes.routes.is_none() {
            self.poller.close(|dialect| dialect == Dialect::Route);
            self.routes.line.into_iter().for_each(|line| self.close(line));
        }
    }

    /// The first record of a connection of the helper's.
    pub(super) fn route_record(&mut self, token: Token, message: &[u8]) -> Result<(), Errno> {
        let (record, op, text) = Record::parse(message).ok_or(Errno::PROTO)?;
        match op {
            Op::Line => self.route_line(token, record.flags.get() & FLAG_RING != 0),
            Op::Open => self.route_open(token, &record, text),
            Op::Accept => self.route_accept(token, record.number.get(), record.flags.get() & FLAG_RING != 0),
            Op::Call | Op::GivenUp | Op::Refuse | Op::Status => Err(Errno::PROTO),
        }
    }

    fn route_line(&mut self, token: Token, shares: bool) -> Result<(), Errno> {
        if self.routes.line.is_some() {
            return Err(Errno::BUSY);
        }
        let (ours, theirs) = socket::pair(SocketType::SEQPACKET).map_err(|_| Errno::NFILE)?;
        self.poller.add(&ours, token, EventFlags::IN | EventFlags::OUT | EventFlags::ET)?;
        self.clients.becomes(token, State::Line(ours), None);
        (self.routes.line, self.routes.shares) = (Some(token), shares);
        let Some(client) = self.clients.get(token) else { return Ok(()) };
        tracing::info!(pid = client.peer.pid, "the helper for streams between hosts is there");
        if !client.reply(Reply::new(0, 0, 0), Some(&theirs)) {
            self.close(token);
        }
        Ok(())
    }

    /// Another host asks for a stream to this one.
    fn route_open(&mut self, token: Token, record: &Record, text: &str) -> Result<(), Errno> {
        let routes = self.routes.routes.clone().ok_or(Errno::NODEV)?;
        let mut lines = text.lines();
        let name = lines.next().unwrap_or_default();
        let peer = routes.peer(name).ok_or(Errno::ACCESS)?;
        let (id, shared) = self.routes.peers.get(name).cloned().ok_or(Errno::ACCESS)?;
        let stats = &shared.stats;
        stats.opens.inc();
        let refused = |errno: Errno| {
            stats.opens_refused.inc();
            Err(errno)
        };
        let [client, server] = record.ends();
        if !peer.owns(client.0) || !routes.owns(server.0) {
            // Once; a peer that goes on is counted, and does not fill the log.
            if stats.forged.get() == 0 {
                tracing::warn!(
                    peer = name,
                    "it asks for a stream from CID {} to CID {}, which are not its and ours by the configuration; refused, as are all such (vmlane_peer_forged)",
                    client.0,
                    server.0
                );
            }
            stats.forged.inc();
            return refused(Errno::ACCESS);
        }
        let announced: Vec<String> = lines.map(str::to_owned).collect();
        let flag = |flag: u32| record.flags.get() & flag != 0;
        let claim = Claim {
            groups: common(&peer.groups, &announced),
            restricted: flag(FLAG_RESTRICTED),
            trusted: flag(FLAG_TRUSTED) && peer.trusted,
        };
        if claim.groups.is_empty() {
            stats.forbidden.inc();
            return refused(Errno::ACCESS);
        }
        if !self.moves_to(token, id, &shared) {
            return refused(Errno::NOBUFS);
        }
        let server = if routes.host_cid == Some(server.0) { (HOST, server.1) } else { server };
        let shares = flag(FLAG_RING) && server.0 == HOST && self.listens_with_ring(server.1);
        let left = if shares { LeftStream::new().ok() } else { None };
        let opened = self.open_for(token, id, Key { client, server }, claim, left);
        opened.or_else(refused)
    }

    fn open_for(
        &mut self,
        token: Token,
        id: u32,
        key: Key,
        claim: Claim,
        mut left: Option<LeftStream>,
    ) -> Result<(), Errno> {
        let Some(socket) = self.clients.get(token).map(|client| client.socket.clone()) else { return Ok(()) };
        let (client, server) = (key.client, key.server);
        let address =
            StreamAddress { cid: client.0, port: client.1, peer_cid: server.0, peer_port: server.1 };
        let account = Account::Peer(id);
        let half = match &mut left {
            Some(left) => self.rings.helpers_half(left, token, account, &socket),
            None => self.rings.ring(token, account, Some(socket), Some(address)),
        };
        let (end, waker, ring) = half.map_err(|error| {
            tracing::warn!(%error, "no memory for a stream of another host; it is refused");
            Errno::NOBUFS
        })?;
        // Nothing comes before the answer.
        waker.stop_signals();
        let call = self.router.open_for(&claim, key, end, waker.clone()).map_err(|error| match error {
            ConnectError::Unreachable => Errno::NODEV,
            ConnectError::InUse => Errno::ADDRINUSE,
            ConnectError::Busy => Errno::NOBUFS,
        })?;
        self.routes.left.extend(left.map(|left| (call.number, left)));
        if server.0 == HOST {
            self.routes.claims.insert(call.number, claim);
        }
        if let Some(client) = self.clients.get_mut(token) {
            client.waker = Some(waker);
        }
        let state = State::Connecting(Opening { call, ring }, Dialect::Route, 0);
        self.clients.becomes(token, state, Some(Instant::now() + LONGEST_CONNECT));
        Ok(())
    }

    /// Another host has accepted what was asked of it.
    fn route_accept(&mut self, token: Token, number: u64, shares: bool) -> Result<(), Errno> {
        let AskedCall { call, peer: shared, id, .. } = self.routes.answered(number).ok_or(Errno::CANCELED)?;
        let accepted = self.accept_call(token, call, &shared, id, shares);
        if accepted.is_err() {
            shared.stats.calls_refused.inc();
            self.router.refuse(call, Failed::Refused);
        }
        accepted
    }

    fn accept_call(
        &mut self,
        token: Token,
        call: Call,
        shared: &Arc<PeerShared>,
        id: u32,
        shares: bool,
    ) -> Result<(), Errno> {
        if !self.moves_to(token, id, shared) {
            return Err(Errno::NOBUFS);
        }
        let Some(socket) = self.clients.get(token).map(|client| client.socket.clone()) else { return Ok(()) };
        let Key { client: (peer_cid, peer_port), server: (cid, port) } = call.key;
        let address = StreamAddress { cid, port, peer_cid, peer_port };
        let account = Account::Peer(id);
        let half = self
            .routes
            .other_half(call, shares, |left| self.rings.helpers_half(left, token, account, &socket));
        let (end, waker, ring) = match half {
            Some(half) => half?,
            None => {
                self.rings.ring(token, account, Some(socket), Some(address)).map_err(|_| Errno::NOBUFS)?
            }
        };
        waker.stop_signals();
        self.accept_with(token, call, (end, waker, ring), ACCEPT);
        Ok(())
    }

    /// A server has accepted a call, and has this half of the ring for `timeout` to be joined.
    pub(super) fn accept_with(
        &mut self,
        token: Token,
        call: Call,
        (end, waker, ring): Half,
        timeout: Duration,
    ) {
        let state = State::Accepting(Opening { call, ring }, None);
        self.clients.becomes(token, state, Some(Instant::now() + timeout));
        if let Some(client) = self.clients.get_mut(token) {
            client.waker = Some(waker.clone());
        }
        if !self.router.accept(call, end, waker) {
            self.close(token);
        }
    }

    /// The client takes a place of the peer's from here on, if there is one.
    fn moves_to(&mut self, token: Token, id: u32, shared: &Arc<PeerShared>) -> bool {
        let moved = self.clients.set_account(token, Account::Peer(id));
        if moved {
            shared.streams.fetch_add(1, Ordering::Relaxed);
        } else {
            shared.stats.over_streams.inc();
        }
        moved
    }

    /// Something here wants to reach another host.
    pub(super) fn ask_route(&mut self, call: Call) {
        if let Err(why) = self.begin_to_call(call) {
            self.routes.forget(call);
            self.router.refuse(call, why);
        }
    }

    fn begin_to_call(&mut self, call: Call) -> Result<(), Failed> {
        let routes = self.routes.routes.clone().ok_or(Failed::Absent)?;
        let peer = routes.owner_of(call.key.server.0).ok_or(Failed::Absent)?;
        let (id, shared) = self.routes.peers.get(&peer.name).cloned().ok_or(Failed::Absent)?;
        shared.stats.calls.inc();
        let refused = |why: Failed| {
            shared.stats.calls_refused.inc();
            why
        };
        let (cid, port) = call.key.client;
        let (cid, groups, flags) = if cid == HOST {
            let groups = self.routes.sources.remove(&call.number).unwrap_or_default();
            (routes.host_cid.ok_or_else(|| refused(Failed::Absent))?, groups, 0)
        } else {
            let vm = self.router.vms().get(cid).ok_or_else(|| refused(Failed::Absent))?;
            let flags =
                if vm.restricted { FLAG_RESTRICTED } else { 0 } | if vm.trusted { FLAG_TRUSTED } else { 0 };
            (cid, vec![vm.group.clone()], flags)
        };
        let groups = common(&peer.groups, &groups);
        if groups.is_empty() || self.routes.line.is_none() || !shared.up.load(Ordering::Acquire) {
            return Err(refused(Failed::Absent));
        }
        let text = [std::slice::from_ref(&peer.name), groups.as_slice()].concat().join("\n");
        let ends = [(cid, port), call.key.server];
        let message = Record::message(Op::Call, call.number, ends, flags, &text);
        if text.len() > MOST_TEXT || !self.routes.ask(call, (id, shared.clone()), message) {
            shared.stats.over_streams.inc();
            return Err(refused(Failed::Refused));
        }
        self.flush_line();
        Ok(())
    }

    /// The client has given up before the helper has answered.
    pub(super) fn call_given_up(&mut self, call: Call) {
        if let Some(asked) = self.routes.give_up(call.number) {
            asked.peer.stats.calls_refused.inc();
            self.flush_line();
        }
    }

    /// Sends what waits for the line, as far as that has room.
    fn flush_line(&mut self) {
        let Some(client) = self.routes.line.and_then(|line| self.clients.get(line)) else {
            return self.routes.line_ends();
        };
        let State::Line(socket) = &client.state else { return };
        while let Some(message) = self.routes.to_send() {
            match socket::write(socket, &message) {
                Io::Done(_) => self.routes.sent(),
                Io::WouldBlock => return,
                // Its end is an event of its own.
                Io::Over => return self.routes.line_ends(),
            }
        }
    }

    /// The helper has sent something, or has gone.
    pub(super) fn line_event(&mut self, token: Token, hung_up: bool) {
        let mut message = vec![0; RECORD + MOST_TEXT];
        for _ in 0..MESSAGES {
            let Some(client) = self.clients.get(token) else { return };
            let State::Line(socket) = &client.state else { return };
            let socket: &OwnedFd = socket;
            match socket::read(socket, &mut message) {
                Io::Done(len) => {
                    let sound = Record::parse(message.get(..len).unwrap_or_default());
                    let understood = match sound {
                        Some((record, Op::Refuse, _)) => {
                            let why = match Refusal::from_wire(record.flags.get()) {
                                Some(Refusal::Gone) => Failed::Gone,
                                Some(Refusal::Absent | Refusal::Forbidden) => Failed::Absent,
                                _ => Failed::Refused,
                            };
                            self.call_fails(record.number.get(), why);
                            true
                        }
                        Some((_, Op::Status, text)) => {
                            self.peer_status(text);
                            true
                        }
                        _ => false,
                    };
                    if !understood {
                        tracing::error!(
                            "the helper for streams between hosts sent a malformed message; it is disconnected"
                        );
                        return self.close(token);
                    }
                }
                Io::WouldBlock => {
                    if hung_up {
                        return self.close(token);
                    }
                    return self.flush_line();
                }
                Io::Over => return self.close(token),
            }
        }
        // The rest comes with its own event: ask for it.
        let Some(client) = self.clients.get(token) else { return };
        if let State::Line(socket) = &client.state {
            let _ = self.poller.change(socket, token, EventFlags::IN | EventFlags::OUT | EventFlags::ET);
        }
    }

    fn peer_status(&self, text: &str) {
        let mut lines = text.lines();
        let name = lines.next().unwrap_or_default();
        let Some((_, shared)) = self.routes.peers.get(name) else { return };
        let report = PeerReport::parse(lines);
        shared.up.store(report.state == "up" && !name.is_empty(), Ordering::Release);
        *shared.report.lock() = report;
    }
}
