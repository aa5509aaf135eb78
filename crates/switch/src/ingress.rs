//! The first stage: what a frame is, and whether its sender may send it. The tag goes out of band, the layers
//! are found, the offload is checked against the bytes; VLAN and source address are compared with the port's
//! policy.

use vmlane_port::{
    BURST, DropReason, FramePort, Layers, MAX_HEAD, Network, Offload, PartialChecksum, Token, Transport,
    TxFrame,
};
use vmlane_wire::ethernet::{HEADER, Mac, TAG, Tci, ether_type};

use crate::access::{Access, Config};
use crate::parse;

/// The most segments that one super-frame may be cut into.
pub const MAX_SEGMENTS: usize = 2048;

/// Frames that were fetched from a port together, and how far they got.
pub struct TxBurst {
    /// Those that are done with, then those that were taken, then those that were not.
    tokens: [Token; BURST],
    done: usize,
    next: usize,
    len: usize,
    /// Frames of all bursts that the port has in flight.
    in_flight: usize,
}

impl TxBurst {
    pub fn new() -> TxBurst {
        TxBurst { tokens: [Token(0); BURST], done: 0, next: 0, len: 0, in_flight: 0 }
    }

    /// Has the port frames in flight?
    pub fn has_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// So many of those that waited elsewhere were given back.
    #[inline]
    pub fn came_back(&mut self, count: usize) {
        self.in_flight = self.in_flight.saturating_sub(count);
    }

    /// Frames that were fetched and not taken.
    #[inline]
    pub fn has_frames(&self) -> bool {
        self.next < self.len
    }

    /// How many those are.
    pub fn count_left(&self) -> usize {
        self.len.saturating_sub(self.next)
    }

    /// Fetches up to `most` frames once all were taken. Returns how many.
    #[inline]
    pub fn fetch(&mut self, from: &mut dyn FramePort, most: u32) -> usize {
        let most = (most as usize).min(BURST);
        let fetched = self.tokens.get_mut(..most).map_or(0, |tokens| from.fetch(tokens));
        (self.next, self.len) = (0, fetched.min(most));
        self.in_flight += self.len;
        self.len
    }

    #[inline]
    pub fn take(&mut self) -> Option<Token> {
        if !self.has_frames() {
            return None;
        }
        let token = self.tokens.get(self.next).copied();
        self.next += 1;
        token
    }

    /// This one, which was taken, was copied or dropped.
    #[inline]
    pub fn done(&mut self, token: Token) {
        if let Some(place) = self.tokens.get_mut(self.done) {
            *place = token;
            self.done += 1;
        }
    }

    /// These are not done with, though they were noted so.
    #[cold]
    pub fn keep(&mut self, tokens: &[Token]) {
        for token in tokens {
            let done = self.tokens.get_mut(..self.done).unwrap_or_default();
            if let Some(at) = done.iter().position(|one| one == token) {
                done.swap(at, self.done - 1);
                self.done -= 1;
            }
        }
    }

    /// The last `count` that are done with are not. [`Self::undone`] returns them.
    pub fn undo(&mut self, count: usize) {
        self.done = self.done.saturating_sub(count);
    }

    /// The one `at` behind those that are done with, `at` counted from `from` of them on.
    pub fn undone(&self, from: usize, at: usize) -> Option<Token> {
        self.tokens.get(from + at).copied()
    }

    pub fn count_done(&self) -> usize {
        self.done
    }

    /// Those that are done with, for the last time.
    #[inline]
    pub fn take_done(&mut self) -> &[Token] {
        let done = std::mem::take(&mut self.done);
        self.came_back(done);
        self.tokens.get(..done).unwrap_or_default()
    }

    /// Their port is gone.
    pub fn forget(&mut self) {
        *self = TxBurst::new();
    }
}

/// A frame without its outer tag.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub head: &'a [u8],
    pub tx: &'a TxFrame<'a>,
    /// Bytes of `tx` that are not in this one: the tag that was popped.
    pub popped: usize,
    /// The outer tag, from wherever.
    pub tag: Option<Tci>,
    pub offload: Offload,
}

/// Six bytes from `at` on.
#[inline]
fn address(head: &[u8], at: usize) -> Mac {
    head.get(at..).and_then(|rest| rest.first_chunk::<6>()).map_or(Mac::default(), |bytes| Mac(*bytes))
}

impl<'a> Frame<'a> {
    /// `scratch` takes the head where a tag is in the way.
    #[inline]
    pub fn new(tx: &'a TxFrame<'a>, scratch: &'a mut [u8; MAX_HEAD]) -> Result<Frame<'a>, DropReason> {
        let head = tx.head;
        let Some((_, [high, low, ..])) = head.split_first_chunk::<12>() else {
            return Err(DropReason::BadLength);
        };
        if tx.tag.is_none() && [*high, *low] == ether_type::VLAN.to_be_bytes() {
            return pop(tx, scratch);
        }
        Ok(Frame { head, tx, popped: 0, tag: tx.tag, offload: tx.offload })
    }

    #[inline]
    pub fn destination(&self) -> Mac {
        address(self.head, 0)
    }

    #[inline]
    pub fn source(&self) -> Mac {
        address(self.head, 6)
    }

    /// The frame, checked, if a port may send it; its VLAN, and whether its source address is to be learned.
    #[inline]
    pub fn admit(&self, config: &Config, access: &Access) -> Result<(Checked<'_>, u16, bool), DropReason> {
        let vlan = config.vlan.ingress(self.tag).ok_or(DropReason::BadVlan)?;
        let source = self.source();
        let foreign = !config.direct && (config.uplink || source != access.effective);
        if !config.direct && !source.is_unicast() {
            return Err(DropReason::ForgedSource);
        }
        if foreign && !config.uplink && !config.policy.forged_transmits {
            return Err(if access.blocked { DropReason::MacChanged } else { DropReason::ForgedSource });
        }
        Ok((self.check()?, vlan, foreign))
    }

    /// Finds the layers, and checks the offload that the sender asks for.
    #[inline]
    pub fn check(&self) -> Result<Checked<'_>, DropReason> {
        let layers = parse::layers(self.head);
        Ok(Checked { frame: self, layers, job: job(self, &layers)? })
    }

    /// Bytes, without the tag; never less than a header has.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.tx.len() - self.popped
    }
}

const _: () = assert!(HEADER == 14);

/// Takes the in-band tag out; offsets move with it.
#[cold]
#[expect(clippy::indexing_slicing, reason = "`len` is at least `HEADER`, and `head` has `TAG` bytes more")]
fn pop<'a>(tx: &'a TxFrame<'a>, scratch: &'a mut [u8; MAX_HEAD]) -> Result<Frame<'a>, DropReason> {
    let head = tx.head;
    let tag = Tci(parse::word(head, 14).ok_or(DropReason::BadLength)?);
    let len = head.len().checked_sub(TAG).filter(|&len| len >= HEADER).ok_or(DropReason::BadLength)?;
    let shorter = scratch.get_mut(..len).ok_or(DropReason::BadLength)?;
    shorter[..12].copy_from_slice(&head[..12]);
    shorter[12..].copy_from_slice(&head[16..]);
    let back = |offset: u16| offset.checked_sub(TAG as u16).ok_or(DropReason::BadOffload);
    let offload = match tx.offload {
        Offload::None => Offload::None,
        Offload::Checksum { start, field } => Offload::Checksum { start: back(start)?, field: back(field)? },
        Offload::Segment { header, mss } => Offload::Segment { header: back(header)?, mss },
        Offload::Tunnel { header, mss, outer_sum } => {
            Offload::Tunnel { header: back(header)?, mss, outer_sum }
        }
    };
    Ok(Frame { head: shorter, tx, popped: TAG, tag: Some(tag), offload })
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

/// A frame whose sender's requests were checked.
///
/// The frame is not moved here, for the reason that [`crate::flight::Fetched`] has.
#[derive(Clone, Copy, Debug)]
pub struct Checked<'a> {
    pub frame: &'a Frame<'a>,
    pub layers: Layers,
    pub job: Job,
}

/// What the offload of a frame comes to.
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
    Ok(Job::Checksum(PartialChecksum { start, field, never_zero: udp, head_sum: None }))
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
    Ok(Job::Checksum(PartialChecksum { start: inner.transport_at, field, never_zero, head_sum: None }))
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
