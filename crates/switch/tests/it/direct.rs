//! Two ports that are joined as by a cable (a NIC and an uplink, or two NICs), beside ports that must not
//! notice.

use std::sync::{Arc, Mutex};

use vmlane_guestsim::memory_port::{LRO, Wire};
use vmlane_port::{Filter, Frames as _, Offload, VlanSet};
use vmlane_switch::{PortSpec, Settings, Traffic, VlanMode};
use vmlane_wire::ethernet::{Mac, Tci};

use crate::common::tcp::Packet;
use crate::common::{Bench, Guest, frame, mac};

const ALL: Mac = Mac::BROADCAST;
const GROUP: Mac = Mac([1, 0, 0x5e, 0, 0, 1]);

fn of(number: u8, group: &str) -> PortSpec {
    let vlan = VlanMode::Trunk(VlanSet::all());
    PortSpec { direct: true, group: group.into(), vlan, ..Bench::spec(number) }
}

/// A NIC and its uplink.
fn joined(bench: &mut Bench, number: u8) -> (Guest, Guest) {
    let group = format!("direct {number}");
    let nic = bench.port(of(number, &group));
    let uplink = PortSpec { uplink: true, mac: Mac::default(), ..of(number + 100, &group) };
    (nic, bench.port(uplink))
}

#[test]
fn all_that_the_guest_sends_leaves_and_nothing_is_learned() {
    for workers in [1, 2] {
        let mut bench = Bench::with(Settings { workers, floods: 1, ..Settings::default() });
        let ((a, a_up), (b, b_up)) = (joined(&mut bench, 1), joined(&mut bench, 2));
        let others = [bench.guest(3), bench.port(PortSpec { uplink: true, ..Bench::spec(4) })];
        // To other NICs of this host, to everyone, from addresses that are not its own; twice, as routes are
        // kept.
        let destinations = [mac(2), mac(3), ALL, GROUP, mac(77), mac(1)];
        for (to, from) in destinations.into_iter().flat_map(|to| [(to, mac(1)), (to, mac(1)), (to, mac(9))]) {
            a.send(&frame(to, from, 60, 0));
            bench.run();
        }
        assert_eq!(a_up.frames().len(), 18, "{workers} workers: {:?}", a.stats);
        for silent in [&a, &b, &b_up, &others[0], &others[1]] {
            assert_eq!(silent.frames().len(), 0);
        }
        assert!(bench.learned().is_empty());
        others[0].send(&frame(ALL, mac(9), 60, 0));
        bench.run();
        assert_eq!(bench.learned(), [(others[0].id, mac(9))], "on a switch it is");
    }
}

#[test]
fn a_nic_and_its_uplink_have_one_worker_and_pairs_are_spread() {
    let mut bench = Bench::exactly(Settings { workers: 2, ..Settings::default() });
    let pairs: Vec<_> = (1..=4).map(|number| joined(&mut bench, number)).collect();
    let ports = bench.switch.ports();
    let worker = |guest: &Guest| ports.iter().find(|port| port.id == guest.id).unwrap().worker;
    let workers: Vec<_> = pairs.iter().map(|(nic, up)| (worker(nic), worker(up))).collect();
    assert!(workers.iter().all(|(nic, up)| nic == up), "{workers:?}");
    let of_first = workers.iter().filter(|(nic, _)| *nic == 0).count();
    assert_eq!(of_first * bench.workers.len(), workers.len(), "{workers:?}");
}

#[test]
fn of_what_comes_in_the_guest_gets_what_it_listens_to_and_nothing_is_learned() {
    let mut bench = Bench::with(Settings::default());
    let ((a, a_up), (b, b_up)) = (joined(&mut bench, 1), joined(&mut bench, 2));
    let other = bench.guest(3);
    for (to, from) in
        [(mac(1), mac(50)), (ALL, mac(51)), (mac(2), mac(52)), (mac(3), mac(53)), (mac(60), mac(54))]
    {
        a_up.send(&frame(to, from, 60, 0));
        bench.run();
    }
    // Its own address may be used elsewhere: that is for the other switch to judge.
    a_up.send(&frame(ALL, mac(1), 60, 0));
    bench.run();
    assert_eq!(a.frames().len(), 3, "its own and broadcast");
    a.wire.change_filter(|filter| filter.promiscuous = true);
    bench.refresh(&a);
    a_up.send(&frame(mac(60), mac(50), 60, 0));
    bench.run();
    assert_eq!(a.frames().len(), 1, "a guest that bridges gets everything");
    for silent in [&b, &b_up, &other, &a_up] {
        assert_eq!(silent.frames().len(), 0);
    }
    assert!(bench.learned().is_empty());
}

#[test]
fn without_the_uplink_frames_end_and_with_it_again_they_go_on() {
    let mut bench = Bench::with(Settings::default());
    let (a, up) = joined(&mut bench, 1);
    a.send(&frame(mac(2), mac(1), 60, 0));
    bench.run();
    assert_eq!(up.frames().len(), 1);
    bench.switch.remove_port(up.id);
    bench.step();
    a.send(&frame(mac(2), mac(1), 60, 0));
    a.send(&frame(ALL, mac(1), 60, 0));
    bench.run();
    assert_eq!(a.stats.drop_no_receiver.get(), 2, "{:?}", a.stats);
    let uplink = PortSpec { uplink: true, mac: Mac::default(), ..of(101, "direct 1") };
    let up = bench.port(uplink);
    a.send(&frame(mac(2), mac(1), 60, 0));
    bench.run();
    assert_eq!(up.frames().len(), 1);
}

/// Two NICs, each of whose guests wants every frame.
fn cable(bench: &mut Bench) -> [Guest; 2] {
    ends(bench, |number| of(number, "cable"))
}

fn ends(bench: &mut Bench, spec: fn(u8) -> PortSpec) -> [Guest; 2] {
    [1, 2].map(|number| {
        let guest = bench.port(spec(number));
        guest.wire.change_filter(|filter| filter.promiscuous = true);
        bench.refresh(&guest);
        guest
    })
}

/// Two NICs that are on a switch, each with another worker, and are then joined.
fn cable_between_workers(bench: &mut Bench) -> [Guest; 2] {
    let ends = ends(bench, Bench::spec);
    let workers: Vec<usize> = bench.switch.ports().iter().map(|port| port.worker).collect();
    assert_ne!(workers[0], workers[1]);
    for (end, number) in ends.iter().zip(1..) {
        assert!(bench.switch.update_port(end.id, of(number, "cable")));
        bench.step();
    }
    ends
}

type Join = fn(&mut Bench) -> [Guest; 2];

/// Frames of every kind that a cable has to pass.
fn every_kind(own: Mac, other: Mac) -> Vec<(Vec<u8>, Option<Tci>)> {
    let reserved = [0, 1, 2, 3, 0xe].map(|last| Mac([1, 0x80, 0xc2, 0, 0, last]));
    let to = [other, own, mac(77), ALL, GROUP].into_iter().chain(reserved);
    let from = [own, other, mac(99), GROUP, ALL, Mac::default()];
    let addresses = to.flat_map(|to| from.map(|from| (to, from)));
    // Slow protocols (LACP), LLDP, STP (a length), 802.1X, PAUSE, one that no one has.
    let types: [u16; 6] = [0x8809, 0x88cc, 0x0026, 0x888e, 0x8808, 0xffff];
    let mut frames: Vec<_> = addresses
        .zip(types.into_iter().cycle())
        .map(|((to, from), kind)| {
            let mut bytes = frame(to, from, 60, kind as u8);
            bytes[12..14].copy_from_slice(&kind.to_be_bytes());
            (bytes, None)
        })
        .collect();
    // The bytes behind the addresses: one tag, two of them, a service tag before one.
    for tags in [&[0x81, 0, 0, 9][..], &[0x81, 0, 0, 9, 0x81, 0, 0, 7], &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 7]] {
        let plain = frame(other, own, 60, 1);
        frames.push(([&plain[..12], tags, &plain[12..]].concat(), None));
    }
    for tci in [0, 0xe000, 1, 0xb00a, 4095] {
        frames.push((frame(GROUP, own, 60, 2), Some(Tci(tci))));
    }
    frames.extend([14, 15, 1514].map(|len| (frame(other, own, len, 3), None)));
    frames
}

/// With all tags in band, as on a wire.
fn on_wire((bytes, tag): (Vec<u8>, Option<Tci>)) -> Vec<u8> {
    let Some(Tci(tci)) = tag else { return bytes };
    [&bytes[..12], &[0x81, 0], &tci.to_be_bytes(), &bytes[12..]].concat()
}

fn taken(guest: &Guest) -> Vec<Vec<u8>> {
    guest.wire.received().into_iter().map(|received| on_wire((received.bytes, received.tag))).collect()
}

#[test]
fn every_kind_of_frame_passes_between_two_nics_in_order_and_no_one_else_sees_it() {
    let joins: [(usize, Join); 3] = [(1, cable), (2, cable), (2, cable_between_workers)];
    for (at, (workers, join)) in joins.into_iter().enumerate() {
        let mut bench = Bench::exactly(Settings { workers, floods: 1, ..Settings::default() });
        let ends = join(&mut bench);
        let others = [
            bench.port(PortSpec { traffic: Traffic { snoop: true, ..Traffic::default() }, ..Bench::spec(3) }),
            bench.port(PortSpec { uplink: true, ..Bench::spec(4) }),
            bench.port(of(5, "another cable")),
            bench.port(of(6, "another cable")),
        ];
        for (from, to) in [(0, 1), (1, 0)] {
            let frames = every_kind(mac(from as u8 + 1), mac(to as u8 + 1));
            for _ in 0..2 {
                for (bytes, tag) in &frames {
                    ends[from].wire.send(bytes, Offload::None, *tag);
                }
                bench.run();
                let sent: Vec<Vec<u8>> = frames.iter().cloned().map(on_wire).collect();
                assert_eq!(taken(&ends[to]), sent, "bench {at}: {:?}", ends[from].stats);
            }
        }
        for silent in ends.iter().chain(&others) {
            assert_eq!(silent.frames().len(), 0);
        }
        assert!(bench.learned().is_empty());
    }
}

#[test]
fn tags_are_beside_the_mtu() {
    let mut bench = Bench::new();
    let [a, b] = cable(&mut bench);
    let (c, s) = ([0x81, 0, 0, 9], [0x88, 0xa8, 0, 9]);
    // One of 802.1Q in front is taken out, and then two are in the frame.
    for (tags, pass) in [
        (&[][..], true),
        (&[c], true),
        (&[s], true),
        (&[s, c], true),
        (&[c, c], true),
        (&[c, s, c], true),
        (&[s, s, c], false),
    ] {
        for (len, pass) in [(1514, pass), (1515, false)] {
            let plain = frame(mac(2), mac(1), len, 1);
            let sent = [&plain[..12], &tags.concat(), &plain[12..]].concat();
            a.wire.send(&sent, Offload::None, None);
            bench.run();
            let expected = if pass { vec![sent] } else { vec![] };
            assert!(taken(&b) == expected, "{len} bytes and {tags:x?}");
        }
    }
    // The frames that the device cuts for a guest behind a service tag.
    let packet = Packet::new(mac(2), mac(1), false, 4000).partial(false);
    let sent = [&packet[..12], &s, &packet[12..]].concat();
    let header = (sent.len() - 4000) as u16;
    a.wire.send(&sent, Offload::Segment { header, mss: 1460 }, None);
    bench.run();
    assert_eq!(b.frames().iter().map(Vec::len).collect::<Vec<_>>(), [1518, 1518, 1138]);
}

#[test]
fn a_guests_filter_is_that_of_a_card() {
    for workers in [1, 2] {
        let mut bench = Bench::with(Settings { workers, ..Settings::default() });
        let [a, b] = cable(&mut bench);
        let lacp = Mac([1, 0x80, 0xc2, 0, 0, 2]);
        let mut arrive = |change: fn(&mut Filter)| {
            b.wire.change_filter(|filter| {
                *filter = Filter { mac: mac(2), unicast: true, ..Filter::default() };
                change(filter);
            });
            bench.refresh(&b);
            for to in [mac(2), mac(77), ALL, GROUP, lacp] {
                a.send(&frame(to, mac(1), 60, 0));
            }
            a.wire.send(&frame(mac(2), mac(1), 60, 0), Offload::None, Some(Tci(9)));
            bench.run();
            let destination = |bytes: &Vec<u8>| Mac(*bytes.first_chunk().unwrap());
            b.frames().iter().map(destination).collect::<Vec<_>>()
        };
        assert_eq!(arrive(|_| ()), [mac(2), mac(2)]);
        assert_eq!(arrive(|filter| filter.broadcast = true), [mac(2), ALL, mac(2)]);
        let lacp_only: fn(&mut Filter) = |filter| filter.multicast = vec![Mac([1, 0x80, 0xc2, 0, 0, 2])];
        assert_eq!(arrive(lacp_only), [mac(2), lacp, mac(2)]);
        assert_eq!(arrive(|filter| filter.all_multicast = true), [mac(2), GROUP, lacp, mac(2)]);
        assert_eq!(arrive(|filter| filter.vlans = Some(VlanSet::none())), [mac(2)]);
        assert_eq!(arrive(|filter| filter.promiscuous = true).len(), 6);
    }
}

#[test]
fn super_frames_stay_whole_where_both_take_them_also_for_a_guest_that_bridges() {
    let mut bench = Bench::new();
    let [a, b] = cable(&mut bench);
    let packet = Packet::new(mac(77), mac(9), false, 4000);
    let offload = Offload::Segment { header: packet.header_len() as u16, mss: 1460 };
    a.wire.send(&packet.partial(false), offload, None);
    bench.run();
    assert_eq!(b.frames().len(), 3);
    b.wire.set_capabilities(LRO);
    bench.step();
    a.wire.send(&packet.partial(false), offload, None);
    bench.run();
    assert_eq!(b.frames().len(), 1);
}

#[test]
fn what_is_at_the_other_end_changes_while_frames_flow() {
    for workers in [1, 2] {
        let mut bench = Bench::with(Settings { workers, ..Settings::default() });
        let [a, b] = cable(&mut bench);
        let c = bench.port(of(3, "elsewhere"));
        let other = bench.guest(4);
        c.wire.change_filter(|filter| filter.promiscuous = true);
        bench.refresh(&c);
        let mut flow = |expected: [usize; 2], what: &str| {
            for number in 0..100 {
                a.send(&frame(mac(2), mac(1), 60, number));
                bench.step();
            }
            bench.run();
            assert_eq!([&b, &c].map(|guest| guest.frames().len()), expected, "{what}, {workers} workers");
            assert_eq!(other.frames().len(), 0);
            bench.switch.clone()
        };
        let switch = flow([100, 0], "joined");
        switch.update_port(c.id, of(3, "cable"));
        flow([0, 0], "three are no cable");
        switch.update_port(b.id, Bench::spec(2));
        flow([0, 100], "another end");
        switch.update_port(c.id, of(3, "elsewhere"));
        switch.update_port(b.id, of(2, "cable"));
        flow([100, 0], "back");
        switch.detach(b.id);
        flow([0, 0], "nothing is attached");
        switch.set_link(a.id, false);
        flow([0, 0], "and no link");
    }
}

#[test]
fn the_carrier_of_an_end_is_the_state_of_the_other() {
    for workers in [1, 2] {
        let mut bench = Bench::with(Settings { workers, ..Settings::default() });
        let [a, b] = if workers == 1 { cable(&mut bench) } else { cable_between_workers(&mut bench) };
        let on_switch = bench.guest(3);
        let notified = Arc::new(Mutex::new(Vec::new()));
        let of_a = notified.clone();
        bench.switch.follow_carrier(a.id, move |up| of_a.lock().unwrap().push(up));
        let carriers = |bench: &mut Bench| {
            bench.step();
            bench.step();
            let ports = bench.switch.ports();
            let carrier = |guest: &Guest| ports.iter().find(|port| port.id == guest.id).unwrap().carrier;
            assert!(carrier(&on_switch));
            [carrier(&a), carrier(&b)]
        };
        assert_eq!(carriers(&mut bench), [true, true]);
        bench.switch.set_link(b.id, false);
        assert_eq!(carriers(&mut bench), [false, true]);
        bench.switch.set_link(a.id, false);
        assert_eq!(carriers(&mut bench), [false, false]);
        bench.switch.set_link(b.id, true);
        bench.switch.set_link(a.id, true);
        assert_eq!(carriers(&mut bench), [true, true]);
        bench.switch.detach(b.id);
        assert_eq!(carriers(&mut bench), [false, true]);
        bench.switch.attach(b.id, Wire::new(mac(2)).1);
        assert_eq!(carriers(&mut bench), [true, true]);
        bench.switch.update_port(b.id, Bench::spec(2));
        assert_eq!(carriers(&mut bench), [false, true]);
        bench.switch.update_port(a.id, Bench::spec(1));
        assert_eq!(carriers(&mut bench), [true, true], "on a switch a card has one");
        assert_eq!(*notified.lock().unwrap(), [true, false, true, false, true, false, true]);
    }
}

#[test]
fn a_nic_has_the_carrier_of_the_interface_behind_its_uplink() {
    let mut bench = Bench::new();
    let (a, up) = joined(&mut bench, 1);
    let mut carrier = |up_now: bool| {
        bench.switch.set_carrier(up.id, up_now);
        bench.step();
        bench.switch.ports().iter().find(|port| port.id == a.id).unwrap().carrier
    };
    assert_eq!([carrier(true), carrier(false), carrier(true)], [true, false, true]);
}
