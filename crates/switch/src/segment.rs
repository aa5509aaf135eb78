//! TCP and UDP segmentation for a receiver that does not take super-frames: headers are edited in a private
//! copy, payload goes straight from the sender's memory to the receiver's.

#![expect(
    clippy::indexing_slicing,
    reason = "offsets are those of headers that stage 1 has checked to lie in the head (`ingress::job`)"
)]

use vmlane_mem::Sum;
use vmlane_port::{Layers, Network, PartialChecksum, Transport};

use crate::ingress::Segmentation;
use crate::parse::{IPV4, UDP, word};

/// The most segments that the completion of an aggregate can tell.
pub const MAX_AGGREGATED: u16 = 255;
/// Offsets in a TCP header.
pub const SEQUENCE: usize = 4;
pub const FLAGS: usize = 13;
pub const TCP_CHECKSUM: usize = 16;
/// Offsets in a UDP header.
const UDP_LENGTH: usize = 4;
const UDP_CHECKSUM: usize = 6;
/// Flags that only the last segment keeps (FIN, PSH), and only the first (CWR).
pub const ONLY_LAST: u8 = 0x01 | 0x08;
const ONLY_FIRST: u8 = 0x80;

/// Protocol numbers in pseudo headers.
const TCP: u16 = 6;
const UDP_PROTOCOL: u16 = 17;

#[inline]
fn put(head: &mut [u8], at: usize, value: u16) {
    head[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The sum of the pseudo header of `length` bytes behind the IP headers, folded, not complemented.
fn pseudo_header(head: &[u8], layers: &Layers, protocol: u16, length: usize) -> u16 {
    let at = usize::from(layers.network_at);
    let mut sum = Sum::default();
    match layers.network {
        Network::V4 => sum.add(&head[at + 12..at + 20]),
        _ => sum.add(&head[at + 8..at + 40]),
    }
    sum.add_u16(protocol);
    sum.add_u16(length as u16);
    sum.folded()
}

/// The same for a TCP segment of `length` bytes.
pub fn tcp_pseudo_header(head: &[u8], layers: &Layers, length: usize) -> u16 {
    pseudo_header(head, layers, TCP, length)
}

/// Fills in the lengths of the IP header for a frame of `frame_len` bytes, and what depends on them.
fn set_ip(head: &mut [u8], layers: &Layers, frame_len: usize, id: u16) {
    let at = usize::from(layers.network_at);
    match layers.network {
        Network::V4 => {
            put(head, at + 2, (frame_len - at) as u16);
            put(head, at + 4, id);
            put(head, at + 10, 0);
            let mut sum = Sum::default();
            sum.add(&head[at..usize::from(layers.transport_at)]);
            put(head, at + 10, sum.checksum());
        }
        _ => put(head, at + 4, (frame_len - at - crate::parse::IPV6) as u16),
    }
}

/// The identification of an IPv4 header.
fn id(head: &[u8], layers: &Layers) -> u16 {
    match layers.network {
        Network::V4 => word(head, usize::from(layers.network_at) + 4).unwrap_or(0),
        _ => 0,
    }
}

/// Makes the headers of a super-frame those of a complete packet of `frame_len` bytes, but for the TCP or
/// UDP checksum, whose field gets its seed. Returns what remains to be summed.
pub fn complete(head: &mut [u8], packet: &Layers, frame_len: usize) -> PartialChecksum {
    let id = id(head, packet);
    set_ip(head, packet, frame_len, id);
    seed(head, packet, frame_len)
}

/// Also fills in UDP's length.
fn seed(head: &mut [u8], packet: &Layers, frame_len: usize) -> PartialChecksum {
    let start = usize::from(packet.transport_at);
    let udp = packet.transport == Transport::Udp;
    let (protocol, field) =
        if udp { (UDP_PROTOCOL, start + UDP_CHECKSUM) } else { (TCP, start + TCP_CHECKSUM) };
    if udp {
        put(head, start + UDP_LENGTH, (frame_len - start) as u16);
    }
    let pseudo = pseudo_header(head, packet, protocol, frame_len - start);
    put(head, field, pseudo);
    PartialChecksum { start: packet.transport_at, field: field as u16, never_zero: udp }
}

/// Edits the headers of one super-frame into those of its segments, one after another.
pub struct Cutter<'a> {
    head: &'a mut [u8],
    segmentation: Segmentation,
    sequence: u32,
    flags: u8,
    id: u16,
    outer_id: u16,
}

impl<'a> Cutter<'a> {
    /// `head`: a private copy of exactly the headers, which were checked.
    pub fn new(head: &'a mut [u8], segmentation: Segmentation) -> Cutter<'a> {
        let at = usize::from(segmentation.packet.transport_at);
        let (sequence, flags) = match segmentation.packet.transport {
            Transport::Tcp => {
                let sequence = &head[at + SEQUENCE..at + SEQUENCE + 4];
                let sequence = [sequence[0], sequence[1], sequence[2], sequence[3]];
                (u32::from_be_bytes(sequence), head[at + FLAGS])
            }
            _ => (0, 0),
        };
        Cutter {
            sequence,
            flags,
            id: id(head, &segmentation.packet),
            outer_id: segmentation.outer.map_or(0, |(outer, _)| id(head, &outer)),
            segmentation,
            head,
        }
    }

    /// The headers of segment `number`, which has `payload` bytes.
    pub fn cut(&mut self, number: u16, payload: usize) -> (&[u8], PartialChecksum) {
        let Segmentation { packet, outer, mss, segments, .. } = self.segmentation;
        let frame_len = self.head.len() + payload;
        if packet.transport == Transport::Tcp {
            let at = usize::from(packet.transport_at);
            let sequence = self.sequence.wrapping_add(u32::from(number) * u32::from(mss));
            self.head[at + SEQUENCE..at + SEQUENCE + 4].copy_from_slice(&sequence.to_be_bytes());
            let not_last = if number + 1 < segments { ONLY_LAST } else { 0 };
            let not_first = if number > 0 { ONLY_FIRST } else { 0 };
            self.head[at + FLAGS] = self.flags & !(not_last | not_first);
        }
        set_ip(self.head, &packet, frame_len, self.id.wrapping_add(number));
        let partial_checksum = seed(self.head, &packet, frame_len);
        if let Some((outer, wants_sum)) = outer {
            self.wrap(&outer, wants_sum, number, frame_len);
        }
        (self.head, partial_checksum)
    }

    /// The tunnel's headers around a segment.
    fn wrap(&mut self, outer: &Layers, wants_sum: bool, number: u16, frame_len: usize) {
        set_ip(self.head, outer, frame_len, self.outer_id.wrapping_add(number));
        let udp = usize::from(outer.transport_at);
        let inner = usize::from(self.segmentation.packet.transport_at);
        put(self.head, udp + 4, (frame_len - udp) as u16);
        put(self.head, udp + 6, 0);
        if !wants_sum {
            return;
        }
        let mut sum = Sum::from_be(pseudo_header(self.head, outer, UDP_PROTOCOL, frame_len - udp));
        sum.add(&self.head[udp..inner]);
        // The inner packet, once its checksum is filled in, sums to the complement of its pseudo
        // header: its payload need not be looked at.
        sum.add_u16(!word(self.head, inner + TCP_CHECKSUM).unwrap_or(0));
        let checksum = match sum.checksum() {
            0 => 0xffff,
            checksum => checksum,
        };
        put(self.head, udp + 6, checksum);
    }
}

const _: () = assert!(UDP == 8 && IPV4 == 20);
