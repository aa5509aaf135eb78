//! Transmit queues: packets described as the driver posted them, completed once each and in ring order.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use vmlane_device::vmxnet3::setup::Moderation;
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::{RingsSpec, TxRequest};
use vmlane_port::{FramePort, HEAD, Needs, Offload, Sign, WakeUp};
use vmlane_wire::ethernet::Tci;
use vmlane_wire::vmxnet3::desc::OffloadMode;
use vmlane_wire::vmxnet3::shared::at;

use super::{Nic, frame, tcp4};

#[test]
fn a_packet_in_several_pieces_is_described_whole_and_completed_once() {
    let mut nic = Nic::new(&RingsSpec::linux());
    let sent = frame(1500);
    assert!(nic.guest.tx[0].send(&sent, &[54, 100], &TxRequest::NONE));
    let (token, bytes) = nic.fetch().unwrap();
    assert_eq!(bytes, sent);
    let in_flight = nic.port.frame(token);
    assert_eq!((in_flight.head, in_flight.offload, in_flight.tag), (&sent[..HEAD], Offload::None, None));
    assert!(nic.fetch().is_none());
    nic.flush();
    assert_eq!(nic.guest.tx[0].reap(), 0, "completed before it was finished");
    nic.port.finish(&[token]);
    nic.flush();
    assert_eq!(nic.guest.tx[0].reap(), 1);
    assert_eq!((nic.tx_row(2), nic.tx_row(3)), (1, 1500));
    assert_eq!(nic.guest.lines.raised(0), 1);
}

#[test]
fn rings_of_any_size_wrap() {
    for size in [32, 33, 576, 1056] {
        let mut nic = Nic::new(&RingsSpec { tx: size, memory: 64 << 20, ..RingsSpec::linux() });
        let mut reaped = 0;
        for round in 0..4 * usize::from(size) {
            let sent = frame(60 + round % 1400);
            assert!(nic.guest.tx[0].send(&sent, &[14, 33][..round % 3], &TxRequest::NONE));
            let (token, bytes) = nic.fetch().unwrap();
            assert_eq!(bytes, sent, "size {size}, round {round}");
            nic.port.finish(&[token]);
            nic.flush();
            reaped += nic.guest.tx[0].reap();
        }
        assert_eq!(reaped, 4 * usize::from(size));
    }
}

#[test]
fn completions_stay_in_ring_order_when_frames_are_finished_in_any() {
    let mut nic = Nic::new(&RingsSpec::linux());
    (0..20).for_each(|at| assert!(nic.guest.tx[0].send(&frame(100 + at), &[], &TxRequest::NONE)));
    let mut tokens: Vec<_> = std::iter::from_fn(|| nic.port.fetch_one()).collect();
    assert_eq!(tokens.len(), 20);
    let first = tokens.remove(0);
    tokens.reverse();
    for token in tokens {
        nic.port.finish(&[token]);
        nic.flush();
        assert_eq!(nic.guest.tx[0].reap(), 0);
    }
    nic.port.finish(&[first]);
    nic.flush();
    assert_eq!(nic.guest.tx[0].reap(), 20);
}

#[test]
fn only_packets_that_ask_are_completed() {
    let mut nic = Nic::new(&RingsSpec::linux());
    let silent = TxRequest { completion: false, ..TxRequest::NONE };
    for request in [&silent, &silent, &TxRequest::NONE, &silent] {
        assert!(nic.guest.tx[0].send(&frame(64), &[20], request));
    }
    assert_eq!(nic.swallow(), 4);
    assert_eq!(nic.guest.tx[0].reap(), 1);
    assert!(nic.guest.tx[0].next_completion().is_none());
}

#[test]
fn offload_requests_reach_the_switch() {
    let mut nic = Nic::new(&RingsSpec { revision: 4, ..RingsSpec::linux() });
    let tag = Some(Tci(0x6005));
    let tunnel =
        TxRequest { mode: OffloadMode::Encapsulated, outer_sum: true, ..TxRequest::segment(104, 1400) };
    let requests = [
        (TxRequest::checksum(34, 50), Offload::Checksum { start: 34, field: 50 }, None),
        (TxRequest { tag, ..TxRequest::segment(66, 1448) }, Offload::Segment { header: 66, mss: 1448 }, tag),
        (tunnel, Offload::Tunnel { header: 104, mss: 1400, outer_sum: true }, None),
        (TxRequest::segment(300, 1000), Offload::Segment { header: 300, mss: 1000 }, None),
    ];
    for (request, offload, tag) in requests {
        let sent = tcp4(if request.mode == OffloadMode::Checksum { 1400 } else { 9000 }, (1, 2));
        assert!(nic.guest.tx[0].send(&sent, &[66], &request));
        let (token, bytes) = nic.fetch().unwrap();
        assert_eq!(bytes, sent);
        let in_flight = nic.port.frame(token);
        assert_eq!((in_flight.offload, in_flight.tag), (offload, tag));
        assert_eq!(in_flight.head, &sent[..HEAD.max(request.header.into())]);
        nic.port.finish(&[token]);
    }
    // Rows 0 and 1: 7 + 7 + 9 segments, each with its header.
    assert_eq!(nic.tx_row(0), 7 + 7 + 9);
    assert_eq!(nic.tx_row(1), 9000 + 6 * 66 + 9000 + 6 * 104 + 9000 + 8 * 300);
    assert_eq!(nic.tx_row(2), 1 + 7 + 7 + 9);
}

#[test]
fn queues_take_turns() {
    let mut nic = Nic::new(&RingsSpec { queues: 2, ..RingsSpec::linux() });
    for queue in 0..2 {
        (0..40).for_each(|_| assert!(nic.guest.tx[queue].send(&frame(60 + queue), &[], &TxRequest::NONE)));
    }
    let mut lens: Vec<usize> = Vec::new();
    while let Some(token) = nic.port.fetch_one() {
        lens.push(nic.port.frame(token).len());
        nic.port.finish(&[token]);
    }
    assert_eq!(lens.len(), 80);
    let behind = lens[..40].iter().filter(|len| **len == 60).count();
    assert!((16..=24).contains(&behind), "{behind} of the first 40 frames come from queue 0");
    nic.flush();
    assert_eq!([nic.guest.tx[0].reap(), nic.guest.tx[1].reap()], [40, 40]);
    assert_eq!([nic.guest.lines.raised(0), nic.guest.lines.raised(1)], [1, 1], "one for each flush");
}

#[test]
fn the_threshold_rings_only_while_armed() {
    let mut nic = Nic::new(&RingsSpec::linux());
    assert_eq!(nic.guest.descriptors[0].load_u32(at::TX_THRESHOLD), u32::MAX);
    assert!(!nic.port.arm());
    assert_eq!(nic.guest.descriptors[0].load_u32(at::TX_THRESHOLD), 1);
    nic.port.disarm();
    assert_eq!(nic.guest.descriptors[0].load_u32(at::TX_THRESHOLD), u32::MAX);
    nic.guest.tx[0].send(&frame(60), &[], &TxRequest::NONE);
    assert!(nic.port.arm(), "a frame waits");
}

#[test]
fn a_sign_of_each_queue_changes_when_a_frame_is_posted_in_any_lap() {
    let mut nic = Nic::new(&RingsSpec { queues: 2, tx: 32, ..RingsSpec::linux() });
    for count in 0..100 {
        let mut signs = Vec::new();
        assert!(nic.port.signs(&mut signs));
        let changed = || signs.iter().map(Sign::has_changed).collect::<Vec<_>>();
        assert_eq!((changed(), nic.port.needs()), (vec![false; 2], Needs::Nothing), "{count}");
        let queue = count % 2;
        assert!(nic.guest.tx[queue].send(&frame(60), &[], &TxRequest::NONE));
        assert_eq!((changed(), nic.port.needs()), (vec![queue == 0, queue == 1], Needs::Turn), "{count}");
        assert_eq!(nic.swallow(), 1);
        nic.guest.tx[queue].reap();
    }
}

#[test]
fn a_masked_vector_fires_when_it_is_unmasked() {
    let mut nic = Nic::new(&RingsSpec { auto_mask: true, ..RingsSpec::linux() });
    let now = Instant::now();
    let send = |nic: &mut Nic| {
        assert!(nic.guest.tx[0].send(&frame(60), &[], &TxRequest::NONE));
        assert_eq!(nic.swallow(), 1);
    };
    send(&mut nic);
    assert_eq!((nic.guest.lines.raised(0), nic.guest.page.load_u32(0)), (1, 1), "fired and masked");
    send(&mut nic);
    assert!(nic.port.tick(now).soon, "the driver may unmask at any moment");
    assert_eq!(nic.guest.lines.raised(0), 1);
    // Linux unmasks before it lets interrupts through again.
    nic.guest.area.store_u32(at::INTERRUPT_CONTROL, 1);
    nic.guest.page.store_u32(0, 0);
    assert!(nic.port.tick(now).soon);
    nic.guest.area.store_u32(at::INTERRUPT_CONTROL, 0);
    assert!(!nic.port.tick(now).soon);
    assert_eq!(nic.guest.lines.raised(0), 2);
}

#[test]
fn a_vector_that_is_never_unmasked_does_not_keep_the_worker_awake() {
    let mut nic = Nic::new(&RingsSpec::linux());
    nic.guest.page.store_u32(0, 1);
    assert!(nic.guest.tx[0].send(&frame(60), &[], &TxRequest::NONE));
    let before = Instant::now();
    assert_eq!(nic.swallow(), 1);
    assert!(nic.port.tick(before).soon);
    assert!(!nic.port.tick(before + Duration::from_secs(3600)).soon);
    nic.guest.page.store_u32(0, 0);
    assert!(!nic.port.tick(before + Duration::from_secs(7200)).soon);
    assert_eq!(nic.guest.lines.raised(0), 1, "still not forgotten");
}

#[test]
fn a_rate_holds_back_what_follows_and_lets_it_go_in_time() {
    let mut nic = Nic::new(&RingsSpec { moderation: Moderation::Rate(1000), ..RingsSpec::linux() });
    let start = Instant::now();
    let at = |micros| start + Duration::from_micros(micros);
    for micros in [0, 100, 200] {
        assert!(nic.guest.tx[0].send(&frame(60), &[], &TxRequest::NONE));
        let token = nic.port.fetch_one().unwrap();
        nic.port.finish(&[token]);
        nic.port.flush(at(micros));
    }
    assert_eq!(nic.guest.lines.raised(0), 1);
    assert!(nic.port.tick(at(999)).soon);
    assert!(!nic.port.tick(at(1000)).soon);
    assert_eq!(nic.guest.lines.raised(0), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Frames of any length in pieces of any, finished in any order: described as posted, completed in order.
    #[test]
    fn any_traffic_is_described_and_completed(
        size in 3u16..80,
        traffic in prop::collection::vec((14usize..1514, prop::collection::vec(1usize..700, 0..4), any::<bool>()), 1..200),
        seed in any::<u64>(),
    ) {
        let mut nic = Nic::new(&RingsSpec { tx: size, ..RingsSpec::linux() });
        let (mut in_flight, mut random, mut wanted, mut reaped) = (Vec::new(), seed | 1, 0, 0);
        for (len, split, completion) in traffic {
            let sent = frame(len);
            let request = TxRequest { completion, ..TxRequest::NONE };
            if nic.guest.tx[0].send(&sent, &split, &request) {
                wanted += usize::from(completion);
                let (token, bytes) = nic.fetch().expect("it was posted");
                prop_assert_eq!(bytes, sent);
                in_flight.push(token);
            }
            random ^= random << 13;
            random ^= random >> 7;
            if !random.is_multiple_of(3) && !in_flight.is_empty() {
                let token = in_flight.swap_remove(random as usize % in_flight.len());
                nic.port.finish(&[token]);
            }
            nic.flush();
            reaped += nic.guest.tx[0].reap();
        }
        in_flight.into_iter().for_each(|token| nic.port.finish(&[token]));
        nic.flush();
        reaped += nic.guest.tx[0].reap();
        prop_assert_eq!(reaped, wanted);
    }
}
