//! Connections that the router joins: one end is a VMCI guest's, the other belongs to an endpoint of another
//! kind, a program of the host or a VM with virtio-vsock.
//!
//! The device speaks the vSockets control protocol with its guest, and is one of the router's endpoints
//! towards the other end. Sizes, handles and both notification protocols stay in here.
//!
//! ```text
//! guest connects                                 guest is connected to
//! REQUEST(2)    -> Router::open_later            Endpoint::requested -> REQUEST2
//! Remote::accepted -> NEGOTIATE(2)               NEGOTIATE(2): OFFER of a pair without memory of its own
//! OFFER: Event::Supply, joined, ATTACH           ALLOC: Event::Attach, joined; ATTACH: Event::Confirm
//! ```
//! What the router is notified of with the hypervisor's lock held is in `other_ends.rs`.

use std::sync::Weak;
use std::time::Instant;

use vmlane_port::queue_pair::Protocol;
use vmlane_port::{Side, StreamId};
use vmlane_vsock::{Call, ConnectError, DatagramError, Endpoint, Failed, Key, Remote, Role, SocketAddress};
use vmlane_wire::vmci::{Handle, MAX_DATAGRAM_PAYLOAD, MAX_QUEUE_PAIR, datagram};
use vmlane_wire::vmci_stream::{ControlPacket, PROTO_QSTATE, PacketType};

use super::account::Account;
use super::connection::Connection;
use super::handshake::State;
use super::other_ends::RoutedPeer;
use super::record::Dirty;
use super::stats::Refusal;
use super::tables::{Hypervisor, Inner};

/// Ring size proposed to a listening guest, in bytes: what Linux sockets have by default.
const RING: u64 = 256 << 10;

/// What answers for the CID of a VMCI guest.
pub(super) struct VmciEndpoint {
    pub hypervisor: Weak<Hypervisor>,
    pub cid: u32,
}

impl Endpoint for VmciEndpoint {
    fn requested(&self, call: Call, _: Option<u64>) -> Result<(), ConnectError> {
        self.hypervisor.upgrade().ok_or(ConnectError::Unreachable)?.ask_guest(call)
    }

    fn given_up(&self, call: Call) {
        self.hypervisor.upgrade().into_iter().for_each(|hypervisor| hypervisor.end_handshake(call));
    }

    fn datagram(&self, from: SocketAddress, port: u32, payload: &[u8]) -> Result<(), DatagramError> {
        let hypervisor = self.hypervisor.upgrade().ok_or(DatagramError::Unreachable)?;
        hypervisor.datagram_to_guest(from, (self.cid, port), payload)
    }
}

/// What is notified of the guests' ends of such connections.
pub(super) struct GuestEnds(pub Weak<Hypervisor>);

impl Remote for GuestEnds {
    fn accepted(&self, call: Call) {
        self.0.upgrade().into_iter().for_each(|hypervisor| hypervisor.negotiate(call));
    }

    /// The device has joined it itself.
    fn joined(&self, _: Call, _: StreamId, _: Side) {}

    fn failed(&self, call: Call, _: Failed) {
        self.0.upgrade().into_iter().for_each(|hypervisor| hypervisor.end_handshake(call));
    }

    fn peer_left(&self, call: Call) {
        self.0.upgrade().into_iter().for_each(|hypervisor| hypervisor.peer_left(call));
    }
}

impl Hypervisor {
    /// A connection to a guest is wanted: it gets a REQUEST2.
    fn ask_guest(&self, call: Call) -> Result<(), ConnectError> {
        let key = call.key;
        let mut inner = self.inner.lock();
        if inner.contexts.reach(key.client.0, key.server.0).is_err() {
            return Err(ConnectError::Unreachable);
        }
        if inner.connections.contains_key(&key) {
            return Err(ConnectError::InUse);
        }
        let mut connection = Connection::routed(None, call);
        let request = ControlPacket::new(PacketType::Request2, 0, 0).with_size(RING, PROTO_QSTATE);
        if inner.queue_up(key, Instant::now()) {
            connection.hold(request);
        } else if inner.contexts.forward(key, &connection, Role::Client, request).is_err() {
            return Err(ConnectError::Busy);
        }
        inner.connections.insert(key, connection);
        self.commit(&mut inner);
        Ok(())
    }

    /// The server that a guest connects to has accepted: the guest gets a NEGOTIATE.
    fn negotiate(&self, call: Call) {
        let mut inner = self.inner.lock();
        let Some(connection) = inner.current(call).filter(|own| own.state == State::Requested) else {
            return;
        };
        let (kind, proto) = match connection.protocol {
            Protocol::Qstate => (PacketType::Negotiate2, PROTO_QSTATE),
            Protocol::Pkt => (PacketType::Negotiate, 0),
        };
        let answer = ControlPacket::new(kind, 0, 0).with_size(connection.asked, proto);
        if inner.contexts.forward(call.key, connection, Role::Server, answer).is_err() {
            inner.remove_connection_as(call.key, Failed::Gone);
        } else if let Some(connection) = inner.connections.get_mut(&call.key) {
            connection.advance(State::Negotiated);
        }
        self.commit(&mut inner);
        drop(inner);
        self.run_after();
    }

    /// The other end refused, or is gone, before both were joined: the guest gets an RST.
    fn end_handshake(&self, call: Call) {
        let mut inner = self.inner.lock();
        let key = call.key;
        let Some(known) = inner.current(call).map(|own| own.server_as_known(key)) else { return };
        match call.role {
            Role::Client => inner.contexts.send_reset(known, key.client),
            Role::Server => inner.contexts.send_reset(key.client, key.server),
        }
        inner.remove_connection(key);
        // What leaves a note of a change writes it: the guest may never make a call in which it would be
        // written.
        self.commit(&mut inner);
        drop(inner);
        self.run_after();
    }

    /// The other end has left the joined pair.
    fn peer_left(&self, call: Call) {
        let mut inner = self.inner.lock();
        let Some(RoutedPeer { cid, handle, stream }) = inner.others.leave(call) else { return };
        if inner.detach_stream(cid, handle, stream) && inner.current(call).is_some() {
            inner.remove_connection(call.key);
        }
        self.commit(&mut inner);
    }

    /// A datagram from an endpoint of another kind.
    fn datagram_to_guest(
        &self,
        from: SocketAddress,
        to: SocketAddress,
        payload: &[u8],
    ) -> Result<(), DatagramError> {
        if payload.len() > MAX_DATAGRAM_PAYLOAD {
            return Err(DatagramError::TooLarge);
        }
        // Resources 0 and 1 are events and stream control, and ~0 hides what lies behind it.
        if to.1 <= 1 || to.1 == u32::MAX {
            return Err(DatagramError::Port);
        }
        let mut inner = self.inner.lock();
        let inbox = inner.contexts.reach(from.0, to.0).map_err(|_| DatagramError::Unreachable)?;
        let bytes = datagram(Handle::new(to.0, to.1), Handle::new(from.0, from.1), payload);
        let sent = inbox.push(Account::Ordinary, from.0, bytes.into());
        self.commit(&mut inner);
        if sent { Ok(()) } else { Err(DatagramError::Full) }
    }

    /// Makes the calls that had to wait for the lock.
    pub(super) fn run_after(&self) {
        loop {
            let calls = self.inner.lock().others.take_calls();
            if calls.is_empty() {
                return;
            }
            self.router.run(calls);
        }
    }
}

impl Inner {
    /// The connection that `call` is about, unless another one has its addresses by now.
    fn current(&self, call: Call) -> Option<&Connection> {
        self.connections.get(&call.key).filter(|own| own.call.is_some_and(|own| own.number == call.number))
    }

    /// NEGOTIATE or INVALID of a guest that something else connects to.
    pub(super) fn answer_routed(&mut self, key: Key, packet: ControlPacket) -> Result<(), Refusal> {
        let connection = self.connections.get_mut(&key).ok_or(Refusal::Destination)?;
        let outcome = if packet.kind() == Some(PacketType::Invalid) {
            // The guest speaks the older protocol only: once more, in that one.
            let first = connection.protocol == Protocol::Qstate;
            connection.protocol = Protocol::Pkt;
            connection.advance(State::Requested);
            first.then(|| ControlPacket::new(PacketType::Request, 0, 0).with_size(RING, 0))
        } else {
            if packet.kind() == Some(PacketType::Negotiate) {
                connection.protocol = Protocol::Pkt;
            }
            self.offer_pair(key, packet.size())
        };
        let sent = outcome.is_some_and(|answer| {
            self.connections.get(&key).is_some_and(|connection| {
                self.contexts.forward(key, connection, Role::Client, answer).is_ok()
            })
        });
        if !sent {
            self.contexts.send_reset(key.client, key.server);
            self.remove_connection_as(key, Failed::Gone);
        }
        Ok(())
    }

    /// A pair without memory, for the guest to attach to; the OFFER of it.
    fn offer_pair(&mut self, key: Key, size: u64) -> Option<ControlPacket> {
        if size == 0 || size.checked_mul(2).is_none_or(|total| total > MAX_QUEUE_PAIR) {
            return None;
        }
        let (handle, serial) = self.pairs.offer(key, size)?;
        self.dirty.push(Dirty::Pair(serial));
        self.connections.get_mut(&key)?.offer(handle);
        Some(ControlPacket::new(PacketType::Offer, 0, 0).with_handle(handle))
    }
}
