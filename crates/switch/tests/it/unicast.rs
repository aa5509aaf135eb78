//! Known unicast, broadcast, filters, held frames.

use std::time::{Duration, Instant};

use vmlane_guestsim::memory_port::{Trap, Wire};
use vmlane_port::{DropReason, Frames};
use vmlane_switch::Settings;
use vmlane_testkit::wait_until;
use vmlane_wire::ethernet::Mac;

use crate::common::{Bench, frame, holding, mac};

#[test]
fn a_frame_reaches_only_its_receiver() {
    let mut bench = Bench::new();
    let (a, b, c) = (bench.guest(1), bench.guest(2), bench.guest(3));
    for len in [14, 60, 191, 192, 193, 1514] {
        let sent = frame(mac(2), mac(1), len, 7);
        a.send(&sent);
        bench.run();
        assert_eq!(b.frames(), [sent], "{len} bytes");
    }
    assert!(a.frames().is_empty() && c.frames().is_empty());
    assert_eq!((a.wire.outstanding(), a.stats.tx_frames.get(), b.stats.rx_frames.get()), (0, 6, 6));
    assert_eq!(a.stats.tx_bytes.get(), b.stats.rx_bytes.get());
}

#[test]
fn a_broadcast_reaches_all_others_and_never_its_sender() {
    let mut bench = Bench::new();
    let guests: Vec<_> = (1..=4).map(|number| bench.guest(number)).collect();
    guests[3].wire.change_filter(|filter| filter.broadcast = false);
    bench.refresh(&guests[3]);
    let sent = frame(Mac::BROADCAST, mac(1), 60, 0);
    guests[0].send(&sent);
    bench.run();
    let got: Vec<_> = guests.iter().map(|guest| guest.frames().len()).collect();
    assert_eq!(got, [0, 1, 1, 0]);
    assert_eq!(guests[0].wire.outstanding(), 0);
}

/// Bytes of a frame that stays lent until it is delivered, also to another worker's port.
const IN_FLIGHT: usize = 200;

#[test]
fn frames_to_a_full_receiver_wait_in_order_and_others_pass() {
    let mut bench = Bench::new();
    let (a, b, c) = (bench.guest(1), bench.guest(2), bench.guest(3));
    b.wire.set_room(Some(2));
    let to_b: Vec<_> = (0..5).map(|number| frame(mac(2), mac(1), IN_FLIGHT, number)).collect();
    to_b.iter().for_each(|sent| a.send(sent));
    a.send(&frame(mac(3), mac(1), 100, 9));
    bench.run();
    assert_eq!(c.frames().len(), 1, "another receiver's frame waited");
    assert_eq!((b.frames(), a.wire.outstanding()), (to_b[..2].to_vec(), 3));
    b.wire.set_room(Some(1));
    bench.run();
    assert_eq!(b.frames(), to_b[2..3]);
    b.wire.set_room(None);
    bench.run();
    assert_eq!((b.frames(), a.wire.outstanding(), b.stats.pending.get()), (to_b[3..].to_vec(), 0, 3));
}

#[test]
fn a_receiver_that_stays_full_loses_frames_until_it_has_room() {
    let hold = Duration::from_secs(1);
    let mut bench = Bench::with(Settings { hold, ..Settings::default() });
    let (a, b) = (bench.guest(1), bench.guest(2));
    b.wire.set_room(Some(0));
    let sent = frame(mac(2), mac(1), IN_FLIGHT, 0);
    let begun = Instant::now();
    a.send(&sent);
    bench.run();
    let seen = (a.wire.outstanding(), b.stats.drop_no_buffers.get());
    assert!(seen == (1, 0) || begun.elapsed() >= hold, "{seen:?}");
    wait_until("it is given up", || {
        bench.run();
        a.wire.outstanding() == 0
    });
    assert!(begun.elapsed() >= hold, "given up early");
    assert_eq!((a.wire.outstanding(), b.stats.drop_no_buffers.get()), (0, 1));
    assert!(bench.switch.ports()[1].stalled);
    a.send(&sent);
    bench.run();
    assert_eq!((a.wire.outstanding(), b.stats.drop_no_buffers.get()), (0, 2), "dropped at once");
    b.wire.set_room(None);
    a.send(&sent);
    bench.run();
    assert_eq!(b.frames(), [sent]);
    assert!(!bench.switch.ports()[1].stalled);
}

#[test]
fn a_sender_whose_frames_all_wait_is_left_alone_and_loses_none() {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    b.wire.set_room(Some(0));
    (0..300).for_each(|at| a.send(&frame(mac(2), mac(1), IN_FLIGHT + at, 0)));
    bench.run();
    assert_eq!((a.wire.outstanding(), a.wire.queued()), (256, 44));
    b.wire.set_room(None);
    bench.run();
    let lengths: Vec<_> = b.frames().iter().map(Vec::len).collect();
    assert_eq!(lengths, (IN_FLIGHT..IN_FLIGHT + 300).collect::<Vec<_>>());
}

#[test]
fn detaching_either_side_drops_what_waits() {
    for leaver in 0..2 {
        let mut bench = Bench::exactly(holding());
        let guests = [bench.guest(1), bench.guest(2)];
        guests[1].wire.set_room(Some(0));
        (0..10).for_each(|_| guests[0].send(&frame(mac(2), mac(1), IN_FLIGHT, 0)));
        bench.run();
        assert_eq!(guests[0].wire.outstanding(), 10);
        bench.switch.detach(guests[leaver].id);
        bench.step();
        assert!(guests[leaver].wire.dropped());
        assert_eq!(guests[0].wire.outstanding(), 0, "leaver {leaver}");
        assert_eq!(guests[1].stats.drop_gone.get(), 10);
        guests[1].wire.set_room(None);
        bench.run();
        assert!(guests[1].frames().is_empty());
    }
}

#[test]
fn a_panic_ends_the_port_that_it_happened_in_and_no_other() {
    for trap in [Trap::Fetch, Trap::Deliver, Trap::Finish, Trap::Flush] {
        let mut bench = Bench::new();
        let (a, b, c) = (bench.guest(1), bench.guest(2), bench.guest(3));
        let victim = if trap == Trap::Deliver { &b } else { &a };
        victim.wire.set_trap(trap);
        a.send(&frame(mac(2), mac(1), 60, 0));
        bench.run();
        assert!(victim.wire.dropped(), "{trap:?}");
        assert!(victim.wire.failed(), "its driver was notified");
        assert_eq!(victim.stats.panics.get(), 1);
        let sent = frame(mac(3), mac(if trap == Trap::Deliver { 1 } else { 2 }), 60, 1);
        if trap == Trap::Deliver { &a } else { &b }.send(&sent);
        bench.run();
        assert_eq!(c.frames(), [sent], "{trap:?}");
        if trap == Trap::Deliver {
            assert_eq!(a.wire.outstanding(), 0);
        }
    }
}

#[test]
fn a_refusal_is_counted_at_the_receiver() {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    b.wire.refuse(Some(DropReason::NoRoom));
    a.send(&frame(mac(2), mac(1), 60, 0));
    a.send(&frame(mac(9), mac(1), 60, 0));
    a.send(&frame(mac(1), mac(1), 60, 0));
    bench.run();
    assert_eq!((b.stats.drop_no_room.get(), a.stats.drop_no_receiver.get()), (1, 2));
    assert_eq!(a.wire.outstanding(), 0);
    b.wire.refuse(None);
    a.send(&frame(mac(2), mac(1), 1515, 0));
    bench.run();
    assert_eq!(b.stats.drop_too_long.get(), 1);
}

#[test]
fn a_port_that_is_shut_has_no_traffic_whatever_is_attached() {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    bench.switch.shut_port(b.id, true);
    bench.step();
    assert!(b.wire.dropped() && b.wire.failed(), "its driver was notified");
    let (wire, end) = Wire::new(mac(2));
    bench.switch.attach(b.id, end);
    bench.step();
    assert!(wire.dropped(), "dropped at once");
    a.send(&frame(mac(2), mac(1), 60, 0));
    bench.run();
    assert!(wire.received().is_empty() && a.wire.outstanding() == 0);
    bench.switch.shut_port(b.id, false);
    let (wire, end) = Wire::new(mac(2));
    bench.switch.attach(b.id, end);
    bench.switch.refresh(b.id);
    bench.step();
    a.send(&frame(mac(2), mac(1), 60, 0));
    bench.run();
    assert_eq!(wire.received().len(), 1);
}

/// CVE-2021-3416 and its class: NICs that looped a frame back into themselves ran out of stack. A frame to
/// its own sender ends there, from any sender.
#[test]
fn cve_2021_3416_a_frame_to_its_own_sender_does_not_come_round() {
    let mut bench = Bench::new();
    let a = bench.port(vmlane_switch::PortSpec {
        policy: vmlane_switch::Policy { promiscuous: true, mac_changes: true, forged_transmits: true },
        ..Bench::spec(1)
    });
    a.wire.change_filter(|filter| filter.promiscuous = true);
    bench.refresh(&a);
    for to in [mac(1), Mac([0xff; 6]), Mac([1, 0, 0x5e, 0, 0, 1]), mac(77)] {
        for from in [mac(1), mac(77), Mac([0xff; 6])] {
            (0..100).for_each(|_| a.send(&frame(to, from, 60, 0)));
        }
    }
    bench.run();
    assert_eq!((a.wire.outstanding(), a.frames().len()), (0, 0));
}

/// Two guests use one address. What one of them sends there is for the other, and for no one else if that one
/// leaves meanwhile, also where the frame is with the other's worker by then.
#[test]
fn a_frame_to_its_own_source_is_for_no_one_when_the_other_guest_with_that_address_has_left() {
    // It has chosen the address, or only claims to have it.
    for chosen in [true, false] {
        let mut bench = Bench::exactly(Settings { workers: 2, ..Settings::default() });
        let [a, b, _, d] = [1, 2, 3, 4].map(|number| bench.guest(number));
        a.wire.change_filter(|filter| filter.mac = mac(if chosen { 2 } else { 1 }));
        d.wire.change_filter(|filter| filter.promiscuous = true);
        [&a, &d].into_iter().for_each(|guest| bench.refresh(guest));
        bench.run();
        let workers: Vec<usize> = bench.switch.ports().iter().map(|port| port.worker).collect();
        assert_eq!([workers[0] != workers[1], workers[1] == workers[3]], [true; 2], "{workers:?}");
        let sent = frame(mac(2), mac(2), 60, 0);
        a.send(&sent);
        bench.run();
        assert!(b.frames() == [&sent[..]]);
        a.send(&sent);
        bench.workers[workers[0]].step();
        bench.switch.detach(b.id);
        bench.run();
        assert!([&a, &b, &d].into_iter().all(|guest| guest.frames().is_empty()), "{chosen}");
    }
}

/// What a port's worker knows of where its last frame went is of no use to the next worker, however often the
/// tables of both have changed.
#[test]
fn a_port_that_has_gone_to_another_worker_sends_where_that_one_finds_the_address() {
    for changes in 0..40 {
        let mut bench = Bench::exactly(Settings { workers: 2, ..Settings::default() });
        let [a, b, c, d] = [1, 2, 3, 4].map(|number| bench.guest(number));
        let there = bench.switch.ports()[3].worker;
        assert_ne!(bench.switch.ports()[0].worker, there);
        d.wire.change_filter(|filter| filter.promiscuous = true);
        [&d].into_iter().chain([&c; 20]).for_each(|guest| bench.refresh(guest));
        let sent = frame(mac(2), mac(1), 60, 0);
        a.send(&sent);
        bench.run();
        assert!(b.frames() == [&sent[..]]);
        bench.switch.detach(b.id);
        bench.run();
        let mut moving = bench.switch.begin_move(a.id, there).unwrap();
        while moving.advance(&bench.switch).is_none() {
            bench.step();
        }
        bench.run();
        (0..changes).for_each(|_| bench.refresh(&d));
        a.send(&sent);
        bench.run();
        assert!(d.frames() == [&sent[..]], "{changes} changes");
    }
}

/// A port changes, and what was learned behind it is forgotten, by each worker in its turn: also after the
/// port's own worker has learned something there by the new rules.
#[test]
fn an_address_that_another_worker_has_forgotten_is_learned_again() {
    let mut bench = Bench::exactly(Settings { workers: 2, ..Settings::default() });
    let [a, _, _c] = [1, 2, 3].map(|number| bench.guest(number));
    let own = bench.switch.ports()[0].worker;
    // Not to a port of the other one.
    assert_eq!(bench.switch.ports()[2].worker, own);
    let sent = frame(mac(3), mac(9), 60, 0);
    bench.switch.update_port(a.id, Bench::spec(1));
    a.send(&sent);
    bench.workers[own].step();
    bench.run();
    a.send(&sent);
    bench.run();
    assert_eq!(bench.learned(), [(a.id, mac(9))]);
}
