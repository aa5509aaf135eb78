//! What programs of the host ask for at `host.sock`: connections, listeners, datagrams.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::SocketType;
use vmlane_access::Peer;
use vmlane_vsock::HostAccess;
use vmlane_wire::host::{ALL_FLAGS, FLAG_ALONE, FLAG_RING, Op, PEER, Reply, Request};
use vmlane_wire::vmci::{CID_HOST, MAX_DATAGRAM_PAYLOAD};
use zerocopy::FromBytes;

use super::{CONNECT, LONGEST_CONNECT, Server};
use crate::sockets::client::{Dialect, State};
use crate::sockets::inbox::Token;
use crate::sockets::socket::{self, Io};

impl Server {
    pub(super) fn record(&mut self, token: Token, request: Request) -> Result<(), Errno> {
        let Some(op) = request.op().filter(|_| request.flags.get() & !ALL_FLAGS == 0) else {
            return Err(Errno::PROTO);
        };
        let Some(peer) = self.clients.get(token).map(|client| client.peer.clone()) else { return Ok(()) };
        let ring = request.flags.get() & FLAG_RING != 0;
        match op {
            Op::Connect => {
                let cid = request.cid.get();
                let groups = self.program_reaches(&peer, cid)?;
                let timeout = match request.arg.get() {
                    0 => CONNECT,
                    millis => Duration::from_millis(millis.into()).min(LONGEST_CONNECT),
                };
                self.connect(token, Dialect::Native, (cid, request.port.get()), ring, timeout)?;
                if let Some(State::Connecting(opening, ..)) =
                    self.clients.get(token).map(|client| &client.state)
                {
                    self.routes.remember(opening.call, groups);
                }
                Ok(())
            }
            Op::Listen => {
                let port = self.ports.for_listener(request.port.get())?;
                if !self.rules.lock().allows(&peer, HostAccess::Listen(port)) {
                    return Err(Errno::ACCESS);
                }
                self.ports.listeners.insert(port, token);
                self.clients.becomes(token, State::Listening { port, ring }, None);
                self.answer(token, port, None)
            }
            Op::Datagram => {
                let port = self.ports.for_datagrams(request.port.get())?;
                // Resources 0 and 1 are events and stream control.
                if port <= 1 {
                    return Err(Errno::ADDRNOTAVAIL);
                }
                if !self.rules.lock().allows(&peer, HostAccess::Listen(port)) {
                    return Err(Errno::ACCESS);
                }
                let (ours, theirs) = socket::pair(SocketType::SEQPACKET).map_err(|_| Errno::NFILE)?;
                let ours = Arc::new(ours);
                self.poller.add(&ours, token, EventFlags::IN | EventFlags::ET)?;
                self.ports.datagrams.lock().insert(port, (ours.clone(), peer));
                self.clients.becomes(token, State::Datagrams { port, socket: ours.clone() }, None);
                self.answer(token, port, Some(&theirs))?;
                if request.flags.get() & FLAG_ALONE != 0
                    && let Some(client) = self.clients.get_mut(token)
                {
                    self.poller.remove(&client.socket);
                    client.socket = ours;
                }
                Ok(())
            }
        }
    }

    /// May a program of this host talk to `cid`? For which groups.
    fn program_reaches(&self, peer: &Peer, cid: u32) -> Result<Vec<String>, Errno> {
        let mut groups = self.router.vms().known().groups_of(cid).ok_or(Errno::NODEV)?;
        groups.retain(|group| self.rules.lock().allows(peer, HostAccess::Connect(group)));
        if groups.is_empty() { Err(Errno::ACCESS) } else { Ok(groups) }
    }

    fn answer(&mut self, token: Token, port: u32, fd: Option<&OwnedFd>) -> Result<(), Errno> {
        let sent =
            self.clients.get(token).is_some_and(|client| client.reply(Reply::new(0, CID_HOST, port), fd));
        if !sent {
            self.close(token);
        }
        Ok(())
    }

    /// Datagrams of a process to guests. Like all datagrams they may get lost.
    pub(super) fn datagrams_from(&mut self, token: Token, hung_up: bool) {
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
                    let vm = self.router.vms().get(to.cid.get());
                    if vm.is_some_and(|vm| self.rules.lock().allows(&peer, HostAccess::Connect(&vm.group))) {
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
        let _ = self.poller.change(&socket, token, EventFlags::IN | EventFlags::ET);
    }
}
