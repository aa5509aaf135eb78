//! TCP frames as an independent implementation makes them.

use etherparse::{EtherType, Ethernet2Header, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, TcpHeader};
use vmlane_wire::ethernet::Mac;

/// A TCP packet in parts.
#[derive(Clone)]
pub struct Packet {
    pub ethernet: Ethernet2Header,
    pub ip: Ip,
    pub tcp: TcpHeader,
    pub payload: Vec<u8>,
}

#[derive(Clone)]
pub enum Ip {
    V4(Ipv4Header),
    V6(Ipv6Header),
}

impl Packet {
    pub fn new(to: Mac, from: Mac, v6: bool, payload: usize) -> Packet {
        let ip = if v6 {
            Ip::V6(Ipv6Header {
                traffic_class: 0,
                flow_label: Ipv6FlowLabel::ZERO,
                payload_length: 0,
                next_header: IpNumber::TCP,
                hop_limit: 64,
                source: [0xfd; 16],
                destination: [0xfe; 16],
            })
        } else {
            let mut header = Ipv4Header::new(0, 64, IpNumber::TCP, [10, 77, 0, 1], [10, 77, 0, 2]).unwrap();
            header.identification = 0xfffe;
            header.dont_fragment = true;
            Ip::V4(header)
        };
        let mut tcp = TcpHeader::new(40000, 5201, 0xffff_f000, 502);
        tcp.ack = true;
        tcp.acknowledgment_number = 77;
        let ether_type = if v6 { EtherType::IPV6 } else { EtherType::IPV4 };
        Packet {
            ethernet: Ethernet2Header { source: from.0, destination: to.0, ether_type },
            ip,
            tcp,
            payload: (0..payload).map(|at| (at * 7 % 253) as u8).collect(),
        }
    }

    /// The same with a timestamp option.
    pub fn timestamped(mut self) -> Packet {
        self.tcp.set_options_raw(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        self
    }

    pub fn header_len(&self) -> usize {
        let ip = match &self.ip {
            Ip::V4(header) => header.header_len(),
            Ip::V6(header) => header.header_len(),
        };
        14 + ip + self.tcp.header_len()
    }

    /// On the wire, complete.
    pub fn bytes(&self) -> Vec<u8> {
        let mut packet = self.clone();
        let length = self.tcp.header_len() + self.payload.len();
        let ip = match &mut packet.ip {
            Ip::V4(header) => {
                header.set_payload_len(length).unwrap();
                header.header_checksum = header.calc_header_checksum();
                packet.tcp.checksum = packet.tcp.calc_checksum_ipv4(header, &self.payload).unwrap();
                header.to_bytes().to_vec()
            }
            Ip::V6(header) => {
                header.set_payload_length(length).unwrap();
                packet.tcp.checksum = packet.tcp.calc_checksum_ipv6(header, &self.payload).unwrap();
                header.to_bytes().to_vec()
            }
        };
        [&packet.ethernet.to_bytes()[..], &ip, &packet.tcp.to_bytes(), &self.payload].concat()
    }

    /// As a guest leaves it to its NIC: the checksum field holds the pseudo header's sum of `length`
    /// bytes, for a super-frame (`whole` false) other fields are not filled in.
    pub fn partial(&self, checksum_only: bool) -> Vec<u8> {
        let mut bytes = self.bytes();
        let tcp = self.header_len() - self.tcp.header_len();
        let addresses = match self.ip {
            Ip::V4(_) => 26..34,
            Ip::V6(_) => 22..54,
        };
        let length = if checksum_only { bytes.len() - tcp } else { 0 };
        let mut sum: u32 = 6 + length as u32;
        for pair in bytes[addresses].chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        bytes[tcp + 16..tcp + 18].copy_from_slice(&(sum as u16).to_be_bytes());
        match self.ip {
            Ip::V4(_) if !checksum_only => bytes[24..26].fill(0),
            Ip::V6(_) if !checksum_only => bytes[18..20].fill(0),
            _ => {}
        }
        bytes
    }

    /// The packets that it is cut into.
    pub fn segments(&self, mss: usize) -> Vec<Packet> {
        let count = self.payload.len().div_ceil(mss);
        let mut sequence = self.tcp.sequence_number;
        let mut segments = Vec::new();
        for (number, payload) in self.payload.chunks(mss).enumerate() {
            let mut segment = self.clone();
            segment.payload = payload.to_vec();
            segment.tcp.sequence_number = sequence;
            segment.tcp.psh &= number + 1 == count;
            segment.tcp.fin &= number + 1 == count;
            segment.tcp.cwr &= number == 0;
            if let Ip::V4(header) = &mut segment.ip {
                header.identification = header.identification.wrapping_add(number as u16);
            }
            sequence = sequence.wrapping_add(payload.len() as u32);
            segments.push(segment);
        }
        segments
    }
}
