//! Captures made by code: what is written of a connection, frame by frame, as a file of the kind that
//! `tcpdump -s 96` writes.

use std::net::Ipv4Addr;

use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, Ethernet2Header, Icmpv4Type, IpNumber, Ipv4Header,
    TcpHeader, TcpOptionElement, icmpv4,
};

/// Bytes of a frame that are kept.
const KEPT: usize = 128;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}
pub use Side::{A, B};

impl Side {
    pub fn other(self) -> Side {
        if self == A { B } else { A }
    }
}

/// Two machines and one connection between them; times are microseconds.
pub struct Scene {
    frames: Vec<(u64, Vec<u8>, u32)>,
    pub macs: [[u8; 6]; 2],
    pub port: u16,
    ids: [u16; 2],
    /// The window that a segment without one of its own announces, not scaled.
    pub windows: [u16; 2],
}

/// Where both ends' sequence numbers begin, close to where they wrap.
const FIRST: [u32; 2] = [0xffff_f000, 77];

pub struct Segment {
    pub at: u64,
    pub from: Side,
    /// Bytes of data before, of this end and of the other one.
    pub sequence: u64,
    pub acknowledged: u64,
    pub bytes: u32,
    pub options: Vec<TcpOptionElement>,
    pub syn: bool,
    pub id: Option<u16>,
}

impl Scene {
    pub fn new() -> Scene {
        Scene {
            frames: Vec::new(),
            macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
            port: 40_000,
            ids: [1000, 5000],
            windows: [29_200; 2],
        }
    }

    pub fn ip(side: Side) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, if side == A { 1 } else { 2 })
    }

    fn push(&mut self, at: u64, mut frame: Vec<u8>, length: usize) {
        frame.truncate(KEPT);
        self.frames.push((at, frame, length as u32));
    }

    fn ethernet(&self, from: Side, kind: EtherType) -> Vec<u8> {
        let header = Ethernet2Header {
            source: self.macs[from as usize],
            destination: self.macs[from.other() as usize],
            ether_type: kind,
        };
        header.to_bytes().to_vec()
    }

    pub fn segment(&mut self, segment: Segment) {
        let Segment { at, from, sequence, acknowledged, bytes, options, syn, id } = segment;
        let (mine, other) = (from as usize, from.other() as usize);
        let first = if syn { 0 } else { 1 };
        let ports = if from == A { (self.port, 5001) } else { (5001, self.port) };
        let number = FIRST[mine].wrapping_add(first + sequence as u32);
        let mut tcp = TcpHeader::new(ports.0, ports.1, number, self.windows[mine]);
        tcp.syn = syn;
        tcp.ack = !syn || from == B;
        tcp.acknowledgment_number = FIRST[other].wrapping_add(1 + acknowledged as u32);
        tcp.set_options(&options).unwrap();
        let id = id.unwrap_or_else(|| {
            self.ids[mine] = self.ids[mine].wrapping_add(1);
            self.ids[mine]
        });
        let length = tcp.header_len() + bytes as usize;
        let mut ip =
            Ipv4Header::new(0, 64, IpNumber::TCP, Self::ip(from).octets(), Self::ip(from.other()).octets())
                .unwrap();
        ip.total_len = (20 + length) as u16;
        ip.identification = id;
        let mut frame = self.ethernet(from, EtherType::IPV4);
        frame.extend(ip.to_bytes());
        frame.extend(tcp.to_bytes());
        frame.resize(frame.len() + (bytes as usize).min(KEPT), 0);
        self.push(at, frame, 14 + 20 + length);
    }

    /// The three segments that open a connection, in a round trip of so long as A sees it.
    pub fn open(&mut self, at: u64, round_trip: u64, mss: [u16; 2], scale: [Option<u8>; 2]) {
        for (from, at) in [(A, at), (B, at + round_trip)] {
            let mut options = vec![TcpOptionElement::MaximumSegmentSize(mss[from as usize])];
            options.extend(scale[from as usize].map(TcpOptionElement::WindowScale));
            self.segment(Segment {
                at,
                from,
                sequence: 0,
                acknowledged: 0,
                bytes: 0,
                options,
                syn: true,
                id: None,
            });
        }
        self.ack(at + round_trip + 1, A, 0);
    }

    pub fn data(&mut self, at: u64, from: Side, sequence: u64, bytes: u32) {
        self.data_with(at, from, sequence, bytes, None);
    }

    pub fn data_with(&mut self, at: u64, from: Side, sequence: u64, bytes: u32, id: Option<u16>) {
        self.segment(Segment {
            at,
            from,
            sequence,
            acknowledged: 0,
            bytes,
            options: Vec::new(),
            syn: false,
            id,
        });
    }

    pub fn ack(&mut self, at: u64, from: Side, acknowledged: u64) {
        self.ack_of(at, from, acknowledged, Vec::new());
    }

    /// With a block of a selective acknowledgement, in bytes of data.
    pub fn sack(&mut self, at: u64, from: Side, acknowledged: u64, block: (u64, u64)) {
        let first = FIRST[from.other() as usize].wrapping_add(1);
        let block = (first.wrapping_add(block.0 as u32), first.wrapping_add(block.1 as u32));
        self.ack_of(
            at,
            from,
            acknowledged,
            vec![TcpOptionElement::SelectiveAcknowledgement(block, [None; 3])],
        );
    }

    fn ack_of(&mut self, at: u64, from: Side, acknowledged: u64, options: Vec<TcpOptionElement>) {
        self.segment(Segment {
            at,
            from,
            sequence: 0,
            acknowledged,
            bytes: 0,
            options,
            syn: false,
            id: None,
        });
    }

    /// A window for one acknowledgement.
    pub fn window(&mut self, at: u64, from: Side, acknowledged: u64, window: u16) {
        let usual = std::mem::replace(&mut self.windows[from as usize], window);
        self.ack(at, from, acknowledged);
        self.windows[from as usize] = usual;
    }

    pub fn arp(&mut self, at: u64, mac: [u8; 6], ip: Ipv4Addr) {
        let packet = ArpPacket::new(
            ArpHardwareId::ETHERNET,
            EtherType::IPV4,
            ArpOperation::REPLY,
            &mac,
            &ip.octets(),
            &self.macs[0],
            &Self::ip(A).octets(),
        );
        let mut frame = self.ethernet(B, EtherType::ARP);
        frame.extend(packet.unwrap().to_bytes());
        let length = frame.len();
        self.push(at, frame, length);
    }

    /// A router between the two notifies A that what it sends to B is too big.
    pub fn too_big(&mut self, at: u64, mtu: u16) {
        let mut inner =
            Ipv4Header::new(1480, 64, IpNumber::TCP, Self::ip(A).octets(), Self::ip(B).octets()).unwrap();
        inner.total_len = 1500;
        let mut payload = inner.to_bytes().to_vec();
        payload.extend(self.port.to_be_bytes());
        payload.extend(5001_u16.to_be_bytes());
        payload.extend([0; 4]);
        let kind = Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::FragmentationNeeded {
            next_hop_mtu: mtu,
        });
        let icmp = etherparse::Icmpv4Header::with_checksum(kind, &payload);
        let mut ip = Ipv4Header::new(0, 64, IpNumber::ICMP, [10, 0, 0, 254], Self::ip(A).octets()).unwrap();
        ip.total_len = (20 + 8 + payload.len()) as u16;
        let mut frame = self.ethernet(B, EtherType::IPV4);
        frame.extend(ip.to_bytes());
        frame.extend(icmp.to_bytes());
        frame.extend(payload);
        let length = frame.len();
        self.push(at, frame, length);
    }

    /// Segments of `bytes` from A, one each `gap`, acknowledged after `round_trip`, two at a time.
    pub fn bulk(&mut self, at: u64, count: u64, bytes: u32, gap: f64, round_trip: u64) {
        for number in 0..count {
            let when = at + (number as f64 * gap) as u64;
            self.data(when, A, number * u64::from(bytes), bytes);
            if number % 2 == 1 {
                self.ack(when + round_trip, B, (number + 1) * u64::from(bytes));
            }
        }
    }

    /// The last frame with a VLAN's tag.
    pub fn tag(&mut self, vlan: u16) {
        let (_, bytes, length) = self.frames.last_mut().unwrap();
        bytes.splice(12..12, [[0x81, 0], vlan.to_be_bytes()].concat());
        *length += 4;
    }

    /// The same frames behind the headers of a tunnel, which begin with IPv4. `cut`: bytes of a frame that
    /// are not carried.
    pub fn tunnelled(&self, protocol: IpNumber, cut: usize, header: &dyn Fn(usize) -> Vec<u8>) -> Scene {
        let mut outer = Scene::new();
        for (at, bytes, length) in &self.frames {
            let header = header(*length as usize - cut);
            let mut ip = Ipv4Header::new(0, 64, protocol, [192, 0, 2, 1], [192, 0, 2, 2]).unwrap();
            ip.total_len = (20 + header.len() + *length as usize - cut) as u16;
            let mut frame = self.ethernet(A, EtherType::IPV4);
            frame.extend(ip.to_bytes());
            frame.extend(&header);
            frame.extend(&bytes[cut..]);
            outer.frames.push((*at, frame, *length - cut as u32 + 34 + header.len() as u32));
        }
        outer
    }

    /// The same frames as a capture of all interfaces at once has them, as if interface 7 had received them.
    pub fn cooked(&self) -> Vec<u8> {
        let mut cooked = Scene::new();
        for (at, bytes, length) in &self.frames {
            let mut frame =
                [&bytes[12..14], &[0, 0, 0, 0, 0, 7, 0, 1, 0, 6], &bytes[6..12], &[0, 0]].concat();
            frame.extend(&bytes[14..]);
            cooked.frames.push((*at, frame, length + 6));
        }
        cooked.pcap_of(276)
    }

    fn sorted(&self) -> Vec<&(u64, Vec<u8>, u32)> {
        let mut frames: Vec<_> = self.frames.iter().collect();
        frames.sort_by_key(|(at, ..)| *at);
        frames
    }

    /// As a file of tcpdump.
    pub fn pcap(&self) -> Vec<u8> {
        self.pcap_of(1)
    }

    /// The same, as if it were of this link layer.
    pub fn pcap_of(&self, link: u32) -> Vec<u8> {
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, KEPT as u32, link] {
            file.extend(word.to_le_bytes());
        }
        for (at, bytes, length) in self.sorted() {
            for word in [
                1_700_000_000 + (at / 1_000_000) as u32,
                (at % 1_000_000) as u32,
                bytes.len() as u32,
                *length,
            ] {
                file.extend(word.to_le_bytes());
            }
            file.extend(bytes);
        }
        file
    }

    /// The same as pcapng, big endian, with two interfaces of which the second one has all packets.
    pub fn pcapng(&self) -> Vec<u8> {
        let mut file = Vec::new();
        let mut block = |kind: u32, body: &[u8]| {
            let length = (12 + body.len().next_multiple_of(4)) as u32;
            file.extend(kind.to_be_bytes());
            file.extend(length.to_be_bytes());
            file.extend(body);
            file.resize(file.len().next_multiple_of(4), 0);
            file.extend(length.to_be_bytes());
        };
        block(0x0a0d_0d0a, &[0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
        block(1, &[0, 101, 0, 0, 0, 0, 0, 0]);
        // Nanoseconds.
        block(1, &[0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0]);
        for (at, bytes, length) in self.sorted() {
            let time = 1_700_000_000_000_000_000 + at * 1000;
            let mut body = Vec::new();
            for word in [1, (time >> 32) as u32, time as u32, bytes.len() as u32, *length] {
                body.extend(word.to_be_bytes());
            }
            body.extend(bytes);
            block(6, &body);
        }
        file
    }
}
