//! One receive queue: packets are copied into posted buffers and completed.

use vmlane_mem::{Spans, Window};
use vmlane_port::{ChecksumStatus, DropReason, MAX_HEAD, Network, Refusal, RxFrame, Transport};
use vmlane_wire::ethernet::{MIN_FRAME, TAG};
use vmlane_wire::vmxnet3::desc::{MIN_HEAD, RxCompletion, RxLayers, error};

use super::counters;
use super::layout::{Buffer, Buffers, Missing, NoPlace};
use super::past;
use super::ring::{CompletionRing, Place, RxCommands};
use super::rss::Hash;
use super::tx::Stopped;
use crate::vmxnet3::setup::{Features, QueueCounters, RxSetup};

/// Buffers of a packet where the driver names no limit: what Linux's usual build takes.
const DEFAULT_LIMIT: usize = 18;

/// What a revision, the driver's limits and its features say about packets.
#[derive(Clone, Copy, Debug)]
pub struct RxRules {
    /// Bytes of the longest frame that is no aggregate, with an inner tag or two.
    pub frame: usize,
    /// Buffers of one packet.
    pub limit: usize,
    /// Completions tell segments and size of an aggregate.
    pub counts_segments: bool,
    pub features: Features,
}

impl RxRules {
    pub fn limit(max_rx_sg: u16) -> usize {
        match max_rx_sg {
            0 => DEFAULT_LIMIT,
            limit => usize::from(limit),
        }
    }
}

/// Memory that all queues of a NIC use for the packet in hand.
#[derive(Debug)]
pub struct Bench {
    pub into: Spans,
    pub buffers: Vec<Buffer>,
    pub scratch: Box<[u8; MAX_HEAD]>,
}

/// Why a packet was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    Refused(Refusal),
    Stopped(Stopped),
}

impl From<Refusal> for Undelivered {
    fn from(refusal: Refusal) -> Undelivered {
        Undelivered::Refused(refusal)
    }
}

/// One receive queue.
#[derive(Debug)]
pub struct RxQueue {
    buffers: Buffers,
    completions: CompletionRing,
    /// For each completion slot the buffer that it last told of, where completions are fewer than
    /// descriptors: the slot is free again when that buffer was posted anew.
    told: Option<Vec<Option<Buffer>>>,
    data: Option<(u64, u16)>,
    /// What the last packet that did not fit waits for.
    missing: Option<Missing>,
    /// Names of ring 0, ring 1 and the data ring in completions.
    names: [u16; 3],
    stopped: bool,
    pub vector: u8,
    pub descriptor: Window,
}

impl RxQueue {
    /// Queue `number` of `queues`.
    pub fn new(setup: RxSetup, number: u16, queues: u16, depth: Option<u16>) -> RxQueue {
        let descriptors =
            usize::from(setup.ring0.size) + setup.ring1.as_ref().map_or(0, |ring| ring.size.into());
        let completions = usize::from(setup.completions.size);
        RxQueue {
            buffers: Buffers::new(RxCommands::new(setup.ring0), setup.ring1.map(RxCommands::new), depth),
            completions: CompletionRing::new(setup.completions),
            told: (completions < descriptors).then(|| vec![None; completions]),
            data: setup.data,
            missing: None,
            names: [number, number + queues, number + 2 * queues],
            stopped: false,
            vector: setup.vector,
            descriptor: setup.descriptor,
        }
    }

    /// Was the last packet refused for want of buffers?
    pub fn is_starved(&self) -> bool {
        self.missing.is_some() && !self.stopped
    }

    /// Is what the last refused packet waited for there? Or, if none was refused, a head buffer?
    pub fn has_room(&mut self) -> bool {
        if self.stopped {
            return false;
        }
        match self.missing {
            Some(missing) => self.buffers.is_there(missing),
            None => self.buffers.head().is_ok(),
        }
    }

    /// See [`Buffers::largest`].
    pub fn largest(&mut self, rules: &RxRules) -> Option<usize> {
        self.buffers.largest(rules.limit)
    }

    /// Copies a packet into the next buffers and completes them. Returns how many completions.
    #[inline]
    pub fn deliver(
        &mut self,
        packet: &RxFrame<'_>,
        hash: Hash,
        rules: &RxRules,
        bench: &mut Bench,
        counters: &QueueCounters,
    ) -> Result<u32, Undelivered> {
        if self.stopped {
            return Err(Refusal::Drop(DropReason::BadReceiver).into());
        }
        let in_band = packet.tag.is_some() && !rules.features.rx_vlan;
        let len = packet.len() + if in_band { TAG } else { 0 };
        let need = len.max(MIN_FRAME);
        if let Some(place) = self.single(need, packet, bench) {
            write(packet, in_band, need, bench);
            let name = self.names[0];
            let one = common(packet, in_band, rules).buffer(place.index, name, need as u16).ends(true, true);
            self.completions.make_room(1);
            self.completions.push(|generation| one.rss(hash.kind, hash.value).words(generation));
            counters::received(counters, packet.head, len, None);
            return Ok(1);
        }
        let delivered = match self.data {
            Some((base, size)) if need <= usize::from(size) && packet.aggregate.is_none() => {
                self.place_in_data_ring(base, size, need, bench)
            }
            _ => self.place_in_buffers(need, rules, bench),
        };
        let data_ring = delivered.map_err(|no_place| self.no_place(no_place, counters))?;
        write(packet, in_band, need, bench);
        self.missing = None;
        let common = common(packet, in_band, rules);
        self.complete(common, packet, hash, rules, data_ring, &bench.buffers);
        counters::received(counters, packet.head, len, packet.aggregate);
        Ok(bench.buffers.len() as u32)
    }

    /// The ordinary case, quickly: one frame into one posted head buffer that is large enough. None:
    /// look closer.
    #[inline]
    fn single(&mut self, need: usize, packet: &RxFrame<'_>, bench: &mut Bench) -> Option<Place> {
        let ordinary = self.data.is_none() && self.told.is_none() && packet.aggregate.is_none();
        if !ordinary {
            return None;
        }
        let head = self.buffers.quick_head().filter(|head| head.len() >= need.max(MIN_HEAD))?;
        bench.into.set(head.addr, need).ok()?;
        bench.into.prefetch(self.buffers.ring0.look_ahead(), 1);
        self.missing = None;
        Some(self.buffers.take_head())
    }

    /// A slot of the data ring instead of the head's memory, which the driver keeps.
    #[inline]
    fn place_in_data_ring(
        &mut self,
        base: u64,
        size: u16,
        need: usize,
        bench: &mut Bench,
    ) -> Result<bool, NoPlace> {
        self.buffers.head()?;
        self.completions_left(1)?;
        let place = self.buffers.take_head();
        bench.buffers.clear();
        bench.buffers.push(Buffer { second: false, place, len: need as u16 });
        bench.into.clear();
        let slot = base.saturating_add(u64::from(place.index) * u64::from(size));
        bench.into.push(slot, need).map_err(|_| NoPlace::Broken)?;
        Ok(true)
    }

    #[inline]
    fn place_in_buffers(&mut self, need: usize, rules: &RxRules, bench: &mut Bench) -> Result<bool, NoPlace> {
        let layout = self.buffers.lay_out(need, rules.limit, &mut bench.into, &mut bench.buffers)?;
        self.completions_left(bench.buffers.len())?;
        self.buffers.take(layout);
        Ok(false)
    }

    /// Are `count` completion slots free?
    #[inline]
    fn completions_left(&self, count: usize) -> Result<(), NoPlace> {
        let Some(told) = &self.told else { return Ok(()) };
        if count > told.len() {
            return Err(NoPlace::Refused(Refusal::Drop(DropReason::NoRoom)));
        }
        let mut place = self.completions.head();
        for _ in 0..count {
            if let Some(Buffer { second, place, .. }) = told[usize::from(place.index)]
                && !self.buffers.is_reposted(second, place)
            {
                let place = Place { lap: place.lap.wrapping_add(1), ..place };
                return Err(NoPlace::Later(Missing { second, place }));
            }
            place = self.completions.next(place);
        }
        Ok(())
    }

    #[cold]
    fn no_place(&mut self, no_place: NoPlace, counters: &QueueCounters) -> Undelivered {
        match no_place {
            NoPlace::Later(missing) => {
                self.missing = Some(missing);
                Refusal::Full.into()
            }
            NoPlace::Refused(refusal) => {
                counters::rx_no_buffers(counters);
                refusal.into()
            }
            NoPlace::Broken => {
                self.stopped = true;
                counters::rx_error(counters);
                Undelivered::Stopped(Stopped(error::SMALL_BUFFER))
            }
        }
    }

    /// Adds the completions of a packet.
    #[inline]
    fn complete(
        &mut self,
        common: RxCompletion,
        packet: &RxFrame<'_>,
        hash: Hash,
        rules: &RxRules,
        data_ring: bool,
        buffers: &[Buffer],
    ) {
        self.completions.make_room(buffers.len());
        if let Some(told) = &mut self.told {
            let mut place = self.completions.head();
            for buffer in buffers {
                told[usize::from(place.index)] = Some(*buffer);
                place = self.completions.next(place);
            }
        }
        let Some((first, rest)) = buffers.split_first() else { return };
        let name = self.names[if data_ring { 2 } else { 0 }];
        let hashed = common.rss(hash.kind, hash.value);
        let start = match packet.aggregate {
            // The hash's place holds the number of segments.
            Some(aggregate) if rules.counts_segments => {
                common.lro(aggregate.segments.min(255) as u8, aggregate.mss)
            }
            _ => hashed,
        };
        let start = start.buffer(first.place.index, name, first.len).ends(true, rest.is_empty());
        self.completions.push(|generation| start.words(generation));
        let Some((last, middle)) = rest.split_last() else { return };
        let one = |buffer: &Buffer| {
            hashed.buffer(buffer.place.index, self.names[usize::from(buffer.second)], buffer.len)
        };
        self.completions.extend(middle.iter().map(one));
        self.completions.push(|generation| one(last).ends(false, true).words(generation));
    }

    /// Stores where a successor begins.
    #[inline]
    pub fn store(&self, window: &Window, number: usize) {
        let ring1 = self.buffers.ring1.as_ref().map_or(Place::default(), |ring| ring.head);
        past::store(window, number, [self.buffers.ring0.head, ring1, self.completions.head()]);
    }

    /// Goes on where a predecessor stopped. Not possible where completions are fewer than descriptors:
    /// which of them the driver has seen is not stored.
    pub fn resume(&mut self, window: &Window, number: usize) -> Option<()> {
        if self.told.is_some() {
            return None;
        }
        let size0 = self.buffers.ring0.size();
        let size1 = self.buffers.ring1.as_ref().map_or(1, |ring| ring.size());
        let sizes = [size0, size1, self.completions.size()];
        let [mut ring0, mut ring1, head] = past::load(window, number, sizes)?;
        let second = self.names[1];
        self.completions.resume(head, |low, high| {
            let (index, ring) = RxCompletion::from_words(low, high).place();
            if ring == second && index < size1 {
                ring1 = ring1.behind(index, size1);
            } else if ring != second && index < size0 {
                ring0 = ring0.behind(index, size0);
            }
        });
        self.buffers.ring0.head = ring0;
        if let Some(ring) = &mut self.buffers.ring1 {
            ring.head = ring1;
        }
        Some(())
    }

    /// Shows the driver what was delivered.
    #[inline]
    pub fn flush(&mut self) {
        self.completions.publish();
    }
}

/// Copies the packet and pads it.
#[inline]
fn write(packet: &RxFrame<'_>, in_band: bool, need: usize, bench: &mut Bench) {
    let written = packet.write(&bench.into, in_band, &mut bench.scratch);
    if written < need {
        bench.into.write(written, &[0; MIN_FRAME][..need - written]);
    }
}

/// What all completions of a packet have in common.
#[inline]
fn common(packet: &RxFrame<'_>, in_band: bool, rules: &RxRules) -> RxCompletion {
    RxCompletion::of(layers(packet, rules), packet.tag.filter(|_| !in_band))
}

/// What a completion tells about protocols and checksums.
#[inline]
fn layers(packet: &RxFrame<'_>, rules: &RxRules) -> RxLayers {
    let known = packet.layers;
    let tcp = known.transport == Transport::Tcp && !known.fragment;
    let udp = known.transport == Transport::Udp && !known.fragment;
    let ip = known.network != Network::Other;
    let verified = packet.checksum == ChecksumStatus::Good || packet.partial_checksum.is_some();
    RxLayers {
        v4: known.network == Network::V4,
        v6: known.network == Network::V6,
        tcp: ip && tcp,
        udp: ip && udp,
        fragment: known.fragment,
        // Anything but "right" has only one neutral expression: nobody looked.
        good: verified && rules.features.rx_checksum && ip && (tcp || udp),
    }
}
