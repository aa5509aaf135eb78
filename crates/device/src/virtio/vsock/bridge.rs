//! Connections between guests here and others that are no virtio guests: VMCI guests, programs of the host;
//! and connections that a guest's `forward` map leads elsewhere.
//!
//! The daemon ends virtio-vsock for them: it answers requests, gives credit as bytes are taken, and
//! keeps within the credit that the guest gives.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vmlane_mem::{Spans, copy_spans};
use vmlane_port::{Budget, Shutdown, Side, StreamEnd, StreamId};
use vmlane_vsock::{Call, ConnectError, Endpoint, Failed, Key, Remote, Router, Vm};
use vmlane_wire::virtio_vsock::{Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, kind, op};

use super::credit::Flow;
use super::link::{DETACHED, FINISHED, REFUSED, RESET, RING, Shared, Waker};
use super::port::{Outgoing, Port};
use super::vms::{Vms, port_of};

/// A connection: the guest's address here, the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub cid: u32,
    pub port: u32,
    pub peer: u32,
    pub peer_port: u32,
}

impl Name {
    fn of(header: &Header) -> Name {
        Name {
            cid: header.src_cid.get() as u32,
            port: header.src_port.get(),
            peer: header.dst_cid.get() as u32,
            peer_port: header.dst_port.get(),
        }
    }

    /// The connection that is requested of the guest `vm`.
    fn asked(vm: &Vm, call: Call) -> Name {
        let Key { client, server } = call.key;
        Name { cid: vm.cid, port: server.1, peer: vm.as_seen(client.0), peer_port: client.1 }
    }

    /// A packet to the guest.
    fn packet(&self, op: u16) -> Header {
        Header::new((self.peer, self.peer_port), (self.cid, self.port), kind::STREAM, op)
    }
}

/// What the router said, until the worker hears it.
pub enum News {
    Requested(u32, Call),
    GivenUp(u32, Call),
    Joined(Name, Call, StreamId),
    Failed(Name, Call),
}

impl News {
    /// The CID of the guest that will be told.
    fn guest(&self) -> u32 {
        match self {
            News::Requested(cid, _) | News::GivenUp(cid, _) => *cid,
            News::Joined(name, ..) | News::Failed(name, _) => name.cid,
        }
    }
}

/// Where news wait.
pub struct Mailbox {
    news: Mutex<Vec<News>>,
    /// Something happened to some connection since it was last looked at.
    rung: AtomicBool,
    /// Wakes the worker, should it sleep.
    bell: Arc<dyn Waker>,
}

impl Waker for Mailbox {
    fn wake(&self) {
        self.rung.store(true, Ordering::SeqCst);
        self.bell.wake();
    }
}

impl Mailbox {
    pub fn new(bell: Arc<dyn Waker>) -> Arc<Mailbox> {
        Arc::new(Mailbox { news: Mutex::default(), rung: AtomicBool::new(false), bell })
    }

    fn put(&self, news: News) {
        self.news.lock().push(news);
        self.wake();
    }
}

/// What answers for a VM with virtio-vsock.
pub struct GuestEndpoint {
    pub cid: u32,
    pub mailbox: Arc<Mailbox>,
}

impl Endpoint for GuestEndpoint {
    fn requested(&self, call: Call, _: Option<u64>) -> Result<(), ConnectError> {
        self.mailbox.put(News::Requested(self.cid, call));
        Ok(())
    }

    fn given_up(&self, call: Call) {
        self.mailbox.put(News::GivenUp(self.cid, call));
    }
}

struct Told {
    name: Name,
    mailbox: Arc<Mailbox>,
}

impl Remote for Told {
    fn joined(&self, call: Call, stream: StreamId, _: Side) {
        self.mailbox.put(News::Joined(self.name, call, stream));
    }

    fn failed(&self, call: Call, _: Failed) {
        self.mailbox.put(News::Failed(self.name, call));
    }
}

struct Link {
    shared: Arc<Shared>,
    call: Option<Call>,
    lane: Option<StreamId>,
    /// The guest asked; it is answered when the ends are joined.
    owes_response: bool,
    /// The guest was asked and has not answered.
    owed_response: bool,
    into: Spans,
    from: Spans,
    /// What the guest is given.
    flow: Flow,
    /// Bytes of its own that it knows to be taken.
    told_taken: u32,
    /// What it was told of the peer's end, and what it said of its own: flags of SHUTDOWN.
    told: u32,
    said: u32,
    /// The peer is a guest here, too.
    relayed: bool,
}

impl Link {
    fn new(shared: Arc<Shared>) -> Link {
        let [into, from] = shared.spans();
        Link {
            shared,
            call: None,
            lane: None,
            owes_response: false,
            owed_response: false,
            into,
            from,
            flow: Flow::default(),
            told_taken: 0,
            told: 0,
            said: 0,
            relayed: false,
        }
    }

    /// A packet to the guest, with our side of the credit.
    fn packet(&mut self, name: &Name, op: u16) -> Header {
        self.told_taken = self.shared.taken() as u32;
        Header { buf_alloc: (RING as u32).into(), fwd_cnt: self.told_taken.into(), ..name.packet(op) }
    }
}

/// All connections of this kind. The worker owns it.
pub struct Bridge {
    router: Arc<Router>,
    mailbox: Arc<Mailbox>,
    links: HashMap<Name, Link>,
    /// Connections by guest, and how many have a guest here at both ends.
    counts: HashMap<u32, usize>,
    relayed: usize,
    budget: Arc<Budget>,
    /// A guest had no buffers for what waits for it.
    blocked: bool,
}

/// Connections of all guests together: each has a mapping, and a process may have so many only.
const MAX_LINKS: usize = 1024;
/// How many bytes a guest may leave behind in streams that it left.
const BUDGET: usize = 16 << 20;

impl Bridge {
    pub fn new(router: Arc<Router>, mailbox: Arc<Mailbox>) -> Bridge {
        Bridge {
            router,
            mailbox,
            links: HashMap::new(),
            counts: HashMap::new(),
            relayed: 0,
            budget: Arc::new(Budget::new(BUDGET)),
            blocked: false,
        }
    }

    /// Is this packet, whose receiver is a virtio guest, of a connection that was forwarded nevertheless?
    pub fn relays(&self, header: &Header) -> bool {
        self.relayed > 0 && self.links.get(&Name::of(header)).is_some_and(|link| link.relayed)
    }

    fn insert(&mut self, name: Name, link: Link) {
        *self.counts.entry(name.cid).or_default() += 1;
        self.relayed += usize::from(link.relayed);
        self.links.insert(name, link);
    }

    fn remove(&mut self, name: &Name) -> Option<Link> {
        let link = self.links.remove(name)?;
        self.relayed -= usize::from(link.relayed);
        if let Some(count) = self.counts.get_mut(&name.cid) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&name.cid);
            }
        }
        Some(link)
    }

    /// May this guest have one connection more?
    fn admits(&self, name: &Name, vm: &Vm) -> bool {
        let own = self.counts.get(&name.cid).copied().unwrap_or(0);
        own < vm.connections && self.links.len() < MAX_LINKS && !self.links.contains_key(name)
    }

    fn end(&self, shared: &Arc<Shared>) -> StreamEnd {
        StreamEnd { port: shared.port(), budget: self.budget.clone(), slow: false }
    }

    fn told(&self, name: Name) -> Arc<Told> {
        Arc::new(Told { name, mailbox: self.mailbox.clone() })
    }

    /// Takes a packet of the guest `vm`. False: it was refused.
    pub fn take(&mut self, port: &mut Port, outgoing: &mut Outgoing, vm: &Vm) -> bool {
        let header = outgoing.header;
        let name = Name::of(&header);
        let stream = header.kind.get() == kind::STREAM;
        if stream && header.op.get() == op::REQUEST {
            let connects = self.connect(name, &header, vm);
            if !connects {
                port.reply(header.reset());
            }
            return connects;
        }
        let Some(link) = self.links.get_mut(&name).filter(|_| stream) else {
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
        if !self.admits(&name, vm) {
            return false;
        }
        let Ok(shared) = Shared::new(self.mailbox.clone()) else { return false };
        let end = self.end(&shared);
        let key = Key { client: (name.cid, name.port), server: vm.target((name.peer, name.peer_port)) };
        let mut link = Link::new(shared);
        link.flow.hears(header);
        link.owes_response = true;
        match self.router.open(key, Some(end), self.told(name)) {
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
        let Some(link) = self.links.get_mut(&name) else { return false };
        if !std::mem::take(&mut link.owed_response) {
            return false;
        }
        let (Some(call), shared) = (link.call, link.shared.clone()) else { return false };
        self.router.accept(call, self.end(&shared), self.told(name))
    }

    /// The guest's bytes. False: more than it had credit for.
    fn bytes(link: &mut Link, port: &Port, outgoing: &mut Outgoing, router: &Router) -> bool {
        let (at, room) = link.shared.room();
        let len = outgoing.len;
        if len > room || link.said & SHUTDOWN_SEND != 0 {
            return false;
        }
        let first = len.min(RING - at);
        copy_spans(&link.into, at, port.payload(), 0, first);
        copy_spans(&link.into, 0, port.payload(), first, len - first);
        outgoing.done = len;
        if link.shared.sent(len)
            && let Some(lane) = link.lane
        {
            router.streams().kick(lane);
        }
        true
    }

    fn shutdown(&mut self, name: Name, flags: u32, port: &mut Port) -> bool {
        const BOTH: u32 = SHUTDOWN_SEND | SHUTDOWN_RECEIVE;
        let Some(link) = self.links.get_mut(&name) else { return false };
        let new = flags & BOTH & !link.said;
        link.said |= new;
        if link.said == BOTH {
            // It is done with the connection; what it sent still arrives.
            let reset = name.packet(op::RST);
            self.drop_link(name, false);
            port.reply(reset);
            return true;
        }
        for (flag, what) in [(SHUTDOWN_SEND, Shutdown::Send), (SHUTDOWN_RECEIVE, Shutdown::Receive)] {
            if let (true, Some(call)) = (new & flag != 0, link.call) {
                self.router.shutdown(call, what);
            }
        }
        true
    }

    /// Forgets a connection; the peer hears of a reset, or that the guest is gone.
    fn drop_link(&mut self, name: Name, reset: bool) {
        let Some(call) = self.remove(&name).and_then(|link| link.call) else { return };
        if reset { self.router.reset(call) } else { self.router.close(call) }
    }

    /// All connections of a guest are over for it.
    pub fn drop_all(&mut self, cid: u32) {
        let names: Vec<Name> = self.links.keys().filter(|name| name.cid == cid).copied().collect();
        names.into_iter().for_each(|name| self.drop_link(name, true));
    }

    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub fn has_news(&self) -> bool {
        self.mailbox.rung.load(Ordering::SeqCst)
    }

    /// Looks at all connections, if there is a reason to. True if something moved.
    pub fn turn(&mut self, vms: &mut Vms) -> bool {
        let rung = self.has_news() && self.mailbox.rung.swap(false, Ordering::SeqCst);
        if !rung && !std::mem::take(&mut self.blocked) {
            return false;
        }
        self.hear(vms);
        let names: Vec<Name> = self.links.keys().copied().collect();
        let mut moved = false;
        for name in names {
            if let Some(guest) = port_of(vms, name.cid) {
                moved |= self.pump(name, guest);
            }
        }
        moved
    }

    /// Hears what the router said.
    fn hear(&mut self, vms: &mut Vms) {
        let news = std::mem::take(&mut *self.mailbox.news.lock());
        let mut later = Vec::new();
        for news in news {
            let waits = match (port_of(vms, news.guest()), &news) {
                (Some(guest), _) => !guest.takes_replies(),
                // Its rings are being changed. One that has left for good has no link.
                (None, News::Joined(name, ..) | News::Failed(name, _)) => self.links.contains_key(name),
                (None, _) => false,
            };
            if waits {
                later.push(news);
                continue;
            }
            match news {
                News::Requested(cid, call) => self.requested(vms, cid, call),
                News::GivenUp(cid, call) => {
                    let Some(name) = vms.get(&cid).map(|vm| Name::asked(&vm.spec, call)) else { continue };
                    if self.links.get(&name).is_some_and(|link| link.call == Some(call)) {
                        self.remove(&name);
                        port_of(vms, cid).into_iter().for_each(|guest| guest.reply(name.packet(op::RST)));
                    }
                }
                News::Joined(name, call, lane) => {
                    // Another connection may have the name by now.
                    let link = self.links.get_mut(&name).filter(|link| link.call == Some(call));
                    let Some(link) = link else { continue };
                    link.lane = Some(lane);
                    if std::mem::take(&mut link.owes_response)
                        && let Some(guest) = port_of(vms, name.cid)
                    {
                        guest.reply(link.packet(&name, op::RESPONSE));
                    }
                    self.router.streams().kick(lane);
                }
                News::Failed(name, call) => {
                    let current = self.links.get(&name).is_some_and(|link| link.call == Some(call));
                    if current
                        && self.remove(&name).is_some()
                        && let Some(guest) = port_of(vms, name.cid)
                    {
                        guest.reply(name.packet(op::RST));
                    }
                }
            }
        }
        if !later.is_empty() {
            self.blocked = true;
            self.mailbox.news.lock().splice(0..0, later);
        }
    }

    /// A connect to the guest `cid`: the guest gets a request.
    fn requested(&mut self, vms: &mut Vms, cid: u32, call: Call) {
        let relayed = vms.contains_key(&call.key.client.0);
        let name = vms.get(&cid).map(|vm| Name::asked(&vm.spec, call));
        let name = name.filter(|name| vms.get(&cid).is_some_and(|vm| self.admits(name, &vm.spec)));
        let shared = Shared::new(self.mailbox.clone());
        let (Some(name), Some(guest), Ok(shared)) = (name, port_of(vms, cid), shared) else {
            return self.router.close(call);
        };
        let mut link = Link::new(shared);
        (link.call, link.owed_response, link.relayed) = (Some(call), true, relayed);
        guest.reply(link.packet(&name, op::REQUEST));
        self.insert(name, link);
    }

    /// Gives a guest what waits for it, as far as its credit and its buffers go.
    fn pump(&mut self, name: Name, port: &mut Port) -> bool {
        let Some(link) = self.links.get_mut(&name) else { return false };
        let Some(lane) = link.lane else { return false };
        if !port.takes_replies() {
            // It is looked at again when some of them are with the guest.
            self.blocked = true;
            return false;
        }
        let mut moved = false;
        let (mut kick, mut asks) = (false, false);
        // What is to be said comes before what is to be given.
        while link.told & SHUTDOWN_SEND == 0 && !port.holds_replies() {
            let (at, waiting) = link.shared.waiting();
            let len = waiting.min(link.flow.left() as usize).min(RING - at);
            if len == 0 {
                break;
            }
            let header = link.packet(&name, op::RW);
            let Ok(sent) = port.send(header, &link.from, at, len) else {
                self.blocked = true;
                break;
            };
            asks |= link.flow.sends(sent as u32);
            kick |= link.shared.delivered(sent);
            moved = true;
        }
        if asks {
            let question = link.packet(&name, op::CREDIT_REQUEST);
            port.reply(question);
        }
        if kick {
            self.router.streams().kick(lane);
        }
        // Replies of other connections go first, and there is no wake-up once they are gone.
        self.blocked |= port.holds_replies() && link.shared.waiting().1 > 0;
        let taken = link.shared.taken() as u32;
        if taken.wrapping_sub(link.told_taken) as usize >= RING / 2 {
            let update = link.packet(&name, op::CREDIT_UPDATE);
            port.reply(update);
            moved = true;
        }
        moved | self.tell_ends(name, port)
    }

    fn tell_ends(&mut self, name: Name, port: &mut Port) -> bool {
        let Some(link) = self.links.get_mut(&name) else { return false };
        let ends = link.shared.ends();
        if ends == 0 {
            return false;
        }
        let empty = link.shared.waiting().1 == 0;
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
        if ends & RESET != 0 && empty {
            self.drop_link(name, false);
            port.reply(name.packet(op::RST));
            return true;
        }
        if flags & !link.told == 0 {
            return false;
        }
        link.told |= flags;
        let told = link.told;
        let shutdown = Header { flags: told.into(), ..link.packet(&name, op::SHUTDOWN) };
        port.reply(shutdown);
        if ends & DETACHED != 0 && empty {
            self.drop_link(name, false);
        }
        true
    }
}
