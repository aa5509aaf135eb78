//! Which files guest memory may be in. A file that another process hands over may be on a file system which
//! that process serves itself, or on one whose server is gone: then an access to its pages, or a question
//! about the file, may never be answered. So the kind of file is found out first, by questions that no file
//! system is asked.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, MemfdFlags, Mode, StatxFlags};
use rustix::io::Errno;

/// Bytes of a page, where a file states nothing else.
pub const PAGE: u64 = 4096;
/// Bytes of a huge page of such a file.
pub const HUGE: usize = 2 << 20;
/// `f_type` of hugetlbfs, and of FUSE (linux/magic.h).
const HUGETLBFS: u64 = 0x9584_58f6;
const FUSE: u64 = 0x6573_5546;

/// Why a file cannot hold guest memory.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(
        "the file is neither in memory (memfd, tmpfs, hugetlbfs) nor on a file system of a block device: its pages might \
         never come"
    )]
    Foreign,
    #[error("asking about the file: {0}")]
    Host(#[from] Errno),
}

/// A file that guest memory may be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Bytes.
    pub len: u64,
    /// Bytes of the pages that it is mapped by.
    pub page: u64,
    pub id: FileId,
    /// `mincore` reports which of its pages are in memory. Of a file that the caller neither owns nor may
    /// write by its mode it reports that all are; memfds may be written by all.
    pub reports_pages: bool,
}

/// Which file it is: its device and its inode's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId(u64, u64);

impl Backing {
    /// Asks what `file` is.
    pub fn of(file: BorrowedFd<'_>) -> Result<Backing, FileError> {
        // Only files in memory have seals, and the kernel answers by itself.
        let in_memory = rustix::fs::fcntl_get_seals(file).is_ok();
        if !in_memory && !on_block_device(file)? {
            return Err(FileError::Foreign);
        }
        let system = rustix::fs::fstatfs(file)?;
        let page = match system.f_type as u64 & 0xffff_ffff {
            FUSE => return Err(FileError::Foreign),
            HUGETLBFS => u64::try_from(system.f_bsize).unwrap_or(PAGE).max(PAGE),
            _ => PAGE,
        };
        let stat = rustix::fs::fstat(file)?;
        Ok(Backing {
            len: u64::try_from(stat.st_size).unwrap_or(0),
            page,
            id: FileId(stat.st_dev, stat.st_ino),
            reports_pages: Mode::from_raw_mode(stat.st_mode).contains(Mode::WOTH),
        })
    }
}

/// A regular file of a file system that has a device of its own. FUSE, network and stacked file systems have
/// none. Asks for what the kernel knows already.
fn on_block_device(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    let known = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(file, c"", known, StatxFlags::TYPE)?;
    let regular = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
    Ok(regular && stat.stx_dev_major != 0)
}

/// Asks about a file that can be asked about. The first call of `rustix`' `statx` that fails finds out
/// whether the kernel has it, by a call that a confined thread may not make.
pub fn prepare() {
    if let Ok(file) = memfd("vmlane-prepare", PAGE) {
        let _ = on_block_device(file.as_fd());
    }
}

/// Can guest memory be in this file? Asks no file system that might not answer.
pub fn may_hold_guest_memory(file: impl AsFd) -> bool {
    Backing::of(file.as_fd()).is_ok()
}

/// An anonymous shared file of `len` bytes, sealed against shrinking: memory for synthetic guests
/// and host endpoints.
pub fn memfd(name: &str, len: u64) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len)?;
    rustix::fs::fcntl_add_seals(&fd, rustix::fs::SealFlags::SHRINK)?;
    Ok(fd)
}
