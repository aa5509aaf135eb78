//! A fault on request, for tests of containment.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A panic.
    Panic,
    /// The thread sleeps for so long.
    Stall(Duration),
    /// A system call that no code on this thread needs.
    Trespass,
}

impl Fault {
    /// Happens, here and now.
    #[cold]
    #[expect(clippy::panic, reason = "the panic is what was asked for")]
    pub fn happen(self) {
        match self {
            Fault::Panic => panic!("injected on request"),
            // statx(2): nothing that serves guests looks at files by name.
            Fault::Trespass => drop(std::fs::metadata("/")),
            Fault::Stall(time) => std::thread::sleep(time),
        }
    }
}

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
