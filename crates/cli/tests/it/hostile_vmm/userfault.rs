//! Memory of this process whose faults this process is to resolve, and never does (userfaultfd(2)).
#![allow(unsafe_code)] // mappings, and the ioctls of userfaultfd

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::ioctl::{Updater, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap, munmap, userfaultfd};
use vmlane_testkit::skipped;

/// `struct uffdio_api`: version, features, ioctls.
type Api = [u64; 3];
/// `struct uffdio_register`: start, bytes, mode, ioctls.
type Register = [u64; 4];
const VERSION: u64 = 0xaa;
const API: rustix::ioctl::Opcode = opcode::read_write::<Api>(0xaa, 0x3f);
const REGISTER: rustix::ioctl::Opcode = opcode::read_write::<Register>(0xaa, 0x00);
const MISSING: u64 = 1;

/// A mapping of a file in which every access to a page that the file lacks waits for this process.
pub struct Stalling {
    start: usize,
    len: usize,
}

/// The faults of a mapping. Once this is closed, no access waits any more.
pub struct Faults(OwnedFd);

impl Stalling {
    /// None: this process may not have such a mapping.
    pub fn map(file: impl AsFd, len: usize) -> Option<(Stalling, Faults)> {
        // SAFETY: it only makes a file descriptor.
        let Ok(fd) = (unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) }) else {
            skipped("no userfaultfd for this user");
            return None;
        };
        let mut api: Api = [VERSION, 0, 0];
        // SAFETY: the ioctl reads and writes one `struct uffdio_api`.
        unsafe { ioctl(&fd, Updater::<'_, API, Api>::new(&mut api)) }.unwrap();
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe {
            mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        };
        let start = start.unwrap() as usize;
        let mut register: Register = [start as u64, len as u64, MISSING, 0];
        // SAFETY: the ioctl reads and writes one `struct uffdio_register`.
        unsafe { ioctl(&fd, Updater::<'_, REGISTER, Register>::new(&mut register)) }.unwrap();
        Some((Stalling { start, len }, Faults(fd)))
    }

    /// Writes bytes of this memory to `file`, which waits as long as its faults do.
    pub fn write_to(&self, file: impl AsFd) {
        // SAFETY: mapped, and used as the source of a system call only.
        let source = unsafe { std::slice::from_raw_parts(self.start as *const u8, 64) };
        let _ = rustix::io::pwrite(file, source, 0);
    }
}

impl Faults {
    /// Does an access wait?
    pub fn are_there(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1))
    }
}

impl Drop for Stalling {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; users borrow this.
        let _ = unsafe { munmap(self.start as *mut _, self.len) };
    }
}
