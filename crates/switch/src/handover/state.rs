//! What a port's worker tells the others of it.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vmlane_port::Filter;

/// What is attached to a port, as other workers have to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Which one, counted.
    pub number: u32,
    pub filter: Filter,
}

/// What a port's worker tells the others.
#[derive(Debug, Default)]
pub struct RemoteState {
    attached: Mutex<Option<Attachment>>,
    /// The workers that are to look at it anew: a bit each.
    untold: AtomicU64,
}

impl RemoteState {
    /// What is attached now. False: that is known.
    pub fn publish(&self, now: Option<Attachment>) -> bool {
        let mut known = self.attached.lock();
        let differs = *known != now;
        *known = now;
        differs
    }

    /// Is `worker` to be told? False: it was told, and has not looked yet.
    pub fn is_to_be_told(&self, worker: usize) -> bool {
        let bit = 1 << worker;
        self.untold.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// `worker` looks.
    pub fn look(&self, worker: usize) -> Option<Attachment> {
        self.untold.fetch_and(!(1 << worker), Ordering::AcqRel);
        self.attached.lock().clone()
    }
}
