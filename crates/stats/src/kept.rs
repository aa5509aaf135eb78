//! Counters that the next daemon continues.

use std::ops::Deref;
use std::time::{SystemTime, UNIX_EPOCH};

use vmlane_mem::{Atomics, Shared};

use crate::{Counter, Counters};

/// A set of counters in memory that may outlive the process, and when they began to count.
#[derive(Debug)]
pub struct Kept<C: Atomics> {
    counts: Shared<C>,
    since: u64,
}

impl<C: Atomics> Kept<C> {
    /// `since`: seconds since 1970.
    pub fn new(counts: Shared<C>, since: u64) -> Kept<C> {
        Kept { counts, since }
    }

    /// When they were 0, in seconds since 1970.
    pub fn since(&self) -> u64 {
        self.since
    }
}

/// Counters that begin now and end with the process.
impl<C: Atomics> Default for Kept<C> {
    fn default() -> Kept<C> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Kept::new(Shared::default(), since)
    }
}

impl<C: Atomics> Deref for Kept<C> {
    type Target = C;

    #[inline]
    fn deref(&self) -> &C {
        &self.counts
    }
}

impl<C: Atomics + Counters> Counters for Kept<C> {
    fn counters(&self) -> Vec<(&'static str, &Counter)> {
        (**self).counters()
    }
}
