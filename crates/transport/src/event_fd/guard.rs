//! Interrupts threads whose writes to event fds wait.
//!
//! A thread notes in a slot of its own when it begins a write and when the write is over. One thread examines
//! all slots from time to time, and sends a signal to a thread that is still in the write that it was in the
//! last time. Its handler does nothing, but the write fails with EINTR. (If the thread was not waiting, or
//! not any more, nothing happens.) Where there has been no write for a moment, it sleeps until the next one.
#![allow(unsafe_code)] // a signal handler, and a signal for a thread

use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering, fence};
use std::thread::Thread;
use std::time::Duration;

/// Threads that can be guarded at once.
const SLOTS: usize = 1024;
/// Between two checks.
const OFTEN: Duration = Duration::from_millis(10);
/// Checks in a row that found no write, after which the thread sleeps until there is one.
const QUIET: u32 = 5;
/// Ignored unless there is a handler.
const SIGNAL: libc::c_int = libc::SIGURG;

struct Slot {
    /// 0: free.
    thread: AtomicI32,
    /// Odd during a write.
    turn: AtomicU32,
}

static TABLE: [Slot; SLOTS] = [const { Slot { thread: AtomicI32::new(0), turn: AtomicU32::new(0) } }; SLOTS];
static RUNNING: OnceLock<Option<Thread>> = OnceLock::new();
/// The thread that examines the slots does not sleep.
static WATCHES: AtomicBool = AtomicBool::new(true);

/// Starts the thread that watches, once in a process.
pub fn start() {
    RUNNING.get_or_init(|| {
        install().ok()?;
        let spawned = std::thread::Builder::new().name("event-guard".into()).spawn(watch);
        spawned.ok().map(|handle| handle.thread().clone())
    });
}

/// Makes a write. Should it wait, it fails with EINTR soon. None: it cannot be guarded, and was not made.
#[inline]
pub fn guarded<T>(write: impl FnOnce() -> T) -> Option<T> {
    let watcher = RUNNING.get()?.as_ref()?;
    OWN.try_with(|own| {
        let turn = &own.as_ref()?.0.turn;
        let before = turn.load(Ordering::Relaxed);
        turn.store(before.wrapping_add(1), Ordering::Relaxed);
        // One of two comes first: this store, which the last check before the sleep finds, or the sleep,
        // which this load finds.
        fence(Ordering::SeqCst);
        if !WATCHES.load(Ordering::Relaxed) {
            wake(watcher);
        }
        let result = write();
        turn.store(before.wrapping_add(2), Ordering::Relaxed);
        Some(result)
    })
    .ok()?
}

#[cold]
fn wake(watcher: &Thread) {
    if !WATCHES.swap(true, Ordering::AcqRel) {
        watcher.unpark();
    }
}

thread_local! {
    static OWN: Option<Own> = Own::claim();
}

/// A thread's slot.
struct Own(&'static Slot);

impl Own {
    fn claim() -> Option<Own> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let free = |slot: &&Slot| {
            slot.thread.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        TABLE.iter().find(free).map(Own)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.0.thread.store(0, Ordering::Release);
    }
}

fn install() -> std::io::Result<()> {
    extern "C" fn nothing(_signal: libc::c_int) {}
    // SAFETY: a zeroed sigaction is valid; the handler does nothing. Without SA_RESTART, a call that waits
    // fails.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = nothing as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        if libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()) != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

fn watch() {
    let mut seen = [0; SLOTS];
    let mut quiet = 0;
    loop {
        quiet = if check(&mut seen) { 0 } else { quiet + 1 };
        if quiet < QUIET {
            std::thread::sleep(OFTEN);
            continue;
        }
        WATCHES.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if check(&mut seen) {
            WATCHES.store(true, Ordering::Relaxed);
        }
        while !WATCHES.load(Ordering::Acquire) {
            std::thread::park();
        }
        quiet = 0;
    }
}

/// Interrupts the writes that were under way in the last check. True if there was a write since.
fn check(seen: &mut [u32; SLOTS]) -> bool {
    let mut active = false;
    for (slot, seen) in TABLE.iter().zip(seen) {
        let (thread, turn) = (slot.thread.load(Ordering::Acquire), slot.turn.load(Ordering::Relaxed));
        let same = std::mem::replace(seen, turn) == turn;
        if thread != 0 && same && turn % 2 == 1 {
            // SAFETY: a signal for a thread of this process, or for none: it has a handler.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
        }
        active |= !same || turn % 2 == 1;
    }
    active
}
