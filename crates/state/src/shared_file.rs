//! The file that a journal is in, as memory that outlives the process. In unit tests it is one that can be
//! killed between any two stores, or that `loom` has: `journal/tests/model.rs`.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::FallocateFlags;

#[cfg(test)]
pub use crate::journal::tests::model::Window;
#[cfg(not(test))]
pub use vmlane_mem::Window;

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
