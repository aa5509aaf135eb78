//! What a port's worker reports to the others.

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

/// What a port's worker reports to the others.
#[derive(Debug, Default)]
pub struct RemoteState {
    attached: Mutex<Option<Attachment>>,
    /// The workers that are to read it anew: a bit each.
    unnotified: AtomicU64,
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

    /// Notes that `worker` is to be notified. False: it was notified, and has not read this yet.
    pub fn note_unnotified(&self, worker: usize) -> bool {
        let bit = 1 << worker;
        self.unnotified.fetch_or(bit, Ordering::AcqRel) & bit == 0
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

    /// `worker` reads it.
    pub fn read(&self, worker: usize) -> Option<Attachment> {
        self.unnotified.fetch_and(!(1 << worker), Ordering::AcqRel);
        self.attached.lock().clone()
    }
}
