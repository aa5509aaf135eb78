//! All connections of the CID space: opened, accepted, joined, ended.
//!
//! One lock, held for look-ups and changes of tables. What follows from a change is done without it, by the
//! caller of the call that made it: a device that holds a lock of its own takes [`Calls`] along and runs them
//! once that is free. A device may call the router with its lock held; the router calls no endpoint with its
//! own.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use vmlane_port::fair::SharedPlaces;
use vmlane_port::wrap::StreamTap;
use vmlane_port::{Shutdown, Side, StreamEnd, StreamId, Streams};

use crate::address::{Cid, Key, SocketAddress};
use crate::connection::{Action, Event, Failed, Role, State};
use crate::datagram_taps::{DatagramTaps, Watch};
use crate::registry::{
    Call, ConnectError, DatagramError, Endpoint, HostPresence, Registry, Remote, RestoredEnd,
};
use crate::vms::{Claim, KnownVms, RemoteRange, VmTable};

/// Connections of one server that it has accepted and closed while their clients still shake hands. Beyond,
/// clients are refused: first those that have let as many wait as there are places left.
const MOST_CLOSED_EARLY: usize = 512;

/// One connection.
pub(crate) struct Connection {
    pub state: State<StreamEnd>,
    /// What answers for the server until it has accepted.
    pub server: Arc<dyn Endpoint>,
    /// What is notified of the client's end, and of the server's.
    pub remotes: [Option<Arc<dyn Remote>>; 2],
}

#[derive(Default)]
pub(crate) struct Tables {
    registry: Registry,
    /// What answers for other hosts' CIDs, by the first of a range.
    remotes: HashMap<Cid, Arc<dyn Endpoint>>,
    /// By number.
    pub connections: HashMap<u64, Connection>,
    /// Ends of a previous daemon's connections, which wait for their peers, with the connections' numbers.
    pub restored: HashMap<(Key, Role), (u64, RestoredEnd)>,
    /// By server: its connections that are closed early, by client.
    closed_early: HashMap<Cid, SharedPlaces<Cid>>,
    pub last: u64,
}

/// See the module's text. Shared by everything that speaks for a CID.
pub struct Router {
    pub(crate) vms: Arc<VmTable>,
    pub(crate) tables: Mutex<Tables>,
    pub(crate) streams: Arc<dyn Streams>,
    host: HostPresence,
    taps: DatagramTaps,
}

/// What an event led to.
#[must_use]
pub struct Applied {
    /// False: it was out of turn, and nothing has changed.
    pub taken: bool,
    /// The stream, if both ends are joined.
    pub stream: Option<StreamId>,
    /// What is still to be done.
    pub calls: Calls,
}

/// Calls that follow from an event, for [`Router::run`].
#[must_use]
#[derive(Default)]
pub struct Calls(Vec<Todo>);

pub(crate) enum Todo {
    Requested(Arc<dyn Endpoint>, Call, Option<u64>),
    GivenUp(Arc<dyn Endpoint>, Call),
    Accepted(Arc<dyn Remote>, Call),
    Joined(Arc<dyn Remote>, Call, StreamId, Side),
    Failed(Arc<dyn Remote>, Call, Failed),
    PeerLeft(Arc<dyn Remote>, Call),
    Shutdown(StreamId, Side, Shutdown),
    Reset(StreamId, Side),
    Leave(StreamId, Side),
}

impl Connection {
    fn remote(&self, role: Role) -> Option<Arc<dyn Remote>> {
        let [client, server] = &self.remotes;
        if role == Role::Client { client.clone() } else { server.clone() }
    }

    /// An end that has closed is notified of nothing more; what is notified of it may hold its socket.
    fn forget_remote(&mut self, role: Role) {
        let [client, server] = &mut self.remotes;
        drop(if role == Role::Client { client.take() } else { server.take() });
    }

    /// What an action other than a join means for the outside.
    fn todo(&self, call: Call, action: Action<StreamEnd>) -> Option<Todo> {
        Some(match action {
            Action::Ignore | Action::Join(_) => return None,
            Action::Accepted => Todo::Accepted(self.remote(Role::Client)?, call.of(Role::Client)),
            Action::NotifyJoined(role, stream) => {
                Todo::Joined(self.remote(role)?, call.of(role), stream, role.side())
            }
            Action::NotifyFailed(role, why) => match self.remote(role) {
                Some(remote) => Todo::Failed(remote, call.of(role), why),
                None if role == Role::Server => Todo::GivenUp(self.server.clone(), call.of(role)),
                None => return None,
            },
            Action::NotifyLeft(role) => Todo::PeerLeft(self.remote(role)?, call.of(role)),
            Action::Shutdown(stream, role, what) => Todo::Shutdown(stream, role.side(), what),
            Action::Reset(stream, role) => Todo::Reset(stream, role.side()),
            Action::Leave(stream, role) => Todo::Leave(stream, role.side()),
        })
    }
}

impl Tables {
    /// A connection's next state, and what follows. Ends are joined here: that is quick.
    fn apply(&mut self, streams: &dyn Streams, call: Call, event: Event<StreamEnd>) -> Applied {
        let mut applied = Applied { taken: false, stream: None, calls: Calls::default() };
        let Some(connection) = self.connections.get_mut(&call.number) else { return applied };
        let closed_early = connection.state.is_closed_early();
        let mut event = Some(event);
        while let Some(now) = event.take() {
            let state = std::mem::replace(&mut connection.state, State::Over);
            let (next, actions) = state.on(now);
            connection.state = next;
            applied.taken |= !matches!(actions.as_slice(), [Action::Ignore]);
            for action in actions {
                match action {
                    Action::Join(ends) => event = Some(Event::Started(streams.join(*ends))),
                    action => {
                        let left = if let Action::Leave(_, role) = action { Some(role) } else { None };
                        applied.calls.0.extend(connection.todo(call, action));
                        left.into_iter().for_each(|role| connection.forget_remote(role));
                    }
                }
            }
            if connection.state.is_closed_early() {
                connection.forget_remote(Role::Server);
            }
        }
        applied.stream = connection.state.stream();
        let closes_early = connection.state.is_closed_early();
        if matches!(connection.state, State::Over) {
            self.connections.remove(&call.number);
        }
        if closed_early != closes_early {
            self.count_early(call.key.server.0, call.key.client.0, closes_early);
        }
        applied
    }

    /// What answers for `cid`, here or on another host.
    pub fn endpoint(&self, cid: Cid, known: &KnownVms) -> Option<&Arc<dyn Endpoint>> {
        self.registry.get(cid).or_else(|| self.remotes.get(&known.range(cid)?.first))
    }

    /// Forgets a connection that its server refused at once.
    fn forget(&mut self, call: Call) {
        if let Some(connection) = self.connections.remove(&call.number)
            && connection.state.is_closed_early()
        {
            self.count_early(call.key.server.0, call.key.client.0, false);
        }
    }

    /// A connection of `server` with `client` is closed early from here on, or no longer.
    fn count_early(&mut self, server: Cid, client: Cid, closes: bool) {
        let places = self.closed_early.entry(server).or_insert_with(|| SharedPlaces::new(MOST_CLOSED_EARLY));
        if closes {
            // There is room: it was looked for before the event was applied.
            places.take(client);
        } else {
            places.give_back(&client);
        }
        if places.used() == 0 {
            self.closed_early.remove(&server);
        }
    }

    /// May `server` close another connection with `client` early?
    fn may_close_early(&self, server: Cid, client: Cid) -> bool {
        self.closed_early.get(&server).is_none_or(|places| places.has_room(&client))
    }
}

/// What answers for a CID.
impl Router {
    /// A router without VMs, whose streams are moved by `streams`.
    pub fn new(streams: Arc<dyn Streams>) -> Arc<Router> {
        Arc::new(Router {
            vms: Arc::default(),
            tables: Mutex::default(),
            streams,
            host: HostPresence::default(),
            taps: DatagramTaps::default(),
        })
    }

    /// The workers that move the bytes.
    pub fn streams(&self) -> &Arc<dyn Streams> {
        &self.streams
    }

    /// All VMs, and who may talk to whom.
    pub fn vms(&self) -> &Arc<VmTable> {
        &self.vms
    }

    /// Which CIDs are those of other hosts, and what answers for each range, instead of what was set before;
    /// none is a VM's, and none overlap.
    pub fn set_remotes(&self, ranges: Vec<(RemoteRange, Arc<dyn Endpoint>)>) {
        let endpoints = ranges.iter().map(|(range, endpoint)| (range.first, endpoint.clone())).collect();
        let mut tables = self.tables.lock();
        let before = std::mem::replace(&mut tables.remotes, endpoints);
        self.vms.set_ranges(ranges.into_iter().map(|(range, _)| range).collect());
        drop(tables);
        drop(before); // without the lock: endpoints go with it
    }

    /// `endpoint` answers for `cid` from here on: [`crate::HOST`], or a VM.
    pub fn set_endpoint(&self, cid: Cid, endpoint: Arc<dyn Endpoint>) {
        self.tables.lock().registry.set(cid, Some(endpoint), &self.host);
    }

    /// Nothing answers for `cid` any more. Its connections stay until they are closed.
    pub fn clear_endpoint(&self, cid: Cid) {
        self.tables.lock().registry.set(cid, None, &self.host);
    }

    /// Does anything answer for `cid`?
    pub fn has_endpoint(&self, cid: Cid) -> bool {
        self.tables.lock().endpoint(cid, &self.vms.known()).is_some()
    }

    /// Does anything answer for the host? Takes no lock.
    pub fn has_host(&self) -> bool {
        self.host.get()
    }

    /// What answers for `to`, if `from` may talk to it.
    fn reach(&self, from: Cid, to: Cid) -> Option<Arc<dyn Endpoint>> {
        let known = self.vms.known();
        self.tables.lock().endpoint(to, &known).filter(|_| known.may_talk(from, to)).cloned()
    }

    /// A datagram between two sockets.
    pub fn send_datagram(
        &self,
        from: SocketAddress,
        to: SocketAddress,
        payload: &[u8],
    ) -> Result<(), DatagramError> {
        let receiver = self.reach(from.0, to.0).ok_or(DatagramError::Unreachable)?;
        let watch = self.watch_datagram();
        receiver.datagram(from, to.1, payload)?;
        if let Some(watch) = watch {
            watch.delivered(from, to, payload);
        }
        Ok(())
    }

    /// A datagram is about to be delivered past [`Router::send_datagram`]: what examines it, if there is a
    /// capture.
    pub fn watch_datagram(&self) -> Option<Watch> {
        self.taps.watch()
    }

    /// Has `tap` examine all datagrams that are delivered, until [`Router::remove_tap`]: it decides itself
    /// which concern it.
    pub fn add_tap(&self, tap: Arc<dyn StreamTap>) {
        self.taps.change(|taps| taps.push(tap));
    }

    /// Ends what [`Router::add_tap`] began: when this returns, no thread uses the tap any more. Blocks while
    /// one delivers a datagram that it examines; must not be called with a lock held that an endpoint takes.
    pub fn remove_tap(&self, tap: &Arc<dyn StreamTap>) {
        self.taps.change(|taps| taps.retain(|other| !Arc::ptr_eq(other, tap)));
    }
}

/// Connections.
impl Router {
    /// Asks for a connection. `end`: the client's, if it can bring one before it is accepted.
    pub fn open(
        &self,
        key: Key,
        end: Option<StreamEnd>,
        remote: Arc<dyn Remote>,
    ) -> Result<Call, ConnectError> {
        let prepared = self.prepare(key, end, remote, None)?;
        self.ask(prepared)
    }

    /// The same for a client on another host, which that host vouches for.
    pub fn open_for(
        &self,
        claim: &Claim,
        key: Key,
        end: StreamEnd,
        remote: Arc<dyn Remote>,
    ) -> Result<Call, ConnectError> {
        let prepared = self.prepare(key, Some(end), remote, Some(claim))?;
        self.ask(prepared)
    }

    fn ask(&self, (call, server): (Call, Arc<dyn Endpoint>)) -> Result<Call, ConnectError> {
        match server.requested(call.of(Role::Server), None) {
            Ok(()) => Ok(call),
            Err(error) => {
                self.tables.lock().forget(call);
                Err(error)
            }
        }
    }

    /// The same for a device that holds a lock: the server is asked by `calls`. The client's end is to come.
    /// `size`: the ring that it asks for.
    pub fn open_later(
        &self,
        key: Key,
        remote: Arc<dyn Remote>,
        size: u64,
    ) -> Result<(Call, Calls), ConnectError> {
        let (call, server) = self.prepare(key, None, remote, None)?;
        Ok((call, Calls(vec![Todo::Requested(server, call.of(Role::Server), Some(size))])))
    }

    fn prepare(
        &self,
        key: Key,
        end: Option<StreamEnd>,
        remote: Arc<dyn Remote>,
        claim: Option<&Claim>,
    ) -> Result<(Call, Arc<dyn Endpoint>), ConnectError> {
        let mut tables = self.tables.lock();
        let known = self.vms.known();
        let allowed = known.may_connect(key.client.0, key.server.0, claim);
        let server = tables.endpoint(key.server.0, &known).filter(|_| allowed).cloned();
        let server = server.ok_or(ConnectError::Unreachable)?;
        tables.last += 1;
        let number = tables.last;
        let (state, remotes) = (State::new(end), [Some(remote), None]);
        tables.connections.insert(number, Connection { state, server: server.clone(), remotes });
        Ok((Call { key, number, role: Role::Client }, server))
    }

    /// The server accepts, with its end. False if the client has given up meanwhile.
    pub fn accept(&self, call: Call, end: StreamEnd, remote: Arc<dyn Remote>) -> bool {
        let applied = self.apply_as(call, Event::Accept(end), Some(remote));
        self.run(applied.calls);
        applied.taken
    }

    /// An end sends, or receives, no more.
    pub fn shutdown(&self, call: Call, what: Shutdown) {
        self.run(self.apply(call, Event::Shutdown(call.role, what)).calls);
    }

    /// An end closes: a request is refused, a handshake given up, a joined end leaves after what it has
    /// written is taken. What a server has accepted and written already arrives, even if the client's
    /// handshake is not through. Blocks until no worker touches the end's memory any more.
    pub fn close(&self, call: Call) {
        self.run(self.apply(call, Event::Close(call.role)).calls);
    }

    /// The same, and the peer is notified of a reset, behind the bytes sent so far.
    pub fn reset(&self, call: Call) {
        self.run(self.apply(call, Event::Reset(call.role)).calls);
    }

    /// An end takes its request or acceptance back. If both are joined it closes.
    pub fn withdraw(&self, call: Call) {
        self.refuse(call, Failed::Refused);
    }

    /// The same, for this reason: a server's request is refused.
    pub fn refuse(&self, call: Call, why: Failed) {
        self.run(self.apply(call, Event::Withdraw(call.role, why)).calls);
    }

    /// Applies an event. For a device that holds a lock: what follows is in [`Applied::calls`].
    pub fn apply(&self, call: Call, event: Event<StreamEnd>) -> Applied {
        self.apply_as(call, event, None)
    }

    /// The same; if it is the server's answer, `remote` is notified of its end from here on.
    pub fn apply_as(&self, call: Call, event: Event<StreamEnd>, remote: Option<Arc<dyn Remote>>) -> Applied {
        let mut tables = self.tables.lock();
        let closes = matches!(event, Event::Close(Role::Server) | Event::Reset(Role::Server));
        let waits =
            |one: &Connection| matches!(one.state, State::Accepted { .. }) && !one.state.is_closed_early();
        let full = closes
            && tables.connections.get(&call.number).is_some_and(waits)
            && !tables.may_close_early(call.key.server.0, call.key.client.0);
        let event = if full { Event::Withdraw(Role::Server, Failed::Refused) } else { event };
        let answers = matches!(event, Event::Accept(_) | Event::Attach(_));
        if let (Some(connection), Some(remote)) = (tables.connections.get_mut(&call.number), remote)
            && matches!(connection.state, State::Requested { .. })
            && answers
        {
            let [_, server] = &mut connection.remotes;
            *server = Some(remote);
        }
        tables.apply(&*self.streams, call, event)
    }

    /// Makes the calls that had to wait for a lock.
    pub fn run(&self, calls: Calls) {
        for todo in calls.0 {
            match todo {
                Todo::Requested(endpoint, call, size) => {
                    if endpoint.requested(call, size).is_err() {
                        self.withdraw(call);
                    }
                }
                Todo::GivenUp(endpoint, call) => endpoint.given_up(call),
                Todo::Accepted(remote, call) => remote.accepted(call),
                Todo::Joined(remote, call, stream, side) => remote.joined(call, stream, side),
                Todo::Failed(remote, call, why) => remote.failed(call, why),
                Todo::PeerLeft(remote, call) => remote.peer_left(call),
                Todo::Shutdown(stream, side, what) => self.streams.shutdown(stream, side, what),
                Todo::Reset(stream, side) => self.streams.reset(stream, side),
                Todo::Leave(stream, side) => self.streams.leave(&[(stream, side)]),
            }
        }
    }
}

impl Calls {
    pub(crate) fn of(todo: Vec<Todo>) -> Calls {
        Calls(todo)
    }

    /// These, then `more`.
    pub fn extend(&mut self, more: Calls) {
        self.0.extend(more.0);
    }

    /// Is there nothing to do?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
