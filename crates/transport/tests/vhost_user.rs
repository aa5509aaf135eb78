//! A vhost-user session: the order that front ends keep, every order they do not, and messages that
//! make no sense.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vmlane_device::virtio::vhost::{Lines, Setup, VhostDevice};
use vmlane_transport::testing::{eventfd, signals};
use vmlane_transport::{RingLines, SessionStats, vhost_user};
use vmlane_wire::vhost_user::{
    HEADER, Header, InflightArea, MemoryRegion, RingAddress, RingState, protocol, request,
};
use vmlane_wire::virtio::feature;
use zerocopy::{FromBytes, IntoBytes};

const FEATURES: u64 = feature::VERSION_1 | feature::EVENT_INDEX;
/// The front end's address of guest address 0.
const USER: u64 = 0x7f00_0000_0000;
const MEMORY: u64 = 0x10000;

#[derive(Debug, Default)]
struct Journal {
    runs: Mutex<Vec<Setup>>,
    stops: Mutex<u32>,
    panics: Mutex<bool>,
}

struct Toy(Arc<Journal>);

impl VhostDevice for Toy {
    fn features(&self) -> u64 {
        FEATURES
    }

    fn queues(&self) -> u16 {
        2
    }

    fn config(&self) -> Vec<u8> {
        vec![1, 2, 3]
    }

    fn set_mtu(&mut self, mtu: u16) -> bool {
        mtu == 1500
    }

    fn run(&mut self, setup: Setup) {
        assert!(!std::mem::take(&mut *self.0.panics.lock()), "told to");
        // As if all was done up to here.
        if let Some(Some(ring)) = setup.rings.first() {
            ring.position.store(7, std::sync::atomic::Ordering::SeqCst);
        }
        self.0.runs.lock().push(setup);
    }

    fn stop(&mut self) {
        *self.0.stops.lock() += 1;
    }
}

struct Front {
    socket: UnixStream,
    journal: Arc<Journal>,
    lines: Arc<RingLines>,
    stats: Arc<SessionStats>,
    session: JoinHandle<String>,
}

impl Front {
    fn new() -> Front {
        let (socket, other) = UnixStream::pair().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let (journal, stats) = (Arc::new(Journal::default()), Arc::new(SessionStats::default()));
        let lines = Arc::new(RingLines::new(2).unwrap());
        let (device, theirs, counted) = (Toy(journal.clone()), lines.clone(), stats.clone());
        let session = std::thread::spawn(move || {
            let mut device = device;
            vhost_user::Session::new(other, &mut device, theirs, counted).unwrap().run().to_string()
        });
        Front { socket, journal, lines, stats, session }
    }

    /// With protocol features, REPLY_ACK among them.
    fn agreed() -> Front {
        let front = Front::new();
        front.tell(request::SET_FEATURES, (FEATURES | feature::PROTOCOL_FEATURES).as_bytes(), &[]);
        front.tell(request::SET_PROTOCOL_FEATURES, (protocol::REPLY_ACK | protocol::CONFIG).as_bytes(), &[]);
        front
    }

    /// [`Self::agreed`], and a memory at address 0.
    fn with_memory() -> Front {
        let mut front = Front::agreed();
        assert_eq!(front.set_memory(&[region(0, MEMORY, USER, 0)], 1), 0);
        front
    }

    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    fn tell(&self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.message(code, payload, fds, false);
    }

    fn message(&self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>], need_reply: bool) {
        let header = Header::request(code, payload.len(), need_reply);
        self.send(&[header.as_bytes(), payload].concat(), fds);
    }

    fn reply(&mut self, code: u32) -> Vec<u8> {
        let mut bytes = [0; HEADER];
        self.socket.read_exact(&mut bytes).unwrap();
        let header = Header::read_from_bytes(&bytes).unwrap();
        assert!(header.is_reply() && header.request.get() == code, "{header:?} for {code}");
        let mut payload = vec![0; header.size.get() as usize];
        self.socket.read_exact(&mut payload).unwrap();
        payload
    }

    /// 0: done.
    fn ask(&mut self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> u64 {
        self.message(code, payload, fds, true);
        number(&self.reply(code))
    }

    fn get(&mut self, code: u32, payload: &[u8]) -> Vec<u8> {
        self.tell(code, payload, &[]);
        self.reply(code)
    }

    fn set_memory(&mut self, regions: &[MemoryRegion], fds: usize) -> u64 {
        let file = vmlane_mem::memfd("guest", MEMORY).unwrap();
        let table = [&(regions.len() as u32).to_le_bytes()[..], &[0; 4], regions.as_bytes()].concat();
        self.ask(request::SET_MEM_TABLE, &table, &vec![file.as_fd(); fds])
    }

    fn start(&mut self, ring: u32) -> [OwnedFd; 2] {
        let [kick, call] = [(); 2].map(|()| eventfd().unwrap());
        assert_eq!(self.ask(request::SET_VRING_NUM, state(ring, 16).as_bytes(), &[]), 0);
        assert_eq!(self.ask(request::SET_VRING_BASE, state(ring, 3).as_bytes(), &[]), 0);
        assert_eq!(self.ask(request::SET_VRING_ADDR, address(ring, USER).as_bytes(), &[]), 0);
        let number = u64::from(ring);
        assert_eq!(self.ask(request::SET_VRING_CALL, number.as_bytes(), &[call.as_fd()]), 0);
        assert_eq!(self.ask(request::SET_VRING_KICK, number.as_bytes(), &[kick.as_fd()]), 0);
        [kick, call]
    }

    /// Rings that run now, by number.
    fn running(&self) -> [bool; 2] {
        let runs = self.journal.runs.lock();
        runs.last().map_or([false; 2], |setup| [0, 1].map(|ring| setup.rings[ring].is_some()))
    }

    fn alive(&mut self) {
        let features = number(&self.get(request::GET_FEATURES, &[]));
        assert_eq!(features, FEATURES | feature::PROTOCOL_FEATURES | feature::LOG_ALL);
    }

    fn close(self) -> String {
        drop(self.socket);
        self.session.join().unwrap()
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

fn state(index: u32, number: u32) -> RingState {
    RingState { index: index.into(), number: number.into() }
}

fn address(index: u32, user: u64) -> RingAddress {
    RingAddress {
        index: index.into(),
        flags: 0.into(),
        descriptors: user.into(),
        used: (user + 0x2000).into(),
        available: (user + 0x1000).into(),
        log: 0.into(),
    }
}

fn region(guest: u64, size: u64, user: u64, offset: u64) -> MemoryRegion {
    MemoryRegion { guest: guest.into(), size: size.into(), user: user.into(), offset: offset.into() }
}

#[test]
fn rings_run_once_all_is_said_and_stop_with_their_position() {
    let mut front = Front::with_memory();
    let [kick, call] = front.start(0);
    assert_eq!(front.running(), [false; 2], "not enabled");
    assert_eq!(front.ask(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]), 0);
    assert_eq!(front.running(), [true, false]);
    {
        let runs = front.journal.runs.lock();
        let ring = runs.last().unwrap().rings[0].clone().unwrap();
        assert_eq!((ring.size, ring.descriptors, ring.driver, ring.device), (16, 0, 0x1000, 0x2000));
    }
    front.lines.call(0);
    front.lines.call(1);
    assert_eq!(signals(&call), 1);
    // A kick is heard until it is cleared.
    let heard = || {
        let mut files = [rustix::event::PollFd::from_borrowed_fd(
            front.lines.bell().unwrap(),
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut files, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap()
            == 1
    };
    front.lines.clear();
    assert!(!heard());
    rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
    assert!(heard());
    front.lines.clear();
    assert!(!heard());
    let base = front.get(request::GET_VRING_BASE, state(0, 0).as_bytes());
    assert_eq!(base, state(0, 7).as_bytes());
    assert_eq!(front.running(), [false; 2]);
    assert_eq!(front.close(), "the peer closed the connection");
}

#[test]
fn a_running_ring_goes_on_in_new_memory() {
    let mut front = Front::with_memory();
    let _fds = front.start(1);
    front.ask(request::SET_VRING_ENABLE, state(1, 1).as_bytes(), &[]);
    // The same addresses of the front end mean other ones of the guest now.
    assert_eq!(front.set_memory(&[region(0x100000, MEMORY, USER, 0)], 1), 0);
    let descriptors = front.journal.runs.lock().last().unwrap().rings[1].clone().unwrap().descriptors;
    assert_eq!(descriptors, 0x100000);
    // Gone: the ring does not run.
    assert_eq!(front.set_memory(&[], 0), 0);
    assert_eq!(front.running(), [false; 2]);
    let one = |region: MemoryRegion| [&[0; 8][..], region.as_bytes()].concat();
    let file = vmlane_mem::memfd("guest", MEMORY).unwrap();
    let added = one(region(0x200000, MEMORY, USER, 0));
    assert_eq!(front.ask(request::ADD_MEM_REG, &added, &[file.as_fd()]), 0);
    assert_eq!(front.running(), [false, true]);
    assert_eq!(front.ask(request::ADD_MEM_REG, &added, &[file.as_fd()]), 1, "there is one already");
    assert_eq!(front.ask(request::ADD_MEM_REG, &added, &[]), 1);
    assert_eq!(front.ask(request::REM_MEM_REG, &one(region(0, MEMORY, USER, 0)), &[]), 1);
    assert_eq!(front.ask(request::REM_MEM_REG, &added, &[]), 0);
    assert_eq!(front.running(), [false; 2]);
}

/// CVE-2018-1059, CVE-2020-10722: regions whose sums overflow, that overlap, that their file lacks.
#[test]
fn cve_2020_10722_memory_that_cannot_be() {
    let mut front = Front::agreed();
    let max = !0xfffu64;
    for bad in [
        region(0, 0, USER, 0),
        region(0, MEMORY + 0x1000, USER, 0),
        region(0, MEMORY, USER, 0x1000),
        region(0, 0x1000, USER, max),
        region(max, 0x2000, USER, 0),
        region(0, 0x2000, u64::MAX - 0x1000, 0),
        region(0, max, USER, 0x1000),
        region(1, 0x1000, USER, 0),
    ] {
        assert_eq!(front.set_memory(&[bad], 1), 1, "{bad:?}");
    }
    let (a, b) = (region(0, 0x2000, USER, 0), region(0x1000, 0x1000, USER + 0x10000, 0));
    assert_eq!(front.set_memory(&[a, b], 2), 1, "the guest's addresses overlap");
    assert_eq!(front.set_memory(&[a, region(0x8000, 0x1000, USER + 0x1000, 0)], 2), 1, "the front end's do");
    assert_eq!(front.set_memory(&vec![a; 9], 8), 1, "nine");
    front.alive();
}

/// CVE-2019-14818, CVE-2022-0669: descriptors too many, too few, where none belong: all are closed.
#[test]
fn cve_2022_0669_descriptors_do_not_leak() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut front = Front::with_memory();
    let file = vmlane_mem::memfd("surplus", 4096).unwrap();
    let before = open();
    for _ in 0..50 {
        assert_eq!(front.set_memory(&[region(0, MEMORY, USER, 0)], 3), 1);
        assert_eq!(front.set_memory(&[region(0, MEMORY, USER, 0)], 0), 1);
        assert_eq!(front.ask(request::SET_OWNER, &[], &[file.as_fd(); 8]), 0);
        assert_eq!(front.ask(request::SET_VRING_KICK, 0u64.as_bytes(), &[file.as_fd(), file.as_fd()]), 1);
        assert_eq!(front.ask(request::SET_VRING_KICK, 0x100u64.as_bytes(), &[file.as_fd()]), 1);
        // Not an eventfd: a write to it could block.
        assert_eq!(front.ask(request::SET_VRING_CALL, 0u64.as_bytes(), &[file.as_fd()]), 1);
        assert_eq!(front.ask(9999, &[], &[file.as_fd()]), 1);
    }
    // Other tests of this process open and close files meanwhile.
    assert!(open() < before + 50, "{before} files before, {} after", open());
    front.alive();
}

/// User Mode Linux hears calls from a socket. One that nobody reads costs its owner calls, and us no time.
#[test]
fn calls_go_to_a_local_stream_socket_and_never_wait() {
    let mut front = Front::with_memory();
    let (mut heard, call) = UnixStream::pair().unwrap();
    assert_eq!(front.ask(request::SET_VRING_CALL, 0u64.as_bytes(), &[call.as_fd()]), 0);
    front.lines.call(0);
    let mut word = [0; 8];
    heard.read_exact(&mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 1);
    // Blocking, as its owner may make it at any time.
    call.set_nonblocking(false).unwrap();
    for _ in 0..1 << 16 {
        front.lines.call(0);
    }
    drop(heard);
    front.lines.call(0);

    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (datagrams, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
    for code in [request::SET_VRING_CALL, request::SET_VRING_ERR] {
        assert_eq!(front.ask(code, 0u64.as_bytes(), &[tcp.as_fd()]), 1);
        assert_eq!(front.ask(code, 0u64.as_bytes(), &[datagrams.as_fd()]), 1);
    }
    assert_eq!(front.ask(request::SET_VRING_KICK, 0u64.as_bytes(), &[call.as_fd()]), 1);
    front.alive();
}

/// The socket for a back end's questions is held as long as the session, so that its end tells of the session's.
#[test]
fn the_socket_for_questions_lives_as_long_as_the_session() {
    let mut front = Front::agreed();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    assert_eq!(front.ask(request::SET_BACKEND_REQ_FD, &[], &[]), 1);
    assert_eq!(front.ask(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd(), theirs.as_fd()]), 1);
    assert_eq!(front.ask(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]), 0);
    drop(theirs);
    ours.set_nonblocking(true).unwrap();
    let nothing = ours.read(&mut [0; 8]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    front.close();
    assert_eq!(ours.read(&mut [0; 8]).unwrap(), 0);
}

/// CVE-2020-10723: ring numbers and sizes out of range, in every message that has one.
#[test]
fn cve_2020_10723_rings_that_do_not_exist() {
    let mut front = Front::with_memory();
    let fd = eventfd().unwrap();
    for ring in [2, 255, u32::MAX] {
        for code in [request::SET_VRING_NUM, request::SET_VRING_BASE, request::SET_VRING_ENABLE] {
            assert_eq!(front.ask(code, state(ring, 1).as_bytes(), &[]), 1);
        }
        assert_eq!(front.ask(request::SET_VRING_ADDR, address(ring, USER).as_bytes(), &[]), 1);
        assert_eq!(front.get(request::GET_VRING_BASE, state(ring, 0).as_bytes()), [0; 8]);
    }
    for code in [request::SET_VRING_KICK, request::SET_VRING_CALL, request::SET_VRING_ERR] {
        assert_eq!(front.ask(code, 2u64.as_bytes(), &[fd.as_fd()]), 1);
        assert_eq!(front.ask(code, 0xffu64.as_bytes(), &[fd.as_fd()]), 1);
    }
    for size in [0, 32769, u32::MAX] {
        assert_eq!(front.ask(request::SET_VRING_NUM, state(0, size).as_bytes(), &[]), 1);
    }
    front.alive();
}

#[test]
fn a_started_ring_keeps_its_size_and_position() {
    let mut front = Front::with_memory();
    let _fds = front.start(0);
    for code in [request::SET_VRING_NUM, request::SET_VRING_BASE] {
        assert_eq!(front.ask(code, state(0, 8).as_bytes(), &[]), 1);
    }
    front.ask(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]);
    assert_eq!(front.ask(request::SET_VRING_ADDR, address(0, USER + MEMORY).as_bytes(), &[]), 0);
    assert_eq!(front.running(), [false; 2], "its addresses are nowhere");
    front.alive();
}

#[test]
fn payloads_too_short_in_every_state() {
    for front in [Front::new, Front::agreed, Front::with_memory] {
        let mut front = front();
        for code in 0..64 {
            front.tell(code, &[], &[]);
            front.tell(code, &[1, 2, 3], &[]);
        }
        // Some of them were answered; what counts is that the session goes on.
        front.message(request::SET_PROTOCOL_FEATURES, protocol::REPLY_ACK.as_bytes(), &[], false);
        front.socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut rest = Vec::new();
        let _ = front.socket.read_to_end(&mut rest);
        front.socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        front.alive();
        assert_eq!(front.close(), "the peer closed the connection");
    }
}

#[test]
fn configuration_space_is_read_inside_its_bounds() {
    let mut front = Front::agreed();
    let config = |offset: u32, size: u32, bytes: usize| {
        [&offset.to_le_bytes()[..], &size.to_le_bytes(), &[0; 4], &vec![0; bytes]].concat()
    };
    assert_eq!(front.get(request::GET_CONFIG, &config(1, 4, 4))[12..], [2, 3, 0, 0]);
    for (offset, size, bytes) in [(0, 257, 257), (255, 2, 2), (u32::MAX, 1, 1), (0, u32::MAX, 4), (0, 4, 3)] {
        assert_eq!(front.get(request::GET_CONFIG, &config(offset, size, bytes)), []);
    }
    assert_eq!(front.ask(request::NET_SET_MTU, 1500u64.as_bytes(), &[]), 0);
    assert_eq!(front.ask(request::NET_SET_MTU, 0x1_05dcu64.as_bytes(), &[]), 1);
    assert_eq!(front.ask(request::SET_FEATURES, u64::MAX.as_bytes(), &[]), 1);
    assert_eq!(front.ask(request::SET_PROTOCOL_FEATURES, u64::MAX.as_bytes(), &[]), 1);
    assert_eq!(number(&front.get(request::GET_QUEUE_NUM, &[])), 2);
    front.alive();
}

#[test]
fn streams_that_make_no_sense_end_the_session() {
    let long = Header::request(1, 2000, false);
    let reply = Header::reply(1, 0);
    let mut version = Header::request(1, 0, false).as_bytes().to_vec();
    version[4] = 2;
    for (bytes, why) in [
        (long.as_bytes(), "2000 bytes"),
        (reply.as_bytes(), "no request"),
        (&version[..], "no request"),
        (&version[..5], "inside a message"),
        (Header::request(1, 8, false).as_bytes(), "inside a message"),
    ] {
        let front = Front::agreed();
        front.send(bytes, &[]);
        front.socket.shutdown(std::net::Shutdown::Write).unwrap();
        let end = front.session.join().unwrap();
        assert!(end.contains(why), "{end}");
        assert_eq!(front.stats.snapshot().iter().find(|(name, _)| *name == "protocol_errors").unwrap().1, 1);
        assert!(*front.journal.stops.lock() > 0, "nothing runs any more");
    }
}

#[test]
fn a_panic_stops_the_device_and_nothing_else() {
    let mut front = Front::with_memory();
    let _fds = front.start(0);
    *front.journal.panics.lock() = true;
    assert_eq!(front.ask(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]), 1);
    assert_eq!(front.stats.snapshot().iter().find(|(name, _)| *name == "panics").unwrap().1, 1);
    front.alive();
    front.ask(request::SET_VRING_ENABLE, state(1, 1).as_bytes(), &[]);
    assert_eq!(front.running(), [true, false], "it runs again as soon as anything changes");
}

#[test]
fn without_protocol_features_rings_need_no_enabling() {
    let front = Front::new();
    front.tell(request::SET_FEATURES, FEATURES.as_bytes(), &[]);
    let file = vmlane_mem::memfd("guest", MEMORY).unwrap();
    let table = [&1u32.to_le_bytes()[..], &[0; 4], region(0, MEMORY, USER, 0).as_bytes()].concat();
    front.tell(request::SET_MEM_TABLE, &table, &[file.as_fd()]);
    front.tell(request::SET_VRING_NUM, state(0, 16).as_bytes(), &[]);
    front.tell(request::SET_VRING_ADDR, address(0, USER).as_bytes(), &[]);
    let kick = eventfd().unwrap();
    front.tell(request::SET_VRING_KICK, 0u64.as_bytes(), &[kick.as_fd()]);
    let mut front = front;
    front.alive();
    assert_eq!(front.running(), [true, false]);
}

/// A reply with its descriptor.
fn reply_with_file(front: &mut Front, code: u32) -> (Vec<u8>, Option<OwnedFd>) {
    let mut bytes = vec![0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
    let mut into = [std::io::IoSliceMut::new(&mut bytes)];
    let flags = rustix::net::RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(&front.socket, &mut into, &mut control, flags).unwrap();
    let file = control.drain().find_map(|message| match message {
        rustix::net::RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let header = Header::read_from_bytes(&bytes[..HEADER]).unwrap();
    assert!(header.is_reply() && header.request.get() == code);
    (bytes[HEADER..got.bytes].to_vec(), file)
}

fn area(size: u64, offset: u64, rings: u16, ring_size: u16) -> Vec<u8> {
    let area = InflightArea {
        size: size.into(),
        offset: offset.into(),
        rings: rings.into(),
        ring_size: ring_size.into(),
    };
    area.as_bytes().to_vec()
}

#[test]
fn what_is_in_flight_is_noted_in_memory_of_the_front_end() {
    for padding in [0, 4] {
        let mut front = Front::with_memory();
        let asked = [&area(0, 0, 2, 16)[..], &vec![0; padding]].concat();
        front.tell(request::GET_INFLIGHT_FD, &asked, &[]);
        let (answer, file) = reply_with_file(&mut front, request::GET_INFLIGHT_FD);
        assert_eq!(answer.len(), asked.len(), "front ends differ in the length that they want");
        let file = file.expect("a descriptor");
        let size = number(&answer[..8]);
        assert!(size >= 2 * 16 * 32 && rustix::fs::fstat(&file).unwrap().st_size as u64 == size);
        assert_eq!(front.ask(request::SET_INFLIGHT_FD, &answer, &[file.as_fd()]), 0);
        let _fds = front.start(0);
        front.ask(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]);
        let runs = front.journal.runs.lock();
        assert!(runs.last().unwrap().rings[0].as_ref().unwrap().record.is_some());
    }
}

/// CVE-2021-3839: numbers of rings and sizes that the memory for them does not have.
#[test]
fn cve_2021_3839_memory_in_flight_that_cannot_be() {
    let mut front = Front::with_memory();
    for (rings, size) in [(0, 16), (3, 16), (u16::MAX, 16), (1, 0), (1, 32769), (2, u16::MAX)] {
        front.tell(request::GET_INFLIGHT_FD, &area(0, 0, rings, size), &[]);
        let (answer, file) = reply_with_file(&mut front, request::GET_INFLIGHT_FD);
        assert!(file.is_none() && answer.iter().all(|&byte| byte == 0), "{rings} rings of {size}");
    }
    let file = vmlane_mem::memfd("inflight", 8192).unwrap();
    for bad in [
        area(8192, 0, 0, 16),
        area(8192, 0, 3, 16),
        area(8192, 0, 2, 0),
        area(8192, 0, 2, 32768),
        area(u64::MAX, 0, 2, 32768),
        area(100, 0, 2, 16),
        area(8192, 1, 2, 16),
        area(8192, 8192, 2, 16),
        area(8192, u64::MAX - 4095, 2, 16),
        area(8192, 1 << 63, 2, 16),
    ] {
        assert_eq!(front.ask(request::SET_INFLIGHT_FD, &bad, &[file.as_fd()]), 1, "{bad:?}");
    }
    let good = area(8192, 0, 2, 16);
    assert_eq!(front.ask(request::SET_INFLIGHT_FD, &good, &[]), 1);
    assert_eq!(front.ask(request::SET_INFLIGHT_FD, &good, &[file.as_fd(), file.as_fd()]), 1);
    assert_eq!(front.ask(request::SET_INFLIGHT_FD, &good[..12], &[file.as_fd()]), 1);
    let pipe = rustix::pipe::pipe().unwrap().0;
    assert_eq!(front.ask(request::SET_INFLIGHT_FD, &good, &[pipe.as_fd()]), 1);
    assert_eq!(front.ask(request::SET_INFLIGHT_FD, &good, &[file.as_fd()]), 0);
    // A ring larger than was said has no record, and runs.
    let _fds = front.start(0);
    front.ask(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]);
    assert_eq!(front.running(), [true, false]);
    front.alive();
}

/// CVE-2022-0669, for the messages that came later: their descriptors are closed, too.
#[test]
fn cve_2022_0669_descriptors_of_logs_and_records_do_not_leak() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut front = Front::with_memory();
    let file = vmlane_mem::memfd("shared", 8192).unwrap();
    let before = open();
    let log = [8192u64.to_le_bytes(), [0; 8]].concat();
    for _ in 0..50 {
        assert_eq!(front.ask(request::SET_INFLIGHT_FD, &area(8192, 0, 2, 16), &[file.as_fd()]), 0);
        assert_eq!(front.ask(request::SET_INFLIGHT_FD, &area(1, 0, 2, 16), &[file.as_fd()]), 1);
        assert_eq!(front.ask(request::SET_LOG_BASE, &log, &[file.as_fd()]), 0);
        assert_eq!(front.ask(request::SET_LOG_BASE, &log, &[file.as_fd(), file.as_fd()]), 1);
        assert_eq!(front.ask(request::SET_LOG_FD, &[], &[file.as_fd()]), 0);
        front.tell(request::GET_INFLIGHT_FD, &area(0, 0, 2, 16), &[file.as_fd()]);
        drop(reply_with_file(&mut front, request::GET_INFLIGHT_FD));
    }
    assert!(open() < before + 50, "{before} files before, {} after", open());
    front.alive();
}

#[test]
fn dirty_pages_are_logged_while_the_front_end_wants_it() {
    let mut front = Front::with_memory();
    let _fds = front.start(0);
    front.ask(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]);
    let logs = |front: &Front| {
        let runs = front.journal.runs.lock();
        runs.last().unwrap().rings[0].as_ref().unwrap().log.clone()
    };
    let file = vmlane_mem::memfd("log", 4096).unwrap();
    let base = |size: u64, offset: u64| [size.to_le_bytes(), offset.to_le_bytes()].concat();
    for (size, offset) in
        [(0, 0), (7, 0), (4104, 0), (u64::MAX, 0), (4096, 8), (4096, 4096), (8, u64::MAX - 4095)]
    {
        assert_eq!(
            front.ask(request::SET_LOG_BASE, &base(size, offset), &[file.as_fd()]),
            1,
            "{size} {offset}"
        );
    }
    assert_eq!(front.ask(request::SET_LOG_BASE, &base(4096, 0), &[]), 1);
    // Answered even if nobody asked for it.
    front.tell(request::SET_LOG_BASE, &base(4096, 0), &[file.as_fd()]);
    assert_eq!(number(&front.reply(request::SET_LOG_BASE)), 0);
    assert!(logs(&front).is_none(), "not yet");
    let with = FEATURES | feature::PROTOCOL_FEATURES | feature::LOG_ALL;
    assert_eq!(front.ask(request::SET_FEATURES, with.as_bytes(), &[]), 0);
    logs(&front).expect("a log").mark(5 << 12, 1);
    let map = vmlane_mem::Window::over_file(&file, 4096).unwrap();
    assert_eq!(map.load_u32(0), 1 << 5);
    let without = FEATURES | feature::PROTOCOL_FEATURES;
    assert_eq!(front.ask(request::SET_FEATURES, without.as_bytes(), &[]), 0);
    assert!(logs(&front).is_none());
    front.alive();
}

/// A front end that cuts its shared memory short loses its session, and nobody else's.
#[test]
fn shared_memory_that_is_cut_short_ends_the_session() {
    let mut front = Front::with_memory();
    let file = rustix::fs::memfd_create("cut", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 8192).unwrap();
    assert_eq!(front.ask(request::SET_INFLIGHT_FD, &area(8192, 0, 2, 16), &[file.as_fd()]), 0);
    rustix::fs::ftruncate(&file, 0).unwrap();
    let _fds = front.start(0);
    // Its records are looked at when the ring starts.
    front.tell(request::SET_VRING_ENABLE, state(0, 1).as_bytes(), &[]);
    assert!(front.session.join().unwrap().contains("shorter"));
}

/// Every message with bytes of any kind, in every state, with descriptors and without.
#[test]
fn malformed_messages_in_every_state() {
    for (round, front) in [Front::new, Front::agreed, Front::with_memory].into_iter().enumerate() {
        let front = front();
        let file = vmlane_mem::memfd("any", 4096).unwrap();
        let drain = front.socket.try_clone().unwrap();
        drain.set_read_timeout(None).unwrap();
        let drained = std::thread::spawn(move || {
            let (mut drain, mut sink) = (drain, [0; 4096]);
            while drain.read(&mut sink).is_ok_and(|count| count > 0) {}
        });
        let mut random = 0x9e37_79b9_7f4a_7c15u64 + round as u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for _ in 0..4000 {
            let len = next() as usize % 72;
            // Small numbers are the ones that mean something.
            let payload: Vec<u8> =
                (0..len).map(|at| if next() % 3 > 0 && at % 8 > 0 { 0 } else { next() as u8 }).collect();
            let fds = vec![file.as_fd(); if next() % 2 == 0 { next() as usize % 4 } else { 0 }];
            front.message((next() % 45) as u32, &payload, &fds, next() % 2 == 0);
        }
        front.socket.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(front.session.join().unwrap(), "the peer closed the connection");
        front.socket.shutdown(std::net::Shutdown::Both).unwrap();
        drained.join().unwrap();
        let panics = front.stats.snapshot().iter().find(|(name, _)| *name == "panics").unwrap().1;
        assert_eq!(panics, 0);
    }
}
