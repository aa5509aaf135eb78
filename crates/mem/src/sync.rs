//! The atomics of the table that a signal handler reads. A test compiles that code with those of `loom`.

pub use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
