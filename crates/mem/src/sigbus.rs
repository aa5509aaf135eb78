//! Survives a memory file that its owner shrinks.
//!
//! Touching a page past the end of a mapped file raises SIGBUS, which would end the daemon because
//! of one VMM. The handler looks the address up in a fixed table of our mappings, puts anonymous
//! zero memory over the whole mapping and marks it poisoned; the interrupted copy continues with
//! zeros and the code that sees the mark ends the session afterwards.
#![allow(unsafe_code)] // signal handler: async-signal-safe calls only

use std::io;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Mappings that can exist at once in one process: 64 VMs with 64 regions each.
const SLOTS: usize = 4096;

struct Slot {
    start: AtomicUsize,
    len: AtomicUsize,
    used: AtomicBool,
    hit: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        used: AtomicBool::new(false),
        hit: AtomicBool::new(false),
    }
}; SLOTS];

/// Mappings that were poisoned so far.
static POISONINGS: AtomicU64 = AtomicU64::new(0);

static INSTALL: Once = Once::new();

/// An entry of the table; freed on drop. Must be dropped before its mapping is unmapped.
#[derive(Debug)]
pub struct Guard(usize);

impl Guard {
    /// Registers `[start, start + len)`. Errors when the table is full.
    pub fn new(start: usize, len: usize) -> io::Result<Guard> {
        prepare();
        for (index, slot) in TABLE.iter().enumerate() {
            if slot.used.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                slot.hit.store(false, Ordering::Relaxed);
                slot.start.store(start, Ordering::Relaxed);
                slot.len.store(len, Ordering::Release);
                return Ok(Guard(index));
            }
        }
        Err(io::Error::other(format!("more than {SLOTS} memory regions are mapped")))
    }

    /// True once the file under this mapping turned out to be shorter than promised.
    pub fn poisoned(&self) -> bool {
        TABLE[self.0].hit.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let slot = &TABLE[self.0];
        slot.len.store(0, Ordering::Release);
        slot.used.store(false, Ordering::Release);
    }
}

/// How many mappings were poisoned so far: while it stays the same, no further session has lost its memory.
pub fn poisonings() -> u64 {
    POISONINGS.load(Ordering::Acquire)
}

/// Installs the handler, once.
pub fn prepare() {
    INSTALL.call_once(install);
}

fn install() {
    // SAFETY: `action` is fully initialised before use; the handler below makes only
    // async-signal-safe calls and touches only the static table.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

extern "C" fn handler(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo for a handler installed with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    for slot in &TABLE {
        let len = slot.len.load(Ordering::Acquire);
        let start = slot.start.load(Ordering::Relaxed);
        if len == 0 || address < start || address - start >= len {
            continue;
        }
        // SAFETY: the range is a mapping of ours (the guard is dropped before it is unmapped), so
        // replacing it in place takes no other memory. mmap is a plain system call.
        let replaced = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_FIXED | libc::MAP_ANONYMOUS | libc::MAP_PRIVATE | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if replaced != libc::MAP_FAILED {
            // SAFETY: the mapping that was just made. It may hold bytes of other guests from now on.
            unsafe { libc::madvise(replaced, len, libc::MADV_DONTDUMP) };
            slot.hit.store(true, Ordering::Relaxed);
            POISONINGS.fetch_add(1, Ordering::Release);
            return;
        }
    }
    // Not ours (or beyond repair): the default action, taken when the instruction faults again.
    // SAFETY: restoring the default disposition is async-signal-safe.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
    }
}
