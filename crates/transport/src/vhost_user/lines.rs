//! The event fds of a device's rings: kicks gathered in one file, calls and errors by ring.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::RwLock;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fs::FileType;
use rustix::net::{AddressFamily, SendFlags, SocketType, sockopt};
use vmlane_device::virtio::vhost::Lines;

use crate::irq::{IrqError, check_eventfd};

/// Outlives sessions, empty between them.
#[derive(Debug)]
pub struct RingLines {
    /// Readable while there is an unhandled kick. Kicks are edge-triggered: the event fds are never read.
    doorbell: OwnedFd,
    rings: Vec<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    kick: RwLock<Option<OwnedFd>>,
    call: RwLock<Option<Signal>>,
    error: RwLock<Option<Signal>>,
}

/// How the front end hears.
#[derive(Debug)]
enum Signal {
    Event(OwnedFd),
    /// User Mode Linux is notified by SIGIO, which event fds do not raise: it passes one end of a socket pair, and
    /// takes every eight bytes for a call (arch/um/drivers/virtio_uml.c).
    Socket(OwnedFd),
}

impl Signal {
    fn new(fd: OwnedFd) -> Result<Signal, IrqError> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
        if kind != FileType::Socket {
            check_eventfd(&fd)?;
            return Ok(Signal::Event(fd));
        }
        let local = sockopt::socket_domain(&fd)? == AddressFamily::UNIX
            && sockopt::socket_type(&fd)? == SocketType::STREAM;
        if local { Ok(Signal::Socket(fd)) } else { Err(IrqError::NotLocal) }
    }

    /// Never waits. A full counter or socket means that the event is pending anyway, so no error matters.
    fn raise(&self) {
        let one = 1u64.to_ne_bytes();
        let _ = match self {
            Signal::Event(fd) => rustix::io::write(fd, &one),
            Signal::Socket(fd) => rustix::net::send(fd, &one, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
        };
    }
}

/// Which of a ring's three descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    Kick,
    Call,
    Error,
}

impl RingLines {
    pub fn new(rings: u16) -> io::Result<RingLines> {
        let doorbell = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(RingLines { doorbell, rings: (0..rings).map(|_| Ring::default()).collect() })
    }

    /// Replaces a descriptor. `ring` is one of the device's.
    #[expect(clippy::indexing_slicing, reason = "the caller has checked the number of the ring")]
    pub(super) fn set(&self, line: Line, ring: usize, fd: Option<OwnedFd>) -> Result<(), IrqError> {
        let lines = &self.rings[ring];
        match line {
            Line::Kick => {
                if let Some(fd) = &fd {
                    check_eventfd(fd)?;
                }
                let mut kick = lines.kick.write();
                if let Some(old) = kick.take() {
                    // It is there: no other code removes it.
                    let _ = epoll::delete(&self.doorbell, &old);
                }
                if let Some(fd) = &fd {
                    let data = epoll::EventData::new_u64(ring as u64);
                    epoll::add(&self.doorbell, fd, data, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
                }
                *kick = fd;
            }
            Line::Call => {
                let signal = fd.map(Signal::new).transpose()?;
                *lines.call.write() = signal;
            }
            Line::Error => {
                let signal = fd.map(Signal::new).transpose()?;
                *lines.error.write() = signal;
            }
        }
        Ok(())
    }

    /// Lets go of all descriptors.
    pub(super) fn reset(&self) {
        for ring in 0..self.rings.len() {
            for line in [Line::Kick, Line::Call, Line::Error] {
                // Nothing to check, so nothing fails.
                let _ = self.set(line, ring, None);
            }
        }
    }
}

fn signal(line: &RwLock<Option<Signal>>) {
    if let Some(signal) = &*line.read() {
        signal.raise();
    }
}

impl Lines for RingLines {
    fn call(&self, ring: usize) {
        self.rings.get(ring).into_iter().for_each(|ring| signal(&ring.call));
    }

    fn fail(&self, ring: usize) {
        self.rings.get(ring).into_iter().for_each(|ring| signal(&ring.error));
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.doorbell.as_fd())
    }

    fn clear(&self) {
        const FEW: usize = 64;
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::<epoll::Event>::with_capacity(FEW);
        // An error leaves it readable, which costs a vain look.
        let _ = epoll::wait(&self.doorbell, spare_capacity(&mut events), Some(&at_once));
    }
}
