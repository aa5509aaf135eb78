//! The worker of virtio-vsock: an honest pair of VMs, and VMs whose drivers are hostile; some of them have
//! VMCI.

use std::sync::Arc;
use std::time::Duration;

use vmlane_device::virtio::queue::Segment;
use vmlane_guestsim::virtio::{into, out};
use vmlane_guestsim::vsock::{Bench, Guest, RING, vm};
use vmlane_guestsim::{Driver, Machine, PairSpec, Path, Placement, vm_with};
use vmlane_stream::Inline;
use vmlane_wire::virtio::desc;
use vmlane_wire::virtio_vsock::{HEADER, Header, kind, op};
use vmlane_wire::vmci::Handle;
use vmlane_wire::vmci_stream::{ControlPacket, PacketType};
use zerocopy::IntoBytes;

use super::{Attack, DESCRIPTOR, Neighbours, PIECES, QUOTA, REBUILD, table};

/// How much time passes in a round.
const TICK: Duration = Duration::from_micros(20);
/// Bytes of an honest packet, and packets and buffers that wait.
const PAYLOAD: usize = 16 << 10;
const PACKETS: u16 = 20;
const BUFFERS: u16 = 40;
/// The longest packet.
const LONGEST: usize = 64 << 10;
/// Connections that a VMCI guest opens in a round.
const CONNECTS: u32 = 40;
/// What a connect costs for which memory is made and mapped.
const CONNECT: usize = 2 * REBUILD;

const fn row(name: &'static str, vms: u64, make: fn() -> Box<dyn Neighbours>) -> Attack {
    Attack { name, vms, quota: QUOTA, alone, make }
}

/// Every attack on virtio-vsock.
pub const ATTACKS: &[Attack] = &[
    row("vsock: buffers of 1024 pieces", 2, pieces_to_receive),
    row("vsock: 1024 pieces that are no packet", 1, || {
        chains(|guest| vec![out(guest.tx.alloc(4096), 0); PIECES], PIECES * DESCRIPTOR)
    }),
    row("vsock: packets of 4 GiB that overlap", 1, || {
        chains(
            |guest| {
                let (head, part) = (header(guest, 4, op::RW, 1 << 30), guest.tx.alloc(1 << 20));
                let body = (1..PIECES).map(|_| out(part, 1 << 20));
                std::iter::once(out(head, HEADER)).chain(body).collect()
            },
            PIECES * DESCRIPTOR,
        )
    }),
    row("vsock: packets of 1024 pieces that overlap", 2, pieces_to_send),
    row("vsock: packets of one byte", 2, || {
        to_accomplice(|guest, _| (header(guest, 6, op::RW, 1), HEADER + 1))
    }),
    row("vsock: requests to no one", 1, || {
        chains(|guest| vec![out(header(guest, 77, op::REQUEST, 0), HEADER)], CONNECT)
    }),
    row("vsock: requests for credit", 2, || {
        to_accomplice(|guest, _| (header(guest, 6, op::CREDIT_REQUEST, 0), HEADER))
    }),
    row("vsock: connections opened and reset", 2, || {
        to_accomplice(|guest, number| {
            let operation = if number % 2 == 0 { op::REQUEST } else { op::RST };
            (header_from(guest, number / 2, 6, operation, 0), HEADER)
        })
    }),
    row("vsock: the same, to a VMCI guest", 2, connects_to_vmci),
    row("vsock: VMCI guests connect and reset", 2, || connects_from_vmci(BUFFERS)),
    row("vsock: the same, to a guest without buffers", 2, || connects_from_vmci(0)),
    row("vsock: a receiver that takes little", 2, slow_receiver),
    row("vmci: datagrams that no one fetches", 2, datagrams),
    row("vmci: queue pairs made and detached", 1, queue_pairs),
];

/// Does its worst before a round; what it has caused since it was last called.
type Deed = Box<dyn FnMut() -> usize>;

/// A guest that always has the same packets, or buffers.
struct Peer {
    guest: Guest,
    /// Where its packets and buffers lie.
    places: Vec<u64>,
    next: usize,
    waiting: u16,
}

struct World {
    bench: Bench,
    /// The honest sender and its receiver.
    pair: [Peer; 2],
    deed: Deed,
    honest: u64,
    caused: u64,
}

fn alone() -> Box<dyn Neighbours> {
    World::with(|_| Box::new(|| 0))
}

impl World {
    fn with(attack: impl FnOnce(&mut Bench) -> Deed) -> Box<dyn Neighbours> {
        let mut bench = Bench::new(Arc::new(Inline::default()));
        let (sender, receiver) = (bench.guest(vm(3), false), bench.guest(vm(4), false));
        let packet = header(&sender, 4, op::RW, PAYLOAD);
        let sender = Peer { places: vec![packet], guest: sender, next: 0, waiting: 0 };
        let pair = [sender, Peer::receiver(receiver, PAYLOAD + HEADER)];
        let deed = attack(&mut bench);
        Box::new(World { bench, pair, deed, honest: 0, caused: 0 })
    }
}

impl Neighbours for World {
    fn act(&mut self) {
        self.caused += (self.deed)() as u64;
        let [sender, receiver] = &mut self.pair;
        sender.send(PACKETS, HEADER + PAYLOAD);
        self.honest += receiver.receive(BUFFERS, HEADER + PAYLOAD).1 as u64;
    }

    fn turn(&mut self) {
        self.bench.now += TICK;
        self.bench.round();
    }

    fn honest(&self) -> u64 {
        self.honest
    }

    fn caused(&self) -> u64 {
        self.caused
    }
}

impl Peer {
    fn receiver(guest: Guest, len: usize) -> Peer {
        let places = (0..RING).map(|_| guest.rx.alloc(len)).collect();
        Peer { guest, places, next: 0, waiting: 0 }
    }

    fn place(&mut self) -> u64 {
        self.next = (self.next + 1) % self.places.len();
        self.places[self.next]
    }

    /// Has as many packets wait. Returns how many were done with.
    fn send(&mut self, packets: u16, len: usize) -> usize {
        let done = self.guest.taken();
        self.waiting -= done as u16;
        while self.waiting < packets {
            let place = self.place();
            self.guest.tx.post(&[out(place, len)]);
            self.waiting += 1;
        }
        done
    }

    /// Has as many buffers wait. Returns how many packets came, and their bytes.
    fn receive(&mut self, buffers: u16, len: usize) -> (usize, usize) {
        let (mut packets, mut bytes) = (0, 0);
        while let Some((_, len)) = self.guest.rx.take() {
            packets += 1;
            bytes += len as usize - HEADER;
            self.waiting -= 1;
        }
        while self.waiting < buffers {
            let place = self.place();
            self.guest.rx.post(&[into(place, len)]);
            self.waiting += 1;
        }
        (packets, bytes)
    }
}

/// A packet of `guest` with `len` bytes behind its header: its address. Payload has memory up to what a
/// packet may have.
fn header(guest: &Guest, to: u32, operation: u16, len: usize) -> u64 {
    header_from(guest, 0, to, operation, len)
}

fn header_from(guest: &Guest, port: usize, to: u32, operation: u16, len: usize) -> u64 {
    let at = guest.tx.alloc(HEADER + len.min(LONGEST));
    let header = Header::new((guest.cid, 1000 + port as u32), (to, 1), kind::STREAM, operation);
    let header = Header { len: (len as u32).into(), buf_alloc: (256 << 10).into(), ..header };
    guest.tx.ram.write(at, header.as_bytes());
    at
}

/// A VM sends the same chain of pieces as often as it can; each costs so much.
fn chains(pieces: fn(&Guest) -> Vec<Segment>, price: usize) -> Box<dyn Neighbours> {
    World::with(|bench| {
        let mut guest = bench.guest(vm(5), false);
        let pieces = pieces(&guest);
        let table = table(&guest.tx, &pieces, false);
        let mut posted = 0;
        // What it is answered finds buffers.
        let mut replies = replies(&guest);
        Box::new(move || {
            replies(&mut guest);
            let done = guest.taken();
            posted -= done;
            while posted < usize::from(RING) {
                guest.tx.post_table(table, (pieces.len() * desc::SIZE) as u32);
                posted += 1;
            }
            done * price
        })
    })
}

/// Keeps a guest's receive ring full of buffers for packets without payload.
fn replies(guest: &Guest) -> impl FnMut(&mut Guest) -> usize + use<> {
    let place = guest.rx.alloc(4096);
    let mut posted = 0;
    move |guest| {
        let taken = std::iter::from_fn(|| guest.rx.take()).count();
        posted -= taken;
        while posted < usize::from(RING) {
            guest.rx.post(&[into(place, 4096)]);
            posted += 1;
        }
        taken
    }
}

/// A VM sends packets, number n made by `packet`, to another that has buffers for them.
fn to_accomplice(packet: fn(&Guest, usize) -> (u64, usize)) -> Box<dyn Neighbours> {
    World::with(|bench| {
        let (mut sender, mut receiver) = (bench.guest(vm(5), false), bench.guest(vm(6), false));
        let (mut to_sender, mut to_receiver) = (replies(&sender), replies(&receiver));
        let packets: Vec<_> = (0..32).map(|number| packet(&sender, number)).collect();
        let (mut posted, mut next) = (0, 0);
        Box::new(move || {
            to_sender(&mut sender);
            let received = to_receiver(&mut receiver);
            let done = sender.taken();
            posted -= done;
            while posted < usize::from(RING) {
                let (place, len) = packets[next % packets.len()];
                sender.tx.post(&[out(place, len)]);
                (posted, next) = (posted + 1, next + 1);
            }
            (done + received) * DESCRIPTOR
        })
    })
}

fn pieces_to_receive() -> Box<dyn Neighbours> {
    World::with(|bench| {
        let (sender, receiver) = (bench.guest(vm(5), false), bench.guest(vm(6), false));
        let stats = bench.stats.clone();
        let page = receiver.rx.alloc(4096);
        let table = table(&receiver.rx, &vec![into(page, 1); PIECES], false);
        let packet = header(&sender, 6, op::RW, LONGEST);
        let mut sender = Peer { places: vec![packet], guest: sender, next: 0, waiting: 0 };
        let (mut receiver, mut posted, mut before) = (receiver, 0, 0);
        Box::new(move || {
            posted -= std::iter::from_fn(|| receiver.rx.take()).count();
            while posted < usize::from(RING) {
                receiver.rx.post_table(table, (PIECES * desc::SIZE) as u32);
                posted += 1;
            }
            sender.send(2, HEADER + LONGEST);
            let read = stats.descriptors.get();
            // The honest pair's are among them: some for each packet.
            (read - std::mem::replace(&mut before, read)) as usize * DESCRIPTOR
        })
    })
}

fn pieces_to_send() -> Box<dyn Neighbours> {
    World::with(|bench| {
        let (mut sender, receiver) = (bench.guest(vm(5), false), bench.guest(vm(6), false));
        let head = header(&sender, 6, op::RW, (PIECES - 1) * 64);
        let pieces: Vec<_> =
            std::iter::once(out(head, HEADER)).chain((1..PIECES).map(|_| out(head, 64))).collect();
        let table = table(&sender.tx, &pieces, false);
        let mut receiver = Peer::receiver(receiver, HEADER + LONGEST);
        let mut posted = 0;
        Box::new(move || {
            receiver.receive(RING / 2, HEADER + LONGEST);
            let done = sender.taken();
            posted -= done;
            while posted < usize::from(RING) {
                sender.tx.post_table(table, (PIECES * desc::SIZE) as u32);
                posted += 1;
            }
            done * (PIECES * DESCRIPTOR + (PIECES - 1) * 64)
        })
    })
}

/// A VMCI guest of the pair's group.
fn vmci(bench: &Bench, cid: u32) -> Driver {
    Machine::new(&bench.hypervisor, vm_with(cid, |vm| vm.group = "one".into())).probe(Path::Dma)
}

fn connects_to_vmci() -> Box<dyn Neighbours> {
    World::with(|bench| {
        let (mut sender, mut server) = (bench.guest(vm(5), false), vmci(bench, 7));
        let mut to_sender = replies(&sender);
        let packets: Vec<_> = (0..32)
            .map(|number| {
                let operation = if number % 2 == 0 { op::REQUEST } else { op::RST };
                header_from(&sender, number / 2, 7, operation, 0)
            })
            .collect();
        let (mut posted, mut next) = (0, 0);
        Box::new(move || {
            to_sender(&mut sender);
            server.service();
            let done = sender.taken();
            posted -= done;
            while posted < usize::from(RING) {
                sender.tx.post(&[out(packets[next % packets.len()], HEADER)]);
                (posted, next) = (posted + 1, next + 1);
            }
            done * CONNECT / 2
        })
    })
}

fn connects_from_vmci(buffers: u16) -> Box<dyn Neighbours> {
    World::with(|bench| {
        let (mut client, server) = (vmci(bench, 7), bench.guest(vm(6), false));
        let mut server = Peer::receiver(server, HEADER + 4096);
        let mut port = 0;
        Box::new(move || {
            let (received, _) = server.receive(buffers, HEADER + 4096);
            for (kind, ports) in [
                (PacketType::Rst, port..port + CONNECTS),
                (PacketType::Request2, port + CONNECTS..port + 2 * CONNECTS),
            ] {
                for from in ports {
                    client.control(6, ControlPacket::new(kind, 2000 + from % 10_000, 1).with_size(4096, 1));
                }
            }
            port += CONNECTS;
            client.service();
            // Half of what the server receives are requests. One that it does not receive costs the worker
            // next to nothing.
            received * CONNECT / 2 + CONNECTS as usize
        })
    })
}

/// A VM takes one packet a round of one that sends to it.
fn slow_receiver() -> Box<dyn Neighbours> {
    World::with(|bench| {
        let (sender, receiver) = (bench.guest(vm(5), false), bench.guest(vm(6), false));
        let packet = header(&sender, 6, op::RW, PAYLOAD);
        let mut sender = Peer { places: vec![packet], guest: sender, next: 0, waiting: 0 };
        let mut receiver = Peer::receiver(receiver, HEADER + PAYLOAD);
        Box::new(move || {
            receiver.receive(1, HEADER + PAYLOAD);
            sender.send(PACKETS, HEADER + PAYLOAD) * PAYLOAD
        })
    })
}

/// VMCI guests of the pair's group flood each other; that costs the threads of their sessions, and the worker
/// next to nothing.
fn datagrams() -> Box<dyn Neighbours> {
    World::with(|bench| {
        let (mut sender, _receiver) = (vmci(bench, 7), vmci(bench, 8));
        let lens = [0, 100, 4000, 60_000];
        Box::new(move || {
            for len in lens {
                sender.send_to(Handle::new(8, 77), 9, &vec![7; len]);
            }
            lens.len()
        })
    })
}

fn queue_pairs() -> Box<dyn Neighbours> {
    World::with(|bench| {
        let (mut guest, _peer) = (vmci(bench, 7), vmci(bench, 8));
        let mut number = 0;
        Box::new(move || {
            for _ in 0..8 {
                number = (number + 1) % 10_000;
                let handle = Handle::new(7, 2000 + number);
                let spec = PairSpec { handle, peer: 8, flags: 0, produce: 64 << 10, consume: 64 << 10 };
                let queues = guest.alloc(&spec, Placement::Scattered).expect("a pair");
                assert!(guest.detach(queues) >= 0, "it is the guest's own");
            }
            guest.service();
            8
        })
    })
}
