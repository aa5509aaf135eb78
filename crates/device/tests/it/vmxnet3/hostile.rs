//! Rings as no driver leaves them. Nothing panics, nothing hangs, nothing is written but to posted
//! buffers and completions; the queue stops or continues.

use std::sync::atomic::Ordering;
use std::time::Instant;

use proptest::prelude::*;
use vmlane_device::vmxnet3::setup::Moderation;
use vmlane_guestsim::nic::desc::{TxFields as _, rx_desc, tx_desc};
use vmlane_guestsim::nic::{BODY, Rings, RingsSpec, RxShape, TxRequest};
use vmlane_guestsim::{OneByOne, Placement};
use vmlane_port::{ChecksumStatus, DropReason, FramePort, MAX_FRAME, Offload, WakeUp};
use vmlane_stats::Counters as _;
use vmlane_wire::vmxnet3::desc::{CONTROL, OffloadMode, SIZE, error};
use vmlane_wire::vmxnet3::shared::at;

use super::{Nic, TCP4, aggregate, frame, plain, tcp4};

/// Where no memory is.
const NOWHERE: u64 = 0xdead_0000_0000;

fn linux() -> Nic {
    Nic::new(&RingsSpec::linux())
}

/// The value of a port counter.
fn count(nic: &Nic, name: &str) -> u64 {
    nic.stats.snapshot().into_iter().find(|(known, _)| *known == name).expect("a counter").1
}

/// The transmit queue has stopped, and reported it.
fn check_tx_stopped(nic: &mut Nic, code: u32) {
    assert!(nic.port.fetch_one().is_none());
    assert_eq!(nic.guest.shared.tx_errors[0].load(Ordering::Relaxed), code);
    let descriptor = &nic.guest.descriptors[0];
    assert_eq!((descriptor.load_u32(at::STOPPED), descriptor.load_u32(at::ERROR)), (1, code));
    assert_eq!((nic.guest.area.load_u32(at::EVENTS), nic.guest.lines.raised(1)), (2, 1));
    // Once only, and what comes later is not examined.
    nic.guest.tx[0].send(&frame(60), &[], &TxRequest::NONE);
    assert!(nic.port.fetch_one().is_none() && !nic.port.arm());
    assert_eq!(nic.guest.lines.raised(1), 1);
}

fn check_rx_stopped(nic: &mut Nic) {
    let code = error::SMALL_BUFFER;
    assert_eq!(nic.guest.shared.rx_errors[0].load(Ordering::Relaxed), code);
    let descriptor = &nic.guest.descriptors[1];
    assert_eq!((descriptor.load_u32(at::STOPPED), descriptor.load_u32(at::ERROR)), (1, code));
    assert_eq!((nic.guest.area.load_u32(at::EVENTS), nic.guest.lines.raised(1)), (1, 1));
    assert_eq!(nic.deliver(&frame(60), plain), Err(DropReason::BadReceiver));
    assert!(!nic.port.has_room());
    assert_eq!(nic.guest.lines.raised(1), 1);
}

#[test]
fn cve_2016_6834_a_packet_without_end_stops_its_queue() {
    let mut nic = linux();
    let raw = tx_desc(0x10_0000, 100);
    nic.guest.tx[0].post_raw(raw.addr, raw.with_generation(true).control());
    check_tx_stopped(&mut nic, error::NO_END);
}

#[test]
fn a_ring_that_is_one_packet_without_end() {
    let mut nic = Nic::new(&RingsSpec { tx: 40, ..RingsSpec::linux() });
    for _ in 0..40 {
        nic.guest.tx[0].post_raw(0x10_0000, tx_desc(0, 100).with_generation(true).control());
    }
    check_tx_stopped(&mut nic, error::NO_END);
}

#[test]
fn too_many_descriptors() {
    let mut nic = Nic::new(&RingsSpec { tx: 1024, ..RingsSpec::linux() });
    for _ in 0..1024 {
        nic.guest.tx[0].post_raw(0x10_0000, tx_desc(0, 1).with_generation(true).control());
    }
    check_tx_stopped(&mut nic, error::TOO_MANY_DESCRIPTORS);
}

#[test]
fn many_descriptors_are_fine() {
    let mut nic = Nic::new(&RingsSpec { tx: 256, ..RingsSpec::linux() });
    let sent = frame(1500);
    assert!(nic.guest.tx[0].send(&sent, &[10; 100], &TxRequest::NONE));
    assert_eq!(nic.fetch().unwrap().1, sent);
}

#[test]
fn an_unknown_type() {
    let mut nic = linux();
    let raw = tx_desc(0x10_0000, 100).with_end(true).with_unknown_type();
    nic.guest.tx[0].post_raw(raw.addr, raw.with_generation(true).control());
    check_tx_stopped(&mut nic, error::UNKNOWN_TYPE);
}

/// What is wrong with one packet alone: it is skipped and completed, the next one is delivered.
#[test]
fn bad_packets_are_completed_and_counted() {
    let mut nic = linux();
    let whole = |mode, header, mss_or_field| TxRequest { mode, header, mss_or_field, ..TxRequest::NONE };
    let (sum, segment) = (OffloadMode::Checksum, OffloadMode::Segment);
    let buffer = 0x10_0000;
    let cases = [
        ("drop_bad_address", vec![(NOWHERE, 100)], TxRequest::NONE),
        ("drop_bad_address", vec![(buffer, 100), (u64::MAX - 50, 100)], TxRequest::NONE),
        ("drop_bad_address", vec![(buffer, 100), (0xfebd_0000, 100)], TxRequest::NONE),
        ("drop_bad_length", vec![(buffer, 13)], TxRequest::NONE),
        ("drop_bad_length", vec![(buffer, 1523)], TxRequest::NONE),
        ("drop_bad_length", vec![(buffer, 16384); 5], whole(segment, 54, 1448)),
        ("drop_bad_offload", vec![(buffer, 100)], whole(sum, 100, 100)),
        ("drop_bad_offload", vec![(buffer, 100)], whole(sum, 34, 99)),
        ("drop_bad_offload", vec![(buffer, 100)], whole(segment, 54, 0)),
        ("drop_bad_offload", vec![(buffer, 100)], whole(segment, 100, 10)),
        ("drop_bad_offload", vec![(buffer, 16384)], whole(segment, 54, 1)),
        ("drop_bad_offload", vec![(buffer, 1400)], whole(segment, 1023, 10)),
    ];
    for (errors, (reason, parts, request)) in (0..).zip(cases) {
        let before = count(&nic, reason);
        assert!(nic.guest.tx[0].post(&parts, &request));
        let sent = frame(64);
        assert!(nic.guest.tx[0].send(&sent, &[], &TxRequest::NONE));
        let (token, bytes) = nic.fetch().expect("the next packet");
        assert_eq!((bytes, count(&nic, reason)), (sent, before + 1), "{reason} {parts:x?} {request:?}");
        nic.port.finish(&[token]);
        nic.flush();
        assert_eq!(nic.guest.tx[0].reap(), 2, "{reason}");
        assert_eq!(nic.tx_row(8), errors + 1);
    }
}

#[test]
fn encapsulation_in_other_revisions_is_refused() {
    for (revision, taken) in [(1, false), (3, false), (4, true), (6, true), (7, false)] {
        let mut nic = Nic::new(&RingsSpec { revision, ..RingsSpec::linux() });
        let request = TxRequest { mode: OffloadMode::Encapsulated, ..TxRequest::segment(104, 1000) };
        assert!(nic.guest.tx[0].send(&tcp4(3000, (1, 2)), &[], &request));
        assert_eq!(nic.fetch().is_some(), taken, "revision {revision}");
    }
}

#[test]
fn cve_2016_6888_lengths_do_not_overflow() {
    let mut nic = Nic::new(&RingsSpec { tx: 256, ..RingsSpec::linux() });
    let parts = vec![(0x10_0000, 16384); 255];
    assert!(nic.guest.tx[0].post(&parts, &TxRequest::segment(54, 16383)));
    assert_eq!(nic.swallow(), 0);
    assert_eq!((nic.guest.tx[0].reap(), count(&nic, "drop_bad_length")), (1, 1));
}

#[test]
fn cve_2016_6836_completions_hold_nothing_but_what_is_reported() {
    let mut nic = linux();
    let pattern = [0xa5; 16];
    (0..64).for_each(|at| nic.guest.tx[0].completions.write(at * SIZE, &pattern[..SIZE - 1]));
    for _ in 0..130 {
        assert!(nic.guest.tx[0].send(&frame(60), &[], &TxRequest::NONE));
        assert_eq!(nic.swallow(), 1);
        // `TxCompletion::from_words` refuses any other bit.
        assert_eq!(nic.guest.tx[0].reap(), 1);
    }
}

#[test]
fn cve_2016_6835_headers_are_named_only_as_far_as_the_frame_goes() {
    let mut nic = linux();
    let request = TxRequest::segment(60, 10);
    assert!(nic.guest.tx[0].send(&tcp4(61, (1, 2)), &[], &request));
    let (token, _) = nic.fetch().unwrap();
    let in_flight = nic.port.frame(token);
    assert_eq!((in_flight.head.len(), in_flight.offload), (61, Offload::Segment { header: 60, mss: 10 }));
    nic.port.finish(&[token]);
    assert!(nic.guest.tx[0].send(&tcp4(60, (1, 2)), &[], &request));
    assert!(nic.fetch().is_none());
}

#[test]
fn a_ring_full_of_bad_packets_does_not_hold_the_worker() {
    let mut nic = Nic::new(&RingsSpec { tx: 4096, memory: 64 << 20, ..RingsSpec::linux() });
    (0..4095).for_each(|_| assert!(nic.guest.tx[0].post(&[(NOWHERE, 60)], &TxRequest::NONE)));
    // One poll leaves out a bounded number, and reports that there is more.
    assert!(nic.port.fetch_one().is_none() && nic.port.arm());
    let polls = (0..4096).take_while(|_| nic.port.fetch_one().is_none() && nic.port.arm()).count();
    assert!((16..200).contains(&polls), "{polls}");
    nic.flush();
    assert_eq!(nic.guest.tx[0].reap(), 4095);
}

#[test]
fn unfinished_frames_are_bounded() {
    let mut nic = Nic::new(&RingsSpec { tx: 1024, ..RingsSpec::linux() });
    let raw = tx_desc(0x10_0000, 60).with_end(true);
    let in_flight = (0..5000)
        .take_while(|at| {
            nic.guest.tx[0].post_raw(raw.addr, raw.with_generation((at / 1024) % 2 == 0).control());
            nic.port.fetch_one().is_some()
        })
        .count();
    assert_eq!(in_flight, 256);
}

#[test]
fn small_heads_stop_the_queue() {
    for len in [0, 1, 127] {
        let (mut guest, setup) = Rings::unposted(&RingsSpec::linux());
        let addr = guest.rx[0].slot(0, 0).addr;
        guest.rx[0].set_slot(0, 0, rx_desc(addr, len, false, false));
        guest.rx[0].fill();
        let mut nic = Nic::with(guest, setup);
        assert_eq!(nic.deliver(&frame(60), plain), Err(DropReason::BadReceiver));
        check_rx_stopped(&mut nic);
    }
}

#[test]
fn buffers_outside_memory_stop_the_queue() {
    for (ring, len) in [(0, 60), (1, 9000)] {
        let (mut guest, setup) = Rings::unposted(&RingsSpec { mtu: 9000, ..RingsSpec::linux() });
        guest.rx[0].set_slot(ring, 0, rx_desc(NOWHERE, 4000, ring == 1, false));
        guest.rx[0].fill();
        let mut nic = Nic::with(guest, setup);
        assert_eq!(nic.deliver(&frame(len), plain), Err(DropReason::BadReceiver));
        check_rx_stopped(&mut nic);
        assert!(nic.receive(0).is_none(), "nothing was completed");
    }
}

#[test]
fn an_empty_body_is_never_completed() {
    let (mut guest, setup) = Rings::unposted(&RingsSpec { mtu: 9000, ..RingsSpec::linux() });
    let addr = guest.rx[0].slot(1, 1).addr;
    guest.rx[0].set_slot(1, 1, rx_desc(addr, 0, true, false));
    guest.rx[0].fill();
    let mut nic = Nic::with(guest, setup);
    assert_eq!(nic.pass(&frame(5000), plain).buffers, 2);
    assert_eq!(nic.deliver(&frame(5000), plain), Err(DropReason::BadReceiver));
    check_rx_stopped(&mut nic);
}

#[test]
fn cve_2020_16092_a_head_in_ring_1_carries_nothing() {
    let (mut guest, setup) = Rings::unposted(&RingsSpec { mtu: 9000, ..RingsSpec::linux() });
    for index in 0..32 {
        let slot = guest.rx[0].slot(1, index);
        guest.rx[0].set_slot(1, index, rx_desc(slot.addr, BODY, false, false));
    }
    guest.rx[0].fill();
    let mut nic = Nic::with(guest, setup);
    assert_eq!(nic.deliver(&frame(5000), plain), Err(DropReason::NoRoom));
    assert_eq!(nic.pass(&frame(1500), plain).bytes, frame(1500));
}

#[test]
fn a_ring_of_bodies_alone_is_walked_once() {
    let (mut guest, setup) = Rings::unposted(&RingsSpec::linux());
    for index in 0..64 {
        let addr = guest.rx[0].slot(0, index).addr;
        guest.rx[0].set_slot(0, index, rx_desc(addr, 1522, true, false));
    }
    guest.rx[0].fill();
    let mut nic = Nic::with(guest, setup);
    (0..100).for_each(|_| assert_eq!(nic.deliver(&frame(60), plain), Err(DropReason::NoBuffers)));
    assert!(!nic.port.has_room());
    assert!(nic.receive(0).is_none());
}

#[test]
fn a_buffer_partly_outside_memory_is_not_written() {
    let mut nic = linux();
    let at = nic.guest.rx[0].window(0);
    at.store_u64(0, 0x10_0000 - 100);
    assert_eq!(nic.deliver(&frame(200), plain), Err(DropReason::BadReceiver));
    check_rx_stopped(&mut nic);
}

/// A small random generator for what the guest scribbles.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// True once in `count` times.
    fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Any words in a transmit ring: the port continues or stops, and completes what it took.
    #[test]
    fn any_transmit_descriptors(
        seed in any::<u64>(),
        revision in 1u8..=7,
        size in 1u16..70,
        tame in any::<bool>(),
    ) {
        let mut nic = Nic::new(&RingsSpec { revision, tx: size, queues: 2, ..RingsSpec::linux() });
        let mut random = Random(seed | 1);
        for _ in 0..200 {
            let addr = if !random.one_in(4) { 0x10_0000 + random.next() % 0x40_0000 } else { random.next() };
            let mut control = random.next();
            if tame {
                // Known type, an end more often than not: deeper into the checks.
                control &= !(1 << 16);
                control |= u64::from(!random.one_in(3)) << 44;
            }
            let generation = nic.guest.tx[0].generation();
            let control = control & !(1 << 14) | u64::from(generation) << 14;
            nic.guest.tx[0].post_raw(addr, control);
            if random.one_in(2) {
                while let Some((token, bytes)) = nic.fetch() {
                    prop_assert!((14..=MAX_FRAME).contains(&bytes.len()));
                    let in_flight = nic.port.frame(token);
                    prop_assert!(in_flight.head.len() <= bytes.len());
                    nic.port.finish(&[token]);
                }
                nic.flush();
                while nic.guest.tx[0].next_completion().is_some() {}
            }
            nic.port.tick(Instant::now());
        }
    }

    /// Any words in receive rings: nothing outside buffers and completions is written, ever.
    #[test]
    fn any_receive_descriptors(
        seed in any::<u64>(),
        ring0 in 1u16..40,
        ring1 in 0u16..40,
        completions in 1u16..80,
        data in prop::sample::select(vec![0u16, 64, 128]),
        tame in any::<bool>(),
    ) {
        let rx = RxShape { ring0, ring1, completions, data, ..RxShape::linux(64) };
        let spec = RingsSpec { mtu: 9000, moderation: Moderation::Adaptive, rx, ..RingsSpec::linux() };
        let (guest, setup) = Rings::unposted(&spec);
        let mut nic = Nic::with(guest, setup);
        let mut random = Random(seed | 1);
        // Buffers in a stretch that is watched from both sides.
        let pages = nic.guest.ram.alloc(64, Placement::Contiguous);
        let (from, to) = (pages[0] + 16 * 4096, pages[0] + 48 * 4096);
        let rings = 1 + usize::from(ring1 > 0);
        for lap in 0..6u64 {
            for ring in 0..rings {
                let size = [ring0, ring1][ring];
                for index in 0..usize::from(size) {
                    let wild = !tame && random.one_in(8);
                    let addr = if wild { random.next() } else { from + random.next() % (to - from - 16384) };
                    let len = if wild { random.next() % 16384 } else { 128 + random.next() % 4000 };
                    let body = if wild { random.one_in(2) } else { ring == 1 || random.one_in(3) };
                    let desc = rx_desc(addr, len as usize, body, lap % 2 == 0);
                    let window = nic.guest.rx[0].window(ring);
                    window.store_u64(index * SIZE, desc.addr);
                    window.store_u64(index * SIZE + CONTROL, desc.control());
                }
            }
            for _ in 0..60 {
                let len = 14 + random.next() as usize % 9000;
                let outcome = nic.deliver(&frame(len), plain);
                prop_assert!(outcome != Err(DropReason::TooLong));
                let long = tcp4(54 + random.next() as usize % 65000, (1, 2));
                let _ = nic.deliver(&long, |packet| {
                    (packet.layers, packet.checksum) = (TCP4, ChecksumStatus::Good);
                    packet.aggregate = Some(aggregate(packet.len(), 1448));
                });
                nic.port.has_room();
            }
            nic.flush();
        }
        for page in pages[..16].iter().chain(&pages[48..]) {
            let mut bytes = vec![1; 4096];
            nic.guest.ram.read(*page, &mut bytes);
            prop_assert!(bytes.iter().all(|byte| *byte == 0), "page {page:#x} was written");
        }
    }
}
