//! Stream connections between VMs: control packets checked, translated, passed on.
//!
//! A connection is known by the real addresses of its two ends. A client that came in through the
//! map {CID 2, port} -> {VM, port} knows its server as the host; every packet is translated on the
//! way, both ways. Packets about bytes and room are consumed: each guest's peer is the device.

mod opening;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vmlane_port::{End, Shutdown, Side, StreamId};
use vmlane_state::{Reader, Writer};
use vmlane_vsock::{Call, Event, Failed, Role};
pub use vmlane_vsock::{Key, SocketAddress};
use vmlane_wire::vmci::{CID_HOST, DatagramHeader, Handle, VmciError};
use vmlane_wire::vmci_stream::{
    CONTROL_PACKET, CONTROL_RESOURCE, ControlPacket, PacketType, SHUTDOWN_RECEIVE, SHUTDOWN_SEND,
};
use zerocopy::IntoBytes;

use super::fabric::{Caller, Fabric, Inner};
use super::handshake::{State, Verdict, verdict};
use super::inbox::Account;
use super::notices::{Notices, Protocol};
use super::record::Dirty;
use super::stats::{Refusal, VmciStats};

use opening::{attach, offer, request};

const SAID_RECEIVE: u8 = 1;
const SAID_SEND: u8 = 2;
const SAID_RESET: u8 = 4;

/// One tracked connection.
pub struct Connection {
    state: State,
    /// The port of {CID 2, port} that the client connected to, if it came in that way.
    via_host: Option<u32>,
    protocol: Protocol,
    handle: Option<Handle>,
    lane: Option<StreamId>,
    /// None for an end that is no VMCI guest.
    voices: [Option<Arc<Notices>>; 2],
    client_left: bool,
    /// What each end has said about its future, as bits: the engine hears of each once, however often
    /// a guest repeats it.
    said: [Cell<u8>; 2],
    /// Counts against its client's quota. Not once the client's VM has been removed: another may have
    /// the context id by now.
    counted: bool,
    touched: Instant,
    /// Its REQUEST, which waits for others' handshakes (see [`super::pace`]).
    waiting: Option<ControlPacket>,
    /// The guest's end, if the other one belongs to no VMCI guest (see [`super::mixed`]).
    call: Option<Call>,
    /// The ring size that the guest asked for then.
    asked: u64,
}

impl Connection {
    fn new(via_host: Option<u32>) -> Connection {
        Connection {
            state: State::Requested,
            via_host,
            protocol: Protocol::Qstate,
            handle: None,
            lane: None,
            voices: [None, None],
            client_left: false,
            said: Default::default(),
            counted: true,
            touched: Instant::now(),
            waiting: None,
            call: None,
            asked: 0,
        }
    }

    /// One end of which is no VMCI guest; `call` is the guest's. It counts against no quota yet.
    pub fn mixed(via_host: Option<u32>, call: Call) -> Connection {
        Connection { call: Some(call), counted: false, ..Connection::new(via_host) }
    }

    pub fn call(&self) -> Option<Call> {
        self.call
    }

    pub fn handle(&self) -> Option<Handle> {
        self.handle
    }

    /// The engine has both ends.
    pub fn is_joined(&self) -> bool {
        self.lane.is_some()
    }

    /// The ring size that the client asked for, in bytes.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    pub fn use_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    pub fn advance(&mut self, state: State) {
        self.state = state;
        self.touched = Instant::now();
    }

    /// The device offers the pair `handle` on it.
    pub fn offer(&mut self, handle: Handle) {
        self.handle = Some(handle);
        self.advance(State::Offered);
    }

    /// Its ATTACH has been passed on.
    pub fn is_attached(&self) -> bool {
        self.state == State::Established
    }

    /// How each end's bytes end, as far as it has said.
    pub fn pending_ends(&self) -> [Vec<End>; 2] {
        self.said.each_ref().map(|said| {
            let ends = [(SAID_SEND, End::Finished), (SAID_RESET, End::Reset)];
            ends.into_iter().filter(|(bit, _)| said.get() & bit != 0).map(|(_, end)| end).collect()
        })
    }

    /// What each end is told at once because of what its peer has said.
    pub fn refusals(&self) -> [Option<End>; 2] {
        let said = |end: usize| self.said[end].get() & SAID_RECEIVE != 0;
        [said(1), said(0)].map(|refused| refused.then_some(End::Refused))
    }

    pub fn to_record(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(self.state as u8).option(self.via_host.map(u64::from));
        out.flag(self.protocol == Protocol::Pkt).flag(self.handle.is_some());
        let handle = self.handle.unwrap_or(Handle::INVALID);
        out.u32(handle.context).u32(handle.resource).flag(self.client_left);
        out.u8(self.said[0].get()).u8(self.said[1].get()).flag(self.counted);
        out.bytes(self.waiting.as_ref().map_or(&[], |packet| packet.as_bytes()));
        out.0
    }

    pub fn from_record(record: &[u8]) -> Option<Connection> {
        let mut from = Reader::new(record);
        let states = [State::Requested, State::Negotiated, State::Offered, State::Established];
        let state = *states.get(usize::from(from.u8()?))?;
        let via_host = from.option()?.map(|port| port as u32);
        let protocol = if from.flag()? { Protocol::Pkt } else { Protocol::Qstate };
        let named = from.flag()?;
        let handle = Handle::new(from.u32()?, from.u32()?);
        let client_left = from.flag()?;
        let said = [Cell::new(from.u8()?), Cell::new(from.u8()?)];
        let counted = from.flag()?;
        let waiting = ControlPacket::parse(from.bytes()?);
        from.end()?;
        let handle = named.then_some(handle);
        Some(Connection {
            state,
            protocol,
            handle,
            client_left,
            said,
            counted,
            waiting,
            ..Connection::new(via_host)
        })
    }

    /// Counts against its client's quota.
    pub fn is_counted(&self) -> bool {
        self.counted
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The server's address as the client knows it.
    pub fn server_as_known(&self, key: Key) -> SocketAddress {
        self.via_host.map_or(key.server, |port| (CID_HOST, port))
    }

    /// Is `handle` the queue pair that was offered on it?
    pub fn is_about(&self, handle: Handle) -> bool {
        self.handle == Some(handle)
    }

    /// A queue pair was offered on it.
    pub fn has_pair(&self) -> bool {
        self.handle.is_some()
    }

    /// The engine has joined the two ends.
    pub fn joined(&mut self, lane: StreamId, voices: [Option<Arc<Notices>>; 2]) {
        self.lane = Some(lane);
        self.voices = voices;
    }

    /// True the first time that `role` says `what`.
    fn says(&self, role: Role, what: u8) -> bool {
        let said = &self.said[side(role) as usize];
        said.replace(said.get() | what) & what == 0
    }

    /// One end has detached.
    pub fn left(&mut self, side: Side) {
        self.client_left |= side == Side::A;
    }

    /// Part of a handshake that is under way and moved a moment ago?
    pub fn is_in_the_making(&self, now: Instant, limit: Duration) -> bool {
        self.state != State::Established
            && self.waiting.is_none()
            && now.saturating_duration_since(self.touched) < limit
    }

    /// Has its REQUEST not been passed on yet?
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    pub fn hold(&mut self, request: ControlPacket) {
        self.waiting = Some(request);
    }

    /// The REQUEST that waited; the handshake starts now.
    pub fn release(&mut self, now: Instant) -> Option<ControlPacket> {
        self.touched = now;
        self.waiting.take()
    }

    pub fn is_stale(&self, now: Instant, limit: Duration) -> bool {
        self.lane.is_none() && now.saturating_duration_since(self.touched) > limit
    }
}

fn side(role: Role) -> Side {
    role.side()
}

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

    /// The same; an end that belongs to no VMCI guest and waits for it hears `why`.
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
                connection.lane.is_none() && (key.client.0 == cid || key.server.0 == cid)
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

/// A control packet on its way through the tables.
struct Packet {
    sender: SocketAddress,
    /// Where the sender thinks it goes; RST comes back from there.
    addressed: SocketAddress,
    kind: PacketType,
    body: ControlPacket,
}

impl Fabric {
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
            self.settle(&mut inner, caller, result);
            return Ok(());
        };
        let packet = Packet { sender, addressed, kind, body };
        let via_host = (dst_cid == CID_HOST).then_some(addressed.1);
        let forwards = &inner.context(cid)?.spec.forwards;
        let forward = forwards.iter().find(|forward| via_host == Some(forward.port));
        let (peer, via_host) = match forward {
            Some(forward) => ((forward.to_cid, forward.to_port), via_host),
            // The host itself, if its programs take part.
            None if via_host.is_none() || self.router.has_host() => (addressed, None),
            None => {
                let refused = refuse(&inner, &packet, stats);
                self.settle(&mut inner, caller, result);
                return refused;
            }
        };
        let as_client = Key { client: sender, server: peer };
        let as_server = Key { client: peer, server: sender };
        if matches!(kind, PacketType::Request | PacketType::Request2) {
            let outcome = request(&mut inner, as_client, via_host, packet.body, stats);
            inner.dirty.push(Dirty::Connection(as_client));
            match &outcome {
                Ok(()) => self.settle(&mut inner, caller, result),
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
                Ok(()) => self.settle(&mut inner, caller, result),
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
            Verdict::Reset => match connection.lane {
                Some(lane) => self.reset_lane(connection, lane, role),
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
                return inner.answer_elsewhere(key, packet.body);
            }
            Verdict::Offer if connection.call.is_some() => {
                return self.offer_elsewhere(inner, key, packet, stats);
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
                if let Some(lane) = inner.connections.get(&key).and_then(|connection| connection.lane) {
                    self.lanes.kick(lane);
                }
            }
        }
        Ok(())
    }

    fn notice(&self, connection: &Connection, role: Role, kind: PacketType) {
        let Some(lane) = connection.lane else { return };
        if let Some(voice) = &connection.voices[side(role) as usize] {
            match kind {
                PacketType::WaitingRead => voice.guest_waits_for_bytes.store(true, Ordering::SeqCst),
                PacketType::WaitingWrite => voice.guest_waits_for_room.store(true, Ordering::SeqCst),
                _ => {}
            }
        }
        self.lanes.kick(lane);
    }

    fn shut_down(&self, connection: &Connection, role: Role, mode: u64) {
        let Some(lane) = connection.lane else { return };
        if mode & SHUTDOWN_RECEIVE != 0 && connection.says(role, SAID_RECEIVE) {
            self.lanes.shutdown(lane, side(role), Shutdown::Receive);
        }
        if mode & SHUTDOWN_SEND != 0 && connection.says(role, SAID_SEND) {
            self.lanes.shutdown(lane, side(role), Shutdown::Send);
        }
    }

    /// RST on a connection that the engine has.
    fn reset_lane(&self, connection: &Connection, lane: StreamId, role: Role) {
        if connection.says(role, SAID_RESET) {
            self.lanes.reset(lane, side(role));
        }
    }
}

fn count(kind: PacketType, stats: &VmciStats) {
    match kind {
        PacketType::Wrote => stats.wrote_sent.inc(),
        PacketType::Read => stats.read_sent.inc(),
        PacketType::WaitingRead | PacketType::WaitingWrite => stats.waiting_sent.inc(),
        _ => {}
    }
}

/// Answers a packet that nothing expects with RST, unless it is one itself. As a datagram it was sent.
fn refuse(inner: &Inner, packet: &Packet, stats: &VmciStats) -> Result<(), Refusal> {
    if packet.kind != PacketType::Rst {
        stats.refused_state.inc();
        inner.send_reset(packet.addressed, packet.sender);
    }
    Ok(())
}
