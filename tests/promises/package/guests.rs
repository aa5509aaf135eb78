//! Synthetic guests whose VMMs are this process, and checked streams between them: two with VMCI, and two
//! with virtio-vsock.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use vmlane_guestsim::vsock_vm::VsockVm;
use vmlane_guestsim::{Guest, Options, Pattern, Placement, attached};
use vmlane_tests::wait_until;

/// VMs of a configuration, for [`Traffic`], and how long their sessions are held without a daemon: as long as
/// it takes.
pub const SOCKETS: &str = "\
[daemon]
hold = 0
[[vm]]
name = \"c\"
cid = 6
vsock = \"virtio\"
[[vm]]
name = \"d\"
cid = 7
vsock = \"virtio\"
";

/// Bytes that show that a stream goes on.
const SOME: u64 = 1 << 20;
const PORT: u32 = 5000;
const BLOCK: usize = 16 << 10;
const SEED: u64 = 17;
/// SHUTDOWN_SEND of vSockets' packets.
const SEND: u64 = 2;

fn attach(socket: &Path) -> Arc<Guest> {
    let driver = attached::attach(socket, 64 << 20);
    Guest::new(driver.unwrap_or_else(|error| panic!("{}: {error}", socket.display())))
}

/// Streams on their way, between a and b with VMCI and between c and d with virtio-vsock. Dropping it ends
/// nothing: `finish` does.
pub struct Traffic {
    vmci: Stream,
    virtio: Sockets,
}

impl Traffic {
    /// `socket`: of a VM, with a name. a has CID 3, b 4.
    pub fn start(socket: impl Fn(&str, &str) -> PathBuf) -> Traffic {
        let vmci = Stream::start(&socket("a", "vmci"), &socket("b", "vmci"), 4);
        Traffic { vmci, virtio: Sockets::start(&socket("c", "vsock"), &socket("d", "vsock")) }
    }

    /// Waits for bytes that show that all streams go on.
    pub fn goes_on(&self) {
        self.vmci.goes_on();
        self.virtio.goes_on();
    }

    /// Ends the streams, of which every byte must have arrived. Returns how many, with VMCI and with
    /// virtio-vsock.
    pub fn finish(self) -> [u64; 2] {
        let (sent, received) = self.vmci.finish();
        assert_eq!(sent, received);
        [received, self.virtio.finish()]
    }
}

/// Eight streams, both ways, between two guests with virtio-vsock whose VMMs connect once and never again.
struct Sockets {
    /// By stream and direction, in bytes.
    received: Arc<[AtomicU64]>,
    over: Arc<AtomicBool>,
    guests: JoinHandle<u64>,
}

impl Sockets {
    const STREAMS: u32 = 8;

    fn start(c: &Path, d: &Path) -> Sockets {
        let (mut c, mut d) = (VsockVm::attach(6, c, false), VsockVm::attach(7, d, false));
        let names: Vec<_> = (0..Sockets::STREAMS).map(|at| ((1000 + at, 7, PORT), (PORT, 6, 1000 + at))).collect();
        let received: Arc<[AtomicU64]> = (0..2 * Sockets::STREAMS).map(|_| AtomicU64::new(0)).collect();
        let over = Arc::new(AtomicBool::new(false));
        let (counted, stop) = (received.clone(), over.clone());
        let guests = std::thread::spawn(move || {
            names.iter().for_each(|(name, _)| c.connect(*name));
            loop {
                let is_over = stop.load(Ordering::Acquire);
                let mut missing = 0;
                for (at, (near, far)) in names.iter().enumerate() {
                    let (Some(near), Some(far)) = (c.ends.get_mut(near), d.ends.get_mut(far)) else { continue };
                    assert!(!near.reset && !far.reset, "stream {at} was reset");
                    missing += near.wanted + far.wanted - near.received - far.received;
                    for (end, at) in [(near, 2 * at), (far, 2 * at + 1)] {
                        counted[at].store(end.received, Ordering::Release);
                        end.wanted = if is_over { end.wanted } else { end.sent + SOME };
                    }
                }
                if is_over && missing == 0 {
                    return c.ends.values().chain(d.ends.values()).map(|end| end.received).sum();
                }
                if !(c.turn() | d.turn()) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        Sockets { received, over, guests }
    }

    fn goes_on(&self) {
        let now = || self.received.iter().map(|bytes| bytes.load(Ordering::Acquire));
        let before: Vec<u64> = now().collect();
        wait_until("bytes of each stream of virtio-vsock", || {
            assert!(!self.guests.is_finished(), "the streams have ended");
            now().zip(&before).all(|(now, before)| now > before + SOME / 8)
        });
    }

    fn finish(self) -> u64 {
        self.over.store(true, Ordering::Release);
        self.guests.join().expect("every byte arrives")
    }
}

/// A stream with VMCI.
struct Stream {
    received: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<u64>,
}

impl Stream {
    /// From the VM with the socket `from` to the one with the socket `to` and `cid`.
    fn start(from: &Path, to: &Path, cid: u32) -> Stream {
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
        Stream { received, over, sender, receiver }
    }

    /// Bytes that have arrived and were right.
    fn received(&self) -> u64 {
        assert!(!self.receiver.is_finished() && !self.sender.is_finished(), "the stream has ended");
        self.received.load(Ordering::Acquire)
    }

    /// Waits for bytes that show that the stream goes on.
    fn goes_on(&self) {
        let before = self.received();
        wait_until("bytes of the stream", || self.received() > before + SOME);
    }

    /// Ends the stream. Bytes that were sent, and bytes that arrived.
    fn finish(self) -> (u64, u64) {
        self.over.store(true, Ordering::Release);
        let received = self.receiver.join().expect("the receiver");
        (self.sender.join().expect("the sender"), received)
    }
}
