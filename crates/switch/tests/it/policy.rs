//! VLANs, security policies, isolation groups, uplinks.

use vmlane_port::{Frames, Offload, VlanSet};
use vmlane_switch::{Policy, PortSpec, Settings, Traffic, VlanMode};
use vmlane_testkit::wait_until;
use vmlane_wire::ethernet::{Mac, Tci};

use crate::common::{Bench, Guest, frame, mac};

fn trunk(vlans: &[u16]) -> VlanMode {
    let mut set = VlanSet::none();
    vlans.iter().for_each(|&vlan| set.insert(vlan));
    VlanMode::Trunk(set)
}

#[test]
fn every_mode_of_tagging_towards_every_other() {
    use VlanMode::{Access, Untagged};
    let tag = |tci| Some(Tci(tci));
    // Sender's mode, tag sent; receiver's mode; Some(tag received).
    let table = [
        (Untagged, None, Untagged, Some(None)),
        (Untagged, None, trunk(&[0]), Some(None)),
        (Untagged, None, Access(10), None),
        (Untagged, None, trunk(&[10]), None),
        (Untagged, tag(0xa000), Untagged, Some(tag(0xa000))),
        (Untagged, tag(10), Untagged, None),
        (Access(10), None, Access(10), Some(None)),
        (Access(10), None, Access(11), None),
        (Access(10), None, Untagged, None),
        (Access(10), None, trunk(&[10]), Some(tag(10))),
        (Access(10), tag(0xa000), trunk(&[10]), Some(tag(0xa00a))),
        (Access(10), tag(0xa000), Access(10), Some(None)),
        (Access(10), tag(10), Access(10), None),
        (Access(10), tag(11), trunk(&[11]), None),
        (trunk(&[10, 11]), tag(10), Access(10), Some(None)),
        (trunk(&[10, 11]), tag(0x600b), trunk(&[11]), Some(tag(0x600b))),
        (trunk(&[10, 11]), tag(12), trunk(&[12]), None),
        (trunk(&[10]), None, Untagged, None),
        (trunk(&[0]), None, Untagged, Some(None)),
        (trunk(&[0]), tag(0xe000), Untagged, Some(tag(0xe000))),
        (VlanMode::Trunk(VlanSet::all()), tag(4094), trunk(&[4094]), Some(tag(4094))),
    ];
    for (from, sent, to, expected) in table {
        for broadcast in [false, true] {
            for in_band in [false, true] {
                let mut bench = Bench::new();
                let a = bench.port(PortSpec { vlan: from.clone(), ..Bench::spec(1) });
                let b = bench.port(PortSpec { vlan: to.clone(), ..Bench::spec(2) });
                let bytes = frame(if broadcast { Mac::BROADCAST } else { mac(2) }, mac(1), 100, 1);
                match sent {
                    Some(Tci(tci)) if in_band => {
                        let [high, low] = tci.to_be_bytes();
                        let tagged = [&bytes[..12], &[0x81, 0, high, low], &bytes[12..]].concat();
                        a.wire.send(&tagged, Offload::None, None);
                    }
                    _ => a.wire.send(&bytes, Offload::None, sent),
                }
                bench.run();
                let got = b.wire.received();
                let what = format!("{from:?} {sent:?} to {to:?}, broadcast {broadcast}");
                assert_eq!(got.first().map(|one| one.tag), expected, "{what}");
                assert!(got.iter().all(|one| one.bytes == bytes), "{what}");
                assert_eq!(a.wire.outstanding(), 0);
                let dropped = a.stats.drop_bad_vlan.get() + a.stats.drop_no_receiver.get();
                assert_eq!(
                    got.len() as u64 + dropped,
                    u64::from(!broadcast || got.len() == 1 || dropped > 0)
                );
            }
        }
    }
}

#[test]
fn the_same_address_may_live_in_two_vlans_and_two_groups() {
    let mut bench = Bench::new();
    let place =
        |group: &str, vlan| PortSpec { group: group.into(), vlan: VlanMode::Access(vlan), ..Bench::spec(2) };
    let receivers = [place("x", 1), place("x", 2), place("y", 1)].map(|spec| bench.port(spec));
    for (number, (group, vlan)) in [("x", 1), ("x", 2), ("y", 1)].into_iter().enumerate() {
        let sender = bench.port(PortSpec { mac: mac(1), ..place(group, vlan) });
        sender.send(&frame(mac(2), mac(1), 60, 0));
        sender.send(&frame(Mac::BROADCAST, mac(1), 60, 0));
        bench.run();
        let got: Vec<_> = receivers.iter().map(|receiver| receiver.frames().len()).collect();
        assert_eq!(got, [0, 1, 2].map(|other| if other == number { 2 } else { 0 }));
        bench.switch.remove_port(sender.id);
        bench.step();
    }
}

#[test]
fn groups_share_nothing_not_even_with_promiscuous_ports_and_uplinks() {
    share_nothing(|spec| PortSpec { group: "other".into(), ..spec });
}

#[test]
fn switches_share_nothing_not_even_with_promiscuous_ports_and_uplinks() {
    share_nothing(|spec| PortSpec { switch: "other".into(), ..spec });
}

/// Nothing of a port gets to ports that are `elsewhere`.
fn share_nothing(elsewhere: impl Fn(PortSpec) -> PortSpec) {
    let mut bench = Bench::new();
    let a = bench.guest(1);
    let open = Policy { promiscuous: true, mac_changes: true, forged_transmits: true };
    let other = |spec| PortSpec { policy: open, ..elsewhere(spec) };
    let spy = bench.port(other(Bench::spec(2)));
    let up = bench.port(PortSpec { uplink: true, ..other(Bench::spec(3)) });
    spy.wire.change_filter(|filter| filter.promiscuous = true);
    bench.refresh(&spy);
    for to in [mac(2), mac(3), mac(99), Mac::BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1])] {
        a.send(&frame(to, mac(1), 60, 0));
    }
    bench.run();
    assert!(spy.frames().is_empty() && up.frames().is_empty());
    assert_eq!(a.stats.drop_no_receiver.get(), 3);
    // Brought there, it gets them.
    assert!(bench.switch.update_port(spy.id, PortSpec { policy: open, ..Bench::spec(2) }));
    a.send(&frame(Mac::BROADCAST, mac(1), 60, 0));
    bench.run();
    assert_eq!(spy.frames().len(), 1);
}

#[test]
fn groups_that_have_come_and_gone_by_the_thousands_leave_no_two_with_one_number() {
    let mut bench = Bench::new();
    let first = bench.port(PortSpec { group: "first".into(), ..Bench::spec(1) });
    for number in 1..=u16::MAX {
        let name = format!("gone-{number}");
        let spec = PortSpec { name: name.clone(), group: name, ..Bench::spec(2) };
        let id = bench.switch.add_port(spec).unwrap();
        assert!(bench.switch.remove_port(id));
        bench.step();
    }
    let last = bench.port(PortSpec { group: "last".into(), ..Bench::spec(3) });
    last.send(&frame(Mac::BROADCAST, mac(3), 60, 0));
    bench.run();
    assert!(first.frames().is_empty(), "groups share nothing");
    let moved = bench.switch.update_port(last.id, PortSpec { group: "first".into(), ..Bench::spec(3) });
    last.send(&frame(Mac::BROADCAST, mac(3), 60, 0));
    bench.run();
    assert!(moved && first.frames().len() == 1);
}

#[test]
fn forged_sources_and_changed_addresses_by_policy() {
    let policy = |mac_changes, forged_transmits| Policy { promiscuous: false, mac_changes, forged_transmits };
    // Policy, address in the NIC, source sent; frames out, and in to the NIC's present address.
    let table = [
        (policy(true, true), 1, 1, 1, 1),
        (policy(true, true), 1, 7, 1, 1),
        (policy(true, true), 7, 7, 1, 1),
        (policy(true, false), 1, 7, 0, 1),
        (policy(true, false), 7, 7, 1, 1),
        (policy(true, false), 7, 1, 0, 1),
        (policy(false, false), 1, 1, 1, 1),
        (policy(false, false), 7, 7, 0, 0),
        (policy(false, true), 7, 7, 1, 0),
    ];
    for (number, (policy, nic, source, out, into)) in table.into_iter().enumerate() {
        let mut bench = Bench::new();
        let a = bench.port(PortSpec { policy, ..Bench::spec(1) });
        let b = bench.guest(2);
        a.wire.change_filter(|filter| filter.mac = mac(nic));
        bench.refresh(&a);
        b.send(&frame(mac(nic), mac(2), 60, 0));
        bench.run();
        assert_eq!(a.frames().len(), into, "row {number}, in");
        a.send(&frame(mac(2), mac(source), 60, 0));
        bench.run();
        assert_eq!(b.frames().len(), out, "row {number}, out");
        let refused = a.stats.drop_forged_source.get() + a.stats.drop_mac_changed.get();
        assert_eq!(refused, 1 - out as u64, "row {number}");
    }
}

#[test]
fn impossible_sources_are_never_taken() {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    a.send(&frame(mac(2), Mac::BROADCAST, 60, 0));
    a.send(&frame(mac(2), Mac([3, 0, 0, 0, 0, 1]), 60, 0));
    a.send(&frame(mac(2), Mac::default(), 60, 0));
    bench.run();
    assert_eq!((b.frames().len(), a.stats.drop_forged_source.get()), (0, 3));
}

fn promiscuous(bench: &mut Bench, number: u8, policy: Policy) -> Guest {
    let guest = bench.port(PortSpec { policy, ..Bench::spec(number) });
    guest.wire.change_filter(|filter| filter.promiscuous = true);
    bench.refresh(&guest);
    guest
}

#[test]
fn a_promiscuous_guest_sees_others_frames_only_where_the_policy_allows_it() {
    let strict = Policy { promiscuous: false, mac_changes: false, forged_transmits: false };
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    let refused = promiscuous(&mut bench, 3, strict);
    let allowed = promiscuous(&mut bench, 4, Policy { promiscuous: true, ..strict });
    let multicast = Mac([1, 0, 0x5e, 0, 0, 1]);
    for to in [mac(2), mac(99), multicast, mac(3)] {
        a.send(&frame(to, mac(1), 60, 0));
    }
    bench.run();
    assert_eq!((b.frames().len(), refused.frames().len(), allowed.frames().len()), (1, 1, 4));
}

#[test]
fn multicast_goes_to_those_who_asked() {
    let mut bench = Bench::new();
    let guests: Vec<_> = (1..=4).map(|number| bench.guest(number)).collect();
    let group = Mac([1, 0, 0x5e, 0, 0, 1]);
    guests[1].wire.change_filter(|filter| filter.multicast = vec![group]);
    guests[2].wire.change_filter(|filter| filter.all_multicast = true);
    guests.iter().for_each(|guest| bench.refresh(guest));
    guests[0].send(&frame(group, mac(1), 60, 0));
    guests[0].send(&frame(Mac([1, 0, 0x5e, 0, 0, 2]), mac(1), 60, 0));
    bench.run();
    let got: Vec<_> = guests.iter().map(|guest| guest.frames().len()).collect();
    assert_eq!(got, [0, 1, 2, 0]);
}

#[test]
fn a_nested_vm_is_found_behind_a_port_that_may_forge() {
    let mut bench = Bench::new();
    let a = bench.guest(1);
    let bridge = promiscuous(&mut bench, 2, Policy::default());
    let other = promiscuous(&mut bench, 3, Policy::default());
    bridge.send(&frame(mac(1), mac(50), 60, 0));
    bench.run();
    assert_eq!(a.frames().len(), 1);
    a.send(&frame(mac(50), mac(1), 60, 0));
    bench.run();
    assert_eq!((bridge.frames().len(), other.frames().len()), (1, 0));
    // The address of a port is not for others to learn.
    bridge.send(&frame(mac(3), mac(1), 60, 0));
    other.send(&frame(mac(1), mac(3), 60, 0));
    bench.run();
    assert_eq!((a.frames().len(), bridge.frames().len()), (1, 0));
    bench.switch.detach(bridge.id);
    bench.step();
    a.send(&frame(mac(50), mac(1), 60, 0));
    bench.run();
    assert_eq!(other.frames().len(), 2, "its bridge is gone, and so is the address");
}

/// A sender with continuous traffic to it learns of the move at once, too.
#[test]
fn a_nested_vm_that_moves_is_found_behind_its_new_port() {
    let mut bench = Bench::new();
    let a = bench.guest(1);
    let bridges = [2, 3].map(|number| promiscuous(&mut bench, number, Policy::default()));
    for at in [0, 1, 0] {
        bridges[at].send(&frame(mac(1), mac(50), 60, 0));
        bench.run();
        for _ in 0..3 {
            a.send(&frame(mac(50), mac(1), 60, 0));
            bench.run();
            assert_eq!((bridges[at].frames().len(), bridges[1 - at].frames().len()), (1, 0));
        }
    }
}

#[test]
fn uplinks_get_strangers_frames_and_nothing_passes_between_them() {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    let mut up = |number| {
        let vlan = VlanMode::Trunk(VlanSet::all());
        bench.port(PortSpec { uplink: true, vlan, ..Bench::spec(number) })
    };
    let ups = [up(8), up(9)];
    let count = |ups: &[Guest; 2]| [ups[0].frames().len(), ups[1].frames().len()];
    a.send(&frame(mac(100), mac(1), 60, 0));
    bench.run();
    assert_eq!((count(&ups), b.frames().len()), ([1, 1], 0));
    ups[1].send(&frame(mac(1), mac(100), 60, 0));
    bench.run();
    assert_eq!(a.frames().len(), 1);
    a.send(&frame(mac(100), mac(1), 60, 0));
    a.send(&frame(mac(2), mac(1), 60, 0));
    bench.run();
    assert_eq!((count(&ups), b.frames().len()), ([0, 1], 1), "learned");
    ups[0].send(&frame(mac(101), mac(102), 60, 0));
    ups[0].send(&frame(mac(100), mac(102), 60, 0));
    ups[0].send(&frame(Mac::BROADCAST, mac(102), 60, 0));
    bench.run();
    assert_eq!((count(&ups), a.frames().len(), b.frames().len()), ([0, 0], 1, 1));
}

#[test]
fn the_guest_s_vlan_filter_counts_where_the_guest_tags() {
    let mut bench = Bench::new();
    let a = bench.port(PortSpec { vlan: trunk(&[0, 10, 11]), ..Bench::spec(1) });
    let b = bench.port(PortSpec { vlan: trunk(&[0, 10, 11]), ..Bench::spec(2) });
    let c = bench.port(PortSpec { vlan: VlanMode::Access(11), ..Bench::spec(3) });
    let mut ten = VlanSet::none();
    ten.insert(10);
    for guest in [&b, &c] {
        guest.wire.change_filter(|filter| filter.vlans = Some(ten.clone()));
        bench.refresh(guest);
    }
    for (to, tag) in [(2, Some(10)), (2, Some(11)), (2, None), (2, Some(0)), (3, Some(11))] {
        a.wire.send(&frame(mac(to), mac(1), 60, 0), Offload::None, tag.map(Tci));
    }
    bench.run();
    assert_eq!((b.frames().len(), b.stats.drop_filtered.get(), c.frames().len()), (3, 1, 1));
}

#[test]
fn a_changed_configuration_is_in_force_at_once() {
    let mut bench = Bench::new();
    let (a, b) = (bench.guest(1), bench.guest(2));
    a.send(&frame(mac(2), mac(1), 60, 0));
    bench.run();
    assert_eq!(b.frames().len(), 1);
    bench.switch.update_port(b.id, PortSpec { vlan: VlanMode::Access(5), ..Bench::spec(2) });
    bench.step();
    a.send(&frame(mac(2), mac(1), 60, 0));
    bench.run();
    assert!(b.frames().is_empty());
    bench.switch.update_port(a.id, PortSpec { vlan: VlanMode::Access(5), ..Bench::spec(1) });
    bench.step();
    a.send(&frame(mac(2), mac(1), 60, 0));
    bench.run();
    assert_eq!(b.frames().len(), 1);
    assert!(bench.switch.remove_port(b.id) && !bench.switch.remove_port(b.id));
    bench.step();
    assert!(b.wire.dropped());
    a.send(&frame(mac(2), mac(1), 60, 0));
    bench.run();
    assert_eq!(bench.switch.ports().len(), 1);
}

#[test]
fn floods_are_bounded_and_do_not_hurt_others() {
    let mut bench = Bench::with(Settings { floods: 4, ..Settings::default() });
    let (a, b, up) =
        (bench.guest(1), bench.guest(2), bench.port(PortSpec { uplink: true, ..Bench::spec(3) }));
    let all = Mac::BROADCAST;
    for round in 0..50 {
        a.send(&frame(mac(2), mac(1), 60, 0));
        a.send(&frame([all, Mac([1, 0, 0x5e, 0, 0, 1]), mac(9)][round % 3], mac(1), 60, 0));
        bench.run();
    }
    // Too many of its frames were dropped: it is paused, and then the rest is delivered.
    assert_ne!(a.wire.queued(), 0);
    wait_until("it has rested", || {
        bench.run();
        a.wire.queued() + a.wire.outstanding() == 0
    });
    let (groups, own): (Vec<_>, Vec<_>) =
        b.wire.received().into_iter().partition(|one| one.bytes[0] & 1 == 1);
    assert_eq!(own.len(), 50, "frames to one are not limited");
    // A quarter of a second's at once, and a few more for the time that passes.
    let dropped = a.stats.drop_flood.get();
    assert!(
        dropped >= 10 && groups.len() as u64 + dropped <= 50,
        "{dropped} dropped, {} passed",
        groups.len()
    );
    // Others have their own share, and an uplink any.
    b.send(&frame(all, mac(2), 60, 0));
    (0..50).for_each(|_| up.send(&frame(all, mac(3), 60, 0)));
    bench.run();
    assert_eq!((b.stats.drop_flood.get(), up.stats.drop_flood.get()), (0, 0));
    assert_eq!(a.wire.outstanding(), 0);
}

#[test]
fn a_port_has_a_flood_limit_of_its_own_which_a_change_replaces() {
    let mut bench = Bench::with(Settings { floods: 4, ..Settings::default() });
    let traffic = |floods| Traffic { floods, ..Traffic::default() };
    let (a, b) = (bench.port(PortSpec { traffic: traffic(Some(0)), ..Bench::spec(1) }), bench.guest(2));
    let send = |bench: &mut Bench| {
        (0..20).for_each(|_| a.send(&frame(Mac::BROADCAST, mac(1), 60, 0)));
        bench.run();
        b.frames().len()
    };
    assert_eq!((send(&mut bench), a.stats.drop_flood.get()), (20, 0), "any number");
    bench.switch.update_port(a.id, PortSpec { traffic: traffic(Some(8)), ..Bench::spec(1) });
    bench.step();
    assert!(send(&mut bench) < 20 && a.stats.drop_flood.get() > 0);
}

/// Who watches may be another worker's port: the frame's receiver has lost nothing.
#[test]
fn what_another_workers_port_watches_is_no_drop_of_its_receiver() {
    let mut bench = Bench::exactly(Settings { workers: 2, ..Settings::default() });
    let policy = Policy { promiscuous: true, ..Policy::default() };
    let [a, b, c, watcher] =
        [1, 2, 3, 4].map(|number| bench.port(PortSpec { policy, ..Bench::spec(number) }));
    watcher.wire.change_filter(|filter| filter.promiscuous = true);
    bench.refresh(&watcher);
    bench.run();
    for (to, number) in [(&b, 2), (&c, 3)] {
        a.send(&frame(mac(number), mac(1), 60, 0));
        bench.run();
        assert_eq!((to.frames().len(), watcher.frames().len()), (1, 1));
        assert_eq!(to.stats.drop_gone.get(), 0, "port {number}");
    }
}
