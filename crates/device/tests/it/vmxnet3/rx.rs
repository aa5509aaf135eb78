//! Receive queues: which buffers a packet goes to, what its completions report.

use vmlane_device::vmxnet3::setup::{Features, Rss};
use vmlane_guestsim::nic::desc::RxFields as _;
use vmlane_guestsim::nic::{RingsSpec, RxShape};
use vmlane_port::{ChecksumStatus, DropReason, FramePort, Layers, Network, PartialChecksum, Transport};
use vmlane_wire::ethernet::Tci;
use vmlane_wire::vmxnet3::desc::RxLayers;

use super::{Nic, TCP4, frame, plain, tcp4};

/// A spec with what differs from Linux's.
fn spec(edit: impl FnOnce(&mut RingsSpec)) -> RingsSpec {
    let mut spec = RingsSpec::linux();
    edit(&mut spec);
    spec
}

/// One ring of HEADs, as illumos and iPXE have it.
fn single(head: usize) -> RxShape {
    RxShape { ring1: 0, completions: 64, head, ..RxShape::linux(64) }
}

#[test]
fn frames_arrive_whole_in_rings_of_any_size() {
    for (shape, mtu) in
        [(RxShape::linux(64), 1500), (RxShape::linux(33), 1500), (RxShape::linux_jumbo(), 9000)]
    {
        let mut nic = Nic::new(&spec(|spec| (spec.rx, spec.mtu, spec.max_rx_sg) = (shape.clone(), mtu, 0)));
        for round in 0..3 * usize::from(shape.completions) {
            let sent = frame(60 + round * 97 % (usize::from(mtu) - 46));
            let got = nic.pass(&sent, plain);
            assert_eq!(got.bytes, sent, "round {round}");
            let one_head = sent.len() <= shape.head;
            assert_eq!(got.buffers == 1, one_head, "several buffers only where one is not enough");
        }
        assert_eq!(nic.rx_row(2), 3 * u64::from(shape.completions));
    }
}

#[test]
fn bodies_at_the_head_s_position_are_skipped() {
    let mut nic = Nic::new(&spec(|spec| (spec.rx, spec.mtu) = (RxShape::linux_jumbo(), 9000)));
    let small = [nic.pass(&frame(60), plain), nic.pass(&frame(61), plain)];
    assert_eq!(small.map(|got| got.start().index()), [0, 3]);
    let large = nic.pass(&frame(9000), plain);
    assert_eq!((large.start().index(), large.buffers, large.end().ring()), (6, 3, 0));
    // HEAD and two BODYs hold 11264 bytes: nothing of ring 1 was needed.
    assert_eq!(large.end().index(), 8);
}

#[test]
fn without_a_body_in_ring_0_those_of_ring_1_follow() {
    let mut nic = Nic::new(&spec(|spec| {
        (spec.rx, spec.mtu, spec.max_rx_sg) = (RxShape { head: 3072, ..RxShape::linux(64) }, 9000, 0);
    }));
    let got = nic.pass(&frame(9014), plain);
    assert_eq!(got.bytes, frame(9014));
    assert_eq!((got.buffers, got.start().ring(), got.end().ring()), (3, 0, 1));
}

#[test]
fn short_frames_are_padded_with_zeros() {
    for data in [0, 128] {
        let mut nic = Nic::new(&spec(|spec| spec.rx.data = data));
        let dirty = nic.pass(&[0xff; 100], plain);
        assert_eq!(dirty.bytes.len(), 100);
        for _ in 0..70 {
            let got = nic.pass(&frame(42), plain);
            assert_eq!(got.bytes[..42], frame(42));
            assert_eq!(got.bytes[42..], [0; 18]);
        }
    }
}

#[test]
fn small_frames_go_to_the_data_ring() {
    let mut nic = Nic::new(&spec(|spec| spec.rx.data = 128));
    for round in 0..200 {
        let got = nic.pass(&frame(60 + round % 100), plain);
        assert_eq!(got.bytes, frame(60 + round % 100));
        assert_eq!(got.data_ring, got.bytes.len() <= 128, "round {round}");
        assert_eq!(got.start().index(), round as u16 % 64);
    }
}

#[test]
fn tags_are_stripped_or_inserted() {
    let tag = Some(Tci(0x600a));
    let mut nic = Nic::new(&RingsSpec::linux());
    let got = nic.pass(&frame(200), |packet| packet.tag = tag);
    assert_eq!((got.bytes, got.last.unwrap().tag()), (frame(200), tag));
    let features = Features { rx_vlan: false, ..RingsSpec::linux().features };
    for len in [14, 42, 60, 64, 65, 200, 1514] {
        let mut nic = Nic::new(&spec(|spec| spec.features = features));
        let got = nic.pass(&frame(len), |packet| packet.tag = tag);
        let mut expected = frame(len);
        expected.splice(12..12, [0x81, 0, 0x60, 0x0a]);
        expected.resize(expected.len().max(60), 0);
        assert_eq!((got.bytes.clone(), got.end().tag()), (expected, None), "{len} bytes");
    }
}

#[test]
fn checksum_status_is_reported_only_after_a_check() {
    let udp4 = Layers { transport: Transport::Udp, ..TCP4 };
    let tcp6 = Layers { network: Network::V6, ..TCP4 };
    let fragment = Layers { fragment: true, ..TCP4 };
    let icmp = Layers { transport: Transport::Other, ..TCP4 };
    let on = RxLayers { good: true, ..RxLayers::default() };
    let cases = [
        (TCP4, ChecksumStatus::Good, RxLayers { v4: true, tcp: true, ..on }),
        (udp4, ChecksumStatus::Good, RxLayers { v4: true, udp: true, ..on }),
        (tcp6, ChecksumStatus::Good, RxLayers { v6: true, tcp: true, ..on }),
        (TCP4, ChecksumStatus::Unknown, RxLayers { v4: true, tcp: true, ..RxLayers::default() }),
        (fragment, ChecksumStatus::Good, RxLayers { v4: true, fragment: true, ..RxLayers::default() }),
        (icmp, ChecksumStatus::Good, RxLayers { v4: true, ..RxLayers::default() }),
        (Layers::default(), ChecksumStatus::Good, RxLayers::default()),
    ];
    for features in [RingsSpec::linux().features, Features { rx_checksum: false, ..Features::default() }] {
        let mut nic = Nic::new(&spec(|spec| spec.features = features));
        assert_eq!(nic.port.capabilities().verdicts, features.rx_checksum);
        for (layers, checksum, expected) in cases {
            let got =
                nic.pass(&tcp4(100, (1, 2)), |packet| (packet.layers, packet.checksum) = (layers, checksum));
            let good = expected.good && features.rx_checksum;
            assert_eq!(got.start().layers(), RxLayers { good, ..expected });
            // The only neutral value: not examined, and no bit that has "wrong".
            assert_eq!(got.start().is_unchecked(), !good);
            assert_eq!(got.start().good_bits(), (good, good && expected.v4));
        }
    }
}

#[test]
fn a_checksum_is_completed_in_the_copy() {
    let mut nic = Nic::new(&RingsSpec::linux());
    for len in [60, 64, 65, 99, 1514] {
        let mut sent = tcp4(len, (5, 6));
        sent[50..52].copy_from_slice(&[0x12, 0x34]); // the seed
        let partial_checksum = PartialChecksum { start: 34, field: 50, never_zero: false, head_sum: None };
        let got = nic.pass(&sent, |packet| {
            (packet.partial_checksum, packet.layers) = (Some(partial_checksum), TCP4);
        });
        let sum = got.bytes[34..]
            .chunks(2)
            .fold(0u32, |sum, pair| sum + (u32::from(pair[0]) << 8) + u32::from(*pair.get(1).unwrap_or(&0)));
        // With its seed taken for the pseudo header, everything sums to what the seed states.
        let seed = 0x1234u32;
        let folded = |sum: u32| (sum & 0xffff) + (sum >> 16);
        assert_eq!(folded(folded(sum + seed)), 0xffff, "{len} bytes");
        assert!(got.end().layers().good);
    }
}

#[test]
fn nothing_is_consumed_until_all_of_a_packet_fits() {
    let mut nic = Nic::new(&spec(|spec| (spec.mtu, spec.rx.head) = (9000, 3072)));
    nic.guest.rx[0].reposts = false;
    let mut count = 0;
    while nic.deliver(&frame(9000), plain).is_ok() {
        count += 1;
    }
    assert_eq!(count, 15, "31 bodies, two a packet");
    assert_eq!(nic.deliver(&frame(9000), plain), Err(DropReason::NoBuffers));
    assert!(!nic.port.has_room());
    assert_eq!(nic.deliver(&frame(1000), plain), Ok(()), "a small one still fits");
    for _ in 0..count + 1 {
        assert!(nic.receive(0).is_some());
    }
    assert_eq!(nic.deliver(&frame(9000), plain), Err(DropReason::NoBuffers));
    nic.guest.rx[0].repost();
    assert!(nic.port.has_room());
    assert_eq!(nic.pass(&frame(9000), plain).bytes, frame(9000));
}

#[test]
fn a_full_ring_refuses_and_recovers() {
    let mut nic = Nic::new(&spec(|spec| spec.rx = single(2048)));
    nic.guest.rx[0].reposts = false;
    for round in 0..10 {
        let fitted = (0..100).filter(|_| nic.deliver(&frame(1000), plain).is_ok()).count();
        assert_eq!(fitted, 63, "round {round}");
        assert!(!nic.port.has_room());
        while nic.receive(0).is_some() {}
        assert!(!nic.port.has_room(), "seen, but not posted again");
        nic.guest.rx[0].repost();
        assert!(nic.port.has_room());
    }
}

#[test]
fn every_slot_may_be_posted() {
    // illumos and NetBSD leave none unused.
    let mut nic = Nic::new(&spec(|spec| spec.rx = RxShape { unused: 0, ..single(2048) }));
    let fitted = (0..100).filter(|_| nic.deliver(&frame(1000), plain).is_ok()).count();
    assert_eq!(fitted, 64);
    for _ in 0..500 {
        assert!(nic.receive(0).is_some());
        assert_eq!(nic.deliver(&frame(1000), plain), Ok(()));
    }
}

#[test]
fn a_completion_ring_smaller_than_the_rings_is_not_overrun() {
    // VPP: as many completions as one ring has descriptors.
    let shape = RxShape { ring1: 64, completions: 64, head: 2048, unused: 0, ..RxShape::linux(64) };
    let mut nic = Nic::new(&spec(|spec| (spec.rx, spec.mtu, spec.max_rx_sg) = (shape, 9000, 0)));
    nic.guest.rx[0].reposts = false;
    for round in 0..20 {
        let fitted = (0..100).filter(|_| nic.deliver(&frame(5000), plain).is_ok()).count();
        assert_eq!(fitted, 32, "two completions a packet, round {round}");
        for _ in 0..fitted {
            assert_eq!(nic.receive(0).unwrap().bytes, frame(5000));
        }
        assert_eq!(nic.deliver(&frame(60), plain), Err(DropReason::NoBuffers), "round {round}");
        nic.guest.rx[0].repost();
    }
}

#[test]
fn a_frame_beyond_the_mtu_or_its_buffers_is_dropped() {
    let mut nic = Nic::new(&RingsSpec::linux());
    assert_eq!(nic.port.capabilities().frame, 1514);
    let long = frame(1523);
    assert_eq!(nic.deliver(&long, plain), Err(DropReason::TooLong));
    // iPXE: MTU 1522 in buffers of 1522 bytes, and nothing else.
    let mut nic = Nic::new(&spec(|spec| (spec.rx, spec.mtu) = (single(1522), 1522)));
    assert_eq!(nic.deliver(&frame(1536), plain), Err(DropReason::NoRoom));
    assert_eq!(nic.pass(&frame(1514), plain).bytes, frame(1514));
}

#[test]
fn the_driver_s_limit_of_buffers_holds_and_0_is_no_limit_of_1() {
    let shape = RxShape { head: 128, ..RxShape::linux(64) };
    for (max_rx_sg, fits) in [(0, true), (3, true), (2, false)] {
        let mut nic =
            Nic::new(&spec(|spec| (spec.rx, spec.mtu, spec.max_rx_sg) = (shape.clone(), 9000, max_rx_sg)));
        let got = nic.deliver(&frame(8000), plain);
        assert_eq!(got.is_ok(), fits, "maxNumRxSG {max_rx_sg}");
    }
}

#[test]
fn a_depth_caps_the_buffers_in_flight() {
    let shape = RxShape { unused: 0, ..single(2048) };
    let mut nic = Nic::new(&spec(|spec| (spec.rx, spec.rx_depth) = (shape, Some(10))));
    nic.guest.rx[0].reposts = false;
    for round in 0..40 {
        let fitted = (0..100).filter(|_| nic.deliver(&frame(1000), plain).is_ok()).count();
        assert_eq!(fitted, 10, "round {round}");
        assert!(!nic.port.has_room());
        (0..4).for_each(|_| assert!(nic.receive(0).is_some()));
        nic.guest.rx[0].repost();
        let fitted = (0..100).filter(|_| nic.deliver(&frame(1000), plain).is_ok()).count();
        assert_eq!(fitted, 4);
        while nic.receive(0).is_some() {}
        nic.guest.rx[0].repost();
    }
}

fn rss() -> Rss {
    let key = std::array::from_fn(|at| (at * 37 + 11) as u8);
    let table = (0..128).map(|at| (at % 2) as u8).collect();
    Rss { key, table, ipv4: true, ipv6: true, tcp4: true, tcp6: true, udp4: false, udp6: false }
}

#[test]
fn a_flow_stays_in_one_queue_and_its_hash_is_reported() {
    let mut nic = Nic::new(&spec(|spec| (spec.queues, spec.rss) = (2, Some(rss()))));
    let mut by_queue = [0; 2];
    for port in 1000..1064 {
        let mut seen = None;
        for _ in 0..3 {
            let sent = tcp4(200, (port, 80));
            nic.deliver(&sent, |packet| packet.layers = TCP4).unwrap();
            let queue = (0..2).find_map(|queue| nic.receive(queue).map(|got| (queue, got)));
            let (queue, got) = queue.unwrap();
            assert_eq!(got.bytes, sent);
            let (kind, hash) = got.end().hash();
            assert_eq!((kind, queue), (2, hash as usize % 128 % 2));
            assert_eq!(seen.replace((queue, hash)).unwrap_or((queue, hash)), (queue, hash));
            by_queue[queue] += 1;
        }
    }
    assert!(by_queue[0] > 30 && by_queue[1] > 30, "{by_queue:?}");
}

#[test]
fn what_is_not_hashed_goes_to_queue_0() {
    let mut nic = Nic::new(&spec(|spec| (spec.queues, spec.rss) = (2, Some(rss()))));
    nic.deliver(&frame(100), plain).unwrap();
    assert_eq!(nic.receive(0).unwrap().end().hash(), (0, 0));
    let udp = Layers { transport: Transport::Udp, ..TCP4 };
    let mut hashes = Vec::new();
    for (port, layers) in [(1, udp), (2, udp), (3, Layers { fragment: true, ..TCP4 })] {
        nic.deliver(&tcp4(100, (port, 80)), |packet| packet.layers = layers).unwrap();
        let got = (0..2).find_map(|queue| nic.receive(queue)).unwrap();
        hashes.push(got.end().hash());
    }
    assert!(hashes.iter().all(|hash| *hash == hashes[0] && hash.0 == 1), "addresses alone: {hashes:x?}");
}

#[test]
fn counters_distinguish_unicast_from_the_rest() {
    let mut nic = Nic::new(&RingsSpec::linux());
    for first in [0x52, 0x01, 0xff] {
        let mut sent = frame(100);
        sent[..6].copy_from_slice(&[first; 6]);
        nic.pass(&sent, plain);
    }
    assert_eq!([2, 3, 4, 5, 6, 7].map(|row| nic.rx_row(row)), [1, 100, 1, 100, 1, 100]);
}
