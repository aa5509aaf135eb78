//! Counters that writers bump with one relaxed add and readers read without disturbing anyone.

mod kept;

use std::sync::atomic::{AtomicU64, Ordering};

pub use kept::Kept;
pub use vmlane_mem::Atomics;

/// A number that only grows.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    #[inline]
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// [`Self::add`] without a locked instruction, for a counter that one thread alone writes.
    #[inline]
    pub fn bump(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Something whose counters can be listed by name.
pub trait Counters: Send + Sync {
    /// Every counter with its name, in the order of declaration.
    fn counters(&self) -> Vec<(&'static str, &Counter)>;

    /// What each has counted, by name, in the order of declaration.
    fn snapshot(&self) -> Vec<(&'static str, u64)> {
        self.counters().into_iter().map(|(name, counter)| (name, counter.get())).collect()
    }
}

/// Declares a struct of [`Counter`]s that implements [`Counters`]; each field's doc line says what
/// is counted.
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$field_meta:meta])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        #[repr(C)]
        $vis struct $name { $($(#[$field_meta])* pub $field: $crate::Counter,)* }

        #[allow(unsafe_code)] // a promise that this macro keeps
        // SAFETY: `repr(C)`, and every field is a `Counter`, which is an `AtomicU64`.
        unsafe impl $crate::Atomics for $name {}

        impl $crate::Counters for $name {
            fn counters(&self) -> Vec<(&'static str, &$crate::Counter)> {
                vec![$((stringify!($field), &self.$field),)*]
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::Counters;

    counters! {
        /// For the test.
        struct Sample {
            /// One.
            one,
            /// Two.
            two,
        }
    }

    #[test]
    fn a_snapshot_names_every_counter_in_order() {
        let sample = Sample::default();
        sample.two.add(5);
        sample.one.inc();
        assert_eq!(sample.snapshot(), [("one", 1), ("two", 5)]);
    }
}
