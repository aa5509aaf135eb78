//! A TAP uplink against the host's real network stack, in a network namespace of its own.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, eth, recv, socket_with};
use vmlane_guestsim::OneByOne;
use vmlane_host::uplink::{Tap, TapError, TapFiles, TapOptions};
use vmlane_mem::{MapRequest, MemoryMap, Spans, memfd};
use vmlane_port::{
    Aggregate, ChecksumStatus, FramePort, Layers, Network, Offload, PartialChecksum, PortStats, RxFrame,
    Transport,
};
use vmlane_testkit::eventually;

use crate::namespace::{self, ip};

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const GUEST_MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];
const HOST_MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];

fn outside() -> bool {
    namespace::outside("test -c /dev/net/tun", "needs root and /dev/net/tun")
}

struct Uplink {
    tap: Tap,
    spans: Spans,
}

impl Uplink {
    fn new() -> Uplink {
        Uplink::with_queues(None)
    }

    fn with_queues(queues: Option<u16>) -> Uplink {
        let options = TapOptions { name: "vmlane0".into(), queues };
        let tap =
            Tap::new(&options, TapFiles::open(&options).unwrap(), Arc::new(PortStats::default())).unwrap();
        ip("link set vmlane0 address 52:54:00:00:00:01 up");
        ip("addr add 10.9.0.1/24 dev vmlane0");
        ip("neigh add 10.9.0.2 lladdr 52:54:00:00:00:02 dev vmlane0");
        let len = 128 << 10;
        let fd = memfd("test", len).unwrap();
        let map = MemoryMap::default();
        let map = map.map(MapRequest { guest: 0, len, offset: 0, fd, writable: true }).unwrap();
        Uplink { tap, spans: Spans::new(map, true) }
    }

    /// The next IPv4 frame of the host.
    fn fetch(&mut self) -> (Vec<u8>, Offload) {
        eventually("the host sends", || {
            let token = self.tap.fetch_one()?;
            let in_flight = self.tap.frame(token);
            let mut bytes = vec![0; in_flight.len()];
            in_flight.spans.read(0, &mut bytes);
            assert_eq!(in_flight.head, &bytes[..in_flight.head.len()]);
            let offload = in_flight.offload;
            self.tap.finish(&[token]);
            (bytes[12..14] == [8, 0]).then_some((bytes, offload))
        })
    }

    /// Sends a TCP or UDP frame whose checksum is still to be made.
    fn deliver(&mut self, mut frame: Vec<u8>, transport: Transport, mss: Option<u16>) {
        let (protocol, field, header) = match transport {
            Transport::Tcp => (6, 50, 54),
            _ => (17, 40, 42),
        };
        let mut sum = protocol + (frame.len() - 34) as u32;
        for pair in frame[26..34].chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
        let sum = ((sum & 0xffff) + (sum >> 16)) as u16;
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        self.spans.clear();
        self.spans.push(0, frame.len()).unwrap();
        self.spans.write(0, &frame);
        let payload = frame.len() - header;
        let aggregate = mss.map(|mss| Aggregate {
            mss,
            segments: payload.div_ceil(mss.into()) as u16,
            header: header as u16,
        });
        let partial_checksum =
            PartialChecksum { start: 34, field: field as u16, never_zero: false, head_sum: None };
        let packet = RxFrame {
            head: &frame[..header],
            body: &self.spans,
            body_at: header,
            body_len: payload,
            tag: None,
            layers: Layers {
                network: Network::V4,
                transport,
                fragment: false,
                network_at: 14,
                transport_at: 34,
            },
            checksum: ChecksumStatus::Good,
            aggregate,
            partial_checksum: Some(partial_checksum).filter(|_| aggregate.is_none()),
        };
        self.tap.deliver_one(&packet).unwrap();
    }
}

fn packet() -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    PacketBuilder::ethernet2(GUEST_MAC, HOST_MAC).ipv4(GUEST.octets(), HOST.octets(), 64)
}

#[test]
fn datagrams_pass_both_ways_with_checksums_left_to_the_other_side() {
    if outside() {
        return;
    }
    let mut uplink = Uplink::new();
    let socket = UdpSocket::bind((HOST, 5000)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut frame = Vec::new();
    packet().udp(6000, 5000).write(&mut frame, b"from the guest").unwrap();
    uplink.deliver(frame, Transport::Udp, None);
    let mut got = [0; 100];
    let (len, from) = socket.recv_from(&mut got).unwrap();
    assert_eq!((&got[..len], from), (&b"from the guest"[..], SocketAddr::from((GUEST, 6000))));
    socket.send_to(b"from the host", (GUEST, 6000)).unwrap();
    let (bytes, offload) = uplink.fetch();
    assert_eq!((&bytes[42..], offload), (&b"from the host"[..], Offload::Checksum { start: 34, field: 40 }));
}

#[test]
fn frames_are_complete_for_what_reads_them_by_a_packet_socket() {
    if outside() {
        return;
    }
    let mut uplink = Uplink::new();
    let (family, kind) = (AddressFamily::PACKET, SocketType::RAW);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, Some(eth::ALL)).unwrap();
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(60))).unwrap();
    // What is read there, without and with a checksum to be made.
    let read = |uplink: &mut Uplink| {
        let mut frame = Vec::new();
        packet().udp(6000, 5000).write(&mut frame, b"from the guest").unwrap();
        uplink.deliver(frame.clone(), Transport::Udp, None);
        let mut got = vec![0; 2000];
        loop {
            let (len, _) = recv(&socket, &mut got[..], RecvFlags::empty()).unwrap();
            if len == frame.len() && got[42..len] == frame[42..] {
                got.truncate(len);
                return got == frame;
            }
        }
    };
    assert!(!read(&mut uplink), "the checksum is left to the other side");
    uplink.tap.whole().store(false, Ordering::Relaxed);
    uplink.tap.refresh();
    assert!(read(&mut uplink), "the checksum is made");
    let capabilities = uplink.tap.capabilities();
    assert!(!capabilities.tso4 && !capabilities.tso6 && capabilities.aggregate == 1514);
}

#[test]
fn super_frames_pass_both_ways_whole() {
    if outside() {
        return;
    }
    let mut uplink = Uplink::new();
    let listener = TcpListener::bind((HOST, 5000)).unwrap();
    let tcp = |sequence| packet().tcp(6000, 5000, sequence, 60_000);
    let mut frame = Vec::new();
    let options = [etherparse::TcpOptionElement::MaximumSegmentSize(1460)];
    let syn = packet().tcp(6000, 5000, 1000, 60_000).syn().options(&options).unwrap();
    syn.write(&mut frame, &[]).unwrap();
    // The options are a part of the header; with the checksum made by the other side that makes none.
    uplink.deliver(frame, Transport::Tcp, None);
    let (bytes, _) = uplink.fetch();
    let answer = acknowledgment(&bytes);
    let mut frame = Vec::new();
    tcp(1001).ack(answer).write(&mut frame, &[]).unwrap();
    uplink.deliver(frame, Transport::Tcp, None);
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();

    let sent: Vec<u8> = (0..20_000u32).map(|at| (at % 251) as u8).collect();
    let mut frame = Vec::new();
    tcp(1001).ack(answer).psh().write(&mut frame, &sent).unwrap();
    uplink.deliver(frame, Transport::Tcp, Some(1460));
    let mut got = vec![0; sent.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == sent, "bytes were damaged");

    stream.write_all(&sent[..10_000]).unwrap();
    let (bytes, offload) = loop {
        let (bytes, offload) = uplink.fetch();
        if bytes.len() > 1514 {
            break (bytes, offload);
        }
    };
    assert_eq!(offload, Offload::Segment { header: 54, mss: 1460 });
    assert!(sent.starts_with(&bytes[54..]) || sent.windows(100).any(|window| window == &bytes[54..154]));
}

#[test]
fn flows_share_several_queues() {
    if outside() {
        return;
    }
    let mut uplink = Uplink::with_queues(Some(4));
    let shown = ip("-d link show vmlane0");
    assert!(shown.contains("multi_queue") && shown.contains("numqueues 4"), "{shown}");
    let socket = UdpSocket::bind((HOST, 5000)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for port in 6000..6032u16 {
        let mut frame = Vec::new();
        packet().udp(port, 5000).write(&mut frame, &port.to_be_bytes()).unwrap();
        uplink.deliver(frame, Transport::Udp, None);
    }
    // Queues know no order among each other.
    let mut ports: Vec<u16> = (0..32)
        .map(|_| {
            let mut got = [0; 2];
            let (_, from) = socket.recv_from(&mut got).unwrap();
            assert_eq!(from.port(), u16::from_be_bytes(got));
            socket.send_to(&got, from).unwrap();
            from.port()
        })
        .collect();
    ports.sort_unstable();
    assert!(ports.iter().copied().eq(6000..6032), "{ports:?}");
    let mut back: Vec<u16> = (0..32).map(|_| uplink.fetch().0).map(|frame| word(&frame, 42)).collect();
    back.sort_unstable();
    assert_eq!(back, ports);
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// What acknowledges a SYN.
fn acknowledgment(bytes: &[u8]) -> u32 {
    let sliced = SlicedPacket::from_ethernet(bytes).unwrap();
    match sliced.transport {
        Some(TransportSlice::Tcp(tcp)) if tcp.syn() && tcp.ack() => tcp.sequence_number() + 1,
        other => panic!("{other:?} is no answer"),
    }
}

#[test]
fn errors_name_the_interface_and_the_way_out() {
    let open = |name: &str| {
        let options = TapOptions { name: name.into(), queues: None };
        TapFiles::open(&options).err().map(|error| error.to_string())
    };
    for name in ["", "a-name-of-16-byte", "a/b", "tap%d", "a b"] {
        let text = open(name).unwrap();
        assert!(text.contains(&format!("{name:?}")) && text.contains("15 bytes"), "{text}");
    }
    let attach = TapError::Attach {
        name: "tap0".into(),
        queues: Some(2),
        source: std::io::ErrorKind::PermissionDenied.into(),
    };
    assert!(attach.to_string().contains("ip tuntap add dev tap0 mode tap user USER multi_queue"), "{attach}");
}
