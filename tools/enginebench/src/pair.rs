//! Two synthetic guests on one hypervisor, with one stream between them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use vmlane_device::vmci::Hypervisor;
use vmlane_guestsim::{Guest, Machine, Options, Path, Placement, Stream, vm};
use vmlane_stream::{Settings, Workers};
use vmlane_vsock::Router;

/// Ring size of every stream here: what a socket has by default.
pub const RING: u64 = 256 << 10;

/// How long a guest's thread polls before it sleeps.
pub const SPIN: Duration = Duration::from_micros(200);

/// Two guests with loaded drivers.
pub struct Pair {
    pub a: Arc<Guest>,
    pub b: Arc<Guest>,
    /// The machines and workers behind them, dropped last.
    _machines: [Machine; 2],
    _workers: Arc<Workers>,
}

impl Pair {
    /// Boots both on a hypervisor of their own, with a worker thread.
    pub fn new() -> anyhow::Result<Pair> {
        Ok(Pair::on(Workers::start(Settings::default()).context("starting a worker")?))
    }

    /// The same on workers of any kind.
    pub fn on(workers: Workers) -> Pair {
        let workers = Arc::new(workers);
        let hypervisor = Hypervisor::new(Router::new(workers.clone()));
        let machines = [3, 4].map(|cid| Machine::new(&hypervisor, vm(cid)));
        let [a, b] = [0, 1].map(|index: usize| machines[index].boot(Path::Dma));
        // A guest's vCPU that waits for a moment does not sleep; a wake-up costs more than the wait.
        [&a, &b].iter().for_each(|guest| guest.set_spin(SPIN));
        Pair { a, b, _machines: machines, _workers: workers }
    }

    /// A connection from A to B, with pages anywhere, as real guests have them.
    pub fn connect(&self) -> anyhow::Result<(Stream, Stream)> {
        let listener = self.b.listen(5000, Placement::Scattered);
        let options = Options { size: RING, ..Options::default() };
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept());
            let client = self.a.connect((4, 5000), options).map_err(|error| anyhow::anyhow!("{error}"))?;
            let server = accepting.join().expect("no panic").map_err(|error| anyhow::anyhow!("{error}"))?;
            Ok((client, server))
        })
    }
}
