//! Segments that come in one burst are merged for a receiver that takes super-frames. What is merged is cut
//! again by the switch itself, and compared with what was sent.

mod followed;

use proptest::prelude::*;
use vmlane_guestsim::memory_port::{LRO, PLAIN, Received, Trap};
use vmlane_port::{Aggregate, ChecksumStatus, Filter, Offload, RxCapabilities, VlanSet};
use vmlane_switch::{MirrorDirection, MirrorSpec, Policy, PortSpec, Settings, VlanMode};
use vmlane_wire::ethernet::{Mac, Tci};

use crate::common::tcp::{Ip, Packet};
use crate::common::{Bench, Guest, frame, mac};

const MSS: usize = 1428;

fn pair() -> (Bench, Guest, Guest) {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    b.wire.set_capabilities(LRO);
    (bench, a, b)
}

/// One flow's `payload` bytes.
fn packet(v6: bool, payload: usize) -> Packet {
    Packet::new(mac(2), mac(1), v6, payload).timestamped()
}

fn train(v6: bool, count: usize) -> Vec<Packet> {
    packet(v6, count * MSS).segments(MSS)
}

/// What is left to the switch of a packet whose checksum its sender leaves out, or does not.
fn send(from: &Guest, packet: &Packet, partial: bool, tag: Option<Tci>) {
    if partial {
        let start = (packet.header_len() - packet.tcp.header_len()) as u16;
        from.wire.send(&packet.partial(true), Offload::Checksum { start, field: start + 16 }, tag);
    } else {
        from.wire.send(&packet.bytes(), Offload::None, tag);
    }
}

fn send_all(from: &Guest, packets: &[Packet]) {
    packets.iter().for_each(|packet| send(from, packet, false, None));
}

fn bytes(packets: &[Packet]) -> Vec<Vec<u8>> {
    packets.iter().map(Packet::bytes).collect()
}

/// The segments that were merged to each frame; 1: not merged.
fn segments(received: &[Received]) -> Vec<u16> {
    received.iter().map(|one| one.aggregate.map_or(1, |aggregate| aggregate.segments)).collect()
}

/// What was received, super-frames cut by another switch.
fn cut(received: &[Received]) -> Vec<Vec<u8>> {
    let (mut bench, a, b) = pair();
    b.wire.set_capabilities(RxCapabilities { frame: 20_000, ..PLAIN });
    for one in received {
        let offload = one.aggregate.map_or(Offload::None, |aggregate| Offload::Segment {
            header: aggregate.header,
            mss: aggregate.mss,
        });
        a.wire.send(&one.bytes, offload, None);
        bench.run();
    }
    b.frames()
}

#[test]
fn segments_of_a_burst_are_merged_and_cutting_gives_them_back() {
    let (mut bench, a, b) = pair();
    for v6 in [false, true] {
        for partial_sum in [false, true] {
            b.wire.set_capabilities(RxCapabilities { partial_sum, ..LRO });
            for (payload, partial) in [(2 * MSS, false), (2 * MSS + 1, true), (30 * MSS + 77, false)] {
                let mut whole = packet(v6, payload);
                (whole.tcp.psh, whole.tcp.fin, whole.tcp.ece) = (true, payload % 2 == 0, payload % 2 == 1);
                let sent = whole.segments(MSS);
                sent.iter().for_each(|packet| send(&a, packet, partial, None));
                bench.run();
                let received = b.wire.received();
                let [merged] = &received[..] else { panic!("{} frames", received.len()) };
                let (header, segments) = (whole.header_len() as u16, sent.len() as u16);
                assert_eq!(merged.aggregate, Some(Aggregate { mss: MSS as u16, segments, header }));
                assert_eq!(merged.checksum, ChecksumStatus::Good);
                let mut expected = whole.bytes();
                if partial_sum {
                    let tcp = whole.header_len() - whole.tcp.header_len() + 16;
                    expected[tcp..tcp + 2].copy_from_slice(&whole.partial(true)[tcp..tcp + 2]);
                }
                assert!(merged.bytes == expected, "v6 {v6}, {payload} bytes");
                assert_eq!(cut(&received), bytes(&sent));
            }
        }
    }
    assert_eq!((a.wire.outstanding(), b.stats.rx_coalesced.get()), (0, 12));
    assert_eq!(b.stats.rx_coalesced_segments.get(), 4 * (2 + 3 + 31));
    assert_eq!((b.stats.rx_frames.get(), b.stats.rx_aggregates.get()), (12, 12));
}

#[test]
fn no_super_frame_is_longer_than_a_burst_an_ip_packet_or_its_receiver_allows() {
    let (mut bench, a, b) = pair();
    for (aggregate, mss, count, expected) in [
        (usize::MAX, 1000, 40, vec![32, 8]),
        (usize::MAX, 8000, 12, vec![8, 4]),
        (20_000, 1000, 40, vec![19, 13, 8]),
        (2500, 1200, 4, vec![2, 2]),
        (2400, 1200, 3, vec![1, 1, 1]),
    ] {
        b.wire.set_capabilities(RxCapabilities { aggregate, frame: 9014, ..LRO });
        send_all(&a, &packet(false, mss * count).segments(mss));
        bench.run();
        assert_eq!(segments(&b.wire.received()), expected, "{aggregate} {mss}");
    }
}

/// A name, and a change of one segment that keeps it from its neighbours.
type Obstacle = (&'static str, fn(&mut Packet));

fn obstacles() -> Vec<Obstacle> {
    fn v4(packet: &mut Packet, change: fn(&mut etherparse::Ipv4Header)) {
        match &mut packet.ip {
            Ip::V4(header) => change(header),
            Ip::V6(header) => header.hop_limit = 9,
        }
    }
    vec![
        ("SYN", |packet| packet.tcp.syn = true),
        ("RST", |packet| packet.tcp.rst = true),
        ("URG", |packet| packet.tcp.urg = true),
        ("CWR", |packet| packet.tcp.cwr = true),
        ("ECE", |packet| packet.tcp.ece = true),
        ("NS", |packet| packet.tcp.ns = true),
        ("no ACK", |packet| packet.tcp.ack = false),
        ("acknowledgement", |packet| packet.tcp.acknowledgment_number += 1),
        ("window", |packet| packet.tcp.window_size += 1),
        ("urgent pointer", |packet| packet.tcp.urgent_pointer = 1),
        ("timestamp", |packet| packet.tcp.set_options_raw(&[1, 1, 8, 10, 1, 2, 3, 5, 5, 6, 7, 8]).unwrap()),
        ("no options", |packet| packet.tcp.set_options_raw(&[]).unwrap()),
        ("sequence", |packet| packet.tcp.sequence_number += 1),
        ("sequence of before", |packet| packet.tcp.sequence_number -= 1),
        ("no payload", |packet| packet.payload.clear()),
        ("longer", |packet| packet.payload.push(1)),
        ("type of service", |packet| match &mut packet.ip {
            Ip::V4(header) => header.ecn = etherparse::IpEcn::ONE,
            Ip::V6(header) => header.traffic_class = 1,
        }),
        ("time to live", |packet| v4(packet, |header| header.time_to_live = 9)),
        ("may be fragmented", |packet| v4(packet, |header| header.dont_fragment = false)),
        ("fragment", |packet| v4(packet, |header| header.more_fragments = true)),
        ("identification", |packet| v4(packet, |header| header.identification += 5)),
        ("IP options", |packet| v4(packet, |header| header.options = [1, 1, 1, 1].into())),
        ("flow label", |packet| match &mut packet.ip {
            Ip::V4(header) => header.time_to_live = 9,
            Ip::V6(header) => header.flow_label = etherparse::Ipv6FlowLabel::try_new(7).unwrap(),
        }),
    ]
}

#[test]
fn what_differs_from_its_neighbours_is_not_merged_and_keeps_its_place() {
    let (mut bench, a, b) = pair();
    b.wire.set_capabilities(RxCapabilities { frame: 1600, ..LRO });
    for v6 in [false, true] {
        for (what, change) in obstacles() {
            let mut sent = train(v6, 5);
            change(&mut sent[2]);
            send_all(&a, &sent);
            bench.run();
            let received = b.wire.received();
            assert_eq!(segments(&received), [2, 1, 2], "v6 {v6}: {what}");
            assert_eq!(cut(&received), bytes(&sent), "v6 {v6}: {what}");
        }
        // The same for every frame: nothing is merged.
        for what in ["SYN", "RST", "URG", "CWR", "no ACK", "no payload", "fragment", "IP options"] {
            if v6 && matches!(what, "fragment" | "IP options") {
                continue;
            }
            let mut sent = train(v6, 3);
            let (_, change) = obstacles().into_iter().find(|(name, _)| *name == what).unwrap();
            sent.iter_mut().for_each(change);
            send_all(&a, &sent);
            bench.run();
            let received = b.wire.received();
            assert_eq!(
                received.iter().map(|one| one.bytes.clone()).collect::<Vec<_>>(),
                bytes(&sent),
                "{what}"
            );
            assert_eq!(segments(&received), [1, 1, 1], "{what}");
        }
    }
    assert_eq!(a.wire.outstanding(), 0);
}

#[test]
fn push_fin_and_a_short_segment_end_a_super_frame() {
    let (mut bench, a, b) = pair();
    let ends: [fn(&mut Packet); 3] = [
        |packet| packet.tcp.psh = true,
        |packet| packet.tcp.fin = true,
        |packet| {
            packet.payload.pop();
        },
    ];
    for end in ends {
        for (at, expected) in [(0, vec![1, 4]), (1, vec![2, 3]), (3, vec![4, 1]), (4, vec![5])] {
            let mut sent = train(false, 5);
            end(&mut sent[at]);
            if sent[at].payload.len() < MSS {
                sent[at + 1..].iter_mut().for_each(|packet| packet.tcp.sequence_number -= 1);
            }
            send_all(&a, &sent);
            bench.run();
            let received = b.wire.received();
            assert_eq!(segments(&received), expected);
            assert_eq!(cut(&received), bytes(&sent));
        }
    }
}

#[test]
fn identifications_count_up_or_are_equal_where_nothing_may_be_fragmented() {
    let (mut bench, a, b) = pair();
    for (may_fragment, ids, expected) in [
        (true, [0, 1, 2, 3], vec![4]),
        (true, [7, 7, 7, 7], vec![1, 1, 1, 1]),
        (true, [0, 2, 3, 4], vec![1, 3]),
        (false, [7, 7, 7, 7], vec![4]),
        (false, [7, 7, 8, 9], vec![2, 2]),
        (false, [0xffff, 0, 1, 1], vec![3, 1]),
    ] {
        let mut sent = train(false, 4);
        for (packet, id) in sent.iter_mut().zip(ids) {
            let Ip::V4(header) = &mut packet.ip else { unreachable!() };
            (header.dont_fragment, header.identification) = (!may_fragment, id);
        }
        send_all(&a, &sent);
        bench.run();
        assert_eq!(segments(&b.wire.received()), expected, "{may_fragment} {ids:?}");
    }
}

#[test]
fn a_receiver_with_room_for_single_segments_only_gets_those_that_wait() {
    let (mut bench, a, b) = pair();
    b.wire.set_room(Some(0));
    let sent = train(false, 5);
    send_all(&a, &sent);
    (0..5).for_each(|_| bench.step());
    assert_eq!((b.frames().len(), a.wire.outstanding()), (0, 5));
    // Buffers for one after the other, but never for two in one.
    b.wire.set_longest(Some(sent[0].bytes().len()));
    b.wire.set_room(None);
    bench.run();
    let received = b.wire.received();
    assert_eq!((segments(&received), a.wire.outstanding()), (vec![1; 5], 0));
    assert!(received.iter().map(|one| one.bytes.clone()).eq(bytes(&sent)));
}

#[test]
fn what_the_kernel_has_verified_is_merged_as_it_is() {
    let (mut bench, a, b) = pair();
    let sent = train(false, 4);
    // So that it shows who looked.
    let mut frames = bytes(&sent);
    frames[2][14 + 20 + 16] ^= 0xff;
    for (verified, expected) in [(false, vec![2, 1, 1]), (true, vec![4])] {
        if verified {
            a.wire.verify();
        }
        frames.iter().for_each(|frame| a.send(frame));
        bench.run();
        assert_eq!(segments(&b.wire.received()), expected, "verified: {verified}");
    }
}

#[test]
fn a_wrong_checksum_is_not_hidden() {
    let (mut bench, a, b) = pair();
    for (broken, at) in [(0, 60), (1, 60), (2, 1000), (1, 50), (2, 24)] {
        let sent = train(false, 4);
        let mut frames = bytes(&sent);
        frames[broken][at] ^= 4;
        frames.iter().for_each(|frame| a.send(frame));
        bench.run();
        let received = b.wire.received();
        assert_eq!(cut(&received), frames, "segment {broken}, byte {at}");
        let counts = segments(&received);
        let whole: Vec<_> = received.iter().filter(|one| one.bytes == frames[broken]).collect();
        assert!(whole.len() == 1 && whole[0].checksum == ChecksumStatus::Unknown, "{counts:?}");
    }
}

#[test]
fn flows_side_by_side_are_merged_each_for_itself() {
    let (mut bench, a, b) = pair();
    for count in [2, 8, 9, 12] {
        let flows: Vec<_> = (0..count)
            .map(|flow| {
                let mut packet = packet(flow % 2 == 1, 2 * MSS);
                packet.tcp.source_port = 1000 + flow;
                packet.segments(MSS)
            })
            .collect();
        // Behind the first segments of all, the second ones.
        let sent: Vec<_> = (0..2).flat_map(|at| flows.iter().map(move |flow| flow[at].clone())).collect();
        send_all(&a, &sent);
        bench.run();
        let received = b.wire.received();
        let merged = segments(&received).iter().filter(|&&count| count == 2).count();
        assert_eq!(merged, if count <= 8 { count.into() } else { 0 }, "{count} flows");
        let (mut got, mut expected) = (cut(&received), bytes(&sent));
        got.sort();
        expected.sort();
        assert_eq!(got, expected);
    }
}

#[test]
fn who_takes_no_super_frames_gets_none() {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    let policy = Policy { promiscuous: true, ..Policy::default() };
    let c = bench.port(PortSpec { policy, ..Bench::spec(3) });
    c.wire.change_filter(|filter| filter.promiscuous = true);
    bench.refresh(&c);
    let sent = train(false, 4);
    for (capabilities, expected) in [
        (PLAIN, vec![1; 4]),
        (RxCapabilities { tso4: false, ..LRO }, vec![1; 4]),
        (RxCapabilities { tso6: false, ..LRO }, vec![4]),
        (RxCapabilities { aggregate: PLAIN.frame, ..LRO }, vec![1; 4]),
    ] {
        [&b, &c].iter().for_each(|guest| guest.wire.set_capabilities(capabilities));
        send_all(&a, &sent);
        bench.run();
        let received = b.wire.received();
        assert_eq!(segments(&received), expected, "{capabilities:?}");
        assert_eq!(cut(&received), bytes(&sent));
        // It looks at others' frames: it gets them as they were sent.
        assert_eq!(c.frames(), bytes(&sent));
    }
}

#[test]
fn nothing_is_merged_while_that_is_off() {
    let mut bench = Bench::with(Settings { coalesce: false, ..Settings::default() });
    let (a, b) = (bench.guest(1), bench.guest(2));
    b.wire.set_capabilities(LRO);
    let sent = train(false, 4);
    for (on, expected) in [(false, vec![1; 4]), (true, vec![4]), (false, vec![1; 4])] {
        bench.switch.set_coalesce(on);
        send_all(&a, &sent);
        bench.run();
        let received = b.wire.received();
        assert_eq!(segments(&received), expected);
        assert_eq!(cut(&received), bytes(&sent));
    }
}

#[test]
fn segments_from_an_uplink_and_to_one_are_merged() {
    let mut bench = Bench::new();
    let a = bench.guest(2);
    let up = bench.port(PortSpec { uplink: true, mac: Mac::default(), ..Bench::spec(9) });
    up.wire.change_filter(|filter| *filter = Filter::open());
    bench.refresh(&up);
    [&a, &up].iter().for_each(|guest| guest.wire.set_capabilities(LRO));
    send_all(&up, &train(true, 6));
    bench.run();
    assert_eq!(segments(&a.wire.received()), [6]);
    let mut back = train(true, 6);
    for packet in &mut back {
        (packet.ethernet.source, packet.ethernet.destination) = (mac(2).0, mac(1).0);
    }
    send_all(&a, &back);
    bench.run();
    assert_eq!(segments(&up.wire.received()), [6]);
}

#[test]
fn tags_are_a_part_of_the_flow() {
    let mut bench = Bench::new();
    let mut trunk = |number: u8| {
        let vlan = VlanMode::Trunk(VlanSet::all());
        bench.port(PortSpec { vlan, ..Bench::spec(number) })
    };
    let (a, b) = (trunk(1), trunk(2));
    b.wire.set_capabilities(LRO);
    let sent = train(false, 6);
    let tags = [5, 5, 5, 0x6005, 0x6005, 6].map(|tag| Some(Tci(tag)));
    for (packet, tag) in sent.iter().zip(tags) {
        send(&a, packet, true, tag);
    }
    bench.run();
    let received = b.wire.received();
    assert_eq!(segments(&received), [3, 2, 1]);
    assert_eq!(received.iter().map(|one| one.tag).collect::<Vec<_>>(), [tags[0], tags[3], tags[5]]);
    assert_eq!(cut(&received), bytes(&sent));
    // In band, the tag is in the way.
    for packet in &sent {
        let bytes = packet.bytes();
        a.send(&[&bytes[..12], &[0x81, 0, 0, 5], &bytes[12..]].concat());
    }
    bench.run();
    let received = b.wire.received();
    assert_eq!((segments(&received), received[0].tag), (vec![6], Some(Tci(5))));
    assert_eq!(cut(&received), bytes(&sent));
}

#[test]
fn segments_that_find_no_buffers_wait_in_order_and_are_merged_then() {
    let (mut bench, a, b) = pair();
    let mut flow = train(false, 12);
    flow[5].tcp.psh = true;
    let other = frame(mac(2), mac(1), 100, 1);
    b.wire.set_room(Some(1));
    send_all(&a, &flow[..3]);
    bench.run();
    // These wait, and so do those behind them.
    send_all(&a, &flow[3..9]);
    a.send(&other);
    send_all(&a, &flow[9..]);
    bench.run();
    assert_eq!(segments(&b.wire.received()), [3]);
    for (room, expected) in [(1, vec![3]), (1, vec![3]), (5, vec![1, 3])] {
        b.wire.set_room(Some(room));
        bench.run();
        assert_eq!(segments(&b.wire.received()), expected);
    }
    assert_eq!((a.wire.outstanding(), b.stats.rx_coalesced_segments.get()), (0, 12));
}

#[test]
fn a_flow_that_finds_no_buffers_is_delivered_in_order_and_once() {
    for room in 0..8 {
        let (mut bench, a, b) = pair();
        b.wire.set_room(Some(room));
        let mut flow = train(false, 9);
        flow[4].payload.clear();
        let mut sent = flow.clone();
        sent.insert(2, {
            let mut other = packet(true, 100);
            other.tcp.source_port = 9;
            other
        });
        send_all(&a, &sent);
        bench.run();
        let mut received = b.wire.received();
        while a.wire.outstanding() > 0 {
            b.wire.set_room(Some(1));
            bench.run();
            received.extend(b.wire.received());
        }
        let got: Vec<_> = cut(&received).into_iter().filter(|frame| frame[12] == 8).collect();
        assert_eq!(got, bytes(&flow), "room for {room}");
        assert_eq!(cut(&received).len(), sent.len());
    }
}

#[test]
fn a_receiver_that_fails_costs_only_its_own_frames() {
    let (mut bench, a, b) = pair();
    let c = bench.guest(3);
    c.wire.set_capabilities(LRO);
    let mut to_c = train(false, 4);
    to_c.iter_mut().for_each(|packet| packet.ethernet.destination = mac(3).0);
    b.wire.set_trap(Trap::Deliver);
    send_all(&a, &train(false, 4));
    bench.run();
    assert!(b.wire.dropped());
    assert_eq!(a.wire.outstanding(), 0);
    send_all(&a, &to_c);
    bench.run();
    assert_eq!(segments(&c.wire.received()), [4]);
    assert_eq!(a.wire.outstanding(), 0);
}

#[test]
fn a_sender_whose_segments_never_fit_together_is_tried_again() {
    let (mut bench, a, b) = pair();
    let sent = train(false, 64);
    // Each could be the first of a super-frame, and none is followed by the next one.
    sent.iter().rev().for_each(|packet| send(&a, packet, false, None));
    bench.run();
    assert_eq!(segments(&b.wire.received()), [1; 64]);
    send_all(&a, &sent);
    bench.run();
    let received = b.wire.received();
    assert!(segments(&received).iter().any(|&count| count > 1), "{:?}", segments(&received));
    assert_eq!(cut(&received), bytes(&sent));
    send_all(&a, &sent);
    bench.run();
    assert_eq!(segments(&b.wire.received()), [32, 32]);
}

#[test]
fn bytes_read_for_checksums_are_charged_to_the_sender() {
    // A round's share is 256 KiB: what is read counts like what is copied.
    let rounds = |partial: bool| {
        let (mut bench, a, b) = pair();
        b.wire.set_capabilities(RxCapabilities { frame: 9014, ..LRO });
        let sent = packet(false, 180 * 8000).segments(8000);
        sent.iter().for_each(|packet| send(&a, packet, partial, None));
        let mut rounds = 0;
        while a.wire.queued() > 0 || a.wire.outstanding() > 0 {
            bench.step();
            rounds += 1;
        }
        assert_eq!(cut(&b.wire.received()).len(), 180);
        rounds
    };
    let (known, computed) = (rounds(true), rounds(false));
    assert!(computed > known + known / 2, "{known} rounds without reading, {computed} with it");
}

/// One step of a random sender: a flow of two, and what is special about the frame.
fn random_frames() -> impl Strategy<Value = Vec<(bool, usize, usize, bool)>> {
    let what = prop_oneof![6 => Just(usize::MAX), 1 => 0usize..28];
    let bytes = prop_oneof![4 => Just(MSS), 1 => 1usize..MSS, 1 => Just(100usize)];
    prop::collection::vec((any::<bool>(), what, bytes, any::<bool>()), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever two flows send, their receiver gets what it would get without merging, each flow in order.
    #[test]
    fn merged_or_not_the_same_arrives(
        frames in random_frames(),
        v6 in any::<bool>(),
        rooms in prop::collection::vec(0usize..12, 0..6),
    ) {
        let (mut bench, a, b) = pair();
        b.wire.set_capabilities(RxCapabilities { frame: 1600, partial_sum: false, ..LRO });
        let obstacles = obstacles();
        let mut next = [0xffff_0000u32, 77];
        let mut sent: [Vec<Vec<u8>>; 2] = Default::default();
        b.wire.set_room(rooms.first().copied());
        for (number, (flow, what, bytes, partial)) in frames.into_iter().enumerate() {
            let flow = usize::from(flow);
            let mut packet = packet(v6, bytes);
            packet.tcp.source_port = 5000 + flow as u16;
            packet.tcp.sequence_number = next[flow];
            if let Ip::V4(header) = &mut packet.ip {
                header.identification = sent[flow].len() as u16;
            }
            match (what, obstacles.get(what)) {
                // A sequence number that is not random must not look like one.
                (_, Some((_, change))) => change(&mut packet),
                (23..=25, None) => packet.tcp.psh = true,
                (26, None) => packet.tcp.fin = true,
                _ => {}
            }
            next[flow] = next[flow].wrapping_add(packet.payload.len() as u32);
            // Fragments have no checksum of their own to be left out.
            send(&a, &packet, partial && what > 30, None);
            sent[flow].push(packet.bytes());
            if number % 37 == 36 {
                bench.run();
            }
        }
        bench.run();
        let mut received = b.wire.received();
        for room in rooms {
            b.wire.set_room(Some(room));
            bench.run();
            received.extend(b.wire.received());
        }
        b.wire.set_room(None);
        bench.run();
        received.extend(b.wire.received());
        let mut got: [Vec<Vec<u8>>; 2] = Default::default();
        for frame in cut(&received) {
            let at = if v6 { 54 } else { 14 + usize::from(frame[14] & 15) * 4 };
            got[usize::from(frame[at + 1] == (5001u16 & 255) as u8)].push(frame);
        }
        prop_assert_eq!(got, sent);
        prop_assert_eq!(a.wire.outstanding(), 0);
    }
}
