//! Buffers for DATA_IN as Linux lays them out, and the rows of many sessions that take it: all in this
//! process, each session with a VM of its own, so what is left are the registers, one datagram a fetch, and
//! whatever the VMs share.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use vmlane_device::vmci::Hypervisor;
use vmlane_guestsim::{Driver, Lines, Machine, Path, Placement, vm};
use vmlane_stream::{Settings, Workers};
use vmlane_vsock::Router;
use vmlane_wire::vmci::{DATAGRAM_HEADER, DMA_HEADER, DMA_LIST, DmaElement, DmaHeader, Handle, Reg};
use zerocopy::IntoBytes as _;

use crate::baseline::Cpus;
use crate::report::{Registry, Sample};

const SESSIONS: u32 = 64;
/// The first one's CID.
const FIRST: u32 = 3;
/// Datagrams that wait for each, at first.
const WAITING: u64 = 200;
const PAYLOAD: usize = 32;
/// A resource that takes datagrams.
const RESOURCE: u32 = 2000;
/// Bytes of a guest page.
const PAGE: u64 = 4096;
/// Bytes of a VM's memory: more than its driver's buffers need.
const MEMORY: u64 = 1 << 20;

/// Where the data of a buffer at `buffer` begins: as in Linux, on the page behind its header.
pub fn first(buffer: u64) -> u64 {
    buffer + PAGE
}

/// The header of a buffer at `buffer` with room for `room` bytes.
pub fn header(buffer: u64, room: usize) -> [u8; DMA_HEADER + size_of::<DmaElement>()] {
    let element = DmaElement { addr: first(buffer).into(), size: (room as u64).into() };
    let mut bytes = [0; DMA_HEADER + size_of::<DmaElement>()];
    bytes[..DMA_HEADER].copy_from_slice(DmaHeader::new(0, DMA_LIST, 1).as_bytes());
    bytes[DMA_HEADER..].copy_from_slice(element.as_bytes());
    bytes
}

/// Adds the rows: with one thread for all sessions, and with two that have half of them each.
pub fn register(registry: &mut Registry) {
    let rows = [1, 2].map(|threads| format!("vmci.inbox.{threads}"));
    registry.add(&rows[0], "fetches/s", &[], |length| Ok(fetches(1, length)));
    registry.add(&rows[1], "fetches/s", &[&rows[0]], |length| Ok(fetches(2, length)));
}

/// A VM with a buffer.
struct Session {
    driver: Driver,
    buffer: u64,
    machine: Machine,
}

impl Session {
    fn new(hypervisor: &Arc<Hypervisor>, cid: u32) -> Session {
        let mut spec = vm(cid);
        spec.limits.inbox_bytes = 1 << 20;
        let machine = Machine::with(hypervisor, spec, MEMORY, Lines::msix());
        let mut driver = machine.probe(Path::Dma);
        let buffer = machine.ram.alloc(2, Placement::Contiguous)[0];
        machine.ram.write(buffer, &header(buffer, DATAGRAM_HEADER + PAYLOAD));
        driver.write(Reg::DataInHigh, (buffer >> 32) as u32);
        let mut session = Session { driver, buffer, machine };
        session.send();
        session.fetch();
        let mut context = [0; 4];
        session.machine.ram.read(first(buffer), &mut context);
        assert_eq!(u32::from_le_bytes(context), cid, "a datagram to this VM");
        session
    }

    /// To itself: who sent it makes no difference to the fetch.
    fn send(&mut self) {
        let to = Handle::new(self.driver.cid, RESOURCE);
        assert!(self.driver.send_to(to, RESOURCE, &[0; PAYLOAD]) > 0, "there is room in the inbox");
    }

    fn fill(&mut self) {
        (0..WAITING).for_each(|_| self.send());
    }

    fn fetch(&mut self) {
        self.driver.write(Reg::DataInLow, self.buffer as u32);
    }
}

/// How fast everything that waits is fetched: the median of as many times as `length` has room for, because a
/// core that the host takes away for a moment would change a mean.
fn fetches(threads: usize, length: Duration) -> Sample {
    let workers = Arc::new(Workers::start(Settings::default()).expect("a worker"));
    let hypervisor = Hypervisor::new(Router::new(workers));
    let mut sessions: Vec<Session> =
        (0..SESSIONS).map(|index| Session::new(&hypervisor, FIRST + index)).collect();
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || start.elapsed() < length {
        times.push(drain(&mut sessions, threads));
    }
    times.sort_unstable();
    Sample::rate(u64::from(SESSIONS) * WAITING, times[times.len() / 2])
}

/// Fills all inboxes and fetches all, one of each in turn; each thread does so for its own sessions, so that
/// none frees another's memory. How long the fetches took.
fn drain(sessions: &mut [Session], threads: usize) -> Duration {
    let (cpus, start) = (Cpus::allowed(), Barrier::new(threads));
    std::thread::scope(|scope| {
        let lanes = sessions.chunks_mut(SESSIONS as usize / threads).enumerate();
        let lanes: Vec<_> = lanes
            .map(|(number, lane)| {
                let (cpus, start) = (&cpus, &start);
                scope.spawn(move || {
                    let _placed = cpus.pin(number);
                    lane.iter_mut().for_each(Session::fill);
                    start.wait();
                    let begun = Instant::now();
                    (0..WAITING).for_each(|_| lane.iter_mut().for_each(Session::fetch));
                    begun.elapsed()
                })
            })
            .collect();
        lanes.into_iter().map(|lane| lane.join().expect("no panic")).max().unwrap_or_default()
    })
}
