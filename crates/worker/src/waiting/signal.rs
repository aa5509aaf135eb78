//! What wakes a sleeping worker: the token of its thread, or a file beside those that its engine waits for.

use std::io;
#[cfg(not(test))]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::sync::{Mutex, lock, thread};

/// Raised by any thread; stays raised until the worker has slept and woken.
pub enum Signal {
    /// Of a worker that waits for no file: a futex.
    Thread(Mutex<Option<thread::Thread>>),
    /// Of a worker that waits for files, too.
    File(EventFd),
}

impl Signal {
    /// For a worker without files. [`Signal::adopt`] comes before the first sleep.
    pub fn thread() -> Signal {
        Signal::Thread(Mutex::new(None))
    }

    /// For a worker with files. Fails if the process has no descriptor to spare.
    pub fn file() -> io::Result<Signal> {
        EventFd::new().map(Signal::File)
    }

    /// The calling thread is the one to wake.
    pub fn adopt(&self) {
        if let Signal::Thread(thread) = self {
            *lock(thread) = Some(thread::current());
        }
    }

    #[cold]
    pub fn raise(&self) {
        match self {
            Signal::Thread(thread) => {
                if let Some(thread) = &*lock(thread) {
                    thread.unpark();
                }
            }
            Signal::File(file) => file.raise(),
        }
    }

    /// Sleeps until raised or for `limit`; only for signals of a thread.
    pub fn park(limit: Option<Duration>) {
        #[cfg(not(test))]
        match limit {
            Some(limit) => thread::park_timeout(limit),
            None => thread::park(),
        }
        #[cfg(test)]
        {
            assert!(limit.is_none(), "the model knows no time");
            thread::park();
        }
    }
}

/// A counter of the kernel that is readable while it is not zero.
#[cfg(not(test))]
pub struct EventFd(OwnedFd);

#[cfg(not(test))]
impl EventFd {
    fn new() -> io::Result<EventFd> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(EventFd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    fn raise(&self) {
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
    count: Mutex<u64>,
    readable: crate::sync::Condvar,
}

#[cfg(test)]
impl EventFd {
    fn new() -> io::Result<EventFd> {
        Ok(EventFd { count: Mutex::new(0), readable: crate::sync::Condvar::new() })
    }

    fn raise(&self) {
        *lock(&self.count) += 1;
        self.readable.notify_one();
    }

    /// Makes it unreadable.
    pub fn clear(&self) {
        *lock(&self.count) = 0;
    }

    /// As `poll` would.
    pub fn poll(&self) {
        let mut count = lock(&self.count);
        while *count == 0 {
            count = crate::sync::wait(&self.readable, count);
        }
    }
}
