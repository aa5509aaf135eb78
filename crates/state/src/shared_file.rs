//! The file that a journal or another state is in, as memory that outlives the process. In unit tests it is
//! one that can be killed between any two stores, or that `loom` has: `journal/tests/model.rs`.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::FallocateFlags;

#[cfg(test)]
pub use crate::journal::tests::model::Window;
#[cfg(not(test))]
pub use vmlane_mem::Window;

use crate::{LAYOUT, Unusable};

/// Where a file states what it is, and in which layout.
const MAGIC_AT: usize = 0;
const LAYOUT_AT: usize = 8;

/// A file that a previous daemon left, of at least `need` bytes, which begins with `magic`; and its layout.
pub fn open_any(file: &OwnedFd, magic: u64, need: u64) -> Result<(Window, u32), Unusable> {
    let have = rustix::fs::fstat(file).map_err(io::Error::from)?.st_size as u64;
    if have < need {
        return Err(Unusable::Short { have, need });
    }
    let window = Window::over_file(file, need)?;
    let layout = window.load_u32(LAYOUT_AT);
    if window.load_u64(MAGIC_AT) == magic { Ok((window, layout)) } else { Err(Unusable::Magic) }
}

/// One in the layout that this daemon knows.
pub fn open_file(file: &OwnedFd, magic: u64, need: u64) -> Result<Window, Unusable> {
    match open_any(file, magic, need)? {
        (window, LAYOUT) => Ok(window),
        (_, have) => Err(Unusable::Layout { have }),
    }
}

/// Gives the memory of `len` bytes at `at` back to the system; they are zero from then on.
pub fn give_back(window: &Window, file: &OwnedFd, at: usize, len: usize) -> io::Result<()> {
    #[cfg(test)]
    if !window.may_store() {
        return Ok(());
    }
    let _ = window;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, hole, at as u64, len as u64)?)
}
