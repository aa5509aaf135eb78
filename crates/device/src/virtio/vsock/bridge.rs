//! Connections between guests here and others that are no virtio guests: VMCI guests, programs of the host;
//! and connections that a guest's `forward` map leads elsewhere.
//!
//! The daemon ends virtio-vsock for them: it answers requests, gives credit as bytes are taken, and keeps
//! within the credit that the guest gives. The bytes go from one end to the other by streams, on this
//! worker's thread.

mod inbox;
mod links;
mod name;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use vmlane_port::fair::SharedPlaces;
use vmlane_port::{Shutdown, StreamId};
use vmlane_vsock::{Call, Failed, Key, Role, Router, Vm};
use vmlane_wire::virtio_vsock::{Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, kind, op};
use vmlane_worker::{Meter, Ride, Rounds, Work, contained};

use self::inbox::CallEvent;
pub use self::inbox::{GuestEndpoint, Inboxes};
use self::links::{GuestLinks, Link};
pub use self::name::Name;
use super::clients::Clients;
use super::kept::{Kept, Transaction};
use super::lane::{Ends, Notes};
use super::port::{Outgoing, Port};
use super::receive::Inlet;
use super::repeats::Credit;
use super::stats::VsockStats;
use super::views::ConnectionView;
use super::vms::Vms;

/// All connections of this kind of a worker's guests. The worker owns it.
pub struct Bridge {
    router: Arc<Router>,
    inboxes: Arc<Inboxes>,
    guests: HashMap<u32, GuestLinks>,
    /// What moves their streams; without it, who is kicked does so at once.
    streams: Option<Ride>,
    notes: Arc<Notes>,
    /// Connections with payload in flight.
    in_flight: Vec<Name>,
    /// How many connections each guest has.
    places: SharedPlaces<u32>,
    /// How many have a guest here at both ends.
    relayed: usize,
    /// A guest had no buffers for what waits for it, or there was too much for one turn.
    unfinished: bool,
    /// The guests of a turn.
    order: Vec<u32>,
    /// Who asks for connections.
    clients: Clients,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relayed {
    Refused,
    Taken,
    /// Its payload is in flight until [`Bridge::settle`].
    InFlight,
}

/// Connections of all guests of all workers together, if there are no more than four: each may keep `CREDIT`
/// (`credit.rs`) bytes.
pub const MAX_LINKS: usize = 2048;
/// Of one worker's, even if there are many workers: all VMs of a host may be in one group, which one of them
/// serves.
pub(super) const FEWEST_LINKS: usize = 512;
/// Events and requests that one guest is notified of before the next one has its turn.
const MAX_EVENTS: usize = 64;
/// What a connect costs.
pub const CONNECT: Work = Work { bytes: 0, descriptors: 0, turns: 0, polls: 0, rebuilds: 2 };

impl Bridge {
    /// `most`: connections of its guests together.
    pub fn new(router: Arc<Router>, inboxes: Arc<Inboxes>, streams: Option<Ride>, most: usize) -> Bridge {
        Bridge {
            router,
            inboxes,
            guests: HashMap::new(),
            streams,
            notes: Arc::default(),
            in_flight: Vec::new(),
            places: SharedPlaces::new(most),
            relayed: 0,
            unfinished: false,
            order: Vec::new(),
            clients: Clients::default(),
        }
    }

    /// The VM `cid` is served from here on.
    pub fn add(&mut self, cid: u32) {
        let (inboxes, notes) = (&self.inboxes, &self.notes);
        let worker = self.streams.as_ref().map(|streams| streams.number);
        let guest = || GuestLinks::new(inboxes.guest(cid), notes.clone(), worker);
        self.guests.entry(cid).or_insert_with(guest);
    }

    /// The VM's device has this file from here on. Connections that a previous daemon noted there go on if
    /// their other ends do.
    pub fn bind(&mut self, cid: u32, kept: &Arc<Kept>, transaction: &Arc<Transaction>) {
        let noted = self.guests.get_mut(&cid).map(|guest| guest.bind(cid, kept, transaction));
        for noted in noted.unwrap_or_default() {
            let name = noted.1;
            let Some(guest) = self.guests.get_mut(&cid) else { return };
            if !self.places.has_room(&cid) {
                guest.lose(noted);
                continue;
            }
            let Some((mut link, key, role, end)) = guest.restore(noted) else { continue };
            link.call = Some(self.router.restore(key, role, end));
            self.insert(name, link);
        }
    }

    /// The VM's rings run from here on: what has waited for them goes on.
    pub fn attached(&mut self, cid: u32, inlet: &Arc<Inlet>) {
        let Some(guest) = self.guests.get_mut(&cid) else { return };
        guest.set_inlet(Some(inlet.clone()));
        guest.unfinished = true;
        self.unfinished = true;
        for (link, stream) in guest.calls().filter_map(|(_, link)| Some((link, link.stream?))) {
            link.lane.note_again();
            self.router.streams().kick(stream);
        }
    }

    /// They do so no longer: no stream touches its memory from here on.
    pub fn detached(&mut self, cid: u32) {
        self.guests.get_mut(&cid).into_iter().for_each(|guest| guest.set_inlet(None));
    }

    /// The engine of the streams, if it rides.
    pub fn rounds(&mut self) -> Option<&mut dyn Rounds> {
        Some(self.streams.as_mut()?.engine.rounds_mut())
    }

    /// The same, to be asked.
    pub fn rounds_ref(&self) -> Option<&dyn Rounds> {
        Some(self.streams.as_ref()?.engine.rounds())
    }

    /// Commands for the streams may wait.
    pub fn run_commands(&mut self) {
        self.streams.iter_mut().for_each(|streams| streams.engine.run_commands());
    }

    /// Something has happened to this stream: it has its turn.
    fn turn_now(&mut self, stream: StreamId, now: Instant) -> bool {
        match &mut self.streams {
            Some(streams) if streams.number == stream.worker => {
                streams.engine.rounds_mut().turn_now(stream.number, now)
            }
            _ => {
                self.router.streams().kick(stream);
                false
            }
        }
    }

    /// Streams with payload in flight take what they can at once; the rest is copied. Nothing is in flight
    /// any more.
    pub fn settle(&mut self, now: Instant) {
        let mut in_flight = std::mem::take(&mut self.in_flight);
        for name in &in_flight {
            let Some(link) = self.link(name) else { continue };
            let (lane, stream) = (link.lane.clone(), link.stream);
            stream.into_iter().for_each(|stream| _ = self.turn_now(stream, now));
            lane.keep_rest();
        }
        // Behind all turns: what these commit is not to claim that chains were taken that are completed
        // later.
        for name in in_flight.drain(..) {
            self.link(&name).into_iter().for_each(|link| link.lane.note_received());
        }
        self.in_flight = in_flight;
    }

    /// Streams whose bytes for a guest have waited for buffers, which are there now, have their turns. True
    /// if there are some.
    pub fn fill(&mut self, names: Vec<Name>, now: Instant) -> bool {
        let mut moved = false;
        for name in names {
            let Some(link) = self.link(&name) else { continue };
            link.lane.forget_wait();
            if let Some(stream) = link.stream {
                moved |= self.turn_now(stream, now);
            }
        }
        moved
    }

    /// The VMs whose receive rings were written to since this was last asked, one after the other.
    pub fn pop_written(&self) -> Option<u32> {
        self.notes.pop_written()
    }

    /// The VM `cid` is gone.
    pub fn forget(&mut self, cid: u32) {
        self.drop_all(cid);
        self.guests.remove(&cid);
        self.inboxes.forget(cid).into_iter().for_each(|call| self.router.close(call));
    }

    fn link(&mut self, name: &Name) -> Option<&mut Link> {
        self.guests.get_mut(&name.cid)?.get_mut(name)
    }

    /// Is this packet, whose receiver is a virtio guest, of a connection that was forwarded nevertheless?
    pub fn relays(&self, header: &Header) -> bool {
        let name = Name::of(header);
        self.relayed > 0
            && self.guests.get(&name.cid).and_then(|guest| guest.get(&name)).is_some_and(|link| link.relayed)
    }

    fn insert(&mut self, name: Name, link: Link) {
        let Some(guest) = self.guests.get_mut(&name.cid) else { return };
        self.relayed += usize::from(link.relayed);
        // There is room: `admits` has checked it.
        self.places.take(name.cid);
        guest.insert(name, link);
    }

    fn remove(&mut self, name: &Name) -> Option<Link> {
        let link = self.guests.get_mut(&name.cid)?.remove(name)?;
        self.relayed -= usize::from(link.relayed);
        self.places.give_back(&name.cid);
        Some(link)
    }

    /// May this guest have one connection more?
    fn admits(&self, name: &Name, vm: &Vm) -> bool {
        self.places.has_room(&name.cid)
            && self.guests.get(&name.cid).is_some_and(|guest| guest.admits(name, vm))
    }

    /// Takes a packet of the guest `vm`.
    pub fn take(&mut self, port: &mut Port, outgoing: &mut Outgoing, vm: &Vm, now: Instant) -> Relayed {
        let header = outgoing.header;
        let done = |good| if good { Relayed::Taken } else { Relayed::Refused };
        let name = Name::of(&header);
        let stream = header.kind.get() == kind::STREAM;
        if stream && header.op.get() == op::RST && self.take_repeat(&name, &header) {
            return Relayed::Taken;
        }
        if stream && header.op.get() == op::REQUEST {
            let admits = self.admits(&name, vm);
            port.stats.over_connections.bump(u64::from(!admits));
            let connects = admits && self.connect(name, &header, vm);
            if !connects {
                port.reply(header.reset());
            }
            return done(connects);
        }
        let link = self.guests.get_mut(&name.cid).and_then(|guest| guest.get_mut(&name));
        let Some(link) = link.filter(|_| stream) else {
            let over = header.op.get() == op::RST;
            if !over {
                port.reply(header.reset());
            }
            return done(over);
        };
        let has_waited = link.lane.receive_credit(&header);
        let wakes = link.stream.filter(|_| has_waited);
        let good = match header.op.get() {
            op::RW => {
                let sends = link.announced & SHUTDOWN_SEND == 0;
                if sends && link.lane.receive(port.payload(), outgoing.len) {
                    outgoing.done = outgoing.len;
                    if !self.in_flight.contains(&name) {
                        self.in_flight.push(name);
                    }
                    return Relayed::InFlight;
                }
                false
            }
            op::RESPONSE => self.respond(name),
            op::SHUTDOWN => self.shutdown(name, header.flags.get(), port),
            op::CREDIT_REQUEST => {
                port.reply(link.lane.packet(op::CREDIT_UPDATE));
                true
            }
            op::RST => {
                self.expect_resets(&name, Credit::of(&header), 1);
                self.drop_link(name, true);
                return Relayed::Taken;
            }
            _ => true,
        };
        if !good {
            self.drop_link(name, true);
            port.reply(header.reset());
        } else if let Some(stream) = wakes {
            self.turn_now(stream, now);
        }
        done(good)
    }

    fn connect(&mut self, name: Name, header: &Header, vm: &Vm) -> bool {
        let Some(guest) = self.guests.get(&name.cid) else { return false };
        let key = Key { client: (name.cid, name.port), server: vm.target((name.peer, name.peer_port)) };
        let Some(mut link) = guest.make(name, key.server) else { return false };
        let end = link.port.take().map(|port| guest.end(port));
        link.lane.receive_credit(header);
        link.response_due = true;
        match self.router.open(key, end, guest.remote(name)) {
            Ok(call) => {
                link.call = Some(call);
                self.insert(name, link);
                true
            }
            Err(error) => {
                tracing::debug!(?name, %error, "a connection was refused");
                false
            }
        }
    }

    /// The guest accepts what a VMCI guest asked for.
    fn respond(&mut self, name: Name) -> bool {
        let Some(guest) = self.guests.get_mut(&name.cid) else { return false };
        let Some(link) = guest.get_mut(&name) else { return false };
        if !std::mem::take(&mut link.awaits_response) {
            return false;
        }
        let (Some(call), Some(port)) = (link.call, link.port.take()) else { return false };
        self.router.accept(call, guest.end(port), guest.remote(name))
    }

    fn shutdown(&mut self, name: Name, flags: u32, port: &mut Port) -> bool {
        const BOTH: u32 = SHUTDOWN_SEND | SHUTDOWN_RECEIVE;
        let Some(link) = self.link(&name) else { return false };
        let new = flags & BOTH & !link.announced;
        link.announced |= new;
        let call = link.call;
        if link.announced == BOTH {
            // It is done with the connection; what it sent still arrives.
            let reset = name.packet(op::RST);
            self.drop_link(name, false);
            port.reply(reset);
            return true;
        }
        self.note(&name);
        for (flag, what) in [(SHUTDOWN_SEND, Shutdown::Send), (SHUTDOWN_RECEIVE, Shutdown::Receive)] {
            if let (true, Some(call)) = (new & flag != 0, call) {
                self.router.shutdown(call, what);
            }
        }
        true
    }

    /// See [`GuestLinks::take_repeat`].
    fn take_repeat(&mut self, name: &Name, reset: &Header) -> bool {
        self.guests.get_mut(&name.cid).is_some_and(|guest| guest.take_repeat(name, reset))
    }

    /// See [`GuestLinks::expect_resets`].
    fn expect_resets(&mut self, name: &Name, credit: Credit, count: usize) {
        if let Some(guest) = self.guests.get_mut(&name.cid) {
            guest.expect_resets(*name, credit, count);
        }
    }

    /// See [`GuestLinks::note`].
    fn note(&self, name: &Name) {
        self.guests.get(&name.cid).into_iter().for_each(|guest| guest.note(name));
    }

    /// Forgets a connection; the peer is notified of a reset, or that the guest is gone.
    fn drop_link(&mut self, name: Name, reset: bool) {
        let Some(call) = self.remove(&name).and_then(|link| link.call) else { return };
        if reset {
            self.router.reset(call)
        } else {
            self.router.close(call)
        }
        // Its stream has all bytes of the guest before the guest's next daemon takes the connection for over.
        self.run_commands();
    }

    /// Has the guest any connection here?
    pub fn has_connections(&self, cid: u32) -> bool {
        self.places.of(&cid) > 0
    }

    /// How many connections a guest opened here, and how many it has.
    pub fn count(&self, cid: u32) -> [usize; 2] {
        let guest = self.guests.get(&cid);
        [
            guest.map_or(0, |guest| guest.calls().filter(|(call, _)| call.role == Role::Client).count()),
            self.places.of(&cid),
        ]
    }

    /// All connections, each once: one between two guests here is the client's.
    pub fn views(&self) -> impl Iterator<Item = ConnectionView> {
        let calls = self.guests.values().flat_map(GuestLinks::calls);
        let once = calls.filter(|(call, link)| call.role == Role::Client || !link.relayed);
        once.map(|(call, link)| ConnectionView {
            client: call.key.client,
            server: call.key.server,
            established: link.stream.is_some(),
        })
    }

    /// Sends `port`, the rings of the guest `cid`, an RST for each connection.
    pub fn reset_guest(&self, cid: u32, port: &mut Port) {
        let names = self.guests.get(&cid).map(GuestLinks::names).unwrap_or_default();
        names.iter().for_each(|name| port.reply(name.packet(op::RST)));
    }

    /// All connections of a guest are over for it.
    pub fn drop_all(&mut self, cid: u32) {
        let names = self.guests.get(&cid).map(GuestLinks::names).unwrap_or_default();
        names.into_iter().for_each(|name| self.drop_link(name, true));
        self.guests.get_mut(&cid).into_iter().for_each(GuestLinks::expect_nothing);
    }

    /// Is there something to do, for which nothing wakes the worker?
    pub fn is_blocked(&self) -> bool {
        self.unfinished
    }

    pub fn has_events(&self) -> bool {
        self.inboxes.has_changed()
    }

    /// Takes what the router has announced, and reports to guests what their streams have led to. True if
    /// something moved. A panic of ours in a guest's turn ends that guest's rings and no other's. `early`:
    /// VMs whose rings do not run may have them soon, as they had with a previous daemon.
    pub fn turn(&mut self, vms: &mut Vms, meter: &mut Meter<u32>, stats: &VsockStats, early: bool) -> bool {
        let mut moved = self.report_all(vms, stats);
        let unfinished = std::mem::take(&mut self.unfinished);
        if !self.inboxes.take_change() && !unfinished {
            return moved;
        }
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(self.guests.keys());
        for &cid in &order {
            let Some(guest) = self.guests.get_mut(&cid) else { continue };
            if guest.inbox.take_change() | std::mem::take(&mut guest.unfinished) {
                moved |= guarded(cid, vms, stats, |vms| self.take_events(cid, vms, meter, early));
            }
            self.unfinished |= self.guests.get(&cid).is_some_and(|guest| guest.unfinished);
        }
        self.order = order;
        moved
    }

    /// Reports to guests what their streams have led to. One that has no room for it gets it later.
    fn report_all(&mut self, vms: &mut Vms, stats: &VsockStats) -> bool {
        let mut moved = false;
        for _ in 0..self.notes.lanes() {
            let Some(name) = self.notes.pop() else { break };
            let Some(stream) = self.link(&name).map(|link| link.stream) else { continue };
            // It is noted again when its ends are joined, and when its guest has rings.
            if stream.is_none() || vms.get(name.cid).is_none_or(|vm| vm.port.is_none()) {
                continue;
            }
            let reported = guarded(name.cid, vms, stats, |vms| {
                let port = vms.port(name.cid).filter(|port| port.takes_replies());
                port.map(|port| self.report(name, port)).is_some()
            });
            if !reported {
                self.notes.push(name);
                self.unfinished = true;
            }
            moved |= reported;
        }
        moved
    }

    /// Takes what the router reports, as far as the guest has room for what follows from it. True if there
    /// was anything. A client that has had its share of the round waits for the next.
    fn take_events(&mut self, cid: u32, vms: &mut Vms, meter: &mut Meter<u32>, early: bool) -> bool {
        if let (Some(guest), Some(port)) = (self.guests.get_mut(&cid), vms.port(cid)) {
            guest.end_lost(port);
        }
        for number in 0..MAX_EVENTS {
            let Some(guest) = self.guests.get_mut(&cid) else { return false };
            let port = vms.port(cid);
            if port.as_ref().is_some_and(|port| !port.takes_replies()) {
                guest.unfinished |= guest.inbox.has_queued();
                return number > 0;
            }
            let event = guest.inbox.pop_event(|event| match event {
                // Its rings are being changed. One that has left for good has no link.
                CallEvent::Joined(name, ..) | CallEvent::Failed(name, _) => {
                    port.is_some() || guest.get(name).is_none()
                }
                CallEvent::GivenUp(_) => true,
            });
            if let Some(event) = event {
                self.on_event(event, cid, vms);
                continue;
            }
            let (clients, waits) = (&mut self.clients, early && vms.port(cid).is_none());
            let may = |call: &Call| !waits && clients.admit(call.key.client.0, meter);
            let Some(call) = guest.inbox.pop_request(may) else {
                guest.unfinished |= guest.inbox.has_requests();
                return number > 0;
            };
            clients.charge(call.key.client.0, meter, CONNECT);
            self.requested(vms, cid, call);
        }
        self.guests.get_mut(&cid).into_iter().for_each(|guest| guest.unfinished |= guest.inbox.has_queued());
        true
    }

    fn on_event(&mut self, event: CallEvent, cid: u32, vms: &mut Vms) {
        match event {
            CallEvent::GivenUp(call) => {
                let Some(name) = self.router.vms().get(cid).map(|vm| Name::asked(&vm, call)) else { return };
                self.ends_unjoined(name, call, vms);
            }
            CallEvent::Joined(name, call, stream) => {
                // Another connection may have the name by now.
                let Some(link) = self.link(&name).filter(|link| link.call == Some(call)) else { return };
                (link.stream, link.joined) = (Some(stream), true);
                if std::mem::take(&mut link.response_due)
                    && let Some(port) = vms.port(cid)
                {
                    port.reply(link.lane.packet(op::RESPONSE));
                }
                link.lane.open();
                link.lane.note_again();
                self.note(&name);
                self.router.streams().kick(stream);
            }
            CallEvent::Failed(name, call) => self.ends_unjoined(name, call, vms),
        }
    }

    /// Nothing comes of a connection: the guest is notified, unless another one has the name by now.
    fn ends_unjoined(&mut self, name: Name, call: Call, vms: &mut Vms) {
        if self.link(&name).is_some_and(|link| link.call == Some(call)) {
            self.remove(&name);
            vms.port(name.cid).into_iter().for_each(|port| port.reply(name.packet(op::RST)));
        }
    }

    /// A connect to the guest `cid`: the guest gets a request.
    fn requested(&mut self, vms: &mut Vms, cid: u32, call: Call) {
        let relayed = vms.contains(call.key.client.0);
        let name = self.router.vms().get(cid).map(|vm| (Name::asked(&vm, call), vm));
        let name = name.filter(|(name, vm)| self.admits(name, vm)).map(|(name, _)| name);
        let link = name.and_then(|name| self.guests.get(&cid)?.make(name, call.key.client));
        let Some(port) = vms.port(cid) else {
            // Its driver is not loaded, or has not set the device up yet.
            return self.router.refuse(call, Failed::Absent);
        };
        let (Some(name), Some(mut link)) = (name, link) else { return self.router.close(call) };
        (link.call, link.awaits_response, link.relayed) = (Some(call), true, relayed);
        port.reply(link.lane.packet(op::REQUEST));
        self.insert(name, link);
    }

    /// What a guest's stream has led to: credit, a question for credit, how its peer's stream ends.
    fn report(&mut self, name: Name, port: &mut Port) {
        let Some(link) = self.link(&name) else { return };
        link.lane.forget_note();
        let [update, request] = link.lane.take_due();
        for (due, op) in [(request, op::CREDIT_REQUEST), (update, op::CREDIT_UPDATE)] {
            if due {
                port.reply(link.lane.packet(op));
            }
        }
        self.report_ends(name, port);
    }

    fn report_ends(&mut self, name: Name, port: &mut Port) {
        const BOTH: u32 = SHUTDOWN_SEND | SHUTDOWN_RECEIVE;
        let Some(link) = self.link(&name) else { return };
        let Ends { shut, detached, reset } = link.lane.ends();
        let credit = link.lane.all_taken();
        if reset {
            self.expect_resets(&name, credit, 1);
            self.drop_link(name, false);
            return port.reply(name.packet(op::RST));
        }
        let flags = if detached { BOTH } else { shut };
        if flags & !link.notified == 0 {
            return;
        }
        link.notified |= flags;
        let shutdown = Header { flags: link.notified.into(), ..link.lane.packet(op::SHUTDOWN) };
        port.reply(shutdown);
        self.note(&name);
        if detached {
            self.expect_resets(&name, credit, 2);
            self.drop_link(name, false);
        }
    }
}

/// A panic of ours in the turn of a guest ends that guest's rings. True then, and if `action` returns true.
fn guarded(cid: u32, vms: &mut Vms, stats: &VsockStats, action: impl FnOnce(&mut Vms) -> bool) -> bool {
    contained(|| action(vms)).unwrap_or_else(|| {
        vms.get_mut(cid).into_iter().for_each(|vm| vm.fault(stats));
        true
    })
}
