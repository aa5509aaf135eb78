//! Super-frames delivered whole.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use vmlane_device::vmxnet3::setup::Features;
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::desc::RxFields as _;
use vmlane_guestsim::nic::{Received, Rings, RingsSpec, RxShape};
use vmlane_port::{ChecksumStatus, DropReason, FramePort, RxFrame};

use super::{Nic, TCP4, TCP4_HEADER, aggregate, tcp4};

/// A super-frame as the switch hands it over.
fn whole(mss: u16) -> impl Fn(&mut RxFrame<'_>) {
    move |packet| {
        (packet.layers, packet.checksum) = (TCP4, ChecksumStatus::Good);
        packet.aggregate = Some(aggregate(packet.len(), mss));
    }
}

/// Linux's default rings.
fn big() -> RingsSpec {
    RingsSpec { rx: RxShape::linux(1024), memory: 64 << 20, ..RingsSpec::linux() }
}

fn check(got: &Received, len: usize, mss: u16) {
    assert_eq!(got.bytes, tcp4(len, (1, 2)));
    let segments = (len - TCP4_HEADER).div_ceil(usize::from(mss)).min(255) as u8;
    assert_eq!(got.start().aggregate(), Some((segments, mss)));
    for done in [got.start(), got.end()] {
        let layers = done.layers();
        assert!(layers.good && layers.tcp && layers.v4 && !layers.udp && !layers.v6);
    }
}

#[test]
fn a_super_frame_arrives_whole() {
    let mut nic = Nic::new(&big());
    let capabilities = nic.port.capabilities();
    assert!(
        capabilities.tso4 && capabilities.tso6 && capabilities.partial_sum && !capabilities.partial_frame
    );
    assert!(capabilities.aggregate > 65535 + 14, "{}", capabilities.aggregate);
    for len in [1522, 1523, 3000, 5618, 5619, 20000, 65226, 65549] {
        for round in 0..100 {
            let got = nic.pass(&tcp4(len, (1, 2)), whole(1448));
            check(&got, len, 1448);
            assert_eq!(got.buffers, 1 + (len - 1522).div_ceil(4096), "{len} bytes, round {round}");
            if got.buffers > 1 {
                assert_eq!((got.end().kind(), got.start().kind()), (3, 4));
            }
        }
    }
    assert_eq!(nic.rx_row(0), 800);
    let segments: usize = [1522, 1523, 3000, 5618, 5619, 20000, 65226, 65549]
        .iter()
        .map(|len| (len - TCP4_HEADER).div_ceil(1448))
        .sum();
    assert_eq!(nic.rx_row(2), 100 * segments as u64, "counted before aggregation");
}

#[test]
fn small_segments_are_counted_up_to_255() {
    let mut nic = Nic::new(&big());
    check(&nic.pass(&tcp4(60_000, (1, 2)), whole(100)), 60_000, 100);
}

#[test]
fn a_single_buffer_reports_no_hash() {
    let mut nic = Nic::new(&big());
    let got = nic.pass(&tcp4(1500, (1, 2)), whole(500));
    assert_eq!((got.buffers, got.start().hash().0), (1, 0));
    assert_eq!(got.start().aggregate(), Some((3, 500)));
}

#[test]
fn revision_1_gets_ordinary_completions() {
    let mut nic = Nic::new(&RingsSpec { revision: 1, ..big() });
    let got = nic.pass(&tcp4(20_000, (1, 2)), whole(1448));
    assert_eq!((got.start().kind(), got.start().aggregate()), (3, None));
    assert!(got.end().layers().good);
}

#[test]
fn features_decide_who_gets_super_frames() {
    let all = RingsSpec::linux().features;
    let cases = [
        (Features { lro4: false, ..all }, false, true),
        (Features { lro4: false, lro6: false, ..all }, false, false),
        (Features { rx_checksum: false, ..all }, false, false),
        (all, true, true),
    ];
    for (features, tso4, tso6) in cases {
        let nic = Nic::new(&RingsSpec { features, ..big() });
        let capabilities = nic.port.capabilities();
        assert_eq!(
            (capabilities.tso4, capabilities.tso6, capabilities.partial_sum),
            (tso4, tso6, tso4 || tso6),
            "{features:?}"
        );
    }
}

#[test]
fn lro_is_switched_off_between_two_frames() {
    let mut nic = Nic::new(&big());
    nic.pass(&tcp4(20_000, (1, 2)), whole(1448));
    {
        let mut live = nic.guest.shared.live.lock();
        (live.features.lro4, live.features.lro6) = (false, false);
    }
    nic.port.refresh();
    assert!(!nic.port.capabilities().tso4);
    let refused = nic.deliver(&tcp4(20_000, (1, 2)), whole(1448));
    assert_eq!(refused, Err(DropReason::TooLong));
}

#[test]
fn smaller_buffers_are_reported_as_such() {
    // DPDK: mbufs of 2048 bytes in both rings; the driver names no limit.
    let mut nic = Nic::new(&RingsSpec { max_rx_sg: 3, ..big() });
    assert_eq!(nic.port.capabilities().aggregate, 1522 + 2 * 4096);
    let got = nic.pass(&tcp4(9714, (1, 2)), whole(1448));
    assert_eq!(got.buffers, 3);
    assert_eq!(nic.deliver(&tcp4(9715, (1, 2)), whole(1448)), Err(DropReason::NoRoom));
}

#[test]
fn without_a_second_ring_an_aggregate_is_what_one_head_holds() {
    let rx = RxShape { ring1: 0, completions: 64, head: 9000, ..RxShape::linux(64) };
    let mut nic = Nic::new(&RingsSpec { rx, ..RingsSpec::linux() });
    assert_eq!(nic.port.capabilities().aggregate, 9000);
    check(&nic.pass(&tcp4(9000, (1, 2)), whole(1448)), 9000, 1448);
}

#[test]
fn the_size_is_learnt_when_buffers_come_late() {
    // DPDK posts its buffers after ACTIVATE.
    let (guest, setup) = Rings::unposted(&big());
    let mut nic = Nic::with(guest, setup);
    assert_eq!(nic.port.capabilities().aggregate, 1514);
    nic.guest.rx[0].fill();
    nic.flush();
    assert!(nic.port.capabilities().aggregate > 65535 + 14);
}

/// Linux keeps an aggregate's numbers only for as long as one poll lasts: a reader at any moment
/// sees all completions of a packet or none.
#[test]
fn a_packet_s_completions_appear_together() {
    let mut nic = Nic::new(&big());
    let device = &mut nic.port;
    let (sender, rx) = (&mut nic.sender, &mut nic.guest.rx[0]);
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let sent = tcp4(9000, (1, 2));
            let mut packet = sender.packet(&sent);
            whole(1448)(&mut packet);
            let mut delivered = 0;
            while delivered < 20_000 {
                match device.deliver_one(&packet) {
                    Ok(()) => delivered += 1,
                    Err(_) => std::thread::yield_now(),
                }
                device.flush(Instant::now());
            }
            stop.store(true, Ordering::Release);
        });
        // `receive` panics when a poll ends inside a packet.
        let mut packets = 0;
        loop {
            let done = stop.load(Ordering::Acquire);
            match rx.receive() {
                Some(got) => {
                    assert_eq!((got.buffers, got.start().kind(), got.end().kind()), (3, 4, 3));
                    packets += 1;
                }
                None if done => break,
                None => std::hint::spin_loop(),
            }
        }
        assert_eq!(packets, 20_000);
    });
}
