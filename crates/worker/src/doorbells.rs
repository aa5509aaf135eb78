//! The doorbells of all ports, as one file: what polling them costs grows with those that ring, not with
//! those that are there.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{Timespec, epoll};

/// Doorbells that are reported at once; those that ring on come next time.
const AT_ONCE: usize = 64;

/// Files that become readable when a guest announces something, each with a number.
#[derive(Debug)]
pub struct Doorbells {
    epoll: OwnedFd,
}

impl Doorbells {
    /// None yet.
    pub fn new() -> std::io::Result<Doorbells> {
        Ok(Doorbells { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Listens to `file` from now on, until [`Self::remove`], which must come before it is closed.
    pub fn add(&self, file: BorrowedFd<'_>, number: u64) -> std::io::Result<()> {
        Ok(epoll::add(&self.epoll, file, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?)
    }

    /// The same for one that is reported once for each announcement, whether or not it is read.
    pub fn add_once(&self, file: BorrowedFd<'_>, number: u64) -> std::io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, file, epoll::EventData::new_u64(number), flags)?)
    }

    /// Listens to it no more.
    pub fn remove(&self, file: BorrowedFd<'_>) {
        // Fails only if it is not there.
        let _ = epoll::delete(&self.epoll, file);
    }

    /// Calls `rung` with the numbers of those that ring now. They ring on until they are read, but for those
    /// of [`Self::add_once`].
    pub fn poll(&self, mut rung: impl FnMut(u64)) {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); AT_ONCE];
        // An error means that nothing was found: they ring on.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, Some(&at_once)) else { return };
        events.iter().for_each(|event| rung(event.data.u64()));
    }
}

impl AsFd for Doorbells {
    /// Readable while one of them rings.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// One of them, while it is there.
pub struct Doorbell {
    /// A descriptor of its own, so that it is there until it is taken out.
    file: OwnedFd,
    all: Arc<Doorbells>,
}

impl Doorbell {
    /// Puts `file` among `all`.
    pub fn new(file: BorrowedFd<'_>, all: &Arc<Doorbells>, number: u64) -> std::io::Result<Doorbell> {
        let file = file.try_clone_to_owned()?;
        all.add(file.as_fd(), number)?;
        Ok(Doorbell { file, all: all.clone() })
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        self.all.remove(self.file.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::Doorbells;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::AsFd;

    #[test]
    fn those_that_ring_are_reported_until_they_are_read() {
        let doorbells = Doorbells::new().expect("an epoll file");
        let files = [7u64, 9].map(|number| {
            let file = eventfd(0, EventfdFlags::NONBLOCK).expect("an event fd");
            doorbells.add(file.as_fd(), number).expect("added");
            file
        });
        let rung = || {
            let mut list = Vec::new();
            doorbells.poll(|number| list.push(number));
            list
        };
        assert!(rung().is_empty());
        rustix::io::write(&files[1], &1u64.to_ne_bytes()).expect("rung");
        assert_eq!([rung(), rung()], [[9], [9]]);
        let _ = rustix::io::read(&files[1], &mut [0; 8]);
        assert!(rung().is_empty());
        rustix::io::write(&files[0], &1u64.to_ne_bytes()).expect("rung");
        doorbells.remove(files[0].as_fd());
        assert!(rung().is_empty());
    }

    #[test]
    fn one_that_is_not_read_is_reported_once_for_each_announcement() {
        let doorbells = Doorbells::new().expect("an epoll file");
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let send = || rustix::io::write(&theirs, &[0]).expect("sent");
        send();
        doorbells.add_once(ours.as_fd(), 3).expect("added");
        let rung = || {
            let mut list = Vec::new();
            doorbells.poll(|number| list.push(number));
            list
        };
        // What came before counts, too.
        assert_eq!([rung(), rung()], [vec![3], vec![]]);
        send();
        assert_eq!([rung(), rung()], [vec![3], vec![]]);
    }
}
