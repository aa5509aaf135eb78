//! A vhost-user session's daemon dies, and another one continues with its front end: at every moment of every
//! request, with memory, rings and whatever was on its way; and with damaged state.

use std::collections::{BTreeMap, HashSet};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use proptest::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span;
use vmlane_device::virtio::queue::{Queue, Record};
use vmlane_device::virtio::vhost::{Lines, Setup, VhostDevice, VhostSurvives};
use vmlane_guestsim::virtio::{DriverRing, out};
use vmlane_guestsim::{Ram, eventfd, signals};
use vmlane_mem::{MemoryMap, Window, memfd};
use vmlane_state::{Found, Journal, Key, Scope, Store};
use vmlane_testkit::{wait_until, with_subscriber};
use vmlane_transport::vhost_user::{Prepared, Session};
use vmlane_transport::{Caller, Listener, RingLines, SessionStats, VhostEnd};
use vmlane_wire::vhost_user::{MemoryRegion, RingAddress, protocol, request};
use vmlane_wire::virtio::feature;
use zerocopy::IntoBytes;

use crate::vhost_user_world::{Front, USER, number, region, state};

const SIZE: u16 = 16;
const RECORDS: u64 = 8192;

/// When a daemon dies.
enum Fate {
    Lives,
    /// Before the next event; the daemon after it lives.
    Next,
    /// Before the event with this number.
    At(usize),
    /// Once before each event.
    Each(HashSet<String>),
}

/// What outlives daemons, and the front end.
struct World {
    shelf: Mutex<BTreeMap<String, OwnedFd>>,
    fate: Mutex<Fate>,
    events: AtomicU32,
    deaths: AtomicU32,
    /// The rings of the daemon that lives.
    rings: Mutex<Option<Arc<Mutex<Rings>>>>,
    /// Of each run of rings: which ones, and whether they were resumed.
    runs: Mutex<Vec<([bool; 2], bool)>>,
    faults: AtomicU32,
    abandoned: AtomicU32,
    refuses: AtomicBool,
    survives: AtomicBool,
    /// The next run of rings stops its thread for ever, as a killed daemon's does.
    parks: AtomicBool,
    stats: Arc<SessionStats>,
    /// Daemons wait for one of these before they begin.
    permits: Option<Mutex<Receiver<()>>>,
}

/// The panic of a daemon that is killed.
struct Killed;

/// One daemon.
struct Life {
    world: Arc<World>,
    /// It serves the session, and may die.
    serves: AtomicBool,
    dead: AtomicBool,
}

impl Life {
    /// Something happens, unless the daemon has died or dies now. While a request is carried out this panic
    /// is contained, and the next event is the end.
    fn passes(&self, event: String) {
        if self.dies(event) {
            resume_unwind(Box::new(Killed));
        }
    }

    fn dies(&self, event: String) -> bool {
        if self.dead.load(Ordering::SeqCst) || !self.serves.load(Ordering::SeqCst) {
            return self.dead.load(Ordering::SeqCst);
        }
        let count = self.world.events.fetch_add(1, Ordering::SeqCst) as usize;
        let fate = &mut *self.world.fate.lock();
        let dies = match fate {
            Fate::Lives => false,
            Fate::Next => {
                *fate = Fate::Lives;
                true
            }
            Fate::At(number) => count == *number,
            Fate::Each(seen) => seen.insert(event),
        };
        if dies {
            self.dead.store(true, Ordering::SeqCst);
            *self.world.rings.lock() = None;
            self.world.deaths.fetch_add(1, Ordering::SeqCst);
        }
        dies
    }
}

/// The store of one daemon.
struct Held(Arc<Life>);

impl Store for Held {
    fn put(&self, name: &str, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        self.0.passes(format!("put {name}"));
        self.0.world.shelf.lock().insert(name.to_owned(), fd.try_clone_to_owned()?);
        Ok(())
    }

    fn remove(&self, name: &str) {
        self.0.passes(format!("remove {name}"));
        self.0.world.shelf.lock().remove(name);
    }

    fn remove_all(&self, prefix: &str) {
        self.0.passes(format!("remove all {prefix}"));
        self.0.world.shelf.lock().retain(|name, _| !name.starts_with(prefix));
    }
}

/// Ends the thread of a daemon that dies: what it traces shows where it is.
struct Watch(Arc<Life>);

impl tracing::Subscriber for Watch {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "vmlane_transport::vhost_user" && *metadata.level() == tracing::Level::TRACE
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        self.0.passes(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field} {value:?} "));
    }
}

/// Completes every chain once it has read it.
struct Rings {
    queues: Vec<Option<Queue>>,
    memory: MemoryMap,
    lines: Arc<RingLines>,
    world: Arc<World>,
}

impl Rings {
    fn work(&mut self) {
        for (number, queue) in self.queues.iter_mut().enumerate() {
            let Some(queue) = queue else { continue };
            let mut segments = Vec::new();
            while let Some(taken) = queue.read(queue.next, &mut segments).expect("a sound ring") {
                for segment in segments.drain(..) {
                    let mut bytes = vec![0; segment.len as usize];
                    if self.memory.read(segment.addr, &mut bytes).is_err() {
                        self.world.faults.fetch_add(1, Ordering::SeqCst);
                    }
                }
                queue.next = taken.next();
                queue.complete(taken.id(), taken.count(), 0);
            }
            if queue.publish() {
                self.lines.call(number);
            }
        }
    }
}

struct Toy {
    world: Arc<World>,
    life: Arc<Life>,
    lines: Arc<RingLines>,
    rings: Arc<Mutex<Rings>>,
    records: (Arc<Window>, OwnedFd),
}

fn records() -> (Arc<Window>, OwnedFd) {
    let (window, file) = Window::of_file("toy-records", RECORDS).unwrap();
    (Arc::new(window), file)
}

impl Toy {
    fn new(life: &Arc<Life>, lines: &Arc<RingLines>) -> Toy {
        let (world, life, lines) = (life.world.clone(), life.clone(), lines.clone());
        let rings = Rings {
            queues: Vec::new(),
            memory: MemoryMap::default(),
            lines: lines.clone(),
            world: world.clone(),
        };
        Toy { world, life, lines, rings: Arc::new(Mutex::new(rings)), records: records() }
    }
}

impl VhostDevice for Toy {
    fn features(&self) -> u64 {
        feature::VERSION_1 | feature::EVENT_INDEX | feature::PACKED
    }

    fn queues(&self) -> u16 {
        2
    }

    fn config(&self) -> Vec<u8> {
        vec![1, 2, 3]
    }

    fn run(&mut self, setup: Setup) {
        let Setup { features, memory, rings, resumed } = setup;
        self.world.runs.lock().push(([0, 1].map(|ring| rings[ring].is_some()), resumed));
        let queue = |(number, ring): (usize, &Option<_>)| {
            let queue = Queue::new(ring.as_ref()?, features, &memory);
            queue.inspect_err(|_| self.lines.fail(number)).ok()
        };
        let queues = rings.iter().enumerate().map(queue).collect();
        if self.world.parks.load(Ordering::SeqCst) {
            loop {
                std::thread::park();
            }
        }
        let mut running = self.rings.lock();
        (running.queues, running.memory) = (queues, memory.clone());
        if !self.life.dead.load(Ordering::SeqCst) {
            running.work();
            drop(running);
            *self.world.rings.lock() = Some(self.rings.clone());
        }
    }

    fn stop(&mut self) {
        for mut queue in self.rings.lock().queues.drain(..).flatten() {
            let next = queue.next;
            queue.leave(next);
        }
    }

    fn gone(&mut self) {
        self.records = records();
    }

    fn survival(&mut self) -> Option<&mut dyn VhostSurvives> {
        self.world.survives.load(Ordering::SeqCst).then_some(self as &mut dyn VhostSurvives)
    }
}

impl VhostSurvives for Toy {
    fn files(&self) -> Vec<(&'static str, OwnedFd)> {
        vec![("records", self.records.1.try_clone().unwrap())]
    }

    fn adopt(&mut self, found: &mut Found) -> Result<(), String> {
        if self.world.refuses.load(Ordering::SeqCst) {
            return Err("as the test asked".to_owned());
        }
        let file = found.take("records").ok_or("no records")?;
        if rustix::fs::fstat(&file).unwrap().st_size < RECORDS as i64 {
            return Err("short records".to_owned());
        }
        let window = Window::over_file(&file, RECORDS).map_err(|error| error.to_string())?;
        self.records = (Arc::new(window), file);
        Ok(())
    }

    fn abandon(&mut self) {
        self.world.abandoned.fetch_add(1, Ordering::SeqCst);
        self.records = records();
    }

    fn record(&self, ring: usize, _: u16) -> Option<Record> {
        Record::new(&self.records.0, ring, SIZE)
    }
}

impl World {
    fn new(fate: Fate) -> Arc<World> {
        World::with(fate, None)
    }

    fn with(fate: Fate, permits: Option<Receiver<()>>) -> Arc<World> {
        Arc::new(World {
            shelf: Mutex::default(),
            fate: Mutex::new(fate),
            events: AtomicU32::new(0),
            deaths: AtomicU32::new(0),
            rings: Mutex::default(),
            runs: Mutex::default(),
            faults: AtomicU32::new(0),
            abandoned: AtomicU32::new(0),
            refuses: AtomicBool::new(false),
            survives: AtomicBool::new(true),
            parks: AtomicBool::new(false),
            stats: Arc::default(),
            permits: permits.map(Mutex::new),
        })
    }

    /// What the next daemon finds.
    fn found(&self) -> Found {
        let shelf = self.shelf.lock();
        let copies = shelf.iter().map(|(name, fd)| (name.clone(), fd.try_clone().expect("one more")));
        let mut found = Found(copies.collect());
        found.scope("vm.vsock").scope("s")
    }

    fn names(&self) -> Vec<String> {
        self.shelf.lock().keys().cloned().collect()
    }

    /// The life of one daemon, up to the end of the session: why it ended.
    fn live(self: &Arc<World>, stream: Option<UnixStream>) -> String {
        let (serves, dead) = (AtomicBool::new(false), AtomicBool::new(false));
        let life = Arc::new(Life { world: self.clone(), serves, dead });
        let lines = Arc::new(RingLines::new(2).unwrap());
        let mut device = Toy::new(&life, &lines);
        let scope = Scope::new(Arc::new(Held(life.clone())), "vm.vsock");
        let stats = self.stats.clone();
        let work = || {
            let session = match stream {
                Some(stream) => Session::new(stream, &mut device, lines, stats, &scope).unwrap(),
                None => {
                    let found = self.found();
                    let prepared = Prepared::from(found, &scope, &mut device, &lines, &stats);
                    let Some(prepared) = prepared else { return "not resumed".to_owned() };
                    Session::resume(prepared, &mut device, lines, stats)
                }
            };
            life.serves.store(true, Ordering::SeqCst);
            session.run().to_string()
        };
        with_subscriber(Watch(life.clone()), work)
    }

    /// One daemon after the other, up to the end of the session.
    fn serve(self: &Arc<World>, stream: UnixStream) -> JoinHandle<String> {
        let world = self.clone();
        std::thread::spawn(move || {
            let mut stream = Some(stream);
            loop {
                let stream = stream.take();
                match catch_unwind(AssertUnwindSafe(|| world.live(stream))) {
                    Ok(end) => return end,
                    Err(panic) if panic.is::<Killed>() => {}
                    Err(panic) => resume_unwind(panic),
                }
                world.permits.as_ref().into_iter().for_each(|permits| permits.lock().recv().unwrap());
            }
        })
    }

    fn work(&self) {
        let rings = self.rings.lock().clone();
        rings.into_iter().for_each(|rings| rings.lock().work());
    }
}

/// A front end that repeats one program, and what it was answered.
struct Vmm {
    world: Arc<World>,
    front: Front,
    ram: Arc<Ram>,
    rings: [DriverRing; 2],
    features: u64,
    /// With REPLY_ACK.
    acknowledged: bool,
    kicks: [OwnedFd; 2],
    calls: Vec<OwnedFd>,
    errors: Vec<OwnedFd>,
    answers: Vec<(u32, Vec<u8>)>,
    positions: [u32; 2],
}

impl Vmm {
    fn new(world: &Arc<World>, packed: bool, acknowledged: bool) -> Vmm {
        let (ours, theirs) = UnixStream::pair().unwrap();
        Vmm::over(world, packed, acknowledged, ours, world.serve(theirs))
    }

    fn over(
        world: &Arc<World>,
        packed: bool,
        acknowledged: bool,
        ours: UnixStream,
        session: JoinHandle<String>,
    ) -> Vmm {
        ours.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let lines = Arc::new(RingLines::new(2).unwrap());
        let (journal, stats) = (Arc::default(), world.stats.clone());
        let front = Front { socket: ours, journal, lines, stats, session };
        let ram = Arc::new(Ram::new(1 << 20));
        let rings = [0, 1].map(|_| DriverRing::new(&ram, SIZE, packed));
        let features = feature::VERSION_1 | if packed { feature::PACKED } else { 0 };
        let kicks = [0, 1].map(|_| eventfd().unwrap());
        let begin = if packed { 0x8000_8000 } else { 0 };
        Vmm {
            world: world.clone(),
            front,
            ram,
            rings,
            features,
            acknowledged,
            kicks,
            calls: Vec::new(),
            errors: Vec::new(),
            answers: Vec::new(),
            positions: [begin; 2],
        }
    }

    fn packed(&self) -> bool {
        self.features & feature::PACKED != 0
    }

    fn send_request(&mut self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.front.send_request(code, payload, fds);
    }

    fn get(&mut self, code: u32, payload: &[u8]) -> Vec<u8> {
        self.front.send_request(code, payload, &[]);
        self.answers.push((code, self.front.reply(code)));
        self.answers.last().unwrap().1.clone()
    }

    /// Acknowledged, if that was agreed on.
    fn ask(&mut self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.front.message(code, payload, fds, true);
        if self.acknowledged {
            self.answers.push((code, self.front.reply(code)));
        }
    }

    /// What QEMU sends once.
    fn greet(&mut self, questions: &UnixStream) {
        self.get(request::GET_FEATURES, &[]);
        self.get(request::GET_PROTOCOL_FEATURES, &[]);
        let acks = if self.acknowledged { protocol::REPLY_ACK } else { 0 };
        let common = protocol::MULTI_QUEUE
            | protocol::BACKEND_REQ
            | protocol::CONFIG
            | protocol::STATUS
            | protocol::RESET_DEVICE
            | protocol::CONFIGURE_MEM_SLOTS;
        self.send_request(request::SET_PROTOCOL_FEATURES, (common | acks).as_bytes(), &[]);
        self.get(request::GET_QUEUE_NUM, &[]);
        self.get(request::GET_MAX_MEM_SLOTS, &[]);
        self.ask(request::SET_BACKEND_REQ_FD, &[], &[questions.as_fd()]);
        self.send_request(request::SET_OWNER, &[], &[]);
        self.get(request::GET_FEATURES, &[]);
        for ring in 0..2 {
            self.call(ring);
            let error = eventfd().unwrap();
            self.send_request(request::SET_VRING_ERR, u64::from(ring).as_bytes(), &[error.as_fd()]);
            self.errors.push(error);
        }
        self.get(request::GET_CONFIG, &[&[0; 4][..], &8u32.to_le_bytes(), &[0; 12]].concat());
    }

    fn call(&mut self, ring: u32) {
        let call = eventfd().unwrap();
        self.send_request(request::SET_VRING_CALL, u64::from(ring).as_bytes(), &[call.as_fd()]);
        self.calls.push(call);
    }

    fn region(&self, number: usize) -> MemoryRegion {
        let (guest, len, offset) = self.ram.regions()[number];
        region(guest, len, USER + guest, offset)
    }

    fn one_region(&self, number: usize) -> Vec<u8> {
        [&[0; 8][..], self.region(number).as_bytes()].concat()
    }

    fn add_memory(&mut self, number: usize) {
        let (one, ram) = (self.one_region(number), self.ram.clone());
        self.ask(request::ADD_MEM_REG, &one, &[ram.fd().as_fd()]);
    }

    fn address(&self, ring: u32) -> RingAddress {
        let setup = self.rings[ring as usize].setup();
        RingAddress {
            index: ring.into(),
            flags: 0.into(),
            descriptors: (USER + setup.descriptors).into(),
            used: (USER + setup.device).into(),
            available: (USER + setup.driver).into(),
            log: 0.into(),
        }
    }

    fn set_up_rings(&mut self) {
        for ring in 0..2 {
            let position = self.positions[ring as usize];
            self.send_request(request::SET_VRING_NUM, state(ring, SIZE.into()).as_bytes(), &[]);
            self.send_request(request::SET_VRING_BASE, state(ring, position).as_bytes(), &[]);
            let address = self.address(ring);
            self.send_request(request::SET_VRING_ADDR, address.as_bytes(), &[]);
            let kick = self.kicks[ring as usize].try_clone().unwrap();
            self.send_request(request::SET_VRING_KICK, u64::from(ring).as_bytes(), &[kick.as_fd()]);
        }
    }

    fn enable(&mut self, on: bool) {
        for ring in 0..2 {
            self.ask(request::SET_VRING_ENABLE, state(ring, on.into()).as_bytes(), &[]);
        }
    }

    /// A driver begins, or `cont`.
    fn start(&mut self) {
        (0..2).for_each(|ring| self.call(ring));
        let features = self.features | feature::PROTOCOL_FEATURES;
        self.send_request(request::SET_FEATURES, features.as_bytes(), &[]);
        self.set_up_rings();
        self.enable(true);
        (0..2).for_each(|ring| self.call(ring));
    }

    /// As `stop` of QEMU 11.1 does.
    fn stop(&mut self) {
        self.enable(false);
        for ring in 0..2 {
            let answer = self.get(request::GET_VRING_BASE, state(ring, 0).as_bytes());
            self.positions[ring as usize] = (number(&answer) >> 32) as u32;
        }
    }

    /// Chains in both rings, each completed once and in order. `at`: where their bytes are.
    fn traffic(&mut self, at: u64) {
        let posted = self.post(at);
        self.complete(posted);
    }

    fn post(&mut self, at: u64) -> [Vec<u16>; 2] {
        self.kicks.iter().for_each(|kick| assert!(rustix::io::write(kick, &1u64.to_ne_bytes()).is_ok()));
        self.rings.each_mut().map(|ring| (0..3).map(|_| ring.post(&[out(at, 100)])).collect())
    }

    fn complete(&mut self, posted: [Vec<u16>; 2]) {
        for (ring, posted) in self.rings.iter_mut().zip(posted) {
            let mut completed = Vec::new();
            wait_until("chains to be completed", || {
                self.world.work();
                completed.extend(std::iter::from_fn(|| ring.take()).map(|(id, _)| id));
                completed.len() >= posted.len()
            });
            assert_eq!(completed, posted);
        }
        assert_eq!(self.world.faults.load(Ordering::SeqCst), 0);
    }

    /// Both rings anew, at their beginning.
    fn new_driver(&mut self) {
        self.rings = [0, 1].map(|_| DriverRing::new(&self.ram, SIZE, self.packed()));
        self.positions = [if self.packed() { 0x8000_8000 } else { 0 }; 2];
    }

    /// All that is held is what is needed: the names, once nothing is under way.
    fn names(&mut self) -> Vec<String> {
        self.get(request::GET_QUEUE_NUM, &[]);
        wait_until("descriptors of requests to be dropped", || {
            self.world.names().iter().all(|name| !name.contains("/s/in."))
        });
        self.world.names()
    }
}

/// What of a run may not depend on who died.
type Outcome = (Vec<(u32, Vec<u8>)>, Vec<Vec<String>>, String);

/// Set-up in QEMU's order, `stop` and `cont`, memory that comes and goes, `system_reset`, a log of dirty
/// pages.
fn qemu(mut vmm: Vmm) -> Outcome {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let (high, low) = (vmm.rings[0].alloc(100), vmm.ram.regions()[0].0);
    vmm.greet(&theirs);
    drop(theirs);
    vmm.add_memory(1);
    vmm.start();
    vmm.traffic(high);
    let mut names = vec![vmm.names()];
    vmm.stop();
    names.push(vmm.names());
    vmm.start();
    vmm.traffic(high);
    vmm.add_memory(0);
    vmm.get(request::GET_STATUS, &[]);
    vmm.traffic(low);
    let one = vmm.one_region(0);
    vmm.ask(request::REM_MEM_REG, &one, &[]);
    vmm.traffic(high);
    names.push(vmm.names());
    let log = memfd("log", 8192).unwrap();
    vmm.front.send_request(request::SET_LOG_BASE, &[4096u64.to_le_bytes(), [0; 8]].concat(), &[log.as_fd()]);
    let answer = vmm.front.reply(request::SET_LOG_BASE);
    vmm.answers.push((request::SET_LOG_BASE, answer));
    let area = [&8192u64.to_le_bytes()[..], &[0; 8], &2u16.to_le_bytes(), &16u16.to_le_bytes()].concat();
    vmm.ask(request::SET_INFLIGHT_FD, &area, &[log.as_fd()]);
    vmm.traffic(high);
    names.push(vmm.names());
    vmm.stop();
    vmm.send_request(request::RESET_DEVICE, &[], &[]);
    vmm.send_request(request::SET_STATUS, 8u64.as_bytes(), &[]);
    vmm.get(request::GET_STATUS, &[]);
    vmm.new_driver();
    vmm.start();
    vmm.traffic(high);
    vmm.send_request(request::SET_OWNER, &[], &[log.as_fd()]);
    vmm.send_request(9999, &[], &[]);
    names.push(vmm.names());
    ours.set_nonblocking(true).unwrap();
    assert_eq!(ours.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    finish(vmm, names)
}

/// User Mode Linux: calls by socket, all memory at once and again, rings that are disabled and never stopped.
fn user_mode_linux(mut vmm: Vmm) -> Outcome {
    let high = vmm.rings[0].alloc(100);
    vmm.send_request(request::SET_OWNER, &[], &[]);
    vmm.get(request::GET_FEATURES, &[]);
    vmm.get(request::GET_PROTOCOL_FEATURES, &[]);
    let acks = if vmm.acknowledged { protocol::REPLY_ACK } else { 0 };
    vmm.send_request(request::SET_PROTOCOL_FEATURES, (acks | protocol::CONFIG).as_bytes(), &[]);
    let features = vmm.features | feature::PROTOCOL_FEATURES;
    vmm.ask(request::SET_FEATURES, features.as_bytes(), &[]);
    let mut names = Vec::new();
    for _ in 0..3 {
        let regions = [vmm.region(0), vmm.region(1)];
        let table = [&2u32.to_le_bytes()[..], &[0; 4], regions.as_bytes()].concat();
        let ram = vmm.ram.clone();
        vmm.ask(request::SET_MEM_TABLE, &table, &[ram.fd().as_fd(); 2]);
        let (_peer, call) = UnixStream::pair().unwrap();
        for ring in 0..2u64 {
            vmm.ask(request::SET_VRING_CALL, ring.as_bytes(), &[call.as_fd()]);
        }
        vmm.set_up_rings();
        vmm.enable(true);
        vmm.traffic(high);
        names.push(vmm.names());
        vmm.enable(false);
        vmm.new_driver();
    }
    finish(vmm, names)
}

fn finish(vmm: Vmm, names: Vec<Vec<String>>) -> Outcome {
    let Vmm { world, front, answers, .. } = vmm;
    let end = front.close();
    assert!(world.names().is_empty(), "nothing is held any more: {:?}", world.names());
    assert!(world.stats.panics() <= world.deaths.load(Ordering::SeqCst).into());
    assert_eq!(world.abandoned.load(Ordering::SeqCst), 0);
    (answers, names, end)
}

/// Kills before each event: once each in one session, or once in a session for each.
#[test]
fn a_front_end_does_not_notice_that_its_daemon_dies() {
    type Program = fn(Vmm) -> Outcome;
    for program in [qemu as Program, user_mode_linux] {
        for (packed, acknowledged) in [(false, true), (false, false), (true, true)] {
            let run = |fate| {
                let world = World::new(fate);
                let outcome = program(Vmm::new(&world, packed, acknowledged));
                (outcome, world.events.load(Ordering::SeqCst), world.deaths.load(Ordering::SeqCst))
            };
            let (expected, events, _) = run(Fate::Lives);
            assert_eq!(expected.2, "the peer closed the connection");
            let (outcome, _, deaths) = run(Fate::Each(HashSet::new()));
            assert_eq!(outcome, expected);
            assert!(deaths > events / 2, "{deaths} of {events}");
            for at in (0..events as usize).step_by(if packed { 7 } else { 3 }) {
                let (outcome, _, deaths) = run(Fate::At(at));
                assert_eq!((outcome, deaths), (expected.clone(), 1), "killed at event {at}");
            }
        }
    }
}

/// A front end whose rings run, and whose daemon dies when it receives the next request; the next one waits
/// for a permit.
fn about_to_die(packed: bool) -> (Vmm, Sender<()>) {
    let (permit, permits) = channel();
    let world = World::with(Fate::Lives, Some(permits));
    let mut vmm = Vmm::new(&world, packed, true);
    let (_ours, theirs) = UnixStream::pair().unwrap();
    vmm.greet(&theirs);
    vmm.add_memory(1);
    vmm.start();
    let high = vmm.rings[0].alloc(100);
    vmm.traffic(high);
    vmm.names();
    (vmm, permit)
}

impl World {
    fn doom(&self) {
        *self.fate.lock() = Fate::Next;
    }

    fn await_deaths(&self, deaths: u32) {
        wait_until("the daemon to die", || self.deaths.load(Ordering::SeqCst) == deaths);
    }
}

/// The daemon dies; what it leaves is changed; the next one answers, if it can.
fn die(vmm: &mut Vmm, permit: &Sender<()>, change: impl FnOnce(&mut BTreeMap<String, OwnedFd>)) {
    let deaths = vmm.world.deaths.load(Ordering::SeqCst);
    vmm.world.doom();
    vmm.send_request(request::GET_QUEUE_NUM, &[], &[]);
    vmm.world.await_deaths(deaths + 1);
    change(&mut vmm.world.shelf.lock());
    permit.send(()).unwrap();
}

/// The chains lie in memory whose request waits in the socket, as another one does that no one answers.
#[test]
fn rings_run_once_all_requests_that_waited_are_carried_out() {
    let (mut vmm, permit) = about_to_die(false);
    let low = vmm.ram.regions()[0].0;
    vmm.world.doom();
    vmm.send_request(request::SET_OWNER, &[], &[]);
    vmm.world.await_deaths(1);
    let (one, ram) = (vmm.one_region(0), vmm.ram.clone());
    vmm.send_request(request::SET_OWNER, &[], &[]);
    vmm.send_request(request::ADD_MEM_REG, &one, &[ram.fd().as_fd()]);
    let posted = vmm.post(low);
    permit.send(()).unwrap();
    vmm.complete(posted);
    vmm.traffic(low);
}

/// A call may have been lost, and a kick was received by the daemon that died.
#[test]
fn every_guest_is_interrupted_and_every_ring_is_polled_after_a_death() {
    let (mut vmm, permit) = about_to_die(true);
    let kicked = |vmm: &Vmm| {
        let lines = vmm.world.rings.lock().as_ref().unwrap().lock().lines.clone();
        let mut files = [rustix::event::PollFd::from_borrowed_fd(
            lines.doorbell().unwrap(),
            rustix::event::PollFlags::IN,
        )];
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let kicked = rustix::event::poll(&mut files, Some(&at_once)).unwrap() == 1;
        lines.clear();
        kicked
    };
    assert!(kicked(&vmm) && !kicked(&vmm));
    vmm.calls.iter().for_each(|call| _ = signals(call));
    die(&mut vmm, &permit, |_| ());
    vmm.front.reply(request::GET_QUEUE_NUM);
    wait_until("rings to run", || vmm.world.rings.lock().is_some());
    let [.., first, second] = &vmm.calls[..] else { panic!("the last calls") };
    wait_until("calls", || signals(first) == 1);
    wait_until("calls", || signals(second) == 1);
    assert!(kicked(&vmm) && !kicked(&vmm));
    let high = vmm.rings[0].alloc(100);
    vmm.traffic(high);
}

/// Only rings that ran before the death are reported as resumed, and once.
#[test]
fn a_driver_that_begins_is_not_taken_for_one_that_goes_on() {
    let last = |vmm: &Vmm| *vmm.world.runs.lock().last().unwrap();
    let (mut vmm, permit) = about_to_die(false);
    assert_eq!(last(&vmm), ([true; 2], false));
    die(&mut vmm, &permit, |_| ());
    vmm.front.reply(request::GET_QUEUE_NUM);
    wait_until("rings to run", || last(&vmm) == ([true; 2], true));
    vmm.stop();
    vmm.start();
    vmm.names();
    assert_eq!(last(&vmm), ([true; 2], false));
    vmm.stop();
    vmm.new_driver();
    vmm.set_up_rings();
    vmm.names();
    vmm.world.runs.lock().clear();
    die(&mut vmm, &permit, |_| ());
    vmm.front.reply(request::GET_QUEUE_NUM);
    vmm.enable(true);
    wait_until("rings to run", || vmm.world.runs.lock().last().is_some_and(|(rings, _)| *rings == [true; 2]));
    assert!(vmm.world.runs.lock().iter().all(|(_, resumed)| !resumed));
}

/// A VM is paused (its rings are disabled, and not stopped) while one daemon dies after the other: what a
/// daemon records of rings that it has not run yet is not taken for rings that have never run.
#[test]
fn rings_that_are_paused_are_resumed_however_many_daemons_die() {
    let (mut vmm, permit) = about_to_die(false);
    vmm.enable(false);
    for deaths in 1..=3 {
        vmm.names();
        vmm.world.runs.lock().clear();
        die(&mut vmm, &permit, |_| ());
        vmm.front.reply(request::GET_QUEUE_NUM);
        wait_until("the next daemon", || !vmm.world.runs.lock().is_empty());
        assert_eq!(vmm.world.runs.lock()[0], ([false; 2], true), "after {deaths} deaths");
        vmm.enable(false);
    }
    vmm.enable(true);
    let high = vmm.rings[0].alloc(100);
    vmm.traffic(high);
}

#[test]
fn messages_in_pieces_are_understood() {
    let (mut vmm, _permit) = about_to_die(false);
    let pause = || std::thread::sleep(Duration::from_millis(20));
    for cut in [1, 11, 12, 13] {
        let one = vmm.one_region(0);
        for (code, fds) in [(request::ADD_MEM_REG, 1), (request::REM_MEM_REG, 0)] {
            let header = vmlane_wire::vhost_user::Header::request(code, one.len(), true);
            let bytes = [header.as_bytes(), &one].concat();
            let ram = vmm.ram.clone();
            vmm.front.send(&bytes[..cut], &[ram.fd().as_fd()][..fds]);
            pause();
            vmm.front.send(&bytes[cut..], &[]);
            assert_eq!(number(&vmm.front.reply(code)), 0, "cut at {cut}");
            let names = vmm.names();
            assert_eq!(names.iter().any(|name| name.contains("s/mem.100000.")), fds == 1, "{names:?}");
        }
    }
    let high = vmm.rings[0].alloc(100);
    vmm.traffic(high);
}

#[test]
fn nothing_is_held_of_a_device_that_does_not_survive() {
    let run = |survives: bool| {
        let world = World::new(Fate::Lives);
        world.survives.store(survives, Ordering::SeqCst);
        qemu(Vmm::new(&world, false, true))
    };
    let (answers, names, end) = run(false);
    assert!(names.iter().all(Vec::is_empty), "{names:?}");
    let expected = run(true);
    assert!(expected.1.iter().all(|names| names.len() > 8));
    assert_eq!((answers, end), (expected.0, expected.2));
}

type Shelf = BTreeMap<String, OwnedFd>;

fn name(name: &str) -> String {
    format!("vm.vsock/s/{name}")
}

fn remove(what: &'static str) -> impl Fn(&mut Shelf) {
    move |shelf| assert!(shelf.remove(&name(what)).is_some(), "{what}")
}

fn cut(what: &'static str, len: u64) -> impl Fn(&mut Shelf) {
    move |shelf| drop(shelf.insert(name(what), memfd("cut", len).unwrap()))
}

fn write(what: &'static str, at: u64, bytes: &'static [u8]) -> impl Fn(&mut Shelf) {
    move |shelf| {
        let file = std::fs::File::from(shelf[&name(what)].try_clone().unwrap());
        file.write_all_at(bytes, at).unwrap();
    }
}

/// A journal with records that cannot be.
fn forge(records: &'static [(Key, &'static [u8])]) -> impl Fn(&mut Shelf) {
    move |shelf| {
        let log = Journal::create("forged", 3, 4 << 20).unwrap();
        records.iter().for_each(|(key, record)| log.write(*key, record));
        shelf.insert(name("log"), log.file().try_clone().unwrap());
    }
}

const MEMORY: &str = "mem.100000000.80000.80000.rw";

/// Kinds of damage that a session outlives, and whether its device begins anew.
#[test]
fn a_session_goes_on_with_what_is_left() {
    let invalid = |shelf: &mut Shelf| {
        for what in ["mem.1.2.3.rw", "mem.", "kick.7", "call.", "in.0.0", "file.", "other"] {
            shelf.insert(name(what), memfd("invalid", 4096).unwrap());
        }
    };
    type Damage = Box<dyn Fn(&mut Shelf)>;
    let cases: [(&str, u32, Damage); 10] = [
        ("none", 0, Box::new(|_| ())),
        ("no message file", 0, Box::new(remove("mail"))),
        ("a message file of another version", 0, Box::new(write("mail", 8, &[77]))),
        ("a message file cut short", 0, Box::new(cut("mail", 100))),
        ("a wild cursor", 0, Box::new(write("mail", 16, &[0xff; 8]))),
        ("invalid names", 0, Box::new(invalid)),
        ("no record of rings", 1, Box::new(remove("file.records"))),
        ("a short record of rings", 1, Box::new(cut("file.records", 16))),
        ("a line that is none", 0, Box::new(cut("err.0", 16))),
        ("no socket for questions", 0, Box::new(remove("back"))),
    ];
    for (what, abandoned, damage) in cases {
        let (mut vmm, permit) = about_to_die(false);
        let before = vmm.names();
        die(&mut vmm, &permit, damage);
        vmm.front.reply(request::GET_QUEUE_NUM);
        let high = vmm.rings[0].alloc(100);
        vmm.traffic(high);
        assert_eq!(vmm.world.abandoned.load(Ordering::SeqCst), abandoned, "{what}");
        // What had to be replaced is held anew: the next one finds all of it.
        die(&mut vmm, &permit, |_| ());
        vmm.front.reply(request::GET_QUEUE_NUM);
        vmm.traffic(high);
        assert_eq!(vmm.world.abandoned.load(Ordering::SeqCst), abandoned, "{what}: once");
        vmm.stop();
        vmm.start();
        vmm.traffic(high);
        let mut names = vmm.names();
        names.retain(|name| !name.contains("/s/in.") && !name.ends_with("file."));
        assert!(
            before.iter().filter(|name| !name.ends_with("back")).all(|name| names.contains(name)),
            "{what}"
        );
        assert!(names.iter().all(|name| before.contains(name)), "{what}: {names:?}");
        assert_eq!(vmm.front.close(), "the peer closed the connection", "{what}");
        assert_eq!(vmm.world.stats.panics(), 0);
    }
}

/// No one knows how far its device came.
#[test]
fn a_packed_ring_without_its_record_breaks() {
    let (mut vmm, permit) = about_to_die(true);
    vmm.world.refuses.store(true, Ordering::SeqCst);
    die(&mut vmm, &permit, |_| ());
    vmm.front.reply(request::GET_QUEUE_NUM);
    vmm.errors.iter().for_each(|error| wait_until("an error", || signals(error) == 1));
    vmm.stop();
    vmm.new_driver();
    vmm.start();
    let high = vmm.rings[0].alloc(100);
    vmm.traffic(high);
    assert_eq!(vmm.world.abandoned.load(Ordering::SeqCst), 1);
}

/// A guest that has lost its memory keeps its session, and its rings do not run.
#[test]
fn memory_that_is_lost_is_not_there() {
    for damage in [Box::new(remove(MEMORY)) as Box<dyn Fn(&mut Shelf)>, Box::new(cut(MEMORY, 4096))] {
        let (mut vmm, permit) = about_to_die(false);
        die(&mut vmm, &permit, damage);
        vmm.front.reply(request::GET_QUEUE_NUM);
        wait_until("a run", || *vmm.world.runs.lock().last().unwrap() == ([false; 2], true));
        vmm.names();
        assert_eq!(vmm.front.close(), "the peer closed the connection");
    }
}

/// A session that has lost what was agreed on ends, as without a next daemon.
#[test]
fn a_session_without_its_settings_ends() {
    const SETTINGS: Key = (2, 0, 0);
    const RING: Key = (4, 0, 0);
    type Damage = Box<dyn Fn(&mut Shelf)>;
    let cases: Vec<(&str, Damage)> = vec![
        ("no log", Box::new(remove("log"))),
        ("a log of another version", Box::new(write("log", 8, &[77]))),
        ("another protocol's log", Box::new(write("log", 12, &[1]))),
        ("a log cut short", Box::new(cut("log", 4096))),
        ("an empty log", Box::new(cut("log", 0))),
        ("short settings", Box::new(forge(&[(SETTINGS, &[0; 10])]))),
        ("features that are not on offer", Box::new(forge(&[(SETTINGS, &[0xff; 25])]))),
        ("half a region", Box::new(forge(&[((3, 0, 0), &[0; 31])]))),
        ("a short ring", Box::new(forge(&[(RING, &[0; 3])]))),
        ("a ring that is too large", Box::new(forge(&[(RING, &[0xff; 15])]))),
        ("a ring too many", Box::new(forge(&[((4, 2, 0), &[0; 15])]))),
        ("no such ring", Box::new(forge(&[((4, u64::MAX, 0), &[0; 15])]))),
    ];
    for (what, damage) in cases {
        let (mut vmm, permit) = about_to_die(false);
        die(&mut vmm, &permit, damage);
        assert_eq!(vmm.front.socket.read(&mut [0; 8]).unwrap_or(0), 0, "{what}");
        assert_eq!(vmm.front.close(), "not resumed", "{what}");
        assert!(vmm.world.names().is_empty(), "{what}: {:?}", vmm.world.names());
        assert_eq!(vmm.world.abandoned.load(Ordering::SeqCst), 0, "{what}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes anywhere in the message file and the log, and records of any kind: the next daemon answers, or
    /// ends the session; it never panics.
    #[test]
    fn forgeries_end_a_session_at_most(
        scribbles in proptest::collection::vec(
            (0u8..3, 0u64..6000, proptest::collection::vec(any::<u8>(), 1..48)), 1..5),
    ) {
        let (mut vmm, permit) = about_to_die(false);
        die(&mut vmm, &permit, |shelf| {
            for what in ["in.", "in.x.y", "in.18446744073709551615.0", "in.0.18446744073709551616"] {
                shelf.insert(name(what), memfd("invalid", 4096).unwrap());
            }
            for (what, at, bytes) in &scribbles {
                if *what == 2 {
                    let log = shelf[&name("log")].try_clone().unwrap();
                    if let Ok((log, _)) = Journal::open(log, 3, 4 << 20) {
                        log.write(((at % 6) as u32, at % 3, 0), bytes);
                    }
                    continue;
                }
                let file = shelf[&name(["mail", "log"][usize::from(*what)])].try_clone().unwrap();
                std::fs::File::from(file).write_all_at(bytes, *at).unwrap();
            }
        });
        vmm.front.socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let _ = vmm.front.socket.read(&mut [0; 64]);
        let Vmm { front, world, .. } = vmm;
        drop(front.socket);
        prop_assert!(front.session.join().is_ok());
        prop_assert_eq!(world.stats.panics(), 0);
    }
}

/// The whole way, with either end of the socket: two daemons, and a front end that stays connected.
#[test]
fn a_socket_changes_hands_no_matter_who_listens() {
    for calls in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vsock.sock");
        let world = World::new(Fate::Lives);
        let theirs = calls.then(|| UnixListener::bind(&path).unwrap());
        let serve = |end: VhostEnd| {
            let (serves, dead) = (AtomicBool::new(false), AtomicBool::new(false));
            let life = Arc::new(Life { world: world.clone(), serves, dead });
            let lines = Arc::new(RingLines::new(2).unwrap());
            let mut device = Box::new(Toy::new(&life, &lines));
            let scope = Scope::new(Arc::new(Held(life)), "vm.vsock");
            let stats = world.stats.clone();
            let prepared = Prepared::from(world.found(), &scope, &mut *device, &lines, &stats);
            end.serve_on("vm/vsock", device, lines, stats, scope, prepared).unwrap()
        };
        let (listener, socket) = match calls {
            true => (VhostEnd::Calls(Caller::new(&path).unwrap()), None),
            false => {
                let listener = Listener::bind(&path).unwrap();
                let socket = listener.socket().try_clone().unwrap();
                (VhostEnd::Listens(listener), Some(socket))
            }
        };
        let first = serve(listener);
        let connection = match &theirs {
            Some(theirs) => theirs.accept().unwrap().0,
            None => UnixStream::connect(&path).unwrap(),
        };
        let mut vmm = Vmm::over(&world, false, true, connection, std::thread::spawn(String::new));
        let (_ours, questions) = UnixStream::pair().unwrap();
        vmm.greet(&questions);
        vmm.add_memory(1);
        vmm.start();
        let high = vmm.rings[0].alloc(100);
        vmm.traffic(high);
        world.parks.store(true, Ordering::SeqCst);
        vmm.send_request(request::SET_VRING_ENABLE, state(0, 0).as_bytes(), &[]);
        wait_until("the rings to stop", || world.rings.lock().as_ref().unwrap().lock().queues.is_empty());
        *world.rings.lock() = None;
        // Dead: its session does nothing any more.
        first.leave();
        let end = match socket {
            Some(socket) => VhostEnd::Listens(Listener::adopt(&path, socket).unwrap()),
            None => VhostEnd::Calls(Caller::new(&path).unwrap()),
        };
        let second = serve(end);
        world.parks.store(false, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!second.connected() && world.rings.lock().is_none(), "held until the others are ready");
        second.go();
        vmm.enable(true);
        vmm.traffic(high);
        assert!(second.connected());
        if let Some(theirs) = theirs {
            theirs.set_nonblocking(true).unwrap();
            assert!(theirs.accept().is_err(), "a second connection");
        }
        second.stop();
        assert!(world.names().is_empty());
    }
}
