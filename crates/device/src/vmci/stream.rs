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
use vmlane_vsock::{Event, Failed, Key, Role};
use vmlane_wire::vmci::{CID_HOST, Handle, VmciError};
use vmlane_wire::vmci_stream::{
    CONTROL_RESOURCE, ControlPacket, PacketType, SHUTDOWN_RECEIVE, SHUTDOWN_SEND,
};

use super::caller::Caller;
use super::connection::{ANNOUNCED_RECEIVE, ANNOUNCED_RESET, ANNOUNCED_SEND, Connection};
use super::handshake::{State, Verdict, verdict};
use super::record::Dirty;
use super::stats::{Refusal, VmciStats};
use super::tables::{Hypervisor, Inner};

use opening::{attach, offer, request};
use packet::{Packet, count, refuse};

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
            inner.contexts.known(cid)?;
            inner.contexts.answer(addressed, sender, PacketType::Invalid);
            self.commit_result(&mut inner, caller, result);
            return Ok(());
        };
        let packet = Packet { sender, addressed, kind, body };
        let via_host = (dst_cid == CID_HOST).then_some(addressed.1);
        inner.contexts.known(cid)?;
        // Packets about bytes of other connections are many: no forward is searched for them.
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
            if inner.contexts.is_guest(as_client.server.0) || !self.router.has_endpoint(as_client.server.0) {
                inner.contexts.reach(packet.sender.0, as_client.server.0)?;
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
            // A server that announces ATTACH has attached, whether or not its ATTACH comes.
            inner.others.apply(call, Event::Confirm);
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
                    // Whether or not the other end can be notified, this connection is over.
                    let notified = inner.contexts.forward(key, connection, role, packet.body);
                    inner.remove_connection(key);
                    return notified;
                }
            },
            Verdict::Forward(_) if connection.call.is_some() => {
                return inner.answer_routed(key, packet.body);
            }
            Verdict::Offer if connection.call.is_some() => {
                return self.offer_routed(inner, key, packet, stats);
            }
            Verdict::Forward(next) => {
                inner.contexts.forward(key, connection, role, packet.body)?;
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
        if mode & SHUTDOWN_RECEIVE != 0 && connection.announce(role, ANNOUNCED_RECEIVE) {
            self.streams.shutdown(stream, role.side(), Shutdown::Receive);
        }
        if mode & SHUTDOWN_SEND != 0 && connection.announce(role, ANNOUNCED_SEND) {
            self.streams.shutdown(stream, role.side(), Shutdown::Send);
        }
    }

    /// RST on a connection that the engine has.
    fn reset_stream(&self, connection: &Connection, stream: StreamId, role: Role) {
        if connection.announce(role, ANNOUNCED_RESET) {
            self.streams.reset(stream, role.side());
        }
    }
}
