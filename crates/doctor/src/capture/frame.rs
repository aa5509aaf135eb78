//! What a frame of a capture means: a TCP segment, a neighbour's claim of an address, or a router's word on the MTU.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use etherparse::{
    ArpHardwareId, EtherType, LaxNetSlice, LaxSlicedPacket, LinkSlice, TcpOptionElement, TcpSlice,
    TransportSlice,
};
use pcap_file::DataLink;

use super::file::Packet;

pub type Mac = [u8; 6];

pub enum Frame {
    Tcp(Segment),
    /// ARP: the address belongs to this card, says the sender.
    Claim {
        address: IpAddr,
        mac: Mac,
    },
    /// ICMP: packets of this connection must not be larger.
    TooBig {
        from: SocketAddr,
        to: SocketAddr,
        mtu: u32,
    },
    /// Part of a datagram.
    Fragment,
    Other,
    /// Of a link layer that is not known here.
    Unknown,
    /// Fewer bytes were kept than its headers have.
    Cut,
}

#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub interface: u32,
    pub time: i64,
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub sequence: u32,
    pub acknowledged: u32,
    pub window: u16,
    /// Bytes of data.
    pub payload: u32,
    /// Bytes of the IP packet.
    pub packet: u32,
    /// IPv4's identification; zero where there is none.
    pub id: u16,
    pub flags: Flags,
    pub options: Options,
    /// Of the Ethernet frame.
    pub macs: Option<(Mac, Mac)>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Flags {
    pub syn: bool,
    pub ack: bool,
    pub fin: bool,
    pub rst: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack_permitted: bool,
    /// The first two blocks of a selective acknowledgement.
    pub sacks: [Option<(u32, u32)>; 2],
}

pub fn decode(packet: &Packet<'_>) -> Frame {
    let bytes = packet.bytes;
    let mut interface = u32::from(packet.interface);
    let sliced = match packet.link {
        DataLink::ETHERNET => LaxSlicedPacket::from_ethernet(bytes).ok(),
        DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => LaxSlicedPacket::from_ip(bytes).ok(),
        DataLink::LINUX_SLL => cooked(bytes, 14, 16),
        // Of several interfaces at once, each frame says which one it was.
        DataLink::LINUX_SLL2 => {
            let index = bytes.get(4..8).and_then(|bytes| bytes.first_chunk::<4>());
            interface = index.map_or(0, |index| u32::from_be_bytes(*index));
            cooked(bytes, 0, 20)
        }
        DataLink::NULL | DataLink::LOOP => {
            bytes.get(4..).and_then(|packet| LaxSlicedPacket::from_ip(packet).ok())
        }
        _ => return Frame::Unknown,
    };
    let Some(sliced) = sliced else { return Frame::Cut };
    let (header, addresses, announced, id, fragmented) = match &sliced.net {
        Some(LaxNetSlice::Arp(arp)) => return claim(arp),
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let addresses = (IpAddr::V4(header.source_addr()), IpAddr::V4(header.destination_addr()));
            let announced = u32::from(header.total_len());
            let at = offset(bytes, ip.header().slice());
            (at, addresses, announced, header.identification(), ip.is_payload_fragmented())
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let header = ip.header();
            let addresses = (IpAddr::V6(header.source_addr()), IpAddr::V6(header.destination_addr()));
            let announced = match header.payload_length() {
                0 => 0,
                length => u32::from(length) + 40,
            };
            (offset(bytes, header.slice()), addresses, announced, 0, ip.is_payload_fragmented())
        }
        None if sliced.stop_err.is_some() => return Frame::Cut,
        None => return Frame::Other,
    };
    if fragmented {
        return Frame::Fragment;
    }
    // Frames that the card shall cut may be longer than the field can say, which then is zero.
    let whole = if announced == 0 { packet.length.saturating_sub(header as u32) } else { announced };
    let tcp = match &sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => tcp,
        Some(TransportSlice::Icmpv4(icmp)) if (icmp.type_u8(), icmp.code_u8()) == (3, 4) => {
            let [_, _, high, low] = icmp.bytes5to8();
            return too_big(icmp.payload(), u32::from(u16::from_be_bytes([high, low])));
        }
        Some(TransportSlice::Icmpv6(icmp)) if icmp.type_u8() == 2 => {
            return too_big(icmp.payload(), u32::from_be_bytes(icmp.bytes5to8()));
        }
        None if sliced.stop_err.is_some() => return Frame::Cut,
        _ => return Frame::Other,
    };
    let before = offset(bytes, tcp.header_slice()).saturating_sub(header) + tcp.header_slice().len();
    let macs = match &sliced.link {
        Some(LinkSlice::Ethernet2(ethernet)) => Some((ethernet.source(), ethernet.destination())),
        _ => None,
    };
    Frame::Tcp(Segment {
        interface,
        time: packet.time,
        from: SocketAddr::new(addresses.0, tcp.source_port()),
        to: SocketAddr::new(addresses.1, tcp.destination_port()),
        sequence: tcp.sequence_number(),
        acknowledged: tcp.acknowledgment_number(),
        window: tcp.window_size(),
        payload: whole.saturating_sub(before as u32),
        packet: whole,
        id,
        flags: Flags { syn: tcp.syn(), ack: tcp.ack(), fin: tcp.fin(), rst: tcp.rst() },
        options: options(tcp),
        macs,
    })
}

/// Linux' header of captures on all interfaces: the type of the packet at `kind`, the packet at `at`.
fn cooked(bytes: &[u8], kind: usize, at: usize) -> Option<LaxSlicedPacket<'_>> {
    let kind = u16::from_be_bytes(*bytes.get(kind..)?.first_chunk()?);
    Some(LaxSlicedPacket::from_ether_type(EtherType(kind), bytes.get(at..)?))
}

/// Where a part begins in the whole.
fn offset(whole: &[u8], part: &[u8]) -> usize {
    (part.as_ptr() as usize).saturating_sub(whole.as_ptr() as usize)
}

fn options(tcp: &TcpSlice<'_>) -> Options {
    let mut options = Options::default();
    for option in tcp.options_iterator().map_while(Result::ok) {
        match option {
            TcpOptionElement::MaximumSegmentSize(mss) => options.mss = Some(mss),
            TcpOptionElement::WindowScale(scale) => options.scale = Some(scale.min(14)),
            TcpOptionElement::SelectiveAcknowledgementPermitted => options.sack_permitted = true,
            TcpOptionElement::SelectiveAcknowledgement(first, more) => {
                options.sacks = [Some(first), more[0]];
            }
            _ => {}
        }
    }
    options
}

fn claim(arp: &etherparse::ArpPacketSlice<'_>) -> Frame {
    let is_ethernet =
        arp.hw_addr_type() == ArpHardwareId::ETHERNET && arp.proto_addr_type() == EtherType::IPV4;
    let (mac, address) = (arp.sender_hw_addr(), arp.sender_protocol_addr());
    match (mac.try_into(), <[u8; 4]>::try_from(address)) {
        // A probe for an address that is not used yet has none of its own.
        (Ok(mac), Ok(address)) if is_ethernet && address != [0; 4] => {
            Frame::Claim { address: IpAddr::V4(Ipv4Addr::from(address)), mac }
        }
        _ => Frame::Other,
    }
}

/// The beginning of the packet that was too big is in the message: addresses and ports.
fn too_big(packet: &[u8], mtu: u32) -> Frame {
    let found = match packet.first().map(|byte| byte >> 4) {
        Some(4) => ports(packet, usize::from(packet[0] & 15) * 4, 9).and_then(|ports| {
            let at = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?)));
            Some((at(12)?, at(16)?, ports))
        }),
        Some(6) => ports(packet, 40, 6).and_then(|ports| {
            let at = |at: usize| Some(IpAddr::V6(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?)));
            Some((at(8)?, at(24)?, ports))
        }),
        _ => None,
    };
    let Some((from, to, (source, destination))) = found else { return Frame::Other };
    Frame::TooBig { from: SocketAddr::new(from, source), to: SocketAddr::new(to, destination), mtu }
}

/// The ports of a TCP segment that begins at `at`, if the byte at `protocol` says that it is one.
fn ports(packet: &[u8], at: usize, protocol: usize) -> Option<(u16, u16)> {
    if *packet.get(protocol)? != 6 {
        return None;
    }
    let [a, b, c, d] = *packet.get(at..)?.first_chunk::<4>()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}
