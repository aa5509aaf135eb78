//! Two synthetic guests with VMCI, whose VMMs are this process, and a checked stream from one to the other.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use vmlane_guestsim::{Guest, Options, Pattern, Placement, attached};
use vmlane_tests::wait_until;

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

    /// Waits for bytes that show that the stream goes on.
    pub fn goes_on(&self) {
        let before = self.received();
        wait_until("bytes of the stream", || self.received() > before + SOME);
    }

    /// Ends the stream. Bytes that were sent, and bytes that arrived.
    pub fn finish(self) -> (u64, u64) {
        self.over.store(true, Ordering::Release);
        let received = self.receiver.join().expect("the receiver");
        (self.sender.join().expect("the sender"), received)
    }
}
