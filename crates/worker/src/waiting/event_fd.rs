//! What wakes a sleeping worker: a file, beside those that its engine waits for.

use std::io;
#[cfg(not(test))]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A counter of the kernel that is readable while it is not zero: from the first raise until it is cleared.
#[cfg(not(test))]
pub struct EventFd(OwnedFd);

#[cfg(not(test))]
impl EventFd {
    /// Fails if the process has no descriptor to spare.
    pub fn new() -> io::Result<EventFd> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(EventFd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    #[cold]
    pub fn raise(&self) {
        // Fails only when the counter is full: then it is readable, too.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

#[cfg(not(test))]
impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The same for the model checker.
#[cfg(test)]
pub struct EventFd {
    count: crate::sync::Mutex<u64>,
    readable: crate::sync::Condvar,
}

#[cfg(test)]
impl EventFd {
    pub fn new() -> io::Result<EventFd> {
        Ok(EventFd { count: crate::sync::Mutex::new(0), readable: crate::sync::Condvar::new() })
    }

    pub fn raise(&self) {
        *crate::sync::lock(&self.count) += 1;
        self.readable.notify_one();
    }

    /// Makes it unreadable.
    pub fn clear(&self) {
        *crate::sync::lock(&self.count) = 0;
    }

    /// As `poll` would.
    pub fn poll(&self) {
        let mut count = crate::sync::lock(&self.count);
        while *count == 0 {
            count = crate::sync::wait(&self.readable, count);
        }
    }
}
