//! Random frames with random requests: nothing panics, nothing stays lent, and what is delivered after a
//! request was granted has correct lengths and checksums.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use vmlane_guestsim::memory_port::{LRO, PLAIN, Received};
use vmlane_port::{Offload, RxCapabilities};
use vmlane_wire::ethernet::Tci;

use crate::common::tcp::Packet;
use crate::common::{Bench, mac};

fn offload() -> impl Strategy<Value = Offload> {
    let (small, word) = (0u16..200, any::<u16>());
    prop_oneof![
        Just(Offload::None),
        (small.clone(), small.clone()).prop_map(|(start, field)| Offload::Checksum { start, field }),
        (prop_oneof![Just(54u16), Just(66), Just(74), Just(86), small.clone()], word)
            .prop_map(|(header, mss)| Offload::Segment { header, mss }),
        (small, word, any::<bool>()).prop_map(|(header, mss, outer_sum)| Offload::Tunnel {
            header,
            mss,
            outer_sum
        }),
    ]
}

/// A proper packet with some bytes changed.
fn almost_tcp() -> impl Strategy<Value = Vec<u8>> {
    let edits = proptest::collection::vec((12usize..90, any::<u8>()), 0..4);
    (any::<bool>(), any::<bool>(), 0usize..9000, edits).prop_map(|(v6, timestamp, payload, edits)| {
        let packet = Packet::new(mac(2), mac(1), v6, payload);
        let mut bytes = if timestamp { packet.timestamped() } else { packet }.partial(false);
        for (at, value) in edits {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes
    })
}

fn capabilities() -> impl Strategy<Value = RxCapabilities> {
    (60usize..9014, 0usize..66_000, any::<bool>(), any::<bool>()).prop_map(|(frame, more, tso4, tso6)| {
        RxCapabilities { frame, aggregate: frame + more, tso4, tso6, ..LRO }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_a_guest_sends(
        frames in proptest::collection::vec((almost_tcp(), offload(), proptest::option::of(any::<u16>())), 1..8),
        raw in proptest::collection::vec(any::<u8>(), 0..300),
        capabilities in capabilities(),
        room in proptest::option::of(0usize..6),
    ) {
        let mut bench = Bench::new();
        let (a, b) = (bench.guest(1), bench.guest(2));
        b.wire.set_capabilities(capabilities);
        b.wire.set_room(room);
        for (bytes, offload, tag) in frames {
            // A source refuses requests that speak of more than the frame has.
            a.wire.send(&bytes, offload, tag.map(Tci));
        }
        a.wire.send(&raw, Offload::None, None);
        bench.run();
        b.wire.set_room(None);
        bench.run();
        prop_assert_eq!(a.wire.outstanding(), 0);
        prop_assert_eq!(a.stats.panics.get() + b.stats.panics.get(), 0);
    }

    #[test]
    fn segments_are_correct_whatever_the_sizes(
        v6 in any::<bool>(), timestamp in any::<bool>(), payload in 1usize..30_000, mss in 16u16..9000,
        frame in 200usize..9014, tso in any::<bool>(),
    ) {
        let mut bench = Bench::new();
        let (a, b) = (bench.guest(1), bench.guest(2));
        b.wire.set_capabilities(RxCapabilities { frame, aggregate: 40_000, tso4: tso, tso6: tso, ..PLAIN });
        let packet = Packet::new(mac(2), mac(1), v6, payload);
        let packet = if timestamp { packet.timestamped() } else { packet };
        let header = packet.header_len() as u16;
        a.wire.send(&packet.partial(false), Offload::Segment { header, mss }, None);
        bench.run();
        let received = b.wire.received();
        received.iter().for_each(check);
        let delivered: Vec<u8> =
            received.iter().flat_map(|one| one.bytes[usize::from(header)..].to_vec()).collect();
        if b.stats.drop_too_long.get() + a.stats.drop_bad_offload.get() == 0 {
            prop_assert!(delivered == packet.payload);
        } else {
            prop_assert!(received.is_empty());
        }
    }
}

/// Panics unless lengths and checksums are right.
fn check(received: &Received) {
    let packet = SlicedPacket::from_ethernet(&received.bytes).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("no TCP") };
    let header = tcp.to_header();
    let (sum, end) = match packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            let ip = ip.header();
            assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
            let sum = header.calc_checksum_ipv4_raw(ip.source(), ip.destination(), tcp.payload());
            (sum, 14 + usize::from(ip.total_len()))
        }
        Some(NetSlice::Ipv6(ip)) => {
            let ip = ip.header();
            let sum = header.calc_checksum_ipv6_raw(ip.source(), ip.destination(), tcp.payload());
            (sum, 54 + usize::from(ip.payload_length()))
        }
        other => panic!("{other:?} is not IP"),
    };
    assert_eq!((sum.unwrap(), end), (tcp.checksum(), received.bytes.len()));
}
