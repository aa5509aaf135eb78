//! One receive queue: frames are copied into posted buffers and completed.

use vmlane_mem::{Spans, Window};
use vmlane_port::{ChecksumStatus, DropReason, Network, Overhead, RxFrame, Transport};
use vmlane_wire::ethernet::{MIN_FRAME, TAG};
use vmlane_wire::vmxnet3::desc::{MIN_HEAD, RxCompletion, RxLayers, error};

use super::checkpoint;
use super::counters;
use super::layout::{Buffer, Buffers, Missing, NoPlace};
use super::moderation::LineId;
use super::place::Place;
use super::ring::{CompletionRing, RxCommands};
use super::rss::Hash;
use super::tx::Stopped;
use crate::vmxnet3::setup::{Features, QueueCounters, RxSetup};

/// Bytes of a buffer from which on, beside two for each frame, none counts as read in vain.
const FAIR_BUFFER: usize = 256;
/// Buffers of a frame where the driver names no limit: what Linux's usual build takes.
const DEFAULT_LIMIT: usize = 18;

/// What a revision, the driver's limits and its features determine about frames.
#[derive(Clone, Copy, Debug)]
pub struct RxRules {
    /// Bytes of the longest frame that is no aggregate, with an inner tag or two.
    pub frame: usize,
    /// Buffers of one frame.
    pub limit: usize,
    /// Completions carry segments and size of an aggregate.
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

/// Memory that all queues of a NIC use for the frame in hand.
#[derive(Debug)]
pub struct Scratch {
    pub into: Spans,
    pub buffers: Vec<Buffer>,
    /// Descriptors read in vain.
    pub overhead: Overhead,
}

/// One receive queue.
#[derive(Debug)]
pub struct RxQueue {
    buffers: Buffers,
    completions: CompletionRing,
    /// For each completion slot the buffer that it last reported, where completions are fewer than
    /// descriptors: the slot is free again when that buffer was posted anew.
    reported: Option<Vec<Option<Buffer>>>,
    data: Option<(u64, u16)>,
    /// What the last frame that did not fit waits for.
    missing: Option<Missing>,
    /// Names of ring 0, ring 1 and the data ring in completions.
    names: [u16; 3],
    /// A buffer that cannot be stopped the queue.
    stopped: Option<Stopped>,
    /// The driver was not notified of that yet.
    unreported: bool,
    /// Of its completions.
    pub line: LineId,
    pub descriptor: Window,
}

impl RxQueue {
    /// `names`: of ring 0, ring 1 and the data ring in completions.
    pub fn new(setup: RxSetup, line: LineId, names: [u16; 3], depth: Option<u16>) -> RxQueue {
        let descriptors =
            usize::from(setup.ring0.size) + setup.ring1.as_ref().map_or(0, |ring| ring.size.into());
        let completions = usize::from(setup.completions.size);
        RxQueue {
            buffers: Buffers::new(RxCommands::new(setup.ring0), setup.ring1.map(RxCommands::new), depth),
            completions: CompletionRing::new(setup.completions),
            reported: (completions < descriptors).then(|| vec![None; completions]),
            data: setup.data,
            missing: None,
            names,
            stopped: None,
            unreported: false,
            line,
            descriptor: setup.descriptor,
        }
    }

    /// Was the last frame refused for want of buffers?
    pub fn is_starved(&self) -> bool {
        self.missing.is_some() && self.stopped.is_none()
    }

    /// Is what the last refused frame waited for there? Or, if none was refused, a head buffer?
    pub fn has_room(&mut self) -> bool {
        if self.stopped.is_some() {
            return false;
        }
        match self.missing {
            Some(missing) => self.buffers.is_there(missing),
            None => self.buffers.head().is_ok(),
        }
    }

    /// What stopped the queue, once.
    pub fn take_stop(&mut self) -> Option<Stopped> {
        self.stopped.filter(|_| std::mem::take(&mut self.unreported))
    }

    /// See [`Buffers::largest`].
    pub fn largest(&mut self, rules: &RxRules) -> Option<usize> {
        self.buffers.largest(rules.limit)
    }

    /// Copies a frame into the next buffers and completes them. Returns how many completions.
    #[inline]
    pub fn deliver(
        &mut self,
        frame: &RxFrame<'_>,
        hash: Hash,
        rules: &RxRules,
        scratch: &mut Scratch,
        counters: &QueueCounters,
    ) -> Result<u32, DropReason> {
        if self.stopped.is_some() {
            return Err(DropReason::BadReceiver);
        }
        let in_band = frame.tag.is_some() && !rules.features.rx_vlan;
        let len = frame.len() + if in_band { TAG } else { 0 };
        let need = len.max(MIN_FRAME);
        if let Some(place) = self.single(need, frame, scratch) {
            write(frame, in_band, need, scratch);
            let name = self.names[0];
            let one = common(frame, in_band, rules).buffer(place.index, name, need as u16).ends(true, true);
            self.completions.make_room(1);
            self.completions.push(|generation| one.rss(hash.kind, hash.value).words(generation));
            counters::received(counters, frame.head, len, None);
            return Ok(1);
        }
        let delivered = match self.data {
            Some((base, size)) if need <= usize::from(size) && frame.aggregate.is_none() => {
                self.place_in_data_ring(base, size, need, scratch)
            }
            _ => self.place_in_buffers(need, rules, scratch),
        };
        let data_ring = delivered.map_err(|no_place| self.no_place(no_place, counters))?;
        write(frame, in_band, need, scratch);
        self.missing = None;
        let common = common(frame, in_band, rules);
        self.complete(common, frame, hash, rules, data_ring, &scratch.buffers);
        counters::received(counters, frame.head, len, frame.aggregate);
        Ok(scratch.buffers.len() as u32)
    }

    /// The ordinary case, quickly: one frame into one posted head buffer that is large enough. None:
    /// look closer.
    #[inline]
    fn single(&mut self, need: usize, frame: &RxFrame<'_>, scratch: &mut Scratch) -> Option<Place> {
        let ordinary = self.data.is_none() && self.reported.is_none() && frame.aggregate.is_none();
        if !ordinary {
            return None;
        }
        let head = self.buffers.quick_head().filter(|head| head.len() >= need.max(MIN_HEAD))?;
        scratch.into.set(head.addr, need).ok()?;
        scratch.into.prefetch(self.buffers.ring0.lookahead(), 1);
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
        scratch: &mut Scratch,
    ) -> Result<bool, NoPlace> {
        self.buffers.head()?;
        self.completions_left(1)?;
        let place = self.buffers.take_head();
        scratch.buffers.clear();
        scratch.buffers.push(Buffer { second: false, place, len: need as u16 });
        scratch.into.clear();
        let slot = base.saturating_add(u64::from(place.index) * u64::from(size));
        scratch.into.push(slot, need).map_err(|_| NoPlace::Broken)?;
        Ok(true)
    }

    #[inline]
    fn place_in_buffers(
        &mut self,
        need: usize,
        rules: &RxRules,
        scratch: &mut Scratch,
    ) -> Result<bool, NoPlace> {
        let layout = self.buffers.lay_out(need, rules.limit, &mut scratch.into, &mut scratch.buffers);
        scratch.overhead.add(scratch.buffers.len().saturating_sub(2 + need / FAIR_BUFFER));
        let layout = layout?;
        self.completions_left(scratch.buffers.len())?;
        self.buffers.take(layout);
        Ok(false)
    }

    /// Are `count` completion slots free?
    #[inline]
    fn completions_left(&self, count: usize) -> Result<(), NoPlace> {
        let Some(reported) = &self.reported else { return Ok(()) };
        if count > reported.len() {
            return Err(NoPlace::Never(DropReason::NoRoom));
        }
        let mut place = self.completions.head();
        for _ in 0..count {
            if let Some(&Some(Buffer { second, place, .. })) = reported.get(usize::from(place.index))
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
    fn no_place(&mut self, no_place: NoPlace, counters: &QueueCounters) -> DropReason {
        match no_place {
            NoPlace::Later(missing) => {
                self.missing = Some(missing);
                DropReason::NoBuffers
            }
            NoPlace::Never(reason) => {
                counters::rx_no_buffers(counters);
                reason
            }
            NoPlace::Broken => {
                self.stopped = Some(Stopped(error::SMALL_BUFFER));
                self.unreported = true;
                counters::rx_error(counters);
                DropReason::BadReceiver
            }
        }
    }

    /// Adds the completions of a frame.
    #[inline]
    fn complete(
        &mut self,
        common: RxCompletion,
        frame: &RxFrame<'_>,
        hash: Hash,
        rules: &RxRules,
        data_ring: bool,
        buffers: &[Buffer],
    ) {
        self.completions.make_room(buffers.len());
        if let Some(reported) = &mut self.reported {
            let mut place = self.completions.head();
            for buffer in buffers {
                if let Some(reported) = reported.get_mut(usize::from(place.index)) {
                    *reported = Some(*buffer);
                }
                place = self.completions.next(place);
            }
        }
        let Some((first, rest)) = buffers.split_first() else { return };
        let [ring0, ring1, data] = self.names;
        let name = if data_ring { data } else { ring0 };
        let hashed = common.rss(hash.kind, hash.value);
        let start = match frame.aggregate {
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
            hashed.buffer(buffer.place.index, if buffer.second { ring1 } else { ring0 }, buffer.len)
        };
        self.completions.extend(middle.iter().map(one));
        self.completions.push(|generation| one(last).ends(false, true).words(generation));
    }

    /// Stores where the next daemon begins.
    #[inline]
    pub fn store(&self, window: &Window, number: usize) {
        let ring1 = self.buffers.ring1.as_ref().map_or(Place::default(), |ring| ring.head);
        checkpoint::store(window, number, [self.buffers.ring0.head, ring1, self.completions.head()]);
    }

    /// Resumes where the previous daemon stopped. Not possible where completions are fewer than descriptors:
    /// which of them the driver has seen is not stored.
    pub fn restore(&mut self, window: &Window, number: usize) -> Option<()> {
        if self.reported.is_some() {
            return None;
        }
        let size0 = self.buffers.ring0.size();
        let size1 = self.buffers.ring1.as_ref().map_or(1, |ring| ring.size());
        let sizes = [size0, size1, self.completions.size()];
        let [mut ring0, mut ring1, head] = checkpoint::load(window, number, sizes)?;
        let second = self.names[1];
        self.completions.restore(head, |low, high| {
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

/// Copies the frame and pads it.
#[inline]
fn write(frame: &RxFrame<'_>, in_band: bool, need: usize, scratch: &mut Scratch) {
    let written = frame.write(&scratch.into, in_band);
    if written < need
        && let Some(padding) = [0; MIN_FRAME].get(..need - written)
    {
        scratch.into.write(written, padding);
    }
}

/// What all completions of a frame have in common.
#[inline]
fn common(frame: &RxFrame<'_>, in_band: bool, rules: &RxRules) -> RxCompletion {
    RxCompletion::of(layers(frame, rules), frame.tag.filter(|_| !in_band))
}

/// What a completion reports about protocols and checksums.
#[inline]
fn layers(frame: &RxFrame<'_>, rules: &RxRules) -> RxLayers {
    let known = frame.layers;
    let tcp = known.transport == Transport::Tcp && !known.fragment;
    let udp = known.transport == Transport::Udp && !known.fragment;
    let ip = known.network != Network::Other;
    let verified = frame.checksum == ChecksumStatus::Good || frame.partial_checksum.is_some();
    RxLayers {
        v4: known.network == Network::V4,
        v6: known.network == Network::V6,
        tcp: ip && tcp,
        udp: ip && udp,
        fragment: known.fragment,
        // Anything but "right" has only one neutral expression: not checked.
        good: verified && rules.features.rx_checksum && ip && (tcp || udp),
    }
}
