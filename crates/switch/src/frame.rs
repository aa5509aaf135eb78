//! A frame as it came in: tag out of band, layers known, wishes checked against the bytes.

use vmlane_port::{DropReason, Layers, MAX_HEAD, Network, Offload, PartialChecksum, Transport, TxFrame};
use vmlane_wire::ethernet::{HEADER, Mac, TAG, Tci, ether_type};

use crate::parse;

/// The most segments that one super-frame may be cut into.
pub const MAX_SEGMENTS: usize = 2048;

/// A lent frame without its outer tag.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub head: &'a [u8],
    pub lent: &'a TxFrame<'a>,
    /// Bytes of the lent frame that are not in this one: the tag that was popped.
    pub popped: usize,
    /// The outer tag, from wherever.
    pub tag: Option<Tci>,
    pub offload: Offload,
}

/// Bytes 0 to 5 and 6 to 11 as numbers.
#[inline]
fn address(head: &[u8], at: usize) -> Mac {
    head.get(at..).and_then(|rest| rest.first_chunk::<6>()).map_or(Mac::default(), |bytes| Mac(*bytes))
}

impl<'a> Frame<'a> {
    /// `scratch` takes the head where a tag is in the way.
    #[inline]
    pub fn new(lent: &'a TxFrame<'a>, scratch: &'a mut [u8; MAX_HEAD]) -> Result<Frame<'a>, DropReason> {
        let head = lent.head;
        if head.len() < HEADER {
            return Err(DropReason::BadLength);
        }
        if lent.tag.is_none() && head[12] == 0x81 && head[13] == 0 {
            return pop(lent, scratch);
        }
        Ok(Frame { head, lent, popped: 0, tag: lent.tag, offload: lent.offload })
    }

    #[inline]
    pub fn destination(&self) -> Mac {
        address(self.head, 0)
    }

    #[inline]
    pub fn source(&self) -> Mac {
        address(self.head, 6)
    }

    /// Bytes, without the tag; never less than a header has.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.lent.len() - self.popped
    }
}

const _: () = assert!(ether_type::VLAN == 0x8100);

/// Takes the in-band tag out; offsets move with it.
#[cold]
fn pop<'a>(lent: &'a TxFrame<'a>, scratch: &'a mut [u8; MAX_HEAD]) -> Result<Frame<'a>, DropReason> {
    let head = lent.head;
    let tag = Tci(parse::word(head, 14).ok_or(DropReason::BadLength)?);
    let len = head.len().checked_sub(TAG).filter(|&len| len >= HEADER).ok_or(DropReason::BadLength)?;
    let shorter = scratch.get_mut(..len).ok_or(DropReason::BadLength)?;
    shorter[..12].copy_from_slice(&head[..12]);
    shorter[12..].copy_from_slice(&head[16..]);
    let back = |offset: u16| offset.checked_sub(TAG as u16).ok_or(DropReason::BadOffload);
    let offload = match lent.offload {
        Offload::None => Offload::None,
        Offload::Checksum { start, field } => Offload::Checksum { start: back(start)?, field: back(field)? },
        Offload::Segment { header, mss } => Offload::Segment { header: back(header)?, mss },
        Offload::Tunnel { header, mss, outer_sum } => {
            Offload::Tunnel { header: back(header)?, mss, outer_sum }
        }
    };
    Ok(Frame { head: shorter, lent, popped: TAG, tag: Some(tag), offload })
}

/// TCP or UDP segmentation that was checked against the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// The TCP or UDP packet: the inner one of a tunnel, which is TCP.
    pub packet: Layers,
    /// The tunnel around it, and whether its UDP checksum is wanted.
    pub outer: Option<(Layers, bool)>,
    /// Bytes of headers.
    pub header: u16,
    pub mss: u16,
    pub segments: u16,
}

/// What has to be done to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    Nothing,
    Checksum(PartialChecksum),
    Segment(Segmentation),
}

/// Checks the sender's wishes.
#[inline]
pub fn job(frame: &Frame<'_>, layers: &Layers) -> Result<Job, DropReason> {
    match frame.offload {
        Offload::None => Ok(Job::Nothing),
        Offload::Checksum { start, field } => checksum(frame, layers, start, field),
        Offload::Segment { header, mss } => segment(frame, *layers, None, header, mss),
        Offload::Tunnel { header, mss, outer_sum } => {
            let inner = parse::inner(frame.head, layers).ok_or(DropReason::BadOffload)?;
            match mss {
                0 => inner_checksum(frame, &inner, header),
                mss => segment(frame, inner, Some((*layers, outer_sum)), header, mss),
            }
        }
    }
}

#[inline]
fn checksum(frame: &Frame<'_>, layers: &Layers, start: u16, field: u16) -> Result<Job, DropReason> {
    let fits = usize::from(start) >= HEADER && start <= field && usize::from(field) + 2 <= frame.head.len();
    if !fits {
        return Err(DropReason::BadOffload);
    }
    let udp = layers.transport == Transport::Udp && start == layers.transport_at;
    Ok(Job::Checksum(PartialChecksum { start, field, never_zero: udp }))
}

fn inner_checksum(frame: &Frame<'_>, inner: &Layers, header: u16) -> Result<Job, DropReason> {
    let offset = match inner.transport {
        Transport::Tcp => 16,
        Transport::Udp => 6,
        Transport::Other => return Err(DropReason::BadOffload),
    };
    if header < inner.transport_at {
        return Err(DropReason::BadOffload);
    }
    let field = inner.transport_at + offset;
    let never_zero = inner.transport == Transport::Udp;
    if usize::from(field) + 2 > frame.head.len() {
        return Err(DropReason::BadOffload);
    }
    Ok(Job::Checksum(PartialChecksum { start: inner.transport_at, field, never_zero }))
}

fn segment(
    frame: &Frame<'_>,
    packet: Layers,
    outer: Option<(Layers, bool)>,
    header: u16,
    mss: u16,
) -> Result<Job, DropReason> {
    let bytes = usize::from(header);
    let payload =
        frame.len().checked_sub(bytes).filter(|&payload| payload > 0).ok_or(DropReason::BadOffload)?;
    let matches = parse::payload(frame.head, &packet) == Some(bytes)
        && packet.network != Network::Other
        && (outer.is_none() || packet.transport == Transport::Tcp)
        && mss > 0
        && bytes + payload.min(mss.into())
            - usize::from(outer.map_or(packet, |(layers, _)| layers).network_at)
            <= usize::from(u16::MAX)
        && !frame.destination().is_multicast();
    let segments = payload.div_ceil(usize::from(mss.max(1)));
    if !matches || segments > MAX_SEGMENTS {
        return Err(DropReason::BadOffload);
    }
    Ok(Job::Segment(Segmentation { packet, outer, header, mss, segments: segments as u16 }))
}
