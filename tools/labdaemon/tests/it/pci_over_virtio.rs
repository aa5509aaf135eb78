//! A PCI function over virtio, driven as Linux' `virtio_pcidev` drives it, and as no driver would.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use vmlane_device::irq::{Interrupts, IrqMode};
use vmlane_device::pci::config::{Bar, ConfigSpace, Msix};
use vmlane_device::pci::{AccessError, CONFIG_REGION, Expected, IrqCounts, PciDevice, Region, Survives};
use vmlane_device::virtio::queue::Segment;
use vmlane_guestsim::vhost_user::{Front, RingEvents};
use vmlane_guestsim::virtio::{DriverRing, into, out};
use vmlane_guestsim::{Ram, signals};
use vmlane_labdaemon::PciOverVirtio;
use vmlane_labdaemon::pci_over_virtio::Messages;
use vmlane_labdaemon::pci_over_virtio::message::{Message, Op};
use vmlane_mem::MemoryMap;
use vmlane_testkit::eventually;
use vmlane_transport::{RingLines, Scope, SessionStats, vhost_user};
use vmlane_wire::pci::offset;
use vmlane_wire::virtio::feature;
use zerocopy::{FromBytes, IntoBytes};

const FEATURES: u64 = feature::VERSION_1 | feature::EVENT_INDEX;
const SIZE: u16 = 64;
const VECTORS: u16 = 3;
const MSIX: u64 = 0x58;
const MEMORY_BAR: u8 = 1;
const BAR_BYTES: u64 = 0x4000;
/// A register that keeps what is written, one that raises the vector written, and one that panics.
const KEEPS: u64 = 0x2000;
const RAISES: u64 = 0x2010;
const PANICS: u64 = 0x2020;

/// Region, offset, data, and whether it was posted.
type Write = (usize, u64, Vec<u8>, bool);

/// The calls that the function got.
#[derive(Default)]
struct Calls {
    memory: Mutex<u64>,
    writes: Mutex<Vec<Write>>,
    resets: Mutex<u32>,
    changes: Mutex<u32>,
}

struct Function {
    config: ConfigSpace,
    kept: [u8; 8],
    interrupts: Arc<Messages>,
    calls: Arc<Calls>,
}

impl PciDevice for Function {
    fn region(&self, index: usize) -> Region {
        let size = match index {
            0 => 64,
            1 => BAR_BYTES,
            CONFIG_REGION => self.config.size(),
            _ => 0,
        };
        Region { size, readable: size > 0, writable: size > 0, mmap: None }
    }

    fn irq_counts(&self) -> IrqCounts {
        IrqCounts { intx: 1, msi: 0, msix: VECTORS.into() }
    }

    fn read(&mut self, region: usize, offset: u64, data: &mut [u8]) -> Result<(), AccessError> {
        if region == CONFIG_REGION {
            return self.config.read(offset, data);
        }
        data.copy_from_slice(&self.kept[..data.len()]);
        Ok(())
    }

    fn write(&mut self, region: usize, offset: u64, data: &[u8], posted: bool) -> Result<(), AccessError> {
        self.calls.writes.lock().push((region, offset, data.to_vec(), posted));
        if region == CONFIG_REGION {
            return self.config.write(offset, data);
        }
        match offset {
            KEEPS => self.kept[..data.len()].copy_from_slice(data),
            RAISES => drop(self.interrupts.raise(data[0].into())),
            PANICS => panic!("on request"),
            _ => {}
        }
        Ok(())
    }

    fn memory(&mut self, map: &MemoryMap) {
        *self.calls.memory.lock() = map.len();
    }

    fn unmap(&mut self, _: u64, _: u64) {
        *self.calls.memory.lock() = 0;
    }

    fn irqs_changed(&mut self) {
        *self.calls.changes.lock() += 1;
    }

    fn reset(&mut self) {
        *self.calls.resets.lock() += 1;
        self.config.reset();
    }

    fn begin(&mut self, _: u64) {}

    fn expected(&self) -> Expected {
        Expected::default()
    }

    fn survival(&mut self) -> Option<&mut dyn Survives> {
        None
    }
}

struct Guest {
    ram: Arc<Ram>,
    accesses: DriverRing,
    messages: DriverRing,
    events: [RingEvents; 2],
    /// Buffers of accesses and of messages.
    page: u64,
    posted: Vec<u64>,
    front: Front,
    calls: Arc<Calls>,
    stats: Arc<SessionStats>,
    interrupts: Arc<Messages>,
    over: Arc<AtomicBool>,
    session: JoinHandle<()>,
}

impl Guest {
    fn boot() -> Guest {
        let (socket, other) = UnixStream::pair().unwrap();
        let stats = Arc::new(SessionStats::default());
        let lines = Arc::new(RingLines::new(PciOverVirtio::QUEUES).unwrap());
        let interrupts = Arc::new(Messages::new(lines.clone(), stats.clone()).unwrap());
        let calls = Arc::new(Calls::default());
        let config = ConfigSpace::builder(0x15ad, 0x0740)
            .interrupt_pin(1)
            .bar(0, Bar::Io { size: 64 })
            .bar(1, Bar::Mem64 { size: BAR_BYTES })
            .msix(MSIX as usize, Msix { vectors: VECTORS, table: (1, 0x400), pba: (1, 0x1000) })
            .build()
            .unwrap();
        let function =
            Function { config, kept: [0; 8], interrupts: interrupts.clone(), calls: calls.clone() };
        let mut device =
            PciOverVirtio::new("t", Box::new(function), interrupts.clone(), lines.clone(), stats.clone())
                .unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (counted, ended) = (stats.clone(), over.clone());
        let session = std::thread::spawn(move || {
            vhost_user::Session::new(other, &mut device, lines, counted, &Scope::none()).unwrap().run();
            ended.store(true, Ordering::SeqCst);
        });
        let ram = Arc::new(Ram::new(1 << 20));
        let mut front = Front::over(socket, FEATURES).unwrap();
        front.set_memory(&ram).unwrap();
        let [accesses, messages] = [(); 2].map(|()| DriverRing::new(&ram, SIZE, false));
        let events =
            [(0, &accesses), (1, &messages)].map(|(at, ring)| front.start(at, &ring.setup()).unwrap());
        let page = accesses.alloc(4096);
        let posted = Vec::new();
        Guest {
            ram,
            accesses,
            messages,
            events,
            page,
            posted,
            front,
            calls,
            stats,
            interrupts,
            over,
            session,
        }
    }

    /// Posts a chain of accesses and announces it; waits until it is complete. Returns the bytes of the
    /// answer.
    fn chain(&mut self, pieces: &[Segment]) -> u32 {
        self.accesses.post(pieces);
        kick(&self.events[0]);
        let ring = &mut self.accesses;
        eventually("an access", || ring.take()).1
    }

    fn message(&self, op: Op, bar: u8, addr: u64, data: &[u8], size: u32) -> Segment {
        let bytes = [Message::new(op, bar, addr, size).as_bytes(), data].concat();
        self.ram.write(self.page, &bytes);
        out(self.page, bytes.len())
    }

    fn read(&mut self, op: Op, bar: u8, addr: u64, len: usize) -> Vec<u8> {
        let request = self.message(op, bar, addr, &[], len as u32);
        let to = self.page + 2048;
        assert_eq!(self.chain(&[request, into(to, len)]), len as u32, "{op:?} {addr:#x}");
        let mut answer = vec![0; len];
        self.ram.read(to, &mut answer);
        answer
    }

    fn write(&mut self, op: Op, bar: u8, addr: u64, data: &[u8]) {
        let request = self.message(op, bar, addr, data, data.len() as u32);
        assert_eq!(self.chain(&[request]), 0);
    }

    fn config(&mut self, addr: usize) -> u32 {
        u32::from_le_bytes(self.read(Op::ConfigRead, 0, addr as u64, 4).try_into().unwrap())
    }

    fn set_config(&mut self, addr: usize, value: u32) {
        self.write(Op::ConfigWrite, 0, addr as u64, &value.to_le_bytes());
    }

    fn post_buffers(&mut self, count: usize) {
        for _ in 0..count {
            let at = self.messages.alloc(20);
            self.posted.push(at);
            self.messages.post(&[into(at, 20)]);
        }
    }

    /// The next message of the function.
    fn next_message(&mut self) -> (Message, u32) {
        let ring = &mut self.messages;
        let (_, len) = eventually("a message", || ring.take());
        assert_eq!(len, 20);
        let mut bytes = [0; 20];
        self.ram.read(self.posted.remove(0), &mut bytes);
        let (message, data) = Message::read_from_prefix(&bytes).unwrap();
        (message, u32::from_le_bytes(data.try_into().unwrap()))
    }

    fn switch_msix_on(&mut self) {
        self.write(Op::ConfigWrite, 0, MSIX + 2, &0x8000u16.to_le_bytes());
    }

    fn set_vector(&mut self, vector: u64, data: u32, masked: bool) {
        for (at, word) in [(0, 0xa_0000), (4, 0), (8, data), (12, u32::from(masked))] {
            self.write(Op::Write, MEMORY_BAR, 0x400 + 16 * vector + at, &word.to_le_bytes());
        }
    }

    fn raise(&mut self, vector: u8) {
        self.write(Op::Write, MEMORY_BAR, RAISES, &[vector, 0, 0, 0]);
    }

    fn die(self) -> Arc<Calls> {
        drop(self.front);
        self.session.join().unwrap();
        self.calls
    }
}

fn kick(events: &RingEvents) {
    rustix::io::write(&events.kick, &1u64.to_ne_bytes()).unwrap();
}

#[test]
fn accesses_reach_the_function() {
    let mut guest = Guest::boot();
    assert_eq!(guest.config(offset::VENDOR_ID), 0x0740_15ad);
    guest.write(Op::Write, MEMORY_BAR, KEEPS, &[1, 2, 3, 4]);
    assert_eq!(guest.read(Op::Read, MEMORY_BAR, KEEPS, 4), [1, 2, 3, 4]);
    // Linux sends the data of a write as a piece of its own when it is long.
    let head = guest.message(Op::Write, MEMORY_BAR, KEEPS, &[], 12);
    guest.ram.write(guest.page + 512, &[9; 12]);
    guest.chain(&[head, out(guest.page + 512, 12)]);
    guest.write(Op::Fill, MEMORY_BAR, KEEPS, &[7]);
    let writes = guest.calls.writes.lock().clone();
    let expected = [
        (1, KEEPS, vec![1, 2, 3, 4], true),
        (1, KEEPS, vec![9; 8], true),
        (1, KEEPS + 8, vec![9; 4], true),
        (1, KEEPS, vec![7], true),
    ];
    assert_eq!(writes, expected);
    assert_eq!(*guest.calls.memory.lock(), 1 << 20);
    let calls = guest.die();
    assert_eq!((*calls.memory.lock(), *calls.resets.lock()), (0, 1));
}

#[test]
fn the_guest_finds_memory_bars_and_no_others() {
    let mut guest = Guest::boot();
    for bar in 0..6 {
        guest.set_config(offset::BAR0 + 4 * bar, u32::MAX);
    }
    let bars = [0, 1, 2, 3, 4, 5].map(|bar| guest.config(offset::BAR0 + 4 * bar));
    assert_eq!(bars, [0, !(BAR_BYTES as u32 - 1) | 4, u32::MAX, 0, 0, 0]);
    // An access that begins before hidden bytes sees the rest.
    let both = guest.read(Op::ConfigRead, 0, offset::BAR0 as u64, 8);
    assert_eq!(both[..4], [0; 4]);
    assert_ne!(both[4..], [0; 4]);
}

#[test]
fn a_vector_that_is_masked_is_sent_when_it_is_unmasked() {
    let mut guest = Guest::boot();
    guest.post_buffers(4);
    assert_eq!(guest.interrupts.mode(), IrqMode::Intx, "as after power-on");
    guest.switch_msix_on();
    assert_eq!(guest.interrupts.mode(), IrqMode::Msix { vectors: 0 });
    guest.raise(1);
    guest.set_vector(0, 40, false);
    guest.set_vector(1, 41, false);
    assert_eq!(guest.interrupts.mode(), IrqMode::Msix { vectors: 2 });
    assert_eq!(guest.read(Op::Read, MEMORY_BAR, 0x418, 4), [41, 0, 0, 0]);
    assert!(*guest.calls.changes.lock() >= 3);
    assert_eq!(guest.messages.take(), None, "what was raised before is the device's to repeat");
    guest.raise(0);
    let (message, data) = guest.next_message();
    assert_eq!(
        (message.op(), message.size.get(), message.addr.get(), data),
        (Some(Op::Message), 4, 0xa_0000, 40)
    );
    assert!(signals(&guest.events[1].call) > 0);
    guest.set_vector(1, 41, true);
    guest.raise(1);
    guest.raise(1);
    assert_eq!(guest.messages.take(), None);
    guest.set_vector(1, 42, false);
    assert_eq!(guest.next_message().1, 42);
    assert_eq!(guest.messages.take(), None, "once");
    // All at once by the function mask.
    guest.write(Op::ConfigWrite, 0, MSIX + 2, &0xc000u16.to_le_bytes());
    guest.raise(0);
    assert_eq!(guest.messages.take(), None);
    guest.switch_msix_on();
    assert_eq!(guest.next_message().1, 40);
    guest.write(Op::ConfigWrite, 0, MSIX + 2, &0u16.to_le_bytes());
    guest.raise(0);
    let (message, _) = guest.next_message();
    assert_eq!((message.op(), message.addr.get()), (Some(Op::Line), 1));
}

#[test]
fn messages_wait_for_buffers() {
    let mut guest = Guest::boot();
    guest.switch_msix_on();
    (0..3).for_each(|vector| guest.set_vector(vector, 50 + vector as u32, false));
    guest.post_buffers(1);
    [0, 1, 2, 1].into_iter().for_each(|vector| guest.raise(vector));
    assert_eq!(guest.next_message().1, 50);
    assert_eq!(guest.messages.take(), None);
    guest.post_buffers(1);
    kick(&guest.events[1]);
    assert_eq!(guest.next_message().1, 51);
    guest.post_buffers(5);
    kick(&guest.events[1]);
    assert_eq!(guest.next_message().1, 52);
    guest.raise(1);
    assert_eq!(guest.next_message().1, 51);
    assert_eq!(guest.messages.take(), None);
}

#[test]
fn senseless_accesses_are_completed_and_change_nothing() {
    let mut guest = Guest::boot();
    let to = guest.page + 2048;
    let far = 1 << 40;
    for (op, bar, addr, size) in [
        (Op::Read, MEMORY_BAR, BAR_BYTES - 2, 4),
        (Op::Read, MEMORY_BAR, u64::MAX - 1, 4),
        (Op::Read, 2, 0, 4),
        (Op::Read, 7, 0, 4),
        (Op::Read, 255, 0, 4),
        (Op::ConfigRead, 0, 254, 4),
        (Op::ConfigRead, 0, u64::MAX, 4),
    ] {
        assert_eq!(guest.read(op, bar, addr, size), [0xff; 4], "{op:?} {bar} {addr:#x}");
    }
    for (op, bar, addr) in [
        (Op::Write, MEMORY_BAR, BAR_BYTES),
        (Op::Write, 7, 0),
        (Op::Write, MEMORY_BAR, u64::MAX - 2),
        (Op::ConfigWrite, 0, 0x1000),
        (Op::Line, 0, 1),
        (Op::Message, 0, 1),
    ] {
        guest.write(op, bar, addr, &[0xff; 4]);
    }
    let head = size_of::<Message>();
    // Less than a header, nothing at all, more data than was sent, more than there is room for, more than is
    // served.
    let short = guest.message(Op::Write, MEMORY_BAR, KEEPS, &[], 4);
    assert_eq!(guest.chain(&[Segment { len: head as u32 - 1, ..short }]), 0);
    assert_eq!(guest.chain(&[into(to, 8)]), 0);
    let promises = guest.message(Op::Write, MEMORY_BAR, KEEPS, &[1, 2], 4);
    assert_eq!(guest.chain(&[promises]), 0);
    let cramped = guest.message(Op::Read, MEMORY_BAR, KEEPS, &[], 8);
    assert_eq!(guest.chain(&[cramped, into(to, 4)]), 0);
    let huge = guest.message(Op::Read, MEMORY_BAR, KEEPS, &[], u32::MAX);
    assert_eq!(guest.chain(&[huge, into(to, 4)]), 0);
    // An operation that does not exist; memory that does not.
    guest.ram.write(guest.page, &[200; 24]);
    assert_eq!(guest.chain(&[out(guest.page, 24)]), 0);
    assert_eq!(guest.chain(&[out(far, 24)]), 0);
    let lost = guest.message(Op::Read, MEMORY_BAR, KEEPS, &[], 4);
    assert_eq!(guest.chain(&[lost, into(far, 4)]), 0);
    assert!(guest.calls.writes.lock().iter().all(|(region, ..)| *region == CONFIG_REGION));
    assert_eq!(guest.stats.panics(), 0);
    // A chain without end: accesses are over, the session and its end are not.
    guest.accesses.post_raw(guest.page, 16, vmlane_wire::virtio::desc::NEXT);
    guest.accesses.write_split(0, guest.page, 16, vmlane_wire::virtio::desc::NEXT, 0);
    guest.accesses.publish(0);
    kick(&guest.events[0]);
    assert!(!guest.over.load(Ordering::SeqCst));
    assert_eq!(*guest.die().memory.lock(), 0);
}

#[test]
fn a_message_for_which_there_is_no_memory_is_lost_alone() {
    let mut guest = Guest::boot();
    guest.switch_msix_on();
    guest.set_vector(0, 60, false);
    guest.messages.post(&[into(1 << 40, 20)]);
    guest.post_buffers(1);
    guest.raise(0);
    guest.raise(0);
    let ring = &mut guest.messages;
    assert_eq!(eventually("a completion", || ring.take()).1, 0);
    assert_eq!(guest.next_message().1, 60);
}

#[test]
fn a_fault_of_the_function_resets_it_and_the_guest_goes_on() {
    let mut guest = Guest::boot();
    guest.switch_msix_on();
    guest.write(Op::Write, MEMORY_BAR, PANICS, &[1, 0, 0, 0]);
    assert_eq!((guest.stats.panics(), *guest.calls.resets.lock()), (1, 1));
    assert_eq!(guest.interrupts.mode(), IrqMode::Intx);
    assert_eq!(guest.config(offset::VENDOR_ID), 0x0740_15ad);
}

#[test]
fn many_writes_without_a_read_are_announced_sometimes() {
    let mut guest = Guest::boot();
    signals(&guest.events[0].call);
    for _ in 0..100 {
        guest.write(Op::Write, MEMORY_BAR, KEEPS, &[1, 2, 3, 4]);
    }
    let called = signals(&guest.events[0].call);
    assert_eq!(called, 10, "Linux has 20 buffers for writes");
    for _ in 0..100 {
        guest.read(Op::Read, MEMORY_BAR, KEEPS, 4);
    }
    assert_eq!(signals(&guest.events[0].call), 0, "a reader polls itself");
}
