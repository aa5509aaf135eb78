//! A PCI function behind vhost-user, for guests under User Mode Linux, whose PCI bus is virtio.
//!
//! ```text
//! guest's driver -> accesses (virtqueue 0) -> this thread -> PciDevice
//! PciDevice, on any thread -> Messages -> interrupts (virtqueue 1) -> guest's driver
//! ```
//! Linux' `virtio_pcidev.c` is the other side. Reads are answered while its CPU spins. Writes are *posted*:
//! the guest has gone on when they are carried out, in their order. So a driver that takes memory back after
//! a write to a command register may find the device still at work in it, which no VMM of ours allows;
//! decision 22: why this is good enough for what it is for, and that the configuration has to ask for it.
//!
//! Nothing of it outlives the daemon: the guest connects once, when it boots.

mod function;
mod interrupts;
pub mod message;
mod ring;
mod table;
mod waker;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vmlane_daemon::extras::{Attached, PciBus};
use vmlane_device::irq::Interrupts;
use vmlane_device::pci::PciDevice;
use vmlane_device::virtio::queue::{Broken, Taken};
use vmlane_device::virtio::vhost::{Lines as _, Setup, VhostDevice};
use vmlane_mem::MemoryMap;
use vmlane_port::LogLimit;
use vmlane_port::role::{self, Role};
use vmlane_transport::SessionStats;
use vmlane_transport::{RingLines, Server, VhostEnd};
use vmlane_wire::virtio::feature;
use zerocopy::FromBytes;

use self::function::{Function, MAX_DATA};
pub use self::interrupts::Messages;
use self::message::{ACCESSES, INTERRUPTS, Message, Op};
use self::ring::Ring;

/// Accesses carried out before others may use the function.
const TURN: usize = 256;
/// Writes completed before the guest is called for them: Linux has 20 buffers for writes, and uses them again
/// when it is called or reads.
const UNCALLED: u32 = 10;

/// What the daemon attaches functions by.
pub struct Bus;

impl PciBus for Bus {
    fn attach(&self, stats: Arc<SessionStats>) -> io::Result<Box<dyn Attached>> {
        let lines = Arc::new(RingLines::new(PciOverVirtio::QUEUES)?);
        let messages = Arc::new(Messages::new(lines.clone(), stats.clone())?);
        Ok(Box::new(Place { messages, lines, stats }))
    }
}

struct Place {
    messages: Arc<Messages>,
    lines: Arc<RingLines>,
    stats: Arc<SessionStats>,
}

impl Attached for Place {
    fn interrupts(&self) -> Arc<dyn Interrupts> {
        self.messages.clone()
    }

    fn serve(self: Box<Self>, name: &str, function: Box<dyn PciDevice>, end: VhostEnd) -> io::Result<Server> {
        let Place { messages, lines, stats } = *self;
        let device = PciOverVirtio::new(name, function, messages, lines.clone(), stats.clone())?;
        end.serve(name, Box::new(device), lines, stats)
    }
}

/// The device that a vhost-user session drives.
pub struct PciOverVirtio {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    served: Mutex<Served>,
    interrupts: Arc<Messages>,
    lines: Arc<RingLines>,
    stats: Arc<SessionStats>,
    ended: AtomicBool,
}

/// Behind one lock: the session sets it up, the thread serves it.
struct Served {
    function: Function,
    ring: Option<Ring>,
    /// Completions that the guest has not been called for.
    uncalled: u32,
    /// The access at hand.
    buffer: Vec<u8>,
    log: LogLimit,
}

impl PciOverVirtio {
    pub const QUEUES: u16 = 2;

    /// `device` raises its interrupts at `interrupts`, and both use `lines`. The thread is named after
    /// `name`.
    pub fn new(
        name: &str,
        device: Box<dyn PciDevice>,
        interrupts: Arc<Messages>,
        lines: Arc<RingLines>,
        stats: Arc<SessionStats>,
    ) -> io::Result<PciOverVirtio> {
        let function = Function::new(device, interrupts.clone());
        let buffer = vec![0; size_of::<Message>() + MAX_DATA];
        let served = Served { function, ring: None, uncalled: 0, buffer, log: LogLimit::default() };
        let ended = AtomicBool::new(false);
        let shared = Arc::new(Shared { served: Mutex::new(served), interrupts, lines, stats, ended });
        let serving = shared.clone();
        let named = tracing::error_span!("serving", device = name);
        let thread = std::thread::Builder::new().name(format!("pci-{name}")).spawn(move || {
            role::enter(Role::Session);
            let _named = named.entered();
            serving.run();
        })?;
        Ok(PciOverVirtio { shared, thread: Some(thread) })
    }
}

impl VhostDevice for PciOverVirtio {
    fn features(&self) -> u64 {
        feature::VERSION_1 | feature::EVENT_INDEX
    }

    fn queues(&self) -> u16 {
        PciOverVirtio::QUEUES
    }

    fn config(&self) -> Vec<u8> {
        Vec::new()
    }

    fn run(&mut self, setup: Setup) {
        let Setup { features, memory, rings, .. } = setup;
        let ring = |number: u16| {
            let setup = rings.get(usize::from(number))?.as_ref()?;
            let ring = Ring::new(setup, features, &memory);
            ring.inspect_err(|error| tracing::debug!(number, %error, "a virtqueue that cannot run")).ok()
        };
        let mut served = self.shared.served.lock();
        let (accesses, messages) = (ring(ACCESSES), ring(INTERRUPTS));
        served.function.set_memory(memory);
        served.ring = accesses;
        self.shared.interrupts.set_ring(messages);
        drop(served);
        // What the guest announced before.
        self.shared.interrupts.waker().wake();
    }

    fn stop(&mut self) {
        let mut served = self.shared.served.lock();
        self.shared.interrupts.set_ring(None);
        if let Some(ring) = served.ring.take() {
            ring.leave();
        }
        served.function.set_memory(MemoryMap::default());
    }

    fn gone(&mut self) {
        self.shared.served.lock().function.reset();
    }
}

impl Drop for PciOverVirtio {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.shared.interrupts.waker().wake();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut watching = false;
        while !self.ended.load(Ordering::Acquire) {
            self.wait(watching);
            watching = self.interrupts.call_again();
            self.interrupts.posted();
            loop {
                let mut served = self.served.lock();
                if !served.turn(self) {
                    break;
                }
                // The session may have something to change.
                MutexGuard::unlock_fair(served);
            }
        }
    }

    /// Until the guest announces something, or there is another reason to poll.
    fn wait(&self, watching: bool) {
        let Some(doorbell) = self.lines.doorbell() else { return };
        let waker = self.interrupts.waker();
        let mut files =
            [PollFd::from_borrowed_fd(doorbell, PollFlags::IN), PollFd::new(waker, PollFlags::IN)];
        let again = interrupts::AGAIN;
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(again.subsec_nanos()) };
        match poll(&mut files, watching.then_some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => tracing::warn!(%error, "a guest cannot be waited for"),
        }
        let [doorbell, woken] = files.map(|file| !file.revents().is_empty());
        if doorbell {
            self.lines.clear();
        }
        if woken {
            waker.clear();
        }
    }
}

impl Served {
    /// Carries out accesses. True: there may be more.
    fn turn(&mut self, shared: &Shared) -> bool {
        for _ in 0..TURN {
            match self.one(shared) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) => {
                    shared.stats.counts.errors.inc();
                    self.ring = None;
                    shared.lines.fail(ACCESSES.into());
                    if let Some(held_back) = self.log.allow() {
                        tracing::debug!(%error, held_back, "accesses to a function: the virtqueue stands still");
                    }
                    return false;
                }
            }
        }
        true
    }

    /// Carries out one access. False: there is none, and the guest will announce the next one.
    fn one(&mut self, shared: &Shared) -> Result<bool, Broken> {
        let Some(ring) = &mut self.ring else { return Ok(false) };
        let Some(taken) = ring.next()? else { return Ok(ring.listen()) };
        let len = self.carry_out(shared).unwrap_or(0);
        self.complete(shared, &taken, len);
        Ok(true)
    }

    fn complete(&mut self, shared: &Shared, taken: &Taken, len: usize) {
        let Some(ring) = &mut self.ring else { return };
        ring.complete(taken, len);
        if ring.room() > 0 {
            // The guest waits for the answer, and sees all that is complete with it.
            self.uncalled = 0;
            return;
        }
        self.uncalled += 1;
        if self.uncalled >= UNCALLED {
            self.uncalled = 0;
            shared.lines.call(ACCESSES.into());
        }
    }

    /// The access of the chain at hand; returns the bytes of the answer. None: it made no sense.
    fn carry_out(&mut self, shared: &Shared) -> Option<usize> {
        let Served { function, ring: Some(ring), buffer, log, .. } = self else { return None };
        shared.stats.counts.messages.inc();
        let have = ring.copy_out(buffer).ok()?;
        let (message, data) = Message::read_from_prefix(buffer.get(..have)?).ok()?;
        let (size, sent) = (usize::try_from(message.size.get()).ok()?, data.len());
        let data = buffer.get_mut(size_of::<Message>()..)?;
        let is_read = matches!(message.op(), Some(Op::ConfigRead | Op::Read));
        let counter = if is_read { &shared.stats.counts.reads } else { &shared.stats.counts.writes };
        counter.inc();
        let fits = match message.op() {
            Some(Op::Fill) => sent > 0,
            _ if is_read => size <= ring.room(),
            _ => size <= sent,
        };
        let data = data.get_mut(..size).filter(|_| fits);
        let Some(data) = data else {
            shared.stats.counts.errors.inc();
            return None;
        };
        match message.op() {
            Some(Op::Fill) => data.fill(data.first().copied().unwrap_or_default()),
            _ if is_read => data.fill(0xff),
            _ => shared.stats.counts.posted_writes.inc(),
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| function.access(&message, data)));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                shared.stats.counts.errors.inc();
                // As on a bus where no function answers.
                data.fill(0xff);
                if let Some(held_back) = log.allow() {
                    tracing::debug!(%error, held_back, "access refused");
                }
            }
            Err(_) => {
                shared.stats.counts.errors.inc();
                shared.stats.counts.panics.inc();
                data.fill(0xff);
                if let Some(held_back) = log.allow() {
                    tracing::error!(held_back, "fault in device code; device reset");
                }
                if catch_unwind(AssertUnwindSafe(|| function.reset())).is_err() {
                    shared.stats.counts.panics.inc();
                }
            }
        }
        if is_read { ring.copy_in(data).ok() } else { Some(0) }
    }
}
