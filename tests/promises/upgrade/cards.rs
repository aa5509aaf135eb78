//! Numbered frames from one VMXNET3 card to another, whose drivers and VMMs are this process.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use vmlane_guestsim::attached::AttachedNic;
use vmlane_guestsim::nic::{DriverSpec, NicDriver, NicRegisters as _, TxRequest};
use vmlane_tests::wait_until;
use vmlane_wire::vmxnet3::regs::PageReg;

use super::frames::{Counted, SOME};

/// The number fills a frame from here on.
const HEAD: usize = 14;
const FRAME: usize = 62;

/// Frames on their way. Dropping it ends nothing: `finish` does.
pub struct Cards {
    came: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<Counted>,
}

/// A card whose driver is up.
struct Card {
    nic: AttachedNic,
    driver: NicDriver,
}

impl Card {
    fn attach(socket: &Path) -> Card {
        let nic = AttachedNic::attach(socket, 16 << 20);
        let nic = nic.unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
        let mut driver = NicDriver::probe(&nic, DriverSpec::linux(4));
        driver.open(&nic);
        Card { nic, driver }
    }
}

fn frame(to: [u8; 6], from: [u8; 6], number: u64) -> Vec<u8> {
    let mut bytes = [&to[..], &from, &[0x88, 0xb5]].concat();
    while bytes.len() < FRAME {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

impl Cards {
    /// From the card with the socket and the address `from` to the one with `to`.
    pub fn start(from: (&Path, [u8; 6]), to: (&Path, [u8; 6])) -> Cards {
        let (came, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (mut sender, mut receiver) = (Card::attach(from.0), Card::attach(to.0));
        let (counted, stop) = (came.clone(), over.clone());
        let (source, target) = (from.1, to.1);
        let thread = std::thread::spawn(move || {
            // All of it, its session included.
            let receiver = &mut receiver;
            let (mut next, mut sum) = (0, Counted::default());
            loop {
                let mut sent = false;
                while !stop.load(Ordering::Acquire)
                    && sender.driver.tx[0].send(&frame(target, source, next), &[], &TxRequest::NONE)
                {
                    (next, sent) = (next + 1, true);
                }
                if sent {
                    sender.nic.write_page(PageReg::TxProducer(0), (next % 64) as u32);
                }
                sender.driver.tx[0].reap();
                let mut idle = true;
                while let Some(received) = receiver.driver.rx[0].receive() {
                    let (bytes, at) = (&received.bytes, HEAD + 8);
                    let number = u64::from_le_bytes(*bytes[HEAD..at].first_chunk().expect("a number"));
                    assert_eq!(bytes[..], frame(target, source, number)[..], "frame {number}");
                    sum.count(number);
                    idle = false;
                }
                counted.store(sum.came, Ordering::Release);
                if stop.load(Ordering::Acquire) && sender.driver.tx[0].outstanding() == 0 && idle {
                    return sum;
                }
                if idle {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        Cards { came, over, thread }
    }

    /// Waits for frames that show that they go on.
    pub fn go_on(&self) {
        let before = self.came.load(Ordering::Acquire);
        wait_until("frames of the cards", || {
            assert!(!self.thread.is_finished(), "the cards have failed");
            self.came.load(Ordering::Acquire) > before + SOME
        });
    }

    /// Ends them, once every frame that was sent has been completed.
    pub fn finish(self) -> Counted {
        self.over.store(true, Ordering::Release);
        self.thread.join().expect("the cards")
    }
}
