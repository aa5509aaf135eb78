//! What a frame of a capture means: a TCP segment, a neighbour's claim of an address, or a router's word on
//! the MTU.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use etherparse::{
    ArpHardwareId, EtherType, IpNumber, LaxIpSlice, LaxLinkExtSlice, LaxNetSlice, LaxSlicedPacket, LinkSlice,
    TcpOptionElement, TcpSlice, TransportSlice,
};
use pcap_file::DataLink;

use super::file::Packet;
use super::tunnel;
use super::unexamined::Unexamined;

pub type Mac = [u8; 6];

/// `ARPHRD_VSOCKMON` of linux/if_arp.h.
const VSOCKMON: [u8; 2] = 826_u16.to_be_bytes();
/// Nested tunnels that are examined.
const DEEPEST: usize = 2;

pub enum Frame {
    Tcp(Segment),
    /// ARP: the sender claims the address for this card.
    Claim {
        network: Network,
        address: IpAddr,
        mac: Mac,
    },
    /// ICMP: packets of this connection must not be larger.
    TooBig {
        point: Point,
        from: SocketAddr,
        to: SocketAddr,
        mtu: u32,
    },
    /// No conclusion is drawn from it.
    Unexamined(Unexamined),
}

/// Where in its file a frame was seen: a connection at two points is not followed as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    pub interface: u32,
    pub in_tunnel: bool,
}

/// Where an address has one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    interface: u32,
    /// The numbers of its VLANs, from the outermost to the innermost.
    vlans: u64,
    /// The number of the tunnel's network.
    tunnel: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub point: Point,
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
        DataLink::VSOCK => return Frame::Unexamined(Unexamined::Vsock),
        DataLink::LINUX_SLL if bytes.get(2..4) == Some(&VSOCKMON) => {
            return Frame::Unexamined(Unexamined::Vsock);
        }
        DataLink::LINUX_SLL => cooked(bytes, 14, 16),
        DataLink::LINUX_SLL2 if bytes.get(8..10) == Some(&VSOCKMON) => {
            return Frame::Unexamined(Unexamined::Vsock);
        }
        // Of several interfaces at once, each frame names which one it was.
        DataLink::LINUX_SLL2 => {
            let index = bytes.get(4..8).and_then(|bytes| bytes.first_chunk::<4>());
            interface = index.map_or(0, |index| u32::from_be_bytes(*index));
            cooked(bytes, 0, 20)
        }
        DataLink::NULL | DataLink::LOOP => {
            bytes.get(4..).and_then(|packet| LaxSlicedPacket::from_ip(packet).ok())
        }
        link => return Frame::Unexamined(Unexamined::Link(u32::from(link))),
    };
    let Some(mut sliced) = sliced else { return Frame::Unexamined(Unexamined::Cut) };
    let mut tunnel = None;
    for _ in 0..=DEEPEST {
        match tunnel::inside(&sliced) {
            None => return meaning(packet, interface, tunnel, &sliced),
            Some(Ok((inner, network))) => (sliced, tunnel) = (inner, Some(network)),
            Some(Err(why)) => return Frame::Unexamined(why),
        }
    }
    Frame::Unexamined(Unexamined::TooDeep)
}

/// What a packet means; `tunnel` is the network of the tunnel that it is in.
fn meaning(packet: &Packet<'_>, interface: u32, tunnel: Option<u32>, sliced: &LaxSlicedPacket<'_>) -> Frame {
    let bytes = packet.bytes;
    let point = Point { interface, in_tunnel: tunnel.is_some() };
    let (header, addresses, announced, id, fragmented) = match &sliced.net {
        Some(LaxNetSlice::Arp(arp)) => {
            return claim(arp, Network { interface, vlans: vlans(sliced), tunnel });
        }
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
        None if sliced.stop_err.is_some() => return Frame::Unexamined(Unexamined::Cut),
        None => return Frame::Unexamined(Unexamined::NoIp),
    };
    if fragmented {
        return Frame::Unexamined(Unexamined::Fragment);
    }
    let protocol = sliced.net.as_ref().and_then(LaxNetSlice::ip_payload_ref).map(|ip| ip.ip_number);
    let other = Frame::Unexamined(protocol.map_or(Unexamined::NoIp, Unexamined::Protocol));
    // Frames that the card shall cut may be longer than the field can hold, which then is zero.
    let whole = if announced == 0 { packet.length.saturating_sub(header as u32) } else { announced };
    let tcp = match &sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => tcp,
        Some(TransportSlice::Icmpv4(icmp)) if (icmp.type_u8(), icmp.code_u8()) == (3, 4) => {
            let [_, _, high, low] = icmp.bytes5to8();
            let mtu = u32::from(u16::from_be_bytes([high, low]));
            return too_big(point, icmp.payload(), mtu).unwrap_or(other);
        }
        Some(TransportSlice::Icmpv6(icmp)) if icmp.type_u8() == 2 => {
            return too_big(point, icmp.payload(), u32::from_be_bytes(icmp.bytes5to8())).unwrap_or(other);
        }
        None if sliced.stop_err.is_some() => return Frame::Unexamined(Unexamined::Cut),
        _ => return other,
    };
    let before = offset(bytes, tcp.header_slice()).saturating_sub(header) + tcp.header_slice().len();
    let macs = match &sliced.link {
        Some(LinkSlice::Ethernet2(ethernet)) => Some((ethernet.source(), ethernet.destination())),
        _ => None,
    };
    Frame::Tcp(Segment {
        point,
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

fn vlans(sliced: &LaxSlicedPacket<'_>) -> u64 {
    sliced.link_exts.iter().fold(0, |all, header| match header {
        LaxLinkExtSlice::Vlan(vlan) => all << 16 | u64::from(vlan.vlan_identifier().value()) | 1 << 12,
        LaxLinkExtSlice::Macsec(_) => all,
    })
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
                let [second, ..] = more;
                options.sacks = [Some(first), second];
            }
            _ => {}
        }
    }
    options
}

fn claim(arp: &etherparse::ArpPacketSlice<'_>, network: Network) -> Frame {
    let is_ethernet =
        arp.hw_addr_type() == ArpHardwareId::ETHERNET && arp.proto_addr_type() == EtherType::IPV4;
    let (mac, address) = (arp.sender_hw_addr(), arp.sender_protocol_addr());
    match (mac.try_into(), <[u8; 4]>::try_from(address)) {
        // A probe for an address that is not used yet has none of its own.
        (Ok(mac), Ok(address)) if is_ethernet && address != [0; 4] => {
            Frame::Claim { network, address: IpAddr::V4(Ipv4Addr::from(address)), mac }
        }
        _ => Frame::Unexamined(Unexamined::NoIp),
    }
}

/// The beginning of the packet that was too big is in the message: addresses and ports.
fn too_big(point: Point, packet: &[u8], mtu: u32) -> Option<Frame> {
    let (ip, _) = LaxIpSlice::from_slice(packet).ok()?;
    let [a, b, c, d] = *ip.payload().payload.first_chunk::<4>()?;
    let from = SocketAddr::new(ip.source_addr(), u16::from_be_bytes([a, b]));
    let to = SocketAddr::new(ip.destination_addr(), u16::from_be_bytes([c, d]));
    (ip.payload_ip_number() == IpNumber::TCP).then_some(Frame::TooBig { point, from, to, mtu })
}
