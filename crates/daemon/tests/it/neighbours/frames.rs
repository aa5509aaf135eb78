//! The switch: an honest pair with VMXNET3 cards, and cards of both models whose driver is hostile.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use vmlane_device::virtio::net::{NetConfig, NetDevice, VirtioNetStats};
use vmlane_device::virtio::queue::Segment;
use vmlane_device::virtio::vhost::{Lines, Setup, VhostDevice};
use vmlane_device::vmxnet3::port::NicPort;
use vmlane_guestsim::memory_port::Wire;
use vmlane_guestsim::nic::{Rings, RingsSpec, RxShape, TxRequest};
use vmlane_guestsim::virtio::{DriverRing, into, out};
use vmlane_guestsim::{Placement, Ram};
use vmlane_port::{Frames, PortId, PortStats};
use vmlane_switch::{Policy, PortSpec, Settings, Switch, Traffic, VlanMode, Worker};
use vmlane_wire::ethernet::Mac;
use vmlane_wire::virtio::control::{self, class};
use vmlane_wire::virtio::{desc, feature, net_feature};

use super::{Attack, DESCRIPTOR, Neighbours, PIECES, QUOTA, REBUILD, table};

/// What a frame costs at least: an owner may send 64 in a round.
const FRAME: usize = QUOTA / 64;
/// Bytes of an honest frame, and of a small one.
const FULL: usize = 1514;
const SMALL: usize = 60;
/// Descriptors of a hostile virtio ring.
const RING: u16 = 256;
/// Bytes of virtio-net's header.
const HEADER: usize = 12;
/// Commands at a control queue that wait at once.
const COMMANDS: usize = 64;
/// Cards of a VM whose rings stop and start, and changes of tables that its vCPUs ask for at once.
const CARDS: u8 = 8;
const CHANGES: u64 = 100;

const fn row(name: &'static str, vms: u64, make: fn() -> Box<dyn Neighbours>) -> Attack {
    Attack { name, vms, quota: QUOTA, alone, make }
}

/// Every attack on the switch.
pub const ATTACKS: &[Attack] = &[
    row("vmxnet3: small frames to a stranger", 1, || sending(mac(200), FRAME, |addr| vec![(addr, SMALL)])),
    row("vmxnet3: small frames to an honest VM", 1, || sending(mac(2), FRAME, |addr| vec![(addr, SMALL)])),
    row("vmxnet3: broadcasts", 1, || sending(Mac([0xff; 6]), FRAME, |addr| vec![(addr, SMALL)])),
    row("vmxnet3: descriptors of one byte", 1, || {
        sending(mac(200), 200 * DESCRIPTOR, |addr| (0..200).map(|at| (addr + at, 1)).collect())
    }),
    row("vmxnet3: descriptors that overlap", 1, || {
        sending(mac(200), 200 * DESCRIPTOR, |addr| vec![(addr, 7); 200])
    }),
    row("vmxnet3: descriptors outside memory", 1, || {
        sending(mac(200), 2 * DESCRIPTOR, |_| vec![(1 << 50, SMALL); 2])
    }),
    row("vmxnet3: frames of one byte", 1, || sending(mac(200), DESCRIPTOR, |addr| vec![(addr, 1)])),
    row("vmxnet3: tables made anew", 1, tables_made_anew),
    row("vmxnet3: no buffers for what comes", 2, || receiving(0)),
    row("vmxnet3: one buffer a round", 2, || receiving(1)),
    row("virtio-net: 1024 pieces that are no frame", 1, || virtio_tx(0, 0)),
    row("virtio-net: the same, packed", 1, || virtio_tx(0, feature::PACKED)),
    row("virtio-net: frames of 1024 pieces", 1, || virtio_tx(1, 0)),
    row("virtio-net: buffers of 1024 pieces", 2, virtio_rx),
    row("virtio-net: commands at control queues", 1, commands),
    row("virtio-net: rings stopped and started", 1, restarts),
];

/// Does its worst before a round; what it has caused since it was last called.
type Deed = Box<dyn FnMut(&Switch) -> usize>;

/// A VM with a card.
struct Nic {
    rings: Rings,
    stats: Arc<PortStats>,
}

/// One that sends the same frame as often as it can.
struct Sender {
    nic: Nic,
    parts: Vec<(u64, usize)>,
}

/// An honest pair and an attack behind one switch.
struct World {
    switch: Arc<Switch>,
    worker: Worker,
    deed: Deed,
    /// The honest sender and its receiver.
    pair: Option<(Sender, Nic)>,
    caused: u64,
}

fn mac(number: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, number])
}

fn alone() -> Box<dyn Neighbours> {
    World::with(|_| Box::new(|_| 0))
}

impl World {
    fn with(attack: impl FnOnce(&mut World) -> Deed) -> Box<dyn Neighbours> {
        // What finds no buffers is given up in the next round.
        let (hold, hold_alone) = (Duration::ZERO, Duration::ZERO);
        let settings = Settings { poll: true, hold, hold_alone, ..Settings::default() };
        let (switch, worker) = Switch::unstarted(settings);
        let (switch, deed): (_, Deed) = (Arc::new(switch), Box::new(|_| 0));
        let mut world = World { switch, worker, deed, pair: None, caused: 0 };
        let receiver = world.nic(2);
        world.pair = Some((world.sender(1, mac(2), FULL, |addr| vec![(addr, FULL)]), receiver));
        world.deed = attack(&mut world);
        world.worker.step();
        Box::new(world)
    }

    /// A port of VM `number`.
    fn port(&self, number: u8, card: u8) -> PortId {
        self.switch
            .add_port(PortSpec {
                name: format!("vm-{number}/nic{card}"),
                group: "one".into(),
                switch: String::new(),
                mac: mac(number + card),
                vlan: VlanMode::Untagged,
                policy: Policy::default(),
                traffic: Traffic::default(),
                uplink: false,
                direct: false,
                notify: false,
            })
            .unwrap()
    }

    fn nic(&self, number: u8) -> Nic {
        let id = self.port(number, 0);
        let spec = RingsSpec { tx: 512, rx: RxShape::linux(512), memory: 8 << 20, ..RingsSpec::linux() };
        let (rings, setup) = Rings::new(&spec);
        let stats = self.switch.stats(id);
        self.switch.attach(id, Box::new(NicPort::new(setup, stats.clone())));
        Nic { rings, stats }
    }

    /// VM `number`, which sends `len` bytes to `to`, as `parts` of the memory from an address on.
    fn sender(&self, number: u8, to: Mac, len: usize, parts: impl Fn(u64) -> Vec<(u64, usize)>) -> Sender {
        let nic = self.nic(number);
        let addr = nic.rings.ram.alloc(len.div_ceil(4096), Placement::Contiguous)[0];
        nic.rings.ram.write(addr, &head(to, mac(number)));
        Sender { nic, parts: parts(addr) }
    }
}

impl Neighbours for World {
    fn act(&mut self) {
        self.caused += (self.deed)(&self.switch) as u64;
        if let Some((sender, receiver)) = &mut self.pair {
            sender.refill();
            receiver.rings.rx[0].drain();
        }
    }

    fn turn(&mut self) {
        self.worker.step();
    }

    fn honest(&self) -> u64 {
        self.pair.as_ref().map_or(0, |(_, receiver)| receiver.stats.rx_bytes.get())
    }

    fn caused(&self) -> u64 {
        self.caused
    }
}

impl Sender {
    /// Fills the ring. Returns how many frames were done with since.
    fn refill(&mut self) -> usize {
        let ring = &mut self.nic.rings.tx[0];
        let done = ring.reap();
        while ring.post(&self.parts, &TxRequest::NONE) {}
        done
    }
}

/// Ethernet's header.
fn head(to: Mac, from: Mac) -> Vec<u8> {
    [&to.0[..], &from.0, &[0x88, 0xb5]].concat()
}

/// A VM sends to `to`, and each frame costs so much.
fn sending(to: Mac, price: usize, parts: fn(u64) -> Vec<(u64, usize)>) -> Box<dyn Neighbours> {
    World::with(|world| {
        let mut sender = world.sender(9, to, 4096, parts);
        Box::new(move |_| sender.refill() * price)
    })
}

/// A VM sends to one that has `buffers` a round for what comes.
fn receiving(buffers: u16) -> Box<dyn Neighbours> {
    World::with(|world| {
        let mut sender = world.sender(8, mac(9), SMALL, |addr| vec![(addr, SMALL)]);
        let mut receiver = world.nic(9);
        receiver.rings.rx[0].reposts = false;
        Box::new(move |_| {
            receiver.rings.rx[0].drain();
            receiver.rings.rx[0].post(0, buffers);
            sender.refill() * FRAME
        })
    })
}

fn tables_made_anew() -> Box<dyn Neighbours> {
    World::with(|world| {
        let (id, (wire, end)) = (world.port(9, 0), Wire::new(mac(9)));
        world.switch.attach(id, end);
        let mut asked = wire.refreshes() as u64;
        Box::new(move |switch| {
            let before = asked;
            // Each caller waits for its answer.
            while asked < wire.refreshes() as u64 + CHANGES {
                switch.refresh(id);
                asked += 1;
            }
            (asked - before) as usize * REBUILD
        })
    })
}

/// Interrupts that are never handled.
struct Silent;

impl Lines for Silent {
    fn call(&self, _: usize) {}

    fn fail(&self, _: usize) {}

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn clear(&self) {}
}

/// A virtio card's rings from its driver's side.
struct Card {
    id: PortId,
    stats: Arc<PortStats>,
    ram: Arc<Ram>,
    /// Receive, transmit, control.
    rings: [DriverRing; 3],
    device: NetDevice,
    features: u64,
    runs: bool,
}

impl Card {
    fn new(world: &World, card: u8, features: u64) -> Card {
        let id = world.port(9, card);
        let ram = Arc::new(Ram::new(4 << 20));
        let features = features | feature::VERSION_1 | feature::INDIRECT;
        let rings = [0, 1, 2].map(|_| DriverRing::new(&ram, RING, features & feature::PACKED != 0));
        let config = NetConfig { mac: mac(9 + card), mtu: 1500, queues: 1, lro: true, packed: true };
        let stats = Arc::new(VirtioNetStats::default());
        let device = NetDevice::new(config, world.switch.clone(), id, Arc::new(Silent), stats);
        let stats = world.switch.stats(id);
        let mut card = Card { id, stats, ram, rings, device, features, runs: false };
        card.run();
        card
    }

    fn run(&mut self) {
        let count = if self.features & net_feature::CTRL_VQ == 0 { 2 } else { 3 };
        self.device.run(Setup {
            features: self.features,
            memory: self.ram.device_map(),
            rings: self.rings.iter().take(count).map(|ring| Some(ring.setup())).collect(),
            resumed: false,
        });
        self.runs = true;
    }

    fn bytes(&self, bytes: &[u8]) -> u64 {
        let addr = self.rings[0].alloc(bytes.len());
        self.ram.write(addr, bytes);
        addr
    }

    /// Fills a ring with chains of a table of pieces. Returns how many were done with since.
    fn refill(&mut self, ring: usize, table: u64, posted: &mut u16) -> usize {
        let ring = &mut self.rings[ring];
        let done = std::iter::from_fn(|| ring.take()).count();
        *posted -= done as u16;
        while *posted < RING {
            ring.post_table(table, (PIECES * desc::SIZE) as u32);
            *posted += 1;
        }
        done
    }
}

/// Chains of as many pieces as may be, of `len` bytes each.
fn virtio_tx(len: usize, features: u64) -> Box<dyn Neighbours> {
    World::with(|world| {
        let mut card = Card::new(world, 0, features);
        let frame = card.bytes(&[vec![0; HEADER], head(mac(200), mac(9)), vec![0; PIECES]].concat());
        let pieces: Vec<Segment> = (0..PIECES).map(|at| out(frame + (at * len) as u64, len)).collect();
        let table = table(&card.rings[1], &pieces, features & feature::PACKED != 0);
        let mut posted = 0;
        Box::new(move |_| card.refill(1, table, &mut posted) * PIECES * DESCRIPTOR)
    })
}

/// Buffers of as many pieces as may be, which are too few bytes for what comes.
fn virtio_rx() -> Box<dyn Neighbours> {
    World::with(|world| {
        let mut sender = world.sender(30, mac(9), FULL, |addr| vec![(addr, FULL)]);
        let mut card = Card::new(world, 0, 0);
        let page = card.bytes(&[0]);
        let table = table(&card.rings[0], &vec![into(page, 1); PIECES], false);
        let (mut posted, mut before) = (0, 0);
        Box::new(move |_| {
            card.refill(0, table, &mut posted);
            let lost = card.stats.drop_no_room.get();
            let read = lost - std::mem::replace(&mut before, lost);
            sender.refill() * FRAME + read as usize * PIECES * DESCRIPTOR
        })
    })
}

/// Every card of a VM is set to receive other frames, again and again.
fn commands() -> Box<dyn Neighbours> {
    World::with(|world| {
        let features = net_feature::CTRL_VQ | net_feature::CTRL_RX;
        // A table of 600 addresses, each another one than before.
        let addresses: Vec<u8> =
            (0..600u16).rev().flat_map(|at| [1, 0, 0x5e, 0, (at >> 8) as u8, at as u8]).collect();
        let list = [&0u32.to_le_bytes()[..], &600u32.to_le_bytes(), &addresses].concat();
        let mut cards: Vec<_> = (0..CARDS)
            .map(|number| {
                let card = Card::new(world, number, features);
                let pieces =
                    [&[class::MAC, control::mac::TABLE][..], &list, &[0]].map(|bytes| card.bytes(bytes));
                (card, pieces, 0)
            })
            .collect();
        Box::new(move |_| {
            let mut all = 0;
            for (card, [head, data, answer], posted) in &mut cards {
                let ring = &mut card.rings[2];
                let done = std::iter::from_fn(|| ring.take()).count();
                *posted -= done;
                while *posted < COMMANDS {
                    ring.post(&[out(*head, 2), out(*data, list.len()), into(*answer, 1)]);
                    *posted += 1;
                }
                // One of sixteen makes the switch visit all ports.
                all += done * 600 * DESCRIPTOR + done.div_ceil(16) * REBUILD;
            }
            all
        })
    })
}

/// The rings of all of a VM's cards stop and start.
fn restarts() -> Box<dyn Neighbours> {
    World::with(|world| {
        let mut cards: Vec<_> = (0..CARDS).map(|number| Card::new(world, number, 0)).collect();
        Box::new(move |switch| {
            let ports = switch.ports();
            let mut rebuilds = 0;
            for card in &mut cards {
                // Its VMM waits for the answer.
                let view = ports.iter().find(|view| view.id == card.id);
                if view.is_none_or(|view| view.attached != card.runs) {
                    continue;
                }
                if card.runs {
                    card.device.stop();
                    card.runs = false;
                    rebuilds += 2;
                } else {
                    card.run();
                    rebuilds += 8;
                }
            }
            rebuilds * REBUILD
        })
    })
}

#[test]
fn a_card_whose_frames_are_all_left_out_gets_its_completions() {
    let (switch, worker) = Switch::unstarted(Settings::default());
    let mut world = World { switch: Arc::new(switch), worker, deed: Box::new(|_| 0), pair: None, caused: 0 };
    let mut sender = world.sender(9, mac(200), SMALL, |addr| vec![(addr, 1)]);
    sender.refill();
    (0..100).for_each(|_| world.turn());
    assert!(sender.nic.stats.drop_bad_length.get() > 0, "{:?}", sender.nic.stats);
    assert!(sender.refill() > 0, "it waits for ever");
}
