//! Mirrors: copies of what passes some ports at another one, which change nothing for anyone else.

use vmlane_guestsim::memory_port::{LRO, Received, Trap};
use vmlane_port::{DropReason, Frames, Offload, RxCapabilities};
use vmlane_stats::Counters;
use vmlane_switch::{MirrorDirection, MirrorSpec, MirrorView, Policy, PortSpec, VlanMode};
use vmlane_wire::ethernet::{Mac, Tci};

use MirrorDirection::{Both, In, Out};

use crate::common::tcp::Packet;
use crate::common::{Bench, Guest, frame, mac};

/// What one VM may cause in a round, in bytes.
const QUOTA: u64 = 256 << 10;

fn spec(to: u8, direction: MirrorDirection) -> MirrorSpec {
    let to = Bench::spec(to).name;
    MirrorSpec { name: "m".into(), to, direction, vlan: None, snap: usize::MAX }
}

fn mirror(bench: &mut Bench, spec: MirrorSpec, from: &[u8]) {
    bench.switch.add_mirror(spec, names(from)).unwrap();
    bench.run();
}

fn names(numbers: &[u8]) -> Vec<String> {
    numbers.iter().map(|number| Bench::spec(*number).name).collect()
}

/// A port whose guest is in promiscuous mode.
fn analyzer(bench: &mut Bench, spec: PortSpec) -> Guest {
    let guest = bench.port(spec);
    guest.wire.change_filter(|filter| filter.promiscuous = true);
    bench.refresh(&guest);
    guest
}

/// A pair, and an analyzer of another isolation group at port 3.
fn three() -> (Bench, Guest, Guest, Guest) {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    let c = analyzer(&mut bench, PortSpec { group: "elsewhere".into(), ..Bench::spec(3) });
    (bench, a, b, c)
}

fn view(bench: &Bench) -> MirrorView {
    bench.switch.mirror_views().into_iter().next().unwrap()
}

/// Copies that were dropped for a reason.
fn dropped(bench: &Bench, reason: DropReason) -> u64 {
    let name = format!("drop_{}", reason.name());
    let counters = view(bench).stats.snapshot();
    counters.into_iter().find(|(counter, _)| **counter == *name).unwrap().1
}

fn bytes(received: &[Received]) -> Vec<Vec<u8>> {
    received.iter().map(|one| one.bytes.clone()).collect()
}

#[test]
fn what_a_port_sends_and_gets_is_copied_by_direction_across_groups_and_only_meanwhile() {
    let (mut bench, a, b, c) = three();
    let exchange = |bench: &mut Bench, number: u8| {
        let frames = [frame(mac(2), mac(1), 100, number), frame(mac(1), mac(2), 60, number)];
        a.send(&frames[0]);
        bench.run();
        b.send(&frames[1]);
        bench.run();
        assert_eq!((b.frames(), a.frames()), (vec![frames[0].clone()], vec![frames[1].clone()]));
        frames
    };
    exchange(&mut bench, 0);
    for (direction, seen) in [(Both, 0..2), (In, 0..1), (Out, 1..2)] {
        mirror(&mut bench, spec(3, direction), &[1]);
        let frames = exchange(&mut bench, 1);
        assert_eq!(c.frames(), frames[seen.clone()], "{direction:?}");
        let stats = view(&bench).stats;
        let copied: u64 = frames[seen.clone()].iter().map(|frame| frame.len() as u64).sum();
        assert_eq!((stats.tx_frames.get(), stats.tx_bytes.get()), (seen.len() as u64, copied));
        assert!(bench.switch.remove_mirror("m") && !bench.switch.remove_mirror("m"));
        bench.run();
        assert!(bench.switch.mirror_views().is_empty());
    }
    exchange(&mut bench, 2);
    assert!(c.frames().is_empty());
    assert_eq!((a.wire.outstanding(), b.wire.outstanding()), (0, 0));
}

#[test]
fn broadcasts_and_frames_of_many_sources_are_copied_once_for_each_source_that_sees_them() {
    let (mut bench, a, b, c) = three();
    mirror(&mut bench, spec(3, In), &[1, 2]);
    a.send(&frame(Mac::BROADCAST, mac(1), 60, 1));
    b.send(&frame(mac(1), mac(2), 60, 2));
    bench.run();
    assert_eq!(c.frames().len(), 2);
    bench.switch.remove_mirror("m");
    mirror(&mut bench, spec(3, Both), &[1, 2]);
    a.send(&frame(Mac::BROADCAST, mac(1), 60, 1));
    bench.run();
    assert_eq!(c.frames().len(), 2, "sent by one, received by the other");
}

#[test]
fn a_destination_without_room_loses_copies_and_holds_no_one_up() {
    let (mut bench, a, b, c) = three();
    mirror(&mut bench, spec(3, Both), &[1]);
    c.wire.set_room(Some(10));
    (0..200).for_each(|number| a.send(&frame(mac(2), mac(1), 1500, number)));
    bench.run();
    assert_eq!((b.frames().len(), c.frames().len(), a.wire.outstanding()), (200, 10, 0));
    assert_eq!(dropped(&bench, DropReason::NoBuffers), 190);
    assert_eq!(view(&bench).stats.tx_frames.get(), 10);
    assert_eq!(c.stats.pending.get() + c.stats.drop_no_buffers.get(), 0, "copies do not wait");
    c.wire.set_room(None);
    a.send(&frame(mac(2), mac(1), 60, 0));
    bench.run();
    assert_eq!(c.frames().len(), 1);
}

#[test]
fn a_guest_that_does_not_ask_for_all_frames_gets_no_copies() {
    let (mut bench, a, b, c) = three();
    c.wire.change_filter(|filter| filter.promiscuous = false);
    bench.refresh(&c);
    mirror(&mut bench, spec(3, Both), &[1]);
    a.send(&frame(mac(2), mac(1), 60, 0));
    bench.run();
    assert_eq!((b.frames().len(), c.frames().len(), dropped(&bench, DropReason::Filtered)), (1, 0, 1));
}

#[test]
fn what_a_port_may_not_send_is_not_copied() {
    let mut bench = Bench::new();
    let strict = Policy { forged_transmits: false, ..Policy::default() };
    let a = bench.port(PortSpec { policy: strict, ..Bench::spec(1) });
    let b = bench.guest(2);
    let c = analyzer(&mut bench, Bench::spec(3));
    mirror(&mut bench, spec(3, In), &[1]);
    let good = frame(mac(2), mac(1), 60, 1);
    for bytes in [frame(mac(2), mac(9), 60, 0), good.clone(), frame(mac(2), mac(9), 60, 2), vec![0; 5]] {
        a.send(&bytes);
    }
    bench.run();
    assert_eq!((b.frames(), c.frames()), (vec![good.clone()], vec![good]));
}

#[test]
fn copies_keep_their_tags_or_get_the_mirrors_and_are_as_long_as_wanted() {
    let mut bench = Bench::new();
    let trunk = VlanMode::Trunk(vmlane_port::VlanSet::all());
    let a = bench.port(PortSpec { vlan: trunk.clone(), ..Bench::spec(1) });
    let _b = bench.port(PortSpec { vlan: trunk, ..Bench::spec(2) });
    let c = analyzer(&mut bench, Bench::spec(3));
    let plain = frame(mac(2), mac(1), 200, 1);
    let in_band = [&plain[..12], &[0x81, 0, 0x60, 8], &plain[12..]].concat();
    let send = |bench: &mut Bench| {
        a.send(&plain);
        a.send(&in_band);
        a.wire.send(&plain, Offload::None, Some(Tci(0x4007)));
        bench.run();
    };
    mirror(&mut bench, spec(3, In), &[1]);
    send(&mut bench);
    let received = c.wire.received();
    assert!(bytes(&received) == [plain.clone(), plain.clone(), plain.clone()]);
    let tags = |received: &[Received]| received.iter().map(|one| one.tag).collect::<Vec<_>>();
    assert_eq!(tags(&received), [None, Some(Tci(0x6008)), Some(Tci(0x4007))]);
    bench.switch.remove_mirror("m");
    mirror(&mut bench, MirrorSpec { vlan: Some(900), snap: 60, ..spec(3, In) }, &[1]);
    send(&mut bench);
    let received = c.wire.received();
    assert!(bytes(&received) == [plain[..60].to_vec(), plain[..56].to_vec(), plain[..60].to_vec()]);
    assert_eq!(tags(&received), [900, 0x6000 | 900, 0x4000 | 900].map(|tag| Some(Tci(tag))));
}

#[test]
fn super_frames_are_cut_for_a_card_and_whole_for_an_uplink_that_takes_them() {
    let (mut bench, a, b, c) = three();
    let uplink = bench.port(PortSpec { uplink: true, group: "elsewhere".into(), ..Bench::spec(4) });
    for wire in [&b.wire, &c.wire, &uplink.wire] {
        wire.set_capabilities(RxCapabilities { partial_sum: false, ..LRO });
    }
    bench.run();
    let packet = Packet::new(mac(2), mac(1), false, 10_000).timestamped();
    let offload = Offload::Segment { header: packet.header_len() as u16, mss: 1428 };
    for (number, to, direction) in [(1, &c, In), (2, &c, Out), (1, &uplink, In), (2, &uplink, Out)] {
        let target = if std::ptr::eq(to, &c) { 3 } else { 4 };
        mirror(&mut bench, spec(target, direction), &[number]);
        a.wire.send(&packet.partial(false), offload, None);
        bench.run();
        let expected = if target == 3 {
            packet.segments(1428).iter().map(Packet::bytes).collect()
        } else {
            vec![packet.bytes()]
        };
        assert!(bytes(&to.wire.received()) == expected, "{direction:?} to {target}");
        assert!(bytes(&b.wire.received()) == [packet.bytes()]);
        bench.switch.remove_mirror("m");
    }
}

#[test]
fn checksums_left_to_the_receiver_are_filled_in_for_a_copy() {
    let (mut bench, a, b, c) = three();
    b.wire.set_capabilities(RxCapabilities { partial_frame: true, ..LRO });
    bench.run();
    let packet = Packet::new(mac(2), mac(1), true, 500);
    let start = (packet.header_len() - packet.tcp.header_len()) as u16;
    for (number, direction) in [(1, In), (2, Out)] {
        mirror(&mut bench, spec(3, direction), &[number]);
        a.wire.send(&packet.partial(true), Offload::Checksum { start, field: start + 16 }, None);
        bench.run();
        assert!(c.frames() == [packet.bytes()], "{direction:?}");
        bench.switch.remove_mirror("m");
    }
}

#[test]
fn sources_and_destination_come_and_go_and_sources_change() {
    let (mut bench, a, b, c) = three();
    mirror(&mut bench, spec(9, In), &[1, 7]);
    let send = |bench: &mut Bench, from: &Guest, number: u8| {
        from.send(&frame(mac(2), mac(number), 60, number));
        bench.run();
    };
    send(&mut bench, &a, 1);
    assert_eq!(dropped(&bench, DropReason::NoReceiver), 1, "there is no port of that name yet");
    let d = analyzer(&mut bench, Bench::spec(9));
    send(&mut bench, &a, 1);
    assert_eq!(d.frames().len(), 1);
    // A source that comes later, and one that comes again.
    let e = bench.guest(7);
    send(&mut bench, &e, 7);
    assert_eq!(d.frames().len(), 1);
    bench.switch.remove_port(e.id);
    bench.run();
    let e = bench.guest(7);
    send(&mut bench, &e, 7);
    assert_eq!(d.frames().len(), 1);
    // Others.
    assert!(bench.switch.set_mirror_sources("m", names(&[7])));
    bench.run();
    send(&mut bench, &a, 1);
    send(&mut bench, &e, 7);
    assert_eq!((d.frames().len(), view(&bench).from), (1, names(&[7])));
    // The destination goes, and its name comes again.
    bench.switch.remove_port(d.id);
    bench.run();
    send(&mut bench, &e, 7);
    assert_eq!(dropped(&bench, DropReason::NoReceiver), 2);
    let d = analyzer(&mut bench, Bench::spec(9));
    send(&mut bench, &e, 7);
    assert_eq!((d.frames().len(), c.frames().len()), (1, 0));
    assert_eq!(b.frames().len(), 8);
}

#[test]
fn a_destination_that_fails_is_detached_and_the_mirror_goes_on() {
    let (mut bench, a, b, c) = three();
    mirror(&mut bench, spec(3, Both), &[1]);
    c.wire.set_trap(Trap::Deliver);
    (0..5).for_each(|number| a.send(&frame(mac(2), mac(1), 60, number)));
    bench.run();
    assert!(c.wire.failed() && c.wire.dropped());
    let (wire, end) = vmlane_guestsim::memory_port::Wire::new(mac(3));
    wire.change_filter(|filter| filter.promiscuous = true);
    bench.switch.attach(c.id, end);
    bench.switch.refresh(c.id);
    bench.run();
    (0..5).for_each(|number| a.send(&frame(mac(2), mac(1), 60, number)));
    bench.run();
    assert_eq!((b.frames().len(), wire.received().len(), a.wire.outstanding()), (10, 5, 0));
}

/// What four ports of one VM that send all they can, mirrored, leave to an honest pair, and what the mirror
/// does in a round.
#[test]
fn a_mirror_has_its_part_of_a_round_and_others_keep_theirs() {
    const ROUNDS: u64 = 200;
    let honest = |mirrored: bool| {
        let mut bench = Bench::new();
        let (a, b) = (bench.guest(1), bench.guest(2));
        b.wire.forget_frames();
        let (busy, sink) = (bench.guest(4), bench.guest(5));
        sink.wire.forget_frames();
        let c = analyzer(&mut bench, Bench::spec(3));
        c.wire.forget_frames();
        if mirrored {
            mirror(&mut bench, spec(3, Both), &[4, 5]);
        }
        for _ in 0..ROUNDS {
            while a.wire.queued() < 300 {
                a.send(&frame(mac(2), mac(1), 1500, 0));
            }
            while busy.wire.queued() < 300 {
                busy.send(&frame(mac(5), mac(4), 1500, 0));
            }
            bench.step();
        }
        (b.stats.rx_bytes.get(), c.stats.rx_bytes.get(), bench)
    };
    let (alone, none, _) = honest(false);
    let (beside, copied, bench) = honest(true);
    assert_eq!((alone, none), (beside, 0));
    let lost = dropped(&bench, DropReason::SlowReceiver);
    assert!(copied <= ROUNDS * 4 * QUOTA && copied >= alone, "{copied} copied, {lost} lost");
    assert_eq!(lost, 0, "each VM's part for each direction is enough for what it may send");
}

#[test]
fn copies_beyond_the_mirrors_part_of_a_round_are_dropped_and_counted() {
    let (mut bench, a, b, c) = three();
    let d = bench.guest(5);
    [&b, &c, &d].iter().for_each(|guest| guest.wire.forget_frames());
    // Two send to the one that is mirrored: more than one may send in a round.
    let sources = [bench.guest(10), bench.guest(11), bench.guest(12)];
    mirror(&mut bench, spec(3, Out), &[5]);
    let packet = |from: u8| {
        let packet = Packet::new(mac(5), mac(from), false, 60_000);
        (packet.partial(false), Offload::Segment { header: packet.header_len() as u16, mss: 1448 })
    };
    d.wire.set_capabilities(LRO);
    c.wire.set_capabilities(LRO);
    for _ in 0..400 {
        for (source, number) in sources.iter().zip(10..) {
            while source.wire.queued() < 8 {
                let (bytes, offload) = packet(number);
                source.wire.send(&bytes, offload, None);
            }
        }
        bench.step();
    }
    let copied = view(&bench).stats.tx_bytes.get();
    assert!(copied <= 401 * (QUOTA + 64 * 1024), "{copied}");
    assert!(dropped(&bench, DropReason::SlowReceiver) > 100);
    let delivered = d.stats.rx_frames.get();
    assert!(delivered >= 400 * 3 * 3, "{delivered}: the originals go on");
    assert_eq!(a.wire.outstanding(), 0);
}
