//! The connections of one guest with what is no virtio guest.

use std::collections::HashMap;
use std::sync::Arc;

use vmlane_port::{Budget, StreamAddress, StreamEnd, StreamId};
use vmlane_vsock::{Call, Vm};
use vmlane_wire::virtio_vsock::{Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};

use super::mailbox::{GuestMailbox, GuestRemote, LinkWaker};
use super::name::Name;
use super::ready::ReadySet;
use crate::virtio::vsock::credit::Flow;
use crate::virtio::vsock::link::{CREDIT, DeviceEnd, LinkPort, rings};
use crate::virtio::vsock::repeats::{Credit, Repeats};

/// How many bytes a guest may leave behind in streams that it left.
const BUDGET: usize = 16 << 20;

/// One connection.
pub struct Link {
    pub rings: DeviceEnd,
    /// The peer's end, until the router has it.
    pub port: Option<LinkPort>,
    /// Its place among the guest's.
    slot: u16,
    pub call: Option<Call>,
    pub stream: Option<StreamId>,
    /// The guest asked; it is answered when the ends are joined.
    pub owes_response: bool,
    /// The guest was asked and has not answered.
    pub owed_response: bool,
    /// What the guest is given.
    pub flow: Flow,
    /// Bytes of its own that it knows to be taken.
    pub told_taken: u32,
    /// What it was told of the peer's end, and what it said of its own: flags of SHUTDOWN.
    pub told: u32,
    pub said: u32,
    /// The peer is a guest here, too.
    pub relayed: bool,
}

impl Link {
    fn new((rings, port): (DeviceEnd, LinkPort), slot: u16) -> Link {
        Link {
            rings,
            port: Some(port),
            slot,
            call: None,
            stream: None,
            owes_response: false,
            owed_response: false,
            flow: Flow::default(),
            told_taken: 0,
            told: 0,
            said: 0,
            relayed: false,
        }
    }

    /// A packet to the guest, with our side of the credit.
    pub fn packet(&mut self, name: &Name, op: u16) -> Header {
        // Rings that are broken end the connection at the next copy.
        if let Ok(taken) = self.rings.taken() {
            self.told_taken = taken as u32;
        }
        Header { buf_alloc: (CREDIT as u32).into(), fwd_cnt: self.told_taken.into(), ..name.packet(op) }
    }
}

/// All of one guest.
pub struct GuestLinks {
    pub mailbox: Arc<GuestMailbox>,
    links: HashMap<Name, Link>,
    /// The links' names by place.
    slots: Vec<Option<Name>>,
    free: Vec<u16>,
    /// Where the next look at links begins.
    next: u16,
    /// What it may leave behind; its streams are charged to the guest by this.
    budget: Arc<Budget>,
    /// What the guest may still send for links that are gone.
    repeats: Repeats<Name>,
    /// There is more to do in the next turn, whether or not something happens until then.
    pub unfinished: bool,
}

impl GuestLinks {
    pub fn new(mailbox: Arc<GuestMailbox>) -> GuestLinks {
        GuestLinks {
            mailbox,
            links: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            next: 0,
            budget: Arc::new(Budget::new(BUDGET)),
            repeats: Repeats::default(),
            unfinished: false,
        }
    }

    /// May the guest `vm` have one more, of that name?
    pub fn admits(&self, name: &Name, vm: &Vm) -> bool {
        let most = vm.connections.min(ReadySet::PLACES);
        self.links.len() < most && !self.links.contains_key(name)
    }

    /// A link that is not in the table yet: its place is the next one.
    pub fn make(&self) -> std::io::Result<Link> {
        let slot = self.free.last().copied().unwrap_or(self.slots.len() as u16);
        let waker = LinkWaker { slot, mailbox: self.mailbox.clone() };
        Ok(Link::new(rings(Arc::new(waker))?, slot))
    }

    pub fn insert(&mut self, name: Name, link: Link) {
        let at = usize::from(link.slot);
        if self.free.pop().is_none() {
            self.slots.push(None);
        }
        if let Some(place) = self.slots.get_mut(at) {
            *place = Some(name);
        }
        self.links.insert(name, link);
    }

    pub fn remove(&mut self, name: &Name) -> Option<Link> {
        let link = self.links.remove(name)?;
        if let Some(place) = self.slots.get_mut(usize::from(link.slot)) {
            *place = None;
        }
        self.free.push(link.slot);
        Some(link)
    }

    /// The guest has been told that a link is over, or has said so: as many RSTs of it may follow.
    pub fn expect_resets(&mut self, name: Name, credit: Credit, count: usize) {
        (0..count).for_each(|_| self.repeats.expect(name, credit));
    }

    /// The guest knows of no link any more.
    pub fn expect_nothing(&mut self) {
        self.repeats = Repeats::default();
    }

    /// Is this RST of a link that is gone?
    pub fn is_repeat(&mut self, name: &Name, reset: &Header) -> bool {
        const BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;
        let link = self.links.get(name);
        let ends =
            link.is_some_and(|link| link.told == BOTH && link.flow.all_taken().taken == reset.fwd_cnt.get());
        self.repeats.take(name, reset, ends)
    }

    pub fn get(&self, name: &Name) -> Option<&Link> {
        self.links.get(name)
    }

    pub fn get_mut(&mut self, name: &Name) -> Option<&mut Link> {
        self.links.get_mut(name)
    }

    pub fn names(&self) -> Vec<Name> {
        self.links.keys().copied().collect()
    }

    /// The links that the router knows, with what it knows them by.
    pub fn calls(&self) -> impl Iterator<Item = (Call, &Link)> {
        self.links.values().filter_map(|link| Some((link.call?, link)))
    }

    /// The name of the next link to which something happened, and its place.
    pub fn take_ready(&mut self) -> Option<(u16, Option<Name>)> {
        let slot = self.mailbox.ready.take(self.next)?;
        self.next = slot.wrapping_add(1);
        Some((slot, self.slots.get(usize::from(slot)).copied().flatten()))
    }

    /// The link at this place is not served yet: its turn is the first.
    pub fn put_back(&mut self, slot: u16) {
        self.mailbox.ready.mark(slot);
        self.next = slot;
    }

    /// The link is to be looked at.
    pub fn mark(&mut self, name: &Name) {
        if let Some(link) = self.links.get(name) {
            self.mailbox.ready.mark(link.slot);
        }
    }

    /// The same, before all others.
    pub fn mark_first(&mut self, name: &Name) {
        if let Some(slot) = self.links.get(name).map(|link| link.slot) {
            self.put_back(slot);
        }
    }

    /// The link's end of a stream.
    pub fn end(&self, mut port: LinkPort, name: Name) -> StreamEnd {
        let Name { cid, port: own, peer, peer_port } = name;
        port.set_address(StreamAddress { cid, port: own, peer_cid: peer, peer_port });
        StreamEnd { port: Box::new(port), budget: self.budget.clone(), slow: false }
    }

    pub fn remote(&self, name: Name) -> Arc<GuestRemote> {
        Arc::new(GuestRemote { name, mailbox: self.mailbox.clone() })
    }
}
