//! The packets with which a connection comes about.

use std::time::Instant;

use vmlane_port::queue_pair::Protocol;
use vmlane_vsock::{Event, Failed, Key, Role};
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};

use super::packet::{Packet, refuse};
use crate::vmci::connection::Connection;
use crate::vmci::handshake::State;
use crate::vmci::record::Dirty;
use crate::vmci::stats::{Quota, Refusal, VmciStats};
use crate::vmci::tables::{Hypervisor, Inner};

/// REQUEST, REQUEST2: a new connection, or the same one again with the older protocol.
pub(super) fn request(
    inner: &mut Inner,
    key: Key,
    via_host: Option<u32>,
    body: ControlPacket,
    stats: &VmciStats,
) -> Result<(), Refusal> {
    let (from, to) = (key.client.0, key.server.0);
    let routed = !inner.contexts.is_guest(to) && inner.others.has_endpoint(to);
    if !routed {
        inner.contexts.reach(from, to)?;
    } else if !inner.contexts.may_talk(from, to) {
        return Err(Refusal::Destination);
    }
    match inner.connections.get(&key) {
        // The client's port is in use again although the server has not closed its end yet.
        Some(old) if old.state != State::Requested && !old.client_left => {
            stats.refused_state.inc();
            inner.contexts.send_reset(old.server_as_known(key), key.client);
            return Ok(());
        }
        Some(_) => {
            inner.remove_connection(key);
        }
        None => {}
    }
    let most = inner.contexts.vm(key.client.0)?.connections;
    let client = inner.contexts.known_mut(key.client.0)?;
    if client.connections >= most {
        return Err(Refusal::Quota(Quota::Connections));
    }
    if routed {
        let mut connection = Connection::routed(via_host, inner.others.open(key, body.size())?);
        connection.counted = true;
        connection.asked = body.size();
        if body.kind() == Some(PacketType::Request) {
            connection.protocol = Protocol::Pkt;
        }
        inner.connections.insert(key, connection);
        inner.contexts.known_mut(from)?.count_connect();
        return Ok(());
    }
    client.count_connect();
    let mut connection = Connection::new(via_host);
    if inner.queue_up(key, Instant::now()) {
        connection.hold(body);
        inner.connections.insert(key, connection);
        return Ok(());
    }
    let forwarded = inner.contexts.forward(key, &connection, Role::Client, body);
    inner.connections.insert(key, connection);
    if forwarded.is_err() {
        inner.remove_connection(key);
    }
    forwarded
}

/// OFFER: the handle must be a pair that this client created for this server.
pub(super) fn offer(inner: &mut Inner, key: Key, packet: Packet, stats: &VmciStats) -> Result<(), Refusal> {
    let handle = packet.body.handle();
    let connection = inner.connections.get(&key).ok_or(Refusal::Destination)?;
    let known_as = connection.server_as_known(key).0;
    let offered =
        inner.pairs.get(&handle).is_some_and(|pair| pair.offered_by(key.client.0, key.server.0, known_as));
    if !offered {
        stats.refused_queue_pair.inc();
        return refuse(inner, &packet, stats);
    }
    inner.contexts.forward(key, connection, Role::Client, packet.body)?;
    if let Some(pair) = inner.pairs.get_mut(&handle) {
        pair.connection = Some(key);
        inner.dirty.push(Dirty::Pair(pair.serial));
    }
    if let Some(connection) = inner.connections.get_mut(&key) {
        connection.handle = Some(handle);
        connection.state = State::Offered;
        connection.touched = Instant::now();
    }
    Ok(())
}

/// ATTACH: the server must be attached to the pair that was offered.
pub(super) fn attach(inner: &mut Inner, key: Key, packet: Packet, stats: &VmciStats) -> Result<(), Refusal> {
    let handle = packet.body.handle();
    let connection = inner.connections.get(&key).ok_or(Refusal::Destination)?;
    let attached = connection.is_about(handle)
        && inner.pairs.get(&handle).is_some_and(|pair| pair.attached_by(key.server.0).is_some());
    if !attached {
        stats.refused_queue_pair.inc();
        return refuse(inner, &packet, stats);
    }
    if let Some(call) = connection.call {
        inner.others.apply(call, Event::Confirm);
    } else {
        inner.contexts.forward(key, connection, Role::Server, packet.body)?;
    }
    established(inner, key);
    Ok(())
}

fn established(inner: &mut Inner, key: Key) {
    if let Some(connection) = inner.connections.get_mut(&key) {
        connection.state = State::Established;
        if let Some(client) = &connection.notifiers.a {
            client.attached();
        }
    }
    for cid in [key.client.0, key.server.0] {
        if let Ok(context) = inner.contexts.known(cid) {
            context.stats.established.inc();
        }
    }
}

impl Hypervisor {
    /// OFFER to an endpoint of another kind: its end and the guest's are joined, and the guest is notified.
    pub(super) fn offer_routed(
        &self,
        inner: &mut Inner,
        key: Key,
        packet: Packet,
        stats: &VmciStats,
    ) -> Result<(), Refusal> {
        let handle = packet.body.handle();
        let connection = inner.connections.get(&key).ok_or(Refusal::Destination)?;
        let known_as = connection.server_as_known(key);
        let offered = inner
            .pairs
            .get(&handle)
            .is_some_and(|pair| pair.offered_by(key.client.0, key.server.0, known_as.0));
        if !offered || self.join_created(inner, key, handle).is_err() {
            stats.refused_queue_pair.inc();
            inner.remove_connection_as(key, Failed::Gone);
            return refuse(inner, &packet, stats);
        }
        let attach = ControlPacket::new(PacketType::Attach, 0, 0).with_handle(handle);
        let connection = inner.connections.get(&key).ok_or(Refusal::Destination)?;
        if inner.contexts.forward(key, connection, Role::Server, attach).is_err() {
            // The guest gives the connection up by itself; the pair goes with its DETACH.
            stats.refused_state.inc();
        }
        established(inner, key);
        if let Some(stream) = inner.connections.get(&key).and_then(|connection| connection.stream) {
            self.streams.kick(stream);
        }
        Ok(())
    }
}
