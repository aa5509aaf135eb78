//! Connections between guests here and others that are no virtio guests: VMCI guests, programs of the host;
//! and connections that a guest's `forward` map leads elsewhere.
//!
//! The daemon ends virtio-vsock for them: it answers requests, gives credit as bytes are taken, and
//! keeps within the credit that the guest gives.

mod links;
mod mailbox;
mod name;
mod ready;

use std::collections::HashMap;
use std::sync::Arc;

use vmlane_mem::copy_spans;
use vmlane_port::fair::SharedPlaces;
use vmlane_port::{PortFault, Shutdown};
use vmlane_vsock::{Call, Failed, Key, Role, Router, Vm};
use vmlane_wire::virtio_vsock::{Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, kind, op};
use vmlane_worker::{Meter, Work, contained};

use self::links::{GuestLinks, Link};
use self::mailbox::News;
pub use self::mailbox::{GuestEndpoint, Mailbox};
use self::name::Name;
use super::clients::Clients;
use super::link::{CREDIT, DETACHED, FINISHED, REFUSED, RESET, RING};
use super::port::{Outgoing, Port};
use super::repeats::Credit;
use super::stats::VsockStats;
use super::views::ConnectionView;
use super::vms::Vms;

/// All connections of this kind of a worker's guests. The worker owns it.
pub struct Bridge {
    router: Arc<Router>,
    mailbox: Arc<Mailbox>,
    guests: HashMap<u32, GuestLinks>,
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

/// What a look at a link led to.
enum Pumped {
    Nothing,
    /// The guest was told something.
    Said,
    /// It was given so many bytes.
    Bytes(usize),
}

/// Connections of all guests of all workers together: each has a mapping, and a process may have so many only.
pub const MAX_LINKS: usize = 2048;
/// News and requests that one guest is told of before the next one has its turn.
const MOST_HEARD: usize = 64;
/// What a connect costs: memory for its rings is made and mapped.
pub const CONNECT: Work = Work { bytes: 0, descriptors: 0, turns: 0, looks: 0, rebuilds: 2 };
/// Bytes that one guest is given before the next one has its turn.
const TURN: usize = 256 << 10;

impl Bridge {
    /// `most`: connections of its guests together.
    pub fn new(router: Arc<Router>, mailbox: Arc<Mailbox>, most: usize) -> Bridge {
        Bridge {
            router,
            mailbox,
            guests: HashMap::new(),
            places: SharedPlaces::new(most),
            relayed: 0,
            unfinished: false,
            order: Vec::new(),
            clients: Clients::default(),
        }
    }

    /// The VM `cid` is served from here on.
    pub fn add(&mut self, cid: u32) {
        let mailbox = &self.mailbox;
        self.guests.entry(cid).or_insert_with(|| GuestLinks::new(mailbox.guest(cid)));
    }

    /// The VM's rings run from here on: what has waited for them is looked at.
    pub fn attached(&mut self, cid: u32) {
        if let Some(guest) = self.guests.get_mut(&cid) {
            guest.unfinished = true;
            self.unfinished = true;
        }
    }

    /// The VM `cid` is gone.
    pub fn forget(&mut self, cid: u32) {
        self.drop_all(cid);
        self.guests.remove(&cid);
        self.mailbox.forget(cid).into_iter().for_each(|call| self.router.close(call));
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
        // There is room: `admits` said so.
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

    /// Takes a packet of the guest `vm`. False: it was refused.
    pub fn take(&mut self, port: &mut Port, outgoing: &mut Outgoing, vm: &Vm) -> bool {
        let header = outgoing.header;
        let name = Name::of(&header);
        let stream = header.kind.get() == kind::STREAM;
        if stream && header.op.get() == op::RST && self.is_repeat(&name, &header) {
            return true;
        }
        if stream && header.op.get() == op::REQUEST {
            let admits = self.admits(&name, vm);
            port.stats.over_connections.bump(u64::from(!admits));
            let connects = admits && self.connect(name, &header, vm);
            if !connects {
                port.reply(header.reset());
            }
            return connects;
        }
        let link = self.guests.get_mut(&name.cid).and_then(|guest| guest.get_mut(&name));
        let Some(link) = link.filter(|_| stream) else {
            let over = header.op.get() == op::RST;
            if !over {
                port.reply(header.reset());
            }
            return over;
        };
        link.flow.hears(&header);
        let good = match header.op.get() {
            op::RW => Bridge::bytes(link, port, outgoing, &self.router),
            op::RESPONSE => self.respond(name),
            op::SHUTDOWN => self.shutdown(name, header.flags.get(), port),
            op::CREDIT_REQUEST => {
                let update = link.packet(&name, op::CREDIT_UPDATE);
                port.reply(update);
                true
            }
            op::RST => {
                self.expect_resets(&name, Credit::of(&header), 1);
                self.drop_link(name, true);
                return true;
            }
            _ => true,
        };
        if good {
            self.pump(name, port);
        } else {
            self.drop_link(name, true);
            port.reply(header.reset());
        }
        good
    }

    fn connect(&mut self, name: Name, header: &Header, vm: &Vm) -> bool {
        let Some(guest) = self.guests.get(&name.cid) else { return false };
        let Ok(mut link) = guest.make() else { return false };
        let end = link.port.take().map(|port| guest.end(port, name));
        let key = Key { client: (name.cid, name.port), server: vm.target((name.peer, name.peer_port)) };
        link.flow.hears(header);
        link.owes_response = true;
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
        if !std::mem::take(&mut link.owed_response) {
            return false;
        }
        let (Some(call), Some(port)) = (link.call, link.port.take()) else { return false };
        self.router.accept(call, guest.end(port, name), guest.remote(name))
    }

    /// The guest's bytes. False: more than it had credit for.
    fn bytes(link: &mut Link, port: &Port, outgoing: &mut Outgoing, router: &Router) -> bool {
        let Ok((at, room)) = link.rings.room() else { return false };
        let len = outgoing.len;
        if len > room || link.said & SHUTDOWN_SEND != 0 {
            return false;
        }
        let first = len.min(RING - at);
        copy_spans(&link.rings.into, at, port.payload(), 0, first);
        copy_spans(&link.rings.into, 0, port.payload(), first, len - first);
        outgoing.done = len;
        if link.rings.sent(len)
            && let Some(stream) = link.stream
        {
            router.streams().kick(stream);
        }
        true
    }

    fn shutdown(&mut self, name: Name, flags: u32, port: &mut Port) -> bool {
        const BOTH: u32 = SHUTDOWN_SEND | SHUTDOWN_RECEIVE;
        let Some(link) = self.link(&name) else { return false };
        let new = flags & BOTH & !link.said;
        link.said |= new;
        let call = link.call;
        if link.said == BOTH {
            // It is done with the connection; what it sent still arrives.
            let reset = name.packet(op::RST);
            self.drop_link(name, false);
            port.reply(reset);
            return true;
        }
        for (flag, what) in [(SHUTDOWN_SEND, Shutdown::Send), (SHUTDOWN_RECEIVE, Shutdown::Receive)] {
            if let (true, Some(call)) = (new & flag != 0, call) {
                self.router.shutdown(call, what);
            }
        }
        true
    }

    /// See [`GuestLinks::is_repeat`].
    fn is_repeat(&mut self, name: &Name, reset: &Header) -> bool {
        self.guests.get_mut(&name.cid).is_some_and(|guest| guest.is_repeat(name, reset))
    }

    /// See [`GuestLinks::expect_resets`].
    fn expect_resets(&mut self, name: &Name, credit: Credit, count: usize) {
        if let Some(guest) = self.guests.get_mut(&name.cid) {
            guest.expect_resets(*name, credit, count);
        }
    }

    /// Forgets a connection; the peer hears of a reset, or that the guest is gone.
    fn drop_link(&mut self, name: Name, reset: bool) {
        let Some(call) = self.remove(&name).and_then(|link| link.call) else { return };
        if reset { self.router.reset(call) } else { self.router.close(call) }
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

    pub fn has_news(&self) -> bool {
        self.mailbox.has_changed()
    }

    /// Looks at the guests to which something happened, and of those at the links to which something happened. True if
    /// something moved.
    /// A panic of ours in a guest's turn ends that guest's rings and no other's.
    pub fn turn(&mut self, vms: &mut Vms, meter: &mut Meter<u32>, stats: &VsockStats) -> bool {
        let unfinished = std::mem::take(&mut self.unfinished);
        if !self.mailbox.take_change() && !unfinished {
            return false;
        }
        let mut moved = false;
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(self.guests.keys());
        for &cid in &order {
            let Some(guest) = self.guests.get_mut(&cid) else { continue };
            if guest.mailbox.take_change() | std::mem::take(&mut guest.unfinished) {
                moved |= contained(|| self.guest_turn(cid, vms, meter)).unwrap_or_else(|| {
                    vms.get_mut(cid).into_iter().for_each(|vm| vm.fault(stats));
                    true
                });
            }
            self.unfinished |= self.guests.get(&cid).is_some_and(|guest| guest.unfinished);
        }
        self.order = order;
        moved
    }

    fn guest_turn(&mut self, cid: u32, vms: &mut Vms, meter: &mut Meter<u32>) -> bool {
        let mut moved = self.hear(cid, vms, meter);
        // Its rings are being changed, or it has none: it is looked at when it has some.
        let Some(port) = vms.port(cid) else { return moved };
        let mut left = TURN;
        loop {
            let Some(guest) = self.guests.get_mut(&cid).filter(|guest| !guest.unfinished) else {
                return moved;
            };
            let Some((slot, name)) = guest.take_ready() else { return moved };
            let Some(name) = name else { continue };
            if left == 0 {
                guest.put_back(slot);
                guest.unfinished = true;
                return true;
            }
            match self.pump(name, port) {
                Pumped::Nothing => {}
                Pumped::Said => moved = true,
                Pumped::Bytes(bytes) => (moved, left) = (true, left.saturating_sub(bytes)),
            }
        }
    }

    /// Hears what the router said, as far as the guest has room for what it will be told. True if there was anything.
    /// A client that has had its share of the round waits for the next.
    fn hear(&mut self, cid: u32, vms: &mut Vms, meter: &mut Meter<u32>) -> bool {
        for number in 0..MOST_HEARD {
            let Some(guest) = self.guests.get_mut(&cid) else { return false };
            let port = vms.port(cid);
            if port.as_ref().is_some_and(|port| !port.takes_replies()) {
                guest.unfinished |= guest.mailbox.holds_mail();
                return number > 0;
            }
            let news = guest.mailbox.pop_news(|news| match news {
                // Its rings are being changed. One that has left for good has no link.
                News::Joined(name, ..) | News::Failed(name, _) => port.is_some() || guest.get(name).is_none(),
                News::GivenUp(_) => true,
            });
            if let Some(news) = news {
                self.told(news, cid, vms);
                continue;
            }
            let clients = &mut self.clients;
            let may = |call: &Call| clients.may_ask(call.key.client.0, meter);
            let Some(call) = guest.mailbox.pop_request(may) else {
                guest.unfinished |= guest.mailbox.holds_requests();
                return number > 0;
            };
            clients.charge(call.key.client.0, meter, CONNECT);
            self.requested(vms, cid, call);
        }
        self.guests
            .get_mut(&cid)
            .into_iter()
            .for_each(|guest| guest.unfinished |= guest.mailbox.holds_mail());
        true
    }

    fn told(&mut self, news: News, cid: u32, vms: &mut Vms) {
        match news {
            News::GivenUp(call) => {
                let Some(name) = self.router.vms().get(cid).map(|vm| Name::asked(&vm, call)) else { return };
                self.ends_unjoined(name, call, vms);
            }
            News::Joined(name, call, stream) => {
                // Another connection may have the name by now.
                let Some(link) = self.link(&name).filter(|link| link.call == Some(call)) else { return };
                link.stream = Some(stream);
                if std::mem::take(&mut link.owes_response)
                    && let Some(port) = vms.port(cid)
                {
                    port.reply(link.packet(&name, op::RESPONSE));
                }
                if let Some(guest) = self.guests.get_mut(&cid) {
                    guest.mark(&name);
                }
                self.router.streams().kick(stream);
            }
            News::Failed(name, call) => self.ends_unjoined(name, call, vms),
        }
    }

    /// Nothing comes of a connection: the guest is told, unless another one has the name by now.
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
        let link = self.guests.get(&cid).filter(|_| name.is_some()).and_then(|guest| guest.make().ok());
        let Some(port) = vms.port(cid) else {
            // Its driver is not loaded, or has not set the device up yet.
            return self.router.refuse(call, Failed::Absent);
        };
        let (Some(name), Some(mut link)) = (name, link) else { return self.router.close(call) };
        (link.call, link.owed_response, link.relayed) = (Some(call), true, relayed);
        port.reply(link.packet(&name, op::REQUEST));
        self.insert(name, link);
    }

    /// Gives a guest what waits for it, as far as its credit and its buffers go.
    fn pump(&mut self, name: Name, port: &mut Port) -> Pumped {
        self.pump_rings(name, port).unwrap_or_else(|fault| {
            tracing::error!(?name, %fault, "the rings of a connection are broken; it is reset");
            self.drop_link(name, true);
            port.reply(name.packet(op::RST));
            Pumped::Said
        })
    }

    fn pump_rings(&mut self, name: Name, port: &mut Port) -> Result<Pumped, PortFault> {
        let Some(guest) = self.guests.get_mut(&name.cid) else { return Ok(Pumped::Nothing) };
        let Some(link) = guest.get_mut(&name) else { return Ok(Pumped::Nothing) };
        let Some(stream) = link.stream else { return Ok(Pumped::Nothing) };
        if !port.takes_replies() {
            // It is looked at again when some of them are with the guest.
            self.wait(&name);
            return Ok(Pumped::Nothing);
        }
        let mut moved = 0;
        let (mut kick, mut asks, mut waits) = (false, false, false);
        // What is to be said comes before what is to be given.
        while link.told & SHUTDOWN_SEND == 0 && !port.holds_replies() {
            let (at, waiting) = link.rings.waiting()?;
            let len = waiting.min(link.flow.left() as usize).min(RING - at);
            if len == 0 {
                break;
            }
            let header = link.packet(&name, op::RW);
            let Ok(sent) = port.send(header, &link.rings.from, at, len) else {
                waits = true;
                break;
            };
            asks |= link.flow.sends(sent as u32);
            kick |= link.rings.delivered(sent);
            moved += sent;
        }
        port.owe(moved);
        if asks {
            let question = link.packet(&name, op::CREDIT_REQUEST);
            port.reply(question);
        }
        if kick {
            self.router.streams().kick(stream);
        }
        // Replies of other connections go first, and there is no wake-up once they are gone.
        waits |= port.holds_replies() && link.rings.waiting()?.1 > 0;
        let mut says = false;
        let taken = link.rings.taken()? as u32;
        if taken.wrapping_sub(link.told_taken) as usize >= CREDIT / 2 {
            let update = link.packet(&name, op::CREDIT_UPDATE);
            port.reply(update);
            says = true;
        }
        if waits {
            self.wait(&name);
        }
        says |= self.tell_ends(name, port)?;
        Ok(match (moved, says) {
            (0, false) => Pumped::Nothing,
            (0, true) => Pumped::Said,
            (bytes, _) => Pumped::Bytes(bytes),
        })
    }

    /// The guest has no room for what waits in this link: it is the first to be looked at, in the next turn.
    fn wait(&mut self, name: &Name) {
        if let Some(guest) = self.guests.get_mut(&name.cid) {
            guest.mark_first(name);
            guest.unfinished = true;
        }
        self.unfinished = true;
    }

    fn tell_ends(&mut self, name: Name, port: &mut Port) -> Result<bool, PortFault> {
        let Some(link) = self.link(&name) else { return Ok(false) };
        let ends = link.rings.ends();
        if ends == 0 {
            return Ok(false);
        }
        let empty = link.rings.waiting()?.1 == 0;
        let mut flags = 0;
        if ends & REFUSED != 0 {
            flags |= SHUTDOWN_RECEIVE;
        }
        if ends & FINISHED != 0 && empty {
            flags |= SHUTDOWN_SEND;
        }
        if ends & DETACHED != 0 && empty {
            flags |= SHUTDOWN_SEND | SHUTDOWN_RECEIVE;
        }
        let credit = link.flow.all_taken();
        if ends & RESET != 0 && empty {
            self.expect_resets(&name, credit, 1);
            self.drop_link(name, false);
            port.reply(name.packet(op::RST));
            return Ok(true);
        }
        if flags & !link.told == 0 {
            return Ok(false);
        }
        link.told |= flags;
        let told = link.told;
        let shutdown = Header { flags: told.into(), ..link.packet(&name, op::SHUTDOWN) };
        port.reply(shutdown);
        if ends & DETACHED != 0 && empty {
            self.expect_resets(&name, credit, 2);
            self.drop_link(name, false);
        }
        Ok(true)
    }
}
