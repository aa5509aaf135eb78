//! The event fds of a device's rings: kicks gathered in one file, calls and errors by ring.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::RwLock;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use vmlane_device::virtio::vhost::Lines;

use crate::irq::{IrqError, check_eventfd};

/// Outlives sessions, empty between them.
#[derive(Debug)]
pub struct RingLines {
    /// Readable while a kick was not heard. Kicks are edge-triggered: nobody reads the event fds.
    bell: OwnedFd,
    rings: Vec<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    kick: RwLock<Option<OwnedFd>>,
    call: RwLock<Option<OwnedFd>>,
    error: RwLock<Option<OwnedFd>>,
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
        let bell = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(RingLines { bell, rings: (0..rings).map(|_| Ring::default()).collect() })
    }

    /// Replaces a descriptor. `ring` is one of the device's.
    pub(super) fn set(&self, line: Line, ring: usize, fd: Option<OwnedFd>) -> Result<(), IrqError> {
        if let Some(fd) = &fd {
            check_eventfd(fd)?;
        }
        let lines = &self.rings[ring];
        match line {
            Line::Kick => {
                let mut kick = lines.kick.write();
                if let Some(old) = kick.take() {
                    // It is there: nobody else removes it.
                    let _ = epoll::delete(&self.bell, &old);
                }
                if let Some(fd) = &fd {
                    let data = epoll::EventData::new_u64(ring as u64);
                    epoll::add(&self.bell, fd, data, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
                }
                *kick = fd;
            }
            Line::Call => *lines.call.write() = fd,
            Line::Error => *lines.error.write() = fd,
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

fn signal(line: &RwLock<Option<OwnedFd>>) {
    if let Some(fd) = &*line.read() {
        // A full counter means that the event is pending anyway, so no error matters here.
        let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
    }
}

impl Lines for RingLines {
    fn call(&self, ring: usize) {
        self.rings.get(ring).into_iter().for_each(|ring| signal(&ring.call));
    }

    fn fail(&self, ring: usize) {
        self.rings.get(ring).into_iter().for_each(|ring| signal(&ring.error));
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn clear(&self) {
        const FEW: usize = 64;
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::<epoll::Event>::with_capacity(FEW);
        // An error leaves the bell ringing, which costs a vain look.
        let _ = epoll::wait(&self.bell, spare_capacity(&mut events), Some(&at_once));
    }
}
