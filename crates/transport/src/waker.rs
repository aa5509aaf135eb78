//! Wakes a session's thread before the access comes for which its VMM will wait: an interrupt was raised, and
//! the driver's handler asks the device at once. Both ways to the thread's core are taken at the same time.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, read, retry_on_intr, write};

/// An event fd of our own, beside the socket of a session.
#[derive(Debug)]
pub struct Waker {
    fd: OwnedFd,
    /// The thread sleeps, or is about to.
    asleep: AtomicBool,
}

impl Waker {
    /// One that has no one to wake yet.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn new() -> Result<Waker, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker { fd, asleep: AtomicBool::new(false) })
    }

    /// Wakes the thread if it sleeps. It may miss that: it is only woken later then.
    pub fn wake(&self) {
        if self.asleep.swap(false, Ordering::AcqRel) {
            let _ = write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Sleeps until there is something at `socket`, its end included, or an interrupt wakes the thread
    /// before. True: one has.
    pub fn sleep(&self, socket: impl AsFd) -> Result<bool, Errno> {
        self.asleep.store(true, Ordering::Release);
        let mut fds = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&self.fd, PollFlags::IN)];
        let woken = retry_on_intr(|| poll(&mut fds, None));
        self.asleep.store(false, Ordering::Release);
        woken?;
        let [socket, waker] = fds.map(|fd| !fd.revents().is_empty());
        if waker {
            let _ = read(&self.fd, &mut [0; 8]);
        }
        Ok(waker && !socket)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_sleep_ends_by_an_interrupt_or_by_the_socket_and_what_wakes_no_one_is_forgotten() {
        let waker = Waker::new().unwrap();
        let (socket, mut peer) = UnixStream::pair().unwrap();
        waker.wake(); // no one sleeps
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| waker.sleep(&socket));
            while !sleeper.is_finished() {
                waker.wake();
                std::thread::yield_now();
            }
            assert_eq!(sleeper.join().unwrap(), Ok(true));
        });
        peer.write_all(b"x").unwrap();
        assert_eq!(waker.sleep(&socket), Ok(false));
        let (socket, peer) = UnixStream::pair().unwrap();
        drop(peer);
        assert_eq!(waker.sleep(&socket), Ok(false));
    }
}
