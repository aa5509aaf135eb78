//! Host sockets: a program's ring on one side, a synthetic guest on the other. The program lives in this
//! process, as the guest does; it uses the library and the daemon's own socket.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::report::Sample;
use crate::report::{GBITS, ROUND_TRIPS, Registry};
use anyhow::Context as _;
use vmlane_device::vmci::Hypervisor;
use vmlane_guestsim::{Guest, Machine, Path, Placement, SocketError, Stream as Far, vm};
use vmlane_host::sockets::{Bounds, HostSockets};
use vmlane_sock::{Host, Stream, plain};
use vmlane_stream::{Settings, Workers};
use vmlane_vsock::{HostRules, Router};
use vmlane_wire::vmci_stream::SHUTDOWN_SEND;

use crate::pair::SPIN;

const CONNECTS: &str = "conn/s";
const BLOCK: usize = 64 << 10;
const PORT: u32 = 5000;

pub fn register(registry: &mut Registry) {
    let streams = ["ring.64k", "unix.64k", "tcp.64k"];
    registry.add("host.stream.to-guest.64k", GBITS, &streams, |length| other(to_guest(length)));
    registry.add("host.stream.from-guest.64k", GBITS, &streams, |length| other(from_guest(length)));
    let beside = ["host.stream.to-guest.64k", "unix.64k"];
    registry.add("host.plain.to-guest.64k", GBITS, &beside, |length| other(plain_to_guest(length)));
    let beside = ["ring.rr.1", "unix.rr.1", "tcp.rr.1"];
    registry.add("host.rr.1", ROUND_TRIPS, &beside, |length| other(round_trips(length)));
    registry.add("host.connect", CONNECTS, &["unix.connect"], |length| other(connects(length)));
}

fn other<T>(result: anyhow::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::other(format!("{error:#}")))
}

fn guests(error: SocketError) -> anyhow::Error {
    anyhow::anyhow!("{error}")
}

/// One guest, and the daemon's pieces with a socket of their own.
struct Bench {
    guest: Arc<Guest>,
    host: Host,
    folder: PathBuf,
    /// Dropped in this order.
    _sockets: HostSockets,
    _machine: Machine,
    _workers: Arc<Workers>,
}

impl Bench {
    fn new() -> anyhow::Result<Bench> {
        let folder = crate::folders::temporary()?;
        let workers = Arc::new(Workers::start(Settings::default()).context("starting a worker")?);
        let router = Router::new(workers.clone());
        let hypervisor = Hypervisor::new(router.clone());
        let machine = Machine::new(&hypervisor, vm(3));
        let guest = machine.boot(Path::Dma);
        guest.set_spin(SPIN);
        let rules = HostRules { owner: rustix::process::geteuid().as_raw(), rules: Vec::new() };
        let socket = folder.join("host.sock");
        let sockets = HostSockets::start(router, &socket, 0o600, rules, Bounds::default())?;
        let host = Host::at(&folder);
        Ok(Bench { guest, host, folder, _sockets: sockets, _machine: machine, _workers: workers })
    }

    fn connect<T: Send>(
        &self,
        connect: impl FnOnce(&Host) -> io::Result<T> + Send,
    ) -> anyhow::Result<(T, Far)> {
        let listener = self.guest.listen(PORT, Placement::Scattered);
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept());
            let near = connect(&self.host)?;
            Ok((near, accepting.join().expect("no panic").map_err(guests)?))
        })
    }

    fn stream(&self) -> anyhow::Result<(Stream, Far)> {
        let (near, far) = self.connect(|host| Stream::connect_by(host, 3, PORT, Duration::from_secs(30)))?;
        near.set_spin(SPIN);
        Ok((near, far))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Sends `block` bytes at a time by `send` until the time is up, then `finish`; `receive` returns 0 at the
/// end.
pub fn one_way(
    length: Duration,
    block: usize,
    mut send: impl FnMut(&[u8]) -> anyhow::Result<()> + Send,
    finish: impl FnOnce() + Send,
    mut receive: impl FnMut(&mut [u8]) -> anyhow::Result<usize> + Send,
) -> anyhow::Result<Sample> {
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let stop = &stop;
        let sender = scope.spawn(move || -> anyhow::Result<()> {
            let data = vec![0xa5; block];
            while !stop.load(Ordering::Relaxed) {
                send(&data)?;
            }
            finish();
            Ok(())
        });
        let receiver = scope.spawn(move || -> anyhow::Result<(u64, Duration)> {
            let (mut buffer, mut total) = (vec![0; BLOCK], 0);
            loop {
                match receive(&mut buffer)? {
                    0 => return Ok((total, start.elapsed())),
                    count => total += count as u64,
                }
            }
        });
        std::thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        sender.join().expect("no panic")?;
        let (bytes, time) = receiver.join().expect("no panic")?;
        Ok(Sample::gbits(bytes, time))
    })
}

fn to_guest(length: Duration) -> anyhow::Result<Sample> {
    let bench = Bench::new()?;
    let (near, far) = bench.stream()?;
    let finish = || drop(near.shutdown(Shutdown::Write));
    one_way(length, BLOCK, |data| Ok((&near).write_all(data)?), finish, |data| far.recv(data).map_err(guests))
}

fn from_guest(length: Duration) -> anyhow::Result<Sample> {
    let bench = Bench::new()?;
    let (near, far) = bench.stream()?;
    let send = |data: &[u8]| far.send_all(data).map_err(guests);
    one_way(length, BLOCK, send, || far.shutdown(SHUTDOWN_SEND), |data| Ok((&near).read(data)?))
}

/// What programs under `vmlane run` have.
fn plain_to_guest(length: Duration) -> anyhow::Result<Sample> {
    let bench = Bench::new()?;
    let (near, far) = bench.connect(|host| plain::connect(host, 3, PORT, Duration::from_secs(30)))?;
    let near = near.0;
    let finish = || drop(near.shutdown(Shutdown::Write));
    one_way(length, BLOCK, |data| Ok((&near).write_all(data)?), finish, |data| far.recv(data).map_err(guests))
}

fn round_trips(length: Duration) -> anyhow::Result<Sample> {
    let bench = Bench::new()?;
    let (near, far) = bench.stream()?;
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<(), SocketError> {
            let mut byte = [0];
            while far.recv(&mut byte)? == 1 {
                far.send_all(&byte)?;
            }
            Ok(())
        });
        let (mut byte, mut count) = ([0], 0);
        let start = Instant::now();
        while start.elapsed() < length {
            (&near).write_all(&[7])?;
            (&near).read_exact(&mut byte)?;
            count += 1;
        }
        let sample = Sample::rate(count, start.elapsed());
        near.shutdown(Shutdown::Write)?;
        echo.join().expect("no panic").map_err(guests)?;
        Ok(sample)
    })
}

fn connects(length: Duration) -> anyhow::Result<Sample> {
    let bench = Bench::new()?;
    let mut count = 0;
    let start = Instant::now();
    while start.elapsed() < length {
        drop(bench.stream()?);
        count += 1;
    }
    Ok(Sample::rate(count, start.elapsed()))
}
