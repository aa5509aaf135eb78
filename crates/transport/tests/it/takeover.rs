//! A session's daemon dies, and another one continues with its VMM: at every moment of a request, with
//! memory, interrupts and whatever was on its way; and with forged state.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use proptest::prelude::*;
use vmlane_device::irq::{Interrupts, IrqMode};
use vmlane_device::pci::{AccessError, Checkpoint, Expected, IrqCounts, PciDevice, Region, Survives};
use vmlane_guestsim::vfio_user::Client;
use vmlane_guestsim::{eventfd, signals};
use vmlane_mem::{MemoryMap, memfd};
use vmlane_state::{Found, Journal, Scope, Store, Unusable};
use vmlane_testkit::{LONGEST, wait_until};
use vmlane_transport::vfio_user::Prepared;
use vmlane_transport::{IrqSet, Listener, Session, SessionEnd, SessionStats};
use vmlane_wire::vfio_user::{SetIrqs, irq_index};

const REGISTERS: u64 = 0x100;
/// Write: raises that vector.
const RAISE: u64 = 0x00;
/// Write: a guest address; read: the word there.
const PEEK: u64 = 0x04;
/// Every write adds one.
const COUNT: u64 = 0x08;

/// Holds what daemons give it.
#[derive(Default)]
struct Shelf(Mutex<BTreeMap<String, OwnedFd>>);

impl Store for Shelf {
    fn put(&self, name: &str, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        self.0.lock().insert(name.to_owned(), fd.try_clone_to_owned()?);
        Ok(())
    }

    fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    fn remove_all(&self, prefix: &str) {
        self.0.lock().retain(|name, _| !name.starts_with(prefix));
    }
}

/// At which point of the next write its thread stops for ever, as a killed daemon's does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Read,
    Worked,
    Recorded,
}

struct Ledger {
    registers: [u32; 4],
    memory: MemoryMap,
    irqs: Arc<IrqSet>,
    fate: Arc<Mutex<Option<Moment>>>,
    died: Sender<()>,
    doomed: bool,
    abandoned: Arc<Mutex<u32>>,
}

impl Ledger {
    fn dies(&self, moment: Moment) {
        if *self.fate.lock() != Some(moment) || !self.doomed {
            return;
        }
        *self.fate.lock() = None;
        let _ = self.died.send(());
        loop {
            std::thread::park();
        }
    }
}

impl PciDevice for Ledger {
    fn region(&self, index: usize) -> Region {
        let size = if index == 2 { REGISTERS } else { 0 };
        Region { size, readable: size > 0, writable: size > 0, mmap: None }
    }

    fn irq_counts(&self) -> IrqCounts {
        IrqCounts { intx: 1, msi: 0, msix: 3 }
    }

    fn read(&mut self, _: usize, offset: u64, data: &mut [u8]) -> Result<(), AccessError> {
        if offset == PEEK {
            let refused = AccessError::OutOfRange { region: 2, offset, len: data.len() };
            return self.memory.read(self.registers[1].into(), data).map_err(|_| refused);
        }
        data.copy_from_slice(&self.registers[offset as usize / 4].to_le_bytes()[..data.len()]);
        Ok(())
    }

    fn write(&mut self, _: usize, offset: u64, data: &[u8], _: bool) -> Result<(), AccessError> {
        self.doomed = true;
        self.dies(Moment::Read);
        let value = u32::from_le_bytes(data.try_into().expect("four bytes"));
        match offset {
            RAISE => drop(self.irqs.raise(value as u16)),
            COUNT => self.registers[2] += 1,
            _ => self.registers[offset as usize / 4] = value,
        }
        self.dies(Moment::Worked);
        Ok(())
    }

    fn memory(&mut self, map: &MemoryMap) {
        self.memory = map.clone();
    }

    fn unmap(&mut self, _: u64, _: u64) {}

    fn irqs_changed(&mut self) {}

    fn reset(&mut self) {
        self.registers = [0; 4];
    }

    fn begin(&mut self, _: u64) {}

    fn expected(&self) -> Expected {
        Expected::default()
    }

    fn survival(&mut self) -> Option<&mut dyn Survives> {
        Some(self)
    }
}

impl Survives for Ledger {
    fn abandon(&mut self) {
        *self.abandoned.lock() += 1;
        self.reset();
    }

    fn files(&self) -> Vec<(&'static str, OwnedFd)> {
        vec![("page", memfd("page", 4096).expect("a file"))]
    }

    fn adopt(&mut self, _: &mut Found) {}

    fn record(&mut self, log: &Journal) {
        let bytes: Vec<u8> = self.registers.iter().flat_map(|word| word.to_le_bytes()).collect();
        log.stage((256, 0, 0), &bytes);
        self.dies(Moment::Recorded);
        self.doomed = false;
    }

    fn resume(&mut self, checkpoint: Checkpoint<'_>) -> Result<(), Unusable> {
        let bytes = checkpoint.record(256).unwrap_or(&[0; 16]);
        let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let words: Vec<u32> = words.collect();
        self.registers = words.try_into().map_err(|_| Unusable::Record { kind: 256 })?;
        Ok(())
    }
}

/// What outlives daemons, and the VMM.
struct World {
    shelf: Arc<Shelf>,
    fate: Arc<Mutex<Option<Moment>>>,
    died: (Sender<()>, Receiver<()>),
    abandoned: Arc<Mutex<u32>>,
    stats: Arc<SessionStats>,
}

/// A daemon's session.
type Running = JoinHandle<SessionEnd>;

impl World {
    fn new() -> World {
        World {
            shelf: Arc::default(),
            fate: Arc::default(),
            died: channel(),
            abandoned: Arc::default(),
            stats: Arc::default(),
        }
    }

    fn scope(&self) -> Scope {
        Scope::new(self.shelf.clone(), "nic0")
    }

    fn ledger(&self, irqs: Arc<IrqSet>) -> Ledger {
        Ledger {
            registers: [0; 4],
            memory: MemoryMap::default(),
            irqs,
            fate: self.fate.clone(),
            died: self.died.0.clone(),
            doomed: false,
            abandoned: self.abandoned.clone(),
        }
    }

    fn irqs(&self) -> Arc<IrqSet> {
        Arc::new(IrqSet::new(self.stats.clone()))
    }

    fn start(&self) -> (Client, Running) {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        let (irqs, stats, scope) = (self.irqs(), self.stats.clone(), self.scope());
        let mut device = self.ledger(irqs.clone());
        let session = std::thread::spawn(move || {
            Session::new(theirs, &mut device, irqs, stats, &scope).expect("a session").run()
        });
        (Client::new(ours), session)
    }

    /// What the next daemon finds.
    fn found(&self) -> Found {
        let shelf = self.shelf.0.lock();
        let copies = shelf.iter().map(|(name, fd)| (name.clone(), fd.try_clone().expect("one more")));
        let mut found = Found(copies.collect());
        found.scope("nic0").scope("s")
    }

    /// The next daemon.
    fn succeed(&self, found: Found) -> Running {
        let irqs = self.irqs();
        let prepared = Prepared::from(found, &self.scope(), &irqs).expect("a VMM's socket");
        let (stats, mut device) = (self.stats.clone(), self.ledger(irqs.clone()));
        std::thread::spawn(move || Session::resume(prepared, &mut device, irqs, stats).run())
    }

    fn await_death(&self) {
        self.died.1.recv_timeout(LONGEST).expect("the daemon to die");
    }
}

/// Every write arrives once, whenever its daemon dies, and is answered once.
#[test]
fn a_request_is_carried_out_once_and_answered_once() {
    for moment in [Moment::Read, Moment::Worked, Moment::Recorded] {
        let world = World::new();
        let (mut vmm, _dead) = world.start();
        let ram = memfd("ram", 0x2000).expect("memory");
        let file = std::fs::File::from(ram.try_clone().unwrap());
        file.write_all_at(&0xfeed_f00du32.to_le_bytes(), 0x1010).unwrap();
        vmm.version().expect("an answer");
        vmm.map(0x10000, 0x2000, Some((ram.as_fd(), 0)), true).expect("mapped");
        let vectors = [eventfd().unwrap(), eventfd().unwrap()];
        vmm.enable_msix(&[vectors[0].as_fd(), vectors[1].as_fd()]).expect("connected");
        for _ in 0..5 {
            vmm.write_u32(2, COUNT, 0).expect("an answer");
        }
        let mut last = None;
        for deaths in 0..10u32 {
            *world.fate.lock() = Some(moment);
            let vmm = &mut vmm;
            std::thread::scope(|scope| {
                let written = scope.spawn(|| vmm.write_u32(2, COUNT, 0));
                world.await_death();
                last = Some(world.succeed(world.found()));
                written.join().expect("the VMM").expect("an answer, and only one");
            });
            assert_eq!(vmm.read_u32(2, COUNT).expect("an answer"), 6 + deaths, "{moment:?}");
            // Memory and interrupts are as they were.
            vmm.write_u32(2, PEEK, 0x11010).expect("an answer");
            assert_eq!(vmm.read_u32(2, PEEK).expect("an answer"), 0xfeed_f00d);
            vmm.write_u32(2, RAISE, 1).expect("an answer");
            assert_eq!((signals(&vectors[0]), signals(&vectors[1])), (0, 1));
        }
        assert_eq!(*world.abandoned.lock(), 0);
        drop(vmm);
        let end = last.expect("the next daemon").join().expect("a session that does not panic");
        assert_eq!(end.to_string(), "the peer closed the connection");
        assert!(world.shelf.0.lock().keys().all(|name| !name.contains("/s/")), "nothing is held any more");
    }
}

/// Many posted requests at once, and one after them that is answered.
#[test]
fn what_lies_in_the_socket_and_in_the_message_file_is_served() {
    let world = World::new();
    let (mut vmm, _dead) = world.start();
    *world.fate.lock() = Some(Moment::Worked);
    let count = |vmm: &mut Client, posted| {
        let access = vmlane_guestsim::vfio_user::access(2, COUNT, 4);
        vmm.message(10, &[zerocopy::IntoBytes::as_bytes(&access), &[0; 4]].concat(), posted)
    };
    let mut bytes: Vec<u8> = (0..20).flat_map(|_| count(&mut vmm, true)).collect();
    bytes.extend(count(&mut vmm, false));
    vmm.send(&bytes, &[]).expect("sent");
    world.await_death();
    let more = count(&mut vmm, true);
    vmm.send(&more, &[]).expect("sent");
    let _second = world.succeed(world.found());
    let (header, _) = vmm.receive().expect("an answer");
    assert_eq!(header.command.get(), 10);
    assert_eq!(vmm.read_u32(2, COUNT).expect("an answer"), 22);
}

/// Interrupts in every mode.
#[test]
fn lines_are_as_they_were() {
    let world = World::new();
    let (mut vmm, _dead) = world.start();
    let line = eventfd().unwrap();
    let events = SetIrqs::DATA_EVENTFD | SetIrqs::TRIGGER;
    vmm.set_irqs(events, irq_index::INTX, 0..1, &[], &[line.as_fd()]).expect("connected");
    vmm.set_irqs(SetIrqs::DATA_NONE | SetIrqs::MASK, irq_index::INTX, 0..1, &[], &[]).expect("masked");
    *world.fate.lock() = Some(Moment::Read);
    std::thread::scope(|scope| {
        let written = scope.spawn(|| vmm.write_u32(2, RAISE, 0));
        world.await_death();
        let irqs = world.irqs();
        let prepared = Prepared::from(world.found(), &world.scope(), &irqs).expect("a socket");
        assert_eq!(irqs.mode(), IrqMode::Intx);
        assert!(prepared.records.is_ok());
        drop(prepared);
        world.succeed(world.found());
        written.join().expect("the VMM").expect("an answer");
    });
    assert_eq!(signals(&line), 0, "it is masked still");
    vmm.set_irqs(SetIrqs::DATA_NONE | SetIrqs::UNMASK, irq_index::INTX, 0..1, &[], &[]).expect("unmasked");
    vmm.write_u32(2, RAISE, 0).expect("an answer");
    assert_eq!(signals(&line), 1);
}

/// The whole way: a bound socket, two daemons, VMMs before and after.
#[test]
fn a_bound_socket_changes_hands() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("nic0.sock");
    let world = World::new();
    let listener = Listener::bind(&path).expect("bound");
    world.scope().put("listen", listener.socket().as_fd()).unwrap();
    let irqs = world.irqs();
    let device = Box::new(world.ledger(irqs.clone()));
    let served = listener.serve_on("nic0", device, irqs, world.stats.clone(), world.scope(), None);
    let server = served.expect("threads");
    let mut vmm = Client::connect(&path).expect("a session");
    vmm.write_u32(2, COUNT, 0).expect("an answer");
    *world.fate.lock() = Some(Moment::Worked);
    let stopped = std::thread::scope(|scope| {
        let written = scope.spawn(|| vmm.write_u32(2, COUNT, 0));
        world.await_death();
        // Dead: neither of its threads does anything any more, but for one that waits to accept.
        server.leave();
        let held = world.shelf.0.lock()["nic0/listen"].try_clone().unwrap();
        assert!(Listener::adopt(directory.path().join("other"), held.try_clone().unwrap()).is_none());
        let unbound = UnixStream::pair().unwrap().0;
        assert!(Listener::adopt(&path, unbound.into()).is_none());
        let listener = Listener::adopt(&path, held).expect("the same socket");
        let irqs = world.irqs();
        let prepared = Prepared::from(world.found(), &world.scope(), &irqs);
        let device = Box::new(world.ledger(irqs.clone()));
        let served =
            listener.serve_on("nic0", device, irqs, world.stats.clone(), world.scope(), prepared).unwrap();
        assert_eq!(served.path(), path);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!served.connected(), "held until the others are ready");
        served.go();
        written.join().expect("the VMM").expect("an answer");
        assert!(served.connected());
        served
    });
    assert_eq!(vmm.read_u32(2, COUNT).expect("an answer"), 2);
    stopped.stop();
    assert!(!path.exists() && Listener::adopt(&path, memfd("no", 1).unwrap()).is_none());
}

/// The answer that the previous daemon left pending finds no room in the socket: only that VMM has to wait
/// for it.
#[test]
fn a_vmm_that_does_not_read_holds_up_no_caller_of_its_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::new();
    let (mut vmm, _dead) = world.start();
    let access = vmlane_guestsim::vfio_user::access(2, COUNT, 4);
    let read = vmm.message(9, zerocopy::IntoBytes::as_bytes(&access), false);
    vmm.stream().set_nonblocking(true).unwrap();
    // Until no more is taken from the VMM: the session waits to send, as a daemon that is killed then did.
    let mut waits = 0;
    wait_until("the session waits", || {
        let error = loop {
            match vmm.stream().write(&read) {
                Ok(sent) => assert_eq!(sent, read.len()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        waits += 1;
        waits == 100
    });
    let irqs = world.irqs();
    let prepared = Prepared::from(world.found(), &world.scope(), &irqs);
    let device = Box::new(world.ledger(irqs.clone()));
    let listener = Listener::bind(directory.path().join("nic0.sock")).expect("bound");
    let served =
        listener.serve_on("nic0", device, irqs, world.stats.clone(), world.scope(), prepared).unwrap();
    served.go();
    let (done, ended) = channel();
    std::thread::spawn(move || {
        while !served.connected() {
            std::thread::yield_now();
        }
        // Nor is it in the way of the daemon's end.
        served.stop();
        let _ = done.send(());
    });
    ended.recv_timeout(LONGEST).expect("the server answers, and ends");
}

/// Kinds of damage, and whether the device has to be reset.
#[test]
fn damaged_state_resets_the_device_and_keeps_the_socket() {
    let other_version = |name: &'static str| {
        move |found: &mut Found| {
            let file = std::fs::File::from(found.0[name].try_clone().unwrap());
            file.write_all_at(&77u32.to_le_bytes(), 8).unwrap();
        }
    };
    let cut = |name: &'static str, len| {
        move |found: &mut Found| drop(found.0.insert(name.into(), memfd("cut", len).unwrap()))
    };
    type Damage = Box<dyn Fn(&mut Found)>;
    let cases: Vec<(&str, bool, Damage)> = vec![
        ("no log", true, Box::new(|found| drop(found.0.remove("log")))),
        ("a log of another version", true, Box::new(other_version("log"))),
        ("a log cut short", true, Box::new(cut("log", 4096))),
        ("an empty log", true, Box::new(cut("log", 0))),
        ("no message file", false, Box::new(|found| drop(found.0.remove("mail")))),
        ("a message file of another version", false, Box::new(other_version("mail"))),
        ("a message file cut short", false, Box::new(cut("mail", 100))),
        (
            "invalid names",
            false,
            Box::new(|found| {
                for name in [
                    "mem",
                    "mem.",
                    "mem.zz.1.2.rw",
                    "mem.1000.0.0.rw",
                    "mem.ffffffffffffffff.1000.0.rw",
                    "mem.1000.1000.fffffffffffff000.rw",
                    "mem.5000.100000.0.rw",
                    "irq.msix.",
                    "irq.msix.99999999",
                    "irq.msix.2047",
                    "irq.intx.-1",
                    "irq.other.0",
                    "in.",
                    "in.x.y",
                    "in.18446744073709551615.0",
                    "in.0.18446744073709551615",
                    "file.",
                    "what is this",
                ] {
                    found.0.insert(name.into(), memfd("invalid", 4096).unwrap());
                }
            }),
        ),
    ];
    for (what, anew, damage) in cases {
        let world = World::new();
        let (mut vmm, _dead) = world.start();
        vmm.write_u32(2, COUNT, 0).expect("an answer");
        *world.fate.lock() = Some(Moment::Read);
        // This one is posted: it may be lost with the message file.
        let access = vmlane_guestsim::vfio_user::access(2, COUNT, 4);
        let posted = vmm.message(10, &[zerocopy::IntoBytes::as_bytes(&access), &[0; 4]].concat(), true);
        vmm.send(&posted, &[]).expect("sent");
        world.await_death();
        let mut found = world.found();
        damage(&mut found);
        let session = world.succeed(found);
        let count = vmm.read_u32(2, COUNT).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(*world.abandoned.lock(), u32::from(anew), "{what}");
        assert!(count <= 2 && (anew || count >= 1), "{what}: {count}");
        // What had to be replaced is held anew: the next one finds all of it.
        vmm.write_u32(2, COUNT, 0).expect("an answer");
        *world.fate.lock() = Some(Moment::Worked);
        std::thread::scope(|scope| {
            let written = scope.spawn(|| vmm.write_u32(2, COUNT, 0));
            world.await_death();
            world.succeed(world.found());
            written.join().expect("the VMM").expect("an answer");
        });
        assert_eq!(vmm.read_u32(2, COUNT).expect("an answer"), count + 2, "{what}");
        assert_eq!(*world.abandoned.lock(), u32::from(anew), "{what}: once");
        drop(session);
    }
    let world = World::new();
    assert!(Prepared::from(Found::default(), &world.scope(), &world.irqs()).is_none(), "no VMM, no session");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes anywhere in the message file and the log: the next daemon answers, or ends the session; it never
    /// panics.
    #[test]
    fn scribbles_end_a_session_at_most(
        scribbles in proptest::collection::vec(
            (any::<bool>(), 0u64..6000, proptest::collection::vec(any::<u8>(), 1..24)), 1..5),
    ) {
        let world = World::new();
        let (mut vmm, _dead) = world.start();
        vmm.write_u32(2, COUNT, 0).expect("an answer");
        *world.fate.lock() = Some(Moment::Worked);
        let access = vmlane_guestsim::vfio_user::access(2, COUNT, 4);
        let posted = vmm.message(10, &[zerocopy::IntoBytes::as_bytes(&access), &[0; 4]].concat(), true);
        vmm.send(&posted, &[]).expect("sent");
        world.await_death();
        let found = world.found();
        for (message_file, at, bytes) in scribbles {
            let name = if message_file { "mail" } else { "log" };
            std::fs::File::from(found.0[name].try_clone().unwrap()).write_all_at(&bytes, at).unwrap();
        }
        let session = world.succeed(found);
        // What is left of a broken message may swallow others: only the end counts.
        vmm.stream().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let _ = vmm.read_u32(2, COUNT);
        drop(vmm);
        wait_until("the session ends", || session.is_finished());
        prop_assert!(session.join().is_ok());
        let panics = world.stats.snapshot().iter().find(|(name, _)| *name == "panics").map_or(0, |row| row.1);
        prop_assert_eq!(panics, 0);
    }
}
