//! How much this process has mapped of files that hold guest memory, and how much it may: address space is
//! one for all VMs.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of address space for such files, of all VMs: three quarters of what a process has on x86-64.
pub const ADDRESS_SPACE: u64 = 96 << 40;

static MAPPED: AtomicU64 = AtomicU64::new(0);

/// Address space in use, given back when dropped.
#[derive(Debug)]
pub struct Charge(u64);

impl Charge {
    /// Takes `len` bytes. Errors when too little is left.
    pub fn take(len: u64) -> io::Result<Charge> {
        let more = |mapped: u64| mapped.checked_add(len).filter(|sum| *sum <= ADDRESS_SPACE);
        match MAPPED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Charge(len)),
            Err(mapped) => Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!(
                    "{len:#x} bytes beside {mapped:#x} are more than all VMs may map ({ADDRESS_SPACE:#x})"
                ),
            )),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        MAPPED.fetch_sub(self.0, Ordering::Relaxed);
    }
}
