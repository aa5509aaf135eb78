//! From a frame to the packets that one receiver gets.

use vmlane_port::{
    Aggregate, ChecksumStatus, DropReason, FramePort, Layers, MAX_HEAD, Network, PartialChecksum, Refusal,
    RxCapabilities, RxFrame, Transport,
};
use vmlane_wire::ethernet::Tci;

use crate::fallback::{self, Cutter};
use crate::frame::{Frame, Job, Segmentation};
use crate::parse::{IPV4, IPV6};

/// The most segments that the completion of an aggregate can tell.
const MAX_AGGREGATED: u16 = 255;

/// What a receiver got and its counters do not know yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub frames: u64,
    pub bytes: u64,
    pub aggregates: u64,
    pub segments: u64,
    pub checksums: u64,
}

/// Why a frame (or the rest of its segments) was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// No buffers; segments before `next` were delivered.
    Full {
        next: u16,
    },
    Drop(DropReason),
}

/// One delivery: a frame, what is to be done to it, for whom.
pub struct Delivery<'a> {
    pub frame: &'a Frame<'a>,
    pub layers: Layers,
    pub job: Job,
    /// The tag that the receiver sees.
    pub tag: Option<Tci>,
    pub capabilities: &'a RxCapabilities,
    /// A receiver that is not the one addressed gets only complete frames.
    pub mirror: bool,
    /// Segments delivered before.
    pub from: u16,
}

impl Delivery<'_> {
    /// Hands the frame to `end`. `edit` takes headers that change.
    #[inline]
    pub fn deliver(
        &self,
        end: &mut dyn FramePort,
        edit: &mut [u8; MAX_HEAD],
        tally: &mut Tally,
    ) -> Result<(), Undelivered> {
        match self.job {
            Job::Nothing => self.single(None, ChecksumStatus::Unknown, end, tally),
            Job::Checksum(partial_checksum) => {
                tally.checksums += u64::from(!self.capabilities.partial_frame);
                let done = self.single(Some(partial_checksum), ChecksumStatus::Good, end, tally);
                tally.checksums -= u64::from(!self.capabilities.partial_frame && done.is_err());
                done
            }
            Job::Segment(segmentation) if self.takes_whole(&segmentation) => {
                self.whole(&segmentation, end, edit, tally)
            }
            Job::Segment(segmentation) => self.segments(segmentation, end, edit, tally),
        }
    }

    #[inline]
    fn single(
        &self,
        partial_checksum: Option<PartialChecksum>,
        checksum: ChecksumStatus,
        end: &mut dyn FramePort,
        tally: &mut Tally,
    ) -> Result<(), Undelivered> {
        let Frame { head, lent, popped, .. } = *self.frame;
        let body_at = head.len() + popped;
        let packet = RxFrame {
            head,
            body: lent.spans,
            body_at,
            body_len: lent.len() - body_at,
            tag: self.tag,
            layers: self.layers,
            checksum,
            aggregate: None,
            partial_checksum,
        };
        if packet.len() > self.capabilities.frame {
            return Err(Undelivered::Drop(DropReason::TooLong));
        }
        hand_over(&packet, end, 0, tally)
    }

    /// May the super-frame stay in one piece?
    fn takes_whole(&self, segmentation: &Segmentation) -> bool {
        let Segmentation { packet, outer, segments, .. } = segmentation;
        let RxCapabilities { tso4, tso6, uso4, uso6, .. } = *self.capabilities;
        let (wanted, plain) = match (packet.network, packet.transport) {
            (Network::V4, Transport::Udp) => (uso4, IPV4),
            (Network::V4, _) => (tso4, IPV4),
            (_, Transport::Udp) => (uso6, IPV6),
            _ => (tso6, IPV6),
        };
        let at = usize::from(packet.network_at);
        let len = self.frame.len();
        wanted
            && !self.mirror
            && self.from == 0
            && outer.is_none()
            && (2..=MAX_AGGREGATED).contains(segments)
            // Receivers aggregate packets without IP options only.
            && usize::from(packet.transport_at) == at + plain
            && len <= self.capabilities.aggregate
            && len - at <= usize::from(u16::MAX)
    }

    fn whole(
        &self,
        segmentation: &Segmentation,
        end: &mut dyn FramePort,
        edit: &mut [u8; MAX_HEAD],
        tally: &mut Tally,
    ) -> Result<(), Undelivered> {
        let Segmentation { packet: layers, header, mss, segments, .. } = *segmentation;
        let bytes = usize::from(header);
        let head = &mut edit[..bytes];
        head.copy_from_slice(&self.frame.head[..bytes]);
        let partial_checksum = fallback::complete(head, &layers, self.frame.len());
        let packet = RxFrame {
            head,
            body: self.frame.lent.spans,
            body_at: bytes + self.frame.popped,
            body_len: self.frame.len() - bytes,
            tag: self.tag,
            layers,
            checksum: ChecksumStatus::Good,
            aggregate: Some(Aggregate { mss, segments, header }),
            partial_checksum: Some(partial_checksum).filter(|_| !self.capabilities.partial_sum),
        };
        hand_over(&packet, end, 0, tally)?;
        tally.aggregates += 1;
        Ok(())
    }

    fn segments(
        &self,
        segmentation: Segmentation,
        end: &mut dyn FramePort,
        edit: &mut [u8; MAX_HEAD],
        tally: &mut Tally,
    ) -> Result<(), Undelivered> {
        let Segmentation { packet: inner, outer, header, mss, segments } = segmentation;
        let (bytes, mss) = (usize::from(header), usize::from(mss));
        let payload = self.frame.len() - bytes;
        if bytes + payload.min(mss) > self.capabilities.frame {
            return Err(Undelivered::Drop(DropReason::TooLong));
        }
        edit[..bytes].copy_from_slice(&self.frame.head[..bytes]);
        let mut cutter = Cutter::new(&mut edit[..bytes], segmentation);
        for number in self.from..segments {
            let before = usize::from(number) * mss;
            let here = mss.min(payload - before);
            let (head, partial_checksum) = cutter.cut(number, here);
            let packet = RxFrame {
                head,
                body: self.frame.lent.spans,
                body_at: bytes + self.frame.popped + before,
                body_len: here,
                tag: self.tag,
                layers: outer.map_or(inner, |(outer, _)| outer),
                checksum: ChecksumStatus::Good,
                aggregate: None,
                partial_checksum: Some(partial_checksum),
            };
            hand_over(&packet, end, number, tally)?;
            tally.segments += u64::from(segments > 1);
            tally.checksums += u64::from(!self.capabilities.partial_frame);
        }
        Ok(())
    }
}

#[inline]
fn hand_over(
    packet: &RxFrame<'_>,
    end: &mut dyn FramePort,
    number: u16,
    tally: &mut Tally,
) -> Result<(), Undelivered> {
    match end.deliver(packet) {
        Ok(()) => {
            tally.frames += 1;
            tally.bytes += packet.len() as u64;
            Ok(())
        }
        Err(Refusal::Full) => Err(Undelivered::Full { next: number }),
        Err(Refusal::Drop(reason)) => Err(Undelivered::Drop(reason)),
    }
}
