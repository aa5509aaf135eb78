//! Event fds written to.
#![allow(unsafe_code)] // a write that has nothing to write

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::FileType;
use rustix::io::Errno;

/// Event fds have no file type of their own (anonymous inodes). Of all such files, they are the only ones
/// that would read what a write points to, which here is nowhere.
pub fn check(fd: impl AsFd) -> bool {
    let fd = fd.as_fd();
    let kind = rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
    if kind != Ok(FileType::Unknown) {
        return false;
    }
    // SAFETY: the kernel does not follow a null pointer.
    let written = unsafe { libc::write(fd.as_raw_fd(), std::ptr::null(), 8) };
    written < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// Adds one to the counter. Waits while that is full, or fails then.
#[inline]
pub fn raise(fd: &OwnedFd) -> Result<(), Errno> {
    rustix::io::write(fd, &1u64.to_ne_bytes()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{event_fd, others};
    use super::*;

    #[test]
    fn only_event_fds_pass() {
        assert!(check(event_fd()));
        assert!(others().iter().all(|fd| !check(fd)));
    }
}
