//! The event fds that VMMs hand over: checked to be event fds, and raised without waiting for what a VMM
//! does.
//!
//! A `write` to an event fd waits while the counter is full, unless O_NONBLOCK is set. Both the counter and
//! that flag belong to the open file, which the VMM has, too: it may clear the flag and fill the counter
//! after any check. So a write that waits is interrupted (`guard.rs`), which only happens to event fds of a
//! hostile VMM. From then on, those of its device are raised in another way, which is slower and never waits:
//! by asynchronous requests (`requests.rs`). See docs/decisions/0010-event-fds.md.

mod guard;
mod plain;
mod requests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;
use rustix::io::Errno;

use self::requests::Requests;

/// A descriptor that is no event fd.
#[derive(Debug, thiserror::Error)]
#[error("descriptor is not an eventfd")]
pub struct NotEventFd;

/// The VMM of one device, over all its sessions, as far as its event fds are concerned.
#[derive(Debug)]
pub struct Owner {
    /// A write to one of its event fds had to wait.
    obstructs: AtomicBool,
}

impl Owner {
    /// One that is not known to be hostile. Starts the thread that watches writes, if there is none.
    pub fn new() -> Arc<Owner> {
        guard::start();
        Arc::new(Owner { obstructs: AtomicBool::new(false) })
    }
}

/// An event fd that another process has, too.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
    owner: Arc<Owner>,
}

impl EventFd {
    /// Takes a descriptor that is an event fd. Asks no file system about it: one that another process
    /// provides might never answer.
    pub fn new(fd: OwnedFd, owner: &Arc<Owner>) -> Result<EventFd, NotEventFd> {
        if !is_event_fd(fd.as_fd()) {
            return Err(NotEventFd);
        }
        // So that a full counter is none of a hostile VMM, unless that undoes it.
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(|_| NotEventFd)?;
        if !flags.contains(OFlags::NONBLOCK) {
            rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(|_| NotEventFd)?;
        }
        Ok(EventFd { fd, owner: owner.clone() })
    }

    /// Adds one to the counter. A full counter stays as it is: the event is pending anyway. Waits at most
    /// once for each device, and some hundredths of a second.
    #[inline]
    pub fn raise(&self) {
        if !self.owner.obstructs.load(Ordering::Relaxed)
            && let Some(written) = guard::guarded(|| plain::raise(&self.fd))
        {
            // Only a write that waits is interrupted.
            if written != Err(Errno::INTR) {
                return;
            }
            self.owner.obstructs.store(true, Ordering::Relaxed);
            tracing::warn!(
                "a VMM has made a write to its event fd wait; its device is notified in a slower way"
            );
        }
        self.raise_by_request();
    }

    #[cold]
    fn raise_by_request(&self) {
        match Requests::of_process() {
            Ok(requests) => requests.raise(self.fd.as_fd()),
            // The event is lost: that VMM wanted it so.
            Err(_) if self.owner.obstructs.load(Ordering::Relaxed) => {}
            Err(_) => drop(plain::raise(&self.fd)),
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Is it an event fd? Asks no file system.
pub fn is_event_fd(fd: BorrowedFd<'_>) -> bool {
    Requests::of_process().map_or_else(|_| plain::check(fd), |requests| requests.is_event_fd(fd))
}

/// Prepares to raise event fds without waiting, which the first use would do otherwise. For programs that
/// give up the system calls that this needs. An error: why the event fds of a hostile VMM cannot be
/// raised any more.
pub fn prepare() -> io::Result<()> {
    Requests::of_process().map(drop).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, epoll, eventfd};

    use super::*;

    pub fn event_fd() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
    }

    /// What is no event fd, anonymous inodes among them.
    pub fn others() -> Vec<OwnedFd> {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        vec![
            epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(),
            vmlane_mem::memfd("none", 4096).unwrap(),
            std::fs::File::open("/dev/null").unwrap().into(),
            reader,
            writer,
            socket.into(),
        ]
    }

    fn count(fd: &impl AsFd) -> u64 {
        let mut counter = [0; 8];
        rustix::io::read(fd, &mut counter).map_or(0, |_| u64::from_ne_bytes(counter))
    }

    #[test]
    fn every_raise_counts_however_many_there_are() {
        prepare().unwrap();
        let fd = EventFd::new(event_fd(), &Owner::new()).unwrap();
        assert_eq!(count(&fd.fd), 0, "the check raises nothing");
        let raises = 5000;
        std::thread::scope(|scope| {
            scope.spawn(|| (0..raises).for_each(|_| fd.raise()));
            for _ in 0..2 {
                scope.spawn(|| (0..raises).for_each(|_| fd.raise_by_request()));
            }
        });
        assert_eq!(count(&fd.fd), 3 * raises);
    }

    #[test]
    fn a_full_counter_stays_full_and_costs_one_wait_at_most() {
        prepare().unwrap();
        let (shared, owner) = (event_fd(), Owner::new());
        let fd = EventFd::new(shared.try_clone().unwrap(), &owner).unwrap();
        rustix::io::write(&shared, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(&shared, OFlags::NONBLOCK).unwrap();
        fd.raise();
        assert!(!owner.obstructs.load(Ordering::Relaxed), "full, as of a guest that is stopped");
        rustix::fs::fcntl_setfl(&shared, OFlags::empty()).unwrap();
        (0..3).for_each(|_| fd.raise());
        assert!(owner.obstructs.load(Ordering::Relaxed));
        assert!(count(&shared) >= u64::MAX - 1);
        fd.raise();
        assert_eq!(count(&shared), 1);
    }

    #[test]
    fn only_event_fds_pass() {
        prepare().unwrap();
        assert!(
            others()
                .into_iter()
                .all(|fd| !is_event_fd(fd.as_fd()) && EventFd::new(fd, &Owner::new()).is_err())
        );
    }
}
