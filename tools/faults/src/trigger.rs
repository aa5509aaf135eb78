//! A fault that waits for its moment.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use vmlane_port::wrap::Fault;

/// A fault that waits for the next call of what wraps a port or a device.
#[derive(Debug, Default)]
pub struct Trigger(AtomicU32);

const PANIC: u32 = u32::MAX;
const TRESPASS: u32 = u32::MAX - 1;

impl Trigger {
    /// The next [`Trigger::fire`] does `fault`.
    pub fn arm(&self, fault: Fault) {
        let word = match fault {
            Fault::Panic => PANIC,
            Fault::Trespass => TRESPASS,
            Fault::Stall(time) => (time.as_millis() as u32).clamp(1, TRESPASS - 1),
        };
        self.0.store(word, Ordering::Relaxed);
    }

    /// Does what was asked for, once.
    #[inline]
    pub fn fire(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.go_wrong();
        }
    }

    #[cold]
    fn go_wrong(&self) {
        let fault = match self.0.swap(0, Ordering::Relaxed) {
            0 => return,
            PANIC => Fault::Panic,
            TRESPASS => Fault::Trespass,
            milliseconds => Fault::Stall(Duration::from_millis(milliseconds.into())),
        };
        fault.happen();
    }
}
