//! From bytes of packets to who gets what.

use std::sync::Arc;

use vmlane_guestsim::memory_port::Wire;
use vmlane_port::{Offload, PortId, PortStats};

use super::*;
use crate::access::Config;
use crate::core::{Core, Place};
use crate::port::{Numbered, Port};
use crate::spec::{Policy, PortSpec, Settings, Traffic, VlanMode};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

const V4: u16 = 0x0800;
const V6: u16 = 0x86dd;

fn v4_mac(low: [u8; 3]) -> Mac {
    Mac([1, 0, 0x5e, low[0], low[1], low[2]])
}

/// An IPv4 header with a router alert, in front of `igmp`.
fn v4(to: [u8; 4], igmp: &str) -> Vec<u8> {
    let igmp = bytes(igmp);
    let mut packet = bytes("46c0 0000 0000 4000 0102 0000 0a4d0001");
    packet[3] = 24 + igmp.len() as u8;
    [packet, to.to_vec(), bytes("94040000"), igmp].concat()
}

/// An IPv6 header with a router alert, in front of `mld`.
fn v6(to: &str, mld: &str) -> Vec<u8> {
    let mld = bytes(mld);
    let mut packet = bytes("60000000 0000 0001 fe80000000000000 5054 00ff fe00 0001");
    packet[5] = 8 + mld.len() as u8;
    [packet, bytes(to), bytes("3a00 0502 0000 0100"), mld].concat()
}

fn changes(message: Option<Message<'_>>) -> Vec<Change> {
    match message {
        Some(Message::One(change)) => vec![change],
        Some(Message::Records { v6, count, bytes }) => records(v6, count, bytes).collect(),
        _ => Vec::new(),
    }
}

const GROUP: [u8; 4] = [239, 129, 2, 3];
const GROUP_MAC: Mac = Mac([1, 0, 0x5e, 1, 2, 3]);

#[test]
fn igmp_of_all_versions_is_understood() {
    let changes_of = |packet: &[u8]| changes(message(V4, packet));
    for report in ["1200 0000 ef810203", "1600 0000 ef810203"] {
        let packet = v4(GROUP, report);
        assert_eq!(changes_of(&packet), [Change::Join(GROUP_MAC)]);
        assert_eq!(kind(GROUP_MAC, V4, &packet), Kind::Report);
    }
    let leave = v4([224, 0, 0, 2], "1700 0000 ef810203");
    assert_eq!(changes_of(&leave), [Change::Leave(GROUP_MAC)]);
    assert_eq!(kind(v4_mac([0, 0, 2]), V4, &leave), Kind::All, "link-local");
    assert_eq!(message(V4, &v4([224, 0, 0, 1], "1164 0000 00000000 027d 0000")), Some(Message::Query));
    // Version 3: becomes EXCLUDE {}, is INCLUDE with a source, becomes INCLUDE {}, blocks a source, a
    // link-local group.
    let v3 = v4(
        [224, 0, 0, 22],
        "2200 0000 0000 0005  0400 0000 ef810203  0101 0001 ef010101 0a000001 deadbeef  \
         0300 0000 ef010102  0600 0001 ef010103 0a000001  0400 0000 e00000fb",
    );
    let expected =
        [Change::Join(GROUP_MAC), Change::Join(v4_mac([1, 1, 1])), Change::Leave(v4_mac([1, 1, 2]))];
    assert_eq!(changes_of(&v3), expected);
    // A count that the bytes do not keep, and a packet cut anywhere: as much as is there, and no panic.
    for len in 0..v3.len() {
        assert!(expected.starts_with(&changes_of(&v3[..len])));
    }
    let mut fragment = v3.clone();
    fragment[6..8].copy_from_slice(&[0x20, 0]);
    assert!(changes_of(&fragment).is_empty());
}

#[test]
fn mld_of_both_versions_is_understood() {
    let group = "ff15 0000 0000 0000 0000 0000 dead beef";
    let mac = Mac([0x33, 0x33, 0xde, 0xad, 0xbe, 0xef]);
    let changes_of = |packet: &[u8]| changes(message(V6, packet));
    let report = v6(group, &format!("8300 0000 0000 0000 {group}"));
    assert_eq!(changes_of(&report), [Change::Join(mac)]);
    assert_eq!(kind(mac, V6, &report), Kind::Report);
    let routers = "ff02 0000 0000 0000 0000 0000 0000 0002";
    assert_eq!(changes_of(&v6(routers, &format!("8400 0000 0000 0000 {group}"))), [Change::Leave(mac)]);
    let all = "ff02 0000 0000 0000 0000 0000 0000 0001";
    let query = v6(all, "8200 0000 2710 0000 00000000 00000000 00000000 00000000 027d 0000");
    assert_eq!(message(V6, &query), Some(Message::Query));
    assert_eq!(kind(Mac([0x33, 0x33, 0, 0, 0, 1]), V6, &query), Kind::All);
    let v2 = v6(
        "ff02 0000 0000 0000 0000 0000 0000 0016",
        &format!(
            "8f00 0000 0000 0002 0400 0000 {all} 0500 0001 {group} fe80 0000 0000 0000 0000 0000 0000 0001"
        ),
    );
    assert_eq!(changes_of(&v2), [Change::Join(mac)]);
    for len in 0..v2.len() {
        assert!(changes_of(&v2[..len]).len() <= 1);
    }
}

#[test]
fn what_is_no_group_anyone_asks_for_goes_to_all() {
    let data = |to: [u8; 4]| {
        let mut packet = v4(to, "0000 0000");
        packet[9] = 17;
        packet
    };
    assert_eq!(kind(GROUP_MAC, V4, &data(GROUP)), Kind::Group);
    assert_eq!(kind(v4_mac([0, 0, 251]), V4, &data([224, 0, 0, 251])), Kind::All);
    assert_eq!(kind(Mac::BROADCAST, V4, &data([255; 4])), Kind::All);
    assert_eq!(kind(Mac([1, 0x80, 0xc2, 0, 0, 0xe]), 0x88cc, &[0; 60]), Kind::All);
    assert_eq!(kind(GROUP_MAC, V4, &[]), Kind::All);
    // The address of the frame does not have to be that of the packet: a group's frame with a unicast packet
    // in it.
    assert_eq!(kind(GROUP_MAC, V4, &data([10, 0, 0, 1])), Kind::All);
}

#[test]
fn the_switchs_own_queries_are_queries_with_right_checksums() {
    for answers in [Answers::Spread, Answers::Soon] {
        let (igmp, mld) = (query::igmp(answers), query::mld(answers));
        assert_eq!(message(V4, &igmp[14..]), Some(Message::Query));
        assert_eq!(message(V6, &mld[14..]), Some(Message::Query));
        let parsed = etherparse::PacketHeaders::from_ethernet_slice(&igmp).unwrap();
        let Some(etherparse::NetHeaders::Ipv4(ip, _)) = parsed.net else { panic!("{parsed:?}") };
        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
        let sum = |bytes: &[u8]| {
            let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
            let sum: u32 = words.sum();
            (sum & 0xffff) + (sum >> 16)
        };
        assert_eq!(sum(&igmp[38..]), 0xffff);
        // With the pseudo header: addresses, length, protocol.
        let pseudo = [&mld[22..54], &[0, 0, 0, 28, 0, 0, 0, 58], &mld[62..]].concat();
        assert_eq!(sum(&pseudo), 0xffff);
    }
}

#[test]
fn memberships_come_go_and_are_bounded() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut port = Snooped::new(start);
    let (key, other) = (group_key(10, GROUP_MAC), group_key(11, GROUP_MAC));
    assert!(port.wants(Kind::Group, key, at(1)), "it is new");
    assert!(!port.wants(Kind::Group, key, at(20)) && port.wants(Kind::All, key, at(20)));
    assert!(port.change(10, Change::Join(GROUP_MAC), at(20)));
    assert!(port.wants(Kind::Group, key, at(200)) && !port.wants(Kind::Group, other, at(200)));
    assert!(!port.wants(Kind::Report, key, at(200)), "others' reports are for routers");
    assert!(!port.wants(Kind::Group, key, at(20) + KEPT));
    // It leaves: after a moment for others behind the port, of which one answers.
    port.change(10, Change::Join(GROUP_MAC), at(300));
    port.change(10, Change::Leave(GROUP_MAC), at(310));
    assert!(port.wants(Kind::Group, key, at(311)) && !port.wants(Kind::Group, key, at(313)));
    port.change(10, Change::Join(GROUP_MAC), at(311));
    assert!(port.wants(Kind::Group, key, at(500)));
    port.note_router(at(500));
    assert!(port.wants(Kind::Group, other, at(600)) && port.wants(Kind::Report, other, at(600)));
    // A guest that joins without end is refused, gets all, and forgets nothing that it has.
    let mut port = Snooped::new(start);
    let group = |number: u16| Mac([1, 0, 0x5e, 1, (number >> 8) as u8, number as u8]);
    let refused = (0..5000).filter(|&number| !port.change(0, Change::Join(group(number)), at(20))).count();
    assert_eq!(refused, 5000 - MOST_GROUPS);
    assert!(port.wants(Kind::Group, group_key(0, group(4999)), at(21)));
    assert_eq!(port.groups.len(), MOST_GROUPS);
    assert_eq!(port.groups.capacity(), MOST_GROUPS, "and nothing grows");
    // When they have aged, there is room.
    assert!(port.change(0, Change::Join(group(4999)), at(20) + KEPT));
    assert_eq!(port.groups.len(), 1);
}

#[test]
fn guests_are_asked_at_first_then_from_time_to_time_and_when_one_leaves() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut port = Snooped::new(start);
    assert_eq!((port.asks(start), port.asks(at(30))), (Some(Answers::Spread), None));
    assert_eq!((port.asks(at(31)), port.asks(at(155))), (Some(Answers::Spread), None));
    assert_eq!(port.asks(at(156)), Some(Answers::Spread));
    port.change(0, Change::Join(GROUP_MAC), at(160));
    port.change(0, Change::Leave(GROUP_MAC), at(161));
    assert_eq!((port.asks(at(161)), port.asks(at(161))), (Some(Answers::Soon), None));
    // A guest that leaves and joins without end is asked once a second.
    let asked = (0..10_000_u64).filter(|&step| {
        let now = at(170) + Duration::from_millis(step);
        port.change(0, Change::Join(GROUP_MAC), now);
        port.change(0, Change::Leave(GROUP_MAC), now);
        port.asks(now).is_some()
    });
    assert_eq!(asked.count(), 10);
    port.change(12, Change::Join(GROUP_MAC), at(200));
    port.change(10, Change::Join(GROUP_MAC), at(200));
    assert_eq!([0, 9, 10, 12].map(|vlan| port.vlan_after(vlan)), [Some(10), Some(10), Some(12), None]);
}

/// Ports of a switch whose clock the test sets.
struct Bench {
    core: Core,
    now: Instant,
    ports: u8,
}

struct End {
    mac: Mac,
    wire: Wire,
    stats: Arc<PortStats>,
}

impl Bench {
    fn new() -> Bench {
        let core = Core::new(Settings::default(), Place::alone(), Arc::default(), Arc::default());
        Bench { core, now: Instant::now(), ports: 0 }
    }

    fn port(&mut self, snoop: bool, uplink: bool) -> End {
        self.ports += 1;
        let mac = Mac([0x52, 0x54, 0, 0, 0, self.ports]);
        let spec = PortSpec {
            name: format!("vm-{}/nic0", self.ports),
            group: "default".into(),
            switch: String::new(),
            mac,
            vlan: VlanMode::Untagged,
            policy: Policy::default(),
            traffic: Traffic { snoop, ..Traffic::default() },
            uplink,
            direct: false,
            notify: false,
        };
        let (id, stats) = (PortId(self.ports.into()), Arc::<PortStats>::default());
        let (wire, end) = Wire::small(mac, 64);
        wire.change_filter(|filter| {
            filter.all_multicast = true;
            filter.promiscuous = uplink;
        });
        let of = Numbered::nth(self.ports.into());
        let port = Port::new(of, Config::from(&spec), stats.clone(), Arc::default());
        self.core.add(of.slot, port);
        let slot = self.core.table.slot(id).expect("it was just added");
        self.core.attach(slot, end);
        self.core.refresh(slot);
        End { mac, wire, stats }
    }

    fn after(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        while self.core.round(self.now) {}
        self.core.tick(self.now);
    }
}

impl End {
    fn send(&self, to: Mac, kind: u16, packet: &[u8]) {
        let frame = [&to.0[..], &self.mac.0, &kind.to_be_bytes(), packet].concat();
        self.wire.send(&frame, Offload::None, None);
    }

    /// A report of version 3 that it is in so many groups, from `first` on.
    fn join(&self, first: u16, groups: u16) {
        let mut report = bytes("2200 0000 0000");
        report.extend(groups.to_be_bytes());
        for group in first..first + groups {
            report.extend([4, 0, 0, 0, 239, 129, (group >> 8) as u8, group as u8]);
        }
        let hex: String = report.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut packet = v4([224, 0, 0, 22], &hex);
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        self.send(v4_mac([0, 0, 22]), V4, &packet);
    }

    /// Frames that came, queries apart.
    fn got(&self) -> usize {
        let received = self.wire.received();
        let query = |bytes: &[u8]| {
            let kind = u16::from_be_bytes([bytes[12], bytes[13]]);
            message(kind, &bytes[14..]) == Some(Message::Query)
        };
        received.iter().filter(|one| !query(&one.bytes)).count()
    }
}

#[test]
fn groups_reach_who_asked_and_no_one_pays_for_a_guest_that_asks_for_all() {
    let mut bench = Bench::new();
    let [a, b, c] = [(); 3].map(|()| bench.port(true, false));
    let (flooded, up) = (bench.port(false, false), bench.port(true, true));
    bench.after(0);
    for end in [&a, &b, &c] {
        assert_eq!(end.wire.received().len(), 2, "it is asked at once, by IGMP and MLD");
    }
    assert!(flooded.wire.received().is_empty() && up.wire.received().is_empty());
    bench.after(20);
    let data = |group: u16| {
        let mut packet = v4([239, 129, (group >> 8) as u8, group as u8], "0000 0000");
        packet[9] = 17;
        a.send(v4_mac([1, (group >> 8) as u8, group as u8]), V4, &packet);
    };
    let arrived = |bench: &mut Bench| {
        bench.after(0);
        [&b, &c, &flooded, &up].map(End::got)
    };
    data(7);
    assert_eq!(arrived(&mut bench), [0, 0, 1, 1]);
    b.join(7, 1);
    assert_eq!(arrived(&mut bench), [0, 1, 1, 1], "a report to a link-local address goes to all");
    data(7);
    data(8);
    assert_eq!(arrived(&mut bench), [1, 0, 2, 2]);
    let mut old = v4([239, 129, 0, 8], "1600 0000 ef810008");
    old[3] = 32;
    c.send(v4_mac([1, 0, 8]), V4, &old);
    assert_eq!(arrived(&mut bench), [0, 0, 1, 1], "one to the group itself goes to no other guest");
    data(8);
    assert_eq!(arrived(&mut bench), [0, 1, 1, 1]);
    // More groups than a port may be in.
    (0..40).for_each(|report| c.join(1000 + report * 100, 100));
    bench.after(1);
    let refused = c.stats.multicast_refused.get();
    assert_eq!(refused, 40 * 100 + 1 - MOST_GROUPS as u64);
    arrived(&mut bench);
    data(7);
    data(4999);
    assert_eq!(arrived(&mut bench), [1, 2, 2, 2], "it gets all, and others what they asked for");
    assert_eq!([&a, &b, &flooded].map(|end| end.stats.multicast_refused.get()), [0; 3]);
    // A query makes its sender's port a router's.
    let query = v4([224, 0, 0, 1], "1164 0000 00000000 027d 0000");
    b.send(v4_mac([0, 0, 1]), V4, &query);
    bench.after(300);
    arrived(&mut bench);
    b.send(v4_mac([0, 0, 1]), V4, &query);
    arrived(&mut bench);
    data(9);
    assert_eq!(arrived(&mut bench), [1, 0, 1, 1]);
}

/// A guest that joins without end must not have all its groups gone through each time.
#[test]
fn a_port_in_all_groups_that_it_may_be_in_is_swept_once_a_second_at_most() {
    let start = Instant::now();
    let mut port = Snooped::new(start);
    let group = |number: usize| v4_mac([1, (number >> 8) as u8, number as u8]);
    let mut join = |number, millis| {
        let at = start + Duration::from_millis(millis);
        port.change(0, Change::Join(group(number)), at)
    };
    assert!((0..MOST_GROUPS).all(|number| join(number, 0)));
    assert!(!join(MOST_GROUPS, 1900), "this sweeps: no group has ended");
    port.change(0, Change::Leave(group(7)), start);
    let mut join = |number, millis| {
        let at = start + Duration::from_millis(millis);
        port.change(0, Change::Join(group(number)), at)
    };
    assert!(!join(MOST_GROUPS, 2100), "one has, and it is too early to sweep");
    assert!(join(MOST_GROUPS, 2900) && !join(MOST_GROUPS + 1, 2901));
}
