//! Queue pairs come about: created by one VM, attached by another, joined.

use std::sync::Arc;

use vmlane_port::queue_pair::{Protocol, QueuePairPort};
use vmlane_port::{Budget, Side, StreamEnd};
use vmlane_state::Journal;
use vmlane_vsock::{Event, Key};
use vmlane_wire::vmci::{
    CID_ANY, CID_HOST, EVENT_RESOURCE, FIRST_FREE_RESOURCE, Handle, MAX_QUEUE_PAIR, QP_ALL_FLAGS,
    QP_ASYMMETRIC, QP_ATTACH_ONLY, QP_LOCAL, QueuePairAlloc, QueuePairEvent, VmciError, datagram, event,
};
use zerocopy::{FromBytes, IntoBytes};

use super::guest_queues::{GuestQueues, initialise_headers};
use super::{NO_STREAM, Pair, PairState, Ranges, Waiting};
use crate::vmci::caller::{Caller, shifted};
use crate::vmci::inbox::{Inbox, MAX_OWN};
use crate::vmci::notice::Address;
use crate::vmci::notifier::{Notifier, Place};
use crate::vmci::record::{self, Dirty};
use crate::vmci::sides::Sides;
use crate::vmci::stats::{Quota, Refusal};
use crate::vmci::tables::{Hypervisor, Inner};

const BAD_ARGS: Refusal = Refusal::QueuePair(VmciError::InvalidArgs);

/// An ALLOC that has been checked as far as it goes without the tables.
struct Request {
    handle: Handle,
    peer: u32,
    flags: u32,
    produce_size: u64,
    consume_size: u64,
    pages: Waiting,
    ranges: Ranges,
    /// Addresses of the pages, for the next daemon.
    list: Vec<u64>,
}

impl Request {
    /// Every number is checked against the others before anything is derived from it.
    fn parse(caller: Caller<'_>, payload: &[u8]) -> Result<Request, Refusal> {
        let (call, list) =
            QueuePairAlloc::read_from_prefix(payload).map_err(|_| Refusal::Size(VmciError::InvalidArgs))?;
        let handle = Handle::from(call.handle);
        let (flags, peer) = (call.flags.get(), call.peer.get());
        let (produce_size, consume_size) = (call.produce_size.get(), call.consume_size.get());
        let total = produce_size.checked_add(consume_size).ok_or(BAD_ARGS)?;
        if handle.context == CID_ANY
            || handle.resource < FIRST_FREE_RESOURCE
            || handle.resource == CID_ANY
            || flags & !QP_ALL_FLAGS != 0
            || flags & QP_LOCAL != 0
            || total == 0
        {
            return Err(BAD_ARGS);
        }
        if total > MAX_QUEUE_PAIR {
            return Err(Refusal::Quota(Quota::QueuePairBytes));
        }
        let page = 1u64 << caller.pages.shift;
        let produce_pages = produce_size.div_ceil(page) + 1;
        let count = produce_pages + consume_size.div_ceil(page) + 1;
        let width = if caller.pages.ppn64 { 8 } else { 4 };
        if call.num_ppns.get() != count || (list.len() as u64) < count * width {
            return Err(BAD_ARGS);
        }
        let address = |ppn: &[u8]| {
            let mut bytes = [0; 8];
            bytes.iter_mut().zip(ppn).for_each(|(to, from)| *to = *from);
            // Out of range on overflow: no region has this address.
            shifted(u64::from_le_bytes(bytes), caller.pages.shift).unwrap_or(u64::MAX)
        };
        let list: Vec<u64> = list.chunks_exact(width as usize).take(count as usize).map(address).collect();
        let pages = Waiting::resolve(caller.memory, caller.pages.shift, &list, produce_pages as usize);
        let pages = pages.ok_or(Refusal::Address)?;
        let ranges = pages.ranges();
        Ok(Request { handle, peer, flags, produce_size, consume_size, pages, ranges, list })
    }
}

impl Hypervisor {
    pub(in crate::vmci) fn queue_pair_alloc(
        &self,
        caller: Caller<'_>,
        payload: &[u8],
    ) -> Result<i32, Refusal> {
        let request = Request::parse(caller, payload)?;
        let mut inner = self.inner.lock();
        let limits = inner.contexts.known(caller.cid)?.limits;
        let context = inner.contexts.known(caller.cid)?;
        if context.pairs >= limits.queue_pairs {
            return Err(Refusal::Quota(Quota::QueuePairs));
        }
        if context.pair_bytes + request.produce_size + request.consume_size > context.queue_pair_bytes() {
            return Err(Refusal::Quota(Quota::QueuePairBytes));
        }
        let bytes = request.produce_size + request.consume_size;
        if inner.pairs.contains_key(&request.handle) {
            self.attach(&mut inner, caller.cid, request)?;
        } else {
            create(&mut inner, caller.cid, request, self.log.as_deref())?;
        }
        let context = inner.contexts.known_mut(caller.cid)?;
        context.pairs += 1;
        context.pair_bytes += bytes;
        context.stats.queue_pairs.inc();
        self.commit_result(&mut inner, caller, 0);
        drop(inner);
        self.run_after();
        Ok(0)
    }

    fn attach(&self, inner: &mut Inner, cid: u32, request: Request) -> Result<(), Refusal> {
        let pair = inner.pairs.get(&request.handle).ok_or(BAD_ARGS)?;
        pair_accepts(inner, pair, cid, &request)?;
        if matches!(pair.state, PairState::Offered) {
            return self.attach_to_offered(inner, cid, request);
        }
        let (creator, connection) = (pair.creator, pair.connection);
        let ends = [creator, cid].map(|end| {
            inner
                .contexts
                .get(end)
                .map(|context| (context.inbox.clone(), context.budget.clone(), context.slow))
        });
        let [Some(first), Some(second)] = ends else { return Err(Refusal::Destination) };
        // A guest that never fetches what is queued about its pairs gets no more of them.
        if first.0.own() >= MAX_OWN || second.0.own() >= MAX_OWN {
            return Err(Refusal::Quota(Quota::Notices));
        }
        let place = (self.log.clone(), pair.serial);
        let (cids, inboxes) = (Sides::new(creator, cid), Sides::new(&first.0, &second.0));
        let notifiers = notifiers(inner, request.handle, cids, connection, inboxes, place);
        let (serial, list) = (pair_serial(inner, request.handle), &request.list);
        inner.dirty.push(Dirty::Pair(serial));
        if let Some(log) = &self.log {
            log.stage((record::PAGES, serial, Side::B as u64), &record::pages(request.pages.page_size, list));
        }
        let pair = inner.pairs.get_mut(&request.handle).ok_or(BAD_ARGS)?;
        // Taken out only now that nothing can fail any more.
        let placeholder = PairState::Joined { stream: NO_STREAM, gone: Sides::default() };
        let PairState::Created(waiting) = std::mem::replace(&mut pair.state, placeholder) else {
            return Err(Refusal::QueuePair(VmciError::Unavailable));
        };
        initialise_headers(&request.pages.produce, &request.pages.consume, request.handle);
        let [creator_notifier, attacher_notifier] = notifiers.clone().into_array();
        let end = |pages: Waiting, notifier, produce, consume, budget, slow| {
            let queues = GuestQueues::new(pages.produce, pages.consume, pages.page_size, notifier);
            StreamEnd {
                port: Box::new(QueuePairPort::new(queues, produce, consume)),
                budget,
                slow,
                worker: None,
            }
        };
        let (produce, consume) = (pair.produce_size, pair.consume_size);
        let stream = self.streams.join([
            end(*waiting, creator_notifier, produce, consume, first.1, first.2),
            end(request.pages, attacher_notifier, consume, produce, second.1, second.2),
        ]);
        pair.state = PairState::Joined { stream, gone: Sides::default() };
        pair.ranges.b = request.ranges;
        inner.pairs.attach(&request.handle, cid);
        if let Some(connection) = connection.and_then(|key| inner.connections.get_mut(&key)) {
            connection.joined(stream, notifiers.map(Some));
        }
        let event = QueuePairEvent::new(event::QP_PEER_ATTACH, request.handle, cid);
        let dst = Handle::new(creator, EVENT_RESOURCE);
        first.0.push_own(datagram(dst, Handle::new(0, 0), event.as_bytes()).into());
        Ok(())
    }

    /// A guest attaches to what the device offered.
    fn attach_to_offered(&self, inner: &mut Inner, cid: u32, request: Request) -> Result<(), Refusal> {
        let Request { handle, pages, ranges, list, .. } = request;
        let pair = inner.pairs.get(&handle).ok_or(BAD_ARGS)?;
        let key = pair.connection.ok_or(BAD_ARGS)?;
        let list = record::pages(pages.page_size, &list);
        initialise_headers(&pages.produce, &pages.consume, handle);
        self.join(inner, key, handle, (cid, Side::B), pages)?;
        if let Some(pair) = inner.pairs.get_mut(&handle) {
            pair.ranges.b = ranges;
            inner.dirty.push(Dirty::Pair(pair.serial));
            if let Some(log) = &self.log {
                log.stage((record::PAGES, pair.serial, Side::B as u64), &list);
            }
        }
        inner.pairs.attach(&handle, cid);
        Ok(())
    }

    /// The pair that a guest has created and offered on `key` is joined with an endpoint of another kind.
    pub(in crate::vmci) fn join_created(
        &self,
        inner: &mut Inner,
        key: Key,
        handle: Handle,
    ) -> Result<(), Refusal> {
        let pair = inner.pairs.get_mut(&handle).ok_or(BAD_ARGS)?;
        let creator = pair.creator;
        let PairState::Created(waiting) = std::mem::replace(&mut pair.state, PairState::Offered) else {
            return Err(BAD_ARGS);
        };
        self.join(inner, key, handle, (creator, Side::A), *waiting)?;
        if let Some(pair) = inner.pairs.get_mut(&handle) {
            pair.connection = Some(key);
            inner.dirty.push(Dirty::Pair(pair.serial));
        }
        inner.pairs.attach(&handle, key.server.0);
        Ok(())
    }

    /// Joins the guest `cid`, whose `pages` those are, as `side` with the other end, which the router has.
    fn join(
        &self,
        inner: &mut Inner,
        key: Key,
        handle: Handle,
        (cid, side): (u32, Side),
        pages: Waiting,
    ) -> Result<(), Refusal> {
        let pair = inner.pairs.get(&handle).ok_or(BAD_ARGS)?;
        let (produce, consume) = pair.sizes(side);
        let our = self.guest_end(inner, (key, handle, pair.serial), (cid, side))?;
        if our.inbox.own() >= MAX_OWN {
            return Err(Refusal::Quota(Quota::Notices));
        }
        let call = inner.connections.get(&key).and_then(|own| own.call).ok_or(Refusal::Destination)?;
        let notifier = our.notifier.clone();
        let queues = GuestQueues::new(pages.produce, pages.consume, pages.page_size, notifier.clone());
        let ours = our.end(QueuePairPort::new(queues, produce, consume));
        let (event, notifiers) = match side {
            Side::A => (Event::Supply(ours), Sides::new(Some(notifier), None)),
            Side::B => (Event::Attach(ours), Sides::new(None, Some(notifier))),
        };
        let stream = inner.others.apply(call, event).ok_or(Refusal::Destination)?;
        if let Some(pair) = inner.pairs.get_mut(&handle) {
            pair.state = PairState::Joined { stream, gone: Sides::default() };
            pair.call = Some(call);
        }
        inner.others.join(call, handle, stream);
        if let Some(connection) = inner.connections.get_mut(&key) {
            connection.offer(handle);
            connection.joined(stream, notifiers);
        }
        Ok(())
    }

    /// What the end `side` of the pair `handle`, which the router joins, has of its guest `cid`.
    pub(super) fn guest_end(
        &self,
        inner: &Inner,
        (key, handle, serial): (Key, Handle, u64),
        (cid, side): (u32, Side),
    ) -> Result<GuestEnd, Refusal> {
        let context = inner.contexts.known(cid)?;
        let (inbox, budget, slow) = (context.inbox.clone(), context.budget.clone(), context.slow);
        let connection = inner.connections.get(&key).ok_or(Refusal::Destination)?;
        let known = connection.server_as_known(key);
        let address = match side {
            Side::A => Address { cid, port: key.client.1, peer_cid: known.0, peer_port: known.1 },
            Side::B => Address { cid, port: key.server.1, peer_cid: key.client.0, peer_port: key.client.1 },
        };
        // A connecting guest receives no notice before its ATTACH.
        let (peer, hold) = ((handle, address.peer_cid), side == Side::A);
        let place = Place { log: self.log.clone(), serial, side: side as u64 };
        let protocol = connection.protocol;
        let notifier = Notifier::new(inbox.clone(), cid, Some(address), peer, protocol, hold, place);
        Ok(GuestEnd { notifier, inbox, budget, slow })
    }
}

/// A guest's end of a pair that the router joins, without its rings.
pub(super) struct GuestEnd {
    pub notifier: Arc<Notifier>,
    inbox: Arc<Inbox>,
    budget: Arc<Budget>,
    slow: bool,
}

impl GuestEnd {
    pub fn end(self, port: QueuePairPort<GuestQueues>) -> StreamEnd {
        StreamEnd { port: Box::new(port), budget: self.budget, slow: self.slow, worker: None }
    }
}

/// The checks of an attach, in the order of Linux's broker (`vmci_queue_pair.c`).
fn pair_accepts(inner: &Inner, pair: &Pair, cid: u32, request: &Request) -> Result<(), Refusal> {
    if pair.side(cid).is_some() {
        return Err(Refusal::QueuePair(VmciError::AlreadyExists));
    }
    if !matches!(pair.state, PairState::Created(_) | PairState::Offered) {
        return Err(Refusal::QueuePair(VmciError::Unavailable));
    }
    // The creator knows a forwarded server as the host; whom it means is in the tracked connection.
    let named = match pair.connection {
        Some(key) => {
            key.server.0 == cid && inner.connections.get(&key).is_some_and(|own| own.is_about(request.handle))
        }
        None => pair.peer == CID_ANY || pair.peer == cid,
    };
    let expected = request.peer == CID_ANY || request.peer == pair.creator;
    if !named || !expected || !inner.contexts.may_talk(cid, pair.creator) {
        return Err(Refusal::QueuePair(VmciError::NoAccess));
    }
    let symmetric = |flags: u32| flags & !QP_ASYMMETRIC;
    if symmetric(pair.flags) != symmetric(request.flags)
        || pair.produce_size != request.consume_size
        || pair.consume_size != request.produce_size
    {
        return Err(Refusal::QueuePair(VmciError::QueuePairMismatch));
    }
    Ok(())
}

fn pair_serial(inner: &Inner, handle: Handle) -> u64 {
    inner.pairs.get(&handle).map_or(0, |pair| pair.serial)
}

fn create(inner: &mut Inner, cid: u32, request: Request, log: Option<&Journal>) -> Result<(), Refusal> {
    if request.flags & QP_ATTACH_ONLY != 0 {
        return Err(Refusal::QueuePair(VmciError::NotFound));
    }
    // Linux's broker also takes the peer's context; then one VM could use up another's handles.
    if request.handle.context != cid {
        return Err(Refusal::QueuePair(VmciError::NoAccess));
    }
    // A pair with a VM that the caller may not talk to could never be attached.
    if request.peer != CID_ANY && request.peer != CID_HOST && !inner.contexts.may_talk(cid, request.peer) {
        return Err(Refusal::QueuePair(VmciError::NoAccess));
    }
    initialise_headers(&request.pages.produce, &request.pages.consume, request.handle);
    let serial = inner.pairs.next_serial();
    inner.dirty.push(Dirty::Pair(serial));
    if let Some(log) = log {
        let pages = record::pages(request.pages.page_size, &request.list);
        log.stage((record::PAGES, serial, Side::A as u64), &pages);
    }
    inner.pairs.insert(
        request.handle,
        Pair {
            serial,
            creator: cid,
            attacher: None,
            peer: request.peer,
            flags: request.flags,
            produce_size: request.produce_size,
            consume_size: request.consume_size,
            state: PairState::Created(Box::new(request.pages)),
            ranges: Sides::new(request.ranges, Vec::new()),
            connection: None,
            call: None,
        },
    );
    Ok(())
}

/// What the device reports to creator and attacher, and in whose name.
pub(super) fn notifiers(
    inner: &Inner,
    handle: Handle,
    cids: Sides<u32>,
    connection: Option<Key>,
    inboxes: Sides<&Arc<Inbox>>,
    (log, serial): (Option<Arc<Journal>>, u64),
) -> Sides<Arc<Notifier>> {
    let connection = connection.and_then(|key| Some((key, inner.connections.get(&key)?)));
    let protocol = connection.map_or(Protocol::Qstate, |(_, connection)| connection.protocol);
    let addresses = connection.map(|(key, connection)| {
        let known = connection.server_as_known(key);
        let (client, server) = (key.client, key.server);
        Sides::new(
            Address { cid: client.0, port: client.1, peer_cid: known.0, peer_port: known.1 },
            Address { cid: server.0, port: server.1, peer_cid: client.0, peer_port: client.1 },
        )
    });
    Sides::from_fn(|side| {
        let address = addresses.map(|addresses| addresses[side]);
        let peer = address.map_or(cids[side.other()], |address| address.peer_cid);
        let place = Place { log: log.clone(), serial, side: side as u64 };
        let hold = side == Side::A && connection.is_some();
        Notifier::new(inboxes[side].clone(), cids[side], address, (handle, peer), protocol, hold, place)
    })
}
