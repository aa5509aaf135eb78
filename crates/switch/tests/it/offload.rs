//! Super-frames kept whole or cut, checksums completed: against an independent implementation.

use etherparse::{IpNumber, UdpHeader};
use vmlane_guestsim::memory_port::{LRO, PLAIN, Received};
use vmlane_port::{Aggregate, ChecksumStatus, Filter, Offload, RxCapabilities};
use vmlane_switch::{Policy, PortSpec};
use vmlane_wire::ethernet::{Mac, Tci};

use crate::common::tcp::{Ip, Packet};
use crate::common::{Bench, Guest, mac};

fn pair() -> (Bench, Guest, Guest) {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    (bench, a, b)
}

fn packet(v6: bool, payload: usize) -> Packet {
    let mut packet = Packet::new(mac(2), mac(1), v6, payload).timestamped();
    (packet.tcp.psh, packet.tcp.fin, packet.tcp.cwr) = (true, true, true);
    packet
}

fn segment(packet: &Packet, mss: u16) -> Offload {
    Offload::Segment { header: packet.header_len() as u16, mss }
}

fn bytes(received: &[Received]) -> Vec<Vec<u8>> {
    received.iter().map(|one| one.bytes.clone()).collect()
}

/// With its tag in band.
fn tagged(frame: &[u8], tag: [u8; 2]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, tag[0], tag[1]], &frame[12..]].concat()
}

#[test]
fn super_frames_are_cut_for_a_receiver_that_does_not_take_them() {
    let (mut bench, a, b) = pair();
    for v6 in [false, true] {
        for (payload, mss) in
            [(1, 1428), (1428, 1428), (1429, 1428), (2856, 1428), (60_001, 1428), (5000, 100), (7, 1)]
        {
            let packet = packet(v6, payload);
            a.wire.send(&packet.partial(false), segment(&packet, mss), None);
            bench.run();
            let received = b.wire.received();
            let expected: Vec<_> = packet.segments(mss.into()).iter().map(Packet::bytes).collect();
            assert_eq!(bytes(&received), expected, "v6 {v6}, {payload} bytes by {mss}");
            assert!(
                received.iter().all(|one| one.aggregate.is_none() && one.checksum == ChecksumStatus::Good)
            );
        }
    }
    assert_eq!(a.wire.outstanding(), 0);
    assert_eq!(a.stats.tx_tso.get(), 10);
    assert_eq!(b.stats.rx_segments.get() + 4, b.stats.rx_frames.get());
}

#[test]
fn super_frames_stay_whole_for_a_receiver_that_takes_them() {
    let (mut bench, a, b) = pair();
    for (v6, partial_sum) in [(false, false), (false, true), (true, false), (true, true)] {
        b.wire.set_capabilities(RxCapabilities { partial_sum, ..LRO });
        let packet = packet(v6, 60_000);
        a.wire.send(&packet.partial(false), segment(&packet, 1428), None);
        bench.run();
        let [received] = &b.wire.received()[..] else { panic!("one frame") };
        let header = packet.header_len() as u16;
        assert_eq!(received.aggregate, Some(Aggregate { mss: 1428, segments: 43, header }));
        assert_eq!(received.checksum, ChecksumStatus::Good);
        let mut expected = packet.bytes();
        if partial_sum {
            let tcp = packet.header_len() - packet.tcp.header_len() + 16;
            expected[tcp..tcp + 2].copy_from_slice(&packet.partial(true)[tcp..tcp + 2]);
        }
        assert_eq!(received.bytes, expected, "v6 {v6}, partial {partial_sum}");
    }
    assert_eq!(b.stats.rx_aggregates.get(), 4);
}

#[test]
fn limits_of_a_receiver_are_kept() {
    let (mut bench, a, b) = pair();
    let packet = packet(false, 30_000);
    for (capabilities, mss, frames) in [
        (LRO, 1428, 1),
        (RxCapabilities { aggregate: 30_000, ..LRO }, 1428, 22),
        (RxCapabilities { tso4: false, ..LRO }, 1428, 22),
        (RxCapabilities { tso6: false, ..LRO }, 1428, 1),
        // More segments than a completion can tell.
        (LRO, 117, 257),
        (LRO, 118, 1),
        // Longer than the MTU allows.
        (PLAIN, 1449, 0),
        (LRO, 1449, 1),
    ] {
        b.wire.set_capabilities(capabilities);
        a.wire.send(&packet.partial(false), segment(&packet, mss), None);
        bench.run();
        assert_eq!(b.wire.received().len(), frames, "{capabilities:?} {mss}");
    }
    assert_eq!(b.stats.drop_too_long.get(), 1);
}

#[test]
fn segments_that_meet_a_full_receiver_go_on_where_they_stopped() {
    let (mut bench, a, b) = pair();
    let packet = packet(false, 20_000);
    b.wire.set_room(Some(3));
    a.wire.send(&packet.partial(false), segment(&packet, 1000), None);
    a.wire.send(&packet.partial(true), Offload::Checksum { start: 34, field: 50 }, None);
    b.wire.set_capabilities(RxCapabilities { frame: 30_000, ..PLAIN });
    let mut received = Vec::new();
    for room in [4, 1, 5, 20] {
        bench.run();
        received.extend(bytes(&b.wire.received()));
        b.wire.set_room(Some(room));
    }
    bench.run();
    received.extend(bytes(&b.wire.received()));
    let mut expected: Vec<_> = packet.segments(1000).iter().map(Packet::bytes).collect();
    expected.push(packet.bytes());
    assert_eq!(received, expected);
    assert_eq!((a.wire.outstanding(), b.stats.pending.get()), (0, 2));
}

#[test]
fn checksums_are_completed_in_the_copy() {
    let (mut bench, a, b) = pair();
    for v6 in [false, true] {
        for payload in [0, 1, 100, 1400] {
            let packet = packet(v6, payload);
            let start = (packet.header_len() - packet.tcp.header_len()) as u16;
            a.wire.send(&packet.partial(true), Offload::Checksum { start, field: start + 16 }, None);
            bench.run();
            let received = b.wire.received();
            assert_eq!(bytes(&received), [packet.bytes()], "v6 {v6}, {payload}");
            assert_eq!(received[0].checksum, ChecksumStatus::Good);
        }
    }
    assert_eq!(b.stats.rx_checksums.get(), 8);
}

#[test]
fn an_in_band_tag_moves_out_and_offsets_with_it() {
    let mut bench = Bench::new();
    let mut trunk = |number: u8| {
        let vlan = vmlane_switch::VlanMode::Trunk(vmlane_port::VlanSet::all());
        bench.port(PortSpec { vlan, ..Bench::spec(number) })
    };
    let (a, b) = (trunk(1), trunk(2));
    let packet = packet(false, 3000);
    let frame = tagged(&packet.partial(false), [0x60, 5]);
    a.wire.send(&frame, Offload::Segment { header: packet.header_len() as u16 + 4, mss: 1000 }, None);
    let short = Packet::new(mac(2), mac(1), true, 100);
    let frame = tagged(&short.partial(true), [0x60, 5]);
    a.wire.send(&frame, Offload::Checksum { start: 58, field: 74 }, None);
    bench.run();
    let received = b.wire.received();
    let mut expected: Vec<_> = packet.segments(1000).iter().map(Packet::bytes).collect();
    expected.push(short.bytes());
    assert_eq!(bytes(&received), expected);
    assert!(received.iter().all(|one| one.tag == Some(Tci(0x6005)) && one.layers.network_at == 14));
}

#[test]
fn a_promiscuous_receiver_gets_complete_segments() {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    let policy = Policy { promiscuous: true, ..Policy::default() };
    let c = bench.port(PortSpec { policy, ..Bench::spec(3) });
    c.wire.change_filter(|filter| filter.promiscuous = true);
    bench.refresh(&c);
    [&b, &c].iter().for_each(|guest| guest.wire.set_capabilities(LRO));
    let packet = packet(false, 5000);
    a.wire.send(&packet.partial(false), segment(&packet, 1000), None);
    bench.run();
    assert_eq!(b.wire.received().len(), 1);
    let expected: Vec<_> = packet.segments(1000).iter().map(Packet::bytes).collect();
    assert_eq!(bytes(&c.wire.received()), expected);
}

#[test]
fn offload_requests_that_do_not_match_the_frame_are_refused() {
    let (mut bench, a, b) = pair();
    let packet = packet(false, 3000);
    let header = packet.header_len() as u16;
    let super_frame = packet.partial(false);
    let mut udp = super_frame.clone();
    udp[23] = 17;
    let mut fragment = super_frame.clone();
    fragment[20] = 0x20;
    let mut group = super_frame.clone();
    group[..6].fill(0xff);
    let requests = [
        (&super_frame, Offload::Segment { header: header - 1, mss: 1000 }),
        (&super_frame, Offload::Segment { header: header + 1, mss: 1000 }),
        (&super_frame, Offload::Segment { header, mss: 0 }),
        (&super_frame, Offload::Segment { header, mss: 1 }),
        (&super_frame, Offload::Checksum { start: 34, field: 33 }),
        (&super_frame, Offload::Checksum { start: 13, field: 33 }),
        (&super_frame, Offload::Tunnel { header, mss: 1000, outer_sum: false }),
        (&udp, Offload::Segment { header, mss: 1000 }),
        (&udp, Offload::Segment { header: 41, mss: 1000 }),
        (&udp, Offload::Tunnel { header: 42, mss: 1000, outer_sum: false }),
        (&udp, Offload::Tunnel { header, mss: 0, outer_sum: false }),
        (&fragment, Offload::Segment { header, mss: 1000 }),
        (&group, Offload::Segment { header, mss: 1000 }),
    ];
    for (number, (frame, offload)) in requests.iter().enumerate() {
        a.wire.send(frame, *offload, None);
        bench.run();
        assert_eq!(a.stats.drop_bad_offload.get(), number as u64 + 1, "{offload:?}");
    }
    assert!(b.frames().is_empty() && a.wire.outstanding() == 0);
}

#[test]
fn an_uplink_that_takes_super_frames_gets_them_whole() {
    let mut bench = Bench::new();
    let a = bench.guest(1);
    let up = bench.port(PortSpec { uplink: true, mac: Mac::default(), ..Bench::spec(9) });
    up.wire.change_filter(|filter| *filter = Filter::open());
    bench.refresh(&up);
    up.wire.set_capabilities(LRO);
    let packet = packet(false, 5000);
    a.wire.send(&packet.partial(false), segment(&packet, 1000), None);
    bench.run();
    assert!(up.wire.received()[0].aggregate.is_some());
}

/// A UDP datagram as an independent implementation makes it.
fn datagram(v6: bool, payload: &[u8], id: u16) -> Vec<u8> {
    let mut outer = Packet::new(mac(2), mac(1), v6, 0);
    let length = 8 + payload.len();
    let udp =
        |checksum| UdpHeader { source_port: 443, destination_port: 50_001, length: length as u16, checksum };
    let (ip, checksum) = match &mut outer.ip {
        Ip::V4(ip) => {
            ip.protocol = IpNumber::UDP;
            ip.identification = id;
            ip.set_payload_len(length).unwrap();
            ip.header_checksum = ip.calc_header_checksum();
            (ip.to_bytes().to_vec(), udp(0).calc_checksum_ipv4(ip, payload).unwrap())
        }
        Ip::V6(ip) => {
            ip.next_header = IpNumber::UDP;
            ip.set_payload_length(length).unwrap();
            (ip.to_bytes().to_vec(), udp(0).calc_checksum_ipv6(ip, payload).unwrap())
        }
    };
    [&outer.ethernet.to_bytes()[..], &ip, &udp(checksum).to_bytes(), payload].concat()
}

#[test]
fn udp_super_frames_are_cut_or_stay_whole() {
    let (mut bench, a, b) = pair();
    for v6 in [false, true] {
        let header = if v6 { 62 } else { 42 };
        for (payload, mss) in [(1, 1200), (1200, 1200), (1201, 1200), (30_000, 1452), (60_001, 1400)] {
            let bytes: Vec<u8> = (0..payload).map(|at| (at * 11 % 251) as u8).collect();
            let mut sent = datagram(v6, &bytes, 0xfffe);
            // What the sender leaves out: lengths and checksums.
            sent[header - 4..header].fill(0);
            let expected: Vec<_> = (0..)
                .zip(bytes.chunks(mss))
                .map(|(number, part)| datagram(v6, part, 0xfffe_u16.wrapping_add(number)))
                .collect();
            let request = Offload::Segment { header: header as u16, mss: mss as u16 };
            b.wire.set_capabilities(LRO);
            a.wire.send(&sent, request, None);
            bench.run();
            let received = b.wire.received();
            assert_eq!(self::bytes(&received), expected, "v6 {v6}, {payload} by {mss}");
            b.wire.set_capabilities(RxCapabilities { uso4: true, uso6: true, partial_sum: false, ..LRO });
            a.wire.send(&sent, request, None);
            bench.run();
            let received = b.wire.received();
            let whole = (payload > mss).then(|| Aggregate {
                mss: mss as u16,
                segments: payload.div_ceil(mss) as u16,
                header: header as u16,
            });
            assert_eq!(received[0].aggregate, whole);
            assert_eq!(received[0].bytes, datagram(v6, &bytes, 0xfffe));
        }
    }
    assert_eq!((a.wire.outstanding(), a.stats.drop_bad_offload.get()), (0, 0));
}

/// `inner` inside a tunnel over IPv4 or IPv6, its outer lengths and checksums real; UDP checksum 0.
fn tunnelled(v6: bool, geneve: bool, inner: &[u8], id: u16, sum: bool) -> Vec<u8> {
    let header = match geneve {
        true => [&[2, 0, 0x65, 0x58, 0, 0, 7, 0][..], &[9; 8]].concat(),
        false => vec![8, 0, 0, 0, 0, 0, 7, 0],
    };
    let payload = [&header[..], inner].concat();
    let udp = |checksum| UdpHeader {
        source_port: 50_000,
        destination_port: if geneve { 6081 } else { 4789 },
        length: 8 + payload.len() as u16,
        checksum,
    };
    let mut outer = Packet::new(mac(2), mac(1), v6, 0);
    let (ip, checksum) = match &mut outer.ip {
        Ip::V4(ip) => {
            ip.protocol = IpNumber::UDP;
            ip.identification = id;
            ip.set_payload_len(8 + payload.len()).unwrap();
            ip.header_checksum = ip.calc_header_checksum();
            (ip.to_bytes().to_vec(), udp(0).calc_checksum_ipv4(ip, &payload).unwrap())
        }
        Ip::V6(ip) => {
            ip.next_header = IpNumber::UDP;
            ip.set_payload_length(8 + payload.len()).unwrap();
            (ip.to_bytes().to_vec(), udp(0).calc_checksum_ipv6(ip, &payload).unwrap())
        }
    };
    let udp = udp(if sum { checksum } else { 0 });
    [&outer.ethernet.to_bytes()[..], &ip, &udp.to_bytes(), &payload].concat()
}

#[test]
fn tunnelled_super_frames_are_cut_with_both_headers_right() {
    let (mut bench, a, b) = pair();
    b.wire.set_capabilities(LRO);
    for case in 0..16 {
        let [outer_v6, inner_v6, geneve, outer_sum] = [1, 2, 4, 8].map(|bit| case & bit != 0);
        let inner = Packet::new(mac(20), mac(10), inner_v6, 4001).timestamped();
        let sent = tunnelled(outer_v6, geneve, &inner.partial(false), 0xffff, false);
        let header = (sent.len() - 4001) as u16;
        a.wire.send(&sent, Offload::Tunnel { header, mss: 1000, outer_sum }, None);
        bench.run();
        let expected: Vec<_> = (0..)
            .zip(inner.segments(1000))
            .map(|(number, segment)| {
                let id = 0xffff_u16.wrapping_add(number);
                tunnelled(outer_v6, geneve, &segment.bytes(), id, outer_sum)
            })
            .collect();
        let received = b.wire.received();
        assert_eq!(bytes(&received).len(), expected.len());
        for (got, expected) in received.iter().zip(&expected) {
            assert!(&got.bytes == expected, "case {case}: {:?}\n{:?}", &got.bytes[..140], &expected[..140]);
        }
        // Only the inner checksum.
        let inner = Packet::new(mac(20), mac(10), inner_v6, 700);
        let sent = tunnelled(outer_v6, geneve, &inner.partial(true), 7, false);
        let header = (sent.len() - 700) as u16;
        a.wire.send(&sent, Offload::Tunnel { header, mss: 0, outer_sum: false }, None);
        bench.run();
        assert_eq!(bytes(&b.wire.received()), [tunnelled(outer_v6, geneve, &inner.bytes(), 7, false)]);
    }
}
