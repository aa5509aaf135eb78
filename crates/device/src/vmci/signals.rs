//! Interrupt causes of one VMCI device: which are pending, enabled, and how they reach the guest.
//!
//! With a vector per cause Linux never reads ICR; with one vector (or the INTx line) it reads ICR,
//! which acknowledges. Both are kept at once, because the guest decides (`docs/devices/vmci.md`).

use std::sync::Arc;

use crate::irq::{Interrupts, IrqMode};

use super::stats::VmciStats;
use super::sync::{AtomicBool, AtomicU32, Ordering};

/// Shared by the session (registers) and the workers (notices).
pub struct Signals {
    irqs: Arc<dyn Interrupts>,
    stats: Arc<VmciStats>,
    /// IMR: causes the guest wants.
    mask: AtomicU32,
    /// CONTROL.INT_ENABLE.
    enabled: AtomicBool,
    /// ICR: causes not acknowledged by a read.
    pending: AtomicU32,
    /// Causes that came while they could not be delivered.
    deferred: AtomicU32,
    /// Times that something changed which decides whether causes can be delivered.
    changes: AtomicU32,
}

impl Signals {
    pub fn new(irqs: Arc<dyn Interrupts>, stats: Arc<VmciStats>) -> Signals {
        Signals {
            irqs,
            stats,
            mask: AtomicU32::new(0),
            enabled: AtomicBool::new(false),
            pending: AtomicU32::new(0),
            deferred: AtomicU32::new(0),
            changes: AtomicU32::new(0),
        }
    }

    /// Raises one cause (a single bit of ICR).
    pub fn raise(&self, cause: u32) {
        self.pending.fetch_or(cause, Ordering::SeqCst);
        self.deliver(cause);
    }

    /// Wakes a driver that sleeps for an answer, although its device was reset under it: it has switched
    /// nothing off itself, and sleeps for ever otherwise.
    pub fn wake_forgotten(&self, cause: u32) {
        let own = cause.trailing_zeros() as u16;
        if let IrqMode::Msix { vectors } | IrqMode::Msi { vectors } = self.irqs.mode()
            && own < vectors
        {
            self.irqs.raise(own);
        }
    }

    fn deliverable(&self) -> u32 {
        if self.enabled.load(Ordering::SeqCst) { self.mask.load(Ordering::SeqCst) } else { 0 }
    }

    fn fire(&self, cause: u32) -> bool {
        if self.deliverable() & cause == 0 {
            return false;
        }
        let vector = match self.irqs.mode() {
            IrqMode::Off => return false,
            IrqMode::Msix { vectors } | IrqMode::Msi { vectors } if vectors >= 2 => {
                let own = cause.trailing_zeros() as u16;
                if own < vectors { own } else { 0 }
            }
            IrqMode::Intx | IrqMode::Msi { .. } | IrqMode::Msix { .. } => 0,
        };
        let raised = self.irqs.raise(vector);
        if raised {
            self.stats.interrupts.inc();
        }
        raised
    }

    /// Raises causes, and notes those that cannot be delivered now. A thread that changes this later finds
    /// the note; one that changed it while this thread tried did not find it, and then this thread tries
    /// again.
    fn deliver(&self, causes: u32) {
        let mut waiting = causes;
        while waiting != 0 {
            let changes = self.changes.load(Ordering::SeqCst);
            let failed =
                (0..3).map(|bit| waiting & 1 << bit).filter(|&cause| cause != 0 && !self.fire(cause));
            let failed = failed.fold(0, |all, cause| all | cause);
            if failed == 0 {
                return;
            }
            self.deferred.fetch_or(failed, Ordering::SeqCst);
            if self.changes.load(Ordering::SeqCst) == changes {
                return;
            }
            waiting = self.deferred.swap(0, Ordering::SeqCst);
        }
    }

    /// Something changed: what was deferred may be deliverable now.
    fn release(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.deliver(self.deferred.swap(0, Ordering::SeqCst));
    }

    /// IMR.
    pub fn set_mask(&self, mask: u32) {
        self.mask.store(mask, Ordering::SeqCst);
        self.release();
    }

    pub fn mask(&self) -> u32 {
        self.mask.load(Ordering::SeqCst)
    }

    /// CONTROL.INT_ENABLE and INT_DISABLE.
    pub fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Ordering::SeqCst);
        self.release();
    }

    /// STATUS.INT_ON.
    pub fn asserted(&self) -> bool {
        self.pending.load(Ordering::SeqCst) & self.deliverable() != 0
    }

    /// A read of ICR: the enabled causes, acknowledged.
    pub fn acknowledge(&self) -> u32 {
        let mask = self.mask.load(Ordering::SeqCst);
        self.pending.fetch_and(!mask, Ordering::SeqCst) & mask
    }

    /// The VMM changed its set-up, or unmasked the line: deliver what could not be delivered, and
    /// repeat what a level-triggered line would still assert.
    pub fn lines_changed(&self) {
        self.release();
        if self.irqs.mode() == IrqMode::Intx && self.asserted() {
            self.irqs.raise(0);
        }
    }

    /// As in a previous daemon; whatever may have been pending is raised again by the caller.
    pub fn restore(&self, mask: u32, enabled: bool) {
        self.mask.store(mask, Ordering::SeqCst);
        self.enabled.store(enabled, Ordering::SeqCst);
    }

    /// CONTROL.INT_ENABLE is in force.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::SeqCst)
    }

    pub fn reset(&self) {
        self.enabled.store(false, Ordering::SeqCst);
        self.mask.store(0, Ordering::SeqCst);
        self.pending.store(0, Ordering::SeqCst);
        self.deferred.store(0, Ordering::SeqCst);
    }
}
