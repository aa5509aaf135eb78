//! Interrupt indices: masked or not, pending or not; who may fire when.
//!
//! The mask words lie in the BAR 0 page, which the guest may have mapped: it writes them without
//! telling anyone, so each raise loads them afresh, and what was pending is tried again on
//! every tick ([`Vectors::fire_pending`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use vmlane_mem::Window;

use crate::irq::{Interrupts, IrqMode};

/// Interrupt indices with the most queues (revision 6 and later).
pub const MAX_VECTORS: usize = 65;
/// Bit 0 of the interrupt control word: nothing fires.
const DISABLE_ALL: u32 = 1;
/// A mask word's only bit.
const MASKED: u32 = 1;

/// The interrupt indices of one NIC. Lives as long as the NIC; armed anew by each activation.
pub struct Vectors {
    /// BAR 0: a mask word every 8 bytes from 0 on.
    page: Arc<Window>,
    irqs: Arc<dyn Interrupts>,
    auto_mask: AtomicBool,
    /// Indices in use.
    count: AtomicU32,
    pending: [AtomicBool; MAX_VECTORS],
    /// INTx: the line is asserted.
    asserted: AtomicBool,
}

impl std::fmt::Debug for Vectors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vectors").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Vectors {
    /// The same for a page that a previous daemon had: masks stay.
    pub fn over(&self, page: Arc<Window>) -> Vectors {
        Vectors {
            page,
            irqs: self.irqs.clone(),
            auto_mask: AtomicBool::new(false),
            count: AtomicU32::new(0),
            pending: [const { AtomicBool::new(false) }; MAX_VECTORS],
            asserted: AtomicBool::new(false),
        }
    }

    /// Every index in use becomes pending: the next caller that publishes fires what may.
    pub fn raise_all(&self) {
        let count = self.count.load(Ordering::Acquire) as usize;
        self.pending.iter().take(count).for_each(|pending| pending.store(true, Ordering::SeqCst));
    }

    /// All masked, nothing pending. `page` has at least 0x208 bytes.
    pub fn new(page: Arc<Window>, irqs: Arc<dyn Interrupts>) -> Vectors {
        let vectors = Vectors {
            page,
            irqs,
            auto_mask: AtomicBool::new(false),
            count: AtomicU32::new(0),
            pending: [const { AtomicBool::new(false) }; MAX_VECTORS],
            asserted: AtomicBool::new(false),
        };
        vectors.reset();
        vectors
    }

    /// RESET: masks on, nothing pending, the line released.
    pub fn reset(&self) {
        (0..MAX_VECTORS).for_each(|index| self.page.store_u32(index * 8, MASKED));
        self.quiesce();
    }

    /// ACTIVATE: masks stay as they are.
    pub fn arm(&self, count: u8, auto_mask: bool) {
        self.quiesce();
        self.auto_mask.store(auto_mask, Ordering::Relaxed);
        self.count.store(u32::from(count), Ordering::Release);
    }

    /// QUIESCE: whatever is pending is forgotten, the line released.
    pub fn quiesce(&self) {
        self.count.store(0, Ordering::Release);
        self.pending.iter().for_each(|pending| pending.store(false, Ordering::Relaxed));
        self.asserted.store(false, Ordering::Release);
    }

    fn masked(&self, index: usize) -> bool {
        self.page.load_u32(index * 8) & MASKED != 0
    }

    /// Something was published for `index`. Fires, or remembers it for when the guest unmasks.
    /// `control` is DriverShared's interrupt control word, loaded after the publication.
    pub fn publish(&self, index: u8, control: u32) {
        let used = u32::from(index) < self.count.load(Ordering::Acquire);
        if let Some(pending) = self.pending.get(usize::from(index)).filter(|_| used) {
            pending.store(true, Ordering::SeqCst);
            self.fire(usize::from(index), pending, control);
        }
    }

    /// Fires what is pending and may. Returns true if something stays pending.
    pub fn fire_pending(&self, control: u32) -> bool {
        let count = self.count.load(Ordering::Acquire) as usize;
        let mut left = false;
        for (index, pending) in self.pending.iter().enumerate().take(count) {
            if pending.load(Ordering::Relaxed) {
                left |= !self.fire(index, pending, control);
            }
        }
        left
    }

    /// Does anything wait until the guest unmasks its vector? That is not announced.
    pub fn any_pending(&self) -> bool {
        self.pending.iter().any(|pending| pending.load(Ordering::Relaxed))
    }

    /// Is anything pending for `index`?
    pub fn is_pending(&self, index: u8) -> bool {
        self.pending.get(usize::from(index)).is_some_and(|pending| pending.load(Ordering::Relaxed))
    }

    fn fire(&self, index: usize, pending: &AtomicBool, control: u32) -> bool {
        if control & DISABLE_ALL != 0 || self.masked(index) {
            return false;
        }
        // One of several threads that see it pending fires.
        if !pending.swap(false, Ordering::SeqCst) {
            return true;
        }
        let intx = self.irqs.mode() == IrqMode::Intx;
        if self.auto_mask.load(Ordering::Relaxed) && !intx {
            // Before the interrupt: the handler's own write must come later.
            self.page.store_u32(index * 8, MASKED);
        }
        if intx {
            self.asserted.store(true, Ordering::SeqCst);
        }
        self.irqs.raise(if intx { 0 } else { index as u16 });
        true
    }

    /// The guest reads ICR: is the line ours? Releases it.
    pub fn acknowledge(&self) -> u32 {
        if !self.asserted.swap(false, Ordering::SeqCst) {
            return 0;
        }
        if self.auto_mask.load(Ordering::Relaxed) {
            self.page.store_u32(0, MASKED);
        }
        1
    }

    /// INTx was unmasked by the VMM: an asserted line is raised again.
    pub fn lines_changed(&self) {
        if self.asserted.load(Ordering::SeqCst) && self.irqs.mode() == IrqMode::Intx {
            self.irqs.raise(0);
        }
    }
}
