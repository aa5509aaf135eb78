//! Queue pairs of a previous daemon: what is recorded of them, and how they are restored.

use std::collections::HashMap;
use std::sync::Arc;

use vmlane_mem::MemoryMap;
use vmlane_port::queue_pair::QueuePairPort;
use vmlane_port::{Budget, End, Resumed, Shutdown, Side, StreamEnd, StreamId};
use vmlane_state::{Reader, Writer};
use vmlane_vsock::{Failed, Key, Role};
use vmlane_wire::vmci::{Handle, MAX_QUEUE_PAIR};

use super::broker::notifiers;
use super::guest_queues::GuestQueues;
use super::{NO_STREAM, Pair, PairState, Waiting};
use crate::vmci::connection::{ANNOUNCED_RECEIVE, ANNOUNCED_RESET, ANNOUNCED_SEND};
use crate::vmci::record::PairParts;
use crate::vmci::sides::Sides;
use crate::vmci::tables::{Hypervisor, Inner};

/// Parts of a pair's record.
const CREATED: u8 = 0;
const JOINED: u8 = 1;

/// A pair as recorded.
pub(in crate::vmci) struct PairRecord {
    pub handle: Handle,
    /// By the end that is left, if the creator was reset.
    pub orphan: Option<u32>,
    pub pair: Pair,
    joined: bool,
    gone: Sides<bool>,
}

impl Pair {
    pub fn to_record(&self, handle: Handle, orphan: Option<u32>) -> Vec<u8> {
        let mut out = Writer::new();
        out.u32(handle.context).u32(handle.resource).option(orphan.map(u64::from));
        out.u32(self.creator).option(self.attacher.map(u64::from)).u32(self.peer).u32(self.flags);
        out.u64(self.produce_size).u64(self.consume_size);
        out.flag(self.connection.is_some());
        if let Some(Key { client, server }) = self.connection {
            out.u32(client.0).u32(client.1).u32(server.0).u32(server.1);
        }
        match &self.state {
            PairState::Created(_) => out.u8(CREATED),
            // The guest has no end yet.
            PairState::Offered => out.u8(JOINED).flag(true).flag(true),
            PairState::Joined { gone, .. } => out.u8(JOINED).flag(gone.a).flag(gone.b),
        };
        out.0
    }

    pub fn from_record(serial: u64, record: &[u8]) -> Option<PairRecord> {
        let mut from = Reader::new(record);
        let cid = |word: Option<u64>| word.map(|cid| cid as u32);
        let handle = Handle::new(from.u32()?, from.u32()?);
        let orphan = cid(from.option()?);
        let (creator, attacher) = (from.u32()?, cid(from.option()?));
        if orphan.is_some() && orphan != attacher {
            return None;
        }
        let (peer, flags) = (from.u32()?, from.u32()?);
        let (produce_size, consume_size) = (from.u64()?, from.u64()?);
        if produce_size.checked_add(consume_size)? > MAX_QUEUE_PAIR {
            return None;
        }
        let connection = match from.flag()? {
            true => Some(Key { client: (from.u32()?, from.u32()?), server: (from.u32()?, from.u32()?) }),
            false => None,
        };
        let (joined, gone) = match from.u8()? {
            CREATED => (false, Sides::new(false, true)),
            JOINED => (true, Sides::new(from.flag()?, from.flag()?)),
            _ => return None,
        };
        from.end()?;
        let state = PairState::Joined { stream: NO_STREAM, gone };
        let ranges = Sides::default();
        let pair = Pair {
            serial,
            creator,
            attacher,
            peer,
            flags,
            produce_size,
            consume_size,
            state,
            ranges,
            connection,
            call: None,
        };
        Some(PairRecord { handle, orphan, pair, joined, gone })
    }
}

/// What is left of the two ends of a joined pair.
struct Ends {
    gone: Sides<bool>,
    pages: Sides<Option<Waiting>>,
    /// Ends that each side was notified of.
    notified: Sides<u8>,
    /// What each side's peer has left for it, and the tail where that begins.
    overflow: Sides<Option<(u64, Vec<u8>)>>,
}

/// The pages of an end whose rings have these sizes, if what is recorded of them fits and they are still
/// there.
fn pages_of(
    (to_peer, from_peer): (u64, u64),
    (page, list): &(usize, Vec<u64>),
    map: &MemoryMap,
) -> Option<Waiting> {
    let pages = |size: u64| usize::try_from(size.div_ceil(*page as u64)).ok()?.checked_add(1);
    let (produce, consume) = (pages(to_peer)?, pages(from_peer)?);
    if list.len() != produce.checked_add(consume)? {
        return None;
    }
    Waiting::resolve(map, page.trailing_zeros(), list, produce)
}

/// What is left of the bytes that a peer has left behind, from the index that they begin at, for a ring of
/// `size` bytes whose tail is `tail`.
fn rest_of(overflow: Option<(u64, Vec<u8>)>, tail: u64, size: u64) -> Vec<u8> {
    let Some((from, bytes)) = overflow.filter(|_| size > 0) else { return Vec::new() };
    let delivered = (tail + size - from % size) % size;
    bytes.get(delivered as usize..).unwrap_or_default().to_vec()
}

impl Hypervisor {
    /// Restores a pair of a previous daemon. `maps`: the memory of the guests that are there. False: it
    /// cannot be resumed.
    pub(in crate::vmci) fn resume_pair(
        &self,
        inner: &mut Inner,
        record: PairRecord,
        parts: PairParts,
        maps: &HashMap<u32, MemoryMap>,
    ) -> bool {
        let PairRecord { handle, orphan, mut pair, joined, mut gone } = record;
        let cids = Sides::new(Some(pair.creator), pair.attacher);
        // Serial numbers are the records' keys: no two orphans have one name.
        if orphan.is_none() && inner.pairs.contains_key(&handle) {
            return false;
        }
        let all_guests = cids.into_array().into_iter().flatten().all(|cid| inner.contexts.is_guest(cid));
        if joined && !all_guests {
            return orphan.is_none()
                && self.resume_routed(inner, (handle, pair), gone, parts, maps).is_some();
        }
        let mut pages: Sides<Option<Waiting>> = Sides::default();
        for side in Side::BOTH {
            if gone[side] {
                continue;
            }
            let known = cids[side].and_then(|cid| maps.get(&cid)).zip(parts.pages[side].as_ref());
            match known.and_then(|(map, known)| pages_of(pair.sizes(side), known, map)) {
                Some(found) => {
                    pair.ranges[side] = found.ranges();
                    pages[side] = Some(found);
                }
                // Its VM, or its memory, is not there any more.
                None if joined => gone[side] = true,
                None => return false,
            }
        }
        if gone.a && gone.b {
            return false;
        }
        if joined {
            let ends = Ends { gone, pages, notified: parts.notified, overflow: parts.overflow };
            let Some(stream) = self.resume_stream(inner, handle, &pair, ends) else { return false };
            pair.state = PairState::Joined { stream, gone };
        } else if let Some(pages) = pages.a {
            pair.state = PairState::Created(Box::new(pages));
        } else {
            return false;
        }
        for side in Side::BOTH.into_iter().filter(|side| !gone[*side]) {
            if let Some(context) = cids[side].and_then(|cid| inner.contexts.get_mut(cid)) {
                context.pairs += 1;
                context.pair_bytes += pair.bytes();
            }
        }
        match orphan {
            Some(cid) => inner.pairs.insert_orphan(cid, handle, pair),
            None => inner.pairs.insert(handle, pair),
        }
        true
    }

    /// Restores a joined pair of which one end belongs to an endpoint of another kind: with that one's end,
    /// if it was restored, or with what that has left. None: it cannot be resumed.
    fn resume_routed(
        &self,
        inner: &mut Inner,
        (handle, mut pair): (Handle, Pair),
        gone: Sides<bool>,
        mut parts: PairParts,
        maps: &HashMap<u32, MemoryMap>,
    ) -> Option<()> {
        let key = pair.connection?;
        let cids = Sides::new(pair.creator, pair.attacher?);
        let side = Side::BOTH.into_iter().find(|side| inner.contexts.is_guest(cids[*side]))?;
        let (cid, peer) = (cids[side], side.other());
        let connection = inner.connections.get(&key);
        let connection = connection.filter(|own| own.is_about(handle) && own.is_attached())?;
        let (announced, role) = (connection.announced(), Role::of(side));
        if gone[side] {
            return None;
        }
        let pages = pages_of(pair.sizes(side), parts.pages[side].as_ref()?, maps.get(&cid)?)?;
        pair.ranges[side] = pages.ranges();
        let our = self.guest_end(inner, (key, handle, pair.serial), (cid, side)).ok()?;
        let notifier = our.notifier.clone();
        notifier.restore_notified(parts.notified[side]);
        notifier.attached();
        let Waiting { produce, consume, page_size } = pages;
        let queues = GuestQueues::new(produce, consume, page_size, notifier.clone());
        let (produce, consume) = pair.sizes(side);
        let shown = queues.shown();
        let overflow = parts.overflow[side].take();
        // One that has left its bytes has left, whether or not its device knows.
        let restored = if overflow.is_some() { None } else { self.router.take_restored(key, role.other()) };
        let stream = match restored {
            Some((call, restored)) => {
                let cur = restored.counts.sent().checked_rem(produce);
                let port = |cur| QueuePairPort::resumed(queues, produce, consume, shown, Some(cur));
                let port = cur.and_then(port).filter(|_| restored.counts.resume(shown.1, consume));
                let Some(port) = port else {
                    tracing::warn!(
                        ?key,
                        "a connection does not go on: its rings do not match what its ends have recorded"
                    );
                    restored.remote.failed(call, Failed::Gone);
                    return None;
                };
                inner.others.rejoin((call, restored), our.end(port)).map(|(call, stream)| {
                    pair.call = Some(call);
                    inner.others.join(call, handle, stream);
                    stream
                })?
            }
            None if gone[peer] => {
                let port = QueuePairPort::resumed(queues, produce, consume, shown, None)?;
                let mut ends: Sides<Option<StreamEnd>> = Sides::default();
                let mut left: Sides<(Vec<u8>, Option<Arc<Budget>>)> = Sides::default();
                let mut marks: Sides<Vec<End>> = Sides::default();
                ends[side] = Some(our.end(port));
                left[peer] = (rest_of(overflow, shown.1, consume), None);
                marks[peer].push(End::Detached);
                let (ends, left, marks) = (ends.into_array(), left.into_array(), marks.into_array());
                self.streams.resume(Resumed { ends, left, marks })
            }
            None => return None,
        };
        for (bit, what) in [(ANNOUNCED_RECEIVE, Shutdown::Receive), (ANNOUNCED_SEND, Shutdown::Send)] {
            if announced[side] & bit != 0 {
                self.streams.shutdown(stream, side, what);
            }
        }
        if announced[side] & ANNOUNCED_RESET != 0 {
            self.streams.reset(stream, side);
        }
        let mut notifiers = Sides::default();
        notifiers[side] = Some(notifier);
        if let Some(connection) = inner.connections.get_mut(&key) {
            connection.joined(stream, notifiers);
            connection.call = pair.call;
        }
        let context = inner.contexts.get_mut(cid)?;
        context.pairs += 1;
        context.pair_bytes += pair.bytes();
        let mut left = gone;
        left[peer] = pair.call.is_none();
        pair.state = PairState::Joined { stream, gone: left };
        inner.pairs.insert(handle, pair);
        Some(())
    }

    fn resume_stream(&self, inner: &mut Inner, handle: Handle, pair: &Pair, ends: Ends) -> Option<StreamId> {
        let Ends { gone, mut pages, notified, mut overflow } = ends;
        let cids = Sides::new(pair.creator, pair.attacher?);
        let context = |cid: u32| {
            let context = inner.contexts.get(cid)?;
            Some((context.inbox.clone(), context.budget.clone(), context.slow))
        };
        let contexts = Sides::new(context(cids.a)?, context(cids.b)?);
        let own = pair
            .connection
            .filter(|key| inner.connections.get(key).is_some_and(|connection| connection.is_about(handle)));
        let place = (self.log.clone(), pair.serial);
        let inboxes = contexts.each_ref().map(|(inbox, ..)| inbox);
        let notifiers = notifiers(inner, handle, cids, own, inboxes, place);
        for side in Side::BOTH {
            notifiers[side].restore_notified(notified[side]);
        }
        let mut marks: Sides<Vec<End>> = Sides::default();
        if let Some(connection) = own.and_then(|key| inner.connections.get(&key)) {
            if connection.is_attached() {
                notifiers.a.attached();
            }
            marks = connection.pending_ends();
            let refusals = connection.refusals();
            for side in Side::BOTH {
                refusals[side].into_iter().for_each(|end| notifiers[side].end(end));
            }
        }
        let mut queues = Sides::from_fn(|side| {
            let Waiting { produce, consume, page_size } = pages[side].take()?;
            Some(GuestQueues::new(produce, consume, page_size, notifiers[side].clone()))
        });
        let shown = queues.each_ref().map(|queues| queues.as_ref().map(GuestQueues::shown));
        let mut ends: Sides<Option<StreamEnd>> = Sides::default();
        let mut left: Sides<(Vec<u8>, Option<Arc<Budget>>)> = Sides::default();
        for side in Side::BOTH {
            let peer = side.other();
            let (Some(queues), Some(own)) = (queues[side].take(), shown[side]) else {
                marks[side].push(End::Detached);
                continue;
            };
            let (produce, consume) = pair.sizes(side);
            // What the peer was shown last shows how far this end's bytes have gone.
            let cur = shown[peer].map(|(_, tail)| tail);
            let Some(port) = QueuePairPort::resumed(queues, produce, consume, own, cur) else {
                Side::BOTH.into_iter().for_each(|side| notifiers[side].end(End::Detached));
                return Some(NO_STREAM);
            };
            if gone[peer] {
                let rest = rest_of(overflow[side].take(), own.1, consume);
                left[peer] = (rest, Some(contexts[peer].1.clone()));
            }
            let (_, budget, slow) = &contexts[side];
            ends[side] =
                Some(StreamEnd { port: Box::new(port), budget: budget.clone(), slow: *slow, worker: None });
        }
        let (ends, left, marks) = (ends.into_array(), left.into_array(), marks.into_array());
        let stream = self.streams.resume(Resumed { ends, left, marks });
        if let Some(connection) = own.and_then(|key| inner.connections.get_mut(&key)) {
            connection.joined(stream, notifiers.map(Some));
        }
        Some(stream)
    }
}
