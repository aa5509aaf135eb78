//! A virtio-vsock device of a synthetic VM, attached to a daemon's socket once, with streams whose every byte
//! is checked.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_testkit::eventually;
use vmlane_wire::virtio::feature;
use vmlane_wire::virtio_vsock::{HEADER, Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, STREAM, kind, op};
use zerocopy::{FromBytes, IntoBytes};

use crate::Ram;
use crate::pattern::Pattern;
use crate::vhost_user::{Front, RingEvents};
use crate::virtio::{DriverRing, into, out};

/// Places in each ring.
const SIZE: u16 = 64;
const BUFFER: usize = 4096 + HEADER;
/// What a socket takes, in bytes.
pub const CREDIT: u32 = 64 << 10;
const PACKET: usize = 8 << 10;
/// Of SHUTDOWN: nothing more is sent, nor taken.
pub const BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

/// The own port, the peer's CID, the peer's port.
pub type Name = (u32, u32, u32);

/// One end of a connection.
#[derive(Debug, Default)]
pub struct End {
    pub established: bool,
    pub reset: bool,
    /// Bytes sent and received; more are sent up to `wanted`.
    pub sent: u64,
    pub received: u64,
    pub wanted: u64,
    /// Its program reads nothing.
    pub keeps: bool,
    /// What the peer has shut down: flags of SHUTDOWN.
    pub peer_shut: u32,
    /// The longest time between two packets with bytes.
    pub pause: Duration,
    last: Option<Instant>,
    /// Bytes that its program has read, and those that the peer was notified of.
    read: u64,
    reported: u64,
    /// As the peer last announced.
    room: u32,
    taken: u32,
}

impl End {
    fn left(&self) -> u64 {
        let credit = u64::from(self.room.saturating_sub((self.sent as u32).wrapping_sub(self.taken)));
        if self.established { credit.min(self.wanted - self.sent) } else { 0 }
    }
}

pub struct VsockVm {
    pub cid: u32,
    rx: DriverRing,
    tx: DriverRing,
    /// None: its VMM is another's.
    front: Option<Front>,
    events: [RingEvents; 2],
    pages: Vec<u64>,
    /// Chains that were not given back, in order.
    sending: VecDeque<u16>,
    next: u64,
    control: VecDeque<Header>,
    pub ends: BTreeMap<Name, End>,
}

impl VsockVm {
    /// Its VMM connects once, and never again.
    pub fn attach(cid: u32, socket: &Path, packed: bool) -> VsockVm {
        let ram = Arc::new(Ram::new(8 << 20));
        let rings = VsockVm::rings(&ram, packed);
        let features = feature::VERSION_1 | STREAM | if packed { feature::PACKED } else { 0 };
        let mut front = eventually("a device", || Front::connect(socket, features).ok());
        front.set_memory(&ram).expect("memory");
        let [rx, tx] = &rings;
        let events =
            [front.start(0, &rx.setup()).expect("rings"), front.start(1, &tx.setup()).expect("rings")];
        VsockVm::over(cid, rings, events).with(front)
    }

    /// Its VMM's connection closes with it.
    pub fn with(self, front: Front) -> VsockVm {
        VsockVm { front: Some(front), ..self }
    }

    /// Rings for a driver, to receive and to send.
    pub fn rings(ram: &Arc<Ram>, packed: bool) -> [DriverRing; 2] {
        [(); 2].map(|()| DriverRing::new(ram, SIZE, packed))
    }

    /// A driver of rings that a VMM has started.
    pub fn over(cid: u32, [rx, tx]: [DriverRing; 2], events: [RingEvents; 2]) -> VsockVm {
        let pages = (0..2 * SIZE).map(|_| tx.alloc(HEADER + PACKET)).collect();
        let (sending, control, ends) = (VecDeque::new(), VecDeque::new(), BTreeMap::new());
        let mut vm = VsockVm { cid, front: None, events, rx, tx, pages, sending, next: 0, control, ends };
        (0..SIZE).for_each(|id| vm.post(id));
        vm
    }

    /// Has the daemon, or the keeper, closed the VMM's connection?
    pub fn is_closed(&self) -> bool {
        self.front.as_ref().is_some_and(Front::is_closed)
    }

    fn post(&mut self, id: u16) {
        let addr = self.pages[usize::from(SIZE + id)];
        assert_eq!(self.rx.post(&[into(addr, BUFFER)]), id, "buffers come back in order");
    }

    /// Asks for a connection. What it sends is made up from the name of its end.
    pub fn connect(&mut self, name: Name) {
        let end = self.ends.entry(name).or_default();
        *end = End { wanted: end.wanted, ..End::default() };
        self.send_control(name, op::REQUEST, 0);
    }

    /// It will send nothing more, or take nothing: flags of SHUTDOWN.
    pub fn shut_down(&mut self, name: Name, flags: u32) {
        self.send_control(name, op::SHUTDOWN, flags);
    }

    /// Its program reads all that it kept, and goes on.
    pub fn reads(&mut self, name: Name) {
        let end = self.ends.get_mut(&name).expect("an end of this name");
        (end.keeps, end.read, end.reported) = (false, end.received, end.received);
        self.send_control(name, op::CREDIT_UPDATE, 0);
    }

    fn send_control(&mut self, name: Name, op: u16, flags: u32) {
        let header = Header { flags: flags.into(), ..self.header(name, op) };
        self.control.push_back(header);
    }

    fn header(&self, name: Name, op: u16) -> Header {
        let (port, peer, peer_port) = name;
        let read = self.ends.get(&name).map_or(0, |end| end.read);
        let header = Header::new((self.cid, port), (peer, peer_port), kind::STREAM, op);
        Header { buf_alloc: CREDIT.into(), fwd_cnt: (read as u32).into(), ..header }
    }

    /// What the bytes of the end `sender` of a connection are made from, by the name that it has there.
    pub fn seed(sender: u32, (port, peer, peer_port): Name) -> u64 {
        u64::from(sender) << 56 ^ u64::from(peer) << 48 ^ u64::from(port) << 24 ^ u64::from(peer_port)
    }

    /// One poll of everything. True if something moved.
    pub fn turn(&mut self) -> bool {
        let mut moved = false;
        while let Some((id, _)) = self.tx.take() {
            assert_eq!(Some(id), self.sending.pop_front(), "each chain comes back once, in order");
            moved = true;
        }
        while let Some((id, len)) = self.rx.take() {
            let mut bytes = vec![0; len as usize];
            self.rx.ram.read(self.pages[usize::from(SIZE + id)], &mut bytes);
            let header = Header::read_from_bytes(&bytes[..HEADER]).expect("the size is right");
            self.receive(&header, &bytes[HEADER..]);
            self.post(id);
            moved = true;
        }
        moved |= self.send();
        for events in &self.events {
            let _ = rustix::io::write(&events.kick, &1u64.to_ne_bytes());
        }
        moved
    }

    fn receive(&mut self, header: &Header, payload: &[u8]) {
        let name = (header.dst_port.get(), header.src_cid.get() as u32, header.src_port.get());
        assert_eq!(header.dst_cid.get(), u64::from(self.cid));
        let op = header.op.get();
        if op == op::REQUEST {
            self.ends.entry(name).or_default().established = true;
            self.send_control(name, op::RESPONSE, 0);
        }
        let (port, peer, peer_port) = name;
        let pattern = Pattern::new(VsockVm::seed(peer, (peer_port, self.cid, port)));
        let Some(end) = self.ends.get_mut(&name) else { return };
        if op != op::RST {
            (end.room, end.taken) = (header.buf_alloc.get(), header.fwd_cnt.get());
        }
        match op {
            op::RESPONSE => end.established = true,
            op::RW => {
                pattern.check(end.received, payload);
                end.received += payload.len() as u64;
                let now = Instant::now();
                end.pause = end.pause.max(end.last.replace(now).map_or(Duration::ZERO, |last| now - last));
                if !end.keeps {
                    end.read = end.received;
                }
                if end.read - end.reported >= u64::from(CREDIT) / 4 {
                    end.reported = end.read;
                    self.send_control(name, op::CREDIT_UPDATE, 0);
                }
            }
            op::CREDIT_REQUEST => self.send_control(name, op::CREDIT_UPDATE, 0),
            op::SHUTDOWN => {
                end.peer_shut |= header.flags.get();
                if end.peer_shut & BOTH == BOTH {
                    end.reset = true;
                    self.send_control(name, op::RST, 0);
                }
            }
            op::RST => end.reset = true,
            _ => {}
        }
    }

    fn send(&mut self) -> bool {
        let before = self.next;
        let names: Vec<Name> = self.ends.keys().copied().collect();
        let mut idle = 0;
        for &name in names.iter().cycle() {
            if self.sending.len() == usize::from(SIZE) || idle > names.len() {
                break;
            }
            if let Some(mut header) = self.control.pop_front() {
                let current = self
                    .header((header.src_port.get(), header.dst_cid.get() as u32, header.dst_port.get()), 0);
                header.fwd_cnt = current.fwd_cnt;
                self.put(&header, &[]);
                continue;
            }
            let Some(end) = self.ends.get(&name) else { break };
            let most = 1 + self.next * 977 % PACKET as u64;
            let (at, len) = (end.sent, end.left().min(most) as usize);
            if len == 0 {
                idle += 1;
                continue;
            }
            idle = 0;
            let payload = Pattern::new(VsockVm::seed(self.cid, name)).bytes(at, len);
            let header = Header { len: (len as u32).into(), ..self.header(name, op::RW) };
            self.put(&header, &payload);
            self.ends.entry(name).or_default().sent += len as u64;
        }
        self.next != before
    }

    fn put(&mut self, header: &Header, payload: &[u8]) {
        let addr = self.pages[(self.next % u64::from(SIZE)) as usize];
        self.next += 1;
        self.tx.ram.write(addr, &[header.as_bytes(), payload].concat());
        let id = self.tx.post(&[out(addr, HEADER + payload.len())]);
        self.sending.push_back(id);
    }

    /// Is nothing under way from here?
    pub fn is_settled(&self) -> bool {
        self.sending.is_empty() && self.control.is_empty()
    }
}
