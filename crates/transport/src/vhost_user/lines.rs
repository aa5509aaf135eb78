//! The event fds of a device's rings: kicks gathered in one file, calls and errors by ring.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketType, sockopt};
use vmlane_device::virtio::vhost::Lines;

use crate::event_fd::{EventFd, Owner, is_event_fd};
use crate::irq::IrqError;

/// Outlives sessions, empty between them.
#[derive(Debug)]
pub struct RingLines {
    /// Readable while there is an unhandled kick. Kicks are edge-triggered: the event fds are never read.
    doorbell: OwnedFd,
    rings: Vec<Ring>,
    owner: Arc<Owner>,
}

#[derive(Debug, Default)]
struct Ring {
    kick: RwLock<Option<EventFd>>,
    call: RwLock<Option<Signal>>,
    error: RwLock<Option<Signal>>,
}

/// How the front end is notified.
#[derive(Debug)]
enum Signal {
    Event(EventFd),
    /// User Mode Linux is notified by SIGIO, which event fds do not raise: it passes one end of a socket
    /// pair, and takes every eight bytes for a call (arch/um/drivers/virtio_uml.c).
    Socket(OwnedFd),
}

impl Signal {
    fn new(fd: OwnedFd, owner: &Arc<Owner>) -> Result<Signal, IrqError> {
        match is_local_stream(&fd) {
            Err(Errno::NOTSOCK) => Ok(Signal::Event(EventFd::new(fd, owner)?)),
            local => {
                if local? {
                    Ok(Signal::Socket(fd))
                } else {
                    Err(IrqError::NotLocal)
                }
            }
        }
    }

    /// A full counter or socket means that the event is pending anyway, so no error matters.
    fn raise(&self) {
        match self {
            Signal::Event(fd) => fd.raise(),
            Signal::Socket(fd) => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let _ = rustix::net::send(fd, &1u64.to_ne_bytes(), flags);
            }
        }
    }
}

/// Which of a ring's three descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    Kick,
    Call,
    Error,
}

impl Line {
    /// Its name while it is held for the next daemon.
    pub fn name(self, ring: usize) -> String {
        let word = match self {
            Line::Kick => "kick",
            Line::Call => "call",
            Line::Error => "err",
        };
        format!("s/{word}.{ring}")
    }
}

/// Can a line, or the front end's end of SET_BACKEND_REQ_FD, be of this kind? Asks no file system.
pub fn is_usable(fd: &OwnedFd) -> bool {
    is_local_stream(fd).unwrap_or(false) || is_event_fd(fd.as_fd())
}

/// A stream socket of this host; an error (NOTSOCK) if it is no socket.
fn is_local_stream(fd: &OwnedFd) -> Result<bool, Errno> {
    let domain = sockopt::socket_domain(fd)?;
    Ok(domain == AddressFamily::UNIX && sockopt::socket_type(fd)? == SocketType::STREAM)
}

impl RingLines {
    pub fn new(rings: u16) -> io::Result<RingLines> {
        let doorbell = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let rings = (0..rings).map(|_| Ring::default()).collect();
        Ok(RingLines { doorbell, rings, owner: Owner::new() })
    }

    /// Replaces a descriptor. `ring` is one of the device's.
    #[expect(clippy::indexing_slicing, reason = "the caller has checked the number of the ring")]
    pub(super) fn set(&self, line: Line, ring: usize, fd: Option<OwnedFd>) -> Result<(), IrqError> {
        let lines = &self.rings[ring];
        match line {
            Line::Kick => {
                // Of no other kind: one that waits for files of its own could make its reader wait.
                let fd = fd.map(|fd| EventFd::new(fd, &self.owner)).transpose()?;
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
                let signal = fd.map(|fd| Signal::new(fd, &self.owner)).transpose()?;
                replace(&lines.call, signal);
            }
            Line::Error => {
                let signal = fd.map(|fd| Signal::new(fd, &self.owner)).transpose()?;
                replace(&lines.error, signal);
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

/// The old one is closed once workers can raise the new one: closing may take time.
fn replace(line: &RwLock<Option<Signal>>, signal: Option<Signal>) {
    let old = std::mem::replace(&mut *line.write(), signal);
    drop(old);
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

    fn may_lose_calls(&self) -> bool {
        let is_socket = |ring: &Ring| matches!(*ring.call.read(), Some(Signal::Socket(_)));
        self.rings.iter().any(is_socket)
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
        // An error leaves it readable, which costs a vain poll.
        let _ = epoll::wait(&self.doorbell, spare_capacity(&mut events), Some(&at_once));
    }
}
