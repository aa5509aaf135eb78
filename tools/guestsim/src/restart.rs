//! A daemon that dies under its guests, and the ones after it: what is in shared files and in guest memory
//! goes on, everything else is gone.
//!
//! A guest's register access is served as a session serves it (`transport/vfio_user.rs`): carried out,
//! recorded, committed, answered. An access that finds no daemon waits for the next one, as a vCPU does.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Driver, Guest, Lines, Path, Ram, Registers, VmSpec};
use parking_lot::{Condvar, Mutex, MutexGuard};
use vmlane_device::pci::{Checkpoint, PciDevice, Survives};
use vmlane_device::vmci::{Hypervisor, HypervisorCheckpoint, VmView, VmciDevice};
use vmlane_mem::memfd;
use vmlane_port::Streams;
use vmlane_state::{Journal, Unusable};
use vmlane_stream::{Inline, Settings, Worker, Workers};
use vmlane_vsock::Router;

pub const HYPERVISOR: u32 = 2;
pub const SESSION: u32 = 1;
pub const HALF: usize = 128 << 10;
/// A session's record: number of the last request that was carried out.
const DONE: u32 = 1;

/// At which point of a request its daemon dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It was read.
    Read,
    /// It was carried out; of that, the device's own record is missing.
    Worked,
    /// That was staged, too.
    Staged,
    /// All was recorded; the answer is missing.
    Committed,
}

impl Moment {
    pub const ALL: [Moment; 4] = [Moment::Read, Moment::Worked, Moment::Staged, Moment::Committed];
}

/// What moves the streams' bytes.
enum Engine {
    /// The caller that kicks.
    Inline(Arc<Inline>),
    Thread {
        workers: Arc<Workers>,
        dead: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    },
}

impl Engine {
    fn start(threaded: bool) -> Engine {
        if !threaded {
            return Engine::Inline(Arc::default());
        }
        let (workers, mut unstarted) = Workers::unstarted(Settings::default()).expect("an event fd");
        let mut worker: Worker = unstarted.remove(0);
        let dead = Arc::new(AtomicBool::new(false));
        let stop = dead.clone();
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) && worker.step() {
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        Engine::Thread { workers: Arc::new(workers), dead, thread: Some(thread) }
    }

    fn streams(&self) -> Arc<dyn Streams> {
        match self {
            Engine::Inline(streams) => streams.clone(),
            Engine::Thread { workers, .. } => workers.clone(),
        }
    }

    /// Stops between two rounds without telling anything.
    fn kill(&mut self) {
        if let Engine::Thread { dead, thread, .. } = self {
            dead.store(true, Ordering::SeqCst);
            if let Some(thread) = thread.take() {
                thread.join().expect("a worker that does not panic");
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Daemon {
    router: Arc<Router>,
    hypervisor: Arc<Hypervisor>,
    log: OwnedFd,
    engine: Engine,
}

struct Session {
    device: VmciDevice,
    log: Journal,
    /// Number of the last request that was carried out.
    done: u64,
}

/// What outlives daemons of one VM.
pub struct Seat {
    pub spec: VmSpec,
    pub ram: Arc<Ram>,
    pub lines: Arc<Lines>,
    world: Weak<RestartableDaemon>,
    session: Mutex<Option<Session>>,
    /// The session's file, once there is no daemon.
    left: Mutex<Option<OwnedFd>>,
    back: Condvar,
    requests: AtomicU64,
    /// Requests until the daemon dies, and at which moment of that one.
    fate: Mutex<Option<(u64, Moment)>>,
    /// The VMM is gone, too.
    gone: AtomicBool,
}

/// What later daemons find, as a test may change it.
pub struct Legacy {
    pub hypervisor: Option<OwnedFd>,
    /// Files of sessions, by CID.
    pub sessions: HashMap<u32, OwnedFd>,
}

/// How each device took over: `Err` for those that began anew.
pub type Outcome = HashMap<u32, Result<(), Unusable>>;

pub struct RestartableDaemon {
    pub seats: Vec<Arc<Seat>>,
    daemon: Mutex<Option<Daemon>>,
    threaded: bool,
    pub deaths: AtomicU64,
}

fn share(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().expect("one more descriptor")
}

/// A file as it is at this moment.
fn copy(fd: &OwnedFd) -> OwnedFd {
    let from = std::fs::File::from(share(fd));
    let len = from.metadata().expect("a file").len();
    let mut bytes = vec![0; len as usize];
    from.read_exact_at(&mut bytes, 0).expect("its bytes");
    let to = std::fs::File::from(memfd("legacy", len).expect("a file"));
    for (page, at) in bytes.chunks(4096).zip((0..).step_by(4096)) {
        // Whatever is not written is a hole.
        if *page != [0; 4096][..page.len()] {
            to.write_all_at(page, at).expect("to be written");
        }
    }
    to.into()
}

impl RestartableDaemon {
    /// VMs whose bytes are moved by the caller that kicks: nothing happens by itself.
    pub fn new(specs: Vec<VmSpec>) -> Arc<RestartableDaemon> {
        RestartableDaemon::with(specs, false)
    }

    /// The same with a worker that moves bytes.
    pub fn threaded(specs: Vec<VmSpec>) -> Arc<RestartableDaemon> {
        RestartableDaemon::with(specs, true)
    }

    fn with(specs: Vec<VmSpec>, threaded: bool) -> Arc<RestartableDaemon> {
        Arc::new_cyclic(|world: &Weak<RestartableDaemon>| {
            let seat = |spec| {
                Arc::new(Seat {
                    spec,
                    ram: Arc::new(Ram::new(4 << 20)),
                    lines: Lines::msix(),
                    world: world.clone(),
                    session: Mutex::default(),
                    left: Mutex::default(),
                    back: Condvar::new(),
                    requests: AtomicU64::new(0),
                    fate: Mutex::default(),
                    gone: AtomicBool::new(false),
                })
            };
            let seats: Vec<_> = specs.into_iter().map(seat).collect();
            let log = Journal::create("hypervisor", HYPERVISOR, HALF).expect("a file");
            let file = share(log.file());
            let engine = Engine::start(threaded);
            let router = Router::new(engine.streams());
            let hypervisor = Hypervisor::recorded(router.clone(), Some(log));
            for seat in &seats {
                let device = seat.device(&hypervisor);
                let log = Journal::create("session", SESSION, HALF).expect("a file");
                *seat.session.lock() = Some(Session { device, log, done: 0 });
            }
            let daemon = Some(Daemon { router, hypervisor, log: file, engine });
            RestartableDaemon { seats, daemon: Mutex::new(daemon), threaded, deaths: AtomicU64::new(0) }
        })
    }

    pub fn seat(&self, cid: u32) -> &Arc<Seat> {
        self.seats.iter().find(|seat| seat.spec.vm.cid == cid).expect("a VM of this world")
    }

    pub fn hypervisor(&self) -> Arc<Hypervisor> {
        self.daemon.lock().as_ref().expect("a daemon").hypervisor.clone()
    }

    pub fn router(&self) -> Arc<Router> {
        self.daemon.lock().as_ref().expect("a daemon").router.clone()
    }

    pub fn probe(&self, cid: u32, path: Path) -> Driver {
        let seat = self.seat(cid);
        let registers = Box::new(Access(seat.clone()));
        Driver::probe(registers, seat.ram.clone(), seat.lines.clone(), path).expect("a probe that succeeds")
    }

    pub fn boot(&self, cid: u32, path: Path) -> Arc<Guest> {
        Guest::new(self.probe(cid, path))
    }

    pub fn view(&self, cid: u32) -> VmView {
        self.hypervisor().vms().into_iter().find(|view| view.cid == cid).expect("a VM of this world")
    }

    /// A bound of a VM as its operator sees it: what is used of it.
    pub fn used(&self, cid: u32, name: &str) -> u64 {
        let view = self.view(cid);
        view.bounds.iter().find(|bound| bound.name == name).expect("a bound of this name").used
    }

    /// The daemon dies between requests and rounds.
    pub fn kill(&self) -> Legacy {
        let mut daemon = self.daemon.lock();
        let mut sessions: Vec<MutexGuard<'_, Option<Session>>> =
            self.seats.iter().map(|seat| seat.session.lock()).collect();
        let Daemon { router, hypervisor, log, mut engine } = daemon.take().expect("a daemon");
        engine.kill();
        self.deaths.fetch_add(1, Ordering::SeqCst);
        let mut files = HashMap::new();
        for (seat, session) in self.seats.iter().zip(&mut sessions) {
            let file = session.as_ref().map(|session| copy(session.log.file()));
            if let Some(file) = file.or_else(|| seat.left.lock().take()) {
                files.insert(seat.spec.vm.cid, file);
            }
        }
        let log = copy(&log);
        sessions.iter_mut().for_each(|session| drop(session.take()));
        // What these still write when they end goes to files that no daemon restores.
        drop((hypervisor, router, engine));
        Legacy { hypervisor: Some(log), sessions: files }
    }

    /// The next daemon, as `assembly.rs` and `Session::resume` bring it up.
    pub fn succeed(&self, legacy: Legacy) -> Outcome {
        let mut daemon = self.daemon.lock();
        assert!(daemon.is_none(), "a daemon runs already");
        let Legacy { hypervisor, mut sessions } = legacy;
        let opened = hypervisor.map(|file| Journal::open_in_part(file, HYPERVISOR, HALF));
        let (log, checkpoint) = match opened {
            Some(Ok((log, records, damaged))) => (log, HypervisorCheckpoint::Known { records, damaged }),
            Some(Err(_)) | None => {
                (Journal::create("hypervisor", HYPERVISOR, HALF).unwrap(), HypervisorCheckpoint::Lost)
            }
        };
        let file = share(log.file());
        let engine = Engine::start(self.threaded);
        let router = Router::new(engine.streams());
        let hypervisor = Hypervisor::recorded(router.clone(), Some(log));
        let there = || self.seats.iter().filter(|seat| !seat.gone.load(Ordering::SeqCst));
        let mut devices = Vec::new();
        for seat in &self.seats {
            devices.push(seat.device(&hypervisor));
        }
        let maps = there().map(|seat| (seat.spec.vm.cid, seat.ram.device_map())).collect();
        hypervisor.resume(checkpoint, maps);
        let mut outcome = Outcome::new();
        for (seat, mut device) in self.seats.iter().zip(devices) {
            if seat.gone.load(Ordering::SeqCst) {
                continue;
            }
            let file = sessions.remove(&seat.spec.vm.cid).ok_or(Unusable::Missing("log".into()));
            let (log, records) = match file.and_then(|file| Journal::open(file, SESSION, HALF)) {
                Ok((log, records)) => (log, Ok(records)),
                Err(error) => (Journal::create("session", SESSION, HALF).unwrap(), Err(error)),
            };
            let resumed = match &records {
                Ok(records) => device.resume(Checkpoint { records }),
                Err(_) => Err(Unusable::Missing("records".into())),
            };
            if resumed.is_err() {
                device.abandon();
            }
            let done = records.iter().flatten().find(|((kind, ..), _)| *kind == DONE);
            let done = done.map_or(0, |(_, word)| u64::from_le_bytes(word[..].try_into().unwrap()));
            outcome.insert(seat.spec.vm.cid, resumed);
            *seat.session.lock() = Some(Session { device, log, done });
            seat.back.notify_all();
        }
        *daemon = Some(Daemon { router, hypervisor, log: file, engine });
        outcome
    }

    /// Dies, and everything is restored.
    pub fn replace(&self) {
        let legacy = self.kill();
        for (cid, outcome) in self.succeed(legacy) {
            outcome.unwrap_or_else(|error| panic!("VM {cid} was not restored: {error}"));
        }
    }

    /// Its VMM goes while no daemon runs.
    pub fn lose(&self, cid: u32) {
        self.seat(cid).gone.store(true, Ordering::SeqCst);
    }
}

impl Seat {
    fn device(&self, hypervisor: &Arc<Hypervisor>) -> VmciDevice {
        let mut device = self.spec.device(hypervisor, self.lines.clone());
        device.memory(&self.ram.device_map());
        device
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// The daemon dies in this VM's request number `nth` from now on, 0 being the next, and is replaced.
    pub fn die_in(&self, nth: u64, moment: Moment) {
        *self.fate.lock() = Some((nth, moment));
    }

    /// False once the daemon has died as [`Seat::die_in`] wants it.
    pub fn is_doomed(&self) -> bool {
        self.fate.lock().is_some()
    }

    fn access<T>(&self, mut act: impl FnMut(&mut VmciDevice) -> T) -> T {
        let number = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        let fate = {
            let mut fate = self.fate.lock();
            match *fate {
                Some((0, moment)) => {
                    *fate = None;
                    Some(moment)
                }
                Some((nth, moment)) => {
                    *fate = Some((nth - 1, moment));
                    None
                }
                None => None,
            }
        };
        // The answer: it is there before the request counts as carried out.
        let mut recorded = None;
        let mut fate = fate;
        loop {
            let mut guard = self.session.lock();
            while guard.is_none() {
                self.back.wait(&mut guard);
            }
            let Session { device, log, done } = guard.as_mut().expect("a session");
            if *done == number {
                return recorded.take().expect("an answer that is recorded");
            }
            let moment = fate.take();
            let dies = |at| moment == Some(at);
            if !dies(Moment::Read) {
                device.begin(number);
                let answer = act(device);
                if !dies(Moment::Worked) {
                    log.stage((DONE, 0, 0), &number.to_le_bytes());
                    device.record(log);
                }
                if moment.is_none() || dies(Moment::Committed) {
                    log.commit();
                    if moment.is_none() {
                        return answer;
                    }
                    recorded = Some(answer);
                }
            }
            drop(guard);
            self.world.upgrade().expect("a world").replace();
        }
    }
}

/// How a seat's driver reaches whichever daemon there is.
struct Access(Arc<Seat>);

impl Registers for Access {
    fn read32(&mut self, region: usize, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.read_bytes(region, offset, &mut data);
        u32::from_le_bytes(data)
    }

    fn write32(&mut self, region: usize, offset: u64, value: u32) {
        self.write_bytes(region, offset, &value.to_le_bytes());
    }

    fn post32(&mut self, region: usize, offset: u64, value: u32) {
        let data = value.to_le_bytes();
        self.0.access(|device| device.write(region, offset, &data, true)).expect("a register");
    }

    fn write_bytes(&mut self, region: usize, offset: u64, bytes: &[u8]) {
        self.0.access(|device| device.write(region, offset, bytes, false)).expect("a register");
    }

    fn read_bytes(&mut self, region: usize, offset: u64, bytes: &mut [u8]) {
        let read = self.0.access(|device| {
            let mut data = vec![0; bytes.len()];
            device.read(region, offset, &mut data).map(|()| data)
        });
        bytes.copy_from_slice(&read.expect("a register inside its region"));
    }
}
