//! The interrupt controller of a synthetic guest: counts edges and wakes the thread that waits for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use vmlane_device::irq::{Interrupts, IrqMode};

/// Looks of a spinning waiter between two offers of its CPU to others.
const YIELD_EVERY: u32 = 16;
/// Vectors a guest can have.
const VECTORS: usize = 65;

/// Interrupt lines that remember. Waiters wake up at every edge, and when asked to.
#[derive(Debug)]
pub struct Lines {
    mode: Mutex<IrqMode>,
    raised: [AtomicU64; VECTORS],
    taken: [AtomicU64; VECTORS],
    rings: AtomicU64,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    edge: Condvar,
}

impl Lines {
    /// Three vectors of MSI-X, as every newer Linux has them.
    pub fn msix() -> Arc<Lines> {
        Lines::new(IrqMode::Msix { vectors: 3 })
    }

    pub fn new(mode: IrqMode) -> Arc<Lines> {
        Arc::new(Lines {
            mode: Mutex::new(mode),
            raised: [const { AtomicU64::new(0) }; VECTORS],
            taken: [const { AtomicU64::new(0) }; VECTORS],
            rings: AtomicU64::new(0),
            sleepers: AtomicU32::new(0),
            lock: Mutex::new(()),
            edge: Condvar::new(),
        })
    }

    /// Connects other lines. The device is to be notified ([`vmlane_device::pci::PciDevice::irqs_changed`]).
    pub fn set_mode(&self, mode: IrqMode) {
        *self.mode.lock() = mode;
    }

    /// Edges of `vector` so far.
    pub fn raised(&self, vector: u16) -> u64 {
        self.raised[usize::from(vector)].load(Ordering::SeqCst)
    }

    /// True if there were edges since the last call.
    pub fn take(&self, vector: u16) -> bool {
        let raised = self.raised(vector);
        self.taken[usize::from(vector)].swap(raised, Ordering::SeqCst) != raised
    }

    /// True if [`Self::take`] would be.
    pub fn pending(&self, vector: u16) -> bool {
        self.taken[usize::from(vector)].load(Ordering::SeqCst) != self.raised(vector)
    }

    /// What to hand to [`Self::wait`]: taken before looking whether there is a reason to wait.
    pub fn ticket(&self) -> u64 {
        self.rings.load(Ordering::SeqCst)
    }

    /// Wakes all waiters: they check again.
    pub fn ring(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock());
            self.edge.notify_all();
        }
    }

    /// Waits until there was an edge since `ticket`: spins for `spin`, then sleeps. False: `deadline`
    /// came first.
    pub fn wait(&self, ticket: u64, spin: Duration, deadline: Instant) -> bool {
        let until = Instant::now() + spin;
        let mut rounds = 0u32;
        while self.ticket() == ticket {
            if Instant::now() >= until {
                return self.sleep(ticket, deadline);
            }
            rounds += 1;
            // Where guests and workers outnumber the CPUs, an idle thread yields.
            if rounds.is_multiple_of(YIELD_EVERY) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        true
    }

    fn sleep(&self, ticket: u64, deadline: Instant) -> bool {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut guard = self.lock.lock();
        let mut in_time = true;
        while self.ticket() == ticket && in_time {
            in_time = !self.edge.wait_until(&mut guard, deadline).timed_out();
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        in_time || self.ticket() != ticket
    }
}

impl Interrupts for Lines {
    fn mode(&self) -> IrqMode {
        *self.mode.lock()
    }

    fn raise(&self, vector: u16) -> bool {
        let connected = match self.mode() {
            IrqMode::Off => 0,
            IrqMode::Intx => 1,
            IrqMode::Msi { vectors } | IrqMode::Msix { vectors } => vectors,
        };
        if vector >= connected {
            return false;
        }
        self.raised[usize::from(vector)].fetch_add(1, Ordering::SeqCst);
        self.ring();
        true
    }
}
