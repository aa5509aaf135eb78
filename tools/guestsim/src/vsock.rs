//! The routes without their thread, and guests whose rings are filled by hand: for tests and fuzzing.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::Ram;
use crate::virtio::{DriverRing, into, out};
use vmlane_device::virtio::queue::recover;
use vmlane_device::virtio::vhost::{Lines, RingSetup, Setup};
use vmlane_device::vmci::Hypervisor;
use vmlane_port::wrap::StreamTap;
use vmlane_port::{Bytes, End, Notifications, PortFault, StreamInfo, StreamPort, Streams, Survival};
use vmlane_wire::virtio::feature;
use vmlane_wire::virtio_vsock::{HEADER, Header, SEQPACKET, STREAM};
use zerocopy::{FromBytes, IntoBytes};

use vmlane_device::virtio::vsock::VsockStats;
use vmlane_device::virtio::vsock::parts::{
    Bridge, GuestEndpoint, Inboxes, Kept, MAX_LINKS, Parking, Port, Routes, Shares, Transaction, redo,
};
use vmlane_vsock::{Router, Vm};

/// Descriptors of each ring.
pub const RING: u16 = 64;
const FEATURES: u64 = feature::VERSION_1 | feature::INDIRECT | STREAM | SEQPACKET;

/// All VMs, turned by hand.
pub struct Bench {
    routes: Routes,
    inboxes: Arc<Inboxes>,
    pub router: Arc<Router>,
    pub hypervisor: Arc<Hypervisor>,
    pub stats: Arc<VsockStats>,
    pub now: Instant,
    streams: Arc<dyn Streams>,
    /// Of its transactions.
    pub log: OwnedFd,
}

/// Counts the notifications that drivers get.
#[derive(Default)]
pub struct Calls {
    /// By ring.
    counts: [AtomicUsize; 2],
    /// The guest may sleep through them.
    pub lossy: AtomicBool,
}

impl Calls {
    /// Notices of received packets, and of sent ones, since the last check.
    pub fn take(&self) -> (usize, usize) {
        let [rx, tx] = &self.counts;
        (rx.swap(0, Ordering::Relaxed), tx.swap(0, Ordering::Relaxed))
    }
}

impl Lines for Calls {
    fn call(&self, ring: usize) {
        self.counts[ring].fetch_add(1, Ordering::Relaxed);
    }

    fn may_lose_calls(&self) -> bool {
        self.lossy.load(Ordering::Relaxed)
    }

    fn fail(&self, _: usize) {}

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn clear(&self) {}
}

/// A VM's rings from its driver's side.
pub struct Guest {
    pub cid: u32,
    pub rx: DriverRing,
    pub tx: DriverRing,
    pub calls: Arc<Calls>,
    pub kept: Arc<Kept>,
    features: u64,
    /// Buffers by id of their chain: address and bytes.
    buffers: Vec<(u64, usize)>,
}

/// A VM of the group "one".
pub fn vm(cid: u32) -> Vm {
    Vm { connections: 16, ..Vm::new(format!("vm{cid}"), cid, "one") }
}

impl Bench {
    pub fn new(streams: Arc<dyn Streams>) -> Bench {
        let mut bench = Bench::starting(streams);
        bench.routes.begin(Instant::now());
        // As if the daemon had been started long ago.
        bench.now += Duration::from_secs(60);
        bench
    }

    /// A daemon that may follow one.
    fn starting(streams: Arc<dyn Streams>) -> Bench {
        let router = Router::new(streams.clone());
        let hypervisor = Hypervisor::new(router.clone());
        let inboxes = Inboxes::new(Arc::new(Parking::new().expect("an event fd")));
        let stats = Arc::new(VsockStats::default());
        let bridge = Bridge::new(router.clone(), inboxes.clone(), None, MAX_LINKS);
        let (transaction, log) = Transaction::create().expect("a file");
        let now = Instant::now();
        let routes = Routes::new(router.vms().reader(), stats.clone(), Some(bridge), transaction, true);
        let routes = routes.expect("an epoll file");
        Bench { routes, inboxes, router, hypervisor, stats, now, streams, log }
    }

    /// How often something has become valid.
    pub fn commits(&self) -> u64 {
        self.routes.transaction().commits()
    }

    /// This daemon is gone; what was under way in its guests is as it was.
    pub fn die(self) -> Remains {
        let Bench { streams, log, .. } = self;
        Remains { streams, log }
    }

    /// A VM whose driver runs. `packed`: its rings.
    pub fn guest(&mut self, vm: Vm, packed: bool) -> Guest {
        let ram = Arc::new(Ram::new(32 << 20));
        let (rx, tx) = (DriverRing::new(&ram, RING, packed), DriverRing::new(&ram, RING, packed));
        let features = FEATURES | if packed { feature::PACKED } else { 0 };
        let (calls, kept) = (Arc::default(), Kept::create().expect("a file"));
        let guest = Guest { cid: vm.cid, rx, tx, calls, kept, features, buffers: vec![(0, 0); RING.into()] };
        self.add(vm);
        self.attach(&guest);
        guest
    }

    fn add(&mut self, vm: Vm) {
        let cid = vm.cid;
        self.router.vms().add(vm).expect("a CID of its own");
        let endpoint = GuestEndpoint::new(cid, &self.inboxes);
        self.router.set_endpoint(cid, Arc::new(endpoint));
        self.routes.add(cid, Arc::default());
    }

    /// The VM's rings run, from where they are.
    pub fn attach(&mut self, guest: &Guest) {
        self.attach_as(guest, false);
    }

    fn attach_as(&mut self, guest: &Guest, resumed: bool) {
        let memory = guest.rx.ram.device_map();
        let ring = |number: usize, ring: &DriverRing| {
            let setup = RingSetup { record: guest.kept.record(number, RING), ..ring.setup() };
            let position = recover(&setup, guest.features, &memory).filter(|_| resumed);
            position.into_iter().for_each(|position| setup.position.store(position, Ordering::Release));
            Some(setup)
        };
        let rings = vec![ring(0, &guest.rx), ring(1, &guest.tx), None];
        let setup = Setup { features: guest.features, memory: memory.clone(), rings, resumed };
        let (lines, kept) = (guest.calls.clone(), guest.kept.clone());
        let shares = Shares { lines, kept, transaction: self.routes.transaction().clone() };
        if let Some(port) = Port::new(guest.cid, setup, shares) {
            self.routes.attach(guest.cid, Box::new(port));
        }
    }

    pub fn detach(&mut self, guest: &Guest) {
        self.routes.detach(guest.cid);
    }

    /// The tap of packets between guests from now on.
    pub fn set_taps(&mut self, taps: &[Arc<dyn StreamTap>]) {
        self.routes.set_taps(taps.to_vec());
    }

    pub fn gone(&mut self, guest: &Guest) {
        self.routes.reset_all(guest.cid);
    }

    /// One poll of everything.
    pub fn round(&mut self) -> bool {
        self.routes.round(self.now)
    }

    /// Looks until nothing moves; false if that does not happen.
    pub fn run(&mut self) -> bool {
        (0..10_000).any(|_| !self.round())
    }

    pub fn arm(&mut self) {
        self.routes.arm();
        self.routes.woken(true);
    }
}

/// What a daemon left.
pub struct Remains {
    streams: Arc<dyn Streams>,
    /// Of its transactions.
    pub log: OwnedFd,
}

impl Remains {
    /// The daemon that follows has these guests, and goes on where the last one was, or begins anew if the
    /// log is damaged.
    pub fn take_over(self, guests: [&mut Guest; 2]) -> Bench {
        let streams = self.streams.clone();
        self.take_over_with(guests, streams, |_| ())
    }

    /// The same with other workers for its streams; `restore` is called when all guests' devices are restored
    /// and none runs yet.
    pub fn take_over_with<const N: usize>(
        self,
        guests: [&mut Guest; N],
        streams: Arc<dyn Streams>,
        restore: impl FnOnce(&Bench),
    ) -> Bench {
        let kept = |guest: &&mut Guest| Kept::open(guest.kept.file().try_clone()?);
        let mut kept: Vec<_> = guests.iter().map(kept).collect::<Result<_, _>>().expect("their files");
        if redo(&self.log, &kept).is_err() {
            kept.fill_with(|| Kept::create().expect("a file"));
        }
        let mut next = Bench::starting(streams);
        for (guest, kept) in guests.iter().zip(&kept) {
            next.add(vm(guest.cid));
            next.routes.bind(guest.cid, kept);
            // On a busy host the next one may take long to come.
            next.now += Duration::from_secs(10);
            next.round();
        }
        restore(&next);
        for (guest, kept) in guests.into_iter().zip(kept) {
            guest.kept = kept;
            next.attach_as(guest, true);
        }
        next.routes.begin(next.now);
        next
    }
}

impl Guest {
    /// Sends a packet as it is: whatever its header contains.
    pub fn send(&mut self, header: &Header, payload: &[u8]) {
        self.send_bytes(&[header.as_bytes(), payload].concat());
    }

    /// Bytes that may be no packet.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let addr = self.tx.alloc(bytes.len().max(1));
        self.tx.ram.write(addr, bytes);
        self.tx.post(&[out(addr, bytes.len())]);
    }

    /// A packet with this payload.
    pub fn packet(&mut self, from: u32, to: (u32, u32), kind: u16, op: u16, payload: &[u8]) {
        let header = Header::new((self.cid, from), to, kind, op);
        let header = Header { len: (payload.len() as u32).into(), buf_alloc: (256 << 10).into(), ..header };
        self.send(&header, payload);
    }

    pub fn post_buffers(&mut self, count: usize, len: usize) {
        for _ in 0..count {
            let addr = self.rx.alloc(len);
            let id = self.rx.post(&[into(addr, len)]);
            self.buffers[usize::from(id)] = (addr, len);
        }
    }

    /// What has come: headers, and the payload of each.
    pub fn received(&mut self) -> Vec<(Header, Vec<u8>)> {
        let mut packets = Vec::new();
        while let Some((id, len)) = self.rx.take() {
            let (addr, room) = self.buffers[usize::from(id)];
            let len = len as usize;
            assert!((HEADER..=room).contains(&len), "{len} bytes in a buffer of {room}");
            let mut bytes = vec![0; len];
            self.rx.ram.read(addr, &mut bytes);
            let header = Header::read_from_bytes(&bytes[..HEADER]).expect("the size is right");
            assert!(header.len.get() as usize == len - HEADER, "{header:?} in {len} bytes");
            packets.push((header, bytes.split_off(HEADER)));
        }
        packets
    }

    /// Chains given back by the device.
    pub fn taken(&mut self) -> usize {
        std::iter::from_fn(|| self.tx.take()).count()
    }
}

/// One end of a stream without another side: it takes as much as a socket does, and sends `bytes` zeros.
pub fn loose_end(bytes: usize) -> Box<dyn StreamPort> {
    Box::new(Loose { bytes, room: 256 << 10 })
}

struct Loose {
    bytes: usize,
    room: usize,
}

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl StreamPort for Loose {
    fn readable(&mut self) -> Result<usize, PortFault> {
        Ok(self.bytes.min(ZEROS.len()))
    }

    fn source(&self) -> Bytes<'_> {
        Bytes::Private(&ZEROS)
    }

    fn consume(&mut self, len: usize) -> Result<(), PortFault> {
        self.bytes -= len;
        Ok(())
    }

    fn arm_readable(&mut self) -> Result<bool, PortFault> {
        Ok(self.bytes == 0)
    }

    fn writable(&mut self) -> Result<usize, PortFault> {
        Ok(self.room)
    }

    fn keep_free(&self) -> usize {
        0
    }

    fn fill(&mut self, _: Bytes<'_>, len: usize) -> Result<(), PortFault> {
        self.room -= len;
        Ok(())
    }

    fn arm_writable(&mut self) -> Result<bool, PortFault> {
        Ok(self.room == 0)
    }

    fn renotify_reader(&mut self) -> Result<(), PortFault> {
        Ok(())
    }

    fn end(&mut self, _: End) {}

    fn info(&self) -> StreamInfo<'_> {
        StreamInfo::default()
    }

    fn notifications(&mut self) -> Option<&mut dyn Notifications> {
        None
    }

    fn survival(&mut self) -> Option<&mut dyn Survival> {
        None
    }
}
