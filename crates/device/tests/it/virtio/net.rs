//! A virtio NIC's rings: frames out of chains of every shape, frames into buffers, completions and
//! notices, positions across stops; in split and in packed rings.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vmlane_device::virtio::vhost::VhostDevice;
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::virtio::out;
use vmlane_port::{Aggregate, ChecksumStatus, DropReason, Layers, Network, Offload, RxFrame, Transport};
use vmlane_wire::ethernet::Tci;
use vmlane_wire::virtio::{feature, net_feature};

use super::{ALL, Frame, HEADER, KINDS, MODERN, Nic, partial_checksum, pieces};

#[test]
fn frames_leave_chains_of_every_shape() {
    for kind in KINDS {
        let mut nic = Nic::new(ALL | kind);
        let frame: Vec<u8> = (0..1400).map(|at| at as u8).collect();
        let whole = nic.bytes(&[&[0; HEADER][..], &frame].concat());
        let (header, body) = (nic.bytes(&[0; HEADER]), nic.bytes(&frame));
        // Three laps, so that wraps are seen.
        for _ in 0..12 {
            let ids = [
                nic.tx.post(&[out(whole, HEADER + 1400)]),
                nic.tx.post(&pieces(header, body, 1400)),
                // The header in the middle of pieces, an empty one among them.
                nic.tx.post(&[
                    out(whole, 5),
                    out(whole + 5, 0),
                    out(whole + 5, 100),
                    out(whole + 105, HEADER + 1295),
                ]),
                nic.tx.post_indirect(&pieces(header, body, 1400)),
                nic.tx.post_indirect(&[out(whole, HEADER + 1), out(whole + 13, 1399)]),
            ];
            for id in ids {
                assert_eq!(nic.sent(), Some((frame.clone(), Offload::None)));
                assert_eq!(nic.tx.take(), Some((id, 0)));
            }
            assert_eq!(nic.sent(), None);
        }
    }
}

#[test]
fn offload_requests_are_those_of_the_header() {
    let mut nic = Nic::new(ALL);
    let mut frame = vec![0; 4000];
    frame[34 + 12] = 0x50;
    let body = nic.bytes(&frame);
    let mut send = |header: [u8; HEADER], len: usize| {
        let header = nic.bytes(&header);
        nic.tx.post(&pieces(header, body, len));
        let sent = nic.sent();
        assert!(nic.tx.take().is_some());
        sent.map(|(_, offload)| offload)
    };
    assert_eq!(
        send([1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0], 1000),
        Some(Offload::Checksum { start: 34, field: 50 })
    );
    let segment = Offload::Segment { header: 54, mss: 1000 };
    assert_eq!(send([1, 1, 54, 0, 0xe8, 3, 34, 0, 16, 0, 0, 0], 4000), Some(segment));
    // TSO over IPv6 was not agreed on; a long frame that is no super-frame.
    assert_eq!(send([1, 4, 54, 0, 0xe8, 3, 34, 0, 16, 0, 0, 0], 4000), None);
    assert_eq!(send([0; HEADER], 4000), None);
    assert_eq!((nic.stats().drop_bad_offload.get(), nic.stats().drop_bad_length.get()), (1, 1));
}

#[test]
fn frames_are_completed_in_the_order_of_the_ring() {
    for kind in KINDS {
        let mut nic = Nic::new(ALL | kind);
        let whole = nic.bytes(&[0; 100]);
        let ids: Vec<u16> = (0..4).map(|_| nic.tx.post(&[out(whole, 100)])).collect();
        let tokens: Vec<_> = (0..4).map(|_| nic.fetch().unwrap()).collect();
        let finish = |nic: &Nic, at: usize| {
            nic.with(|end| {
                end.finish(&[tokens[at]]);
                end.flush(Instant::now());
            })
        };
        finish(&nic, 2);
        finish(&nic, 1);
        assert_eq!(nic.tx.take(), None);
        finish(&nic, 0);
        assert_eq!([0, 1, 2].map(|_| nic.tx.take().map(|(id, _)| id)), [0, 1, 2].map(|at| Some(ids[at])));
        assert_eq!(nic.tx.take(), None);
        // What is in flight when the rings stop is taken again when they run next.
        nic.device.stop();
        nic.run();
        assert!(nic.sent().is_some());
        assert_eq!(nic.tx.take(), Some((ids[3], 0)));
        assert_eq!(nic.sent(), None);
    }
}

#[test]
fn a_frame_is_spread_over_mergeable_buffers() {
    for kind in KINDS {
        let mut nic = Nic::new(ALL | kind);
        let frame = Frame::new(1400);
        for _ in 0..9 {
            let buffers = [500, 600, 700].map(|len| nic.post_buffer(len));
            nic.deliver(&frame, |packet| packet).unwrap();
            let lengths = [0, 1, 2].map(|_| nic.rx.take().unwrap().1);
            assert_eq!(lengths, [500, 600, 312]);
            let mut got = nic.read(buffers[0], 500);
            got.extend(nic.read(buffers[1], 600));
            got.extend(nic.read(buffers[2], 312));
            assert_eq!(got[..HEADER], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0]);
            assert_eq!(got[HEADER..], frame.bytes);
        }
    }
}

#[test]
fn a_frame_takes_all_its_buffers_or_none() {
    for kind in KINDS {
        let mut nic = Nic::new(ALL | kind);
        let frame = Frame::new(1400);
        assert_eq!(nic.deliver(&frame, |packet| packet), Err(DropReason::NoBuffers));
        nic.post_buffer(600);
        nic.post_buffer(600);
        assert_eq!(nic.deliver(&frame, |packet| packet), Err(DropReason::NoBuffers));
        assert!(!nic.with(|end| end.has_room()), "the third buffer is missing");
        nic.post_buffer(600);
        assert!(nic.with(|end| end.has_room()));
        nic.deliver(&frame, |packet| packet).unwrap();
        assert_eq!([0, 1, 2].map(|_| nic.rx.take().unwrap().1), [600, 600, 212]);
        // A ring of the smallest buffers never holds it.
        for _ in 0..16 {
            nic.post_buffer(64);
        }
        assert_eq!(nic.deliver(&frame, |packet| packet), Err(DropReason::NoRoom));
        assert_eq!(nic.rx.take(), None);
    }
}

#[test]
fn without_mergeable_buffers_a_chain_must_do() {
    let mut nic = Nic::new(MODERN);
    let frame = Frame::new(1400);
    nic.post_buffer(1411);
    assert_eq!(nic.deliver(&frame, |packet| packet), Err(DropReason::NoRoom));
    let short = Frame::new(1399);
    nic.deliver(&short, |packet| packet).unwrap();
    assert_eq!(nic.rx.take().unwrap().1, 1411);
}

#[test]
fn checksums_are_reported_or_computed() {
    let frame = Frame::new(200);
    for (features, flags) in [(MODERN, [0; 10]), (ALL, [1, 0, 0, 0, 0, 0, 34, 0, 16, 0])] {
        let mut nic = Nic::new(features);
        let buffer = nic.post_buffer(400);
        nic.deliver(&frame, |packet| RxFrame { partial_checksum: Some(partial_checksum()), ..packet })
            .unwrap();
        let got = nic.read(buffer, HEADER + 200);
        assert_eq!(got[..10], flags);
        let same = got[HEADER..] == frame.bytes;
        assert_eq!(same, features == ALL, "a partial checksum stays as it is, another one is filled in");
        let capabilities = nic.with(|end| end.capabilities());
        assert_eq!((capabilities.partial_frame, capabilities.tso4, capabilities.tso6), (same, same, false));
    }
    // A verdict.
    let mut nic = Nic::new(ALL);
    let buffer = nic.post_buffer(400);
    nic.deliver(&frame, |packet| RxFrame { checksum: ChecksumStatus::Good, ..packet }).unwrap();
    assert_eq!(nic.read(buffer, 1), [2]);
}

#[test]
fn super_frames_and_tags_are_reported() {
    let mut nic = Nic::sized(ALL, 256);
    let buffer = nic.post_buffer(8000);
    let frame = Frame::new(4000);
    let layers = Layers {
        network: Network::V4,
        transport: Transport::Tcp,
        fragment: false,
        network_at: 14,
        transport_at: 34,
    };
    let aggregate = Some(Aggregate { mss: 1000, segments: 4, header: 54 });
    let tag = Some(Tci(0x600a));
    nic.deliver(&frame, |packet| RxFrame { layers, aggregate, tag, ..packet }).unwrap();
    let got = nic.read(buffer, HEADER + 4004);
    assert_eq!(got[..HEADER], [1, 1, 58, 0, 0xe8, 3, 38, 0, 16, 0, 1, 0]);
    assert_eq!(got[HEADER..HEADER + 12], frame.bytes[..12]);
    assert_eq!(got[HEADER + 12..HEADER + 16], [0x81, 0, 0x60, 0x0a]);
    assert_eq!(got[HEADER + 16..], frame.bytes[12..]);
}

#[test]
fn drivers_are_notified_when_they_want_to_be() {
    for features in [MODERN, MODERN | feature::PACKED] {
        let mut nic = Nic::new(features);
        let frame = Frame::new(100);
        let calls = |nic: &Nic| nic.lines.calls.load(Ordering::SeqCst);
        for wanted in [true, false] {
            if !wanted {
                nic.rx.mute();
            }
            let before = calls(&nic);
            nic.post_buffer(400);
            nic.deliver(&frame, |packet| packet).unwrap();
            assert_eq!(calls(&nic) - before, u64::from(wanted));
        }
        // Kicks: none while the worker is awake; asked for before it sleeps.
        assert!(!nic.tx.wants_kick() && !nic.rx.wants_kick());
        assert!(!nic.with(|end| end.arm()));
        assert!(nic.tx.wants_kick());
        nic.with(|end| end.disarm());
        assert!(!nic.tx.wants_kick());
        let whole = nic.bytes(&[0; 100]);
        nic.tx.post(&[out(whole, 100)]);
        assert!(nic.with(|end| end.arm()), "a frame waits");
    }
}

/// A NIC of a guest that may sleep through calls, with a frame for it that came at the time returned.
fn called_once(features: u64) -> (Nic, Instant) {
    let mut nic = Nic::new(features);
    nic.lines.lossy.store(true, Ordering::SeqCst);
    nic.device.stop();
    nic.run();
    nic.post_buffer(400);
    let (frame, begin) = (Frame::new(100), Instant::now());
    nic.with(|end| {
        end.deliver_one(&frame.packet()).unwrap();
        end.flush(begin);
    });
    (nic, begin)
}

#[test]
fn a_guest_that_is_known_to_have_polled_is_not_interrupted_again() {
    let (nic, begin) = called_once(MODERN | feature::EVENT_INDEX);
    let before = nic.lines.calls.load(Ordering::SeqCst);
    let tick = |micros| nic.with(|end| end.tick(begin + Duration::from_micros(micros)).soon);
    assert!(tick(90));
    assert_eq!(nic.lines.calls.load(Ordering::SeqCst), before + 1, "it has not polled yet");
    nic.rx.driver.store_u16(4 + 2 * usize::from(nic.rx.size), 1);
    assert!(!tick(1000) && !tick(2000));
    assert_eq!(nic.lines.calls.load(Ordering::SeqCst), before + 1);
}

#[test]
fn a_guest_that_sleeps_through_calls_is_called_again_a_few_times() {
    let (nic, begin) = called_once(MODERN);
    let calls = || nic.lines.calls.load(Ordering::SeqCst);
    let (mut before, mut again) = (calls(), Vec::new());
    for micros in (0..2000).step_by(10) {
        let soon = nic.with(|end| end.tick(begin + Duration::from_micros(micros)).soon);
        assert!(soon || micros > 1280, "the worker polls again soon");
        if calls() > before {
            again.push(micros);
            before = calls();
        }
    }
    assert_eq!(again, [80, 160, 320, 640, 1280]);
    assert!(!nic.with(|end| end.tick(begin + Duration::from_secs(1)).soon));
}

#[test]
fn event_indices_are_kept() {
    let mut nic = Nic::new(MODERN | feature::EVENT_INDEX);
    let frame = Frame::new(100);
    let before = nic.lines.calls.load(Ordering::SeqCst);
    // used_event: after the third from here.
    let event = 4 + 2 * usize::from(nic.rx.size);
    nic.post_buffer(400);
    nic.deliver(&frame, |packet| packet).unwrap();
    nic.rx.driver.store_u16(event, 3);
    for calls in [1, 1, 2, 2] {
        nic.post_buffer(400);
        nic.deliver(&frame, |packet| packet).unwrap();
        assert_eq!(nic.lines.calls.load(Ordering::SeqCst) - before, calls);
    }
}

#[test]
fn what_is_on_offer() {
    let nic = Nic::new(MODERN);
    let features = nic.device.features();
    for bit in [feature::VERSION_1, feature::PACKED, net_feature::MERGEABLE, net_feature::GUEST_TSO6] {
        assert_ne!(features & bit, 0);
    }
    assert_eq!(features & net_feature::MULTI_QUEUE, 0);
    let config = nic.device.config();
    assert_eq!(config[..12], [0x52, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0xdc, 5]);
}
