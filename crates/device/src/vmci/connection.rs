//! One stream connection as the device tracks it.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_port::queue_pair::Protocol;
use vmlane_port::{End, Side, StreamId};
use vmlane_state::{Reader, Writer};
use vmlane_vsock::{Call, Key, Role, SocketAddress};
use vmlane_wire::vmci::{CID_HOST, Handle};
use vmlane_wire::vmci_stream::ControlPacket;
use zerocopy::IntoBytes;

use super::handshake::State;
use super::notifier::Notifier;
use super::sides::Sides;

pub const ANNOUNCED_RECEIVE: u8 = 1;
pub const ANNOUNCED_SEND: u8 = 2;
pub const ANNOUNCED_RESET: u8 = 4;

/// One tracked connection.
pub struct Connection {
    pub state: State,
    /// The port of {CID 2, port} that the client connected to, if it came in that way.
    via_host: Option<u32>,
    pub protocol: Protocol,
    pub handle: Option<Handle>,
    pub stream: Option<StreamId>,
    /// None for an endpoint of another kind.
    pub notifiers: Sides<Option<Arc<Notifier>>>,
    pub client_left: bool,
    /// What each end has announced about its future, as bits: the engine is notified of each once, however
    /// often a guest repeats it.
    announced: Sides<Cell<u8>>,
    /// Counts against its client's quota. Not once the client's VM has been removed: another may have
    /// the context id by now.
    pub counted: bool,
    pub touched: Instant,
    /// Its REQUEST, which waits for others' handshakes (see [`super::pace`]).
    pub waiting: Option<ControlPacket>,
    /// The guest's end, if the router joins it with an endpoint of another kind (see [`super::routed`]).
    pub call: Option<Call>,
    /// The ring size that the guest asked for then.
    pub asked: u64,
}

impl Connection {
    pub fn new(via_host: Option<u32>) -> Connection {
        Connection {
            state: State::Requested,
            via_host,
            protocol: Protocol::Qstate,
            handle: None,
            stream: None,
            notifiers: Sides::default(),
            client_left: false,
            announced: Sides::default(),
            counted: true,
            touched: Instant::now(),
            waiting: None,
            call: None,
            asked: 0,
        }
    }

    /// One with an endpoint of another kind; `call` is the guest's end. It counts against no quota yet.
    pub fn routed(via_host: Option<u32>, call: Call) -> Connection {
        Connection { call: Some(call), counted: false, ..Connection::new(via_host) }
    }

    /// The engine has both ends.
    pub fn is_joined(&self) -> bool {
        self.stream.is_some()
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

    /// What each end has announced.
    pub fn announced(&self) -> Sides<u8> {
        self.announced.each_ref().map(|announced| announced.get())
    }

    /// How each end's bytes end, as far as it has announced it.
    pub fn pending_ends(&self) -> Sides<Vec<End>> {
        self.announced.each_ref().map(|announced| {
            let ends = [(ANNOUNCED_SEND, End::Finished), (ANNOUNCED_RESET, End::Reset)];
            ends.into_iter().filter(|(bit, _)| announced.get() & bit != 0).map(|(_, end)| end).collect()
        })
    }

    /// What each end is notified of at once because of what its peer has announced.
    pub fn refusals(&self) -> Sides<Option<End>> {
        Sides::from_fn(|side| {
            let refused = self.announced[side.other()].get() & ANNOUNCED_RECEIVE != 0;
            refused.then_some(End::Refused)
        })
    }

    pub fn to_record(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(self.state as u8).option(self.via_host.map(u64::from));
        out.flag(self.protocol == Protocol::Pkt).flag(self.handle.is_some());
        let handle = self.handle.unwrap_or(Handle::INVALID);
        out.u32(handle.context).u32(handle.resource).flag(self.client_left);
        out.u8(self.announced.a.get()).u8(self.announced.b.get()).flag(self.counted);
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
        let announced = Sides::new(Cell::new(from.u8()?), Cell::new(from.u8()?));
        let counted = from.flag()?;
        let waiting = ControlPacket::parse(from.bytes()?);
        from.end()?;
        let handle = named.then_some(handle);
        Some(Connection {
            state,
            protocol,
            handle,
            client_left,
            announced,
            counted,
            waiting,
            ..Connection::new(via_host)
        })
    }

    /// The server's address as the client knows it.
    pub fn server_as_known(&self, key: Key) -> SocketAddress {
        self.via_host.map_or(key.server, |port| (CID_HOST, port))
    }

    /// Is `handle` the queue pair that was offered on it?
    pub fn is_about(&self, handle: Handle) -> bool {
        self.handle == Some(handle)
    }

    /// The engine has joined the two ends.
    pub fn joined(&mut self, stream: StreamId, notifiers: Sides<Option<Arc<Notifier>>>) {
        self.stream = Some(stream);
        self.notifiers = notifiers;
    }

    /// Notes that `role` announces `what`. True the first time.
    pub fn announce(&self, role: Role, what: u8) -> bool {
        let announced = &self.announced[role.side()];
        announced.replace(announced.get() | what) & what == 0
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
        self.stream.is_none() && now.saturating_duration_since(self.touched) > limit
    }
}
