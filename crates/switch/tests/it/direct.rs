//! A port and an uplink that are joined as by a cable, beside ports that must not notice.

use vmlane_port::VlanSet;
use vmlane_switch::{PortSpec, Settings, VlanMode};
use vmlane_wire::ethernet::Mac;

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
        assert!(bench.switch.learned().is_empty());
    }
}

#[test]
fn a_nic_and_its_uplink_have_one_worker_and_pairs_are_spread() {
    let mut bench = Bench::with(Settings { workers: 2, ..Settings::default() });
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
    assert!(bench.switch.learned().is_empty());
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
