//! Three virtio-vsock sessions that a previous daemon left in the middle of their streams, forged, and the
//! daemon that continues them.

use std::io::Read;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vmlane_device::virtio::vsock::{Settings, VsockDevice, VsockWorkers, hold_logs, recover_all};
use vmlane_guestsim::vhost_user::Front;
use vmlane_guestsim::vsock_vm::{Name, VsockVm};
use vmlane_guestsim::{Ram, eventfd};
use vmlane_mem::memfd;
use vmlane_state::{Found, Scope, Store};
use vmlane_stream::Workers;
use vmlane_testkit::LONGEST;
use vmlane_transport::vhost_user::{Prepared, Session};
use vmlane_transport::{RingLines, SessionStats};
use vmlane_vsock::{Router, Vm};
use vmlane_wire::vhost_user::{Header, request};
use vmlane_wire::virtio::feature;
use vmlane_wire::virtio_vsock::{SHUTDOWN_SEND, STREAM};
use zerocopy::IntoBytes;

use super::held::{Held, Shelf, tamper_found};
use super::{cut, scribble, share, tamper};
use crate::Input;

const VMS: [(u32, &str); 3] = [(3, "a"), (4, "b"), (5, "c")];
/// Connections of a to b.
const STREAMS: u32 = 12;
/// Where words of a device's file are, and of a log, by parts: most are in the first ones.
const PARTS: [u64; 6] = [64, 5 << 10, 52 << 10, 1 << 20, 3 << 20, 20 << 20];
const SETTINGS: Settings = Settings { spin: Duration::ZERO, poll: false };
const STATE: &str = "file.state";
const LOG: &str = "vsock/log.0";

fn name(number: u32) -> Name {
    (1000 + number, 4, 2000)
}

/// The parts of a daemon that virtio-vsock needs.
struct Daemon {
    workers: VsockWorkers,
    _router: Arc<Router>,
}

impl Daemon {
    fn start() -> Daemon {
        let mut streams = Workers::start(vmlane_stream::Settings::default()).expect("workers");
        let ride = streams.ride().expect("an event fd");
        let router = Router::new(Arc::new(streams));
        let relays = vec![(router.clone(), ride)];
        let workers = VsockWorkers::start(SETTINGS, relays, router.vms()).expect("a worker");
        for (cid, name) in VMS {
            let vm = Vm { connections: 64, ..Vm::new(name, cid, "one") };
            router.vms().add(vm.clone()).expect("a CID of its own");
            let (home, _) = workers.add(&vm, Arc::default());
            router.set_endpoint(cid, home.with(|worker| worker.endpoint(cid)));
        }
        Daemon { workers, _router: router }
    }

    fn device(&self, cid: u32, name: &str, lines: &Arc<RingLines>) -> VsockDevice {
        let vm = Vm { connections: 64, ..Vm::new(name, cid, "one") };
        let (home, _) = self.workers.add(&vm, Arc::default());
        VsockDevice::new(cid, home, lines.clone()).expect("a device")
    }
}

fn lines() -> Arc<RingLines> {
    Arc::new(RingLines::new(VsockDevice::QUEUES).expect("lines"))
}

/// A VM whose VMM has just connected.
fn attach(cid: u32, socket: UnixStream, packed: bool) -> VsockVm {
    let ram = Arc::new(Ram::new(4 << 20));
    let rings = VsockVm::rings(&ram, packed);
    let features = feature::VERSION_1 | STREAM | if packed { feature::PACKED } else { 0 };
    let mut front = Front::over(socket, features).expect("a session");
    front.set_memory(&ram).expect("memory");
    let [rx, tx] = &rings;
    let events = [front.start(0, &rx.setup()).expect("a ring"), front.start(1, &tx.setup()).expect("a ring")];
    // Its socket stays open as long as its rings are used.
    VsockVm::over(cid, rings, events).with(front)
}

/// What their sessions left: streams that wait for credit or buffers, a half-closed one, a connect that was
/// not answered.
fn legacy(packed: bool) -> Held {
    let shelf = Arc::new(Shelf::default());
    let store: Arc<dyn Store> = shelf.clone();
    let daemon = Daemon::start();
    hold_logs(&store, daemon.workers.logs(), 0).expect("held");
    let mut vms = VMS.map(|(cid, vm)| {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let (scope, lines) = (Scope::new(store.clone(), &format!("{vm}.vsock")), lines());
        let mut device = daemon.device(cid, vm, &lines);
        std::thread::spawn(move || {
            Session::new(theirs, &mut device, lines, Arc::default(), &scope).expect("a session").run()
        });
        attach(cid, ours, packed)
    });
    // Packets of a guest that talks to several others wait outside of its ring.
    let names: Vec<Name> = (0..STREAMS).map(name).chain([(2000, 5, 2000)]).collect();
    names.iter().for_each(|name| vms[0].connect(*name));
    let deadline = Instant::now() + LONGEST;
    while !names.iter().all(|name| vms[0].ends[name].established) {
        vms.iter_mut().for_each(|vm| _ = vm.turn());
        assert!(Instant::now() < deadline, "connections of a previous daemon");
    }
    vms[0].shut_down(name(1), SHUTDOWN_SEND);
    for number in 2..STREAMS {
        vms[0].ends.get_mut(&name(number)).expect("an end").wanted = 1 << 20;
    }
    vms[0].connect(name(STREAMS));
    // b takes nothing: its buffers are not enough.
    let until = Instant::now() + Duration::from_millis(200);
    while Instant::now() < until {
        vms[0].turn();
    }
    let left = Held::of(&shelf, |name| !name.ends_with("/sock") && !is_event(name));
    // They stay as they are, for ever.
    std::mem::forget((daemon, vms));
    left
}

fn is_event(name: &str) -> bool {
    ["/kick.", "/call.", "/err."].iter().any(|event| name.contains(event))
}

/// One of the files of a device, or of its worker, changed.
fn tamper_words(file: &OwnedFd, input: &mut Input<'_>) {
    for _ in 0..=input.byte() % 4 {
        let part = PARTS[usize::from(input.byte()) % PARTS.len()];
        let at = input.number::<3>() % (part / 8) * 8;
        match input.byte() % 4 {
            0 => scribble(file, at, input),
            choice => {
                let word = [0, u64::MAX, input.number::<4>()][usize::from(choice) - 1];
                // A file may have been cut.
                let _ = share(file).write_at(&word.to_le_bytes(), at);
            }
        }
    }
}

fn tamper_all(found: &mut Found, input: &mut Input<'_>) {
    let state = |vm: usize| format!("{}.vsock/s/{STATE}", VMS[vm].1);
    let vm = usize::from(input.byte()) % VMS.len();
    match input.byte() % 12 {
        0..=3 => {
            let prefix = format!("{}.vsock/s", VMS[vm].1);
            let mut session = found.scope(&prefix);
            tamper_found(&mut session, input);
            found.0.extend(session.0.into_iter().map(|(name, fd)| (format!("{prefix}/{name}"), fd)));
        }
        4..=6 => found.0.get(&state(vm)).into_iter().for_each(|file| tamper_words(file, input)),
        7 | 8 => found.0.get(LOG).into_iter().for_each(|file| {
            // What is still there of the last transaction is valid, or part of it.
            let _ = share(file).write_at(&u64::from(input.byte()).to_le_bytes(), 16);
            tamper_words(file, input);
        }),
        9 => {
            // Of another VM's session, or of one that has ended.
            let other = if input.byte() & 1 == 0 { found.take(&state((vm + 1) % VMS.len())) } else { None };
            let other = other.unwrap_or_else(|| memfd("other", 21 << 20).expect("memory"));
            found.0.insert(state(vm), other);
        }
        10 => {
            let name = [state(vm), LOG.to_owned()][usize::from(input.byte() & 1)].clone();
            if let Some(file) = found.take(&name) {
                found.0.insert(name, cut(&file, input.number::<4>()));
            }
        }
        _ => {
            let name = format!("{}.vsock/s/log", VMS[vm].1);
            if let Some(file) = found.take(&name) {
                found.0.insert(name, tamper(file, input, |_| false));
            }
        }
    }
}

/// A session that is continued, and the next one of the same device.
struct Served {
    vmm: UnixStream,
    next: UnixStream,
    stats: Arc<SessionStats>,
    session: JoinHandle<()>,
}

fn serve(
    mut device: VsockDevice,
    lines: Arc<RingLines>,
    found: Found,
    vmm: (UnixStream, UnixStream),
) -> Served {
    let stats = Arc::new(SessionStats::default());
    let scope = Scope::none();
    let mut found = found;
    found.0.insert("sock".into(), vmm.1.into());
    let prepared = Prepared::from(found, &scope, &mut device, &lines, &stats);
    let (next, theirs) = UnixStream::pair().expect("sockets");
    let counted = stats.clone();
    let session = std::thread::spawn(move || {
        if let Some(prepared) = prepared {
            Session::resume(prepared, &mut device, lines.clone(), counted.clone()).run();
        }
        Session::new(theirs, &mut device, lines, counted, &Scope::none()).expect("a session").run();
    });
    Served { vmm: vmm.0, next, stats, session }
}

/// Whatever was left: sessions answer or end, nothing panics, and the VMs' next VMMs connect to each other.
pub fn take_over(input: &mut Input<'_>) {
    static LEGACY: OnceLock<[Held; 2]> = OnceLock::new();
    let packed = usize::from(input.byte() & 1);
    let mut found = LEGACY.get_or_init(|| [false, true].map(legacy))[packed].found();
    for (name, fd) in &mut found.0 {
        if is_event(name) {
            *fd = eventfd().expect("an event descriptor");
        }
    }
    for _ in 0..input.byte() % 6 {
        tamper_all(&mut found, input);
    }
    let daemon = Daemon::start();
    recover_all(&mut found);
    // All devices take over before any ring runs.
    let served = VMS.map(|(cid, vm)| {
        let lines = lines();
        let device = daemon.device(cid, vm, &lines);
        let left = found.scope(&format!("{vm}.vsock")).scope("s");
        serve(device, lines, left, UnixStream::pair().expect("sockets"))
    });
    for served in &served {
        asks(&served.vmm, input);
    }
    // Their rings run for a moment; then their VMMs are gone.
    let _ = daemon.workers.guests();
    std::thread::sleep(Duration::from_micros(u64::from(input.byte())));
    let next = served.map(|Served { vmm, next, stats, session }| {
        vmm.shutdown(Shutdown::Write).expect("a socket");
        vmm.set_read_timeout(None).expect("a socket");
        // Under libFuzzer no one ignores the signal that an answer to a closed socket causes.
        let drain = std::thread::spawn(move || std::io::copy(&mut &vmm, &mut std::io::sink()));
        (next, stats, session, drain)
    });
    let sockets = next.each_ref().map(|(socket, ..)| socket.try_clone().expect("one more descriptor"));
    let [to_a, to_b, _] = sockets;
    let (mut a, mut b) = (attach(3, to_a, false), attach(4, to_b, false));
    let name = (50, 4, 60);
    a.connect(name);
    a.ends.get_mut(&name).expect("an end").wanted = 1000;
    let deadline = Instant::now() + LONGEST;
    while b.ends.get(&(60, 3, 50)).is_none_or(|end| end.received < 1000) {
        a.turn();
        b.turn();
        assert!(Instant::now() < deadline, "the next VMMs' guests do not reach each other");
    }
    drop((a, b));
    for (socket, stats, session, drain) in next {
        let _ = socket.shutdown(Shutdown::Both);
        drop(socket);
        session.join().expect("no session panics");
        let _ = drain.join();
        let panics = stats.snapshot().iter().find(|(name, _)| *name == "panics").map_or(0, |row| row.1);
        assert_eq!(panics, 0);
    }
    let panics: u64 = daemon.workers.stats().map(|stats| stats.panics.get()).sum();
    assert_eq!(panics, 0, "a fault was contained");
}

/// What a VMM has sent by the time, and reads of it: it may have no session any more.
fn asks(mut vmm: &UnixStream, input: &mut Input<'_>) {
    for _ in 0..input.byte() % 4 {
        let code = [
            request::GET_FEATURES,
            request::SET_VRING_ENABLE,
            request::GET_VRING_BASE,
            request::RESET_DEVICE,
        ][usize::from(input.byte()) % 4];
        let payload = [u32::from(input.byte() % 4), u32::from(input.byte() % 2)];
        let payload = if code == request::GET_FEATURES { &[][..] } else { payload.as_bytes() };
        let header = Header::request(code, payload.len(), input.byte() & 1 == 0);
        send_to(vmm, &[header.as_bytes(), payload].concat());
    }
    let more = input.byte() % 64;
    send_to(vmm, input.bytes(more.into()));
    vmm.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket");
    let _ = vmm.read(&mut [0; 64]);
}

/// It may be closed.
fn send_to(vmm: &UnixStream, bytes: &[u8]) {
    let _ = rustix::net::send(vmm, bytes, rustix::net::SendFlags::NOSIGNAL);
}
