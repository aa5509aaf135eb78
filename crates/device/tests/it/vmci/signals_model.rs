//! Every order in which workers raise interrupts while the guest masks, unmasks and changes its vectors: none
//! is lost.
//!
//! The code is the device's own, compiled once more over `loom`'s types.

mod stats {
    pub use vmlane_device::vmci::VmciStats;
}

mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
}

#[path = "../../../src/vmci/signals.rs"]
#[expect(dead_code, reason = "the model has no use for all of it")]
mod signals;

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;
use vmlane_device::irq::{Interrupts, IrqMode};

use signals::Signals;

const DATAGRAM: u32 = 1;
const NOTIFICATION: u32 = 2;
const BOTH: u32 = DATAGRAM | NOTIFICATION;

/// Vectors that may be unplugged, and which of them were raised.
struct Lines {
    connected: AtomicBool,
    raised: AtomicU32,
}

impl Interrupts for Lines {
    fn mode(&self) -> IrqMode {
        if self.connected.load(Ordering::SeqCst) { IrqMode::Msix { vectors: 2 } } else { IrqMode::Off }
    }

    fn raise(&self, vector: u16) -> bool {
        // The lines may have gone since the mode was read.
        if !self.connected.load(Ordering::SeqCst) {
            return false;
        }
        self.raised.fetch_or(1 << vector, Ordering::SeqCst);
        true
    }
}

struct Model {
    signals: Signals,
    lines: Arc<Lines>,
}

impl Model {
    fn new(connected: bool) -> Arc<Model> {
        let lines = Arc::new(Lines { connected: AtomicBool::new(connected), raised: AtomicU32::new(0) });
        let signals = Signals::new(lines.clone(), Arc::default());
        Arc::new(Model { signals, lines })
    }

    /// Once everything is switched on and all is quiet, whatever was raised has arrived.
    fn has_arrived(&self, causes: u32) {
        assert_eq!(self.lines.raised.load(Ordering::SeqCst), causes, "an interrupt is lost");
    }
}

fn every_order(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(5);
    builder.check(model);
}

#[test]
fn a_cause_raised_while_the_guest_masks_and_unmasks_arrives() {
    every_order(|| {
        let model = Model::new(true);
        model.signals.set_enabled(true);
        let worker = model.clone();
        let raising = thread::spawn(move || worker.signals.raise(DATAGRAM));
        model.signals.set_mask(BOTH);
        model.signals.set_mask(0);
        model.signals.set_mask(BOTH);
        raising.join().unwrap();
        model.has_arrived(DATAGRAM);
    });
}

#[test]
fn causes_of_two_workers_arrive_no_matter_which_delivers_them() {
    every_order(|| {
        let model = Model::new(true);
        model.signals.set_mask(BOTH);
        let workers = [DATAGRAM, NOTIFICATION].map(|cause| {
            let worker = model.clone();
            thread::spawn(move || worker.signals.raise(cause))
        });
        model.signals.set_enabled(true);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        model.has_arrived(BOTH);
    });
}

#[test]
fn a_cause_raised_while_the_lines_are_connected_arrives() {
    every_order(|| {
        let model = Model::new(false);
        model.signals.set_mask(BOTH);
        model.signals.set_enabled(true);
        let worker = model.clone();
        let raising = thread::spawn(move || worker.signals.raise(NOTIFICATION));
        model.lines.connected.store(true, Ordering::SeqCst);
        model.signals.lines_changed();
        raising.join().unwrap();
        model.has_arrived(NOTIFICATION);
    });
}
