//! Who is connected to whom: so that peers are notified when a VM goes, to bound what one may open, and to
//! know what is under way.

use std::collections::HashMap;
use std::sync::Arc;

use vmlane_wire::virtio_vsock::{Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, op};

use super::credit::Flow;
use super::kept::{Book, Entry, Kept, Kind, Known, Transaction};
use super::repeats::{Credit, Repeats};
use super::views::ConnectionView;

/// Both directions of a connection.
const BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

/// One VM's side of a connection.
#[derive(Debug, Default)]
struct Side {
    /// What it sends.
    flow: Flow,
    /// It opened the connection.
    client: bool,
    /// The server has answered; kept by the client's side.
    established: bool,
    /// What it has shut down: flags of SHUTDOWN.
    shut: u32,
    /// Its place in the book of its device, if it has one.
    place: Option<u32>,
}

impl Side {
    fn entry(&self, known: Known) -> Entry {
        let Side { client, established, shut, .. } = *self;
        Entry { known, client, established, shut, notified: 0, place: 0 }
    }
}

/// One VM's connections.
#[derive(Debug, Default)]
struct Connections {
    sides: HashMap<Known, Side>,
    /// Of its device, once that has had rings.
    book: Option<Book>,
    /// Its guest has connections of which nothing is known, not even whether all their packets were
    /// delivered.
    lost: bool,
    /// How many of them it opened.
    opened: usize,
    /// How many it has with which VM.
    peers: HashMap<u32, usize>,
    /// What it may still send for those that are over.
    repeats: Repeats<Known>,
}

impl Connections {
    fn add(&mut self, transaction: &Transaction, known: Known, client: bool) {
        self.remove(transaction, &known);
        *self.peers.entry(known.peer).or_default() += 1;
        self.opened += usize::from(client);
        let mut side = Side { client, ..Side::default() };
        side.place = self.book.as_mut().and_then(|book| book.add(transaction, &side.entry(known)));
        self.sides.insert(known, side);
    }

    fn change(&mut self, transaction: &Transaction, known: &Known, change: impl FnOnce(&mut Side)) {
        let Some(side) = self.sides.get_mut(known) else { return };
        change(side);
        if let (Some(book), Some(place)) = (&self.book, side.place) {
            book.change(transaction, place, &side.entry(*known));
        }
    }

    fn remove(&mut self, transaction: &Transaction, known: &Known) {
        let Some(side) = self.sides.remove(known) else { return };
        if let (Some(book), Some(place)) = (&mut self.book, side.place) {
            book.remove(transaction, place);
        }
        self.opened -= usize::from(side.client);
        if let Some(count) = self.peers.get_mut(&known.peer) {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&known.peer);
            }
        }
    }

    /// Its device has this file from here on. What a previous daemon noted there comes back; what is not
    /// there is noted.
    fn bind(&mut self, transaction: &Transaction, kept: &Arc<Kept>) {
        let (mut book, noted) = Book::open(kept.clone(), Kind::Table);
        for (known, side) in &mut self.sides {
            side.place = book.add(transaction, &side.entry(*known));
        }
        self.book = Some(book);
        for (place, entry) in noted {
            let Entry { known, client, established, shut, .. } = entry;
            self.remove(transaction, &known);
            *self.peers.entry(known.peer).or_default() += 1;
            self.opened += usize::from(client);
            let side = Side { flow: Flow::unknown(), client, established, shut, place: Some(place) };
            self.sides.insert(known, side);
        }
    }
}

/// What is to be done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Its receiver gets it.
    Passes,
    /// It asks for a connection, and its sender has opened as many as it may.
    TooMany,
    /// It is an RST of a connection that is over. Its receiver may have a new one of the same ports.
    Repeated,
    /// It is of a connection that was lost.
    Lost,
}

/// Connections by VM; each is in the maps of both.
pub struct Table {
    known: HashMap<u32, Connections>,
    transaction: Arc<Transaction>,
}

impl Table {
    pub fn new(transaction: Arc<Transaction>) -> Table {
        Table { known: HashMap::new(), transaction }
    }

    /// The device of the VM `cid` has this file from here on. True if it is another one than before.
    pub fn bind(&mut self, cid: u32, kept: &Arc<Kept>) -> bool {
        let set = self.known.entry(cid).or_default();
        let is_new = set.book.as_ref().is_none_or(|book| !book.is_of(kept));
        if is_new {
            set.bind(&self.transaction, kept);
        }
        is_new
    }

    /// The VM's guest has connections of which nothing is known.
    pub fn lose(&mut self, cid: u32) {
        self.known.entry(cid).or_default().lost = true;
    }

    fn is_lost(&self, header: &Header) -> bool {
        let [(src, sender), (dst, _)] = Table::sides(header);
        let set = |cid: u32| self.known.get(&cid);
        let lost = [src, dst].into_iter().any(|cid| set(cid).is_some_and(|set| set.lost));
        lost && set(src).is_none_or(|set| !set.sides.contains_key(&sender))
    }

    /// Connections that only one end knows, as that sees them, with its CID: the other one's VM is gone, or
    /// its file was.
    pub fn one_sided(&self) -> Vec<(u32, Known)> {
        let all = self.known.iter().flat_map(|(&cid, set)| set.sides.keys().map(move |&known| (cid, known)));
        let is_there = |(cid, known): &(u32, Known)| {
            let other = Known { port: known.peer_port, peer: *cid, peer_port: known.port, kind: known.kind };
            self.known.get(&known.peer).is_some_and(|set| set.sides.contains_key(&other))
        };
        all.filter(|side| !is_there(side)).collect()
    }

    fn sides(header: &Header) -> [(u32, Known); 2] {
        let (src, dst) = (header.src_cid.get() as u32, header.dst_cid.get() as u32);
        let (port, peer_port, kind) = (header.src_port.get(), header.dst_port.get(), header.kind.get());
        [
            (src, Known { port, peer: dst, peer_port, kind }),
            (dst, Known { port: peer_port, peer: src, peer_port: port, kind }),
        ]
    }

    /// A packet comes from its sender. Connections that others opened to it do not count against `most`: they
    /// would take from it what it may open.
    pub fn pass(&mut self, header: &Header, most: usize) -> Passage {
        match header.op.get() {
            op::RESPONSE | op::SHUTDOWN if self.is_lost(header) => return Passage::Lost,
            op::REQUEST => {
                let sides = Table::sides(header);
                let [(client, _), _] = sides;
                if self.opened(client) >= most {
                    return Passage::TooMany;
                }
                for ((cid, known), client) in sides.into_iter().zip([true, false]) {
                    self.known.entry(cid).or_default().add(&self.transaction, known, client);
                }
            }
            op::RESPONSE => {
                let [_, (cid, client)] = Table::sides(header);
                self.change(cid, &client, |side| side.established = true);
            }
            op::SHUTDOWN => {
                let [(cid, sender), _] = Table::sides(header);
                self.change(cid, &sender, |side| side.shut |= header.flags.get() & BOTH);
            }
            op::RST => {
                if self.take_repeat(header) {
                    return Passage::Repeated;
                }
                self.forget(header);
            }
            _ if self.is_lost(header) => return Passage::Lost,
            _ => {}
        }
        let [_, (cid, receiver)] = Table::sides(header);
        if let Some(side) = self.side(cid, &receiver) {
            side.flow.update(header);
        }
        Passage::Passes
    }

    /// Is this RST of a connection that is over? Otherwise it ends one, and may come again.
    fn take_repeat(&mut self, header: &Header) -> bool {
        let [(cid, sender), (peer, receiver)] = Table::sides(header);
        let present = self.side(cid, &sender).map(|side| side.shut);
        let given = self.side(peer, &receiver).map(|side| (side.shut, side.flow.all_taken().taken));
        let Some(connections) = self.known.get_mut(&cid) else { return false };
        let ends = present.zip(given).is_some_and(|(ours, (theirs, bytes))| {
            (ours == BOTH || theirs == BOTH) && bytes == header.fwd_cnt.get()
        });
        if connections.repeats.take(&sender, header, ends) {
            return true;
        }
        if present.is_some() {
            connections.repeats.expect(sender, Credit::of(header));
        }
        false
    }

    fn change(&mut self, cid: u32, known: &Known, change: impl FnOnce(&mut Side)) {
        if let Some(set) = self.known.get_mut(&cid) {
            set.change(&self.transaction, known, change);
        }
    }

    fn side(&mut self, cid: u32, known: &Known) -> Option<&mut Side> {
        self.known.get_mut(&cid)?.sides.get_mut(known)
    }

    /// The payload of a packet is with its receiver. True if that one should be asked for credit.
    pub fn delivered(&mut self, header: &Header, len: usize) -> bool {
        let [(cid, sender), _] = Table::sides(header);
        // One that began before this daemon did is not counted.
        len > 0 && self.side(cid, &sender).is_some_and(|side| side.flow.sends(len as u32))
    }

    /// The packet's connection is over.
    pub fn forget(&mut self, header: &Header) {
        for (cid, known) in Table::sides(header) {
            if let Some(set) = self.known.get_mut(&cid) {
                set.remove(&self.transaction, &known);
            }
        }
    }

    /// Has `cid` a connection with a VM other than `peer`?
    pub fn talks_to_others(&self, cid: u32, peer: u32) -> bool {
        let Some(set) = self.known.get(&cid) else { return false };
        set.peers.len() > usize::from(set.peers.contains_key(&peer))
    }

    /// All connections of a VM are over; they are returned.
    pub fn clear(&mut self, cid: u32) -> Vec<Known> {
        let transaction = &self.transaction;
        let Some(set) = self.known.get_mut(&cid) else { return Vec::new() };
        let ended: Vec<Known> = set.sides.keys().copied().collect();
        ended.iter().for_each(|known| set.remove(transaction, known));
        (set.repeats, set.lost) = (Repeats::default(), false);
        for known in &ended {
            if let Some(set) = self.known.get_mut(&known.peer) {
                let Known { port, peer_port, kind, .. } = *known;
                set.remove(transaction, &Known { port: peer_port, peer: cid, peer_port: port, kind });
            }
        }
        ended
    }

    /// The VM is gone for good. Its connections are over.
    pub fn forget_vm(&mut self, cid: u32) {
        self.known.remove(&cid);
    }

    /// The connections of a VM, as it sees them.
    pub fn of(&self, cid: u32) -> impl Iterator<Item = &Known> {
        self.known.get(&cid).into_iter().flat_map(|set| set.sides.keys())
    }

    /// How many connections a VM has.
    pub fn count(&self, cid: u32) -> usize {
        self.known.get(&cid).map_or(0, |set| set.sides.len())
    }

    /// How many of them it opened.
    pub fn opened(&self, cid: u32) -> usize {
        self.known.get(&cid).map_or(0, |set| set.opened)
    }

    /// All connections, each once.
    pub fn views(&self) -> impl Iterator<Item = ConnectionView> {
        self.known.iter().flat_map(|(&cid, set)| {
            let opened = set.sides.iter().filter(|(_, side)| side.client);
            opened.map(move |(known, side)| ConnectionView {
                client: (cid, known.port),
                server: (known.peer, known.peer_port),
                established: side.established,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmlane_wire::virtio_vsock::kind;

    #[test]
    fn both_sides_know_and_forget() {
        let mut table = Table::new(Transaction::create().unwrap().0);
        let request = Header::new((3, 1000), (4, 22), kind::STREAM, op::REQUEST);
        assert_eq!(table.pass(&request, 1), Passage::Passes);
        assert_eq!(table.pass(&Header::new((3, 1), (4, 2), 1, op::RW), 1), Passage::Passes);
        assert_eq!([3, 4].map(|cid| (table.count(cid), table.opened(cid))), [(1, 1), (1, 0)]);
        let seen = |table: &Table| table.views().collect::<Vec<_>>();
        let view = |established| ConnectionView { client: (3, 1000), server: (4, 22), established };
        assert_eq!(seen(&table), [view(false)]);
        let response = Header::new((4, 22), (3, 1000), kind::STREAM, op::RESPONSE);
        assert_eq!(table.pass(&response, 1), Passage::Passes);
        assert_eq!(seen(&table), [view(true)]);
        let second = Header::new((3, 1001), (4, 22), kind::STREAM, op::REQUEST);
        assert_eq!(table.pass(&second, 1), Passage::TooMany);
        assert_eq!(table.pass(&request.reset(), 1), Passage::Passes);
        assert_eq!([3, 4].map(|cid| (table.count(cid), table.opened(cid))), [(0, 0); 2]);
        assert!(seen(&table).is_empty());
        table.pass(&request, 1);
        table.pass(&request, 2);
        assert!(!table.talks_to_others(3, 4) && table.talks_to_others(3, 5) && !table.talks_to_others(5, 3));
        assert_eq!(table.clear(4), [Known { port: 22, peer: 3, peer_port: 1000, kind: 1 }]);
        assert_eq!(table.count(3), 0);
        assert!(!table.talks_to_others(3, 5));
    }
}
