//! How a worker goes to sleep and is woken, so that no wake-up is lost.
//!
//! ```text
//! worker:  asleep = true;  fence;  look at everything once more;  sleep if there is nothing
//! others:  publish;        fence;  if asleep, wake
//! ```
//!
//! One of the two fences comes first. If it is the worker's, the other thread sees `asleep` and wakes
//! it; otherwise the worker's last look sees what was published. `parking/tests.rs` has the model checker try every
//! order, and shows that it finds the lost wake-up when a step is missing or misplaced.

use std::io;
use std::time::Duration;

use super::signal::{EventFd, Signal};
use crate::sync::{AtomicBool, Ordering, fence};

/// Where one worker sleeps.
pub struct Parking {
    /// The worker is to look at its commands.
    notified: AtomicBool,
    /// It sleeps, or is about to.
    asleep: AtomicBool,
    signal: Signal,
}

impl Parking {
    /// For a worker that waits for no files.
    pub fn for_thread() -> Parking {
        Parking::new(Signal::thread())
    }

    /// For a worker that waits for files. Fails if the process has no descriptor to spare.
    pub fn for_files() -> io::Result<Parking> {
        Signal::file().map(Parking::new)
    }

    fn new(signal: Signal) -> Parking {
        Parking { notified: AtomicBool::new(false), asleep: AtomicBool::new(false), signal }
    }

    /// There is something for the worker to take, or to look at. For other threads. One that comes before
    /// the worker has acknowledged the last one leaves the waking to that one.
    #[inline]
    pub fn notify(&self) {
        if !self.notified.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Wakes the worker if it sleeps: for what [`crate::Engine::arm`] looks at. Published before this call.
    #[inline]
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.signal.raise();
        }
    }

    /// Was the worker notified? One relaxed load, for every round.
    #[inline]
    pub fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Relaxed)
    }

    /// The worker looks now. Before it takes anything, or what comes meanwhile would go unnoticed.
    pub fn acknowledge(&self) {
        self.notified.swap(false, Ordering::AcqRel);
    }

    /// The calling thread is the worker.
    pub fn adopt(&self) {
        self.signal.adopt();
    }

    /// The worker is about to sleep: any thread that publishes something from now on wakes it. The worker
    /// looks at everything once more after this.
    pub fn prepare_sleep(&self) {
        self.asleep.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Sleeps on the thread's signal, until woken or for `limit`.
    pub fn park(&self, limit: Option<Duration>) {
        Signal::park(limit);
    }

    /// The file to sleep on, if this worker waits for files. Readable when the worker is woken.
    pub fn file(&self) -> Option<&EventFd> {
        match &self.signal {
            Signal::Thread(_) => None,
            Signal::File(file) => Some(file),
        }
    }

    /// The worker is awake; `signalled` if [`Self::file`] was readable.
    pub fn finish_sleep(&self, signalled: bool) {
        self.asleep.swap(false, Ordering::AcqRel);
        if let (Signal::File(file), true) = (&self.signal, signalled) {
            file.clear();
        }
    }
}

#[cfg(test)]
mod tests;
