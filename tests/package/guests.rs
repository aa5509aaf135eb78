//! Two synthetic guests with VMCI, whose VMMs are this process, and a checked stream from one to the other.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use vmlane_device::irq::Interrupts as _;
use vmlane_guestsim::vfio_user::Client;
use vmlane_guestsim::{
    Driver, Guest, Lines, Options, Path as RegisterPath, Pattern, Placement, Ram, Registers,
};
use vmlane_guestsim::{eventfd, signals};

const PORT: u32 = 5000;
const BLOCK: usize = 16 << 10;
const SEED: u64 = 17;
/// SHUTDOWN_SEND of vSockets' packets.
const SEND: u64 = 2;

/// Register accesses by vfio-user. One that finds no daemon waits for the next one.
struct Remote(Client);

impl Registers for Remote {
    fn read32(&mut self, region: usize, offset: u64) -> u32 {
        self.0.read_u32(region as u32, offset).expect("an answer")
    }

    fn write32(&mut self, region: usize, offset: u64, value: u32) {
        self.0.write_u32(region as u32, offset, value).expect("an answer");
    }

    fn post32(&mut self, region: usize, offset: u64, value: u32) {
        self.0.post(region as u32, offset, &value.to_le_bytes()).expect("a session");
    }

    fn write_bytes(&mut self, region: usize, offset: u64, bytes: &[u8]) {
        self.0.write(region as u32, offset, bytes).expect("an answer");
    }

    fn read_bytes(&mut self, region: usize, offset: u64, bytes: &mut [u8]) {
        self.0.read(region as u32, offset, bytes).expect("an answer");
    }
}

fn attach(socket: &Path) -> Arc<Guest> {
    let ram = Arc::new(Ram::new(64 << 20));
    let mut client = Client::connect(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
    for (guest, len, offset) in ram.regions() {
        client.map(guest, len, Some((ram.fd().as_fd(), offset)), true).expect("mapped memory");
    }
    let vectors: Vec<OwnedFd> = (0..3).map(|_| eventfd().expect("an event fd")).collect();
    client.enable_msix(&vectors.iter().map(AsFd::as_fd).collect::<Vec<_>>()).expect("interrupts");
    let lines = Lines::msix();
    let bell = lines.clone();
    std::thread::spawn(move || {
        loop {
            let mut polled: Vec<_> = vectors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            if poll(&mut polled, None).is_err() {
                continue;
            }
            for (vector, fd) in (0..).zip(&vectors) {
                if signals(fd) > 0 {
                    bell.raise(vector);
                }
            }
        }
    });
    let driver = Driver::probe(Box::new(Remote(client)), ram, lines, RegisterPath::Dma).expect("a device");
    Guest::new(driver)
}

/// A stream on its way. Dropping it ends nothing: `finish` does.
pub struct Traffic {
    received: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<u64>,
}

impl Traffic {
    /// From the VM with the socket `from` to the one with the socket `to` and `cid`.
    pub fn start(from: &Path, to: &Path, cid: u32) -> Traffic {
        let (from, to) = (attach(from), attach(to));
        let listener = to.listen(PORT, Placement::Scattered);
        let (received, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let counted = received.clone();
        let receiver = std::thread::spawn(move || {
            let stream = listener.accept().expect("a connection");
            let (pattern, mut total, mut bytes) = (Pattern::new(SEED), 0, vec![0; BLOCK]);
            loop {
                let len = stream.recv(&mut bytes).expect("the stream goes on");
                if len == 0 {
                    return total;
                }
                pattern.check(total, &bytes[..len]);
                total += len as u64;
                counted.store(total, Ordering::Release);
            }
        });
        let stop = over.clone();
        let sender = std::thread::spawn(move || {
            let stream = from.connect((cid, PORT), Options::default()).expect("a connection");
            let (pattern, mut total) = (Pattern::new(SEED), 0);
            while !stop.load(Ordering::Acquire) {
                stream.send_all(&pattern.bytes(total, BLOCK)).expect("the stream goes on");
                total += BLOCK as u64;
            }
            stream.shutdown(SEND);
            // Until the other end has read everything and closes.
            while stream.recv(&mut [0; 1]).is_ok_and(|len| len > 0) {}
            total
        });
        Traffic { received, over, sender, receiver }
    }

    /// Bytes that have arrived and were right.
    pub fn received(&self) -> u64 {
        assert!(!self.receiver.is_finished() && !self.sender.is_finished(), "the stream has ended");
        self.received.load(Ordering::Acquire)
    }

    /// Ends the stream. Bytes that were sent, and bytes that arrived.
    pub fn finish(self) -> (u64, u64) {
        self.over.store(true, Ordering::Release);
        let received = self.receiver.join().expect("the receiver");
        (self.sender.join().expect("the sender"), received)
    }
}
