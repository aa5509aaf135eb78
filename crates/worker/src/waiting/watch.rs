//! How a port that is not polled in each round is found when it has something to do.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmlane_port::Sign;

use crate::doorbells::{Doorbell, Doorbells};

/// While others are busy, a port is polled in each round until it has had nothing to do for so long. Longer
/// than a worker spins by default: where all are idle it sleeps instead.
pub const QUIET: Duration = Duration::from_millis(1);

/// What shows that a port has something to do that is not polled.
pub enum Source {
    /// Its guest announces it: an event fd among the worker's [`Doorbells`].
    EventFd,
    /// One of these words of its guest's memory has changed; if there are none, the port is asked.
    Words(Vec<Sign>),
}

/// What a worker knows of one port for that.
pub struct Watch {
    /// It is polled in each round.
    pub polled: bool,
    /// Its guest was asked to announce what it does, and not notified yet that it need not.
    pub armed: bool,
    /// Something of it is due by the clock before long.
    pub due_soon: bool,
    /// It is not polled from now on, and this shows when it has something to do.
    pub source: Option<Source>,
    /// When it last had something to do.
    pub busy: Instant,
    /// Its event fd, since it was first not polled. None: it may be another one now, or is not to be listened
    /// to.
    pub doorbell: Option<Doorbell>,
}

impl Watch {
    /// Of a port that is polled from the beginning, or is not.
    pub fn new(polled: bool, now: Instant) -> Watch {
        Watch { polled, armed: false, due_soon: false, source: None, busy: now, doorbell: None }
    }

    /// Has it had nothing to do for `time`?
    #[inline]
    pub fn is_idle(&self, now: Instant, time: Duration) -> bool {
        now.saturating_duration_since(self.busy) >= time
    }

    /// Its guest need not announce anything. False if that is so already.
    #[inline]
    pub fn take_armed(&mut self) -> bool {
        std::mem::take(&mut self.armed)
    }

    /// What was attached is about to be dropped.
    pub fn forget(&mut self) {
        (self.polled, self.armed, self.doorbell) = (true, false, None);
    }

    /// Has its event fd among those of all. False if that cannot be.
    pub fn listen(&mut self, file: BorrowedFd<'_>, all: &Arc<Doorbells>, number: u64) -> bool {
        if self.doorbell.is_none() {
            self.doorbell = Doorbell::new(file, all, number).ok();
        }
        self.doorbell.is_some()
    }
}

/// What is done by the clock, every so often.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    length: Duration,
    began: Instant,
}

impl Interval {
    /// The first one begins.
    pub fn new(length: Duration, now: Instant) -> Interval {
        Interval { length, began: now }
    }

    /// True once in each interval; then the next one begins.
    #[inline]
    pub fn tick(&mut self, now: Instant) -> bool {
        let over = now.saturating_duration_since(self.began) >= self.length;
        if over {
            self.began = now;
        }
        over
    }

    /// The next one begins: it was done already.
    pub fn restart(&mut self, now: Instant) {
        self.began = now;
    }
}
