//! Queue pairs of a previous daemon: what is recorded of them, and how they are restored.

use std::collections::HashMap;

use vmlane_mem::MemoryMap;
use vmlane_port::{End, Resumed, Side, StreamEnd, StreamId};
use vmlane_state::{Reader, Writer};
use vmlane_vsock::Key;
use vmlane_wire::vmci::{Handle, MAX_QUEUE_PAIR};

use super::broker::notifiers;
use super::guest_queues::GuestQueues;
use super::port::QueuePairPort;
use super::{Pair, PairState, Waiting};
use crate::vmci::record::PairParts;
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
    gone: [bool; 2],
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
            // The other end does not outlive the daemon, and the guest has none yet.
            PairState::Offered => out.u8(JOINED).flag(true).flag(true),
            PairState::Joined { gone, .. } => out.u8(JOINED).flag(gone[0]).flag(gone[1]),
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
            CREATED => (false, [false, true]),
            JOINED => (true, [from.flag()?, from.flag()?]),
            _ => return None,
        };
        from.end()?;
        let state = PairState::Joined { stream: StreamId { worker: 0, number: u64::MAX }, gone };
        let ranges = Default::default();
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

impl Hypervisor {
    /// Restores a pair of a previous daemon. `maps`: the memory of the guests that are there. False: it
    /// cannot be gone on with.
    pub(in crate::vmci) fn resume_pair(
        &self,
        inner: &mut Inner,
        record: PairRecord,
        parts: PairParts,
        maps: &HashMap<u32, MemoryMap>,
    ) -> bool {
        let PairRecord { handle, orphan, mut pair, joined, mut gone } = record;
        let cids = [Some(pair.creator), pair.attacher];
        let taken = match orphan {
            Some(cid) => inner.orphans.contains_key(&(cid, handle)),
            None => inner.pairs.contains_key(&handle),
        };
        if taken {
            return false;
        }
        let PairParts { pages, told, mut spill } = parts;
        let mut waiting: [Option<Waiting>; 2] = [None, None];
        for side in Side::BOTH {
            let end = side as usize;
            if gone[end] {
                continue;
            }
            let sizes = [pair.produce_size, pair.consume_size];
            let (to_peer, from_peer) =
                if side == Side::A { (sizes[0], sizes[1]) } else { (sizes[1], sizes[0]) };
            let found = cids[end].and_then(|cid| {
                let (page, list) = pages[end].as_ref()?;
                let pages = |size: u64| usize::try_from(size.div_ceil(*page as u64)).ok()?.checked_add(1);
                let (produce, consume) = (pages(to_peer)?, pages(from_peer)?);
                if list.len() != produce.checked_add(consume)? {
                    return None;
                }
                Waiting::resolve(maps.get(&cid)?, page.trailing_zeros(), list, produce)
            });
            match found {
                Some(found) => {
                    pair.ranges[end] = found.ranges();
                    waiting[end] = Some(found);
                }
                // Its VM, or its memory, is not there any more.
                None if joined => gone[end] = true,
                None => return false,
            }
        }
        // An endpoint of another kind did not outlive the previous daemon: the guest's connection is reset.
        let has_device = |cid: &u32| inner.contexts.get(cid).is_some_and(|context| context.inbox.is_some());
        if gone == [true; 2] || (joined && !cids.iter().flatten().all(has_device)) {
            return false;
        }
        if joined {
            let Some(stream) = self.resume_stream(inner, handle, &pair, gone, waiting, told, &mut spill)
            else {
                return false;
            };
            pair.state = PairState::Joined { stream, gone };
        } else if let [Some(pages), _] = waiting {
            pair.state = PairState::Created(Box::new(pages));
        } else {
            return false;
        }
        for side in Side::BOTH.into_iter().filter(|side| !gone[*side as usize]) {
            if let Some(context) = cids[side as usize].and_then(|cid| inner.contexts.get_mut(&cid)) {
                context.pairs += 1;
                context.pair_bytes += pair.bytes();
            }
        }
        match orphan {
            Some(cid) => inner.orphans.insert((cid, handle), pair),
            None => inner.pairs.insert(handle, pair),
        };
        true
    }

    #[allow(clippy::too_many_arguments)] // all that is known of one pair
    fn resume_stream(
        &self,
        inner: &mut Inner,
        handle: Handle,
        pair: &Pair,
        gone: [bool; 2],
        waiting: [Option<Waiting>; 2],
        told: [u8; 2],
        spill: &mut [Option<(u64, Vec<u8>)>; 2],
    ) -> Option<StreamId> {
        let cids = [pair.creator, pair.attacher?];
        let context = |cid: u32| {
            let context = inner.contexts.get(&cid)?;
            Some((context.inbox.clone()?, context.budget.clone(), context.slow))
        };
        let sides = [context(cids[0])?, context(cids[1])?];
        let own = pair
            .connection
            .filter(|key| inner.connections.get(key).is_some_and(|connection| connection.is_about(handle)));
        let place = (self.log.clone(), pair.serial);
        let notifiers = notifiers(inner, handle, cids, own, [&sides[0].0, &sides[1].0], place);
        for (notifier, told) in notifiers.iter().zip(told) {
            notifier.restore_told(told);
        }
        let mut marks: [Vec<End>; 2] = Default::default();
        if let Some(connection) = own.and_then(|key| inner.connections.get(&key)) {
            if connection.is_attached() {
                notifiers[0].attached();
            }
            marks = connection.pending_ends();
            for (notifier, end) in notifiers.iter().zip(connection.refusals()) {
                end.into_iter().for_each(|end| notifier.end(end));
            }
        }
        let mut queues = [None, None];
        for ((queue, waiting), notifier) in queues.iter_mut().zip(waiting).zip(&notifiers) {
            *queue = waiting.map(|pages| {
                GuestQueues::new(pages.produce, pages.consume, pages.page_size, notifier.clone())
            });
        }
        let shown = [0, 1].map(|end: usize| queues[end].as_ref().map(GuestQueues::shown));
        let mut resumed = Resumed { ends: [None, None], left: Default::default(), marks };
        for (end, queues) in queues.into_iter().enumerate() {
            let sizes = [pair.produce_size, pair.consume_size];
            let (produce, consume) = if end == 0 { (sizes[0], sizes[1]) } else { (sizes[1], sizes[0]) };
            let (Some(queues), Some(own)) = (queues, shown[end]) else {
                resumed.marks[end].push(End::Detached);
                continue;
            };
            // What the peer was shown last says how far this end's bytes have gone.
            let cur = shown[1 - end].map(|(_, tail)| tail);
            let port = QueuePairPort::resumed(queues, produce, consume, own, cur);
            let Some(port) = port else {
                notifiers.iter().for_each(|notifier| notifier.end(End::Detached));
                return Some(StreamId { worker: 0, number: u64::MAX });
            };
            if gone[1 - end]
                && let Some((from, bytes)) = spill[end].take()
                && consume > 0
            {
                let delivered = (own.1 + consume - from % consume) % consume;
                let rest = bytes.get(delivered as usize..).unwrap_or_default();
                resumed.left[1 - end] = (rest.to_vec(), Some(sides[1 - end].1.clone()));
            }
            let (_, budget, slow) = &sides[end];
            resumed.ends[end] = Some(StreamEnd { port: Box::new(port), budget: budget.clone(), slow: *slow });
        }
        let stream = self.streams.resume(resumed);
        if let Some(connection) = own.and_then(|key| inner.connections.get_mut(&key)) {
            connection.joined(stream, notifiers.map(Some));
        }
        Some(stream)
    }
}
