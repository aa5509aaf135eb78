//! What a port's worker tells the others of it.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
    /// When it was last known to send to several VMs, as [`since_begin`]. 0: never.
    to_several: AtomicU64,
}

/// Nanoseconds since one moment of this process, before all others.
fn since_begin(now: Instant) -> u64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    // The first one is that moment itself.
    now.saturating_duration_since(*BEGIN).as_nanos() as u64 + 1
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

    /// It sends to several VMs now.
    pub fn sends_to_several(&self, now: Instant) {
        self.to_several.store(since_begin(now), Ordering::Relaxed);
    }

    /// Has it, in the `last` while before now?
    pub fn sent_to_several(&self, last: Duration, now: Instant) -> bool {
        let at = self.to_several.load(Ordering::Relaxed);
        at > 0 && since_begin(now) < at + last.as_nanos() as u64
    }

    /// `worker` looks.
    pub fn look(&self, worker: usize) -> Option<Attachment> {
        self.untold.fetch_and(!(1 << worker), Ordering::AcqRel);
        self.attached.lock().clone()
    }
}
