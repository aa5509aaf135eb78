//! How a worker goes to sleep and is woken, so that no wake-up is lost.
//!
//! ```text
//! worker:  asleep = true;  fence;  poll everything once more;  sleep if there is nothing
//! others:  publish;        fence;  if asleep, wake
//! ```
//!
//! One of the two fences comes first. If it is the worker's, the other thread sees `asleep` and wakes it;
//! otherwise the worker's last poll sees what was published. `parking/tests.rs` has the model checker try
//! every order, and shows that it finds the lost wake-up when a step is missing or misplaced.

use std::io;

use super::event_fd::EventFd;
use crate::sync::{AtomicBool, Ordering, fence};

/// Where one worker sleeps.
pub struct Parking {
    /// The worker is to take its commands.
    notified: AtomicBool,
    /// It sleeps, or is about to.
    asleep: AtomicBool,
    file: EventFd,
}

impl Parking {
    /// Fails if the process has no descriptor to spare.
    pub fn new() -> io::Result<Parking> {
        let [notified, asleep] = [false, false].map(AtomicBool::new);
        Ok(Parking { notified, asleep, file: EventFd::new()? })
    }

    /// There is something for the worker to take, or to poll. For other threads. One that comes before
    /// the worker has acknowledged the last one leaves the waking to that one.
    #[inline]
    pub fn notify(&self) {
        if !self.notified.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Wakes the worker if it sleeps: for what [`crate::Rounds::arm`] polls. Published before this call.
    #[inline]
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.file.raise();
        }
    }

    /// Was the worker notified? One relaxed load, for every round.
    #[inline]
    pub fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Relaxed)
    }

    /// The worker polls now. Before it takes anything, or what comes meanwhile would go unnoticed.
    pub fn acknowledge(&self) {
        self.notified.swap(false, Ordering::AcqRel);
    }

    /// The worker is about to sleep: any thread that publishes something from now on wakes it. The worker
    /// polls everything once more after this.
    pub fn prepare_sleep(&self) {
        self.asleep.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// The file to sleep on, beside those that the engine waits for. Readable when the worker is woken.
    pub fn file(&self) -> &EventFd {
        &self.file
    }

    /// The worker is awake; `signalled` if [`Self::file`] was readable.
    pub fn finish_sleep(&self, signalled: bool) {
        self.asleep.swap(false, Ordering::AcqRel);
        if signalled {
            self.file.clear();
        }
    }
}

#[cfg(test)]
mod tests;
