//! The network behind uplinks is announced where addresses are.

use std::time::Duration;

use vmlane_port::{Frames, VlanSet};
use vmlane_switch::{PortSpec, Settings, TeamMember, TeamPolicy, TeamSpec, VlanMode};
use vmlane_wire::ethernet::Mac;

use crate::common::{Bench, Guest, frame, mac};

/// A port is announced once in 40 ms at the most.
const PACE: Duration = Duration::from_millis(60);

fn uplink(number: u8) -> PortSpec {
    let vlan = VlanMode::Trunk(VlanSet::all());
    PortSpec { uplink: true, notify: true, mac: Mac::default(), vlan, ..Bench::spec(number) }
}

/// The addresses that left through an uplink in reverse ARP requests, and the VLANs they left in (0:
/// untagged). Nothing else did.
fn announced(uplink: &Guest) -> Vec<(Mac, u16)> {
    let of = |received: vmlane_guestsim::memory_port::Received| {
        let bytes = &received.bytes;
        assert_eq!(bytes[..6], Mac::BROADCAST.0);
        assert_eq!((bytes[12], bytes[13]), (0x80, 0x35), "{bytes:x?}");
        let source = Mac(bytes[6..12].try_into().unwrap());
        assert_eq!(source.0, bytes[22..28], "it tells of its own address");
        (source, received.tag.map_or(0, |tag| tag.vlan()))
    };
    uplink.wire.received().into_iter().map(of).collect()
}

fn run_until_announced(bench: &mut Bench) {
    bench.run();
    std::thread::sleep(PACE);
    bench.run();
    bench.run();
}

#[test]
fn a_vm_is_announced_when_it_comes_and_when_its_vmm_asks() {
    for workers in [1, 2] {
        let mut bench = Bench::with(Settings { workers, ..Settings::default() });
        let (first, second) = (bench.port(uplink(100)), bench.port(uplink(101)));
        let foreign = bench.port(PortSpec { group: "other".into(), ..uplink(102) });
        let silent = bench.port(PortSpec { notify: false, ..uplink(103) });
        // One on each worker.
        let (a, b) = (bench.guest(1), bench.guest(2));
        run_until_announced(&mut bench);
        for uplink in [&first, &second] {
            assert_eq!(announced(uplink), [(mac(1), 0), (mac(2), 0)], "{workers} workers");
        }
        bench.switch.announce(a.id);
        run_until_announced(&mut bench);
        assert_eq!(announced(&first), [(mac(1), 0)]);
        // The address that its guest has chosen.
        b.wire.change_filter(|filter| filter.mac = mac(9));
        bench.refresh(&b);
        bench.switch.announce(b.id);
        run_until_announced(&mut bench);
        assert_eq!(announced(&first), [(mac(9), 0)]);
        // Asked for a hundred times at once: one, and one later.
        for _ in 0..100 {
            bench.switch.announce(b.id);
            bench.step();
        }
        run_until_announced(&mut bench);
        assert!((1..=3).contains(&announced(&first).len()));
        for uplink in [&foreign, &silent] {
            assert_eq!(announced(uplink), [], "another group, and one that is not announced");
        }
        for guest in [&a, &b] {
            assert!(guest.frames().is_empty(), "no VM hears of it");
        }
        bench.switch.detach(a.id);
        // The other worker hears of it.
        bench.run();
        bench.switch.announce(a.id);
        run_until_announced(&mut bench);
        assert_eq!(announced(&first), [], "it is gone");
    }
}

#[test]
fn an_uplink_that_comes_is_notified_of_all_vms() {
    let mut bench = Bench::new();
    let _guests: Vec<Guest> = (1..=70).map(|number| bench.guest(number)).collect();
    let up = bench.port(uplink(100));
    run_until_announced(&mut bench);
    assert_eq!(announced(&up), (1..=70).map(|number| (mac(number), 0)).collect::<Vec<_>>());
    // The same when its interface has a link again.
    bench.switch.set_carrier(up.id, false);
    run_until_announced(&mut bench);
    assert_eq!(announced(&up), []);
    bench.switch.set_carrier(up.id, true);
    run_until_announced(&mut bench);
    assert_eq!(announced(&up).len(), 70);
    bench.switch.set_carrier(up.id, true);
    run_until_announced(&mut bench);
    assert_eq!(announced(&up), [], "it had one");
}

#[test]
fn an_address_is_announced_in_the_vlans_of_its_port_that_the_uplink_carries() {
    let mut bench = Bench::new();
    let all = bench.port(uplink(100));
    let mut set = VlanSet::none();
    [10, 20].into_iter().for_each(|vlan| set.insert(vlan));
    let some = bench.port(PortSpec { vlan: VlanMode::Trunk(set.clone()), ..uplink(101) });
    let access = bench.port(PortSpec { vlan: VlanMode::Access(20), ..uplink(102) });
    bench.port(PortSpec { vlan: VlanMode::Access(10), ..Bench::spec(1) });
    run_until_announced(&mut bench);
    assert_eq!(
        (announced(&all), announced(&some), announced(&access)),
        (vec![(mac(1), 10)], vec![(mac(1), 10)], vec![])
    );
    // A guest that tags, and listens to two VLANs of many.
    let tags = bench.port(PortSpec { vlan: VlanMode::Trunk(set), ..Bench::spec(2) });
    run_until_announced(&mut bench);
    assert_eq!(announced(&access), [(mac(2), 0)], "in the VLAN of the uplink, where no frame has a tag");
    assert_eq!(
        (announced(&all), announced(&some)),
        (vec![(mac(2), 10), (mac(2), 20)], vec![(mac(2), 10), (mac(2), 20)])
    );
    drop(tags);
}

#[test]
fn ports_that_may_not_send_are_not_announced() {
    let mut bench = Bench::new();
    let up = bench.port(uplink(100));
    let mut spec = Bench::spec(1);
    spec.policy.mac_changes = false;
    let a = bench.port(spec);
    run_until_announced(&mut bench);
    assert_eq!(announced(&up), [(mac(1), 0)]);
    bench.switch.set_link(a.id, false);
    bench.switch.announce(a.id);
    run_until_announced(&mut bench);
    assert_eq!(announced(&up), [], "its link is down");
    bench.switch.set_link(a.id, true);
    run_until_announced(&mut bench);
    assert_eq!(announced(&up), [(mac(1), 0)]);
    a.wire.change_filter(|filter| filter.mac = mac(66));
    bench.refresh(&a);
    bench.switch.announce(a.id);
    run_until_announced(&mut bench);
    assert_eq!(announced(&up), [], "an address that it may not have");
}

#[test]
fn of_a_team_the_member_that_serves_the_port_is_notified() {
    let mut bench = Bench::new();
    let uplinks = [bench.port(uplink(100)), bench.port(uplink(101))];
    let member = |(at, guest): (usize, &Guest)| TeamMember { name: format!("up{at}"), port: Some(guest.id) };
    let members: Vec<TeamMember> = uplinks.iter().enumerate().map(member).collect();
    let team = |notify| TeamSpec {
        name: "lan".into(),
        policy: TeamPolicy::Port,
        members: members.clone(),
        standby: 0,
        failback: true,
        notify,
    };
    bench.switch.set_teams(vec![team(true)]);
    run_until_announced(&mut bench);
    let guests: Vec<Guest> = (1..=4).map(|number| bench.guest(number)).collect();
    run_until_announced(&mut bench);
    let of_both: Vec<Vec<(Mac, u16)>> = uplinks.iter().map(announced).collect();
    assert_eq!((of_both[0].len(), of_both[1].len()), (2, 2), "{of_both:?}");
    for (guest, number) in guests.iter().zip(1..) {
        guest.send(&frame(Mac::BROADCAST, mac(number), 60, 0));
        bench.run();
        let way = uplinks.iter().position(|uplink| !uplink.frames().is_empty()).unwrap();
        assert!(of_both[way].contains(&(mac(number), 0)), "where its frames leave");
        uplinks.iter().chain(&guests).for_each(|guest| drop(guest.frames()));
    }
    bench.switch.set_teams(vec![team(false)]);
    bench.switch.announce(guests[0].id);
    run_until_announced(&mut bench);
    assert!(uplinks.iter().all(|uplink| announced(uplink).is_empty()));
}

#[test]
fn a_direct_port_is_announced_through_its_own_uplink_only() {
    let mut bench = Bench::new();
    let other = bench.port(uplink(102));
    let direct = |spec: PortSpec| PortSpec {
        direct: true,
        group: "direct".into(),
        vlan: VlanMode::Trunk(VlanSet::all()),
        ..spec
    };
    let up = bench.port(direct(uplink(100)));
    let _nic = bench.port(direct(Bench::spec(1)));
    run_until_announced(&mut bench);
    assert_eq!(announced(&up).first(), Some(&(mac(1), 0)));
    assert_eq!(announced(&other), []);
}
