//! A synthetic guest with virtio-vsock: a vhost-user front end, and a driver that does what Linux' driver
//! does with its rings, buffers and credit, for one stream.
//!
//! A vCPU that halts is polled for a while before it sleeps, as KVM does (`halt_poll_ns`), unless its core is
//! wanted by others.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vmlane_guestsim::Ram;
use vmlane_guestsim::signals;
use vmlane_guestsim::vhost_user::Front;
use vmlane_guestsim::virtio::{DriverRing, into, out};
use vmlane_wire::virtio::feature;
use vmlane_wire::virtio_vsock::{HEADER, Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, kind, op};
use zerocopy::{FromBytes, IntoBytes};

use super::ring::GuestRing;

/// Descriptors of a ring, as QEMU has them.
const SIZE: u16 = 128;
/// A receive buffer, header included: what Linux posts (a page less what an skb needs of it).
const BUFFER: usize = 3776;
/// The longest payload of a packet (Linux' VIRTIO_VSOCK_MAX_PKT_BUF_SIZE).
const LONGEST: usize = 64 << 10;
/// How much unread data a socket may hold (Linux' default).
const WINDOW: u32 = 256 << 10;
const HALT_POLL: Duration = Duration::from_micros(200);
const PAUSES: u32 = 32;
/// A core that comes back so late was wanted; for so long nothing is polled then.
const WANTED: Duration = Duration::from_micros(50);
const YIELD_TIME: Duration = Duration::from_millis(50);
/// A peer that is silent for so long hangs.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What the device takes a packet from: header and payload, a descriptor each.
#[derive(Clone, Copy, Default)]
struct Slot {
    header: u64,
    payload: u64,
}

/// What came.
enum Event {
    Request,
    Response,
    /// Bytes.
    Data(usize),
    /// The peer's credit, and nothing else.
    Credit,
    Shutdown,
}

/// A guest with one socket.
pub struct Guest {
    ram: Arc<Ram>,
    rx: GuestRing,
    tx: GuestRing,
    /// Buffers by the id of their chain; those that are read and not posted again.
    buffers: Vec<u64>,
    spare: Vec<u64>,
    /// The same for what is sent. The one used last is the next one to be used, as with Linux' allocator.
    slots: Vec<Slot>,
    free: Vec<Slot>,
    /// (CID, port) of this socket and of its peer.
    here: (u32, u32),
    there: (u32, u32),
    /// Bytes sent, those that the peer has read, and its window: `tx_cnt`, `peer_fwd_cnt`, `peer_buf_alloc`.
    sent: u32,
    peer_read: u32,
    peer_window: u32,
    /// Bytes read, and what the peer knows of it: `fwd_cnt`, `last_fwd_cnt`.
    read: u32,
    reported: u32,
    /// Others want the core.
    yield_until: Instant,
    _session: Front,
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Guest {
    /// A guest whose VMM connects to `socket`, with its driver loaded.
    pub fn attach(socket: &Path, cid: u32) -> io::Result<Guest> {
        let ram = Arc::new(Ram::new(16 << 20));
        let features = feature::VERSION_1 | feature::EVENT_INDEX;
        let mut session = Front::connect(socket, features)?;
        session.set_memory(&ram)?;
        let (mut rx, tx) = (DriverRing::new(&ram, SIZE, false), DriverRing::new(&ram, SIZE, false));
        let mut buffers = vec![0; SIZE.into()];
        for _ in 0..SIZE {
            let addr = rx.alloc(BUFFER);
            buffers[usize::from(rx.post(&[into(addr, BUFFER)]))] = addr;
        }
        let slot = |_| Slot { header: tx.alloc(HEADER), payload: tx.alloc(LONGEST) };
        // Two descriptors each.
        let free = (0..SIZE / 2).map(slot).collect();
        let events = [session.start(0, &rx.setup())?, session.start(1, &tx.setup())?];
        let [rx_events, tx_events] = events;
        let mut guest = Guest {
            ram,
            rx: GuestRing::new(rx, SIZE, rx_events),
            tx: GuestRing::new(tx, 0, tx_events),
            buffers,
            spare: Vec::new(),
            slots: vec![Slot::default(); SIZE.into()],
            free,
            here: (cid, 0),
            there: (0, 0),
            sent: 0,
            peer_read: 0,
            peer_window: 0,
            read: 0,
            reported: 0,
            yield_until: Instant::now(),
            _session: session,
        };
        guest.rx.kick();
        Ok(guest)
    }

    pub fn connect(&mut self, port: u32, there: (u32, u32)) -> io::Result<()> {
        (self.here.1, self.there) = (port, there);
        self.packet(op::REQUEST, 0, &[])?;
        match self.next(&mut [])? {
            Event::Response => Ok(()),
            _ => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }

    pub fn accept(&mut self, port: u32) -> io::Result<()> {
        self.here.1 = port;
        match self.next(&mut [])? {
            Event::Request => self.packet(op::RESPONSE, 0, &[]),
            _ => Err(invalid("no request came first".into())),
        }
    }

    /// Sends all of it, in packets as long as the peer's credit allows.
    pub fn write_all(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            if self.credit() < data.len().min(LONGEST) {
                self.receive_credit()?;
            }
            while self.credit() == 0 {
                self.wait()?;
                self.receive_credit()?;
            }
            let (now, later) = data.split_at(data.len().min(LONGEST).min(self.credit()));
            self.packet(op::RW, 0, now)?;
            self.sent = self.sent.wrapping_add(now.len() as u32);
            data = later;
        }
        Ok(())
    }

    /// Waits for a packet's payload, which is put into `data`; its bytes. 0: the peer sends no more.
    pub fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.next(data)? {
                Event::Data(bytes) => {
                    self.read = self.read.wrapping_add(bytes as u32);
                    if WINDOW - self.read.wrapping_sub(self.reported) < LONGEST as u32 {
                        self.packet(op::CREDIT_UPDATE, 0, &[])?;
                    }
                    return Ok(bytes);
                }
                Event::Shutdown => return Ok(0),
                Event::Credit => (),
                Event::Request | Event::Response => return Err(invalid("a handshake in a stream".into())),
            }
        }
    }

    /// Ends the stream, both ways.
    pub fn shutdown(&mut self) -> io::Result<()> {
        self.packet(op::SHUTDOWN, SHUTDOWN_RECEIVE | SHUTDOWN_SEND, &[])
    }

    fn credit(&self) -> usize {
        self.peer_window.saturating_sub(self.sent.wrapping_sub(self.peer_read)) as usize
    }

    /// Takes what has come while this guest only sends.
    fn receive_credit(&mut self) -> io::Result<()> {
        while let Some(event) = self.try_receive(&mut [])? {
            if !matches!(event, Event::Credit) {
                return Err(invalid("the receiver sends or closes".into()));
            }
        }
        Ok(())
    }

    fn next(&mut self, data: &mut [u8]) -> io::Result<Event> {
        loop {
            if let Some(event) = self.try_receive(data)? {
                return Ok(event);
            }
            self.wait()?;
        }
    }

    /// Takes a packet, if one has come.
    fn try_receive(&mut self, data: &mut [u8]) -> io::Result<Option<Event>> {
        let Some((id, len)) = self.rx.take() else { return Ok(None) };
        let addr = self.buffers[usize::from(id)];
        let mut header = [0; HEADER];
        self.ram.read(addr, &mut header);
        let header = Header::read_from_bytes(&header).expect("the size is right");
        let bytes = header.len.get() as usize;
        if HEADER + bytes != len as usize || len as usize > BUFFER {
            return Err(invalid(format!("{bytes} bytes behind a header, in {len} bytes")));
        }
        let event = self.meaning(&header)?;
        if let Event::Data(_) = event {
            let here =
                data.get_mut(..bytes).ok_or_else(|| invalid(format!("{bytes} bytes for no connection")))?;
            self.ram.read(addr + HEADER as u64, here);
        }
        self.recycle(addr);
        if header.op.get() == op::CREDIT_REQUEST {
            self.packet(op::CREDIT_UPDATE, 0, &[])?;
        }
        Ok(Some(event))
    }

    fn meaning(&mut self, header: &Header) -> io::Result<Event> {
        let from = (header.src_cid.get() as u32, header.src_port.get());
        let event = match header.op.get() {
            op::REQUEST => Event::Request,
            op::RESPONSE => Event::Response,
            op::RW => Event::Data(header.len.get() as usize),
            op::CREDIT_UPDATE | op::CREDIT_REQUEST => Event::Credit,
            op::SHUTDOWN => Event::Shutdown,
            op::RST => return Err(io::ErrorKind::ConnectionReset.into()),
            other => return Err(invalid(format!("operation {other}"))),
        };
        if matches!(event, Event::Request) {
            self.there = from;
        }
        if from != self.there || header.dst_port.get() != self.here.1 {
            return Err(invalid(format!("a packet of {from:?} in a stream with {:?}", self.there)));
        }
        (self.peer_window, self.peer_read) = (header.buf_alloc.get(), header.fwd_cnt.get());
        Ok(event)
    }

    /// Posts buffers again when half of them are read.
    fn recycle(&mut self, addr: u64) {
        self.spare.push(addr);
        if self.spare.len() >= usize::from(SIZE / 2) {
            for addr in self.spare.drain(..) {
                let id = self.rx.post(&[into(addr, BUFFER)]);
                self.buffers[usize::from(id)] = addr;
            }
            self.rx.kick();
        }
    }

    fn packet(&mut self, op: u16, flags: u32, payload: &[u8]) -> io::Result<()> {
        let slot = loop {
            self.reap();
            match self.free.pop() {
                Some(slot) => break slot,
                None => self.wait()?,
            }
        };
        let header = Header {
            len: (payload.len() as u32).into(),
            flags: flags.into(),
            buf_alloc: WINDOW.into(),
            fwd_cnt: self.read.into(),
            ..Header::new(self.here, self.there, kind::STREAM, op)
        };
        self.reported = self.read;
        self.ram.write(slot.header, header.as_bytes());
        let id = if payload.is_empty() {
            self.tx.post(&[out(slot.header, HEADER)])
        } else {
            self.ram.write(slot.payload, payload);
            self.tx.post(&[out(slot.header, HEADER), out(slot.payload, payload.len())])
        };
        self.slots[usize::from(id)] = slot;
        self.tx.kick();
        Ok(())
    }

    fn reap(&mut self) {
        while let Some((id, _)) = self.tx.take() {
            self.free.push(self.slots[usize::from(id)]);
        }
    }

    fn has_completion(&self) -> bool {
        self.rx.has_completion() || self.tx.has_completion()
    }

    /// Until a packet has come or one has been sent.
    fn wait(&mut self) -> io::Result<()> {
        self.reap();
        let start = Instant::now();
        let (mut polls, mut last) = (0, start);
        loop {
            if self.has_completion() {
                return Ok(());
            }
            let now = Instant::now();
            if polls > PAUSES && now - last > WANTED {
                self.yield_until = now + YIELD_TIME;
            }
            if now - start >= HALT_POLL || polls >= PAUSES && now < self.yield_until {
                break;
            }
            (polls, last) = (polls + 1, now);
            if polls < PAUSES { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        self.rx.listen();
        self.tx.listen();
        fence(Ordering::SeqCst);
        if self.has_completion() {
            return Ok(());
        }
        let mut lines = [self.rx.call(), self.tx.call()].map(|call| PollFd::new(call, PollFlags::IN));
        let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
        if poll(&mut lines, Some(&timeout))? == 0 {
            let what = format!("nothing came for {TIMEOUT:?}: it hangs");
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        let called = lines.map(|line| !line.revents().is_empty());
        for (ring, called) in [&self.rx, &self.tx].into_iter().zip(called) {
            if called {
                signals(ring.call());
            }
        }
        Ok(())
    }
}
