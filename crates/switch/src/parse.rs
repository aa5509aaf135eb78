//! What a frame is, from its first bytes: bounded, total, no more than the sink needs to know.

use vmlane_port::{Layers, Network, Transport};
use vmlane_wire::ethernet::{HEADER, TAG, ether_type};

/// In-band tags that are skipped (the one that is popped into [`vmlane_port::RxFrame::tag`] apart).
const MAX_TAGS: usize = 2;
/// IPv6 extension headers that are walked.
const MAX_EXTENSIONS: usize = 8;

/// Bytes of headers without options.
pub const IPV4: usize = 20;
pub const IPV6: usize = 40;
pub const TCP: usize = 20;
pub const UDP: usize = 8;

/// IP protocol numbers (IANA).
mod protocol {
    pub const HOP_BY_HOP: u8 = 0;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const AUTHENTICATION: u8 = 51;
    pub const DESTINATION: u8 = 60;
}

/// UDP destination ports of tunnels that guests leave offloads to: VXLAN (RFC 7348, and the port that
/// Linux used before), Geneve (RFC 8926).
const VXLAN_PORTS: [u16; 2] = [4789, 8472];
const GENEVE_PORT: u16 = 6081;
const VXLAN: usize = 8;
const GENEVE: usize = 8;
/// Geneve's protocol type of an Ethernet frame.
const TRANSPARENT_BRIDGING: u16 = 0x6558;

/// The 16-bit number at `at`.
#[inline]
pub fn word(head: &[u8], at: usize) -> Option<u16> {
    head.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// Bytes of the in-band tags that a frame begins with, of those that are skipped.
pub fn tags(head: &[u8]) -> usize {
    let is_tag = |at: &usize| matches!(word(head, *at), Some(ether_type::VLAN | ether_type::QINQ));
    TAG * (HEADER - 2..).step_by(TAG).take(MAX_TAGS).take_while(is_tag).count()
}

/// The layers of an untagged or tagged Ethernet frame.
#[inline]
pub fn layers(head: &[u8]) -> Layers {
    ethernet(head, 0)
}

#[inline]
fn ethernet(head: &[u8], base: usize) -> Layers {
    let mut at = base + HEADER - 2;
    for _ in 0..=MAX_TAGS {
        match word(head, at) {
            Some(ether_type::VLAN | ether_type::QINQ) => at += TAG,
            Some(kind) => return network(head, kind, at + 2),
            None => break,
        }
    }
    Layers::default()
}

#[inline]
fn network(head: &[u8], kind: u16, at: usize) -> Layers {
    match kind {
        ether_type::IPV4 => ipv4(head, at),
        ether_type::IPV6 => ipv6(head, at),
        _ => None,
    }
    .unwrap_or_default()
}

#[inline]
fn ipv4(head: &[u8], at: usize) -> Option<Layers> {
    let header = head.get(at..)?.first_chunk::<IPV4>()?;
    let length = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || length < IPV4 || head.len() < at + length {
        return None;
    }
    // More fragments, or not the first one.
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let transport_at = at + length;
    let transport = if fragment { Transport::Other } else { transport(head, header[9], transport_at) };
    Some(found(Network::V4, transport, fragment, at, transport_at))
}

fn ipv6(head: &[u8], at: usize) -> Option<Layers> {
    let header = head.get(at..)?.first_chunk::<IPV6>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let (mut next, mut end, mut fragment) = (header[6], at + IPV6, false);
    for _ in 0..MAX_EXTENSIONS {
        let Some(extension) = head.get(end..).and_then(|rest| rest.first_chunk::<8>()) else { break };
        let length = match next {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION => {
                (usize::from(extension[1]) + 1) * 8
            }
            protocol::AUTHENTICATION => (usize::from(extension[1]) + 2) * 4,
            protocol::FRAGMENT => {
                // An atomic fragment (RFC 6946) is a whole packet.
                fragment |= u16::from_be_bytes([extension[2], extension[3]]) & 0xfff9 != 0;
                8
            }
            _ => break,
        };
        next = extension[0];
        end += length;
    }
    let transport = if fragment { Transport::Other } else { transport(head, next, end) };
    Some(found(Network::V6, transport, fragment, at, end))
}

#[inline]
fn transport(head: &[u8], protocol: u8, at: usize) -> Transport {
    let rest = head.get(at..).unwrap_or_default();
    match protocol {
        protocol::TCP if tcp_length(rest).is_some() => Transport::Tcp,
        protocol::UDP if rest.len() >= UDP => Transport::Udp,
        _ => Transport::Other,
    }
}

/// Bytes of the TCP header that `rest` starts with, if it is all there.
fn tcp_length(rest: &[u8]) -> Option<usize> {
    let length = usize::from(rest.get(12)? >> 4) * 4;
    (length >= TCP && rest.len() >= length).then_some(length)
}

#[inline]
fn found(
    network: Network,
    transport: Transport,
    fragment: bool,
    network_at: usize,
    transport_at: usize,
) -> Layers {
    Layers {
        network,
        transport,
        fragment,
        // A head has at most a few hundred bytes, an extension header at most 2048.
        network_at: network_at as u16,
        transport_at: transport_at as u16,
    }
}

/// Where the payload of a TCP or UDP frame starts.
pub fn payload(head: &[u8], layers: &Layers) -> Option<usize> {
    let at = usize::from(layers.transport_at);
    match layers.transport {
        Transport::Tcp => tcp_length(head.get(at..)?).map(|length| at + length),
        Transport::Udp => Some(at + UDP).filter(|&end| end <= head.len()),
        Transport::Other => None,
    }
}

/// The layers of the frame inside a VXLAN or Geneve tunnel.
pub fn inner(head: &[u8], outer: &Layers) -> Option<Layers> {
    if outer.transport != Transport::Udp {
        return None;
    }
    let udp = usize::from(outer.transport_at);
    let tunnel = udp + UDP;
    let layers = match word(head, udp + 2)? {
        port if VXLAN_PORTS.contains(&port) => ethernet(head, tunnel + VXLAN),
        GENEVE_PORT => {
            let options = usize::from(head.get(tunnel)? & 0x3f) * 4;
            let inside = tunnel + GENEVE + options;
            match word(head, tunnel + 2)? {
                TRANSPARENT_BRIDGING => ethernet(head, inside),
                kind => network(head, kind, inside),
            }
        }
        _ => return None,
    };
    (layers.network != Network::Other).then_some(layers)
}

#[cfg(test)]
mod tests;
