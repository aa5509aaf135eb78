//! A switch with several workers does what one with a single worker does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use vmlane_guestsim::memory_port::{LRO, Trap, Wire};
use vmlane_port::{Frames, Offload, PortId, VlanSet};
use vmlane_stats::Counters;
use vmlane_switch::{MirrorDirection, MirrorSpec, Policy, PortSpec, Settings, Switch, Traffic, VlanMode};
use vmlane_testkit::wait_until;
use vmlane_wire::ethernet::{Mac, Tci};

use crate::common::tcp::Packet;
use crate::common::{Bench, Guest, frame, mac};

const WORKERS: usize = 3;

fn bench(workers: usize) -> Bench {
    // What is merged depends on which frames are there at once.
    Bench::with(Settings { workers, hold: Duration::from_secs(3600), coalesce: false, ..Settings::default() })
}

/// How one port of a world is.
#[derive(Clone, Debug)]
struct PortPlan {
    group: u8,
    vlan: u8,
    policy: [bool; 3],
    promiscuous: bool,
    all_multicast: bool,
    lro: bool,
    uplink: bool,
    snoop: bool,
    /// It uses another address than its own.
    moved: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Send {
        from: u8,
        to: u8,
        source: u8,
        len: u16,
        tag: Option<u8>,
        segments: bool,
    },
    Detach(u8),
    Attach(u8),
    Change(u8, PortPlan),
    Filter(u8, bool, bool),
    Down(u8, bool),
    /// To another worker, frames on their way or not.
    Move(u8, u8),
    Run,
}

fn port_plan() -> impl Strategy<Value = PortPlan> {
    let flags = prop::array::uniform8(any::<bool>());
    let rare = || prop::bool::weighted(0.2);
    (0..2u8, 0..4u8, flags, rare(), rare()).prop_map(|(group, vlan, flags, uplink, moved)| {
        let [a, b, c, promiscuous, all_multicast, lro, snoop, _] = flags;
        let policy = [a, b, c];
        PortPlan { group, vlan, policy, promiscuous, all_multicast, lro, uplink, snoop, moved }
    })
}

fn step() -> impl Strategy<Value = Step> {
    let port = 0..6u8;
    // Short ones go from worker to worker by value.
    let len = prop_oneof![60..=200u16, 60..3000u16];
    let send =
        (port.clone(), 0..10u8, 0..9u8, len, prop::option::weighted(0.2, 0..4u8), any::<bool>()).prop_map(
            |(from, to, source, len, tag, segments)| Step::Send { from, to, source, len, tag, segments },
        );
    prop_oneof![
        12 => send,
        1 => port.clone().prop_map(Step::Detach),
        2 => port.clone().prop_map(Step::Attach),
        1 => (port.clone(), port_plan()).prop_map(|(port, plan)| Step::Change(port, plan)),
        1 => (port.clone(), any::<bool>(), any::<bool>()).prop_map(|(port, a, b)| Step::Filter(port, a, b)),
        1 => (port.clone(), any::<bool>()).prop_map(|(port, down)| Step::Down(port, down)),
        2 => (port.clone(), 0..WORKERS as u8).prop_map(|(port, to)| Step::Move(port, to)),
        4 => Just(Step::Run),
    ]
}

fn spec(number: u8, plan: &PortPlan) -> PortSpec {
    let [promiscuous, mac_changes, forged_transmits] = plan.policy;
    let mut set = VlanSet::none();
    [1, 2].into_iter().for_each(|vlan| set.insert(vlan));
    PortSpec {
        name: format!("vm-{number}/nic0"),
        group: format!("group-{}", plan.group),
        switch: String::new(),
        mac: mac(number + 1),
        vlan: match plan.vlan {
            0 | 1 => VlanMode::Untagged,
            2 => VlanMode::Access(1),
            _ => VlanMode::Trunk(set),
        },
        policy: Policy { promiscuous, mac_changes, forged_transmits },
        traffic: Traffic { snoop: plan.snoop, ..Traffic::default() },
        uplink: plan.uplink,
        direct: false,
        notify: false,
    }
}

/// What a port got, by source address, in its order.
type Got = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;
type Counts = Vec<(&'static str, u64)>;

/// Ports of a switch, and what was done to them.
struct World {
    bench: Bench,
    ids: Vec<PortId>,
    plans: Vec<PortPlan>,
    wires: Vec<Option<Wire>>,
    /// By port.
    got: Vec<Got>,
    /// Whose frames may be on their way: what several send at once has no order.
    sending: Option<usize>,
    /// Frames to several ports may be: one that moves may miss them.
    any_to_several: bool,
}

impl World {
    fn new(workers: usize, plans: &[PortPlan]) -> World {
        let bench = bench(workers);
        let ids = (0..)
            .zip(plans)
            .map(|(number, plan)| bench.switch.add_port(spec(number, plan)).unwrap())
            .collect();
        let wires = plans.iter().map(|_| None).collect();
        let got = plans.iter().map(|_| BTreeMap::new()).collect();
        let mut world =
            World { bench, ids, plans: plans.to_vec(), wires, got, sending: None, any_to_several: false };
        world.run();
        (0..plans.len()).for_each(|at| world.attach(at));
        world
    }

    fn run(&mut self) {
        // What a worker asks of the others comes a round later.
        (0..4).for_each(|_| self.bench.step());
        self.bench.run();
        self.collect();
        self.any_to_several = false;
    }

    fn collect(&mut self) {
        for (wire, got) in self.wires.iter().zip(&mut self.got) {
            for received in wire.iter().flat_map(Wire::received) {
                let tag = received.tag.map_or(0, |tag| tag.0);
                let source = received.bytes[6..12].to_vec();
                let whole = [&received.bytes[..], &tag.to_be_bytes()].concat();
                got.entry(source).or_default().push(whole);
            }
        }
    }

    fn attach(&mut self, at: usize) {
        let plan = self.plans[at].clone();
        let number = at as u8 + 1;
        let own = if plan.moved { mac(number + 100) } else { mac(number) };
        let (wire, end) = Wire::small(own, 32);
        wire.change_filter(|filter| {
            if plan.uplink {
                *filter = vmlane_port::Filter::open();
            }
            filter.promiscuous |= plan.promiscuous;
            filter.all_multicast = plan.all_multicast;
        });
        if plan.lro {
            wire.set_capabilities(LRO);
        }
        self.run();
        self.bench.switch.attach(self.ids[at], end);
        self.bench.switch.refresh(self.ids[at]);
        self.wires[at] = Some(wire);
        self.run();
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Send { from, to, source, len, tag, segments } => {
                let from = usize::from(from);
                if self.sending != Some(from) {
                    self.run();
                    self.sending = Some(from);
                }
                let Some(wire) = &self.wires[from] else { return };
                let open = |plan: &PortPlan| plan.promiscuous || plan.uplink || plan.moved;
                let known = self.wires.get(usize::from(to)).is_some_and(Option::is_some);
                self.any_to_several |= !known || self.plans.iter().any(open);
                let to = match to {
                    6 => Mac::BROADCAST,
                    7 => Mac([1, 0, 0x5e, 1, 2, 3]),
                    8 => mac(106),
                    9 => mac(200),
                    to => mac(to + 1),
                };
                // Mostly its own address; else one that it forges.
                let source = match source {
                    0 => mac(201),
                    1 => mac(102),
                    _ => mac(from as u8 + 1),
                };
                let tag = tag.map(|vlan| Tci::default().with_vlan(vlan.into()));
                if segments {
                    let (more, mss) = if len < 130 { (0, 40) } else { (500, 700) };
                    let packet = Packet::new(to, source, false, usize::from(len) + more);
                    let offload = Offload::Segment { header: packet.header_len() as u16, mss };
                    wire.send(&packet.partial(false), offload, tag);
                } else {
                    wire.send(&frame(to, source, len.min(1500).into(), from as u8), Offload::None, tag);
                }
            }
            Step::Detach(at) => {
                self.run();
                self.bench.switch.detach(self.ids[usize::from(at)]);
                self.run();
                self.wires[usize::from(at)] = None;
            }
            Step::Attach(at) => self.attach(at.into()),
            Step::Change(at, ref plan) => {
                let at = usize::from(at);
                // Whether a port leads out, and what is attached to it, stays.
                let plan = PortPlan { uplink: self.plans[at].uplink, ..plan.clone() };
                self.run();
                self.bench.switch.update_port(self.ids[at], spec(at as u8, &plan));
                self.plans[at] = plan;
                self.run();
            }
            Step::Filter(at, promiscuous, all_multicast) => {
                let at = usize::from(at);
                self.run();
                if let Some(wire) = &self.wires[at] {
                    wire.change_filter(|filter| {
                        (filter.promiscuous, filter.all_multicast) = (promiscuous, all_multicast);
                    });
                    self.bench.switch.refresh(self.ids[at]);
                }
                self.run();
            }
            Step::Down(at, down) => {
                self.run();
                self.bench.switch.set_link(self.ids[usize::from(at)], !down);
                self.run();
            }
            Step::Move(at, to) => {
                if self.any_to_several {
                    self.run();
                }
                self.move_port(at.into(), to.into());
            }
            Step::Run => self.run(),
        }
    }

    /// To one of the workers that there are.
    fn move_port(&mut self, at: usize, to: usize) {
        let to = to % self.bench.workers.len();
        let Some(mut moving) = self.bench.switch.begin_move(self.ids[at], to) else { return };
        let moved = loop {
            self.bench.step();
            if let Some(moved) = moving.advance(&self.bench.switch) {
                break moved;
            }
        };
        // What was asked last.
        self.bench.step();
        let worker = self.bench.switch.ports().iter().find(|view| view.id == self.ids[at]).unwrap().worker;
        assert_eq!(worker == to, moved, "port {at} to worker {to}");
    }

    /// Everything moves at last.
    fn finish(&mut self) -> (Vec<Got>, Vec<Counts>) {
        self.run();
        let in_flight: usize = self.wires.iter().flatten().map(Wire::outstanding).sum();
        assert_eq!(in_flight, 0, "every frame comes back to its sender");
        let counts = |id: &PortId| {
            let all = self.bench.switch.stats(*id).snapshot();
            // How long frames waited, and which of several drops it is, is a matter of rounds.
            let same = |(name, _): &(&str, u64)| {
                ["tx_frames", "tx_bytes", "tx_tso", "rx_frames", "rx_bytes", "panics"].contains(name)
            };
            all.into_iter().filter(same).collect()
        };
        (self.got.clone(), self.ids.iter().map(counts).collect())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn several_workers_deliver_what_one_delivers(
        plans in prop::collection::vec(port_plan(), 6),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let [one, others @ ..] = &live(&plans, &steps);
        for other in others {
            prop_assert_eq!(one, other);
        }
    }
}

/// What became of it with one, two and more workers.
fn live(plans: &[PortPlan], steps: &[Step]) -> [(Vec<Got>, Vec<Counts>); 3] {
    [1, 2, WORKERS].map(|workers| {
        let mut world = World::new(workers, plans);
        steps.iter().for_each(|step| world.apply(step));
        world.finish()
    })
}

/// A frame to an address that no one has goes to the uplink, with another worker too, though that one learns
/// meanwhile that its sender uses this address itself.
#[test]
fn an_address_that_is_learned_meanwhile_changes_nothing_for_frames_before() {
    let plain = PortPlan {
        group: 0,
        vlan: 0,
        policy: [false; 3],
        promiscuous: false,
        all_multicast: false,
        lro: false,
        uplink: false,
        snoop: false,
        moved: false,
    };
    let uplink = PortPlan { group: 1, uplink: true, ..plain.clone() };
    let moved = PortPlan { group: 1, policy: [false, true, true], moved: true, ..plain.clone() };
    let plans = [plain.clone(), uplink, plain.clone(), moved, plain.clone(), plain];
    let send = |to, source| Step::Send { from: 3, to, source, len: 60, tag: None, segments: false };
    let [one, two, more] = live(&plans, &[send(3, 0), send(0, 2)]);
    assert_eq!(one.0[1].values().map(Vec::len).sum::<usize>(), 2);
    assert_eq!((&one, &one), (&two, &more));
}

/// A switch with threads and `count` ports, spread over them.
fn started(count: u8) -> (Arc<Switch>, Vec<(PortId, Wire)>) {
    // Frames wait for as long as a busy host takes.
    let hold = Duration::from_secs(3600);
    let switch = Arc::new(Switch::start(Settings { workers: WORKERS, hold, ..Settings::default() }).unwrap());
    let port = |number| {
        let id = switch.add_port(Bench::spec(number)).unwrap();
        let (wire, end) = Wire::new(mac(number));
        switch.attach(id, end);
        (id, wire)
    };
    let ports = (1..=count).map(port).collect();
    let workers: BTreeMap<_, usize> = switch.ports().iter().fold(BTreeMap::new(), |mut counts, view| {
        *counts.entry(view.worker).or_default() += 1;
        counts
    });
    assert_eq!(workers.len(), WORKERS.min(count.into()), "ports are spread over the workers");
    (switch, ports)
}

/// Has the switch look until few of a port's frames wait to be sent, or all is over.
fn wait_for_room(switch: &Switch, id: PortId, wire: &Wire, over: &AtomicBool) {
    while wire.queued() > 512 && !over.load(Ordering::Relaxed) {
        switch.kick(id);
        std::thread::yield_now();
    }
}

/// Bytes of the frame of a number: of those that go by value and those that are lent in turn.
fn some_len(count: u32) -> usize {
    60 + (count % 140) as usize + if count.is_multiple_of(3) { (count * 769 % 1300) as usize } else { 0 }
}

#[test]
fn frames_between_workers_keep_their_order_while_ports_come_and_go() {
    const FRAMES: u32 = 20_000;
    let (switch, ports) = started(6);
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        // Another port is attached and detached all the time, with frames on their way from and to it.
        let (other, stop_too) = (switch.clone(), stop.clone());
        scope.spawn(move || {
            let id = other.add_port(Bench::spec(99)).expect("a switch with room");
            while !stop_too.load(Ordering::Relaxed) {
                let (wire, end) = Wire::small(mac(99), 16);
                other.attach(id, end);
                (0..40).for_each(|number| {
                    wire.send(&frame(mac(number % 6 + 1), mac(99), 200, 0), Offload::None, None)
                });
                other.kick(id);
                other.detach(id);
                assert!(wire.dropped());
            }
        });
        for number in 0..3u8 {
            let (id, wire) = &ports[usize::from(number)];
            let (switch, stop) = (&switch, &stop);
            scope.spawn(move || {
                for count in 0..FRAMES {
                    let mut bytes = frame(mac(number + 4), mac(number + 1), some_len(count), 0);
                    bytes[14..18].copy_from_slice(&count.to_be_bytes());
                    wire.send(&bytes, Offload::None, None);
                    if count % 32 == 0 {
                        wire.send(&frame(mac(99), mac(number + 1), 1000, 0), Offload::None, None);
                        switch.kick(*id);
                    }
                    wait_for_room(switch, *id, wire, stop);
                }
            });
        }
        for number in 0..3u8 {
            let wire = &ports[usize::from(number) + 3].1;
            let mut next = 0;
            wait_until("all frames", || {
                for received in wire.received() {
                    if received.bytes[6..12] == mac(number + 1).0 {
                        let count = u32::from_be_bytes(received.bytes[14..18].try_into().unwrap());
                        assert_eq!(count, next, "in order, none lost");
                        assert_eq!(received.bytes.len(), some_len(count));
                        next += 1;
                    }
                }
                next == FRAMES
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    wait_until("all are finished", || ports.iter().all(|(_, wire)| wire.outstanding() == 0));
    assert!(switch.worker_stats().all(|stats| stats.panics.get() == 0));
}

#[test]
fn what_waits_at_another_worker_is_finished_before_its_sender_is_dropped() {
    for leaver in 0..2 {
        let settings = Settings { workers: 2, hold: Duration::from_secs(3600), ..Settings::default() };
        let switch = Switch::start(settings).unwrap();
        let port = |number| {
            let id = switch.add_port(Bench::spec(number)).unwrap();
            let (wire, end) = Wire::new(mac(number));
            switch.attach(id, end);
            (id, wire)
        };
        let ports = [port(1), port(2)];
        ports[1].1.set_room(Some(0));
        (0..10).for_each(|_| ports[0].1.send(&frame(mac(2), mac(1), 700, 0), Offload::None, None));
        switch.kick(ports[0].0);
        let pending = || switch.stats(ports[1].0).pending.get();
        wait_until("they wait", || pending() == 10);
        assert_eq!(ports[0].1.outstanding(), 10);
        switch.detach(ports[leaver].0);
        assert!(ports[leaver].1.dropped());
        wait_until("all are finished", || ports[0].1.outstanding() == 0);
        if leaver == 0 {
            assert_eq!(ports[0].1.outstanding(), 0, "already when detach returned");
        }
        assert_eq!(switch.stats(ports[1].0).drop_gone.get(), 10);
    }
}

#[test]
fn short_frames_of_another_workers_guest_are_finished_while_they_wait() {
    for leaver in 0..2 {
        let settings = Settings { workers: 2, hold: Duration::from_secs(3600), ..Settings::default() };
        let switch = Switch::start(settings).unwrap();
        let port = |number| {
            let id = switch.add_port(Bench::spec(number)).unwrap();
            let (wire, end) = Wire::new(mac(number));
            switch.attach(id, end);
            (id, wire)
        };
        let ports = [port(1), port(2)];
        ports[1].1.set_room(Some(0));
        (0..10).for_each(|_| ports[0].1.send(&frame(mac(2), mac(1), 192, 0), Offload::None, None));
        ports[0].1.send(&frame(mac(2), mac(1), 193, 0), Offload::None, None);
        switch.kick(ports[0].0);
        let stats = switch.stats(ports[1].0);
        wait_until("they wait", || stats.pending.get() == 11 && ports[0].1.outstanding() == 1);
        switch.detach(ports[leaver].0);
        assert!(ports[leaver].1.dropped());
        wait_until("all are finished", || ports[0].1.outstanding() == 0);
        assert_eq!(stats.drop_gone.get(), 11);
    }
}

#[test]
fn a_receiver_without_buffers_holds_up_its_own_senders_and_no_one_else() {
    let mut bench = bench(2);
    // Ports 1, 3, 5 are of one worker, 2, 4, 6 of the other.
    let guests: Vec<Guest> = (1..=6).map(|number| bench.guest(number)).collect();
    guests[1].wire.set_room(Some(0));
    (0..400).for_each(|_| guests[0].send(&frame(mac(2), mac(1), 1000, 0)));
    bench.run();
    (0..100).for_each(|_| guests[2].send(&frame(mac(4), mac(3), 1000, 0)));
    (0..100).for_each(|_| guests[0].send(&frame(mac(6), mac(1), 1000, 0)));
    bench.run();
    assert_eq!(guests[3].frames().len(), 100);
    guests[1].wire.set_room(None);
    bench.run();
    let lost = guests[1].stats.drop_slow_receiver.get() as usize;
    assert_eq!((guests[1].frames().len() + lost, guests[5].frames().len()), (400, 100));
    assert_eq!(guests[0].wire.outstanding(), 0);
}

#[test]
fn what_another_workers_guest_sends_to_one_vm_only_waits_longer() {
    let (hold, hold_alone) = (Duration::ZERO, Duration::from_secs(3600));
    let mut bench = Bench::with(Settings { workers: 2, hold, hold_alone, ..Settings::default() });
    // As above.
    let guests: Vec<Guest> = (1..=4).map(|number| bench.guest(number)).collect();
    guests[1].wire.set_room(Some(0));
    guests[0].send(&frame(mac(2), mac(1), 1000, 0));
    (0..5).for_each(|_| {
        std::thread::sleep(Duration::from_millis(1));
        bench.run();
    });
    let lost = || guests[1].stats.drop_no_buffers.get();
    assert_eq!((guests[0].wire.outstanding(), lost()), (1, 0));
    // Its own worker sees that it sends to another VM, too.
    guests[0].send(&frame(mac(3), mac(1), 1000, 0));
    wait_until("what waits is given up", || {
        bench.run();
        lost() == 1
    });
    assert_eq!((guests[0].wire.outstanding(), guests[2].frames().len()), (0, 1));
}

#[test]
fn short_frames_for_a_receiver_without_buffers_take_their_owners_part_of_the_places_and_no_more() {
    let mut bench = bench(2);
    // As above.
    let guests: Vec<Guest> = (1..=6).map(|number| bench.guest(number)).collect();
    guests[1].wire.set_room(Some(0));
    (0..1000).for_each(|_| guests[0].send(&frame(mac(2), mac(1), 60, 0)));
    bench.run();
    let (waiting, in_flight) = (guests[1].stats.pending.get() as usize, guests[0].wire.outstanding());
    assert_eq!(
        (waiting, in_flight),
        (128 + 256, 256),
        "half of the places, and all that its card has in flight"
    );
    assert_eq!(guests[0].wire.queued(), 1000 - 128 - 256, "its sender is held up");
    (0..300).for_each(|_| guests[2].send(&frame(mac(4), mac(3), 60, 0)));
    bench.run();
    assert_eq!(guests[3].frames().len(), 300);
    guests[1].wire.set_room(None);
    bench.run();
    let lost = guests[1].stats.drop_slow_receiver.get() as usize;
    assert_eq!(guests[1].frames().len() + lost, 1000);
    assert_eq!(guests[0].wire.outstanding(), 0);
    // All places have come back.
    guests[1].wire.set_room(Some(0));
    (0..1000).for_each(|_| guests[0].send(&frame(mac(2), mac(1), 60, 0)));
    bench.run();
    assert_eq!(guests[0].wire.queued(), 1000 - 128 - 256);
}

#[test]
fn a_panic_with_a_frame_of_another_worker_ends_its_port_there_and_nothing_else() {
    for trap in [Trap::Deliver, Trap::Finish] {
        let mut bench = bench(2);
        let guests: Vec<Guest> = (1..=4).map(|number| bench.guest(number)).collect();
        let victim = if trap == Trap::Deliver { 1 } else { 0 };
        guests[victim].wire.set_trap(trap);
        guests[0].send(&frame(mac(2), mac(1), 60, 0));
        (0..8).for_each(|_| bench.step());
        bench.run();
        assert!(guests[victim].wire.dropped() && guests[victim].wire.failed(), "{trap:?}");
        guests.iter().for_each(|guest| drop(guest.frames()));
        guests[2].send(&frame(mac(4), mac(3), 60, 0));
        bench.run();
        assert_eq!(guests[3].frames().len(), 1, "{trap:?}");
        guests[3].send(&frame(mac(1), mac(4), 60, 0));
        guests[3].send(&frame(mac(2), mac(4), 60, 0));
        bench.run();
        let got = [0, 1].map(|at: usize| guests[at].frames().len());
        assert_eq!(got[1 - victim], 1, "{trap:?}");
    }
}

#[test]
fn segments_of_another_workers_guest_are_merged_for_a_receiver_that_takes_them_whole() {
    for (bytes, mss) in [(14_000, 1400), (1000, 100)] {
        let mut bench = Bench::with(Settings { workers: 2, ..Settings::default() });
        let (a, b) = (bench.guest(1), bench.guest(2));
        b.wire.set_capabilities(LRO);
        bench.run();
        let packet = Packet::new(mac(2), mac(1), false, bytes);
        packet.segments(mss).iter().for_each(|segment| a.send(&segment.bytes()));
        bench.run();
        let got = b.wire.received();
        assert_eq!((got.len(), b.stats.rx_coalesced_segments.get()), (1, 10), "{mss}");
        assert!(got[0].bytes.ends_with(&packet.bytes()[packet.header_len()..]), "{mss}");
    }
}

#[test]
fn a_mirror_follows_its_destination_to_another_worker() {
    let mut bench = bench(2);
    let (a, b) = (bench.guest(1), bench.guest(2));
    let spec = MirrorSpec {
        name: "m".into(),
        to: "port-9".into(),
        direction: MirrorDirection::Both,
        vlan: None,
        snap: 65_600,
    };
    bench.switch.add_mirror(spec, vec!["port-1".into(), "port-2".into()]).unwrap();
    let mut workers = Vec::new();
    for number in [0, 1] {
        // The second time it is a port of the other worker.
        let others: Vec<Guest> = (0..number).map(|other| bench.guest(50 + other)).collect();
        let c = bench.guest(9);
        c.wire.change_filter(|filter| filter.promiscuous = true);
        bench.refresh(&c);
        bench.run();
        (0..50).for_each(|count| a.send(&frame(mac(2), mac(1), 500, count)));
        b.send(&frame(mac(1), mac(2), 60, 0));
        bench.run();
        bench.run();
        assert_eq!((a.frames().len(), b.frames().len()), (1, 50));
        assert_eq!(c.frames().len(), 2 * 51, "sent by one, received by the other");
        let of_c = |view: &&vmlane_switch::PortView| view.id == c.id;
        workers.push(bench.switch.ports().iter().find(of_c).unwrap().worker);
        bench.switch.remove_port(c.id);
        drop(others);
        bench.run();
    }
    workers.dedup();
    assert_eq!(workers.len(), 2);
}

/// Says when it is dropped, also by a failed assertion, that others are to end.
struct Ended<'s>(&'s AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn frames_keep_their_order_and_none_is_lost_while_their_ports_move() {
    const FRAMES: u32 = 30_000;
    let (switch, ports) = started(6);
    let stop = AtomicBool::new(false);
    let moved = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (ports, switch, stop, moved) = (&ports, &switch, &stop, &moved);
        let _ended = Ended(stop);
        // A sender, a receiver, a worker.
        scope.spawn(move || {
            let mut number = 0usize;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let (port, to) = (ports[number * 5 % 6].0, number / 6 % WORKERS);
                moved.fetch_add(usize::from(switch.move_port(port, to)), Ordering::Relaxed);
            }
        });
        for number in 0..3u8 {
            let (id, wire) = &ports[usize::from(number)];
            scope.spawn(move || {
                for count in 0..FRAMES {
                    let mut bytes = frame(mac(number + 4), mac(number + 1), some_len(count), 0);
                    bytes[14..18].copy_from_slice(&count.to_be_bytes());
                    wire.send(&bytes, Offload::None, None);
                    if count % 32 == 0 {
                        switch.kick(*id);
                    }
                    wait_for_room(switch, *id, wire, stop);
                }
                switch.kick(*id);
            });
        }
        let mut next = [0; 3];
        let mut polls = 0usize;
        wait_until("all frames", || {
            polls += 1;
            for (number, next) in (0u8..).zip(&mut next) {
                let wire = &ports[usize::from(number) + 3].1;
                // One that has no room now and then, so that frames wait for it.
                wire.set_room((number == 1 && polls.is_multiple_of(2)).then_some(3));
                for received in wire.received() {
                    let count = u32::from_be_bytes(received.bytes[14..18].try_into().unwrap());
                    assert_eq!(
                        (received.bytes.len(), count),
                        (some_len(*next), *next),
                        "in order, none lost"
                    );
                    *next += 1;
                }
            }
            next == [FRAMES; 3]
        });
        wait_until("ports have moved", || moved.load(Ordering::Relaxed) > 30);
    });
    wait_until("all are finished", || ports.iter().all(|(_, wire)| wire.outstanding() == 0));
    for (id, _) in &ports {
        let lost = switch
            .stats(*id)
            .snapshot()
            .into_iter()
            .filter(|(name, count)| name.starts_with("drop") && *count > 0);
        assert_eq!(lost.collect::<Vec<_>>(), []);
    }
    assert!(switch.worker_stats().all(|stats| stats.panics.get() == 0));
}

#[test]
fn a_port_that_has_moved_is_attached_changed_and_removed_as_ever() {
    let (switch, ports) = started(3);
    let (id, wire) = &ports[0];
    let worker = || switch.ports().iter().find(|view| view.id == *id).map(|view| view.worker);
    let to = (worker().unwrap() + 1) % WORKERS;
    assert!(switch.move_port(*id, to) && worker() == Some(to));
    assert!(!switch.move_port(*id, to), "it is there");
    assert!(!switch.move_port(*id, WORKERS) && !switch.move_port(PortId(9999), 0));
    let (again, end) = Wire::new(mac(1));
    switch.attach(*id, end);
    assert!(wire.dropped());
    assert!(
        switch.update_port(*id, Bench::spec(1)) && switch.set_link(*id, false) && switch.set_link(*id, true)
    );
    ports[1].1.send(&frame(mac(1), mac(2), 60, 0), Offload::None, None);
    switch.kick(ports[1].0);
    wait_until("a frame to it", || !again.received().is_empty());
    again.send(&frame(mac(2), mac(1), 60, 0), Offload::None, None);
    switch.kick(*id);
    wait_until("a frame from it", || !ports[1].1.received().is_empty());
    assert!(switch.remove_port(*id) && again.dropped() && worker().is_none());
    let uplink = switch.add_port(PortSpec { uplink: true, ..Bench::spec(9) }).unwrap();
    assert!(!switch.move_port(uplink, 1), "uplinks stay");
}

#[test]
fn a_port_that_has_a_super_frame_in_part_stays_until_it_has_the_rest() {
    let mut bench = bench(2);
    // The first and the third are one worker's.
    let [sender, _other, receiver] = [1, 2, 3].map(|number| bench.guest(number));
    let moved = |bench: &mut Bench| {
        let mut moving = bench.switch.begin_move(receiver.id, 1).expect("it is worker 0's");
        loop {
            bench.step();
            if let Some(moved) = moving.advance(&bench.switch) {
                bench.step();
                return moved;
            }
        }
    };
    receiver.wire.set_room(Some(3));
    let packet = Packet::new(mac(3), mac(1), false, 8 * 700);
    let offload = Offload::Segment { header: packet.header_len() as u16, mss: 700 };
    sender.wire.send(&packet.partial(false), offload, None);
    bench.run();
    assert_eq!(receiver.frames().len(), 3);
    receiver.wire.set_room(Some(0));
    assert!(!moved(&mut bench), "five segments are to come");
    receiver.wire.set_room(None);
    bench.run();
    assert_eq!(receiver.frames().len(), 5, "each once");
    assert!(moved(&mut bench));
    sender.wire.send(&packet.partial(false), offload, None);
    bench.run();
    assert_eq!((receiver.frames().len(), sender.wire.outstanding()), (8, 0));
}

#[test]
fn a_port_goes_though_there_is_no_end_of_frames_for_others_of_its_worker() {
    let mut bench = bench(2);
    let guests = [1, 2, 3, 4, 5, 6].map(|number| bench.guest(number));
    // Three of the other worker send as fast as they may, for one that takes them slowly.
    let (port, other) = (&guests[0], &guests[2]);
    let mut moving = bench.switch.begin_move(port.id, 1).expect("it is worker 0's");
    guests[1].send(&frame(mac(1), mac(2), 60, 0));
    let (mut sent, mut got) = (0, 0);
    let moved = loop {
        for number in [2, 4, 6] {
            (0..64).for_each(|_| guests[number - 1].send(&frame(mac(3), mac(number as u8), 60, 0)));
            sent += 64;
        }
        other.wire.set_room(Some(100));
        bench.step();
        got += other.frames().len();
        if let Some(moved) = moving.advance(&bench.switch) {
            break moved;
        }
    };
    assert!(moved && sent > got, "{moved}, {got} of {sent}");
    bench.run();
    assert_eq!(port.frames().len(), 1, "what came for it before");
}

#[test]
fn frames_that_wait_where_a_port_goes_reach_it_with_its_tag() {
    let mut bench = bench(2);
    let mut set = VlanSet::none();
    set.insert(1);
    let receiver = bench.port(PortSpec { vlan: VlanMode::Trunk(set), ..Bench::spec(1) });
    let sender = bench.port(PortSpec { vlan: VlanMode::Access(1), ..Bench::spec(2) });
    let mut moving = bench.switch.begin_move(receiver.id, 1).expect("it is worker 0's");
    // All hold back what is for it.
    assert_eq!(moving.advance(&bench.switch), None);
    bench.step();
    let send = |len| sender.send(&frame(mac(1), mac(2), len, 0));
    [60, 1000].into_iter().for_each(send);
    bench.step();
    assert_eq!((receiver.stats.pending.get(), receiver.wire.received().len()), (2, 0));
    while moving.advance(&bench.switch).is_none() {
        bench.step();
    }
    send(70);
    bench.run();
    let got = receiver.wire.received();
    let got: Vec<_> = got.iter().map(|one| (one.bytes.len(), one.tag.map(|tag| tag.vlan()))).collect();
    assert_eq!(got, [60, 1000, 70].map(|len| (len, Some(1))));
    assert_eq!(sender.wire.outstanding(), 0);
}
