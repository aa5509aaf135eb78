//! A synthetic guest and the daemon's pieces for host sockets.

pub mod helper;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use vmlane_device::vmci::Hypervisor;
use vmlane_guestsim::{Guest, Lines, Machine, Options, Path, Pattern, Placement, Stream as Far, vm};
use vmlane_host::sockets::{self, Bounds, HostSockets};
use vmlane_sock::{Host, Stream};
use vmlane_stream::{Settings, WorkerStats, Workers};
use vmlane_testkit::wait_until;
use vmlane_vsock::{HostRules, Router};

pub const SECOND: Duration = Duration::from_secs(1);
const BYTES: u64 = 4 << 20;

/// One guest, the daemon's pieces, and a runtime directory.
pub struct World {
    pub sockets: Option<HostSockets>,
    pub guest: Arc<Guest>,
    pub hypervisor: Arc<Hypervisor>,
    pub stats: Arc<WorkerStats>,
    pub dir: tempfile::TempDir,
    _machine: Machine,
}

impl World {
    pub fn new() -> World {
        World::with(Bounds::default())
    }

    pub fn with(bounds: Bounds) -> World {
        // A guest's thread may stand still between its store and its notice, where cores are few.
        let settings = Settings { inspections: 30, ..Settings::default() };
        let workers = Arc::new(Workers::start(settings).unwrap());
        let (router, stats) = (Router::new(workers.clone()), workers.stats().clone());
        let hypervisor = Hypervisor::new(router.clone());
        let machine = Machine::with(&hypervisor, vm(3), 256 << 20, Lines::msix());
        let guest = machine.boot(Path::Dma);
        let dir = tempfile::tempdir().unwrap();
        let rules = HostRules { owner: rustix::process::getuid().as_raw(), rules: Vec::new() };
        let door = dir.path().join("host.sock");
        let sockets = HostSockets::start(router, &door, 0o600, rules, bounds).unwrap();
        let uds = dir.path().join("vsock.uds");
        sockets.add_guest(sockets::Guest { cid: 3, uds }).unwrap();
        World { sockets: Some(sockets), guest, hypervisor, stats, dir, _machine: machine }
    }

    pub fn host(&self) -> Host {
        Host::at(self.dir.path())
    }

    pub fn sockets(&self) -> &HostSockets {
        self.sockets.as_ref().unwrap()
    }

    pub fn uds(&self) -> PathBuf {
        self.dir.path().join("vsock.uds")
    }

    /// A connection to the guest's `port`, made by `connect`.
    pub fn to_guest<T: Send>(&self, port: u32, connect: impl FnOnce() -> T + Send) -> (T, Far) {
        let listener = self.guest.listen(port, Placement::Scattered);
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept().expect("a connection"));
            let near = connect();
            (near, accepting.join().unwrap())
        })
    }

    pub fn guest_connects(&self, port: u32) -> Far {
        self.guest.connect((2, port), Options::default()).expect("to be accepted")
    }

    pub fn stream(&self, port: u32) -> (Stream, Far) {
        self.to_guest(port, || Stream::connect_by(&self.host(), 3, port, 30 * SECOND).unwrap())
    }

    pub fn assert_clean(&self) {
        wait_until("nothing is left", || self.hypervisor.connections().is_empty());
        assert_eq!((self.stats.lost_notices.get(), self.stats.panics.get()), (0, 0), "{:?}", self.stats);
    }
}

/// [`BYTES`] each way at once, checked, ended by half-closes.
pub fn both_ways(near: &(impl Sync + Duplex), far: &(impl Sync + Duplex)) {
    let (down, up) = (Pattern::new(1), Pattern::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut chunk = vec![0; 40_000];
            for at in (0..BYTES).step_by(chunk.len()) {
                let len = chunk.len().min((BYTES - at) as usize);
                down.fill(at, &mut chunk[..len]);
                near.write_whole(&chunk[..len]);
            }
            near.finish();
        });
        scope.spawn(|| {
            let mut chunk = vec![0; 50_000];
            for at in (0..BYTES).step_by(chunk.len()) {
                let len = chunk.len().min((BYTES - at) as usize);
                up.fill(at, &mut chunk[..len]);
                far.write_whole(&chunk[..len]);
            }
            far.finish();
        });
        let far_reads = scope.spawn(|| far_end(far, down));
        let (mut at, mut chunk) = (0, vec![0; 30_000]);
        loop {
            let len = near.read_some(&mut chunk);
            if len == 0 {
                break;
            }
            up.check(at, &chunk[..len]);
            at += len as u64;
        }
        assert_eq!((at, far_reads.join().unwrap()), (BYTES, BYTES));
    });
}

/// Reads to the end and checks.
pub fn far_end(far: &impl Duplex, pattern: Pattern) -> u64 {
    let (mut at, mut chunk) = (0, vec![0; 60_000]);
    loop {
        let len = far.read_some(&mut chunk);
        if len == 0 {
            return at;
        }
        pattern.check(at, &chunk[..len]);
        at += len as u64;
    }
}

pub trait Duplex {
    fn write_whole(&self, data: &[u8]);
    fn read_some(&self, data: &mut [u8]) -> usize;
    fn finish(&self);
}

impl Duplex for Stream {
    fn write_whole(&self, data: &[u8]) {
        (&mut &*self).write_all(data).unwrap();
    }
    fn read_some(&self, data: &mut [u8]) -> usize {
        (&mut &*self).read(data).unwrap()
    }
    fn finish(&self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

impl Duplex for UnixStream {
    fn write_whole(&self, data: &[u8]) {
        (&mut &*self).write_all(data).unwrap();
    }
    fn read_some(&self, data: &mut [u8]) -> usize {
        (&mut &*self).read(data).unwrap()
    }
    fn finish(&self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

impl Duplex for Far {
    fn write_whole(&self, data: &[u8]) {
        self.send_all(data).unwrap();
    }
    fn read_some(&self, data: &mut [u8]) -> usize {
        self.recv(data).unwrap()
    }
    fn finish(&self) {
        self.shutdown(2);
    }
}
