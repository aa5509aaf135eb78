//! Teams of uplinks: which of them a frame leaves through, which of them it may come from, and what happens
//! when a link is lost.

use std::collections::BTreeSet;

use vmlane_port::{DropReason, Filter, Frames, Offload, VlanSet};
use vmlane_switch::{MemberState, PortSpec, TeamMember, TeamPolicy, TeamSpec, TeamView, VlanMode};
use vmlane_wire::ethernet::Mac;

use crate::common::tcp::{Ip, Packet};
use crate::common::{Bench, Guest, frame, mac};

/// A host of the network outside.
const OUTSIDE: Mac = Mac([2, 0, 0, 0, 0, 99]);

struct World {
    bench: Bench,
    guests: Vec<Guest>,
    uplinks: Vec<Guest>,
    spec: TeamSpec,
}

impl World {
    /// The number of a guest's address is its place and 1; those of uplinks begin at 101.
    fn new(policy: TeamPolicy, guests: u8, uplinks: u8) -> World {
        let mut bench = Bench::new();
        let trunk = VlanMode::Trunk(VlanSet::all());
        let up = |number| PortSpec { uplink: true, vlan: trunk.clone(), ..Bench::spec(100 + number) };
        let uplinks: Vec<Guest> = (1..=uplinks).map(|number| bench.port(up(number))).collect();
        let guests = (1..=guests).map(|number| bench.guest(number)).collect();
        let member =
            |(at, guest): (usize, &Guest)| TeamMember { name: format!("up{at}"), port: Some(guest.id) };
        let members = uplinks.iter().enumerate().map(member).collect();
        let name = "lan".into();
        let spec = TeamSpec { name, policy, members, standby: 0, failback: true, notify: true };
        let mut world = World { bench, guests, uplinks, spec };
        world.change(|_| {});
        world
    }

    fn change(&mut self, change: impl FnOnce(&mut TeamSpec)) {
        change(&mut self.spec);
        self.bench.switch.set_teams(vec![self.spec.clone()]);
        self.run();
        self.leave();
    }

    fn run(&mut self) {
        self.bench.step();
        self.bench.run();
    }

    /// What left since the last time: for each uplink.
    fn leave(&self) -> Vec<Vec<Vec<u8>>> {
        self.uplinks.iter().map(Guest::frames).collect()
    }

    /// The only uplink that a frame of a guest leaves through.
    fn way(&mut self, guest: usize, bytes: &[u8]) -> usize {
        self.leave();
        self.guests[guest].send(bytes);
        self.run();
        let left: Vec<usize> = self.leave().iter().map(Vec::len).collect();
        assert_eq!(left.iter().sum::<usize>(), 1, "{left:?}");
        left.iter().position(|count| *count == 1).unwrap()
    }

    /// The same for a frame to all, from its own address.
    fn way_out(&mut self, guest: usize) -> usize {
        self.way(guest, &frame(Mac::BROADCAST, mac(guest as u8 + 1), 60, 0))
    }

    fn carrier(&mut self, uplink: usize, up: bool) {
        self.bench.switch.set_carrier(self.uplinks[uplink].id, up);
        self.run();
    }

    fn filter(&mut self, guest: usize, change: impl FnOnce(&mut Filter)) {
        self.guests[guest].wire.change_filter(change);
        self.bench.refresh(&self.guests[guest]);
        self.run();
    }

    fn view(&self) -> TeamView {
        self.bench.switch.teams().remove(0)
    }

    /// How many frames each guest gets.
    fn arrive(&self) -> Vec<usize> {
        self.guests.iter().map(|guest| guest.frames().len()).collect()
    }

    /// The network sends a frame through all links.
    fn flood(&mut self, bytes: &[u8]) -> Vec<usize> {
        self.uplinks.iter().for_each(|uplink| uplink.send(bytes));
        self.run();
        self.arrive()
    }
}

#[test]
fn each_port_leaves_through_one_uplink_whatever_it_sends_to() {
    let mut world = World::new(TeamPolicy::Port, 8, 4);
    // Heard behind the last one: the whole team leads there.
    world.uplinks[3].send(&frame(mac(1), OUTSIDE, 60, 0));
    world.run();
    assert_eq!(world.arrive(), [1, 0, 0, 0, 0, 0, 0, 0]);
    let mut counts = [0; 4];
    for guest in 0..8 {
        let way = world.way_out(guest);
        counts[way] += 1;
        let own = mac(guest as u8 + 1);
        for to in [Mac([1, 0, 0x5e, 1, 2, 3]), Mac([2, 0, 0, 0, 0, 50]), OUTSIDE, OUTSIDE] {
            assert_eq!(world.way(guest, &frame(to, own, 60, 0)), way, "{to}");
        }
    }
    assert_eq!(counts, [2, 2, 2, 2]);
}

#[test]
fn source_addresses_and_pairs_of_ip_addresses_are_spread() {
    let mut world = World::new(TeamPolicy::Mac, 1, 3);
    let of_mac = |world: &mut World, last| world.way(0, &frame(OUTSIDE, Mac([2, 0, 0, 0, 7, last]), 60, 0));
    let ways: Vec<usize> = (0..40).map(|last| of_mac(&mut world, last)).collect();
    assert!((0..3).all(|way| ways.iter().filter(|other| **other == way).count() >= 5), "{ways:?}");
    assert!((0..40).all(|last| of_mac(&mut world, last) == ways[usize::from(last)]));
    world.change(|spec| spec.policy = TeamPolicy::IpHash);
    for v6 in [false, true] {
        let packet = |last| {
            let mut packet = Packet::new(OUTSIDE, mac(1), v6, 100);
            match &mut packet.ip {
                Ip::V4(ip) => ip.destination[3] = last,
                Ip::V6(ip) => ip.destination[15] = last,
            }
            packet.bytes()
        };
        let ways: Vec<usize> = (0..40).map(|last| world.way(0, &packet(last))).collect();
        assert!((0..3).all(|way| ways.iter().filter(|other| **other == way).count() >= 5), "{ways:?}");
        assert!((0..40).all(|last| world.way(0, &packet(last)) == ways[usize::from(last)]));
    }
}

#[test]
fn what_the_network_sends_to_all_links_reaches_each_port_once() {
    for policy in [TeamPolicy::Port, TeamPolicy::Mac, TeamPolicy::Failover] {
        let mut world = World::new(policy, 5, 3);
        world.filter(2, |filter| filter.promiscuous = true);
        let spec = PortSpec {
            policy: vmlane_switch::Policy { promiscuous: true, ..Default::default() },
            ..Bench::spec(3)
        };
        world.bench.switch.update_port(world.guests[2].id, spec);
        world.run();
        for down in [None, Some(0), Some(1)] {
            if let Some(down) = down {
                world.carrier(down, false);
            }
            world.leave();
            let group = Mac([1, 0, 0x5e, 1, 2, 3]);
            (0..5).for_each(|guest| world.filter(guest, |filter| filter.all_multicast = true));
            for to in [Mac::BROADCAST, group] {
                assert_eq!(world.flood(&frame(to, OUTSIDE, 60, 0)), [1; 5], "{policy:?} {to} {down:?}");
            }
            let unknown = world.flood(&frame(Mac([2, 0, 0, 0, 0, 55]), OUTSIDE, 60, 0));
            assert_eq!(unknown, [0, 0, 1, 0, 0], "{policy:?} {down:?}");
            assert!(world.leave().iter().all(Vec::is_empty), "nothing goes from one uplink to another");
        }
    }
}

#[test]
fn a_channel_delivers_once_through_any_link_that_is_in_use() {
    let mut world = World::new(TeamPolicy::IpHash, 2, 3);
    world.change(|spec| spec.standby = 1);
    for (uplink, expected) in [(0, [1, 1]), (1, [1, 1]), (2, [0, 0])] {
        world.uplinks[uplink].send(&frame(Mac::BROADCAST, OUTSIDE, 60, 0));
        world.run();
        assert_eq!(world.arrive(), expected, "{uplink}");
    }
}

#[test]
fn what_a_vm_sent_does_not_come_back_to_it_or_move_its_address() {
    let mut world = World::new(TeamPolicy::Port, 3, 2);
    let nested = Mac([2, 0, 0, 0, 0, 77]);
    for (number, from) in (1..).zip([mac(1), nested]) {
        let bytes = frame(Mac::BROADCAST, from, 60, number);
        let way = world.way(0, &bytes);
        assert_eq!(world.arrive(), [0, 1, 1]);
        let other = 1 - way;
        // The network floods it.
        world.uplinks[other].send(&bytes);
        world.run();
        assert_eq!(
            (world.arrive(), world.uplinks[other].stats.drop_reflected.get()),
            (vec![0, 0, 0], number.into())
        );
        assert!(world.leave().iter().all(Vec::is_empty));
    }
    // It is still where it was.
    world.filter(0, |filter| filter.promiscuous = true);
    world.guests[1].send(&frame(nested, mac(2), 60, 0));
    world.run();
    assert_eq!((world.arrive(), world.leave().concat().len()), (vec![1, 0, 0], 0));
    // An uplink alone lets in what it always did.
    world.bench.switch.set_teams(vec![]);
    world.uplinks[0].send(&frame(mac(1), mac(2), 60, 0));
    world.run();
    assert_eq!(world.arrive(), [1, 0, 0]);
}

#[test]
fn a_vm_that_forges_an_outside_address_does_not_keep_its_owner_out() {
    let mut world = World::new(TeamPolicy::Port, 2, 2);
    let forge = |world: &mut World| {
        world.guests[0].send(&frame(Mac::BROADCAST, OUTSIDE, 60, 0));
        world.run();
        world.arrive();
        world.leave();
    };
    forge(&mut world);
    world.uplinks[1].send(&frame(mac(2), OUTSIDE, 60, 0));
    world.run();
    assert_eq!(world.arrive(), [0, 1]);
    // The owner was heard behind the team: the VM cannot have the address any more.
    forge(&mut world);
    world.guests[1].send(&frame(OUTSIDE, mac(2), 60, 0));
    world.run();
    assert_eq!((world.arrive(), world.leave().concat().len()), (vec![0, 0], 1));
    assert_eq!(world.flood(&frame(Mac::BROADCAST, OUTSIDE, 60, 0)), [1, 1]);
}

/// The reverse ARP requests among frames: the addresses that they announce.
fn announced(frames: &[Vec<u8>]) -> BTreeSet<Mac> {
    let rarp = frames.iter().filter(|frame| frame[12..14] == [0x80, 0x35]);
    rarp.map(|frame| {
        assert_eq!((&frame[..6], &frame[6..12], frame.len()), (&[0xff; 6][..], &frame[22..28], 60));
        Mac(frame[6..12].try_into().unwrap())
    })
    .collect()
}

#[test]
fn a_lost_link_moves_its_ports_and_no_others_and_the_network_is_notified() {
    let mut world = World::new(TeamPolicy::Port, 4, 2);
    world.uplinks[0].send(&frame(mac(1), OUTSIDE, 60, 0));
    let nested = Mac([2, 0, 0, 0, 0, 77]);
    world.way(2, &frame(Mac::BROADCAST, nested, 60, 0));
    world.arrive();
    let before: Vec<usize> = (0..4).map(|guest| world.way_out(guest)).collect();
    assert_eq!(before, [0, 1, 0, 1]);
    world.carrier(0, false);
    let left = world.leave();
    assert_eq!(announced(&left[1]), [mac(1), mac(3), nested].into(), "those that moved");
    assert_eq!((left[0].len(), left[1].len()), (0, 3));
    assert!((0..4).all(|guest| world.way_out(guest) == 1));
    assert_eq!(world.view().members, [MemberState::LinkDown, MemberState::Active]);
    // The address that was heard behind the lost link is still behind the team: no one else gets the frame.
    world.arrive();
    assert_eq!(world.way(0, &frame(OUTSIDE, mac(1), 60, 0)), 1);
    assert_eq!(world.arrive(), [0; 4]);
    world.carrier(0, true);
    let left = world.leave();
    assert_eq!((announced(&left[0]).len(), left[1].len()), (3, 0));
    assert_eq!((0..4).map(|guest| world.way_out(guest)).collect::<Vec<_>>(), before);
    let stats = world.view().stats;
    assert_eq!((stats.failovers.get(), stats.failbacks.get(), stats.notified.get()), (1, 1, 6));
}

#[test]
fn a_link_is_lost_in_several_ways() {
    let mut world = World::new(TeamPolicy::Failover, 1, 2);
    world.change(|spec| spec.notify = false);
    assert_eq!(world.way_out(0), 0);
    // The interface refuses a frame, and no one else has said anything yet.
    world.uplinks[0].wire.refuse(Some(DropReason::UplinkDown));
    world.guests[0].send(&frame(OUTSIDE, mac(1), 60, 0));
    world.run();
    world.leave();
    assert_eq!(world.uplinks[0].stats.drop_uplink_down.get(), 1);
    world.uplinks[0].wire.refuse(None);
    assert_eq!((world.way_out(0), world.view().members[0]), (1, MemberState::LinkDown));
    world.carrier(0, true);
    assert_eq!(world.way_out(0), 0);
    // One refused for another reason, as a guest can provoke it, moves nothing.
    world.uplinks[0].wire.refuse(Some(DropReason::Uplink));
    world.guests[0].send(&frame(OUTSIDE, mac(1), 60, 0));
    world.run();
    world.uplinks[0].wire.refuse(None);
    assert_eq!(world.way_out(0), 0);
    let id = world.uplinks[0].id;
    world.bench.switch.set_link(id, false);
    world.run();
    assert_eq!((world.way_out(0), world.view().members[0]), (1, MemberState::SetDown));
    world.bench.switch.set_link(id, true);
    world.run();
    assert_eq!(world.way_out(0), 0);
    world.bench.switch.detach(id);
    world.run();
    assert_eq!((world.way_out(0), world.view().members[0]), (1, MemberState::Detached));
    assert_eq!(world.view().members[1], MemberState::Active);
    assert_eq!((world.view().stats.failovers.get(), world.view().stats.failbacks.get()), (3, 2));
    assert_eq!(world.view().stats.notified.get(), 0);
    // Without any link, frames are lost, and counted where they are lost.
    world.carrier(1, false);
    world.uplinks[1].wire.refuse(Some(DropReason::UplinkDown));
    world.guests[0].send(&frame(Mac::BROADCAST, mac(1), 60, 0));
    world.run();
    assert!(world.leave().iter().all(Vec::is_empty));
}

#[test]
fn without_failback_the_team_stays_and_standby_takes_the_place() {
    let mut world = World::new(TeamPolicy::Port, 2, 3);
    world.change(|spec| (spec.standby, spec.failback) = (1, false));
    use MemberState::{Active, LinkDown, Recovered, Standby};
    assert_eq!(world.view().members, [Active, Active, Standby]);
    world.carrier(0, false);
    assert_eq!((world.way_out(0), world.way_out(1)), (2, 1));
    world.carrier(0, true);
    assert_eq!((world.way_out(0), world.way_out(1)), (2, 1));
    assert_eq!(world.view().members, [Recovered, Active, Active]);
    world.carrier(1, false);
    assert_eq!((world.way_out(0), world.way_out(1)), (0, 2));
    assert_eq!(world.view().members, [Active, LinkDown, Active]);
    world.change(|spec| spec.failback = true);
    assert_eq!(world.view().stats.failovers.get(), 2, "counts on");
}

#[test]
fn addresses_are_announced_in_the_vlans_of_their_ports() {
    let mut world = World::new(TeamPolicy::Failover, 2, 2);
    let access = PortSpec { vlan: VlanMode::Access(10), ..Bench::spec(1) };
    world.bench.switch.update_port(world.guests[0].id, access);
    let trunk = PortSpec { vlan: VlanMode::Trunk(VlanSet::all()), ..Bench::spec(2) };
    world.bench.switch.update_port(world.guests[1].id, trunk);
    let mut vlans = VlanSet::none();
    vlans.insert(20);
    vlans.insert(4094);
    world.filter(1, |filter| filter.vlans = Some(vlans));
    world.leave();
    world.carrier(0, false);
    let tags = |uplink: &Guest| -> BTreeSet<(u8, Option<u16>)> {
        uplink.wire.received().into_iter().map(|one| (one.bytes[11], one.tag.map(|tag| tag.0))).collect()
    };
    let (access, native, guests) = ((1, Some(10)), (2, None), [20, 4094].map(|vlan| (2, Some(vlan))));
    assert_eq!(tags(&world.uplinks[1]), [access, native, guests[0], guests[1]].into());
    // A guest that takes every VLAN is announced in its own alone.
    world.filter(1, |filter| filter.vlans = None);
    world.leave();
    world.carrier(0, true);
    assert_eq!(tags(&world.uplinks[0]), [access, native].into());
}

#[test]
fn members_come_and_go_and_a_port_keeps_its_way() {
    let mut world = World::new(TeamPolicy::Port, 4, 2);
    // A guest goes, and another one comes: the rest stay where they are, and it takes the free place.
    let gone = world.guests.remove(1);
    world.bench.switch.remove_port(gone.id);
    world.run();
    let new = world.bench.guest(9);
    world.guests.push(new);
    let ways: Vec<usize> =
        [0, 1, 2].map(|guest| world.way(guest, &frame(OUTSIDE, mac([1, 3, 4][guest]), 60, 0))).into();
    assert_eq!(ways, [0, 0, 1]);
    assert_eq!(world.way(3, &frame(OUTSIDE, mac(9), 60, 0)), 1);
    // The first member goes, with what was seen behind it; a guest that gets its place in the table is no
    // uplink.
    world.uplinks[0].send(&frame(mac(1), OUTSIDE, 60, 0));
    world.run();
    let gone = world.uplinks.remove(0);
    world.bench.switch.remove_port(gone.id);
    world.run();
    let guest = world.bench.guest(10);
    assert_eq!(world.view().members, [MemberState::Missing, MemberState::Active]);
    assert_eq!(world.way(0, &frame(OUTSIDE, mac(1), 60, 0)), 0);
    assert!(guest.frames().is_empty());
    world.change(|spec| drop(spec.members.remove(0)));
    assert_eq!(world.view().members, [MemberState::Active]);
    assert_eq!(world.way(0, &frame(OUTSIDE, mac(1), 60, 0)), 0);
    guest.wire.send(&frame(Mac::BROADCAST, mac(10), 60, 0), Offload::None, None);
    world.run();
    assert_eq!(world.leave()[0].len(), 1);
}

#[test]
fn announcements_are_bounded_and_leave_over_several_rounds() {
    let mut world = World::new(TeamPolicy::Failover, 20, 2);
    for guest in 0..20 {
        for number in 0..=255 {
            let nested = Mac([2, 0, 0, 1, guest as u8, number]);
            world.guests[guest].send(&frame(mac(1), nested, 60, 0));
            world.run();
        }
    }
    world.arrive();
    world.bench.switch.set_carrier(world.uplinks[0].id, false);
    world.bench.step();
    assert!(world.uplinks[1].frames().len() <= 32);
    world.run();
    let stats = world.view().stats;
    let (notified, not) = (stats.notified.get(), stats.not_notified.get());
    assert!(notified == 4096 && not > 0 && notified + not <= 20 * 257, "{notified} {not}");
}
