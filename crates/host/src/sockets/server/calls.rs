//! Streams between processes and guests: how they come about.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::SocketType;
use vmlane_access::Peer;
use vmlane_port::{Side, StreamAddress, StreamId};
use vmlane_vsock::{Call, ConnectError, HostAccess, Key};
use vmlane_wire::host::Reply;
use vmlane_wire::vmci::CID_HOST;

use super::{CONNECT, Server};
use crate::sockets::client::{Account, Client, Delivery, Dialect, Opening, State};
use crate::sockets::inbox::Token;
use crate::sockets::left::{Left, LeftStream};
use crate::sockets::socket::{self, Io};
use crate::sockets::stream::{Stream, StreamKind};

impl Server {
    /// Is the stream of a program with a ring to `cid` the helper's to move?
    fn left_stream(&self, dialect: Dialect, shared: bool, cid: u32) -> Option<LeftStream> {
        let leaves = shared && self.routes.shares && dialect == Dialect::Native;
        self.routes.routes.as_ref().filter(|_| leaves)?.owner_of(cid)?;
        LeftStream::new().ok()
    }

    pub(super) fn connect(
        &mut self,
        token: Token,
        dialect: Dialect,
        to: (u32, u32),
        shared: bool,
        timeout: Duration,
    ) -> Result<(), Errno> {
        let Some(client) = self.clients.get(token) else { return Ok(()) };
        let (account, signal) = (client.account, shared.then(|| client.socket.clone()));
        let from = match dialect {
            Dialect::Forward(cid, _) => (cid, self.ports.next()),
            Dialect::Native | Dialect::Hybrid(_) | Dialect::Route => (CID_HOST, self.ports.next()),
        };
        let address = StreamAddress { cid: from.0, port: from.1, peer_cid: to.0, peer_port: to.1 };
        let address = matches!(account, Account::Vm(_)).then_some(address);
        let mut left = self.left_stream(dialect, shared, to.0);
        let half = match (&mut left, &signal) {
            (Some(left), Some(socket)) => self.rings.programs_half(left, token, account, socket),
            _ => self.rings.ring(token, account, signal, address),
        };
        let (end, waker, ring) = half.map_err(|error| {
            tracing::warn!(%error, "no memory for a host socket; its connect is refused");
            Errno::NOBUFS
        })?;
        // A guest that answers and is done at once wakes it before the answer has gone out on the same
        // socket.
        waker.stop_signals();
        let key = Key { client: from, server: to };
        let call = self.router.open(key, Some(end), waker.clone()).map_err(|error| match error {
            ConnectError::Unreachable => Errno::NODEV,
            ConnectError::InUse => Errno::ADDRINUSE,
            ConnectError::Busy => Errno::NOBUFS,
        })?;
        if let Some(client) = self.clients.get_mut(token) {
            client.waker = Some(waker);
        }
        self.routes.left.extend(left.map(|left| (call.number, left)));
        if let Account::Vm(cid) = account {
            self.hybrids.shows(token, cid, call);
        }
        let state = State::Connecting(Opening { call, ring }, dialect, from.1);
        self.clients.becomes(token, state, Some(Instant::now() + timeout));
        Ok(())
    }

    /// A guest wants to reach a program of the host.
    pub(super) fn requested(&mut self, call: Call) {
        let (cid, port) = (call.key.client.0, call.key.server.1);
        let listener =
            self.ports.listeners.get(&port).and_then(|token| Some((*token, self.clients.get(*token)?)));
        let accepted = match listener {
            Some((token, client)) => {
                let ring = matches!(client.state, State::Listening { ring: true, .. });
                let (token, peer) = (token, client.peer.clone());
                // Another host's client speaks for the groups that its host and the configuration let it.
                let claim = self.routes.claim(call).map(|claim| claim.groups);
                let vm = self.router.vms().get(cid);
                let own = vm.as_ref().map(|vm| std::slice::from_ref(&vm.group));
                let groups = claim.as_deref().or(own).unwrap_or_default();
                groups.iter().any(|group| self.rules.lock().allows(&peer, HostAccess::BeReached(group)))
                    && self.accept_for(call, token, peer, ring).is_some()
            }
            None => self.accept_for_path(call).is_some(),
        };
        if !accepted {
            self.router.close(call);
        }
    }

    fn accept_for(&mut self, call: Call, listener: Token, peer: Arc<Peer>, shared: bool) -> Option<()> {
        let (ours, theirs) = socket::pair(SocketType::STREAM).ok()?;
        let (cid, port) = call.key.client;
        let delivery = Delivery { to: listener, reply: Reply::new(0, cid, port), socket: theirs };
        self.accept(call, ours, peer, shared, Some(delivery))
    }

    /// A program may listen at a path of its own, named after the VM's socket and the port.
    fn accept_for_path(&mut self, call: Call) -> Option<()> {
        let mut path = self.guests.get(&call.key.client.0)?.uds.clone().into_os_string();
        path.push(format!("_{}", call.key.server.1));
        let socket = socket::connect(path.as_ref()).ok()?;
        let peer = Arc::new(Peer::of(&socket).ok()?);
        self.accept(call, socket, peer, false, None)
    }

    fn accept(
        &mut self,
        call: Call,
        socket: OwnedFd,
        peer: Arc<Peer>,
        shared: bool,
        delivery: Option<Delivery>,
    ) -> Option<()> {
        let socket = Arc::new(socket);
        let token = self.poller.token();
        let account = Account::User(peer.uid);
        let half = self
            .routes
            .other_half(call, shared, |left| self.rings.programs_half(left, token, account, &socket));
        let (end, waker, ring) = match half {
            Some(half) => half.ok()?,
            None => self.rings.ring(token, account, shared.then(|| socket.clone()), None).ok()?,
        };
        let state = State::Accepting(Opening { call, ring }, delivery);
        let deadline = Some(Instant::now() + CONNECT);
        let client = Client { socket, peer, account, state, deadline, waker: Some(waker.clone()) };
        if !self.admit_as(token, client) {
            return None;
        }
        if !self.router.accept(call, end, waker) {
            self.close(token);
            return None;
        }
        Some(())
    }

    /// The guest has attached: the process is notified, and bytes flow.
    pub(super) fn joined(&mut self, token: Token, stream: StreamId, side: Side) {
        let Some(state) = self.clients.set_state(token, State::Changing) else { return };
        let peers = self.clients.get(token).is_some_and(|client| matches!(client.account, Account::Peer(_)));
        let (opening, greeting, delivery) = match state {
            State::Connecting(opening, dialect, port) => (opening, Some((dialect, port)), None),
            State::Accepting(opening, None) if peers => (opening, Some((Dialect::Route, 0)), None),
            State::Accepting(opening, delivery) => (opening, None, delivery),
            other => {
                self.clients.set_state(token, other);
                return;
            }
        };
        if let Some(client) = self.clients.get(token) {
            self.hybrids.joined(token, client.account);
            self.routes.peer(client.account).into_iter().for_each(|peer| peer.stats.established.inc());
        }
        let (kind, fd) = opening.ring.into_kind();
        let call = opening.call;
        let signals = matches!(kind, StreamKind::Ring { .. } | StreamKind::Left(_));
        let helpers = matches!(kind, StreamKind::Helpers(_));
        let left = match &kind {
            StreamKind::Left(map) => match Left::new(map) {
                Ok(left) => Some(left),
                Err(_) => {
                    self.router.close(call);
                    return self.close(token);
                }
            },
            _ => None,
        };
        let fd = fd.or_else(|| self.routes.memory_of(call).filter(|_| left.is_some()));
        let is_left = left.is_some();
        let stream = Stream { call, stream, side, kind, left };
        self.clients.becomes(token, State::Streaming(Box::new(stream)), None);
        if signals {
            self.watch_bytes(token, false);
        }
        if helpers {
            return self.introduce(call, false);
        }
        let sent = match (greeting, delivery) {
            (Some((dialect, port)), _) => self.clients.get(token).is_some_and(|client| {
                let greeted = client.greet(dialect, port, fd.as_ref());
                if let Some(waker) = client.waker.as_ref().filter(|_| greeted && fd.is_some()) {
                    waker.start_signals(client.socket.clone());
                }
                greeted
            }),
            (None, Some(delivery)) => self.deliver(&delivery, fd.as_ref()),
            (None, None) => true,
        };
        match sent {
            true if is_left => self.introduce(call, true),
            true => self.turn(token),
            false => self.close(token),
        }
    }

    /// A listener that does not fetch its connections gets no more of them.
    fn deliver(&self, delivery: &Delivery, ring: Option<&OwnedFd>) -> bool {
        let Some(listener) = self.clients.get(delivery.to) else { return false };
        let mut fds = vec![delivery.socket.as_fd()];
        fds.extend(ring.map(AsFd::as_fd));
        let bytes = zerocopy::IntoBytes::as_bytes(&delivery.reply);
        socket::write_with(&*listener.socket, bytes, &fds) == Io::Done(bytes.len())
    }
}
