//! What the switch should do, written down once more, without tables, caches and turns: who gets a frame,
//! with which tag. Ports of two isolation groups and two switches and on two wires, all VLAN modes and
//! policies, addresses that guests change or make up, an uplink, receivers for which TCP segments are merged
//! (software LRO, see `segments.rs`).

use std::collections::{BTreeMap, HashMap};

use vmlane_guestsim::memory_port::{LRO, PLAIN, Wire};
use vmlane_port::{Filter, Frames, Offload, PortId, RxCapabilities, VlanSet};
use vmlane_switch::{Policy, PortSpec, Settings, Switch, Traffic, VlanMode, Worker};
use vmlane_testkit::wait_until;
use vmlane_wire::ethernet::{Mac, Tci};

use crate::Input;
use crate::segments::{Expected, Flow, Segment};

/// Ports of VMs; one more is an uplink.
pub const GUESTS: usize = 5;
/// Frames that the memory of one port has room for.
const ROOM: usize = 8;
/// VLAN of a tagged frame; one of them is in use nowhere.
const VLANS: [u16; 4] = [0, 10, 20, 77];

/// A port of a VM has `own(n)`, its guest may choose `chosen(n)`, strangers have others.
fn own(number: usize) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, number as u8])
}

fn chosen(number: usize) -> Mac {
    Mac([0x52, 0x54, 0, 0, 1, number as u8])
}

fn stranger(number: usize) -> Mac {
    Mac([0x02, 0, 0, 0, 0, number as u8])
}

struct Port {
    id: PortId,
    spec: PortSpec,
    filter: Filter,
    capabilities: RxCapabilities,
    attached: bool,
    wire: Wire,
}

impl Port {
    fn changed(&self) -> bool {
        !self.spec.uplink && self.filter.mac.is_unicast() && self.filter.mac != self.spec.mac
    }

    fn blocked(&self) -> bool {
        self.changed() && !self.spec.policy.mac_changes
    }

    fn address(&self) -> Mac {
        if self.changed() && !self.blocked() { self.filter.mac } else { self.spec.mac }
    }

    fn carries(&self, vlan: u16) -> bool {
        match &self.spec.vlan {
            VlanMode::Untagged => vlan == 0,
            VlanMode::Access(own) => vlan == *own,
            VlanMode::Trunk(set) => set.contains(vlan),
        }
    }

    fn ingress(&self, tag: Option<Tci>) -> Option<u16> {
        let tagged = tag.map_or(0, |tag| tag.vlan());
        match (&self.spec.vlan, tagged) {
            (VlanMode::Untagged, 0) => Some(0),
            (VlanMode::Access(own), 0) => Some(*own),
            (VlanMode::Trunk(set), vlan) if set.contains(vlan) => Some(vlan),
            _ => None,
        }
    }

    /// Frames to unknown addresses.
    fn wants_strangers(&self) -> bool {
        let Policy { promiscuous, forged_transmits, .. } = self.spec.policy;
        self.filter.promiscuous && (self.spec.uplink || promiscuous || forged_transmits)
    }

    /// Frames to others.
    fn is_observer(&self) -> bool {
        self.filter.promiscuous && self.spec.policy.promiscuous && !self.spec.uplink
    }

    /// The tag that its guest sees; `None` if the guest does not want the frame.
    fn sees(&self, to: Mac, vlan: u16, tag: Option<Tci>) -> Option<Option<Tci>> {
        let wanted = match () {
            () if to.is_multicast() => {
                !self.spec.direct || self.filter.promiscuous || self.filter.accepts(to)
            }
            () if to == self.address() => self.filter.unicast || self.filter.promiscuous,
            () => self.wants_strangers(),
        };
        let shown = match &self.spec.vlan {
            VlanMode::Trunk(_) => self.filter.promiscuous || self.filter.accepts_vlan(vlan),
            _ => true,
        };
        if self.blocked() || !wanted || !shown {
            return None;
        }
        Some(match (&self.spec.vlan, vlan, tag) {
            (VlanMode::Access(_), ..) => None,
            (_, 0, tag) => tag,
            (_, vlan, tag) => Some(tag.unwrap_or_default().with_vlan(vlan)),
        })
    }
}

/// The switch, and what should become of it.
pub struct Bench {
    switch: Switch,
    workers: Vec<Worker>,
    ports: Vec<Port>,
    /// Group, address, VLAN: behind which port, and whether that is an uplink.
    learned: HashMap<(Network, Mac, u16), usize>,
    frames: u32,
}

fn set(vlans: impl IntoIterator<Item = u16>) -> VlanSet {
    let mut set = VlanSet::none();
    vlans.into_iter().for_each(|vlan| set.insert(vlan));
    set
}

fn vlan_mode(input: &mut Input<'_>) -> VlanMode {
    match input.byte() % 5 {
        0 | 1 => VlanMode::Untagged,
        2 => VlanMode::Access(10),
        3 => VlanMode::Access(20),
        _ => {
            let kinds = input.byte();
            VlanMode::Trunk(set((0..VLANS.len()).filter(|at| kinds >> at & 1 == 1).map(|at| VLANS[at])))
        }
    }
}

fn policy(input: &mut Input<'_>) -> Policy {
    let kinds = input.byte();
    Policy { promiscuous: kinds & 1 != 0, mac_changes: kinds & 2 == 0, forged_transmits: kinds & 4 == 0 }
}

/// Isolation group and switch.
type Network = (String, String);

fn network(spec: &PortSpec) -> Network {
    (spec.group.clone(), spec.switch.clone())
}

fn spec(input: &mut Input<'_>, number: usize) -> PortSpec {
    let place = input.byte();
    // Half of the others are in one group on one switch.
    let of = |other| if place % 4 == other { "other" } else { "default" };
    let uplink = number == GUESTS;
    let spec = PortSpec {
        name: format!("vm{}/nic{number}", number / 2),
        group: of(0).into(),
        switch: of(1).into(),
        mac: own(number),
        vlan: vlan_mode(input),
        policy: policy(input),
        traffic: Traffic::default(),
        uplink,
        direct: false,
        // The switch sends nothing of its own.
        notify: false,
    };
    if place < WIRES { spec } else { on_wire(place, spec) }
}

/// From here on, the byte that says where a port is names a wire.
const WIRES: u8 = 0xc0;

/// Nothing is judged there, and all tags pass.
fn on_wire(place: u8, spec: PortSpec) -> PortSpec {
    PortSpec {
        group: "-".into(),
        switch: format!("wire:{}", place % 2),
        vlan: VlanMode::Trunk(VlanSet::all()),
        policy: Policy { promiscuous: true, mac_changes: true, forged_transmits: true },
        direct: true,
        ..spec
    }
}

fn filter(input: &mut Input<'_>, number: usize) -> Filter {
    let kinds = input.byte();
    let bit = |at: u32| kinds >> at & 1 == 1;
    Filter {
        mac: if bit(0) { chosen(number) } else { own(number) },
        unicast: !bit(1),
        broadcast: !bit(2),
        all_multicast: bit(3),
        promiscuous: bit(4),
        multicast: if bit(5) { vec![Mac([1, 0, 0, 0, 0, 1])] } else { Vec::new() },
        vlans: bit(6).then(|| set([10])),
    }
}

impl Bench {
    /// A switch with so many workers.
    pub fn new(input: &mut Input<'_>, workers: usize) -> Bench {
        let (switch, workers) = Switch::unstarted_workers(Settings { workers, ..Settings::default() });
        let mut bench = Bench { switch, workers, ports: Vec::new(), learned: HashMap::new(), frames: 0 };
        for number in 0..=GUESTS {
            let spec = spec(input, number);
            let (wire, end) = Wire::small(spec.mac, ROOM);
            let filter = if spec.uplink { Filter::open() } else { filter(input, number) };
            wire.change_filter(|kept| *kept = filter.clone());
            let id = bench.switch.add_port(spec.clone()).expect("a switch with room");
            bench.switch.attach(id, end);
            bench.switch.refresh(id);
            bench.ports.push(Port { id, spec, filter, capabilities: PLAIN, attached: true, wire });
        }
        bench.settle();
        bench
    }

    /// Rounds until nothing moves.
    fn settle(&mut self) {
        for round in 0..1000 {
            self.workers.iter_mut().for_each(|worker| assert!(worker.step(), "it was not asked to stop"));
            // What one worker sends another comes a round later.
            if round > 2 && !self.workers.iter().any(|worker| worker.moved()) {
                return;
            }
        }
        panic!("frames never come to rest");
    }

    /// Something happens.
    pub fn act(&mut self, input: &mut Input<'_>) {
        let number = usize::from(input.byte()) % self.ports.len();
        let what = input.byte();
        match what % 16 {
            // These two have values of their own, so that older inputs mean what they did.
            _ if (0xe0..0xe8).contains(&what) => self.change_capabilities(what, number),
            _ if (0xe8..0xf0).contains(&what) => self.send_burst(input, what, number),
            0 => self.configure(input, number),
            1 if number < GUESTS => self.change_filter(input, number),
            2 => self.plug(number),
            _ => self.send(input, number),
        }
    }

    fn configure(&mut self, input: &mut Input<'_>, number: usize) {
        let port = &mut self.ports[number];
        let fresh = spec(input, number);
        port.spec = fresh.clone();
        self.switch.update_port(port.id, fresh);
        self.learned.retain(|_, behind| *behind != number);
        self.settle();
    }

    fn change_filter(&mut self, input: &mut Input<'_>, number: usize) {
        let port = &mut self.ports[number];
        port.filter = filter(input, number);
        port.wire.change_filter(|kept| *kept = port.filter.clone());
        self.switch.refresh(port.id);
        self.settle();
    }

    /// Its guest takes super-frames, or no longer.
    fn change_capabilities(&mut self, kinds: u8, number: usize) {
        let port = &mut self.ports[number];
        let (tso4, tso6) = (kinds & 1 != 0, kinds & 2 != 0);
        let aggregate = if kinds & 4 != 0 { 4000 } else { LRO.aggregate };
        port.capabilities =
            if tso4 || tso6 { RxCapabilities { tso4, tso6, aggregate, ..LRO } } else { PLAIN };
        port.wire.set_capabilities(port.capabilities);
        self.switch.refresh(port.id);
        self.settle();
    }

    /// The other end of the wire goes, or another comes.
    fn plug(&mut self, number: usize) {
        let port = &mut self.ports[number];
        port.attached = !port.attached;
        if port.attached {
            let (wire, end) = Wire::small(port.spec.mac, ROOM);
            wire.change_filter(|kept| *kept = port.filter.clone());
            wire.set_capabilities(port.capabilities);
            self.switch.attach(port.id, end);
            self.switch.refresh(port.id);
            port.wire = wire;
        } else {
            self.switch.detach(port.id);
        }
        self.learned.retain(|_, behind| *behind != number);
        self.settle();
        assert!(self.ports[number].attached || self.ports[number].wire.dropped());
    }

    fn address(&self, input: &mut Input<'_>) -> Mac {
        let which = usize::from(input.byte()) % GUESTS;
        match input.byte() % 8 {
            0..=3 => own(which),
            4 => chosen(which),
            5 => Mac([0xff; 6]),
            6 => Mac([1, 0, 0, 0, 0, which as u8]),
            _ => stranger(which),
        }
    }

    /// One frame, to its end: each port got what the model has, and nothing else.
    fn send(&mut self, input: &mut Input<'_>, number: usize) {
        let to = self.address(input);
        let sender = &self.ports[number];
        let from = if input.byte() & 3 == 0 { self.address(input) } else { sender.address() };
        let tag = match input.byte() % 4 {
            0 => Some(Tci::default().with_vlan(VLANS[usize::from(input.byte()) % VLANS.len()])),
            _ => None,
        };
        let mut frame = [to.0, from.0].concat();
        let in_band = tag.is_some() && input.byte() & 1 == 0;
        frame.extend([0x88, 0xb5]);
        frame.extend(self.frames.to_le_bytes());
        frame.resize(60 + usize::from(input.byte()) * 5, self.frames as u8);
        self.frames = self.frames.wrapping_add(1);
        if !sender.attached {
            return;
        }
        let sent = match tag.filter(|_| in_band) {
            Some(tag) => [&frame[..12], &[0x81, 0][..], &tag.0.to_be_bytes()[..], &frame[12..]].concat(),
            None => frame.clone(),
        };
        let expected = self.receivers(number, from, to, tag);
        self.ports[number].wire.send(&sent, Offload::None, tag.filter(|_| !in_band));
        self.settle();
        for (at, port) in self.ports.iter().enumerate() {
            let got = port.wire.received();
            let got: Vec<_> = got.into_iter().map(|received| (received.tag, received.bytes)).collect();
            let wanted: Vec<_> = expected.get(&at).map(|tag| (*tag, frame.clone())).into_iter().collect();
            assert!(
                got == wanted,
                "port {at} of frame {from:?} to {to:?} tag {tag:?} by port {number}: got {:?}, should have {:?}",
                got.iter().map(|(tag, bytes)| (tag, bytes.len())).collect::<Vec<_>>(),
                wanted.iter().map(|(tag, bytes)| (tag, bytes.len())).collect::<Vec<_>>(),
            );
            assert_eq!(port.wire.outstanding(), 0, "port {at} has an unfinished frame");
        }
    }

    /// TCP segments in one burst, of two flows that may be one: each port got those of the model, merged or
    /// not, in the order of their flow. `kinds`: whether receivers have room for a few only, and so lose
    /// some; whether there is a tag.
    fn send_burst(&mut self, input: &mut Input<'_>, kinds: u8, number: usize) {
        let from = self.ports[number].address();
        let mut flows = [(); 2].map(|()| {
            let to = self.address(input);
            Flow::new(input, to, from)
        });
        let tag = (kinds & 1 != 0)
            .then(|| Tci::default().with_vlan(VLANS[usize::from(input.byte()) % VLANS.len()]));
        let lossy = kinds & 2 != 0;
        if !self.ports[number].attached {
            return;
        }
        if lossy {
            self.ports.iter().for_each(|port| port.wire.set_room(Some(usize::from(kinds >> 2 & 1) + 1)));
        }
        let order = input.byte();
        let mut expected: Vec<Expected> = self.ports.iter().map(|_| Expected::default()).collect();
        for at in 0..=usize::from(input.byte()) % (2 * ROOM) {
            let flow = &mut flows[usize::from(order >> (at % 8) & 1)];
            let to = flow.to;
            let segment = flow.next(input);
            for (receiver, seen) in self.receivers(number, from, to, tag) {
                expected[receiver].push(seen, &segment);
            }
            let Segment { sent, offload, .. } = &segment;
            self.ports[number].wire.send(sent, *offload, tag);
        }
        self.settle();
        if lossy {
            self.ports.iter().for_each(|port| port.wire.set_room(None));
            self.drain(number);
        }
        for (port, expected) in self.ports.iter().zip(expected) {
            expected.check(&port.wire.received(), &port.capabilities, lossy);
            assert_eq!(port.wire.outstanding(), 0, "an unfinished frame of port {}", port.spec.name);
        }
    }

    /// What waits for buffers, of which there are enough now, is delivered or too old.
    fn drain(&mut self, number: usize) {
        wait_until("frames that waited for room have gone", || {
            self.settle();
            let wire = &self.ports[number].wire;
            wire.outstanding() + wire.queued() == 0
        });
    }

    /// Who gets a frame, with which tag.
    fn receivers(
        &mut self,
        number: usize,
        from: Mac,
        to: Mac,
        tag: Option<Tci>,
    ) -> BTreeMap<usize, Option<Tci>> {
        let sender = &self.ports[number];
        let Some(vlan) = sender.ingress(tag) else { return BTreeMap::new() };
        let network = network(&sender.spec);
        if sender.spec.direct {
            let is_other = |at: &usize| {
                let port = &self.ports[*at];
                *at != number && port.attached && self::network(&port.spec) == network
            };
            let others: Vec<usize> = (0..self.ports.len()).filter(is_other).collect();
            let [other] = others[..] else { return BTreeMap::new() };
            return self.ports[other].sees(to, vlan, tag).map(|seen| (other, seen)).into_iter().collect();
        }
        if !from.is_unicast() {
            return BTreeMap::new();
        }
        let has = |address: Mac| {
            let of = |port: &Port| port.attached && !port.spec.uplink && self::network(&port.spec) == network;
            self.ports.iter().position(|port| of(port) && port.address() == address)
        };
        if sender.spec.uplink || from != sender.address() {
            if !sender.spec.uplink && !sender.spec.policy.forged_transmits {
                return BTreeMap::new();
            }
            if has(from).is_none() {
                let behind = self.learned.get(&(network.clone(), from, vlan)).copied();
                // What is outside the host stays there while frames of it come.
                if sender.spec.uplink || behind.is_none_or(|behind| !self.ports[behind].spec.uplink) {
                    self.learned.insert((network.clone(), from, vlan), number);
                }
            }
        }
        let sender = &self.ports[number];
        let member = |at: usize| {
            let port = &self.ports[at];
            let both_outside = sender.spec.uplink && port.spec.uplink;
            let is_beside = self::network(&port.spec) == network;
            at != number && port.attached && is_beside && port.carries(vlan) && !both_outside
        };
        let all = |want: &dyn Fn(&Port) -> bool| -> Vec<usize> {
            (0..self.ports.len()).filter(|&at| member(at) && want(&self.ports[at])).collect()
        };
        let one = |at: usize| -> Vec<usize> {
            let mut all = all(&|port| port.is_observer());
            if at != number && !all.contains(&at) {
                all.push(at);
            }
            all
        };
        let receivers = if to.is_multicast() {
            all(&|port| port.wants_strangers() || port.filter.accepts(to))
        } else if to == sender.address() {
            // No other port's, not even for ports in promiscuous mode.
            Vec::new()
        } else if let Some(at) = has(to).filter(|&at| self.ports[at].carries(vlan)) {
            one(at)
        } else {
            match self.learned.get(&(network.clone(), to, vlan)) {
                Some(&at) if at == number => Vec::new(),
                Some(&at)
                    if self.ports[at].carries(vlan)
                        && !(sender.spec.uplink && self.ports[at].spec.uplink) =>
                {
                    one(at)
                }
                _ => all(&|port| port.wants_strangers()),
            }
        };
        let seen = receivers.into_iter().filter_map(|at| Some((at, self.ports[at].sees(to, vlan, tag)?)));
        seen.collect()
    }
}
