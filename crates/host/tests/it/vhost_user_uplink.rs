//! A vhost-user uplink against the tree's own virtio NIC, that is two switches joined, and against back ends
//! that break rules.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use vmlane_device::virtio::net::{NetConfig, NetDevice};
use vmlane_guestsim::memory_port::{LRO, Received, Wire};
use vmlane_guestsim::vhost_user_peer::{self as raw, Offer, RawPeer, accept, receive};
use vmlane_host::uplink::vhost_user::{Entrance, Peers, VhostUser, connect, listen};
use vmlane_port::{Frames, Offload, PortId};
use vmlane_switch::{Policy, PortSpec, Settings, Switch, Traffic, VlanMode};
use vmlane_testkit::{LONGEST, eventually, wait_until};
use vmlane_transport::{Caller, Listener, RingLines, Server, VhostEnd};
use vmlane_wire::ethernet::{Mac, Tci};
use vmlane_wire::vhost_user::protocol;
use vmlane_wire::virtio::{feature, net_feature};

const HERE: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
const THERE: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);

/// A switch with one VM, which the test sends and receives for.
struct World {
    switch: Arc<Switch>,
    vm: Wire,
}

impl World {
    fn new(mac: Mac) -> World {
        let switch = Arc::new(Switch::start(Settings::default()).unwrap());
        let (vm, port) = Wire::small(mac, 32);
        let id = switch.add_port(spec("vm", false)).unwrap();
        switch.attach(id, port);
        World { switch, vm }
    }

    /// An uplink to whatever listens at `socket`, and its port.
    fn uplink(&self, socket: &Path) -> (VhostUser, PortId) {
        let path = socket.to_owned();
        self.uplink_to(Peers::Connect(Box::new(move || connect(&path).map_err(|error| error.to_string()))))
    }

    /// An uplink that listens at `socket`.
    fn listening_uplink(&self, socket: &Path) -> (VhostUser, PortId) {
        let (socket, _) = listen(socket, None).unwrap();
        self.uplink_to(Peers::Accept(Entrance::new(socket, None).unwrap()))
    }

    fn uplink_to(&self, peers: Peers) -> (VhostUser, PortId) {
        let port = self.switch.add_port(spec("lan", true)).unwrap();
        (VhostUser::start(("lan", 1500), peers, self.switch.clone(), port).unwrap(), port)
    }

    /// A virtio NIC behind a socket.
    fn nic(&self, socket: &Path) -> Server {
        self.nic_at(VhostEnd::Listens(Listener::bind(socket).unwrap()))
    }

    fn nic_at(&self, end: VhostEnd) -> Server {
        let port = self.switch.add_port(spec("nic", false)).unwrap();
        let lines = Arc::new(RingLines::new(3).unwrap());
        let config = NetConfig { mac: Mac([2; 6]), mtu: 1500, queues: 1, lro: true, packed: false };
        let device = NetDevice::new(config, self.switch.clone(), port, lines.clone(), Arc::default());
        end.serve("nic", Box::new(device), lines, Arc::default()).unwrap()
    }

    fn is_attached(&self, name: &str) -> bool {
        self.switch.ports().iter().any(|port| port.spec.name == name && port.attached)
    }

    /// Sends frames from `from`'s VM to this one until one comes.
    fn receives(&self, from: &World, frame: &[u8]) -> Received {
        eventually("a frame of the other switch", || {
            let got = self.vm.received().into_iter().find(|received| received.bytes == frame);
            if got.is_none() {
                from.vm.send(frame, Offload::None, None);
            }
            got
        })
    }
}

fn spec(name: &str, uplink: bool) -> PortSpec {
    let promiscuous = uplink || name == "nic";
    PortSpec {
        name: name.into(),
        group: "default".into(),
        switch: String::new(),
        mac: Mac::default(),
        vlan: if promiscuous { VlanMode::Trunk(vmlane_port::VlanSet::all()) } else { VlanMode::Untagged },
        policy: Policy { promiscuous, ..Policy::default() },
        traffic: Traffic::default(),
        uplink,
        direct: false,
        notify: false,
    }
}

fn frame(to: Mac, from: Mac, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0, &[0x88, 0xb5], payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// A TCP super-frame of `len` bytes of payload whose checksum is left to its receiver.
fn super_frame(len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    let mut bytes = Vec::new();
    let packet = etherparse::PacketBuilder::ethernet2(HERE.0, THERE.0).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    packet.tcp(1, 2, 3, 4).ack(5).write(&mut bytes, &payload).unwrap();
    bytes
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("nic.sock")
    }
}

#[test]
fn frames_pass_both_ways_also_when_the_peer_was_gone() {
    let place = Place::new();
    let (here, there) = (World::new(HERE), World::new(THERE));
    let (_uplink, port) = here.uplink(&place.socket());
    for round in 0..3u8 {
        // At first there is none, either.
        wait_until("no connection", || !here.is_attached("lan"));
        let server = there.nic(&place.socket());
        wait_until("a connection", || here.is_attached("lan"));
        let (ping, pong) = (frame(THERE, HERE, &[round; 40]), frame(HERE, THERE, &[round; 1400]));
        there.receives(&here, &ping);
        here.receives(&there, &pong);
        // Thousands more: buffers come back, both ways.
        for number in 0..3000u32 {
            here.vm.send(&frame(THERE, HERE, &number.to_le_bytes()), Offload::None, None);
            there.vm.send(&frame(HERE, THERE, &number.to_le_bytes()), Offload::None, None);
            if number % 16 == 0 {
                wait_until("frames are sent", || here.vm.queued() + there.vm.queued() < 64);
            }
        }
        for world in [&here, &there] {
            let last = 2999u32.to_le_bytes();
            wait_until("the last frame", || {
                world.vm.received().iter().any(|received| received.bytes[14..18] == last)
            });
        }
        drop(server);
    }
    here.switch.remove_port(port);
}

#[test]
fn a_peer_that_connects_is_served_and_again_when_it_was_gone() {
    let place = Place::new();
    let (here, there) = (World::new(HERE), World::new(THERE));
    let (uplink, _) = here.listening_uplink(&place.socket());
    for round in 0..3u8 {
        wait_until("no connection", || !here.is_attached("lan"));
        let server = there.nic_at(VhostEnd::Calls(Caller::new(place.socket()).unwrap()));
        wait_until("a connection", || here.is_attached("lan"));
        there.receives(&here, &frame(THERE, HERE, &[round; 40]));
        here.receives(&there, &frame(HERE, THERE, &[round; 1400]));
        drop(server);
    }
    drop(uplink);
    eventually("no peer gets in any more", || connect(&place.socket()).err());
}

#[test]
fn a_second_peer_is_turned_away_and_the_first_one_stays() {
    let (place, here) = (Place::new(), World::new(HERE));
    let (_uplink, _) = here.listening_uplink(&place.socket());
    let reach = || {
        let socket = UnixStream::connect(place.socket()).unwrap();
        socket.set_read_timeout(Some(LONGEST)).unwrap();
        socket
    };
    let mut first = RawPeer::serve(reach(), ALL);
    wait_until("a connection", || here.is_attached("lan"));
    for _ in 0..3 {
        assert!(receive(&mut reach()).is_none(), "it was asked something");
    }
    first.send([0; 10], 1, &frame(HERE, THERE, b"first"));
    eventually("a frame", || here.vm.received().pop());
    // One that connects while the first one goes is served.
    drop(first);
    let mut next = RawPeer::serve(reach(), ALL);
    wait_until("another connection", || here.is_attached("lan"));
    next.send([0; 10], 1, &frame(HERE, THERE, b"next"));
    let got = eventually("a frame", || here.vm.received().pop());
    assert_eq!(&got.bytes[14..18], b"next");
    // One that sends nothing costs the next one no more than its time.
    drop(next);
    let silent = reach();
    let mut patient = reach();
    drop(silent);
    assert!(receive(&mut patient).is_some());
}

#[test]
fn super_frames_stay_whole_and_tags_in_band() {
    let place = Place::new();
    let (here, there) = (World::new(HERE), World::new(THERE));
    let (_uplink, _) = here.uplink(&place.socket());
    let _server = there.nic(&place.socket());
    there.vm.set_capabilities(LRO);
    wait_until("a connection", || here.is_attached("lan"));
    there.receives(&here, &frame(THERE, HERE, b"first"));
    here.receives(&there, &frame(HERE, THERE, b"first"));
    for len in [60_000, 2100, 4000, 65_000] {
        let sent = super_frame(len);
        here.vm.send(&sent, Offload::Segment { header: 54, mss: 1448 }, None);
        let got = eventually(&format!("the super-frame of {len}"), || {
            there.vm.received().into_iter().find(|got| got.aggregate.is_some())
        });
        let aggregate = got.aggregate.unwrap();
        assert_eq!((aggregate.mss, usize::from(aggregate.segments)), (1448, len.div_ceil(1448)));
        assert!(got.bytes[54..] == sent[54..], "bytes of {len} were damaged");
    }
    // Tagged ones reach only who is in the VLAN.
    let (tagged, port) = Wire::small(Mac([0x52, 0x54, 0, 0, 0, 7]), 32);
    let id = there.switch.add_port(PortSpec { vlan: VlanMode::Access(7), ..spec("tagged", false) }).unwrap();
    there.switch.attach(id, port);
    let (trunk, port) = Wire::small(Mac([0x52, 0x54, 0, 0, 0, 8]), 32);
    let id = here
        .switch
        .add_port(PortSpec { vlan: VlanMode::Trunk(vmlane_port::VlanSet::all()), ..spec("trunk", false) })
        .unwrap();
    here.switch.attach(id, port);
    let broadcast = frame(Mac([0xff; 6]), Mac([0x52, 0x54, 0, 0, 0, 8]), b"tagged");
    trunk.send(&broadcast, Offload::None, Some(Tci(7)));
    let got = eventually("the tagged frame", || tagged.received().pop());
    assert_eq!((got.bytes, got.tag), (broadcast, None));
    assert!(there.vm.received().iter().all(|got| got.bytes[14..20] != *b"tagged"));
}

const ALL: Offer = Offer {
    features: feature::VERSION_1
        | feature::PROTOCOL_FEATURES
        | feature::EVENT_INDEX
        | net_feature::MERGEABLE
        | net_feature::CSUM
        | net_feature::GUEST_CSUM
        | net_feature::HOST_TSO4
        | net_feature::GUEST_TSO4,
    protocol: protocol::REPLY_ACK | protocol::CONFIG,
};

#[test]
fn a_peer_that_breaks_a_rule_of_its_rings_loses_its_connection_and_no_more() {
    type Break = fn(&mut RawPeer);
    let breaks: [(&str, Break); 7] = [
        ("a buffer that it did not have", |peer| peer.give_back(0, 5000, 60)),
        ("a buffer far out of the ring", |peer| peer.give_back(0, u32::MAX, 60)),
        ("a buffer twice", |peer| (0..2).for_each(|_| peer.give_back(0, 3, 72))),
        ("more bytes than a buffer has", |peer| peer.give_back(0, 3, 4000)),
        ("fewer bytes than a header has", |peer| peer.give_back(0, 3, 11)),
        ("more buffers than it had", |peer| peer.publish(0, 600)),
        ("a frame in more buffers than it had", |peer| {
            let (at, _) = peer.bytes(0, 0);
            peer.write(at, &[&[0u8; 10][..], &600u16.to_le_bytes()].concat());
            peer.give_back(0, 0, 72);
        }),
    ];
    for (what, break_rule) in breaks {
        let (place, here) = (Place::new(), World::new(HERE));
        let listener = UnixListener::bind(place.socket()).unwrap();
        let (_uplink, _) = here.uplink(&place.socket());
        let mut peer = RawPeer::serve(accept(&listener), ALL);
        wait_until("a connection", || here.is_attached("lan"));
        // All is well until then.
        peer.send([0; 10], 1, &frame(HERE, THERE, b"before"));
        eventually("a frame", || here.vm.received().pop());
        while peer.take(0).is_some() {}
        break_rule(&mut peer);
        if what != "more buffers than it had" {
            peer.publish(0, 0);
        }
        peer.expect_end();
        wait_until(what, || !here.is_attached("lan"));
        // It gets another chance, with other memory.
        let mut peer = RawPeer::serve(accept(&listener), ALL);
        wait_until("another connection", || here.is_attached("lan"));
        peer.send([0; 10], 1, &frame(HERE, THERE, b"after"));
        let got = eventually("a frame", || here.vm.received().pop());
        assert_eq!(&got.bytes[14..19], b"after", "{what}");
    }
}

#[test]
fn a_peer_that_completes_what_it_was_not_sent_loses_its_connection() {
    let (place, here) = (Place::new(), World::new(HERE));
    let listener = UnixListener::bind(place.socket()).unwrap();
    let (_uplink, _) = here.uplink(&place.socket());
    let mut peer = RawPeer::serve(accept(&listener), ALL);
    wait_until("a connection", || here.is_attached("lan"));
    peer.give_back(1, 512, 0);
    peer.publish(1, 0);
    // It is noticed when the ring is full.
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| peer.expect_end());
        while !ended.is_finished() {
            here.vm.send(&frame(THERE, HERE, b"more"), Offload::None, None);
            std::thread::sleep(Duration::from_micros(100));
        }
    });
}

#[test]
fn invalid_frames_are_dropped_and_counted_and_their_buffers_come_back() {
    let (place, here) = (Place::new(), World::new(HERE));
    let listener = UnixListener::bind(place.socket()).unwrap();
    let (_uplink, port) = here.uplink(&place.socket());
    let mut peer = RawPeer::serve(accept(&listener), ALL);
    assert_eq!(
        peer.features,
        ALL.features & !feature::EVENT_INDEX,
        "what is of use is accepted, and no more"
    );
    wait_until("a connection", || here.is_attached("lan"));
    let mut buffers = 0;
    while peer.take(0).is_some() {
        buffers += 1;
    }
    // Only what the front end makes available anew is taken from here on.
    let segment_of_udp = [1, 5, 0, 0, 0xa8, 5, 34, 0, 6, 0];
    let checksum_outside = [1, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0];
    for id in 0..buffers {
        let (header, frame) = match id % 3 {
            0 => ([0; 10], b"short".to_vec()),
            1 => (segment_of_udp, frame(HERE, THERE, b"not agreed on")),
            _ => (checksum_outside, frame(HERE, THERE, b"wrong")),
        };
        let (at, _) = peer.bytes(0, id);
        peer.write(at, &[&header[..], &[1, 0], &frame].concat());
        peer.give_back(0, id.into(), (raw::VNET + frame.len()) as u32);
    }
    peer.publish(0, 0);
    let stats = here.switch.stats(port);
    let count = |name: &str| {
        let all: std::collections::BTreeMap<_, _> =
            vmlane_stats::Counters::snapshot(&*stats).into_iter().collect();
        all.get(name).copied().unwrap_or_default()
    };
    wait_until("all are counted", || {
        count("drop_bad_length") + count("drop_bad_offload") == u64::from(buffers)
    });
    for _ in 0..buffers {
        eventually("every buffer", || peer.take(0));
    }
    assert!(here.vm.received().is_empty());
    // A frame in two pieces, and one of which only the first piece is there yet.
    let whole = frame(HERE, THERE, &[7; 1000]);
    let (first, rest) = whole.split_at(500);
    let (at, _) = peer.bytes(0, 0);
    peer.write(at, &[&[0u8; 10][..], &[2, 0], first].concat());
    peer.give_back(0, 0, (raw::VNET + first.len()) as u32);
    peer.publish(0, 0);
    std::thread::sleep(Duration::from_millis(20));
    assert!(here.vm.received().is_empty());
    let (at, _) = peer.bytes(0, 1);
    peer.write(at, rest);
    peer.give_back(0, 1, rest.len() as u32);
    peer.publish(0, 0);
    assert_eq!(eventually("the frame", || here.vm.received().pop()).bytes, whole);
}

#[test]
fn a_back_end_without_acknowledgments_is_used_and_one_without_what_is_needed_is_not() {
    let (place, here) = (Place::new(), World::new(HERE));
    let listener = UnixListener::bind(place.socket()).unwrap();
    let (_uplink, _) = here.uplink(&place.socket());
    for features in [0, feature::VERSION_1, net_feature::MERGEABLE | feature::PROTOCOL_FEATURES] {
        let mut socket = accept(&listener);
        let code = loop {
            match receive(&mut socket) {
                Some((header, ..)) if header.request.get() == 1 => raw::answer(&mut socket, 1, features),
                Some((header, ..)) if header.request.get() == 3 => {}
                other => break other.map(|(header, ..)| header.request.get()),
            }
        };
        assert_eq!(code, None, "it has asked on after {features:#x}");
        assert!(!here.is_attached("lan"));
    }
    let plain = Offer { features: feature::VERSION_1 | net_feature::MERGEABLE, protocol: 0 };
    let mut peer = RawPeer::serve(accept(&listener), plain);
    wait_until("a connection", || here.is_attached("lan"));
    peer.send([0; 10], 1, &frame(HERE, THERE, b"plain"));
    eventually("a frame", || here.vm.received().pop());
}
