//! Headers of Ethernet, IP, TCP and UDP a second time, written from the RFCs (791, 768, 8200, 9293) for
//! clarity, not for speed: what the switch's own code is held against.

use vmlane_port::{Layers, Network, Transport};
use vmlane_switch::heads::Segmentation;

fn byte(head: &[u8], at: usize) -> usize {
    head[at].into()
}

fn word(head: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}

fn double(head: &[u8], at: usize) -> u32 {
    u32::from(word(head, at)) << 16 | u32::from(word(head, at + 2))
}

/// The ones' complement sum of parts of even length (the last may be odd), and of `more`.
pub fn sum(parts: &[&[u8]], more: u32) -> u16 {
    let mut sum = u64::from(more);
    for pair in parts.iter().flat_map(|part| part.chunks(2)) {
        sum += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
    }
    while sum >> 16 != 0 {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Layers of the Ethernet frame that begins at `at`.
pub fn ethernet(head: &[u8], at: usize) -> Layers {
    let mut kind_at = at + 12;
    let mut tags = 0;
    while kind_at + 2 <= head.len() && [0x8100, 0x88a8].contains(&word(head, kind_at)) && tags < 3 {
        (kind_at, tags) = (kind_at + 4, tags + 1);
    }
    if tags > 2 || kind_at + 2 > head.len() {
        return Layers::default();
    }
    match word(head, kind_at) {
        0x0800 => v4(head, kind_at + 2),
        0x86dd => v6(head, kind_at + 2),
        _ => Layers::default(),
    }
}

fn v4(head: &[u8], at: usize) -> Layers {
    if head.len() < at + 20 || byte(head, at) >> 4 != 4 {
        return Layers::default();
    }
    let end = at + (byte(head, at) & 15) * 4;
    if end < at + 20 || end > head.len() {
        return Layers::default();
    }
    let (more, offset) = (byte(head, at + 6) & 0x20 != 0, word(head, at + 6) & 0x1fff);
    behind(head, Network::V4, byte(head, at + 9), more || offset != 0, at, end)
}

fn v6(head: &[u8], at: usize) -> Layers {
    if head.len() < at + 40 || byte(head, at) >> 4 != 6 {
        return Layers::default();
    }
    let (mut next, mut end, mut fragment) = (byte(head, at + 6), at + 40, false);
    let mut walked = 0;
    while [0, 43, 44, 51, 60].contains(&next) && walked < 8 && end + 8 <= head.len() {
        let units = byte(head, end + 1);
        let len = match next {
            44 => 8,
            51 => 4 * units + 8,
            _ => 8 * units + 8,
        };
        // An offset, or more of them to come.
        fragment |= next == 44 && (word(head, end + 2) >> 3 != 0 || word(head, end + 2) & 1 != 0);
        next = byte(head, end);
        (end, walked) = (end + len, walked + 1);
    }
    behind(head, Network::V6, next, fragment, at, end)
}

fn behind(head: &[u8], network: Network, next: usize, fragment: bool, at: usize, end: usize) -> Layers {
    let left = head.len().saturating_sub(end);
    let tcp = || left >= 20 && (20..=left).contains(&(byte(head, end + 12) / 16 * 4));
    let transport = match next {
        _ if fragment => Transport::Other,
        6 if tcp() => Transport::Tcp,
        17 if left >= 8 => Transport::Udp,
        _ => Transport::Other,
    };
    Layers { network, transport, fragment, network_at: at as u16, transport_at: end as u16 }
}

/// Lengths, the IPv4 header's checksum, and the identification of segment `number` of the frame that began
/// with `original`.
pub fn check_ip(head: &[u8], found: &Layers, len: usize, segment: Option<(&[u8], u16)>) {
    let at = usize::from(found.network_at);
    if found.network == Network::V6 {
        assert_eq!(usize::from(word(head, at + 4)), len - at - 40, "IPv6 payload length");
        return;
    }
    assert_eq!(usize::from(word(head, at + 2)), len - at, "IPv4 total length");
    assert_eq!(sum(&[&head[at..found.transport_at.into()]], 0), 0xffff, "IPv4 header checksum");
    if let Some((original, number)) = segment {
        assert_eq!(word(head, at + 4), word(original, at + 4).wrapping_add(number), "IPv4 identification");
    }
}

/// Sequence number and flags of a segment.
pub fn check_tcp(head: &[u8], whole: &Segmentation, original: &[u8], number: u16) {
    let at = usize::from(whole.packet.transport_at);
    if whole.packet.transport != Transport::Tcp {
        return;
    }
    let before = u32::from(number) * u32::from(whole.mss);
    assert_eq!(double(head, at + 4), double(original, at + 4).wrapping_add(before), "sequence number");
    let (flags, wished) = (byte(head, at + 13), byte(original, at + 13));
    let (first, last) = (number == 0, number + 1 == whole.segments);
    let kept = 0xff & !(if first { 0 } else { 0x80 }) & !(if last { 0 } else { 0x09 });
    assert_eq!(flags, wished & kept, "flags");
}

/// Length of a tunnel's UDP header, and its checksum if there is to be none.
pub fn check_udp(head: &[u8], len: usize, around: &Layers, wants_sum: bool) {
    assert_eq!(usize::from(word(head, 4)), len - usize::from(around.transport_at), "UDP length");
    assert_eq!(word(head, 6) != 0, wants_sum, "UDP checksum");
}

/// The sum that a receiver works out over a whole packet: 0xffff if its TCP or UDP checksum is right.
pub fn transport_sum(frame: &[u8], found: &Layers) -> u16 {
    let (at, start) = (usize::from(found.network_at), usize::from(found.transport_at));
    let addresses =
        if found.network == Network::V4 { &frame[at + 12..at + 20] } else { &frame[at + 8..at + 40] };
    let protocol = if found.transport == Transport::Udp { 17 } else { 6 };
    sum(&[addresses, &frame[start..]], protocol + (frame.len() - start) as u32)
}
