//! virtio-vsock with ends of other kinds: a synthetic guest with virtio-vsock on one side, a VMCI guest or a
//! program of the host on the other. Workers, sessions, guests and the program are all in this process.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use parking_lot::Mutex;
use vmlane_device::virtio::vsock::{Settings, VsockDevice, VsockWorker};
use vmlane_device::vmci::Hypervisor;
use vmlane_guestsim::{Machine, Path, Placement, Stream, vm};
use vmlane_host::sockets::{Bounds, HostSockets};
use vmlane_sock::{Host, Listener as HostListener, Stream as HostStream};
use vmlane_stream::Workers;
use vmlane_transport::{Listener, RingLines, Server, VhostEnd};
use vmlane_vsock::{HOST, HostRules, Router};
use vmlane_wire::vmci_stream::SHUTDOWN_SEND;

use super::guest::Guest;
use crate::host::one_way;
use crate::pair::SPIN;
use crate::report::{GBITS, ROUND_TRIPS, Registry, Sample};

/// The CIDs of the VMCI guest and of the one with virtio-vsock.
const VMCI: u32 = 3;
const VIRTIO: u32 = 4;
const PORT: u32 = 5000;

/// What the guest is connected with.
#[derive(Clone, Copy)]
enum Kind {
    Vmci,
    Host,
}

/// Adds the rows: `to` is from the guest with virtio-vsock to the other end.
pub fn register(registry: &mut Registry) {
    for (kind, name) in [(Kind::Vmci, "vmci"), (Kind::Host, "host")] {
        for (size, block) in [("4k", 4 << 10), ("64k", 64 << 10)] {
            let [to, from] = ["to", "from"].map(|way| format!("virtio.vsock.{name}.{way}.{size}"));
            let beside = match kind {
                Kind::Vmci => [format!("vmci.stream.{size}"), format!("vmci.stream.{size}")],
                Kind::Host => ["from", "to"].map(|way| format!("host.stream.{way}-guest.64k")),
            };
            registry.add(&to, GBITS, &[&beside[0]], move |length| other(sends(kind, block, length)));
            registry.add(&from, GBITS, &[&beside[1]], move |length| other(receives(kind, block, length)));
        }
        let row = format!("virtio.vsock.{name}.rr.1");
        registry.add(&row, ROUND_TRIPS, &[&format!("{name}.rr.1")], move |length| {
            other(round_trips(kind, length))
        });
    }
}

fn other<T>(result: anyhow::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::other(format!("{error:#}")))
}

/// The guest's peer.
enum Far {
    Vmci(Stream),
    Host(Box<HostStream>),
}

impl Far {
    fn send(&self, data: &[u8]) -> anyhow::Result<()> {
        match self {
            Far::Vmci(stream) => stream.send_all(data).map_err(|error| anyhow!("{error}")),
            Far::Host(stream) => Ok((&**stream).write_all(data)?),
        }
    }

    /// 0: the end.
    fn receive(&self, data: &mut [u8]) -> anyhow::Result<usize> {
        match self {
            Far::Vmci(stream) => stream.recv(data).map_err(|error| anyhow!("{error}")),
            Far::Host(stream) => Ok((&**stream).read(data)?),
        }
    }

    fn finish(&self) {
        match self {
            Far::Vmci(stream) => stream.shutdown(SHUTDOWN_SEND),
            Far::Host(stream) => drop(stream.shutdown(Shutdown::Write)),
        }
    }
}

/// A connection that the guest has opened, and all that serves it; dropped in this order.
struct Connected {
    near: Mutex<Guest>,
    far: Far,
    _server: Server,
    _sockets: Option<HostSockets>,
    _machine: Option<Machine>,
    _worker: Arc<VsockWorker>,
    _workers: Arc<Workers>,
    _folder: tempfile::TempDir,
}

impl Connected {
    fn new(kind: Kind) -> anyhow::Result<Connected> {
        let folder = tempfile::tempdir()?;
        let settings = vmlane_stream::Settings::default();
        let mut workers = Workers::start(settings).context("starting a worker")?;
        let ride = workers.ride()?;
        let workers = Arc::new(workers);
        let router = Router::new(workers.clone());
        let hypervisor = Hypervisor::new(router.clone());
        let settings = Settings { spin: settings.spin, poll: false };
        let worker = Arc::new(VsockWorker::start(settings, router.vms(), Some((router.clone(), ride)))?);
        router.vms().add(vm(VIRTIO).vm)?;
        worker.add(VIRTIO);
        router.set_endpoint(VIRTIO, worker.endpoint(VIRTIO));
        let lines = Arc::new(RingLines::new(VsockDevice::QUEUES)?);
        let device = VsockDevice::new(VIRTIO, worker.clone(), lines.clone())?;
        let socket = folder.path().join("vsock.sock");
        let listener = Listener::bind(&socket)?;
        let server = VhostEnd::Listens(listener).serve("guest", Box::new(device), lines, Arc::default())?;
        let mut near = Guest::attach(&socket, VIRTIO)?;
        let (far, sockets, machine) = match kind {
            Kind::Vmci => {
                let machine = Machine::new(&hypervisor, vm(VMCI));
                let guest = machine.boot(Path::Dma);
                guest.set_spin(SPIN);
                let listener = guest.listen(PORT, Placement::Scattered);
                let far = connect(&mut near, VMCI, || {
                    listener.accept().map(Far::Vmci).map_err(|error| anyhow!("{error}"))
                })?;
                (far, None, Some(machine))
            }
            Kind::Host => {
                let rules = HostRules { owner: rustix::process::geteuid().as_raw(), rules: Vec::new() };
                let socket = folder.path().join("host.sock");
                let sockets = HostSockets::start(router, &socket, 0o600, rules, Bounds::default())?;
                let listener = HostListener::bind_by(&Host::at(folder.path()), PORT)?;
                let far = connect(&mut near, HOST, || {
                    let (stream, _) = listener.accept()?;
                    stream.set_spin(SPIN);
                    Ok(Far::Host(Box::new(stream)))
                })?;
                (far, Some(sockets), None)
            }
        };
        let near = Mutex::new(near);
        let (_server, _sockets, _machine, _worker) = (server, sockets, machine, worker);
        let (_workers, _folder) = (workers, folder);
        Ok(Connected { near, far, _server, _sockets, _machine, _worker, _workers, _folder })
    }
}

/// The guest connects while `accept` waits for it.
fn connect(
    near: &mut Guest,
    cid: u32,
    accept: impl FnOnce() -> anyhow::Result<Far> + Send,
) -> anyhow::Result<Far> {
    std::thread::scope(|scope| {
        let accepting = scope.spawn(accept);
        near.connect(1024, (cid, PORT)).context("the connect")?;
        accepting.join().expect("no panic").context("the accept")
    })
}

fn sends(kind: Kind, block: usize, length: Duration) -> anyhow::Result<Sample> {
    let Connected { near, far, .. } = &Connected::new(kind)?;
    let send = |data: &[u8]| Ok(near.lock().write_all(data)?);
    let finish = || drop(near.lock().shutdown());
    one_way(length, block, send, finish, |data| far.receive(data))
}

fn receives(kind: Kind, block: usize, length: Duration) -> anyhow::Result<Sample> {
    let Connected { near, far, .. } = &Connected::new(kind)?;
    let receive = |data: &mut [u8]| Ok(near.lock().read(data)?);
    one_way(length, block, |data| far.send(data), || far.finish(), receive)
}

fn round_trips(kind: Kind, length: Duration) -> anyhow::Result<Sample> {
    let Connected { near, far, .. } = &Connected::new(kind)?;
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| -> anyhow::Result<()> {
            let mut data = [0];
            while far.receive(&mut data)? == 1 {
                far.send(&data)?;
            }
            Ok(())
        });
        let (mut near, mut data, mut count) = (near.lock(), [0; 64], 0);
        let start = Instant::now();
        while start.elapsed() < length {
            near.write_all(&[7])?;
            anyhow::ensure!(near.read(&mut data)? == 1, "round trip {count} brought another length");
            count += 1;
        }
        let sample = Sample::rate(count, start.elapsed());
        near.shutdown()?;
        echo.join().expect("no panic")?;
        Ok(sample)
    })
}
