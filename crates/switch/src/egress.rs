//! The stage in front of the receiver: a frame stays whole or is cut into segments, its checksums are left,
//! reported or completed, and the receiver's port copies it.

use arrayvec::ArrayVec;
use vmlane_mem::Spans;
use vmlane_port::{
    Aggregate, ChecksumStatus, DropReason, FramePort, Layers, MAX_HEAD, Network, PartialChecksum,
    RxCapabilities, RxFrame, Transport, TxFrame,
};
use vmlane_wire::ethernet::Tci;

use crate::Slot;
use crate::coalesce::Flow;
use crate::ingress::{Checked, Frame, Job, Segmentation};
use crate::parse::{self, IPV4, IPV6};
use crate::segment::{self, Cutter, MAX_AGGREGATED, TCP_CHECKSUM, UDP_CHECKSUM};

/// What a receiver got and its counters do not know yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxCounts {
    pub frames: u64,
    pub bytes: u64,
    pub aggregates: u64,
    pub segments: u64,
    pub checksums: u64,
    pub coalesced: u64,
    pub coalesced_segments: u64,
}

/// Which port gets a frame, and as what.
#[derive(Clone, Copy)]
pub struct To {
    pub slot: Slot,
    /// The tag that it sees.
    pub tag: Option<Tci>,
    /// It is not the one addressed, and gets only complete frames.
    pub mirror: bool,
}

/// Who gets a frame.
pub struct Receiver<'a> {
    pub end: &'a mut dyn FramePort,
    pub capabilities: &'a RxCapabilities,
    pub counts: &'a mut RxCounts,
    /// The tag that it sees.
    pub tag: Option<Tci>,
    /// It is not the one addressed, and gets only complete frames.
    pub mirror: bool,
    /// TCP and UDP checksums that are left out are not computed, but reported as right.
    pub unsummed: bool,
}

impl Receiver<'_> {
    /// What is to be done about the checksum of a frame without a tunnel. A super-frame has none of its own.
    #[inline]
    fn sum(&self, partial: PartialChecksum, layers: &Layers) -> Option<PartialChecksum> {
        let offset = match layers.transport {
            Transport::Tcp if self.unsummed => TCP_CHECKSUM,
            Transport::Udp if self.unsummed => UDP_CHECKSUM,
            _ => return Some(partial),
        };
        let field = usize::from(layers.transport_at) + offset;
        // Of a packet in a tunnel nothing can be reported.
        let own = partial.start == layers.transport_at && usize::from(partial.field) == field;
        Some(partial).filter(|_| !own)
    }

    /// Checksums were to be filled in of `count` frames, and were or were not.
    fn count_sums(&mut self, count: usize, computed: bool) {
        self.counts.checksums += if computed && !self.capabilities.partial_frame { count as u64 } else { 0 };
    }
}

/// Segments that are delivered together.
const TOGETHER: usize = 8;

/// Memory for headers that change.
pub struct Egress {
    edit: Box<[[u8; MAX_HEAD]; TOGETHER]>,
    /// For heads without their tags. None: it is in use, or was when a receiver's code panicked.
    scratch: Option<Box<[u8; MAX_HEAD]>>,
}

/// A frame to which nothing is to be done, as its receiver gets it.
#[inline]
pub fn plain<'a>(tx: &TxFrame<'a>) -> RxFrame<'a> {
    RxFrame {
        head: tx.head,
        body: tx.spans,
        body_at: tx.head.len(),
        body_len: tx.len() - tx.head.len(),
        tag: None,
        layers: parse::layers(tx.head),
        checksum: ChecksumStatus::Unknown,
        aggregate: None,
        partial_checksum: None,
    }
}

impl Egress {
    pub fn new() -> Egress {
        Egress { edit: Box::new([[0; MAX_HEAD]; TOGETHER]), scratch: None }
    }

    /// Memory for a head; clearing some each time would cost idle ports more than all else.
    #[inline]
    pub fn take_scratch(&mut self) -> Box<[u8; MAX_HEAD]> {
        self.scratch.take().unwrap_or_else(|| Box::new([0; MAX_HEAD]))
    }

    #[inline]
    pub fn put_scratch(&mut self, scratch: Box<[u8; MAX_HEAD]>) {
        self.scratch = Some(scratch);
    }

    /// Hands a frame over. `next`: segments delivered before, and how many when this returns.
    #[inline]
    pub fn deliver(
        &mut self,
        sent: &Checked<'_>,
        next: &mut u16,
        mut to: Receiver<'_>,
    ) -> Result<(), DropReason> {
        let Checked { frame, layers, job } = sent;
        let layers = *layers;
        match job {
            Job::Nothing => single(frame, layers, None, ChecksumStatus::Unknown, &mut to),
            Job::Checksum(partial) => {
                let sum = to.sum(*partial, &layers);
                single(frame, layers, sum, ChecksumStatus::Good, &mut to)?;
                to.count_sums(1, sum.is_some());
                Ok(())
            }
            Job::Segment(segmentation) if *next == 0 && stays_whole(frame, segmentation, &to) => {
                self.whole(frame, segmentation, &mut to)
            }
            Job::Segment(segmentation) => self.segments(frame, segmentation, next, &mut to),
        }
    }

    /// A super-frame in one piece.
    fn whole(
        &mut self,
        frame: &Frame<'_>,
        segmentation: &Segmentation,
        to: &mut Receiver<'_>,
    ) -> Result<(), DropReason> {
        let body_at = usize::from(segmentation.header) + frame.popped;
        self.aggregate(frame.head, (frame.tx.spans, body_at), segmentation, to)
    }

    /// Segments that were merged.
    pub fn merged(&mut self, flow: &Flow, mut to: Receiver<'_>) -> Result<(), DropReason> {
        let segmentation = flow.segmentation();
        self.aggregate(flow.head(), (flow.body(), 0), &segmentation, &mut to)?;
        to.counts.coalesced += 1;
        to.counts.coalesced_segments += u64::from(segmentation.segments);
        Ok(())
    }

    /// A super-frame in one piece: headers, and a body of which the part from some place on is its payload.
    fn aggregate(
        &mut self,
        headers: &[u8],
        (body, body_at): (&Spans, usize),
        segmentation: &Segmentation,
        to: &mut Receiver<'_>,
    ) -> Result<(), DropReason> {
        let Segmentation { packet: layers, header, mss, segments, .. } = *segmentation;
        let bytes = usize::from(header);
        let body_len = body.len() - body_at;
        let [edit, ..] = &mut *self.edit;
        let head = private_copy(edit, headers, bytes)?;
        let partial = segment::complete(head, &layers, bytes + body_len);
        let whole = RxFrame {
            head,
            body,
            body_at,
            body_len,
            tag: to.tag,
            layers,
            checksum: ChecksumStatus::Good,
            aggregate: Some(Aggregate { mss, segments, header }),
            partial_checksum: Some(partial).filter(|_| !to.capabilities.partial_sum),
        };
        hand_over(&whole, to)?;
        to.counts.aggregates += 1;
        Ok(())
    }

    /// A super-frame cut into segments.
    fn segments(
        &mut self,
        frame: &Frame<'_>,
        segmentation: &Segmentation,
        next: &mut u16,
        to: &mut Receiver<'_>,
    ) -> Result<(), DropReason> {
        let Segmentation { packet: inner, outer, header, mss, segments } = *segmentation;
        let (bytes, mss) = (usize::from(header), usize::from(mss));
        let payload = frame.len() - bytes;
        fits(bytes + payload.min(mss), frame.head, to.capabilities)?;
        for edit in self.edit.iter_mut().take(usize::from(segments - *next)) {
            private_copy(edit, frame.head, bytes)?;
        }
        let cutter = Cutter::new(frame.head.get(..bytes).ok_or(DropReason::BadOffload)?, *segmentation);
        while *next < segments {
            // Heads of several segments first: what was stored in parts cannot be loaded as a whole before
            // all stores in front of it are done, those of the last segment's payload among them.
            let numbers = *next..segments;
            let place = |number: u16| {
                let before = usize::from(number) * mss;
                (before, mss.min(payload - before))
            };
            let mut sums = ArrayVec::<PartialChecksum, TOGETHER>::new();
            for (number, edit) in numbers.clone().zip(self.edit.iter_mut()) {
                let head = edit.get_mut(..bytes).ok_or(DropReason::BadOffload)?;
                sums.push(cutter.cut(head, number, place(number).1));
            }
            let mut frames = ArrayVec::<RxFrame<'_>, TOGETHER>::new();
            let layers = outer.map_or(inner, |(outer, _)| outer);
            for ((number, edit), sum) in numbers.zip(self.edit.iter()).zip(&sums) {
                let (before, body_len) = place(number);
                frames.push(RxFrame {
                    head: edit.get(..bytes).unwrap_or_default(),
                    body: frame.tx.spans,
                    body_at: bytes + frame.popped + before,
                    body_len,
                    tag: to.tag,
                    layers,
                    checksum: ChecksumStatus::Good,
                    aggregate: None,
                    partial_checksum: to.sum(*sum, &layers),
                });
            }
            let outcome = to.end.deliver(&frames);
            let count = outcome.map_or_else(|refused| refused.at, |()| frames.len());
            let delivered = frames.get(..count).unwrap_or(&frames);
            to.counts.frames += count as u64;
            to.counts.bytes += delivered.iter().map(|frame| frame.len() as u64).sum::<u64>();
            to.counts.segments += if segments > 1 { count as u64 } else { 0 };
            let computed = frames.first().is_some_and(|frame| frame.partial_checksum.is_some());
            to.count_sums(count, computed);
            *next += count as u16;
            outcome.map_err(|refused| refused.reason)?;
        }
        Ok(())
    }
}

/// The first `bytes` of a head, to be edited.
#[inline]
fn private_copy<'a>(
    edit: &'a mut [u8; MAX_HEAD],
    head: &[u8],
    bytes: usize,
) -> Result<&'a mut [u8], DropReason> {
    match (edit.get_mut(..bytes), head.get(..bytes)) {
        (Some(edit), Some(head)) => {
            edit.copy_from_slice(head);
            Ok(edit)
        }
        _ => Err(DropReason::BadOffload),
    }
}

/// A frame that is no super-frame.
#[inline]
fn single(
    frame: &Frame<'_>,
    layers: Layers,
    partial_checksum: Option<PartialChecksum>,
    checksum: ChecksumStatus,
    to: &mut Receiver<'_>,
) -> Result<(), DropReason> {
    let Frame { head, tx, popped, .. } = *frame;
    let body_at = head.len() + popped;
    let single = RxFrame {
        head,
        body: tx.spans,
        body_at,
        body_len: tx.len() - body_at,
        tag: to.tag,
        layers,
        checksum,
        aggregate: None,
        partial_checksum,
    };
    fits(single.len(), head, to.capabilities)?;
    hand_over(&single, to)
}

/// Is a frame of `len` bytes that begins with `head` within its receiver's MTU? Its tags are beside that.
#[inline]
fn fits(len: usize, head: &[u8], capabilities: &RxCapabilities) -> Result<(), DropReason> {
    let fits = len <= capabilities.frame || len <= capabilities.frame + parse::tags(head);
    if fits { Ok(()) } else { Err(DropReason::TooLong) }
}

/// May the super-frame stay in one piece?
fn stays_whole(frame: &Frame<'_>, segmentation: &Segmentation, to: &Receiver<'_>) -> bool {
    let Segmentation { packet, outer, segments, .. } = segmentation;
    let RxCapabilities { tso4, tso6, uso4, uso6, aggregate, .. } = *to.capabilities;
    let (wanted, plain) = match (packet.network, packet.transport) {
        (Network::V4, Transport::Udp) => (uso4, IPV4),
        (Network::V4, _) => (tso4, IPV4),
        (_, Transport::Udp) => (uso6, IPV6),
        _ => (tso6, IPV6),
    };
    let at = usize::from(packet.network_at);
    let len = frame.len();
    wanted
        && !to.mirror
        && outer.is_none()
        && (2..=MAX_AGGREGATED).contains(segments)
        // Receivers aggregate packets without IP options only.
        && usize::from(packet.transport_at) == at + plain
        && len <= aggregate
        && len - at <= usize::from(u16::MAX)
}

#[inline]
fn hand_over(frame: &RxFrame<'_>, to: &mut Receiver<'_>) -> Result<(), DropReason> {
    to.end.deliver(std::slice::from_ref(frame)).map_err(|refused| refused.reason)?;
    to.counts.frames += 1;
    to.counts.bytes += frame.len() as u64;
    Ok(())
}
