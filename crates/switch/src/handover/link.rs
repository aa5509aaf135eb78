//! The rings between workers.
#![expect(clippy::vec_box, reason = "descriptions travel between workers by their addresses")]

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use rtrb::{Consumer, Producer, RingBuffer};
use vmlane_mem::{MemoryMap, Spans};
use vmlane_port::fair::may_take;
use vmlane_port::{Token, TxFrame};

use super::frame::{Done, HandedFrame, Room};
use super::origin::Origin;
use super::words::{self, Entry, Reader, Writer};
use super::{MOST_WORKERS, PLACES};
use crate::queue::{Command, Request, Requests};
use crate::{Slot, place_of};

const _: () = assert!(MOST_WORKERS <= u64::BITS as usize);

/// So many descriptions ahead, the CPU is asked for those that are written next.
const AHEAD: usize = 6;

/// Places of an owner that are free again.
#[derive(Clone, Copy)]
struct Returned {
    owner: u16,
    count: u16,
}

/// What became of a frame that was to be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handed {
    /// There is no place for it.
    No,
    /// Its bytes went with it: its sender is done with it.
    Copied,
    /// It is in flight until the other worker is done with it.
    InFlight,
}

/// Places that are taken: of all owners, and of each.
#[derive(Default)]
struct Places {
    used: usize,
    of_owners: Vec<usize>,
}

impl Places {
    /// Takes one for a frame of `owner`, if it may have one.
    #[inline]
    fn take(&mut self, owner: u16) -> bool {
        let own = place_of(&mut self.of_owners, owner);
        let may = may_take(*own, self.used, PLACES);
        if may {
            *own += 1;
            self.used += 1;
        }
        may
    }

    /// So many of `owner` are free again.
    #[inline]
    fn put(&mut self, owner: u16, count: usize) {
        if let Some(own) = self.of_owners.get_mut(usize::from(owner)) {
            *own = own.saturating_sub(count);
        }
        self.used = self.used.saturating_sub(count);
    }
}

/// What one worker has of another one.
pub struct Link {
    requests: Arc<Requests>,
    places: Places,
    /// Descriptions that are free.
    free: Vec<Box<HandedFrame>>,
    sending: Sending,
    /// Described frames of this round.
    leaving: Vec<Box<HandedFrame>>,
    receiving: Receiving,
    /// For the other worker's frames by value.
    room: Room,
    /// Its frames that are done with. At a round's end they go back, or their places do.
    pub done: Done,
    going_back: Vec<Box<HandedFrame>>,
    places_going_back: Vec<Returned>,
}

/// The sending worker's ends of the rings from it to another one.
struct Sending {
    order: Writer,
    to: Producer<Box<HandedFrame>>,
    back: Consumer<Box<HandedFrame>>,
    places_back: Consumer<Returned>,
}

/// The other one's.
struct Receiving {
    coming: Reader,
    from: Consumer<Box<HandedFrame>>,
    give_back: Producer<Box<HandedFrame>>,
    give_places_back: Producer<Returned>,
}

/// The rings for frames from one worker to another.
fn way() -> (Sending, Receiving) {
    let (order, coming) = words::ring();
    let (to, from) = RingBuffer::new(PLACES);
    let (give_back, back) = RingBuffer::new(PLACES);
    let (give_places_back, places_back) = RingBuffer::new(PLACES);
    let sending = Sending { order, to, back, places_back };
    (sending, Receiving { coming, from, give_back, give_places_back })
}

impl Link {
    /// With the worker with these requests.
    fn new(requests: &Arc<Requests>, sending: Sending, receiving: Receiving) -> io::Result<Link> {
        Ok(Link {
            requests: requests.clone(),
            places: Places::default(),
            free: Vec::new(),
            sending,
            leaving: Vec::new(),
            receiving,
            room: Room::new()?,
            done: Done::default(),
            going_back: Vec::new(),
            places_going_back: Vec::new(),
        })
    }

    /// Did a longer frame of the same origin go just before, in this round? Then a short one may be the last
    /// segment of that one's flow: they are merged only if both lie in their sender's memory.
    #[inline]
    fn ends_described_ones(&self, origin: Origin) -> bool {
        self.sending.order.is_described()
            && self.leaving.last().is_some_and(|last| last.origin == origin && !last.is_short())
    }

    #[inline]
    fn hand_over(&mut self, (origin, token): (Origin, Token), tx: &TxFrame<'_>) -> Handed {
        if !self.places.take(origin.owner) {
            return Handed::No;
        }
        if Writer::takes(tx) && !self.ends_described_ones(origin) {
            self.sending.order.write(origin, tx);
            return Handed::Copied;
        }
        // There are never more of them than places.
        let mut frame = self.free.pop().unwrap_or_else(|| Box::new(HandedFrame::new()));
        // The other worker's CPU has had the lines of those that are next.
        if let Some(later) = self.free.len().checked_sub(AHEAD).and_then(|at| self.free.get(at)) {
            later.prefetch_write();
        }
        if !frame.describe(origin, token, tx) {
            self.free.push(frame);
            self.places.put(origin.owner, 1);
            return Handed::No;
        }
        self.leaving.push(frame);
        self.sending.order.describe();
        Handed::InFlight
    }

    /// Sends what is to leave. True if anything left. There are never more frames, and never more places,
    /// than places in a ring.
    fn send(&mut self) -> bool {
        // What the other worker finds in the order is there.
        push_all(&mut self.sending.to, &mut self.leaving);
        let leaving = self.sending.order.publish();
        for frame in self.done.lock().drain(..) {
            if !frame.is_by_value() {
                self.going_back.push(frame);
                continue;
            }
            let owner = frame.origin.owner;
            self.room.put(frame);
            match self.places_going_back.last_mut().filter(|last| last.owner == owner) {
                Some(last) => last.count += 1,
                None => self.places_going_back.push(Returned { owner, count: 1 }),
            }
        }
        let back = push_all(&mut self.receiving.give_back, &mut self.going_back);
        push_all(&mut self.receiving.give_places_back, &mut self.places_going_back) || back || leaving
    }

    /// Is anything to leave or to be sent?
    fn has_unsent(&self) -> bool {
        self.sending.order.has_unpublished() || !self.done.lock().is_empty()
    }

    /// Does anything lie in a ring from there?
    fn has_waiting(&self) -> bool {
        self.receiving.coming.has_entries()
            || !self.sending.back.is_empty()
            || !self.sending.places_back.is_empty()
    }

    /// The frames that the other worker has handed over, in order.
    fn take_arrived(&mut self, mut each: impl FnMut(Box<HandedFrame>)) {
        self.receiving.coming.poll();
        while let Some(entry) = self.receiving.coming.next() {
            match entry {
                Entry::Described(count) => pop(&mut self.receiving.from, count, |frame| {
                    frame.prefetch();
                    each(frame);
                }),
                Entry::Value(value) => {
                    let Some(mut frame) = self.room.take() else {
                        self.receiving.coming.skip(value.len);
                        continue;
                    };
                    frame.receive(&value, &mut self.receiving.coming);
                    each(frame);
                }
            }
        }
    }

    /// This worker's descriptions and places that the other one is done with.
    fn take_back(&mut self, mut each: impl FnMut(Origin, Token)) {
        let Link { sending: Sending { back, places_back, .. }, places, free, .. } = self;
        pop(back, back.slots(), |frame| {
            let (origin, token) = (frame.origin, frame.token);
            places.put(origin.owner, 1);
            free.push(frame);
            each(origin, token);
        });
        pop(places_back, places_back.slots(), |Returned { owner, count }| places.put(owner, count.into()));
    }
}

/// Puts all of `what` into a ring, to be seen together. False: there was nothing.
fn push_all<T>(ring: &mut Producer<T>, what: &mut Vec<T>) -> bool {
    if what.is_empty() {
        return false;
    }
    let count = what.len().min(ring.slots());
    if let Ok(chunk) = ring.write_chunk_uninit(count) {
        chunk.fill_from_iter(what.drain(..count));
    }
    count > 0
}

/// Takes `count` out of a ring.
fn pop<T>(ring: &mut Consumer<T>, count: usize, each: impl FnMut(T)) {
    if count > 0
        && let Ok(chunk) = ring.read_chunk(count)
    {
        chunk.into_iter().for_each(each);
    }
}

/// What a worker has of all others. Of a switch with one worker: nothing.
pub struct Links {
    /// By the number of the other worker; None for its own.
    list: Vec<Option<Link>>,
    /// Frames that more than one receiver has yet to finish, and how many.
    shared: HashMap<(Slot, Token), usize>,
    /// Remote ports that have frames to send.
    pub arrived: Vec<Slot>,
    /// No bytes.
    nothing: Spans,
}

impl Links {
    /// For each of the workers with these requests. Fails if the process has no file or memory to spare.
    pub fn between(requests: &[Arc<Requests>]) -> io::Result<Vec<Links>> {
        let mut all: Vec<Links> = requests.iter().map(|_| Links::none()).collect();
        all.iter_mut().for_each(|links| links.list.resize_with(requests.len(), || None));
        for (a, of_a) in requests.iter().enumerate() {
            for (b, of_b) in requests.iter().enumerate().skip(a + 1) {
                let ((from_a, to_b), (from_b, to_a)) = (way(), way());
                let links = [(a, b, Link::new(of_b, from_a, to_a)?), (b, a, Link::new(of_a, from_b, to_b)?)];
                for (own, other, link) in links {
                    if let Some(place) = all.get_mut(own).and_then(|links| links.list.get_mut(other)) {
                        *place = Some(link);
                    }
                }
            }
        }
        Ok(all)
    }

    /// Of the only worker.
    pub fn none() -> Links {
        let nothing = Spans::new(MemoryMap::default(), false);
        Links { list: Vec::new(), shared: HashMap::new(), arrived: Vec::new(), nothing }
    }

    /// Is there no other worker?
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.list.len() < 2
    }

    /// The other workers, by number.
    pub fn others(&self) -> Vec<usize> {
        self.list.iter().enumerate().filter(|(_, link)| link.is_some()).map(|(at, _)| at).collect()
    }

    fn get_mut(&mut self, worker: usize) -> Option<&mut Link> {
        self.list.get_mut(worker)?.as_mut()
    }

    /// Where remote ports of `worker` put what is done with.
    pub fn done(&self, worker: usize) -> Option<Done> {
        Some(self.list.get(worker)?.as_ref()?.done.clone())
    }

    /// Hands over a frame of the port and token in `in_flight`.
    #[inline]
    pub fn hand_over(&mut self, worker: usize, in_flight: (Origin, Token), tx: &TxFrame<'_>) -> Handed {
        self.get_mut(worker).map_or(Handed::No, |link| link.hand_over(in_flight, tx))
    }

    /// `holders` have yet to finish a frame.
    pub fn share(&mut self, slot: Slot, token: Token, holders: usize) {
        if holders > 1 {
            self.shared.insert((slot, token), holders);
        }
    }

    /// One of those who had a frame is done with it. True if it was the last one.
    #[inline]
    pub fn is_last(&mut self, slot: Slot, token: Token) -> bool {
        if self.shared.is_empty() {
            return true;
        }
        let Some(holders) = self.shared.get_mut(&(slot, token)) else { return true };
        *holders -= 1;
        let last = *holders == 0;
        if last {
            self.shared.remove(&(slot, token));
        }
        last
    }

    /// What a port had in flight is not asked for any more.
    pub fn forget(&mut self, slot: Slot) {
        self.shared.retain(|(of, _), _| *of != slot);
        self.let_go();
    }

    /// No guest's memory is kept mapped for frames that were finished.
    pub fn let_go(&mut self) {
        let Links { list, nothing, .. } = self;
        list.iter_mut().flatten().flat_map(|link| &mut link.free).for_each(|frame| frame.let_go(nothing));
    }

    /// The frames that others have handed over, with the number of the worker that did.
    pub fn take_arrived(&mut self, mut each: impl FnMut(usize, Box<HandedFrame>)) {
        for (worker, link) in self.list.iter_mut().enumerate() {
            link.iter_mut().for_each(|link| link.take_arrived(|frame| each(worker, frame)));
        }
    }

    /// This worker's frames in flight that others are done with.
    pub fn take_back(&mut self, mut each: impl FnMut(Origin, Token)) {
        self.list.iter_mut().flatten().for_each(|link| link.take_back(&mut each));
    }

    /// Something lies in a ring for this worker.
    pub fn has_waiting(&self) -> bool {
        self.list.iter().flatten().any(Link::has_waiting)
    }

    /// Something is to leave, or to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.arrived.is_empty() || self.list.iter().flatten().any(Link::has_unsent)
    }

    /// Sends what is to leave, and wakes who gets it.
    #[inline]
    pub fn send_all(&mut self) {
        for link in self.list.iter_mut().flatten() {
            if link.send() {
                link.requests.parking().wake();
            }
        }
    }

    /// Asks something of another worker; no one waits for it.
    pub fn ask(&mut self, worker: usize, request: Request) {
        if let Some(link) = self.get_mut(worker) {
            link.requests.post(|()| (Some(Command { request, answer: None }), ()));
        }
    }
}
