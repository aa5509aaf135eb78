//! Event file descriptors as a VMM hands them over.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::EventfdFlags;

/// An eventfd, as a VMM passes for a vector.
pub fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// How often an eventfd was signalled since the last check.
pub fn signals(fd: impl AsFd) -> u64 {
    let mut counter = [0; 8];
    match rustix::io::read(fd, &mut counter) {
        Ok(8) => u64::from_ne_bytes(counter),
        _ => 0,
    }
}
