//! virtio-vsock: VMs turned by hand; devices with a worker, driven as vhost-user sessions would.

mod events;
mod hostile;
mod lane_takeover;
mod lanes;
mod notices;
mod orders;
mod repeats;
mod share;
mod takeover;
mod worker;
mod workers;

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use rustix::event::{EventfdFlags, eventfd};
use vmlane_device::virtio::vhost::{Lines, Setup, VhostDevice};
use vmlane_device::virtio::vsock::{GuestStats, Home, Relay, Settings, VsockDevice, VsockWorker};
use vmlane_guestsim::vsock::{Bench, Guest, vm};
use vmlane_stream::{Inline, Workers};
use vmlane_testkit::eventually;
use vmlane_vsock::{Router, Vm as VsockVm, VmTable};
use vmlane_wire::virtio::feature;
use vmlane_wire::virtio_vsock::{Header, SEQPACKET, STREAM, op};

pub const A: u32 = 3;
pub const B: u32 = 4;
/// B's port, and A's.
pub const PORT: u32 = 5000;
pub const LOCAL: u32 = 1_000_000;

/// VMs that are turned by hand.
fn bench() -> Bench {
    Bench::new(Arc::new(Inline::default()))
}

/// The same with A and B.
pub fn pair(packed: bool) -> (Bench, Guest, Guest) {
    let mut bench = bench();
    let (a, b) = (bench.guest(vm(A), packed), bench.guest(vm(B), packed));
    (bench, a, b)
}

/// What a guest's kicks and interrupts go through.
struct Wires {
    kick: OwnedFd,
    called: [AtomicU64; 3],
    failed: AtomicU64,
    /// The worker's sleeps so far are noted when it calls.
    worker: Weak<VsockWorker>,
    sleeps_at_call: AtomicU64,
    /// The next call, or the next clearing of the kicks, panics.
    fault_in_call: AtomicBool,
    fault_in_clear: AtomicBool,
}

impl Wires {
    fn new(worker: &Arc<VsockWorker>) -> Arc<Wires> {
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        Arc::new(Wires {
            kick,
            called: Default::default(),
            failed: AtomicU64::new(0),
            worker: Arc::downgrade(worker),
            sleeps_at_call: AtomicU64::new(0),
            fault_in_call: AtomicBool::new(false),
            fault_in_clear: AtomicBool::new(false),
        })
    }

    fn kick(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).expect("a kick");
    }
}

impl Lines for Wires {
    fn call(&self, ring: usize) {
        if self.fault_in_call.swap(false, Ordering::SeqCst) {
            std::panic::resume_unwind(Box::new("a call fails"));
        }
        let sleeps = self.worker.upgrade().map_or(0, |worker| worker.stats().sleeps.get());
        self.sleeps_at_call.store(sleeps, Ordering::SeqCst);
        self.called[ring].fetch_add(1, Ordering::SeqCst);
    }

    fn fail(&self, _: usize) {
        self.failed.fetch_add(1, Ordering::SeqCst);
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.kick.as_fd())
    }

    fn clear(&self) {
        if self.fault_in_clear.swap(false, Ordering::SeqCst) {
            std::panic::resume_unwind(Box::new("clearing fails"));
        }
        let _ = rustix::io::read(&self.kick, &mut [0; 8]);
    }
}

/// A VM with its device.
struct Vm {
    guest: Guest,
    packed: bool,
    device: VsockDevice,
    wires: Arc<Wires>,
    received: Vec<(Header, Vec<u8>)>,
    /// Chains that the device has.
    outstanding: usize,
}

/// A router, and what a worker needs to reach others by it.
fn relay() -> (Arc<Router>, Relay) {
    let mut workers = Workers::start(Default::default()).expect("workers");
    let ride = workers.ride().expect("an event fd");
    let router = Router::new(Arc::new(workers));
    (router.clone(), (router, ride))
}

fn spec(cid: u32, group: &str) -> VsockVm {
    VsockVm { connections: 100, ..VsockVm::new(format!("vm-{cid}"), cid, group) }
}

/// A worker, and the VMs that it may serve.
struct Served {
    worker: Arc<VsockWorker>,
    home: Home,
    vms: Arc<VmTable>,
}

impl Deref for Served {
    type Target = Arc<VsockWorker>;

    fn deref(&self) -> &Arc<VsockWorker> {
        &self.worker
    }
}

impl Served {
    fn start(settings: Settings, relay: Option<Relay>) -> Served {
        let vms = relay.as_ref().map(|(router, _)| router.vms().clone()).unwrap_or_default();
        let worker = Arc::new(VsockWorker::start(settings, &vms, relay).expect("a worker"));
        Served { home: worker.clone().into(), worker, vms }
    }

    /// A VM is as `spec` describes from here on, and is served.
    fn add(&self, spec: VsockVm) -> Arc<GuestStats> {
        let cid = spec.cid;
        self.vms.remove(cid);
        self.vms.add(spec).expect("a name of its own");
        self.worker.add(cid)
    }
}

/// A driver whose device is not served.
fn driver(cid: u32, packed: bool) -> Guest {
    bench().guest(spec(cid, "test"), packed)
}

/// Its rings, from where they are.
fn setup(guest: &Guest, packed: bool) -> Setup {
    let packed = if packed { feature::PACKED } else { 0 };
    let features = feature::VERSION_1 | feature::INDIRECT | STREAM | SEQPACKET | packed;
    let rings = vec![Some(guest.rx.setup()), Some(guest.tx.setup()), None];
    Setup { features, memory: guest.rx.ram.device_map(), rings, resumed: false }
}

impl Vm {
    fn new(worker: &Served, cid: u32, packed: bool) -> Vm {
        worker.add(spec(cid, "test"));
        let wires = Wires::new(worker);
        let mut device = VsockDevice::new(cid, worker.home.clone(), wires.clone()).expect("a device");
        assert_eq!((device.queues(), device.config()), (3, u64::from(cid).to_le_bytes().to_vec()));
        let mut guest = driver(cid, packed);
        assert_eq!(setup(&guest, packed).features & !device.features(), 0, "only what is on offer");
        guest.post_buffers(40, 4096);
        device.run(setup(&guest, packed));
        Vm { guest, packed, device, wires, received: Vec::new(), outstanding: 0 }
    }

    fn send(&mut self, from: u32, to: (u32, u32), kind: u16, op: u16, payload: &[u8]) {
        self.guest.packet(from, to, kind, op, payload);
        self.outstanding += 1;
        self.kick();
    }

    /// As a driver: only if the device asked for it.
    fn kick(&self) {
        if self.guest.tx.wants_kick() {
            self.wires.kick();
        }
    }

    /// Takes what has come and gives the buffers back.
    fn poll(&mut self) {
        let got = self.guest.received();
        if !got.is_empty() {
            self.guest.post_buffers(got.len(), 4096);
            if self.guest.rx.wants_kick() {
                self.wires.kick();
            }
        }
        self.received.extend(got);
        self.outstanding = self.outstanding.saturating_sub(self.guest.taken());
    }

    /// The next packet.
    fn next(&mut self) -> (Header, Vec<u8>) {
        eventually(&format!("VM {} receives something", self.guest.cid), || {
            if self.received.is_empty() {
                self.poll();
            }
            (!self.received.is_empty()).then(|| self.received.remove(0))
        })
    }

    fn expect(&mut self, op: u16) -> Vec<u8> {
        let (header, payload) = self.next();
        assert_eq!(header.op.get(), op, "{header:?}");
        payload
    }

    /// Nothing comes, however long the worker has had.
    fn receives_nothing(&mut self, worker: &VsockWorker) {
        // Twice around: whatever was under way has been examined.
        for _ in 0..2 {
            worker.add(77);
        }
        self.poll();
        assert_eq!(self.received.len(), 0, "{:?}", self.received);
    }
}

fn connect(a: &mut Vm, b: &mut Vm, port: u32, kind: u16) {
    a.send(port, (b.guest.cid, 5000), kind, op::REQUEST, &[]);
    b.expect(op::REQUEST);
    b.send(5000, (a.guest.cid, port), kind, op::RESPONSE, &[]);
    a.expect(op::RESPONSE);
}
