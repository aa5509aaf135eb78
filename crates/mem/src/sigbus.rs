//! Survives a memory file that its owner shrinks.
//!
//! Touching a page past the end of a mapped file raises SIGBUS, which would end the daemon because
//! of one VMM. The handler looks the address up in a table of our mappings, puts anonymous
//! zero memory over the whole mapping and marks it poisoned; the interrupted copy continues with
//! zeros and the code that sees the mark ends the session afterwards.
#![allow(unsafe_code)] // signal handler: async-signal-safe calls only

mod slot;

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Once, OnceLock};

use slot::Slot;

/// Entries that are allocated at once.
const SLOTS: usize = 512;

/// A piece of the table. There are as many as mappings need, whose number each VM's limits bound; none is ever freed, so
/// that a signal handler can walk them at any time.
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
pub struct Guard(&'static Slot);

impl Guard {
    /// Registers `[start, start + len)`.
    pub fn new(start: usize, len: usize) -> Guard {
        prepare();
        let mut place = &TABLE;
        loop {
            let block = place.get_or_init(new_block);
            if let Some(slot) = block.slots.iter().find(|slot| slot.claim(start, len)) {
                return Guard(slot);
            }
            place = &block.next;
        }
    }

    /// True once the file under this mapping turned out to be shorter than promised.
    pub fn poisoned(&self) -> bool {
        self.0.is_hit()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.free();
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
    for slot in blocks().flat_map(|block| &block.slots) {
        let Some((start, len)) = slot.range_around(address) else { continue };
        // SAFETY: the range is a mapping of ours (guards are dropped before their mappings are unmapped, and the thread
        // that was interrupted holds the one that it touches), so replacing it in place takes no other memory. mmap is
        // a plain system call.
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
            slot.mark_hit();
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
