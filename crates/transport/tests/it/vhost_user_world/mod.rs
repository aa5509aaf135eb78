//! A front end whose every message is chosen, and a device that records what reaches it.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vmlane_device::virtio::vhost::{Setup, VhostDevice};
use vmlane_guestsim::eventfd;
use vmlane_transport::{RingLines, Scope, SessionStats, vhost_user};
use vmlane_wire::vhost_user::{HEADER, Header, MemoryRegion, RingAddress, RingState, protocol, request};
use vmlane_wire::virtio::feature;
use zerocopy::{FromBytes, IntoBytes};

pub const FEATURES: u64 = feature::VERSION_1 | feature::EVENT_INDEX;
/// Those, and what front ends here mostly leave.
const ON_OFFER: u64 = FEATURES | feature::PACKED;
/// The front end's address of guest address 0.
pub const USER: u64 = 0x7f00_0000_0000;
pub const MEMORY: u64 = 0x10000;

#[derive(Debug, Default)]
pub struct Journal {
    pub runs: Mutex<Vec<Setup>>,
    pub stops: Mutex<u32>,
    pub announced: Mutex<u32>,
    pub panics: Mutex<bool>,
}

pub struct Toy(Arc<Journal>);

impl VhostDevice for Toy {
    fn features(&self) -> u64 {
        ON_OFFER
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

    fn announce(&mut self) {
        *self.0.announced.lock() += 1;
    }

    fn run(&mut self, setup: Setup) {
        assert!(!std::mem::take(&mut *self.0.panics.lock()), "as the test asked");
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

pub struct Front {
    pub socket: UnixStream,
    pub journal: Arc<Journal>,
    pub lines: Arc<RingLines>,
    pub stats: Arc<SessionStats>,
    pub session: JoinHandle<String>,
}

impl Front {
    pub fn new() -> Front {
        let (socket, other) = UnixStream::pair().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let (journal, stats) = (Arc::new(Journal::default()), Arc::new(SessionStats::default()));
        let lines = Arc::new(RingLines::new(2).unwrap());
        let (device, theirs, counted) = (Toy(journal.clone()), lines.clone(), stats.clone());
        let session = std::thread::spawn(move || {
            let mut device = device;
            let session = vhost_user::Session::new(other, &mut device, theirs, counted, &Scope::none());
            session.unwrap().run().to_string()
        });
        Front { socket, journal, lines, stats, session }
    }

    /// With protocol features, REPLY_ACK among them.
    pub fn agreed() -> Front {
        let front = Front::new();
        front.send_request(request::SET_FEATURES, (FEATURES | feature::PROTOCOL_FEATURES).as_bytes(), &[]);
        front.send_request(
            request::SET_PROTOCOL_FEATURES,
            (protocol::REPLY_ACK | protocol::CONFIG).as_bytes(),
            &[],
        );
        front
    }

    /// [`Self::agreed`], and a memory at address 0.
    pub fn with_memory() -> Front {
        let mut front = Front::agreed();
        assert_eq!(front.set_memory(&[region(0, MEMORY, USER, 0)], 1), 0);
        front
    }

    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    pub fn send_request(&self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.message(code, payload, fds, false);
    }

    pub fn message(&self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>], need_reply: bool) {
        let header = Header::request(code, payload.len(), need_reply);
        self.send(&[header.as_bytes(), payload].concat(), fds);
    }

    /// The next answer, and to what.
    pub fn any_reply(&mut self) -> (u32, Vec<u8>) {
        let mut bytes = [0; HEADER];
        self.socket.read_exact(&mut bytes).unwrap();
        let header = Header::read_from_bytes(&bytes).unwrap();
        assert!(header.is_reply(), "{header:?}");
        let mut payload = vec![0; header.size.get() as usize];
        self.socket.read_exact(&mut payload).unwrap();
        (header.request.get(), payload)
    }

    pub fn reply(&mut self, code: u32) -> Vec<u8> {
        let (answered, payload) = self.any_reply();
        assert_eq!(answered, code);
        payload
    }

    /// 0: done.
    pub fn ask(&mut self, code: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> u64 {
        self.message(code, payload, fds, true);
        number(&self.reply(code))
    }

    pub fn get(&mut self, code: u32, payload: &[u8]) -> Vec<u8> {
        self.send_request(code, payload, &[]);
        self.reply(code)
    }

    pub fn set_memory(&mut self, regions: &[MemoryRegion], fds: usize) -> u64 {
        let file = vmlane_mem::memfd("guest", MEMORY).unwrap();
        let table = [&(regions.len() as u32).to_le_bytes()[..], &[0; 4], regions.as_bytes()].concat();
        self.ask(request::SET_MEM_TABLE, &table, &vec![file.as_fd(); fds])
    }

    pub fn start(&mut self, ring: u32) -> [OwnedFd; 2] {
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
    pub fn running(&self) -> [bool; 2] {
        let runs = self.journal.runs.lock();
        runs.last().map_or([false; 2], |setup| [0, 1].map(|ring| setup.rings[ring].is_some()))
    }

    pub fn alive(&mut self) {
        let features = number(&self.get(request::GET_FEATURES, &[]));
        assert_eq!(features, ON_OFFER | feature::PROTOCOL_FEATURES | feature::LOG_ALL);
    }

    pub fn close(self) -> String {
        drop(self.socket);
        self.session.join().unwrap()
    }
}

pub fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

pub fn state(index: u32, number: u32) -> RingState {
    RingState { index: index.into(), number: number.into() }
}

pub fn address(index: u32, user: u64) -> RingAddress {
    RingAddress {
        index: index.into(),
        flags: 0.into(),
        descriptors: user.into(),
        used: (user + 0x2000).into(),
        available: (user + 0x1000).into(),
        log: 0.into(),
    }
}

pub fn region(guest: u64, size: u64, user: u64, offset: u64) -> MemoryRegion {
    MemoryRegion { guest: guest.into(), size: size.into(), user: user.into(), offset: offset.into() }
}
