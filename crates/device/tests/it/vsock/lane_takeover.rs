//! The daemon dies in the middle of a step of a connection with a ring that outlives it, as a VMCI guest's
//! does: the next one goes on, and every byte arrives once.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{SeekFrom, seek};
use vmlane_guestsim::Pattern;
use vmlane_guestsim::vsock::{Bench, Guest, RING, vm};
use vmlane_mem::{Window, memfd};
use vmlane_port::queue_pair::QueuePairPort;
use vmlane_port::shared_ring::{SharedMap, SharedRing};
use vmlane_port::{
    Budget, Bytes, End, Notifications, PortFault, Side, StreamEnd, StreamId, StreamInfo, StreamPort, Survival,
};
use vmlane_sock::ring::{Incoming, Outgoing};
use vmlane_stream::Inline;
use vmlane_vsock::{Key, Role};
use vmlane_wire::host::{layout, word};
use vmlane_wire::virtio_vsock::{HEADER, Header, kind, op};

use super::A;
use crate::host::Host;

/// The VM at the other ends of connections.
const PEER: u32 = 9;
/// Connections, of the guest's ports from here on.
const CONNECTIONS: u32 = 3;
const FIRST: u32 = 100;
/// Credit that the guest gives.
const CREDIT: u32 = 40_000;

/// What is in a file that is mostly holes.
type Extents = Vec<(u64, Vec<u8>)>;

fn extents(file: &OwnedFd) -> Extents {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Ok(begin) = seek(file, SeekFrom::Data(at)) {
        let end = seek(file, SeekFrom::Hole(begin)).expect("a hole at the end");
        let mut bytes = vec![0; (end - begin) as usize];
        rustix::io::pread(file, &mut bytes, begin).expect("a file in memory");
        all.push((begin, bytes));
        at = end;
    }
    all
}

fn put_back(file: &OwnedFd, before: &Extents) {
    for (at, now) in extents(file) {
        rustix::io::pwrite(file, &vec![0; now.len()], at).expect("a file in memory");
    }
    for (at, bytes) in before {
        rustix::io::pwrite(file, bytes, *at).expect("a file in memory");
    }
}

/// What lasts longer than a daemon, at one moment.
struct Image {
    kept: Extents,
    log: Extents,
    used: [u16; 2],
    /// The daemon's tail and head of each ring.
    rings: Vec<[u64; 2]>,
}

/// Where that is.
struct Places {
    kept: OwnedFd,
    log: OwnedFd,
    used: [Window; 2],
    rings: Vec<OwnedFd>,
    size: u64,
}

impl Places {
    fn of(guest: &Guest, log: &OwnedFd, rings: Vec<OwnedFd>, size: u64) -> Places {
        let map = guest.rx.ram.device_map();
        let used =
            [&guest.rx, &guest.tx].map(|ring| map.window(ring.setup().device, 8, true).expect("a ring"));
        let copy = |file: &OwnedFd| file.try_clone().expect("a descriptor");
        Places { kept: copy(guest.kept.file()), log: copy(log), used, rings, size }
    }

    fn word(&self, at: usize) -> u64 {
        layout::daemon_page(self.size) + at as u64
    }

    fn take(&self) -> Image {
        let ring = |file: &OwnedFd| {
            [word::TAIL, word::HEAD].map(|at| {
                let mut bytes = [0; 8];
                rustix::io::pread(file, &mut bytes, self.word(at)).expect("a file in memory");
                u64::from_le_bytes(bytes)
            })
        };
        Image {
            kept: extents(&self.kept),
            log: extents(&self.log),
            used: self.used.each_ref().map(|used| used.load_u16(2)),
            rings: self.rings.iter().map(ring).collect(),
        }
    }

    fn put_back(&self, image: &Image) {
        put_back(&self.kept, &image.kept);
        put_back(&self.log, &image.log);
        self.used.iter().zip(image.used).for_each(|(window, used)| window.store_u16(2, used));
        for (file, ring) in self.rings.iter().zip(&image.rings) {
            for (at, value) in [word::TAIL, word::HEAD].into_iter().zip(ring) {
                rustix::io::pwrite(file, &value.to_le_bytes(), self.word(at)).expect("a file in memory");
            }
        }
    }
}

/// When the daemon dies, and what there was then.
#[derive(Default)]
struct Death {
    places: Option<Places>,
    /// In so many steps.
    steps: u64,
    image: Option<Image>,
}

impl Death {
    fn step(&mut self) {
        self.steps = self.steps.wrapping_sub(1);
        if self.steps == 0 {
            self.image = self.places.as_ref().map(Places::take);
        }
    }
}

/// A ring whose daemon may die behind what it shows the process, and before what it takes from it.
struct Dying(QueuePairPort<SharedRing>, Arc<Mutex<Death>>);

impl StreamPort for Dying {
    fn readable(&mut self) -> Result<usize, PortFault> {
        self.0.readable()
    }

    fn source(&self) -> Bytes<'_> {
        self.0.source()
    }

    fn consume(&mut self, len: usize) -> Result<(), PortFault> {
        self.1.lock().step();
        let consumed = self.0.consume(len);
        self.1.lock().step();
        consumed
    }

    fn arm_readable(&mut self) -> Result<bool, PortFault> {
        self.0.arm_readable()
    }

    fn writable(&mut self) -> Result<usize, PortFault> {
        self.0.writable()
    }

    fn keep_free(&self) -> usize {
        self.0.keep_free()
    }

    fn fill(&mut self, from: Bytes<'_>, len: usize) -> Result<(), PortFault> {
        self.1.lock().step();
        let filled = self.0.fill(from, len);
        self.1.lock().step();
        filled
    }

    fn arm_writable(&mut self) -> Result<bool, PortFault> {
        self.0.arm_writable()
    }

    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        self.0.renotify_reader()
    }

    fn end(&mut self, end: End) {
        self.0.end(end);
    }

    fn info(&self) -> StreamInfo<'_> {
        self.0.info()
    }

    fn notifications(&mut self) -> Option<&mut dyn Notifications> {
        self.0.notifications()
    }

    fn survival(&mut self) -> Option<&mut dyn Survival> {
        self.0.survival()
    }
}

/// A connection: the other end's halves of its ring, and how many bytes went each way.
struct Other {
    outgoing: Outgoing,
    incoming: Incoming,
    file: OwnedFd,
    sent: u64,
    received: u64,
    /// The guest's counts, and the credit that it has.
    guest_sent: u64,
    guest_received: u64,
    guest_taken: u32,
    room: u32,
}

struct World {
    bench: Option<Bench>,
    guest: Guest,
    host: Arc<Host>,
    others: Vec<Other>,
    death: Arc<Mutex<Death>>,
    size: u64,
    /// Payload bytes that a buffer holds.
    buffer: usize,
    buffers: usize,
    sending: usize,
    state: u64,
}

fn key(number: u32) -> Key {
    Key { client: (A, FIRST + number), server: (PEER, 80 + number) }
}

fn add_peer(bench: &Bench, host: &Arc<Host>) {
    bench.router.vms().add(vm(PEER)).expect("a CID of its own");
    bench.router.set_endpoint(PEER, host.clone());
}

impl World {
    fn new(size: u64, buffer: usize, seed: u64) -> World {
        let mut bench = Bench::new(Arc::new(Inline::default()));
        let host = Arc::new(Host::default());
        add_peer(&bench, &host);
        let guest = bench.guest(vm(A), false);
        let death = Arc::default();
        let mut world = World {
            bench: Some(bench),
            guest,
            host,
            others: Vec::new(),
            death,
            size,
            buffer,
            buffers: 0,
            sending: 0,
            state: seed,
        };
        world.post(60);
        (0..CONNECTIONS).for_each(|number| world.connect(number));
        world
    }

    fn bench(&mut self) -> &mut Bench {
        self.bench.as_mut().expect("a daemon")
    }

    fn chance(&mut self, below: u64) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % below
    }

    fn post(&mut self, count: usize) {
        let count = count.min(usize::from(RING) - self.buffers);
        self.guest.post_buffers(count, HEADER + self.buffer);
        self.buffers += count;
    }

    fn end(&self, port: QueuePairPort<SharedRing>) -> StreamEnd {
        let port = Box::new(Dying(port, self.death.clone()));
        StreamEnd { port, budget: Arc::new(Budget::new(1 << 20)), slow: false, worker: None }
    }

    fn ring(&self, file: &OwnedFd) -> QueuePairPort<SharedRing> {
        let map = SharedMap::new(file.try_clone().expect("a descriptor"), self.size).expect("a mapping");
        map.port(self.host.clone()).expect("a port")
    }

    fn connect(&mut self, number: u32) {
        let file = memfd("end", layout::file(self.size)).expect("a file");
        let (outgoing, incoming) =
            vmlane_sock::ring::map(file.try_clone().expect("a descriptor"), self.size).expect("a ring");
        let end = self.end(self.ring(&file));
        self.send_packet(number, op::REQUEST, &[]);
        assert!(self.bench().run());
        let call = self.host.calls.lock().pop().expect("asked");
        let host = self.host.clone();
        assert!(self.bench().router.accept(call, end, host));
        let (sent, received, guest_sent, guest_received) = (0, 0, 0, 0);
        let (guest_taken, room) = (0, 0);
        self.others.push(Other {
            outgoing,
            incoming,
            file,
            sent,
            received,
            guest_sent,
            guest_received,
            guest_taken,
            room,
        });
        assert!(self.bench().run());
        self.poll();
    }

    fn send_packet(&mut self, number: u32, op: u16, payload: &[u8]) {
        let received = self.others.get(number as usize).map_or(0, |other| other.guest_received);
        let Key { client, server } = key(number);
        let header = Header::new(client, server, kind::STREAM, op);
        let header = Header {
            len: (payload.len() as u32).into(),
            buf_alloc: CREDIT.into(),
            fwd_cnt: (received as u32).into(),
            ..header
        };
        self.guest.send(&header, payload);
        self.sending += 1;
    }

    /// Guest and other ends do something.
    fn act(&mut self) {
        for number in 0..CONNECTIONS {
            for _ in 0..self.chance(6) {
                self.guest_sends(number);
            }
            let len = self.chance(9000) as usize;
            let other = &mut self.others[number as usize];
            let bytes = Pattern::new(number.into()).bytes(other.sent, len);
            other.sent += other.outgoing.write(&bytes).expect("a ring in order").len as u64;
            if self.chance(3) > 0 {
                self.reads(number);
            }
        }
        let count = self.chance(40) as usize;
        self.post(count);
    }

    fn guest_sends(&mut self, number: u32) {
        let most = self.chance(5000);
        let other = &mut self.others[number as usize];
        let left = other.room.saturating_sub((other.guest_sent as u32).wrapping_sub(other.guest_taken));
        let len = most.min(left.into()) as usize;
        if len == 0 || self.sending == usize::from(RING) {
            return;
        }
        let payload = Pattern::new(u64::from(number) | 1 << 32).bytes(other.guest_sent, len);
        other.guest_sent += len as u64;
        self.send_packet(number, op::RW, &payload);
    }

    fn reads(&mut self, number: u32) {
        let mut bytes = vec![0; 1 + self.chance(5000) as usize];
        let other = &mut self.others[number as usize];
        let len = other.incoming.read(&mut bytes).expect("a ring in order").len;
        Pattern::new(u64::from(number) | 1 << 32).check(other.received, &bytes[..len]);
        other.received += len as u64;
        assert_eq!(other.incoming.ended(), 0);
    }

    /// The guest takes what came for it.
    fn poll(&mut self) {
        self.sending -= self.guest.taken();
        for (header, payload) in self.guest.received() {
            self.buffers -= 1;
            let number = header.dst_port.get() - FIRST;
            let other = &mut self.others[number as usize];
            (other.room, other.guest_taken) = (header.buf_alloc.get(), header.fwd_cnt.get());
            match header.op.get() {
                op::RESPONSE | op::CREDIT_UPDATE => {}
                op::CREDIT_REQUEST => self.send_packet(number, op::CREDIT_UPDATE, &[]),
                op::RW => {
                    Pattern::new(number.into()).check(other.guest_received, &payload);
                    other.guest_received += payload.len() as u64;
                    if self.chance(4) == 0 {
                        self.send_packet(number, op::CREDIT_UPDATE, &[]);
                    }
                }
                other => panic!("{other}: {header:?}"),
            }
        }
    }

    fn kick(&mut self) {
        let (stream, host) = (self.bench().router.streams().clone(), self.host.clone());
        let joined = host.joined.lock().map(|(stream, _)| stream.number);
        // Streams are numbered from 0 on.
        for number in 0..=joined.unwrap_or(0) {
            stream.kick(StreamId { worker: 0, number });
        }
    }

    /// A round, in which the daemon dies at some step, or at its end; then the next daemon takes over.
    fn dies(&mut self) {
        let copy = |other: &Other| other.file.try_clone().expect("a descriptor");
        let rings = self.others.iter().map(copy).collect();
        let places = Places::of(&self.guest, &self.bench.as_ref().expect("a daemon").log, rings, self.size);
        *self.death.lock() = Death { places: Some(places), steps: 1 + self.chance(12), image: None };
        self.kick();
        self.bench().round();
        let Death { places, image, .. } = std::mem::take(&mut *self.death.lock());
        let (places, bench) = (places.expect("they were put there"), self.bench.take().expect("a daemon"));
        let image = image.unwrap_or_else(|| places.take());
        let remains = bench.die();
        places.put_back(&image);
        let (others, host) = (&self.others, &self.host);
        let mut ports: Vec<_> = others.iter().map(|other| Some(self.ring(&other.file))).collect();
        let (death, size) = (self.death.clone(), self.size);
        let rejoin = |bench: &Bench| {
            add_peer(bench, host);
            for number in 0..CONNECTIONS {
                let restored = bench.router.take_restored(key(number), Role::Client);
                let (call, restored) = restored.expect("what the last one had");
                let [tail, head] = image.rings[number as usize];
                let cur = restored.counts.sent() % size;
                let memory = ports[number as usize].take().expect("a ring").memory;
                let port =
                    QueuePairPort::resumed(memory, size, size, (head, tail), Some(cur)).expect("indices");
                assert!(restored.counts.resume(tail, size));
                let port = Box::new(Dying(port, death.clone()));
                let end =
                    StreamEnd { port, budget: Arc::new(Budget::new(1 << 20)), slow: false, worker: None };
                let (joined, calls) = bench.router.rejoin((call, restored), (end, host.clone()));
                let (_, stream) = joined.expect("both ends");
                *host.joined.lock() = Some((stream, Side::B));
                bench.router.run(calls);
            }
            bench.router.end_restored();
        };
        self.bench = Some(remains.take_over_with([&mut self.guest], Arc::new(Inline::default()), rejoin));
    }

    /// All that was sent arrives.
    fn finish(mut self, seed: u64) {
        for _ in 0..3000 {
            self.post(64);
            self.kick();
            self.bench().round();
            self.poll();
            (0..CONNECTIONS).for_each(|number| self.reads(number));
        }
        for (number, other) in self.others.iter().enumerate() {
            assert_eq!(other.guest_sent, other.received, "seed {seed}, connection {number}, to the ring");
            assert_eq!(other.sent, other.guest_received, "seed {seed}, connection {number}, to the guest");
        }
        assert_eq!(self.sending, 0);
    }
}

#[test]
fn every_byte_of_a_ring_arrives_once_wherever_the_daemon_dies() {
    let (mut deaths, mut bytes) = (0, 0);
    for seed in 0..40 {
        let (size, buffer) =
            ([4096, 16_384][seed as usize % 2], [1024, 24, 4096, 1500][seed as usize / 2 % 4]);
        let mut world = World::new(size, buffer, seed);
        for _ in 0..60 {
            world.act();
            if world.chance(3) == 0 {
                world.dies();
                deaths += 1;
            } else {
                world.kick();
                world.bench().round();
            }
            world.poll();
        }
        bytes += world.others.iter().map(|other| other.sent + other.guest_sent).sum::<u64>();
        world.finish(seed);
    }
    println!("{deaths} deaths, {bytes} bytes");
}
