//! VMCI: a hypervisor with real workers, and guests that call, send datagrams and stream through it.

pub mod talk;
mod villain;

mod calls;
mod connections;
mod datagrams;
mod endpoint;
mod ends;
mod hostile;
mod late_stores;
mod legacy;
mod orphans;
mod pace;
mod queue_pairs;
mod random;
mod refusals;
mod registers;
mod signals_model;
mod streams;
mod takeover;
mod wakeups;

use std::sync::Arc;

use vmlane_device::vmci::{Hypervisor, VmView};
use vmlane_guestsim::{Driver, Guest, Listener, Machine, Options, Path, Pattern, Stream, VmSpec, vm};
use vmlane_port::Streams;
use vmlane_stream::{Settings, WorkerStats, Workers};
use vmlane_testkit::wait_until;
use vmlane_vsock::Router;
use vmlane_wire::vmci::{Handle, RawHandle, call};
use zerocopy::IntoBytes;

/// A hypervisor and the workers behind it.
pub struct World {
    pub router: Arc<Router>,
    pub hypervisor: Arc<Hypervisor>,
    pub stats: Arc<WorkerStats>,
    /// Declared last: the workers stop when they are no longer used.
    pub workers: Arc<Workers>,
}

impl World {
    pub fn new() -> World {
        World::with(Settings::default())
    }

    pub fn with(settings: Settings) -> World {
        World::wrapped(settings, |workers| workers)
    }

    /// One whose VMs have the workers as `wrap` shows them.
    pub fn wrapped(settings: Settings, wrap: impl FnOnce(Arc<Workers>) -> Arc<dyn Streams>) -> World {
        // A guest's thread may stand still between its store and its notice, where cores are few.
        let settings = Settings { inspections: 30, ..settings };
        let workers = Arc::new(Workers::start(settings).expect("worker threads"));
        let router = Router::new(wrap(workers.clone()));
        let (hypervisor, stats) = (Hypervisor::new(router.clone()), workers.stats().clone());
        World { router, hypervisor, stats, workers }
    }

    pub fn machine(&self, cid: u32) -> Machine {
        Machine::new(&self.hypervisor, vm(cid))
    }

    pub fn machine_with(&self, spec: VmSpec) -> Machine {
        Machine::new(&self.hypervisor, spec)
    }

    /// The VM and its device are removed.
    pub fn remove(&self, cid: u32) {
        self.hypervisor.remove(cid);
        self.router.vms().remove(cid);
    }

    pub fn view(&self, cid: u32) -> VmView {
        self.hypervisor.vms().into_iter().find(|view| view.cid == cid).expect("a VM of this hypervisor")
    }

    /// A bound of a VM as its operator sees it: used, limit, how often more was asked for.
    pub fn bound(&self, cid: u32, name: &str) -> (u64, u64, u64) {
        let view = self.view(cid);
        let bound = view.bounds.iter().find(|bound| bound.name == name).expect("a bound of this name");
        (bound.used, bound.limit, bound.refused)
    }

    /// Two booted guests with CIDs 3 and 4.
    pub fn two(&self, path: Path) -> [(Machine, Arc<Guest>); 2] {
        [3, 4].map(|cid| {
            let machine = self.machine(cid);
            let guest = machine.boot(path);
            (machine, guest)
        })
    }

    /// The safety net has found nothing to repair, and no stream has misbehaved.
    pub fn assert_clean(&self) {
        assert_eq!(self.stats.lost_notices.get(), 0, "notices got lost: {:?}", self.stats);
        assert_eq!(self.stats.panics.get(), 0, "{:?}", self.stats);
        assert_eq!(self.stats.broken.get(), 0, "{:?}", self.stats);
    }
}

/// Connects `client` to `port` of `server`: (the client's end, the server's end).
pub fn connect(client: &Arc<Guest>, server: &Arc<Guest>, port: u32, options: Options) -> (Stream, Stream) {
    let listener = server.listen(port, options.placement);
    connect_to(client, &listener, (server.cid, port), options)
}

/// Connects while another thread accepts.
pub fn connect_to(
    client: &Arc<Guest>,
    listener: &Listener,
    peer: (u32, u32),
    options: Options,
) -> (Stream, Stream) {
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().expect("a connection"));
        let stream = client.connect(peer, options).expect("to be accepted");
        (stream, accepting.join().expect("the accepting thread"))
    })
}

/// Rings of `size`, pages anywhere.
pub fn rings(size: u64) -> Options {
    Options { size, ..Options::default() }
}

/// Sends `bytes` bytes of a pattern in chunks of changing size, then shuts down sending.
pub fn send_pattern(stream: &Stream, pattern: Pattern, bytes: u64, largest: usize) {
    let mut chunk = vec![0; largest];
    let mut sizes = Sizes::new(pattern.seed, largest);
    let mut at = 0;
    while at < bytes {
        let len = sizes.next().min((bytes - at) as usize);
        pattern.fill(at, &mut chunk[..len]);
        stream
            .send_all(&chunk[..len])
            .unwrap_or_else(|error| panic!("sending byte {at}: {error}; {}", rings_of(stream)));
        at += len as u64;
    }
    stream.shutdown(2);
}

/// Receives until the end of the stream and checks every byte. Returns their number.
pub fn check_pattern(stream: &Stream, pattern: Pattern, largest: usize) -> u64 {
    let mut chunk = vec![0; largest];
    let mut sizes = Sizes::new(!pattern.seed, largest);
    let mut at = 0;
    loop {
        let len = sizes.next();
        let got = stream.recv(&mut chunk[..len]);
        match got.unwrap_or_else(|error| panic!("receiving byte {at}: {error}; {}", rings_of(stream))) {
            0 => return at,
            got => {
                pattern.check(at, &chunk[..got]);
                at += got as u64;
            }
        }
    }
}

/// The state of a stream's rings, for the message when something hangs.
fn rings_of(stream: &Stream) -> String {
    stream.queues(|queues| {
        let (tail, head) = queues.own_indices();
        let (ready, room) = (queues.ready(), queues.room());
        format!("ready {ready}, room {room}, own tail {tail:#x} and head {head:#x}")
    })
}

/// Sizes between 1 and the largest, small ones as often as large ones.
pub struct Sizes {
    random: u64,
    largest: usize,
}

impl Sizes {
    pub fn new(seed: u64, largest: usize) -> Sizes {
        Sizes { random: seed | 1, largest }
    }

    pub fn next(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let bits = usize::BITS - self.largest.leading_zeros();
        let below = 1 << (self.random % u64::from(bits) + 1);
        1 + (self.random >> 32) as usize % self.largest.min(below)
    }
}

/// Streams both ways at once, `bytes` each, every byte checked; both ends shut down and close.
pub fn stream_both_ways((a, b): (Stream, Stream), bytes: u64, largest: usize) {
    let (up, down) = (Pattern::new(11), Pattern::new(22));
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(&a, up, bytes, largest));
        scope.spawn(|| send_pattern(&b, down, bytes, largest));
        let received = scope.spawn(|| check_pattern(&b, up, largest));
        assert_eq!(check_pattern(&a, down, largest), bytes);
        assert_eq!(received.join().expect("the receiving thread"), bytes);
    });
}

/// Fills both rings of `size` bytes, without a reader. Returns the number of bytes.
pub fn fill(stream: &Stream, pattern: Pattern, size: u64) -> u64 {
    let mut at = 0;
    wait_until("both rings are full", || {
        let chunk = pattern.bytes(at, stream.queues(|queues| queues.room()) as usize);
        stream.send_all(&chunk).expect("room that was seen");
        at += chunk.len() as u64;
        at == 2 * (size - 1)
    });
    at
}

/// The driver's call `id` about `handle`.
pub fn about(driver: &mut Driver, id: u32, handle: Handle) -> i32 {
    driver.call(id, RawHandle::from(handle).as_bytes())
}

/// Links a doorbell to `index` of the notification bitmap.
pub fn link(driver: &mut Driver, doorbell: Handle, index: u64) -> i32 {
    driver.call(call::DOORBELL_LINK, &[RawHandle::from(doorbell).as_bytes(), &index.to_le_bytes()].concat())
}

pub fn ring(driver: &mut Driver, doorbell: Handle) -> i32 {
    about(driver, call::DOORBELL_NOTIFY, doorbell)
}

pub fn detach(driver: &mut Driver, handle: Handle) -> i32 {
    about(driver, call::QUEUEPAIR_DETACH, handle)
}
