//! A worker's heartbeat: what a watchdog reads. The worker stores, the watchdog loads; neither waits.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::waiting::Decision;

/// Shared between a worker and its watchdog.
#[derive(Debug, Default)]
pub struct Heartbeat {
    rounds: AtomicU64,
    /// The worker sleeps, or was never started: silence means nothing.
    busy: AtomicBool,
    serving: AtomicU32,
    worked: AtomicU64,
    spun: AtomicU64,
    yielded: AtomicU64,
    napped: AtomicU64,
}

thread_local! {
    /// Of the worker whose thread this is.
    static OWN: OnceCell<Arc<Heartbeat>> = const { OnceCell::new() };
}

/// The port or stream whose turn it is, or was last, on the calling thread; `None` if it is no worker's.
pub fn serving() -> Option<u32> {
    OWN.try_with(|own| own.get().map(|heartbeat| heartbeat.read().serving)).ok().flatten()
}

/// What a watchdog sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatReading {
    /// Rounds begun.
    pub rounds: u64,
    /// The worker is not asleep.
    pub busy: bool,
    /// What has, or had last, its turn: a port of the switch, a stream.
    pub serving: u32,
    /// Nanoseconds in which it had work: neither waits, nor rounds that found nothing.
    pub worked: u64,
    /// Nanoseconds in which it waited, with rounds that found nothing between. What is left of its time it
    /// slept.
    pub spun: u64,
    /// The same with its core offered to others.
    pub yielded: u64,
    /// The same with a timer.
    pub napped: u64,
}

impl Heartbeat {
    /// The calling thread is the worker's, for good: [`serving`] is answered there.
    pub fn adopt(self: &Arc<Heartbeat>) {
        OWN.with(|own| {
            let _ = own.set(self.clone());
        });
    }

    /// Is the calling thread the worker's?
    pub fn is_own_thread(self: &Arc<Heartbeat>) -> bool {
        OWN.try_with(|own| own.get().is_some_and(|heartbeat| Arc::ptr_eq(heartbeat, self))).unwrap_or(false)
    }

    /// A round begins. Only the worker calls this.
    #[inline]
    pub fn round(&self) {
        self.rounds.store(self.rounds.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// A port or stream, by its number, has its turn.
    #[inline]
    pub fn serve(&self, number: u32) {
        self.serving.store(number, Ordering::Relaxed);
    }

    /// The worker is awake, or about to sleep.
    pub fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// It had work for so long. Only the worker calls this.
    pub fn add_worked(&self, time: Duration) {
        add(&self.worked, time);
    }

    /// It waited for so long, as it had decided. Only the worker calls this.
    pub fn add_waited(&self, how: Decision, time: Duration) {
        match how {
            Decision::Spin => add(&self.spun, time),
            Decision::Yield => add(&self.yielded, time),
            Decision::Nap(_) => add(&self.napped, time),
            Decision::Sleep(_) => {}
        }
    }

    /// What the worker stored last.
    pub fn read(&self) -> HeartbeatReading {
        HeartbeatReading {
            rounds: self.rounds.load(Ordering::Relaxed),
            busy: self.busy.load(Ordering::Relaxed),
            serving: self.serving.load(Ordering::Relaxed),
            worked: self.worked.load(Ordering::Relaxed),
            spun: self.spun.load(Ordering::Relaxed),
            yielded: self.yielded.load(Ordering::Relaxed),
            napped: self.napped.load(Ordering::Relaxed),
        }
    }
}

/// Adds to a counter that one thread alone writes.
fn add(counter: &AtomicU64, time: Duration) {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(nanoseconds), Ordering::Relaxed);
}
