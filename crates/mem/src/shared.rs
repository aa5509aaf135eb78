//! A value made of atomics alone, in memory that may outlive the process.
#![allow(unsafe_code)] // a reference into a mapping

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// What may lie in shared memory as it is.
///
/// # Safety
/// It is `repr(C)` and made of `AtomicU64`s alone: all bytes are a value of it, and it may change while it is
/// borrowed.
pub unsafe trait Atomics: Default + Send + Sync + 'static {}

/// A value in a [`crate::Window`], or by default in memory of its own. It is found once, and then costs what
/// a reference does.
pub struct Shared<T> {
    at: NonNull<T>,
    /// Keeps the memory under `at` alive, where it is.
    _keep: Arc<dyn Send + Sync>,
}

// SAFETY: a pointer to atomics, in memory that `_keep` keeps alive.
unsafe impl<T: Atomics> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Atomics> Sync for Shared<T> {}

impl<T: Atomics> Shared<T> {
    /// `at` lies in memory that `keep` keeps mapped and writable, all of it, at a multiple of eight.
    pub(crate) fn new(at: NonNull<T>, keep: Arc<dyn Send + Sync>) -> Shared<T> {
        Shared { at, _keep: keep }
    }
}

impl<T: Atomics> Default for Shared<T> {
    fn default() -> Shared<T> {
        let own = Arc::new(T::default());
        Shared::new(NonNull::from(&*own), own)
    }
}

impl<T: Atomics> Deref for Shared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: alive as long as `self`; all bytes are a value, which changes by atomic accesses alone
        // (`Atomics`).
        unsafe { self.at.as_ref() }
    }
}

impl<T: Atomics + fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
