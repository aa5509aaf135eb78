//! Event fds raised by asynchronous requests.
//!
//! The kernel raises an event fd when a request that names it is completed (`IOCB_FLAG_RESFD`, io_submit(2)),
//! and that never waits: a full counter stays full. Each raise is a read of no bytes from /dev/null, which is
//! completed in the same system call.
#![allow(unsafe_code)] // system calls that have no safe wrapper

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Requests that may be completed before their results are collected.
const REQUESTS: u32 = 1024;
/// How many requests are made before results are collected: far fewer than there may be.
const COLLECT: u32 = 256;
/// Tries until a raise is given up. The second one follows a collection, and finds room.
const TRIES: usize = 16;

const PREAD: u16 = 0;
const PWRITE: u16 = 1;
/// The request names an event fd.
const RESFD: u32 = 1;

static OF_PROCESS: OnceLock<Result<Requests, Errno>> = OnceLock::new();

/// A context of asynchronous requests, shared by all threads.
pub struct Requests {
    context: libc::c_ulong,
    /// /dev/null, to be read only.
    null: OwnedFd,
    made: AtomicU32,
}

/// `struct iocb` of the kernel (linux/aio_abi.h).
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key_and_flags: [u32; 2],
    operation: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

const _: () = assert!(size_of::<Request>() == 64);

/// `struct io_event` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Completion([u64; 4]);

impl Requests {
    /// Those of this process, made with the first use. An error: why there are none.
    pub fn of_process() -> Result<&'static Requests, Errno> {
        OF_PROCESS.get_or_init(Requests::new).as_ref().map_err(|error| *error)
    }

    fn new() -> Result<Requests, Errno> {
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: io_setup(2) writes the context, which is zero before, and takes nothing else.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS, &raw mut context) };
        if result < 0 { Err(last_error()) } else { Ok(Requests { context, null, made: AtomicU32::new(0) }) }
    }

    /// A write to what can only be read is refused with EBADF, after the kernel has examined the event fd
    /// and refused any other descriptor with EINVAL. Nothing is raised.
    pub fn is_event_fd(&self, fd: BorrowedFd<'_>) -> bool {
        loop {
            match self.submit(PWRITE, fd) {
                Err(Errno::AGAIN) => self.collect(),
                Err(Errno::INTR) => {}
                result => return result == Err(Errno::BADF),
            }
        }
    }

    /// Adds one to the counter of an event fd.
    pub fn raise(&self, fd: BorrowedFd<'_>) {
        for _ in 0..TRIES {
            match self.submit(PREAD, fd) {
                Ok(()) => {
                    if self.made.fetch_add(1, Ordering::Relaxed) % COLLECT == COLLECT - 1 {
                        self.collect();
                    }
                    return;
                }
                Err(Errno::AGAIN) => self.collect(),
                Err(_) => {}
            }
        }
    }

    /// Makes one request that names `fd`.
    #[inline]
    fn submit(&self, operation: u16, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut request = Request {
            operation,
            file: self.null.as_raw_fd() as u32,
            flags: RESFD,
            event_fd: fd.as_raw_fd() as u32,
            ..Request::default()
        };
        let list = [&raw mut request];
        // SAFETY: one valid request, which the kernel copies (and marks) before the call returns. It is for
        // no bytes, so no buffer is used, then or later.
        let made =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1 as libc::c_long, list.as_ptr()) };
        if made == 1 { Ok(()) } else { Err(last_error()) }
    }

    /// Takes the results of what was completed, so that there is room for more.
    #[cold]
    fn collect(&self) {
        let mut results = [Completion::default(); COLLECT as usize];
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes at most as many results as there is room for, and does not wait.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0 as libc::c_long,
                COLLECT as libc::c_long,
                results.as_mut_ptr(),
                &raw const at_once,
            );
        }
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
