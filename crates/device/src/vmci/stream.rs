//! Stream connections between VMs: control packets checked, translated, passed on.
//!
//! A connection is known by the real addresses of its two ends. A client that came in through the
//! map {CID 2, port} -> {VM, port} knows its server as the host; every packet is translated on the
//! way, both ways. Packets about bytes and room are consumed: each guest's peer is the device.

mod opening;
mod packet;

use std::sync::atomic::Ordering;
use std::time::Instant;

use vmlane_port::queue_pair::Protocol;
use vmlane_port::{Shutdown, StreamId};
use vmlane_vsock::{Event, Failed, Key, Role, SocketAddress};
use vmlane_wire::vmci::{CID_HOST, DatagramHeader, Handle, VmciError};
use vmlane_wire::vmci_stream::{
    CONTROL_PACKET, CONTROL_RESOURCE, ControlPacket, PacketType, SHUTDOWN_RECEIVE, SHUTDOWN_SEND,
};
use zerocopy::IntoBytes;

use super::account::Account;
use super::caller::Caller;
use super::connection::{Connection, SAID_RECEIVE, SAID_RESET, SAID_SEND};
use super::handshake::{State, Verdict, verdict};
use super::record::Dirty;
use super::stats::{Refusal, VmciStats};
use super::tables::{Hypervisor, Inner};

use opening::{attach, offer, request};
use packet::{Packet, count, refuse};

/// A control packet with its addresses, as a datagram.
fn control_datagram(from: SocketAddress, to: SocketAddress, packet: ControlPacket) -> Box<[u8]> {
    let header = DatagramHeader::new(
        Handle::new(to.0, CONTROL_RESOURCE),
        Handle::new(from.0, CONTROL_RESOURCE),
        CONTROL_PACKET,
    );
    let packet = packet.with_ports(from.1, to.1);
    [header.as_bytes(), packet.as_bytes()].concat().into()
}

impl Inner {
    /// Sends RST to `to` in the name of `from`. Dropped when the queue is full: the guest's own
    /// timeouts then do the work, and a flood of bad packets cannot grow anything.
    pub(super) fn send_reset(&self, from: SocketAddress, to: SocketAddress) {
        let Some(context) = self.contexts.get(&to.0) else { return };
        if let Some(inbox) = context.reachable_inbox() {
            context.stats.resets_sent.inc();
            let packet = ControlPacket::new(PacketType::Rst, 0, 0);
            inbox.push(Account::Control, CID_HOST, control_datagram(from, to, packet));
        }
    }

    pub(super) fn remove_connection(&mut self, key: Key) -> Option<Connection> {
        self.remove_connection_as(key, Failed::Gone)
    }

    /// The same; an endpoint of another kind that waits for it hears `why`.
    pub(super) fn remove_connection_as(&mut self, key: Key, why: Failed) -> Option<Connection> {
        let connection = self.connections.remove(&key)?;
        self.give_up(&connection, why);
        self.dirty.push(Dirty::Connection(key));
        if let Some(client) = self.contexts.get_mut(&key.client.0).filter(|_| connection.counted) {
            client.connections -= 1;
        }
        Some(connection)
    }

    /// The VM is removed; connections that its peers still hold outlive it.
    pub(super) fn disown_connections(&mut self, cid: u32) {
        for (key, connection) in self.connections.iter_mut().filter(|(key, _)| key.client.0 == cid) {
            connection.counted = false;
            self.dirty.push(Dirty::Connection(*key));
        }
    }

    /// A context is gone: the peers of its half-made connections hear of it now, those of complete
    /// ones when the engine has delivered what there was.
    pub(super) fn forget_connections(&mut self, cid: u32) {
        let keys: Vec<Key> = self
            .connections
            .iter()
            .filter(|(key, connection)| {
                connection.stream.is_none() && (key.client.0 == cid || key.server.0 == cid)
            })
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            let Some(connection) = self.remove_connection(key) else { continue };
            if key.client.0 == cid {
                self.send_reset(key.client, key.server);
            } else {
                self.send_reset(connection.server_as_known(key), key.client);
            }
        }
    }

    /// Passes `packet` on to the other end of the connection, addresses translated.
    pub(super) fn forward(
        &self,
        key: Key,
        connection: &Connection,
        from: Role,
        packet: ControlPacket,
    ) -> Result<(), Refusal> {
        let (source, target) = match from {
            Role::Client => (key.client, key.server),
            Role::Server => (connection.server_as_known(key), key.client),
        };
        let sender = if from == Role::Client { key.client.0 } else { key.server.0 };
        let inbox = self.reach(sender, target.0)?;
        let packet = control_datagram(source, target, packet);
        if inbox.push(Account::Control, sender, packet) { Ok(()) } else { Err(Refusal::Full) }
    }
}

impl Hypervisor {
    /// A control packet from `caller`, whose header has been checked.
    pub(super) fn control(
        &self,
        caller: Caller<'_>,
        src: Handle,
        dst_cid: u32,
        payload: &[u8],
        result: i32,
    ) -> Result<(), Refusal> {
        let (cid, stats) = (caller.cid, caller.stats);
        let body = ControlPacket::parse(payload).ok_or(Refusal::Size(VmciError::InvalidArgs))?;
        if src.resource != CONTROL_RESOURCE {
            return Err(Refusal::Source);
        }
        let sender = (cid, body.src_port());
        let addressed = (dst_cid, body.dst_port());
        let mut inner = self.inner.lock();
        let Some(kind) = body.kind() else {
            stats.refused_state.inc();
            let invalid = ControlPacket::new(PacketType::Invalid, 0, 0);
            if let Some(inbox) = inner.context(cid)?.reachable_inbox() {
                inbox.push(Account::Control, CID_HOST, control_datagram(addressed, sender, invalid));
            }
            self.commit_result(&mut inner, caller, result);
            return Ok(());
        };
        let packet = Packet { sender, addressed, kind, body };
        let via_host = (dst_cid == CID_HOST).then_some(addressed.1);
        inner.context(cid)?;
        // Packets about bytes of other connections are many: they look for no forward.
        let forward = via_host.and_then(|port| self.router.vms().get(cid)?.forward(port).copied());
        let (peer, via_host) = match forward {
            Some(forward) => ((forward.to_cid, forward.to_port), via_host),
            // The host itself, if its programs take part.
            None if via_host.is_none() || self.router.has_host() => (addressed, None),
            None => {
                let refused = refuse(&inner, &packet, stats);
                self.commit_result(&mut inner, caller, result);
                return refused;
            }
        };
        let as_client = Key { client: sender, server: peer };
        let as_server = Key { client: peer, server: sender };
        if matches!(kind, PacketType::Request | PacketType::Request2) {
            let outcome = request(&mut inner, as_client, via_host, packet.body, stats);
            inner.dirty.push(Dirty::Connection(as_client));
            match &outcome {
                Ok(()) => self.commit_result(&mut inner, caller, result),
                Err(_) => self.commit(&mut inner),
            }
            drop(inner);
            self.run_after();
            return outcome;
        }
        let notice = matches!(
            kind,
            PacketType::Wrote | PacketType::Read | PacketType::WaitingRead | PacketType::WaitingWrite
        );
        let outcome = self.answer(&mut inner, (as_client, as_server), packet, stats);
        inner.pass_on_waiting(Instant::now());
        if !notice || !inner.dirty.is_empty() {
            inner.dirty.extend([as_client, as_server].map(Dirty::Connection));
            match &outcome {
                Ok(()) => self.commit_result(&mut inner, caller, result),
                Err(_) => self.commit(&mut inner),
            }
        }
        drop(inner);
        self.run_after();
        outcome
    }

    /// Any packet but a REQUEST.
    fn answer(
        &self,
        inner: &mut Inner,
        (as_client, as_server): (Key, Key),
        packet: Packet,
        stats: &VmciStats,
    ) -> Result<(), Refusal> {
        if inner.connections.contains_key(&as_client) {
            self.known(inner, as_client, Role::Client, packet, stats)
        } else if inner.connections.contains_key(&as_server) {
            self.known(inner, as_server, Role::Server, packet, stats)
        } else {
            count(packet.kind, stats);
            // A destination that does not exist is refused like any other datagram to it.
            if inner.is_guest(as_client.server.0) || !self.router.has_endpoint(as_client.server.0) {
                inner.reach(packet.sender.0, as_client.server.0)?;
            }
            refuse(inner, &packet, stats)
        }
    }

    /// A packet of a tracked connection.
    fn known(
        &self,
        inner: &mut Inner,
        key: Key,
        role: Role,
        packet: Packet,
        stats: &VmciStats,
    ) -> Result<(), Refusal> {
        count(packet.kind, stats);
        let connection = inner.connections.get(&key).ok_or(Refusal::Destination)?;
        let Some(verdict) = verdict(connection.state, role, packet.kind) else {
            return refuse(inner, &packet, stats);
        };
        if let (Some(call), State::Offered, Verdict::Shutdown | Verdict::Reset) =
            (connection.call.filter(|_| connection.is_joined()), connection.state, verdict)
        {
            // A server that says so has attached, whether or not its ATTACH comes.
            inner.tell_router(call, Event::Confirm);
        }
        let connection = inner.connections.get(&key).ok_or(Refusal::Destination)?;
        match verdict {
            Verdict::Notice => self.notice(connection, role, packet.kind),
            Verdict::Shutdown => self.shut_down(connection, role, packet.body.mode()),
            Verdict::Reset => match connection.stream {
                Some(stream) => self.reset_stream(connection, stream, role),
                None if connection.waiting.is_some() => {
                    inner.remove_connection(key);
                }
                None if connection.call.is_some() => {
                    inner.remove_connection_as(key, Failed::Refused);
                }
                None => {
                    // Whether or not the other end can be told, this connection is over.
                    let told = inner.forward(key, connection, role, packet.body);
                    inner.remove_connection(key);
                    return told;
                }
            },
            Verdict::Forward(_) if connection.call.is_some() => {
                return inner.answer_routed(key, packet.body);
            }
            Verdict::Offer if connection.call.is_some() => {
                return self.offer_routed(inner, key, packet, stats);
            }
            Verdict::Forward(next) => {
                inner.forward(key, connection, role, packet.body)?;
                let Some(connection) = inner.connections.get_mut(&key) else { return Ok(()) };
                if packet.kind == PacketType::Negotiate {
                    connection.protocol = Protocol::Pkt;
                }
                connection.state = next;
                connection.touched = Instant::now();
            }
            Verdict::Offer => return offer(inner, key, packet, stats),
            Verdict::Attach => {
                attach(inner, key, packet, stats)?;
                // What was held back for the client may go soon.
                if let Some(stream) = inner.connections.get(&key).and_then(|connection| connection.stream) {
                    self.streams.kick(stream);
                }
            }
        }
        Ok(())
    }

    fn notice(&self, connection: &Connection, role: Role, kind: PacketType) {
        let Some(stream) = connection.stream else { return };
        if let Some(notifier) = &connection.notifiers[role.side()] {
            match kind {
                PacketType::WaitingRead => notifier.guest_waits_for_bytes.store(true, Ordering::SeqCst),
                PacketType::WaitingWrite => notifier.guest_waits_for_room.store(true, Ordering::SeqCst),
                _ => {}
            }
        }
        self.streams.kick(stream);
    }

    fn shut_down(&self, connection: &Connection, role: Role, mode: u64) {
        let Some(stream) = connection.stream else { return };
        if mode & SHUTDOWN_RECEIVE != 0 && connection.says(role, SAID_RECEIVE) {
            self.streams.shutdown(stream, role.side(), Shutdown::Receive);
        }
        if mode & SHUTDOWN_SEND != 0 && connection.says(role, SAID_SEND) {
            self.streams.shutdown(stream, role.side(), Shutdown::Send);
        }
    }

    /// RST on a connection that the engine has.
    fn reset_stream(&self, connection: &Connection, stream: StreamId, role: Role) {
        if connection.says(role, SAID_RESET) {
            self.streams.reset(stream, role.side());
        }
    }
}
