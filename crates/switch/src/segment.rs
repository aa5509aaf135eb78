//! TCP and UDP segmentation for a receiver that does not take super-frames: headers are edited in a private
//! copy, payload goes straight from the sender's memory to the receiver's.

#![expect(
    clippy::indexing_slicing,
    reason = "offsets are those of headers that stage 1 has checked to lie in the head (`ingress::job`)"
)]

use vmlane_mem::Sum;
use vmlane_port::{Layers, Network, PartialChecksum, Transport};

use crate::ingress::Segmentation;
use crate::parse::{IPV4, IPV6, UDP, word};

/// The most segments that the completion of an aggregate can report.
pub const MAX_AGGREGATED: u16 = 255;
/// Offsets in a TCP header.
pub const SEQUENCE: usize = 4;
pub const FLAGS: usize = 13;
pub const TCP_CHECKSUM: usize = 16;
/// Offsets in a UDP header.
const UDP_LENGTH: usize = 4;
pub const UDP_CHECKSUM: usize = 6;
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
        _ => put(head, at + 4, (frame_len - at - IPV6) as u16),
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
    PartialChecksum { start: packet.transport_at, field: field as u16, never_zero: udp, head_sum: None }
}

/// The part of a header's sum that is the same for all segments (RFC 1624), of big-endian words.
#[derive(Clone, Copy, Debug, Default)]
struct Fixed(u32);

impl Fixed {
    /// Of whole words; those at the places `but` (multiples of 2) are left out.
    fn of(header: &[u8], but: &[usize]) -> Fixed {
        let words = header.as_chunks::<2>().0.iter().enumerate();
        let words = words.filter(|(word, _)| !but.contains(&(2 * word)));
        Fixed(words.map(|(_, bytes)| u32::from(u16::from_be_bytes(*bytes))).sum())
    }

    /// The folded sum with these added.
    #[inline]
    fn with(self, words: &[u16]) -> u16 {
        let sum = self.0 + words.iter().map(|&word| u32::from(word)).sum::<u32>();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }
}

/// An IP header whose lengths differ from segment to segment.
#[derive(Clone, Copy, Debug)]
struct IpHeader {
    at: usize,
    /// For IPv4: what stays of its sum, and the identification of the first.
    v4: Option<(Fixed, u16)>,
}

impl IpHeader {
    fn new(head: &[u8], layers: &Layers) -> IpHeader {
        let at = usize::from(layers.network_at);
        let header = &head[at..usize::from(layers.transport_at)];
        let v4 = layers.network == Network::V4;
        IpHeader { at, v4: v4.then(|| (Fixed::of(header, &[2, 4, 10]), id(head, layers))) }
    }

    /// Fills in what depends on the length and the number of a segment.
    #[inline]
    fn set(&self, head: &mut [u8], frame_len: usize, number: u16) {
        match self.v4 {
            Some((fixed, id)) => {
                let (len, id) = ((frame_len - self.at) as u16, id.wrapping_add(number));
                put(head, self.at + 2, len);
                put(head, self.at + 4, id);
                put(head, self.at + 10, !fixed.with(&[len, id]));
            }
            None => put(head, self.at + 4, (frame_len - self.at - IPV6) as u16),
        }
    }
}

/// Edits the headers of one super-frame into those of its segments.
pub struct Cutter {
    segmentation: Segmentation,
    sequence: u32,
    flags: u8,
    ip: IpHeader,
    /// That of a tunnel, and whether its UDP checksum is wanted.
    outer: Option<(IpHeader, bool)>,
    /// Of the pseudo header, and of the TCP or UDP header.
    pseudo: Fixed,
    transport: Fixed,
}

impl Cutter {
    /// `head`: exactly the headers, which were checked.
    pub fn new(head: &[u8], segmentation: Segmentation) -> Cutter {
        let packet = &segmentation.packet;
        let at = usize::from(packet.transport_at);
        let tcp = packet.transport == Transport::Tcp;
        let (sequence, flags) = if tcp {
            let sequence = &head[at + SEQUENCE..at + SEQUENCE + 4];
            let sequence = [sequence[0], sequence[1], sequence[2], sequence[3]];
            (u32::from_be_bytes(sequence), head[at + FLAGS])
        } else {
            (0, 0)
        };
        let pseudo = pseudo_header(head, packet, if tcp { TCP } else { UDP_PROTOCOL }, 0);
        let fields: &[usize] = if tcp {
            &[SEQUENCE, SEQUENCE + 2, FLAGS - 1, TCP_CHECKSUM]
        } else {
            &[UDP_LENGTH, UDP_CHECKSUM]
        };
        let mut transport = Fixed::of(&head[at..], fields);
        if tcp {
            // The length of the header, beside the flags.
            transport.0 += u32::from(head[at + FLAGS - 1]) << 8;
        }
        Cutter {
            sequence,
            flags,
            ip: IpHeader::new(head, packet),
            outer: segmentation.outer.map(|(outer, wants_sum)| (IpHeader::new(head, &outer), wants_sum)),
            pseudo: Fixed(pseudo.into()),
            transport,
            segmentation,
        }
    }

    /// Makes `head`, a private copy of the headers or those of another segment, that of segment `number`,
    /// which has `payload` bytes.
    #[inline]
    pub fn cut(&self, head: &mut [u8], number: u16, payload: usize) -> PartialChecksum {
        let Segmentation { packet, outer, mss, segments, .. } = self.segmentation;
        let frame_len = head.len() + payload;
        let start = usize::from(packet.transport_at);
        let len = (frame_len - start) as u16;
        self.ip.set(head, frame_len, number);
        let seed = self.pseudo.with(&[len]);
        let tcp = packet.transport == Transport::Tcp;
        let (field, sum) = if tcp {
            let sequence = self.sequence.wrapping_add(u32::from(number) * u32::from(mss));
            head[start + SEQUENCE..start + SEQUENCE + 4].copy_from_slice(&sequence.to_be_bytes());
            let not_last = if number + 1 < segments { ONLY_LAST } else { 0 };
            let not_first = if number > 0 { ONLY_FIRST } else { 0 };
            let flags = self.flags & !(not_last | not_first);
            head[start + FLAGS] = flags;
            let words = [(sequence >> 16) as u16, sequence as u16, flags.into(), seed];
            (start + TCP_CHECKSUM, self.transport.with(&words))
        } else {
            put(head, start + UDP_LENGTH, len);
            (start + UDP_CHECKSUM, self.transport.with(&[len, seed]))
        };
        put(head, field, seed);
        let partial_checksum = PartialChecksum {
            start: packet.transport_at,
            field: field as u16,
            never_zero: !tcp,
            head_sum: Some(sum),
        };
        if let (Some((layers, _)), Some((ip, wants_sum))) = (outer, self.outer) {
            ip.set(head, frame_len, number);
            self.wrap(head, &layers, wants_sum, frame_len);
        }
        partial_checksum
    }

    /// The tunnel's UDP header around a segment.
    fn wrap(&self, head: &mut [u8], outer: &Layers, wants_sum: bool, frame_len: usize) {
        let udp = usize::from(outer.transport_at);
        let inner = usize::from(self.segmentation.packet.transport_at);
        put(head, udp + 4, (frame_len - udp) as u16);
        put(head, udp + 6, 0);
        if !wants_sum {
            return;
        }
        let mut sum = Sum::from_be(pseudo_header(head, outer, UDP_PROTOCOL, frame_len - udp));
        sum.add(&head[udp..inner]);
        // The inner packet, once its checksum is filled in, sums to the complement of its pseudo
        // header: its payload need not be read.
        sum.add_u16(!word(head, inner + TCP_CHECKSUM).unwrap_or(0));
        let checksum = match sum.checksum() {
            0 => 0xffff,
            checksum => checksum,
        };
        put(head, udp + 6, checksum);
    }
}

const _: () = assert!(UDP == 8 && IPV4 == 20);
