//! Survives a memory file that its owner shrinks.
//!
//! Touching a page past the end of a mapped file raises SIGBUS, which would end the daemon because of one
//! VMM. The handler looks the address up in a table of our mappings, puts anonymous zero memory over the
//! whole mapping and marks it poisoned; the interrupted copy continues with zeros and the code that sees the
//! mark ends the session afterwards. `replacement.rs` has where the zeros come from.
#![allow(unsafe_code)] // signal handler: async-signal-safe calls only

mod replacement;
mod slot;

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Once, OnceLock};

use slot::Slot;

/// Entries that are allocated at once.
const SLOTS: usize = 512;

/// A mapping that was replaced may fault again on other threads, which began before. More often than this,
/// and the host has no pages for what replaced it.
const MOST_HITS: usize = 4096;

/// A piece of the table. There are as many as mappings need, whose number each VM's limits bound; none is
/// ever freed, so that a signal handler can walk them at any time.
struct Block {
    slots: [Slot; SLOTS],
    next: OnceLock<Box<Block>>,
}

static TABLE: OnceLock<Box<Block>> = OnceLock::new();

/// Mappings that were poisoned so far.
static POISONINGS: AtomicU64 = AtomicU64::new(0);

static INSTALL: Once = Once::new();

/// The table's blocks that exist. It only loads, which a signal handler may.
fn blocks() -> impl Iterator<Item = &'static Block> {
    std::iter::successors(TABLE.get(), |block| block.next.get()).map(Box::as_ref)
}

fn new_block() -> Box<Block> {
    Box::new(Block { slots: std::array::from_fn(|_| Slot::new()), next: OnceLock::new() })
}

/// An entry of the table; freed on drop. Must be dropped before its mapping is unmapped.
#[derive(Debug)]
pub struct Guard {
    slot: &'static Slot,
    start: usize,
    len: usize,
}

impl Guard {
    /// Registers `[start, start + len)`.
    pub fn new(start: usize, len: usize) -> Guard {
        prepare();
        let mut place = &TABLE;
        loop {
            let block = place.get_or_init(new_block);
            if let Some(slot) = block.slots.iter().find(|slot| slot.claim(start, len)) {
                return Guard { slot, start, len };
            }
            place = &block.next;
        }
    }

    /// True once the file under this mapping turned out to be shorter than promised.
    pub fn poisoned(&self) -> bool {
        self.slot.is_hit()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.poisoned() {
            replacement::release(self.start, self.len);
        }
        self.slot.free();
    }
}

/// How many mappings were poisoned so far: while it stays the same, no further session has lost its memory.
pub fn poisonings() -> u64 {
    POISONINGS.load(Ordering::Acquire)
}

/// Installs the handler, once, with what it needs.
pub fn prepare() {
    replacement::prepare();
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
    // SAFETY: errno is this thread's, and code that was interrupted may be about to read it; the kernel
    // passes a valid siginfo for a handler installed with SA_SIGINFO.
    let (errno, address) = unsafe { (*libc::__errno_location(), (*info).si_addr() as usize) };
    if !survives(address) {
        end();
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Puts zeros where the mapping around `address` was. False: there is none of ours, or the host has no memory
/// for zeros.
fn survives(address: usize) -> bool {
    let found = blocks().flat_map(|block| &block.slots);
    let Some((slot, (start, len))) =
        found.filter_map(|slot| Some((slot, slot.range_around(address)?))).next()
    else {
        return false;
    };
    // SAFETY: the range is a mapping of ours (guards are dropped before their mappings are unmapped, and the
    // thread that was interrupted holds the one that it touches), and from now on it is known to be poisoned.
    if !unsafe { replacement::put(start, len) } {
        return false;
    }
    let hits = slot.count_hit();
    POISONINGS.fetch_add(1, Ordering::Release);
    hits < MOST_HITS
}

/// The end of the process: a touch of memory that is no VM's, or no memory to survive it. The signal's
/// default action cannot be had, since a confined thread may not change what a signal does.
fn end() -> ! {
    const WHY: &[u8] =
        b"ERROR SIGBUS: memory that is no VM's is gone, or there is none to replace a VM's; the process ends\n";
    // SAFETY: a buffer of this function, its length within it; the other calls take and return numbers. All
    // are plain system calls.
    unsafe {
        libc::write(libc::STDERR_FILENO, WHY.as_ptr().cast(), WHY.len());
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGABRT);
        libc::_exit(128 + libc::SIGBUS)
    }
}
