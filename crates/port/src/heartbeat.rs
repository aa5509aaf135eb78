//! A worker's heartbeat: what a watchdog looks at. The worker stores, the watchdog loads; neither waits.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Shared between a worker and whoever watches it.
#[derive(Debug, Default)]
pub struct Heartbeat {
    rounds: AtomicU64,
    /// The worker sleeps, or was never started: silence means nothing.
    busy: AtomicBool,
    serving: AtomicU32,
}

/// What a watchdog sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatReading {
    /// Rounds begun.
    pub rounds: u64,
    pub busy: bool,
    /// Who has, or had last, its turn: a port of the switch, a lane of a worker.
    pub serving: u32,
}

impl Heartbeat {
    /// A round begins. Only the worker calls this.
    #[inline]
    pub fn round(&self) {
        self.rounds.store(self.rounds.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// `who` has its turn.
    #[inline]
    pub fn serve(&self, who: u32) {
        self.serving.store(who, Ordering::Relaxed);
    }

    /// The worker is about to sleep, or awake.
    pub fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    pub fn pulse(&self) -> HeartbeatReading {
        HeartbeatReading {
            rounds: self.rounds.load(Ordering::Relaxed),
            busy: self.busy.load(Ordering::Relaxed),
            serving: self.serving.load(Ordering::Relaxed),
        }
    }
}
