//! No frame where it must not be, and none missing where it must: random ports on three switches, in two
//! isolation groups, on wires, in VLANs and behind uplinks, which send anything to anyone and change while
//! frames are on their way, with two workers, against a model.
//!
//! `VMLANE_MODEL=full` (`make soak`) tries 100,000 worlds instead of some thousand.

mod model;
mod world;

use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use vmlane_port::{Filter, VlanSet};
use vmlane_switch::Policy;
use vmlane_wire::ethernet::{HEADER, Mac, Tci};

use model::{Frame, Place, Port, Vlans};
use world::{Counts, World};

/// Ports of VMs; the others are uplinks.
const GUESTS: usize = 10;
const PORTS: usize = GUESTS + 2;
/// Addresses of ports: fewer than ports, so that each is on several switches, and some twice on one.
const ADDRESSES: u8 = 6;
/// Kinds of frames in one case: most are sent several times, as ways are kept.
const SENDINGS: usize = 12;
/// VLANs of tags; of ports, the first three.
const VLANS: [u16; 6] = [0, 10, 20, 77, 1, 4095];

#[derive(Clone, Copy, Debug)]
enum Address {
    /// A port's at the sender's place.
    Beside(u8),
    Port(u8),
    /// One that guests choose, and one that only forged frames have.
    Chosen(u8),
    Stranger,
    Group(u8),
    LinkLocal(u8),
    Broadcast,
    Zero,
}

impl Address {
    /// The one that a port of these means by it.
    fn of(self, ports: &[Port], port: usize) -> Mac {
        let Address::Beside(number) = self else { return self.mac() };
        let mut beside = ports.iter().filter(|other| other.place == ports[port].place);
        let count = beside.clone().count();
        beside.nth(usize::from(number) % count).map_or(Mac::default(), Port::address)
    }

    fn mac(self) -> Mac {
        match self {
            Address::Beside(number) | Address::Port(number) => Mac([0x52, 0x54, 0, 0, 0, number]),
            Address::Chosen(number) => Mac([0x52, 0x54, 0, 0, 1, number]),
            Address::Stranger => Mac([2, 0, 0, 0, 0, 1]),
            Address::Group(number) => Mac([1, 0, 0x5e, 0, 0, number]),
            Address::LinkLocal(number) => Mac([1, 0x80, 0xc2, 0, 0, number]),
            Address::Broadcast => Mac::BROADCAST,
            Address::Zero => Mac::default(),
        }
    }
}

/// What a guest wants to get.
#[derive(Clone, Debug)]
struct Wish {
    /// None: its port's own.
    address: Option<Address>,
    unicast: bool,
    broadcast: bool,
    all_multicast: bool,
    promiscuous: bool,
    groups: bool,
    vlans: Option<Vec<u16>>,
}

#[derive(Clone, Debug)]
struct Plan {
    own: u8,
    place: Place,
    vlans: Vlans,
    policy: (bool, bool, bool),
}

/// The tags of a frame, from the outermost on, and whether that one is beside it.
#[derive(Clone, Debug)]
struct Tags {
    beside: Option<u16>,
    within: Vec<(u16, u16)>,
}

#[derive(Clone, Debug)]
struct Sending {
    port: usize,
    to: Address,
    /// None: its sender's own.
    from: Option<Address>,
    tags: Tags,
    kind: u16,
    len: usize,
}

/// What happens in a world. The last number is the order of the workers meanwhile.
#[derive(Clone, Debug)]
enum Step {
    /// One of the case's frames, perhaps not for the first time.
    Send(usize),
    Turn(usize, u64),
    Update(usize, Plan, u64),
    Filter(usize, Wish, u64),
    Plug(usize, u64),
    Replace(usize, u64),
    Move(usize, u64),
    EndWindow,
}

#[derive(Clone, Debug)]
struct Case {
    ports: Vec<(Plan, Wish)>,
    /// Frames that an owner may send in a round.
    frames: u32,
    sendings: Vec<Sending>,
    steps: Vec<Step>,
}

fn address() -> impl Strategy<Value = Address> {
    prop_oneof![
        8 => any::<u8>().prop_map(Address::Beside),
        4 => (0..ADDRESSES).prop_map(Address::Port),
        1 => (0..2u8).prop_map(Address::Chosen),
        5 => Just(Address::Stranger),
        1 => (0..2u8).prop_map(Address::Group),
        1 => prop::sample::select(vec![0, 1, 2, 3, 0xe, 0xf]).prop_map(Address::LinkLocal),
        2 => Just(Address::Broadcast),
        1 => Just(Address::Zero),
    ]
}

fn wish() -> impl Strategy<Value = Wish> {
    let vlans = prop::sample::subsequence(VLANS[1..3].to_vec(), 0..=2);
    let flag = prop::bool::weighted;
    let flags = (flag(0.9), flag(0.9), flag(0.2), flag(0.3), flag(0.3));
    (prop::option::weighted(0.2, address()), flags, prop::option::weighted(0.3, vlans)).prop_map(
        |(address, (unicast, broadcast, all_multicast, promiscuous, groups), vlans)| Wish {
            address,
            unicast,
            broadcast,
            all_multicast,
            promiscuous,
            groups,
            vlans,
        },
    )
}

fn place() -> impl Strategy<Value = Place> {
    let on = |number, group| Just(Place::Switch { number, group });
    prop_oneof![
        10 => on(0, 0),
        3 => on(0, 1),
        4 => on(1, 0),
        1 => on(1, 1),
        2 => on(2, 0),
        1 => on(2, 1),
        3 => Just(Place::Wire(0)),
        2 => Just(Place::Wire(1)),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let trunk = prop::sample::subsequence(VLANS[..3].to_vec(), 0..=3).prop_map(Vlans::Trunk);
    let access = prop::sample::select(&VLANS[1..3]).prop_map(Vlans::Access);
    let vlans = prop_oneof![8 => Just(Vlans::None), 2 => access, 2 => trunk, 1 => Just(Vlans::All)];
    let flag = prop::bool::weighted;
    (0..ADDRESSES, place(), vlans, (flag(0.5), flag(0.8), flag(0.7)))
        .prop_map(|(own, place, vlans, policy)| Plan { own, place, vlans, policy })
}

fn tags() -> impl Strategy<Value = Tags> {
    let tag = || {
        (any::<u8>(), prop::sample::select(&VLANS[..])).prop_map(|(high, vlan)| {
            // Most have no priority.
            (u16::from(high & 0xf0) * u16::from(high & 1)) << 8 | vlan
        })
    };
    let within = |kinds: &[u16]| {
        let kinds = kinds.to_vec();
        (tag(), tag()).prop_map(move |(a, b)| kinds.iter().copied().zip([a, b]).collect::<Vec<_>>())
    };
    let within = prop_oneof![
        6 => within(&[]),
        3 => within(&[0x8100]),
        1 => within(&[0x8100, 0x8100]),
        1 => within(&[0x88a8, 0x8100]),
    ];
    (prop::option::weighted(0.2, tag()), within).prop_map(|(beside, within)| Tags { beside, within })
}

fn sending() -> impl Strategy<Value = Sending> {
    // Who claims to be someone else is mostly one and the same.
    let from = prop_oneof![address(), Just(Address::Stranger)];
    let known = [0x0800, 0x0806, 0x86dd, 0x88b5, 0x8809, 0x88cc, 0x0026, 0x888e, 0x8808, 0x8100, 0x88a8];
    let kind = prop_oneof![prop::sample::select(known.to_vec()), any::<u16>()];
    // Those of up to 192 bytes go from worker to worker in another way; the longest ones are too long.
    let len = prop_oneof![
        1 => 0..30usize,
        6 => 60..=200usize,
        3 => 60..=1514usize,
        1 => 1510..=1526usize,
    ];
    (0..PORTS, address(), prop::option::weighted(0.4, from), tags(), kind, len)
        .prop_map(|(port, to, from, tags, kind, len)| Sending { port, to, from, tags, kind, len })
}

fn step() -> impl Strategy<Value = Step> {
    let port = || 0..PORTS;
    let order = any::<u64>;
    prop_oneof![
        36 => (0..SENDINGS).prop_map(Step::Send),
        4 => (1..6usize, order()).prop_map(|(count, order)| Step::Turn(count, order)),
        3 => (port(), plan(), order()).prop_map(|(port, plan, order)| Step::Update(port, plan, order)),
        2 => (0..GUESTS, wish(), order()).prop_map(|(port, wish, order)| Step::Filter(port, wish, order)),
        2 => (port(), order()).prop_map(|(port, order)| Step::Plug(port, order)),
        1 => (port(), order()).prop_map(|(port, order)| Step::Replace(port, order)),
        1 => (port(), order()).prop_map(|(port, order)| Step::Move(port, order)),
        5 => Just(Step::EndWindow),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let ports = prop::collection::vec((plan(), wish()), PORTS);
    let frames = prop::sample::select(vec![1, 2, 64]);
    let sendings = prop::collection::vec(sending(), 1..=SENDINGS);
    (ports, frames, sendings, prop::collection::vec(step(), 1..150))
        .prop_map(|(ports, frames, sendings, steps)| Case { ports, frames, sendings, steps })
}

impl Wish {
    fn filter(&self, own: Mac) -> Filter {
        let vlans = |list: &Vec<u16>| {
            let mut set = VlanSet::none();
            list.iter().for_each(|vlan| set.insert(*vlan));
            set
        };
        Filter {
            mac: self.address.map_or(own, Address::mac),
            unicast: self.unicast,
            broadcast: self.broadcast,
            all_multicast: self.all_multicast,
            promiscuous: self.promiscuous,
            multicast: if self.groups { vec![Address::LinkLocal(2).mac()] } else { Vec::new() },
            vlans: self.vlans.as_ref().map(vlans),
        }
    }
}

/// A port as planned. On a wire nothing is judged.
fn port(number: usize, plan: &Plan, filter: Filter) -> Port {
    let Plan { own, place, ref vlans, policy: (promiscuous, mac_changes, forged_transmits) } = *plan;
    let policy = Policy { promiscuous, mac_changes, forged_transmits };
    let open = Policy { promiscuous: true, mac_changes: true, forged_transmits: true };
    let on_wire = matches!(place, Place::Wire(_));
    Port {
        own: if number < GUESTS { Address::Port(own).mac() } else { Mac::default() },
        uplink: number >= GUESTS,
        place,
        vlans: if on_wire { Vlans::All } else { vlans.clone() },
        policy: if on_wire { open } else { policy },
        filter,
        attached: true,
    }
}

impl Sending {
    fn frame(&self, ports: &[Port], number: u32) -> Frame {
        let from = self.from.map_or(ports[self.port].address(), |from| from.of(ports, self.port));
        let mut bytes = [self.to.of(ports, self.port).0, from.0].concat();
        for (kind, tag) in &self.tags.within {
            bytes.extend([kind.to_be_bytes(), tag.to_be_bytes()].concat());
        }
        bytes.extend(self.kind.to_be_bytes());
        // A frame that ends in its header, or one that has all of its number behind what may be a tag.
        let len = if self.len < HEADER { self.len } else { self.len.max(bytes.len() + 8) };
        bytes.extend((bytes.len()..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(number as u8)));
        bytes.truncate(len);
        if let Some(last) = bytes.last_chunk_mut() {
            *last = number.to_be_bytes();
        }
        Frame { bytes, beside: self.tags.beside.map(Tci) }
    }
}

impl Case {
    fn world(&self, threads: bool) -> World {
        let port = |(number, (plan, wish)): (usize, &(Plan, Wish))| {
            let own = Address::Port(plan.own).mac();
            port(number, plan, if number < GUESTS { wish.filter(own) } else { Filter::open() })
        };
        World::new(self.ports.iter().enumerate().map(port).collect(), self.frames, threads)
    }

    /// All that happens. Fails if a frame is where it must not be, or is not where it must.
    fn happen(&self, threads: bool) -> Result<Counts, String> {
        let mut world = self.world(threads);
        for (at, step) in self.steps.iter().chain([&Step::EndWindow]).enumerate() {
            step.happen(&self.sendings, &mut world).map_err(|fault| format!("step {at}: {fault}"))?;
        }
        Ok(world.counts)
    }
}

impl Step {
    fn happen(&self, sendings: &[Sending], world: &mut World) -> Result<(), String> {
        match *self {
            Step::Send(at) => {
                if world.is_full() {
                    world.end_window()?;
                }
                let sending = &sendings[at % sendings.len()];
                let frame = sending.frame(world.now(), world.number());
                world.send(sending.port, &frame);
            }
            Step::Turn(count, order) => world.step(count, order),
            Step::Update(at, ref plan, order) => {
                let filter = world.now()[at].filter.clone();
                world.update(at, port(at, plan, filter), order);
            }
            Step::Filter(at, ref wish, order) => {
                let filter = wish.filter(world.now()[at].own);
                world.filter(at, filter, order);
            }
            Step::Plug(at, order) => world.unplug_or_plug(at, order),
            Step::Replace(at, order) => world.replace(at, order),
            Step::Move(at, order) => world.move_to_other_worker(at, order),
            Step::EndWindow => return world.end_window(),
        }
        Ok(())
    }
}

/// Tries `few` worlds, or `many` in the long form.
fn try_worlds(name: &'static str, threads: bool, few: u32, many: u32) {
    let full = std::env::var("VMLANE_MODEL").is_ok_and(|value| value == "full");
    let cases = if full { many } else { few };
    let config = ProptestConfig {
        cases,
        source_file: Some(file!()),
        test_name: Some(name),
        ..ProptestConfig::default()
    };
    let counts = std::cell::Cell::new(Counts::default());
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&case(), |case| {
        let more = case.happen(threads).map_err(TestCaseError::fail)?;
        counts.set(counts.get().and(more));
        Ok(())
    });
    if let Err(TestError::Fail(why, case)) = outcome {
        panic!("{why}\n{case:?}\n{runner}");
    }
    let counts = counts.get();
    println!("{cases} worlds: {counts:?}");
    // A model that allows anything would find nothing.
    assert!(counts.certain * 2 >= counts.deliveries && counts.deliveries >= u64::from(cases), "{counts:?}");
}

#[test]
fn frames_are_where_they_must_be_and_nowhere_else() {
    try_worlds("separation", false, 2000, 100_000);
}

#[test]
fn frames_of_workers_with_threads_are_where_they_must_be_and_nowhere_else() {
    try_worlds("separation of threads", true, 50, 2000);
}
