//! The rings between workers.
#![expect(clippy::vec_box, reason = "descriptions travel between workers by their addresses")]

use std::collections::HashMap;
use std::sync::Arc;

use rtrb::{Consumer, Producer, RingBuffer};
use vmlane_mem::{MemoryMap, Spans};
use vmlane_port::fair::may_take;
use vmlane_port::{Token, TxFrame};

use super::frame::{Done, HandedFrame, Lender};
use super::{MOST_WORKERS, PLACES};
use crate::Slot;
use crate::queue::{Command, Request, Requests};

const _: () = assert!(MOST_WORKERS <= u64::BITS as usize);

/// So many descriptions ahead, the CPU is asked for those that are written next.
const AHEAD: usize = 6;

/// What one worker has of another one.
pub struct Link {
    requests: Arc<Requests>,
    /// Descriptions that are free, and how many were ever made.
    free: Vec<Box<HandedFrame>>,
    made: usize,
    /// Frames handed over in this turn.
    leaving: Vec<Box<HandedFrame>>,
    to: Producer<Box<HandedFrame>>,
    /// Its own, come back.
    back: Consumer<Box<HandedFrame>>,
    /// The other worker's frames.
    from: Consumer<Box<HandedFrame>>,
    pub done: Done,
    give_back: Producer<Box<HandedFrame>>,
    /// Frames that the other worker has, by their owner.
    of_owners: Vec<usize>,
}

impl Link {
    /// Places that are taken.
    fn used(&self) -> usize {
        self.made - self.free.len()
    }

    /// A place for a frame of `owner`, if it may have one.
    fn take(&mut self, owner: u16) -> Option<Box<HandedFrame>> {
        let used = self.used();
        let at = usize::from(owner);
        if self.of_owners.len() <= at {
            self.of_owners.resize(at + 1, 0);
        }
        let own = self.of_owners.get_mut(at)?;
        if !may_take(*own, used, PLACES) {
            return None;
        }
        let frame = self.free.pop().or_else(|| {
            let may = self.made < PLACES;
            self.made += usize::from(may);
            may.then(|| Box::new(HandedFrame::new()))
        })?;
        *own += 1;
        // The other worker's CPU has had the lines of those that are next.
        if let Some(later) = self.free.len().checked_sub(AHEAD).and_then(|at| self.free.get(at)) {
            later.prefetch_write();
        }
        Some(frame)
    }

    /// A description that is free again.
    fn put(&mut self, owner: u16, frame: Box<HandedFrame>) {
        if let Some(own) = self.of_owners.get_mut(usize::from(owner)) {
            *own = own.saturating_sub(1);
        }
        self.free.push(frame);
    }

    /// Sends what is to leave. True if anything left.
    fn send(&mut self) -> bool {
        // There are never more descriptions than places in a ring.
        let leaving = push_all(&mut self.to, &mut self.leaving);
        let back = push_all(&mut self.give_back, &mut self.done.lock());
        leaving || back
    }
}

/// Puts all of `frames` into a ring, to be seen together.
fn push_all(ring: &mut Producer<Box<HandedFrame>>, frames: &mut Vec<Box<HandedFrame>>) -> bool {
    if frames.is_empty() {
        return false;
    }
    let count = frames.len().min(ring.slots());
    if let Ok(chunk) = ring.write_chunk_uninit(count) {
        chunk.fill_from_iter(frames.drain(..count));
    }
    count > 0
}

/// Takes all that is in a ring now.
fn pop_all(ring: &mut Consumer<Box<HandedFrame>>, each: impl FnMut(Box<HandedFrame>)) {
    let count = ring.slots();
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
    /// For each of the workers with these requests.
    pub fn between(requests: &[Arc<Requests>]) -> Vec<Links> {
        let count = requests.len();
        let ring = || RingBuffer::<Box<HandedFrame>>::new(PLACES);
        // For each pair in order: the ring from one to the other, and the one in which they come back.
        let pairs = count * count;
        let (mut to, mut from) = (Vec::with_capacity(pairs), Vec::with_capacity(pairs));
        let (mut give_back, mut back) = (Vec::with_capacity(pairs), Vec::with_capacity(pairs));
        for _ in 0..if count > 1 { pairs } else { 0 } {
            let (producer, consumer) = ring();
            to.push(Some(producer));
            from.push(Some(consumer));
            let (producer, consumer) = ring();
            give_back.push(Some(producer));
            back.push(Some(consumer));
        }
        let mut link = |own: usize, other: usize, requests: &Arc<Requests>| {
            let (there, here) = (own * count + other, other * count + own);
            Some(Link {
                requests: requests.clone(),
                free: Vec::new(),
                made: 0,
                leaving: Vec::new(),
                to: to.get_mut(there)?.take()?,
                back: back.get_mut(there)?.take()?,
                from: from.get_mut(here)?.take()?,
                done: Done::default(),
                give_back: give_back.get_mut(here)?.take()?,
                of_owners: Vec::new(),
            })
        };
        let mut links = Vec::new();
        for own in 0..count {
            let others = requests.iter().enumerate();
            let list =
                others.map(|(other, requests)| if other == own { None } else { link(own, other, requests) });
            links.push(Links { list: list.collect(), ..Links::none() });
        }
        links
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

    /// Hands a frame over. False: there is no place for it.
    pub fn hand_over(&mut self, worker: usize, (lender, token): (Lender, Token), tx: &TxFrame<'_>) -> bool {
        let Some(link) = self.get_mut(worker) else { return false };
        let Some(mut frame) = link.take(lender.owner) else { return false };
        let described = frame.describe(lender, token, tx);
        if described {
            link.leaving.push(frame);
        } else {
            link.put(lender.owner, frame);
        }
        described
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

    /// What a port had lent is not asked for any more.
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
            if let Some(link) = link {
                pop_all(&mut link.from, |frame| {
                    frame.prefetch();
                    each(worker, frame);
                });
            }
        }
    }

    /// This worker's frames that others are done with.
    pub fn take_back(&mut self, mut each: impl FnMut(Lender, Token)) {
        for link in self.list.iter_mut().flatten() {
            let Link { back, free, of_owners, .. } = link;
            pop_all(back, |frame| {
                let (lender, token) = (frame.lender, frame.token);
                if let Some(own) = of_owners.get_mut(usize::from(lender.owner)) {
                    *own = own.saturating_sub(1);
                }
                free.push(frame);
                each(lender, token);
            });
        }
    }

    /// Something lies in a ring for this worker.
    pub fn has_waiting(&self) -> bool {
        self.list.iter().flatten().any(|link| !link.from.is_empty() || !link.back.is_empty())
    }

    /// Something is to leave, or to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.arrived.is_empty()
            || self.list.iter().flatten().any(|link| !link.leaving.is_empty() || !link.done.lock().is_empty())
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
