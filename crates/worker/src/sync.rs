//! The types that threads share. In unit tests they are those of `loom`, which tries every order of
//! their operations.

#[cfg(test)]
pub use std::sync::PoisonError;
#[cfg(not(test))]
pub use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering, fence},
};

#[cfg(test)]
pub use loom::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering, fence},
    },
    thread,
};

/// Locks, whether or not a thread panicked while it held the lock: what it guards is whole between
/// statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the condition's change.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
