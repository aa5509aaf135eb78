//! One flow, and segments: what may be merged.

mod expected;

use arrayvec::ArrayVec;
use vmlane_mem::{MemoryMap, Spans, Sum};
use vmlane_port::{BURST, FramePort, Layers, Network, RxCapabilities, RxFrame, Token, Transport};
use vmlane_wire::ethernet::{HEADER, Tci};

use super::mask::{MAX_HEADERS, Mask};
use crate::Slot;
use crate::ingress::{Checked, Frame, Job, Segmentation};
use crate::parse::{self, IPV4, IPV6, word};
use crate::segment::{self, FLAGS, MAX_AGGREGATED, ONLY_LAST, SEQUENCE, TCP_CHECKSUM};

/// Pieces of memory that a super-frame may lie in: a guest may scatter its segments over many.
const MAX_PIECES: usize = 256;
/// Bytes of the longest IP packet behind an Ethernet header.
const LONGEST: usize = HEADER + u16::MAX as usize;

/// TCP flags.
const ACK: u8 = 0x10;
const PSH_OR_FIN: u8 = ONLY_LAST;
/// The flags that a segment may have to be merged: these and ECE. SYN, RST, URG and CWR concern one segment
/// alone.
const MERGEABLE: u8 = ACK | PSH_OR_FIN | 0x40;
/// "Don't fragment" in an IPv4 header's word of fragment flags.
const DONT_FRAGMENT: u8 = 0x40;

/// A TCP segment that may be part of a super-frame.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Bytes of its headers.
    header: usize,
    /// Bytes of its payload; never 0.
    payload: usize,
    sequence: u32,
    /// Its TCP checksum needs no check: the receiver is to fill it in, or the host's kernel has verified it.
    verified: bool,
}

impl Segment {
    /// What a frame is, if it may be merged: TCP with payload, no IP options, extension headers or inner
    /// tags, no padding, no flag that concerns it alone, and an IPv4 header whose checksum is right.
    pub fn of(sent: &Checked<'_>) -> Option<Segment> {
        let Checked { frame, layers, job } = sent;
        let at = usize::from(layers.transport_at);
        let verified = match job {
            Job::Nothing => frame.tx.verified,
            Job::Checksum(sum) => {
                let tcp = sum.start == layers.transport_at && usize::from(sum.field) == at + TCP_CHECKSUM;
                tcp.then_some(true)?
            }
            Job::Segment(_) => return None,
        };
        let header = parse::payload(frame.head, layers).filter(|_| layers.transport == Transport::Tcp)?;
        let ip = match layers.network {
            Network::V4 => frame.head.get(HEADER..HEADER + IPV4)?,
            _ => frame.head.get(HEADER..HEADER + IPV6)?,
        };
        let length = match layers.network {
            Network::V4 => usize::from(word(ip, 2)?),
            _ => usize::from(word(ip, 4)?) + IPV6,
        };
        let plain = usize::from(layers.network_at) == HEADER && at == HEADER + ip.len();
        let payload = frame.len().checked_sub(header).filter(|&payload| payload > 0)?;
        let flags = *frame.head.get(at + FLAGS)?;
        let may = plain
            && length == frame.len() - HEADER
            && flags & ACK != 0
            && flags & !MERGEABLE == 0
            && (layers.network != Network::V4 || is_right(ip));
        let sequence = frame.head.get(at + SEQUENCE..)?.first_chunk()?;
        may.then_some(Segment { header, payload, sequence: u32::from_be_bytes(*sequence), verified })
    }

    /// A quick test of a TCP frame: may a flow begin with it?
    #[inline]
    pub fn may_be_first(frame: &RxFrame<'_>) -> bool {
        let (head, layers) = (frame.head, &frame.layers);
        parse::payload(head, layers).is_some_and(|at| frame.len() > at)
            && !Segment::is_last(head, usize::from(layers.transport_at))
    }

    /// Bytes of the longest super-frame that may begin with it, for a receiver of these `capabilities`; None:
    /// that one takes none, or it is the last one of its super-frame.
    pub fn longest(&self, capabilities: &RxCapabilities, sent: &Checked<'_>) -> Option<usize> {
        let takes = if sent.layers.network == Network::V4 { capabilities.tso4 } else { capabilities.tso6 };
        let longest = capabilities.aggregate.min(LONGEST);
        let first = takes
            && sent.frame.len() <= capabilities.frame
            && sent.frame.len() + self.payload <= longest
            && !Segment::is_last(sent.frame.head, usize::from(sent.layers.transport_at));
        first.then_some(longest)
    }

    /// Does it end a super-frame by itself?
    fn is_last(head: &[u8], at: usize) -> bool {
        head.get(at + FLAGS).is_none_or(|flags| flags & PSH_OR_FIN != 0)
    }
}

/// Is the checksum of an IPv4 header right?
fn is_right(ip: &[u8]) -> bool {
    let mut sum = Sum::default();
    sum.add(ip);
    sum.folded() == u16::MAX
}

/// Where the addresses lie in the head of a TCP frame.
fn addresses(layers: &Layers) -> std::ops::Range<usize> {
    let at = usize::from(layers.network_at);
    if layers.network == Network::V4 { at + 12..at + 20 } else { at + 8..at + 40 }
}

/// By what frames of a flow find their way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// Of the tables alone by which the last frame that went through all stages found it, see
    /// [`epoch`](crate::flight::Flight::epoch) of a flight.
    pub epoch: Option<u64>,
    /// The tag that the first frame was sent with, out of band.
    tag: Option<Tci>,
}

/// The first segments of a flow in this burst, which wait for the next one.
#[derive(Debug)]
pub struct Flow {
    pub receiver: Slot,
    /// The tag that the receiver sees.
    pub tag: Option<Tci>,
    pub layers: Layers,
    /// What the first frame's sender wants done to it.
    job: Job,
    /// The headers of the first segment, with the flags of the last.
    head: [u8; MAX_HEADERS],
    header: usize,
    /// What of them the next segment's have too.
    mask: Mask,
    /// The sum of the words that the mask leaves out, of IPv4. Not in the mask: that costs 7 % of frames of
    /// 1,500 bytes.
    v4_sum: u32,
    pub(super) way: Way,
    /// Payload bytes of the first segment.
    mss: usize,
    /// Payload bytes of all segments.
    payload: usize,
    /// Bytes that the super-frame may have.
    limit: usize,
    /// What each IPv4 identification adds to the one before, once that is known.
    id_step: Option<u16>,
    /// The first segment's checksum is known to be right.
    verified: bool,
    /// The frames.
    pub(super) tokens: ArrayVec<Token, BURST>,
    /// Where the payload of all segments lies, from the second one on.
    pub(super) body: Spans,
}

impl Flow {
    pub fn new() -> Flow {
        Flow {
            receiver: 0,
            tag: None,
            layers: Layers::default(),
            job: Job::Nothing,
            head: [0; MAX_HEADERS],
            header: 0,
            mask: Mask::default(),
            v4_sum: 0,
            way: Way::default(),
            mss: 0,
            payload: 0,
            limit: 0,
            id_step: None,
            verified: false,
            tokens: ArrayVec::new(),
            body: Spans::new(MemoryMap::default(), false),
        }
    }

    /// Begins anew with a segment. `limit`: bytes that the super-frame may have.
    pub fn begin(
        &mut self,
        sent: &Checked<'_>,
        segment: &Segment,
        token: Token,
        to: (Slot, Option<Tci>),
        limit: usize,
    ) {
        let Segment { header, payload, verified, .. } = *segment;
        if let (Some(own), Some(head)) = (self.head.get_mut(..header), sent.frame.head.get(..header)) {
            own.copy_from_slice(head);
        }
        (self.receiver, self.tag) = to;
        (self.layers, self.job) = (sent.layers, sent.job);
        (self.header, self.mss, self.payload, self.limit) = (header, payload, payload, limit);
        (self.id_step, self.verified) = (None, verified);
        self.way = Way { epoch: None, tag: sent.frame.tx.tag };
        self.tokens.clear();
        self.tokens.push(token);
    }

    /// The headers.
    pub fn head(&self) -> &[u8] {
        self.head.get(..self.header).unwrap_or_default()
    }

    /// Bytes of the super-frame.
    pub fn len(&self) -> usize {
        self.header + self.payload
    }

    pub fn body(&self) -> &Spans {
        &self.body
    }

    /// Its frames.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Are they more than one?
    pub fn is_merged(&self) -> bool {
        self.tokens.len() > 1
    }

    /// The first of its frames as it was checked; None: `token` is another one.
    pub fn first<'f>(&self, token: Token, frame: &'f Frame<'f>) -> Option<Checked<'f>> {
        let is_first = self.tokens.first() == Some(&token);
        is_first.then_some(Checked { frame, layers: self.layers, job: self.job })
    }

    /// What the super-frame is cut into.
    pub fn segmentation(&self) -> Segmentation {
        Segmentation {
            packet: self.layers,
            outer: None,
            header: self.header as u16,
            mss: self.mss as u16,
            segments: self.tokens.len() as u16,
        }
    }

    /// Is a TCP frame, whether or not it may be merged, of this flow?
    pub fn is_of(&self, sent: &Checked<'_>) -> bool {
        let (layers, head) = (&sent.layers, sent.frame.head);
        let at = usize::from(layers.transport_at);
        let (own, own_at) = (self.head(), usize::from(self.layers.transport_at));
        layers.network == self.layers.network
            && head.get(at..at + 4) == own.get(own_at..own_at + 4)
            && head.get(addresses(layers)) == own.get(addresses(&self.layers))
    }

    /// Do the headers allow that `segment` continues the flow? Returns by how much its IPv4 identification is
    /// larger than the last one.
    fn continues(&self, sent: &Checked<'_>, segment: &Segment) -> Option<u16> {
        let Segment { header, payload, sequence, .. } = *segment;
        let (own, head) = (self.head(), sent.frame.head.get(..header)?);
        let at = usize::from(self.layers.transport_at);
        let same = |range: std::ops::Range<usize>| own.get(range.clone()) == head.get(range);
        let ip = if self.layers.network == Network::V4 {
            // Type of service; flags; time to live and protocol.
            same(HEADER..HEADER + 2) && same(HEADER + 6..HEADER + 10)
        } else {
            // Traffic class and flow label; protocol and hop limit.
            same(HEADER..HEADER + 4) && same(HEADER + 6..HEADER + 8)
        };
        let flags = own.get(at + FLAGS)? ^ head.get(at + FLAGS)?;
        let tcp = sequence == self.next_sequence()?
            // Acknowledgement and length of the header; window; urgent pointer and options.
            && same(at + SEQUENCE + 4..at + FLAGS)
            && flags & !PSH_OR_FIN == 0
            && same(at + FLAGS + 1..at + TCP_CHECKSUM)
            && same(at + TCP_CHECKSUM + 2..self.header);
        let may = header == self.header && same(0..HEADER) && ip && tcp && self.has_room(payload);
        if may { self.id_step_to(head) } else { None }
    }

    /// May the next segment have so many bytes of payload?
    fn has_room(&self, payload: usize) -> bool {
        payload <= self.mss
            && self.len() + payload <= self.limit
            && self.tokens.len() < usize::from(MAX_AGGREGATED).min(BURST)
    }

    fn next_sequence(&self) -> Option<u32> {
        let at = usize::from(self.layers.transport_at) + SEQUENCE;
        let first = u32::from_be_bytes(*self.head().get(at..)?.first_chunk()?);
        Some(first.wrapping_add(self.payload as u32))
    }

    /// Identifications count up, or stay the same where nothing may be fragmented.
    fn id_step_to(&self, head: &[u8]) -> Option<u16> {
        if self.layers.network != Network::V4 {
            return Some(0);
        }
        let own = self.head();
        let difference = word(head, HEADER + 4)?.wrapping_sub(word(own, HEADER + 4)?);
        let before = self.tokens.len() as u16;
        let fixed = own.get(HEADER + 6)? & DONT_FRAGMENT != 0;
        let step = match difference {
            0 if fixed => 0,
            _ if difference == before => 1,
            _ => return None,
        };
        self.id_step.is_none_or(|known| known == step).then_some(step)
    }

    /// Adds a segment whose headers are in order, if its checksum and that of the first one are right.
    /// `step`: see `id_step`; `read`: bytes that were read to see this.
    fn add(
        &mut self,
        frame: &Frame<'_>,
        (segment, step): (&Segment, u16),
        (end, token): (&dyn FramePort, Token),
        read: &mut usize,
    ) -> bool {
        let &Frame { tx, popped, head, .. } = frame;
        let own_pieces = if self.tokens.len() == 1 { 0 } else { self.body.pieces() };
        if own_pieces + tx.spans.pieces() > MAX_PIECES {
            return false;
        }
        if let [first] = self.tokens[..] {
            let first = end.frame(first);
            let from = first.len() - self.payload;
            self.verified = self.verified || {
                *read += self.payload;
                sums_up(self.head(), &self.layers, first.spans, from)
            };
            self.body.follow(first.spans);
            let begun = self.verified
                && first.spans.pieces() + tx.spans.pieces() <= MAX_PIECES
                && self.body.append(first.spans, from, self.payload);
            if !begun {
                return false;
            }
        }
        let from = segment.header + popped;
        let right = segment.verified || {
            *read += segment.payload;
            head.get(..segment.header).is_some_and(|head| sums_up(head, &self.layers, tx.spans, from))
        };
        if !right
            || !self.body.append(tx.spans, from, segment.payload)
            || self.tokens.try_push(token).is_err()
        {
            return false;
        }
        self.payload += segment.payload;
        self.id_step = Some(step);
        let at = usize::from(self.layers.transport_at) + FLAGS;
        if let (Some(own), Some(flags)) = (self.head.get_mut(at), head.get(at)) {
            *own |= flags & PSH_OR_FIN;
        }
        true
    }

    /// Adds a segment if it continues the flow.
    pub fn try_add(
        &mut self,
        sent: &Checked<'_>,
        segment: &Segment,
        from: (&dyn FramePort, Token),
        read: &mut usize,
    ) -> bool {
        let step = self.continues(sent, segment);
        step.is_some_and(|step| self.add(sent.frame, (segment, step), from, read))
    }

    /// Nothing can be added any more: the last segment was shorter than the first, or its sender wants it to
    /// be seen.
    pub fn is_complete(&self) -> bool {
        self.payload < self.mss * self.tokens.len()
            || Segment::is_last(self.head(), usize::from(self.layers.transport_at))
    }
}

/// Is the TCP checksum right of a segment with these headers, whose payload lies in `spans` from `from` to
/// the end?
fn sums_up(head: &[u8], layers: &Layers, spans: &Spans, from: usize) -> bool {
    let payload = spans.len() - from;
    let at = usize::from(layers.transport_at);
    let mut sum = Sum::from_be(segment::tcp_pseudo_header(head, layers, head.len() - at + payload));
    sum.add(head.get(at..).unwrap_or_default());
    spans.sum(from, payload, &mut sum);
    sum.folded() == u16::MAX
}
