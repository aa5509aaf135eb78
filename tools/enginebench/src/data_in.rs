//! Buffers for DATA_IN as Linux lays them out, and the rows of many sessions that take it: all in this
//! process, each session with a VM of its own that nothing waits for, so what is left are the registers and
//! whatever the VMs share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use vmlane_device::vmci::Hypervisor;
use vmlane_guestsim::{Driver, Lines, Machine, Path, Placement, vm};
use vmlane_stream::{Settings, Workers};
use vmlane_vsock::Router;
use vmlane_wire::vmci::{DMA_HEADER, DMA_LIST, DmaElement, DmaHeader, INVALID_ID, MAX_DATAGRAM, Reg};
use zerocopy::IntoBytes as _;

use crate::baseline::Cpus;
use crate::report::{Registry, Sample};

const SESSIONS: u32 = 64;
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
    fn new(machine: Machine) -> Session {
        let mut driver = machine.probe(Path::Dma);
        let buffer = machine.ram.alloc(1 + MAX_DATAGRAM / PAGE as usize, Placement::Contiguous)[0];
        machine.ram.write(buffer, &header(buffer, MAX_DATAGRAM));
        driver.write(Reg::DataInHigh, (buffer >> 32) as u32);
        let mut session = Session { driver, buffer, machine };
        session.fetch();
        let mut end = [0; 4];
        session.machine.ram.read(first(buffer), &mut end);
        assert_eq!(u32::from_le_bytes(end), INVALID_ID, "the device has filled the buffer, with nothing");
        session
    }

    fn fetch(&mut self) {
        self.driver.write(Reg::DataInLow, self.buffer as u32);
    }
}

fn fetches(threads: usize, length: Duration) -> Sample {
    let workers = Arc::new(Workers::start(Settings::default()).expect("a worker"));
    let hypervisor = Hypervisor::new(Router::new(workers));
    let machines = (3..3 + SESSIONS).map(|cid| Machine::with(&hypervisor, vm(cid), MEMORY, Lines::msix()));
    let mut sessions: Vec<Session> = machines.map(Session::new).collect();
    let (cpus, stop, start) = (Cpus::allowed(), AtomicBool::new(false), Barrier::new(threads + 1));
    std::thread::scope(|scope| {
        let lanes = sessions.chunks_mut(SESSIONS as usize / threads).enumerate();
        let lanes: Vec<_> = lanes
            .map(|(number, lane)| {
                let (cpus, stop, start) = (&cpus, &stop, &start);
                scope.spawn(move || {
                    let _placed = cpus.pin(number);
                    start.wait();
                    fetch_all(lane, stop)
                })
            })
            .collect();
        start.wait();
        let begun = Instant::now();
        std::thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        let total = lanes.into_iter().map(|lane| lane.join().expect("no panic")).sum();
        Sample::rate(total, begun.elapsed())
    })
}

/// How many, until it is to stop.
fn fetch_all(sessions: &mut [Session], stop: &AtomicBool) -> u64 {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        sessions.iter_mut().for_each(Session::fetch);
        count += sessions.len() as u64;
    }
    count
}
