//! What takes the place of memory whose file was cut short: zeros, private to that mapping.
//!
//! Anonymous memory, if the host promises that much. A host that overcommits nothing (`vm.overcommit_memory`
//! = 2) may not: then a part of a file that was made before, where each mapping has the bytes at the offset
//! that is its address, so that no two ever share any. A shared mapping of a file needs no promise; its pages
//! are allocated when they are touched.
//!
//! [`put`] is called by a signal handler on threads that may make few system calls: it maps and advises, and
//! does nothing else.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{FallocateFlags, MemfdFlags};

static FILE: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// Bytes of the file: beyond every address of a process.
const LEN: u64 = 1 << 56;

/// Makes the file, once.
pub fn prepare() {
    FILE.get_or_init(|| {
        let file = rustix::fs::memfd_create("vmlane-replacement", MemfdFlags::CLOEXEC).ok()?;
        rustix::fs::ftruncate(&file, LEN).ok().map(|()| file)
    });
}

/// Puts zeros over `[start, start + len)`. False: the host gives none.
///
/// # Safety
/// The range is one mapping, whose bytes nothing relies on any more.
pub unsafe fn put(start: usize, len: usize) -> bool {
    let map = |flags: i32, file: i32, offset: usize| {
        // SAFETY: the caller's promise. mmap is a plain system call.
        let at = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_FIXED | libc::MAP_NORESERVE | flags,
                file,
                offset as libc::off_t,
            )
        };
        at != libc::MAP_FAILED
    };
    let file = FILE.get().and_then(Option::as_ref);
    let replaced = map(libc::MAP_ANONYMOUS | libc::MAP_PRIVATE, -1, 0)
        || file.is_some_and(|file| map(libc::MAP_SHARED, file.as_raw_fd(), start));
    if replaced {
        // SAFETY: the mapping that was just made. It may hold bytes of other guests from now on.
        unsafe { libc::madvise(start as *mut libc::c_void, len, libc::MADV_DONTDUMP) };
    }
    replaced
}

/// A range that [`put`] has replaced is used by no one any more: its bytes go, so that the next mapping there
/// finds zeros.
pub fn release(start: usize, len: usize) {
    if let Some(file) = FILE.get().and_then(Option::as_ref) {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(file, hole, start as u64, len as u64);
    }
}
