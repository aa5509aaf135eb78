//! Parties that are no VMCI guests: the host's programs at CID 2, VMs with another kind of vsock.
//!
//! The fabric speaks the vSockets control protocol for them. A party brings a [`StreamEnd`] for each
//! connection, whatever its own rings are, and hears what became of it; sizes, handles and both
//! notification protocols stay in here.
//!
//! ```text
//! guest connects                              party connects
//! REQUEST(2)   -> Endpoint::requested         Fabric::connect        -> REQUEST2
//! Fabric::accept -> NEGOTIATE(2)              NEGOTIATE(2): OFFER of a pair without memory of its own
//! OFFER: joined, ATTACH -> Remote::joined     ALLOC: joined; ATTACH  -> Remote::joined
//! ```
//! Two parties connect without packets: `Fabric::connect`, `Endpoint::requested`, `Fabric::accept`, and both
//! are joined.
//! Nobody is called with the fabric's lock held.

use std::sync::Arc;
use std::time::Instant;

use vmlane_port::{Shutdown, Side, StreamEnd, StreamId, Streams};
use vmlane_wire::vmci::{CID_HOST, Handle, MAX_DATAGRAM_PAYLOAD, MAX_QUEUE_PAIR, VmciError, datagram};
use vmlane_wire::vmci_stream::{ControlPacket, PROTO_QSTATE, PacketType};

use super::fabric::{Fabric, Inner};
use super::handshake::{Role, State};
use super::inbox::Account;
use super::notices::Protocol;
use super::stats::Refusal;
use super::stream::{Connection, Key, SocketAddress};

/// Ring size proposed to a listening guest, in bytes: what Linux sockets have by default.
const RING: u64 = 256 << 10;

/// A party at one context id.
pub trait Endpoint: Send + Sync {
    /// A guest wants to connect to `call.key.server`. Answered with [`Fabric::accept`] or
    /// [`Fabric::hang_up`], now or later. `size`: the ring the guest asks for, in bytes.
    fn requested(&self, call: Call, size: u64);

    /// Who asked has given up before it was answered: [`Fabric::accept`] would say false.
    fn given_up(&self, call: Call) {
        let _ = call;
    }

    /// A guest's datagram for `port`. False if there is nobody or no room: the sender is told.
    fn datagram(&self, from: SocketAddress, port: u32, payload: &[u8]) -> bool {
        let _ = (from, port, payload);
        false
    }
}

/// One connection as its party sees it. Calls come from any thread and must return soon.
pub trait Remote: Send + Sync {
    /// Bytes move. `lane` and `side`: this party's end, for [`vmlane_port::Streams`].
    fn joined(&self, lane: StreamId, side: Side);

    /// It did not come about. Not called after [`Self::joined`], whose port hears of ends.
    fn failed(&self, why: Failed);
}

/// Why a connection did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failed {
    /// The other end answered RST.
    Refused,
    /// The other end went away or stopped in the middle.
    Gone,
}

/// One connection of a party: its addresses, and a number that is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    pub key: Key,
    pub number: u64,
}

/// Why a party cannot connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    #[error("no VM with this CID can be reached: none is configured, or its driver is not loaded")]
    Unreachable,
    #[error("the two addresses are connected already")]
    InUse,
    #[error("the VM does not fetch its packets")]
    Busy,
}

/// What the fabric knows of a party's connection.
pub(super) struct Hosted {
    key: Key,
    role: Role,
    /// The party's end until it is joined.
    end: Option<StreamEnd>,
    remote: Option<Arc<dyn Remote>>,
    handle: Option<Handle>,
    lane: Option<StreamId>,
    /// The other end's number where that is a party, too.
    partner: Option<u64>,
    /// What the endpoint did before it was joined.
    later: Later,
}

/// What an endpoint does before the other end's handshake is through. Done once both are joined, behind its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Later {
    receive: bool,
    send: bool,
    reset: bool,
    closed: bool,
}

impl Later {
    fn shutdown(&mut self, what: Shutdown) {
        match what {
            Shutdown::Receive => self.receive = true,
            Shutdown::Send => self.send = true,
        }
    }
}

/// Connections of one endpoint that it has accepted and closed while their clients still shake hands. Beyond,
/// clients are refused.
const MOST_CLOSED_EARLY: usize = 256;

/// A call to make once the lock is free.
pub(super) enum After {
    Requested(Arc<dyn Endpoint>, Call, u64),
    Joined(Arc<dyn Remote>, StreamId, Side),
    Failed(Arc<dyn Remote>, Failed),
    GivenUp(Arc<dyn Endpoint>, Call),
    /// What this end did before it was joined.
    Late(Call, (StreamId, Side), Later),
}

fn side(role: Role) -> Side {
    if role == Role::Client { Side::A } else { Side::B }
}

impl Hosted {
    /// The end of a party that has been asked.
    fn asked(key: Key, partner: Option<u64>) -> Hosted {
        let later = Later::default();
        Hosted { key, role: Role::Server, end: None, remote: None, handle: None, lane: None, partner, later }
    }

    fn cid(&self) -> u32 {
        if self.role == Role::Client { self.key.client.0 } else { self.key.server.0 }
    }
}

impl Fabric {
    /// `endpoint` answers for `cid` from here on: [`CID_HOST`], or a VM that has no VMCI device.
    pub fn set_endpoint(&self, cid: u32, endpoint: Arc<dyn Endpoint>) {
        self.inner.lock().endpoints.insert(cid, endpoint);
    }

    /// Nobody answers for `cid` any more. Its connections stay until they are hung up.
    pub fn clear_endpoint(&self, cid: u32) {
        self.inner.lock().endpoints.remove(&cid);
    }

    /// Who moves the bytes: for kicks and shutdowns of joined ends.
    pub fn lanes(&self) -> &Arc<dyn Streams> {
        &self.lanes
    }

    /// The group of the VM `cid`.
    pub fn group_of(&self, cid: u32) -> Option<String> {
        self.inner.lock().contexts.get(&cid).map(|context| context.spec.group.clone())
    }

    /// Accepts what a guest requested: `end` is this party's. False if the guest has given up meanwhile.
    pub fn accept(&self, call: Call, end: StreamEnd, remote: Arc<dyn Remote>) -> bool {
        let mut inner = self.inner.lock();
        let accepted = match inner.partner(call) {
            Some(partner) => inner.meet(&*self.lanes, (call, partner), end, remote),
            None => inner.accept(call, end, remote),
        };
        drop(inner);
        self.run_after();
        accepted
    }

    /// Connects a party at `key.client` to a VMCI guest, or to another party, at `key.server`.
    pub fn connect(&self, key: Key, end: StreamEnd, remote: Arc<dyn Remote>) -> Result<Call, ConnectError> {
        let mut inner = self.inner.lock();
        if inner.is_hosted(key.server.0) {
            let call = inner.introduce(key, end, remote);
            drop(inner);
            self.run_after();
            return call;
        }
        if inner.reach(key.client.0, key.server.0).is_err() {
            return Err(ConnectError::Unreachable);
        }
        if inner.connections.contains_key(&key) {
            return Err(ConnectError::InUse);
        }
        let number = inner.next_number();
        let call = Call { key, number };
        let mut connection = Connection::of_party(None, number);
        let request = ControlPacket::new(PacketType::Request2, 0, 0).with_size(RING, PROTO_QSTATE);
        if inner.queue_up(key, Instant::now()) {
            connection.hold(request);
        } else if inner.forward(key, &connection, Role::Client, request).is_err() {
            return Err(ConnectError::Busy);
        }
        inner.connections.insert(key, connection);
        let hosted = Hosted {
            key,
            role: Role::Client,
            end: Some(end),
            remote: Some(remote),
            handle: None,
            lane: None,
            partner: None,
            later: Later::default(),
        };
        inner.hosted.insert(number, hosted);
        Ok(call)
    }

    /// The endpoint's end of a connection ends: a request is refused, a handshake given up, a joined end leaves
    /// after what it has written is taken. What an endpoint has accepted and written already arrives, even if the
    /// client's handshake is not through. Blocks until no worker touches its memory any more. What was hung up
    /// before is gone: nothing happens.
    pub fn hang_up(&self, call: Call) {
        self.end_call(call, true);
    }

    fn end_call(&self, call: Call, deliver: bool) {
        let mut inner = self.inner.lock();
        if deliver && inner.close_later(call) {
            return;
        }
        let Some(hosted) = inner.hosted.remove(&call.number) else { return };
        let leaving = inner.hang_up(call, hosted);
        drop(inner);
        self.lanes.leave(leaving.as_slice());
        self.run_after();
    }

    /// The endpoint sends, or receives, no more. Said before the other end's handshake is through, it counts from
    /// then on.
    pub fn shutdown(&self, call: Call, what: Shutdown) {
        let mut inner = self.inner.lock();
        let Some(hosted) = inner.hosted.get_mut(&call.number) else { return };
        let joined = hosted.lane.map(|lane| (lane, side(hosted.role)));
        if joined.is_none() {
            hosted.later.shutdown(what);
        }
        drop(inner);
        if let Some((lane, side)) = joined {
            self.lanes.shutdown(lane, side, what);
        }
    }

    /// The endpoint resets the connection: the other end hears of it behind the bytes sent so far.
    pub fn abort(&self, call: Call) {
        let mut inner = self.inner.lock();
        let Some(hosted) = inner.hosted.get_mut(&call.number) else { return };
        hosted.later.reset = true;
        let joined = hosted.lane.map(|lane| (lane, side(hosted.role)));
        drop(inner);
        if let Some((lane, side)) = joined {
            self.lanes.reset(lane, side);
        }
        self.hang_up(call);
    }

    /// The endpoint takes its acceptance back, if the client has not come so far yet.
    pub fn withdraw(&self, call: Call) {
        self.end_call(call, false);
    }

    /// A party's datagram. The result is as for a guest's: true if it is queued for `to`.
    pub fn send_datagram(
        &self,
        from: SocketAddress,
        to: SocketAddress,
        payload: &[u8],
    ) -> Result<(), VmciError> {
        if payload.len() > MAX_DATAGRAM_PAYLOAD {
            return Err(VmciError::PayloadTooLarge);
        }
        // Resources 0 and 1 are events and stream control, and ~0 hides what lies behind it.
        if to.1 <= 1 || to.1 == u32::MAX {
            return Err(VmciError::InvalidArgs);
        }
        let inbox = self.inner.lock().reach(from.0, to.0).map_err(|_| VmciError::InvalidResource)?.clone();
        let bytes = datagram(Handle::new(to.0, to.1), Handle::new(from.0, from.1), payload);
        if inbox.push(Account::Ordinary, from.0, bytes.into()) { Ok(()) } else { Err(VmciError::NoResources) }
    }

    /// A joined end does what its endpoint did before.
    fn catch_up(&self, call: Call, (lane, side): (StreamId, Side), later: Later) {
        if later.receive {
            self.lanes.shutdown(lane, side, Shutdown::Receive);
        }
        if later.send {
            self.lanes.shutdown(lane, side, Shutdown::Send);
        }
        if later.reset {
            self.lanes.reset(lane, side);
        }
        if later.closed {
            self.hang_up(call);
        }
    }

    /// Makes the calls that had to wait for the lock.
    pub(super) fn run_after(&self) {
        loop {
            let calls = std::mem::take(&mut self.inner.lock().after);
            if calls.is_empty() {
                return;
            }
            for call in calls {
                match call {
                    After::Requested(endpoint, call, size) => endpoint.requested(call, size),
                    After::Joined(remote, lane, side) => remote.joined(lane, side),
                    After::Failed(remote, why) => remote.failed(why),
                    After::GivenUp(endpoint, call) => endpoint.given_up(call),
                    After::Late(call, end, later) => self.catch_up(call, end, later),
                }
            }
        }
    }
}

impl Inner {
    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Does somebody other than a VMCI guest answer for `cid`?
    pub(super) fn is_hosted(&self, cid: u32) -> bool {
        self.endpoints.contains_key(&cid)
    }

    /// A guest's REQUEST for a party; what the guest may have open has been checked.
    pub(super) fn request_party(&mut self, key: Key, via_host: Option<u32>, size: u64) -> Connection {
        let number = self.next_number();
        self.hosted.insert(number, Hosted::asked(key, None));
        if let Some(endpoint) = self.endpoints.get(&key.server.0) {
            self.after.push(After::Requested(endpoint.clone(), Call { key, number }, size));
        }
        Connection::of_party(via_host, number)
    }

    fn accept(&mut self, call: Call, end: StreamEnd, remote: Arc<dyn Remote>) -> bool {
        let Some(hosted) = self.hosted.get_mut(&call.number) else { return false };
        let Some(connection) = self.connections.get(&call.key) else { return false };
        if connection.party() != Some(call.number) || connection.state() != State::Requested {
            return false;
        }
        hosted.end = Some(end);
        hosted.remote = Some(remote);
        let (kind, proto) = match connection.protocol() {
            Protocol::Qstate => (PacketType::Negotiate2, PROTO_QSTATE),
            Protocol::Pkt => (PacketType::Negotiate, 0),
        };
        let answer = ControlPacket::new(kind, 0, 0).with_size(connection.asked(), proto);
        if self.forward(call.key, connection, Role::Server, answer).is_err() {
            self.remove_connection_as(call.key, Failed::Gone);
            return false;
        }
        if let Some(connection) = self.connections.get_mut(&call.key) {
            connection.advance(State::Negotiated);
        }
        true
    }

    /// NEGOTIATE or INVALID for a party that connects.
    pub(super) fn answer_party(&mut self, key: Key, packet: ControlPacket) -> Result<(), Refusal> {
        let connection = self.connections.get_mut(&key).ok_or(Refusal::Destination)?;
        let Some(number) = connection.party() else { return Err(Refusal::Destination) };
        let outcome = if packet.kind() == Some(PacketType::Invalid) {
            // The guest speaks the older protocol only: once more, in that one.
            let first = connection.protocol() == Protocol::Qstate;
            connection.use_protocol(Protocol::Pkt);
            connection.advance(State::Requested);
            first.then(|| ControlPacket::new(PacketType::Request, 0, 0).with_size(RING, 0))
        } else {
            if packet.kind() == Some(PacketType::Negotiate) {
                connection.use_protocol(Protocol::Pkt);
            }
            self.pair_of_party(key, number, packet.size())
        };
        let sent = outcome.is_some_and(|answer| {
            self.connections
                .get(&key)
                .is_some_and(|connection| self.forward(key, connection, Role::Client, answer).is_ok())
        });
        if !sent {
            self.send_reset(key.client, key.server);
            self.remove_connection_as(key, Failed::Gone);
        }
        Ok(())
    }

    /// A pair without memory, for the guest to attach to; the OFFER of it.
    fn pair_of_party(&mut self, key: Key, number: u64, size: u64) -> Option<ControlPacket> {
        if size == 0 || size.checked_mul(2).is_none_or(|total| total > MAX_QUEUE_PAIR) {
            return None;
        }
        let handle = self.register_pair(key, size)?;
        self.hosted.get_mut(&number)?.handle = Some(handle);
        self.connections.get_mut(&key)?.offer(handle);
        Some(ControlPacket::new(PacketType::Offer, 0, 0).with_handle(handle))
    }

    /// The end that the party of `key` brings, once.
    pub(super) fn take_end(&mut self, key: Key) -> Option<StreamEnd> {
        let number = self.connections.get(&key)?.party()?;
        self.hosted.get_mut(&number)?.end.take()
    }

    /// The end is in the engine's hands.
    pub(super) fn party_joined(&mut self, key: Key, handle: Handle, lane: StreamId) {
        let Some(number) = self.connections.get(&key).and_then(Connection::party) else { return };
        if let Some(hosted) = self.hosted.get_mut(&number) {
            hosted.handle = Some(handle);
            hosted.lane = Some(lane);
        }
    }

    /// The handshake is over: the party is told.
    pub(super) fn party_established(&mut self, key: Key) {
        let Some(number) = self.connections.get(&key).and_then(Connection::party) else { return };
        self.tell_joined(number);
    }

    /// The endpoint hears that it is joined; what it did before is done now.
    fn tell_joined(&mut self, number: u64) {
        let Some(hosted) = self.hosted.get_mut(&number) else { return };
        let Some(lane) = hosted.lane else { return };
        let (side, later) = (side(hosted.role), std::mem::take(&mut hosted.later));
        if let Some(remote) = hosted.remote.take() {
            self.after.push(After::Joined(remote, lane, side));
        }
        if later != Later::default() {
            self.after.push(After::Late(Call { key: hosted.key, number }, (lane, side), later));
        }
    }

    /// True if `call` was accepted and is not joined yet: it ends once it is.
    fn close_later(&mut self, call: Call) -> bool {
        let early = |hosted: &&Hosted| hosted.later.closed && hosted.key.server.0 == call.key.server.0;
        if self.hosted.values().filter(early).count() >= MOST_CLOSED_EARLY {
            return false;
        }
        let accepted = |hosted: &&mut Hosted| hosted.role == Role::Server && hosted.end.is_some();
        let Some(hosted) = self.hosted.get_mut(&call.number).filter(accepted) else { return false };
        hosted.later.closed = true;
        // Nothing is said to it any more.
        hosted.remote = None;
        true
    }

    /// A connection is forgotten: a party that still waits for it is told.
    pub(super) fn party_failed(&mut self, connection: &Connection, why: Failed) {
        let Some(number) = connection.party() else { return };
        let Some(hosted) = self.hosted.get_mut(&number).filter(|hosted| hosted.lane.is_none()) else {
            return;
        };
        let (end, remote, key) = (hosted.end.take(), hosted.remote.take(), hosted.key);
        drop(end);
        if let Some(remote) = remote {
            self.after.push(After::Failed(remote, why));
        } else if !hosted.later.closed
            && let Some(endpoint) = self.endpoints.get(&key.server.0)
        {
            self.after.push(After::GivenUp(endpoint.clone(), Call { key, number }));
        }
        if let Some(hosted) = self.hosted.remove(&number)
            && let Some(handle) = hosted.handle
        {
            self.forget_pair_of_party(handle);
        }
    }

    fn hang_up(&mut self, call: Call, hosted: Hosted) -> Option<(StreamId, Side)> {
        if let Some(partner) = hosted.partner {
            return self.part(partner, &hosted);
        }
        let Hosted { key, role, handle, lane, .. } = &hosted;
        let current = self.connections.get(key).is_some_and(|own| own.party() == Some(call.number));
        if let (Some(lane), Some(handle)) = (*lane, *handle) {
            if self.detach_lane(hosted.cid(), handle, lane) && current {
                self.remove_connection(*key);
            }
            // Whatever became of the tables, this end leaves; the id is never used again.
            return Some((lane, side(*role)));
        }
        if let Some(handle) = *handle {
            self.forget_pair_of_party(handle);
        }
        if current {
            let known = self.connections.get(key).map(|own| own.server_as_known(*key));
            match (role, known) {
                (Role::Client, _) => self.send_reset(key.client, key.server),
                (Role::Server, Some(known)) => self.send_reset(known, key.client),
                (Role::Server, None) => {}
            }
            self.remove_connection(*key);
        }
        None
    }
}

/// Connections of two parties: virtio guests and programs of the host. No packet of VMCI is involved.
impl Inner {
    /// The client's number, if this is the server's end of such a connection.
    fn partner(&self, call: Call) -> Option<u64> {
        self.hosted.get(&call.number)?.partner
    }

    /// The party at `key.client` wants to connect to the one at `key.server`.
    fn introduce(&mut self, key: Key, end: StreamEnd, remote: Arc<dyn Remote>) -> Result<Call, ConnectError> {
        let endpoint = self.endpoints.get(&key.server.0).cloned();
        let Some(endpoint) = endpoint.filter(|_| self.may_talk(key.client.0, key.server.0)) else {
            return Err(ConnectError::Unreachable);
        };
        let (client, server) = (self.next_number(), self.next_number());
        let (role, handle, lane) = (Role::Client, None, None);
        let (end, remote, partner) = (Some(end), Some(remote), Some(server));
        let later = Later::default();
        self.hosted.insert(client, Hosted { key, role, end, remote, handle, lane, partner, later });
        self.hosted.insert(server, Hosted::asked(key, Some(client)));
        self.after.push(After::Requested(endpoint, Call { key, number: server }, RING));
        Ok(Call { key, number: client })
    }

    /// The one that was asked accepts.
    fn meet(
        &mut self,
        lanes: &dyn Streams,
        (call, client): (Call, u64),
        end: StreamEnd,
        remote: Arc<dyn Remote>,
    ) -> bool {
        let Some(asking) = self.hosted.get_mut(&client) else { return false };
        let Some(theirs) = asking.end.take() else { return false };
        let lane = lanes.join([theirs, end]);
        asking.lane = Some(lane);
        if let Some(own) = self.hosted.get_mut(&call.number) {
            (own.lane, own.remote) = (Some(lane), Some(remote));
        }
        self.tell_joined(client);
        self.tell_joined(call.number);
        true
    }

    /// One of the two hangs up. If they were joined, its end has to leave.
    fn part(&mut self, partner: u64, hosted: &Hosted) -> Option<(StreamId, Side)> {
        if let Some(lane) = hosted.lane {
            return Some((lane, side(hosted.role)));
        }
        let other = self.hosted.remove(&partner)?;
        if let Some(remote) = other.remote {
            self.after.push(After::Failed(remote, Failed::Refused));
        } else if let Some(endpoint) = self.endpoints.get(&hosted.key.server.0) {
            let call = Call { key: hosted.key, number: partner };
            self.after.push(After::GivenUp(endpoint.clone(), call));
        }
        None
    }
}

/// May a guest exchange anything with CID `cid` because it is the host?
pub(super) fn is_host(cid: u32) -> bool {
    cid == CID_HOST
}
