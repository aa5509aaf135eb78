//! Packets that carry packets of another network: VXLAN (RFC 7348), Geneve (RFC 8926), GRE (RFC 2784, 2890),
//! and IP in IP (RFC 2003, 4213). Headers are read with their lengths; what is inside is sliced as a frame of
//! its own.

use etherparse::{EtherType, IpNumber, LaxSlicedPacket, TransportSlice, UdpSlice};

use super::unexamined::Unexamined;

/// Ports of UDP at which tunnels end: VXLAN's, the one of Linux before it had a number, and Geneve's.
const VXLAN: [u16; 2] = [4789, 8472];
const GENEVE: u16 = 6081;
/// "Trans Ether Bridging": an Ethernet frame.
const ETHERNET: EtherType = EtherType(0x6558);

/// The packet inside of a tunnel's, and the number of its network (0 where the tunnel has none); or why it is
/// not known.
pub type Inside<'a> = Result<(LaxSlicedPacket<'a>, u32), Unexamined>;

/// What is inside of a packet; none if it is no tunnel's.
pub fn inside<'a>(outer: &LaxSlicedPacket<'a>) -> Option<Inside<'a>> {
    let ip = outer.net.as_ref()?.ip_payload_ref().filter(|ip| !ip.fragmented)?;
    match (&outer.transport, ip.ip_number) {
        (Some(TransportSlice::Udp(udp)), _) => in_udp(udp),
        (None, IpNumber::GRE) => Some(in_gre(ip.payload)),
        (None, IpNumber::IPV4 | IpNumber::IPV6) => Some(of(LaxSlicedPacket::from_ip(ip.payload).ok(), 0)),
        _ => None,
    }
}

fn of(inner: Option<LaxSlicedPacket<'_>>, network: u32) -> Inside<'_> {
    inner.map(|inner| (inner, network)).ok_or(Unexamined::Cut)
}

fn in_udp<'a>(udp: &UdpSlice<'a>) -> Option<Inside<'a>> {
    match udp.destination_port() {
        port if VXLAN.contains(&port) => Some(in_vxlan(udp.payload())),
        GENEVE => Some(in_geneve(udp.payload())),
        _ => None,
    }
}

fn in_vxlan(payload: &[u8]) -> Inside<'_> {
    let ([flags, _, _, _, a, b, c, _], rest) = payload.split_first_chunk::<8>().ok_or(Unexamined::Cut)?;
    // The number of the network is valid, and what follows is Ethernet: not VXLAN-GPE.
    if flags & 0x08 == 0 || flags & 0x04 != 0 {
        return Err(Unexamined::Tunnel("VXLAN"));
    }
    of(LaxSlicedPacket::from_ethernet(rest).ok(), u32::from_be_bytes([0, *a, *b, *c]))
}

fn in_geneve(payload: &[u8]) -> Inside<'_> {
    let ([first, _, high, low, a, b, c, _], rest) =
        payload.split_first_chunk::<8>().ok_or(Unexamined::Cut)?;
    let (version, options) = (first >> 6, usize::from(first & 0x3f) * 4);
    if version != 0 {
        return Err(Unexamined::Tunnel("Geneve"));
    }
    let inner = rest.get(options..).ok_or(Unexamined::Cut)?;
    let kind = EtherType(u16::from_be_bytes([*high, *low]));
    of(sliced(kind, inner), u32::from_be_bytes([0, *a, *b, *c]))
}

fn in_gre(payload: &[u8]) -> Inside<'_> {
    let ([flags, version, high, low], rest) = payload.split_first_chunk::<4>().ok_or(Unexamined::Cut)?;
    let kind = EtherType(u16::from_be_bytes([*high, *low]));
    // Routing was removed by RFC 2784, and version 1 is PPTP's.
    let is_known = matches!(kind, ETHERNET | EtherType::IPV4 | EtherType::IPV6);
    if flags & 0x40 != 0 || version & 7 != 0 || !is_known {
        return Err(Unexamined::Tunnel("GRE"));
    }
    let (checksum, key, number) = (flags & 0x80 != 0, flags & 0x20 != 0, flags & 0x10 != 0);
    let at = usize::from(checksum) * 4;
    let network = if key { rest.get(at..).and_then(|rest| rest.first_chunk::<4>()) } else { Some(&[0; 4]) };
    let inner = rest.get(at + usize::from(key) * 4 + usize::from(number) * 4..);
    let (Some(network), Some(inner)) = (network, inner) else { return Err(Unexamined::Cut) };
    of(sliced(kind, inner), u32::from_be_bytes(*network))
}

fn sliced(kind: EtherType, bytes: &[u8]) -> Option<LaxSlicedPacket<'_>> {
    if kind == ETHERNET {
        return LaxSlicedPacket::from_ethernet(bytes).ok();
    }
    Some(LaxSlicedPacket::from_ether_type(kind, bytes))
}
