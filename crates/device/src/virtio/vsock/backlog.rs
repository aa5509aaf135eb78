//! Packets of one VM that wait for their receivers' buffers.
//!
//! A packet waits in its sender's ring for a moment: buffers that come meanwhile get it with one copy. Then
//! it would delay what is behind it in the ring, to all receivers; so it is copied to here, and its chain is
//! completed. Chains stay completed in their order, by which the next owner of the ring finds those that are
//! left, and a ring is never full of chains that wait.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_mem::Spans;
use vmlane_port::fair::may_take;
use vmlane_wire::virtio_vsock::Header;

use super::kept::{Area, Block, Kept, Stored, Transaction};

/// How long a packet waits in the ring if its sender has connections with others, too, and if it has none:
/// then it delays no one but a new connection; and so if too much waits already.
pub const BESIDE_OTHERS: Duration = Duration::from_micros(200);
pub const ALONE: Duration = Duration::from_millis(20);
pub const ALONE_AND_FULL: Duration = Duration::from_millis(200);
/// A receiver that takes nothing for so long loses the connections of which something waits. A guest of a
/// machine with more guests than processors is easily kept from its own for some hundred milliseconds (Linux'
/// vhost-vsock waits without limit).
const LONGEST: Duration = Duration::from_secs(2);
/// Bytes that wait for all receivers of one VM together, with what each packet takes beside its payload. What
/// of it one receiver may have: [`may_take`].
const MOST: usize = 16 << 20;

/// A packet that waits.
pub struct Waiting {
    pub header: Header,
    /// Payload bytes that it has had.
    pub len: usize,
    /// What was left of them when it began to wait; those before `done` are delivered.
    pub bytes: Vec<u8>,
    pub done: usize,
    /// Where they are for the next daemon, too.
    block: Block,
}

impl Waiting {
    fn cost(&self) -> usize {
        Block::cost(self.bytes.len())
    }

    /// What its connection is known by, between these two VMs.
    fn name(header: &Header) -> (u32, u32, u16) {
        (header.src_port.get(), header.dst_port.get(), header.kind.get())
    }
}

/// What waits for one receiver, in order. Never empty.
struct Line {
    packets: VecDeque<Waiting>,
    /// What they cost.
    cost: usize,
    /// Since when the receiver has taken nothing; of a line of a previous daemon, since it is first asked
    /// for.
    since: Option<Instant>,
}

/// All that waits of one VM, by receiver.
#[derive(Default)]
pub struct Backlog {
    lines: BTreeMap<u32, Line>,
    /// What all of it costs.
    cost: usize,
    /// None while its device has had no rings: nothing waits then.
    area: Option<(Area, Arc<Transaction>)>,
}

impl Backlog {
    /// Its device has this file from here on. What waited there with a previous daemon waits here; what was
    /// here waits no more.
    pub fn bind(&mut self, kept: &Arc<Kept>, transaction: &Arc<Transaction>) {
        let (area, stored) = Area::open(kept.clone());
        *self = Backlog { area: Some((area, transaction.clone())), ..Backlog::default() };
        for Stored { block, receiver, header, len, bytes, done } in stored {
            self.append(receiver, Waiting { header, len, bytes, done, block }, None);
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Does something wait for `receiver`? What follows has to wait behind it.
    #[inline]
    pub fn waits_for(&self, receiver: u32) -> bool {
        self.lines.contains_key(&receiver)
    }

    /// The receivers, one after the other.
    pub fn next_receiver(&self, last: Option<u32>) -> Option<u32> {
        let from = last.map_or(Unbounded, Excluded);
        self.lines.range((from, Unbounded)).next().map(|(&receiver, _)| receiver)
    }

    /// Keeps what is left of a packet: `rest` of its payload, which ends there. It has waited since `since`.
    /// False: too much waits already.
    pub fn push(
        &mut self,
        receiver: u32,
        header: Header,
        (payload, rest): (&Spans, Range<usize>),
        since: Instant,
    ) -> bool {
        let own = self.lines.get(&receiver).map_or(0, |line| line.cost);
        if !may_take(own, self.cost, MOST) {
            return false;
        }
        let Some((area, transaction)) = &mut self.area else { return false };
        let (end, put) = (rest.end, area.put(transaction, (receiver, &header), (payload, rest)));
        let Some((block, bytes)) = put else { return false };
        self.append(receiver, Waiting { header, len: end, bytes, done: 0, block }, Some(since));
        true
    }

    /// Granules that were examined for room since this was last asked: much where others lie between packets
    /// that wait.
    pub fn take_searched(&mut self) -> usize {
        self.area.as_mut().map_or(0, |(area, _)| area.take_searched())
    }

    fn append(&mut self, receiver: u32, waiting: Waiting, since: Option<Instant>) {
        let new = || Line { packets: VecDeque::new(), cost: 0, since };
        let line = self.lines.entry(receiver).or_insert_with(new);
        line.cost += waiting.cost();
        self.cost += waiting.cost();
        line.packets.push_back(waiting);
    }

    /// What waits longest for `receiver`.
    pub fn first(&mut self, receiver: u32) -> Option<&mut Waiting> {
        self.lines.get_mut(&receiver)?.packets.front_mut()
    }

    /// The receiver has taken a part of it.
    pub fn moves(&mut self, receiver: u32, now: Instant) {
        let Some(line) = self.lines.get_mut(&receiver) else { return };
        line.since = Some(now);
        if let (Some(packet), Some((area, transaction))) = (line.packets.front(), &self.area) {
            area.moves(transaction, &packet.block, packet.done);
        }
    }

    /// The receiver has all of it.
    pub fn pop(&mut self, receiver: u32) {
        let Some(line) = self.lines.get_mut(&receiver) else { return };
        let packet = line.packets.pop_front();
        let cost = packet.as_ref().map_or(0, Waiting::cost);
        line.cost -= cost;
        self.cost -= cost;
        free(&mut self.area, packet.iter());
        if line.packets.is_empty() {
            self.lines.remove(&receiver);
        }
    }

    /// Has the receiver taken nothing for as long as it may?
    pub fn check_timeout(&mut self, receiver: u32, now: Instant) -> bool {
        let line = self.lines.get_mut(&receiver);
        let since = line.map(|line| *line.since.get_or_insert(now));
        since.is_some_and(|since| now.saturating_duration_since(since) >= LONGEST)
    }

    /// Nothing waits for `receiver` any more.
    pub fn forget(&mut self, receiver: u32) {
        let Some(line) = self.lines.remove(&receiver) else { return };
        self.cost -= line.cost;
        free(&mut self.area, line.packets.iter());
    }

    /// Nothing waits any more.
    pub fn clear(&mut self) {
        let receivers: Vec<u32> = self.lines.keys().copied().collect();
        receivers.into_iter().for_each(|receiver| self.forget(receiver));
    }

    /// The same; a packet of each connection of which something did.
    pub fn take(&mut self, receiver: u32) -> Vec<Header> {
        let Some(line) = self.lines.remove(&receiver) else { return Vec::new() };
        self.cost -= line.cost;
        free(&mut self.area, line.packets.iter());
        let mut names = HashSet::new();
        let headers = line.packets.iter().map(|packet| packet.header);
        headers.filter(|header| names.insert(Waiting::name(header))).collect()
    }

    /// Nothing waits of the connection that the packet `header` is of. How many packets were examined.
    pub fn forget_connection(&mut self, receiver: u32, header: &Header) -> usize {
        let Some(line) = self.lines.get_mut(&receiver) else { return 0 };
        let (count, before) = (line.packets.len(), line.cost);
        let stays = |packet: &Waiting| Waiting::name(&packet.header) != Waiting::name(header);
        free(&mut self.area, line.packets.iter().filter(|packet| !stays(packet)));
        line.packets.retain(stays);
        line.cost = line.packets.iter().map(Waiting::cost).sum();
        self.cost -= before - line.cost;
        if line.packets.is_empty() {
            self.lines.remove(&receiver);
        }
        count
    }
}

/// These packets' bytes are of no interest any more.
fn free<'p>(area: &mut Option<(Area, Arc<Transaction>)>, packets: impl Iterator<Item = &'p Waiting>) {
    if let Some((area, transaction)) = area {
        packets.for_each(|packet| area.remove(transaction, packet.block));
    }
}

#[cfg(test)]
mod tests {
    use vmlane_mem::{MapRequest, MemoryMap, memfd};
    use vmlane_wire::virtio_vsock::{kind, op};

    use super::*;

    /// A packet to a port.
    fn packet(port: u32) -> Header {
        Header::new((3, 1), (4, port), kind::STREAM, op::RW)
    }

    fn backlog(kept: &Arc<Kept>, transaction: &Arc<Transaction>) -> Backlog {
        let mut backlog = Backlog::default();
        backlog.bind(kept, transaction);
        backlog
    }

    fn new() -> (Arc<Kept>, Arc<Transaction>, Backlog) {
        let (kept, (transaction, _)) = (Kept::create().unwrap(), Transaction::create().unwrap());
        let backlog = backlog(&kept, &transaction);
        (kept, transaction, backlog)
    }

    fn payload(len: usize) -> Spans {
        let fd = memfd("payload", len as u64).unwrap();
        let request = MapRequest { guest: 0, len: len as u64, offset: 0, fd, writable: true };
        let mut spans = Spans::new(MemoryMap::default().map(request).unwrap(), false);
        spans.push(0, len).unwrap();
        spans
    }

    #[test]
    fn one_receiver_leaves_places_for_another_and_all_is_given_back() {
        const LEN: usize = 64 << 10;
        let ((_, _, mut backlog), payload, now) = (new(), payload(LEN), Instant::now());
        let fill = |backlog: &mut Backlog, receiver| {
            (0..1000).take_while(|_| backlog.push(receiver, packet(2), (&payload, 0..LEN), now)).count()
        };
        let [first, second, third] = [4, 5, 6].map(|receiver| fill(&mut backlog, receiver));
        assert!((124..=128).contains(&first), "half of all: {first}");
        assert!((62..=65).contains(&second) && (30..=33).contains(&third), "{second} {third}");
        assert_eq!((backlog.next_receiver(None), backlog.next_receiver(Some(5))), (Some(4), Some(6)));
        backlog.forget(4);
        (0..second).for_each(|_| backlog.pop(5));
        backlog.forget_connection(6, &packet(3));
        assert!(backlog.waits_for(6) && !backlog.waits_for(5));
        assert_eq!(backlog.forget_connection(6, &packet(2)), third);
        assert_eq!((backlog.is_empty(), backlog.cost), (true, 0));
    }

    #[test]
    fn a_receiver_that_takes_something_has_its_time_again() {
        let ((_, _, mut backlog), payload, now) = (new(), payload(4096), Instant::now());
        assert!(backlog.push(4, packet(2), (&payload, 0..100), now));
        assert!(!backlog.check_timeout(4, now + LONGEST / 2) && backlog.check_timeout(4, now + LONGEST));
        backlog.moves(4, now + LONGEST);
        assert!(!backlog.check_timeout(4, now + LONGEST) && !backlog.check_timeout(5, now + LONGEST));
    }

    /// What was valid when the last daemon died comes back, in order, as far as it was not delivered; places
    /// are used again.
    #[test]
    fn what_waits_outlives_the_daemon() {
        let ((kept, transaction, mut backlog), payload, now) = (new(), payload(3 << 12), Instant::now());
        for round in 0..300u32 {
            for (receiver, port) in [(4, 1), (5, 2), (4, 3)] {
                let rest = 1000..(3000 + 7 * port as usize + round as usize);
                assert!(backlog.push(receiver, packet(port), (&payload, rest), now));
            }
            transaction.commit();
            backlog.first(4).unwrap().done = 17;
            backlog.moves(4, now);
            backlog.pop(5);
            transaction.commit();
            // Of this nothing is valid.
            backlog.pop(4);
            backlog.push(4, packet(9), (&payload, 0..5000), now);
            let mut next = self::backlog(&kept, &transaction);
            assert!(!next.waits_for(5));
            let mut found = Vec::new();
            while let Some(packet) = next.first(4) {
                let len = packet.len - 1000;
                assert!(packet.bytes.len() == len && packet.bytes.iter().all(|byte| *byte == 0));
                found.push((packet.header.dst_port.get(), packet.done));
                next.pop(4);
            }
            assert_eq!(found, [(1, 17), (3, 0)]);
            assert_eq!((next.is_empty(), next.cost), (true, 0));
            backlog.clear();
            transaction.commit();
        }
        assert!(self::backlog(&kept, &transaction).is_empty());
    }
}
