//! The connections of one guest with what is no virtio guest.

use std::collections::HashMap;
use std::sync::Arc;

use vmlane_port::{Budget, Shutdown, StreamEnd, StreamId};
use vmlane_vsock::{Call, Key, RestoredEnd, Role, SocketAddress, Vm};
use vmlane_wire::virtio_vsock::{Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, kind, op};

use super::inbox::{GuestInbox, GuestRemote};
use super::name::Name;
use crate::virtio::vsock::kept::{Book, Entry, Kept, Kind, Known, Place, Transaction};
use crate::virtio::vsock::lane::{Lane, LanePort, Notes};
use crate::virtio::vsock::port::Port;
use crate::virtio::vsock::receive::Inlet;
use crate::virtio::vsock::repeats::{Credit, Repeats};

/// How many bytes a guest may leave behind in streams that it left.
const BUDGET: usize = 16 << 20;

/// One connection.
pub struct Link {
    pub lane: Arc<Lane>,
    /// Its end of the stream, until the router has it.
    pub port: Option<LanePort>,
    pub call: Option<Call>,
    pub stream: Option<StreamId>,
    /// It has one, or had one with a previous daemon.
    pub joined: bool,
    /// The guest asked; it is answered when the ends are joined.
    pub response_due: bool,
    /// The guest was asked and has not answered.
    pub awaits_response: bool,
    /// What it was notified of at the peer's end, and what it announced of its own: flags of SHUTDOWN.
    pub notified: u32,
    pub announced: u32,
    /// The peer is a guest here, too.
    pub relayed: bool,
    /// Its place in the book of its device, if it has one.
    place: Option<u32>,
}

/// All of one guest.
pub struct GuestLinks {
    pub inbox: Arc<GuestInbox>,
    links: HashMap<Name, Link>,
    notes: Arc<Notes>,
    /// While its rings run.
    inlet: Option<Arc<Inlet>>,
    /// Whose worker its streams are with.
    worker: Option<u16>,
    /// What it may leave behind; its streams are charged to the guest by this.
    budget: Arc<Budget>,
    /// What the guest may still send for links that are gone.
    repeats: Repeats<Name>,
    /// Where they are noted for the next daemon, once its device has had rings.
    noted: Option<Noted>,
    /// Those that a previous daemon had and that do not go on, with their places in the book.
    lost: Vec<(u32, Name)>,
    /// There is more to do in the next turn, whether or not something happens until then.
    pub unfinished: bool,
}

/// Of one session of a device.
struct Noted {
    book: Book,
    kept: Arc<Kept>,
    transaction: Arc<Transaction>,
}

impl Link {
    fn entry(&self, name: &Name) -> Entry {
        let known = Known { port: name.port, peer: name.peer, peer_port: name.peer_port, kind: kind::STREAM };
        let client = self.call.is_some_and(|call| call.role == Role::Client);
        let (established, place) = (self.joined, self.lane.place());
        Entry { known, client, established, shut: self.announced, notified: self.notified, place }
    }

    /// What its guest has announced of its own end.
    fn announced(&self) -> Vec<Shutdown> {
        let all = [(SHUTDOWN_SEND, Shutdown::Send), (SHUTDOWN_RECEIVE, Shutdown::Receive)];
        all.into_iter().filter(|(flag, _)| self.announced & flag != 0).map(|(_, what)| what).collect()
    }
}

impl GuestLinks {
    pub fn new(inbox: Arc<GuestInbox>, notes: Arc<Notes>, worker: Option<u16>) -> GuestLinks {
        GuestLinks {
            inbox,
            links: HashMap::new(),
            notes,
            inlet: None,
            worker,
            budget: Arc::new(Budget::new(BUDGET)),
            repeats: Repeats::default(),
            noted: None,
            lost: Vec::new(),
            unfinished: false,
        }
    }

    /// Its device has this file from here on. Returns those that a previous daemon had, to be given to
    /// [`Self::restore`].
    pub fn bind(
        &mut self,
        cid: u32,
        kept: &Arc<Kept>,
        transaction: &Arc<Transaction>,
    ) -> Vec<(u32, Name, Entry)> {
        let (book, noted) = Book::open(kept.clone(), Kind::Links);
        self.lost.clear();
        self.noted = Some(Noted { book, kept: kept.clone(), transaction: transaction.clone() });
        noted.into_iter().map(|(place, entry)| (place, name(cid, &entry.known), entry)).collect()
    }

    /// One that a previous daemon had does not go on.
    pub fn lose(&mut self, (place, name, _): (u32, Name, Entry)) {
        self.lost.push((place, name));
    }

    /// One that a previous daemon had goes on if its peer does, for which it was joined: what is known of it,
    /// its end. None: it is over.
    pub fn restore(
        &mut self,
        (place, name, entry): (u32, Name, Entry),
    ) -> Option<(Link, Key, Role, RestoredEnd)> {
        let of = |noted: &Noted| Place::restore(&noted.kept, &noted.transaction, entry.place);
        let bytes = self.noted.as_ref().and_then(of).filter(|_| !self.links.contains_key(&name));
        let Some(bytes) = bytes else {
            self.lose((place, name, entry));
            return None;
        };
        let (own, peer) = ((name.cid, name.port), bytes.peer());
        let (role, key) = match entry.client {
            true => (Role::Client, Key { client: own, server: peer }),
            false => (Role::Server, Key { client: peer, server: own }),
        };
        let (announced, notified) = (entry.shut, entry.notified);
        let (joined, response_due) = (entry.established, entry.client && !entry.established);
        let place = Some(place);
        let mut link = Link { announced, notified, joined, response_due, place, ..self.link(name, bytes) };
        let end = self.end(link.port.take()?);
        let (remote, counts, announced) = (self.remote(name), link.lane.clone(), link.announced());
        Some((link, key, role, RestoredEnd { end, remote, counts, announced }))
    }

    /// Its guest gets an RST for each connection that a previous daemon had, as far as there is room for
    /// them.
    pub fn end_lost(&mut self, port: &mut Port) {
        while port.takes_replies()
            && let Some((place, name)) = self.lost.pop()
        {
            if !self.links.contains_key(&name) {
                port.reply(name.packet(op::RST));
            }
            self.strike(place);
        }
        self.unfinished |= !self.lost.is_empty();
    }

    fn strike(&mut self, place: u32) {
        if let Some(Noted { book, transaction, .. }) = &mut self.noted {
            book.remove(transaction, place);
        }
    }

    /// May the guest `vm` have one more, of that name?
    pub fn admits(&self, name: &Name, vm: &Vm) -> bool {
        self.links.len() < vm.connections && !self.links.contains_key(name)
    }

    /// A link with `peer` that is not in the table yet. None: there is no memory for it.
    pub fn make(&self, name: Name, peer: SocketAddress) -> Option<Link> {
        let Noted { kept, transaction, .. } = self.noted.as_ref()?;
        Some(self.link(name, Place::take(kept, transaction, peer)?))
    }

    fn link(&self, name: Name, place: Place) -> Link {
        let lane = Lane::new(name, self.notes.clone(), self.inlet.clone(), place);
        let port = Some(lane.port());
        Link {
            lane,
            port,
            call: None,
            stream: None,
            joined: false,
            response_due: false,
            awaits_response: false,
            notified: 0,
            announced: 0,
            relayed: false,
            place: None,
        }
    }

    pub fn insert(&mut self, name: Name, mut link: Link) {
        if let Some(Noted { book, transaction, .. }) = self.noted.as_mut().filter(|_| link.place.is_none()) {
            link.place = book.add(transaction, &link.entry(&name));
        }
        self.links.insert(name, link);
    }

    /// Something of a link has changed that the next daemon needs.
    pub fn note(&self, name: &Name) {
        let Some(link) = self.links.get(name) else { return };
        if let (Some(Noted { book, transaction, .. }), Some(place)) = (&self.noted, link.place) {
            book.change(transaction, place, &link.entry(name));
        }
    }

    pub fn remove(&mut self, name: &Name) -> Option<Link> {
        let link = self.links.remove(name)?;
        // Its stream may go on for a moment, but not with this guest's memory.
        link.lane.set_inlet(None);
        link.place.into_iter().for_each(|place| self.strike(place));
        Some(link)
    }

    /// Its rings run from here on, or do so no longer.
    pub fn set_inlet(&mut self, inlet: Option<Arc<Inlet>>) {
        self.links.values().for_each(|link| link.lane.set_inlet(inlet.clone()));
        self.inlet = inlet;
    }

    /// The guest has been notified that a link is over, or has announced it: as many RSTs of it may follow.
    pub fn expect_resets(&mut self, name: Name, credit: Credit, count: usize) {
        (0..count).for_each(|_| self.repeats.expect(name, credit));
    }

    /// The guest knows of no link any more.
    pub fn expect_nothing(&mut self) {
        self.repeats = Repeats::default();
        std::mem::take(&mut self.lost).into_iter().for_each(|(place, _)| self.strike(place));
    }

    /// Is this RST of a link that is gone?
    pub fn take_repeat(&mut self, name: &Name, reset: &Header) -> bool {
        const BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;
        let link = self.links.get(name);
        let ends = link
            .is_some_and(|link| link.notified == BOTH && link.lane.all_taken().taken == reset.fwd_cnt.get());
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

    /// A link's end of a stream.
    pub fn end(&self, port: LanePort) -> StreamEnd {
        StreamEnd { port: Box::new(port), budget: self.budget.clone(), slow: false, worker: self.worker }
    }

    pub fn remote(&self, name: Name) -> Arc<GuestRemote> {
        Arc::new(GuestRemote { name, inbox: self.inbox.clone() })
    }
}

fn name(cid: u32, known: &Known) -> Name {
    Name { cid, port: known.port, peer: known.peer, peer_port: known.peer_port }
}
