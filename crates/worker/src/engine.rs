//! What a worker runs.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::command_queue::Shared;
use crate::waiting::{Polling, Ports, SLEEP};

/// Ports of one kind, and what a round over them is. Owned by one worker; the order of calls is in the
/// crate's documentation.
pub trait Engine: Rounds {
    /// What other threads may ask for.
    type Command;
    /// What merges commands that no one waits for.
    type Shared: Shared<Self::Command>;

    /// Rounds between two readings of the clock while something moves.
    const CLOCK_EVERY: u32 = 1;

    /// The worker was notified: commands may follow.
    fn notified(&mut self) {}

    /// Does it announce what a guest did, so that it ends a gap as a doorbell does? Anything else is not what
    /// the worker waited for.
    fn announces(command: &Self::Command) -> bool;

    /// Carries out one command. A panic in it is contained, and its caller is answered.
    fn run_command(&mut self, command: Self::Command, now: Instant);
}

/// What an engine does beside its commands.
pub trait Rounds {
    /// The clock was read: what is due by time.
    fn clock(&mut self, _now: Instant, _polling: Polling) {}

    /// Polls every port that may have work. True if something moved. A panic of one port's turn is
    /// contained here and ends that port.
    fn round(&mut self, now: Instant) -> bool;

    /// The same for one of them alone, by what its commands call it: something has happened to it. For
    /// engines that ride ([`crate::Rider`]).
    fn turn_now(&mut self, _port: u64, _now: Instant) -> bool {
        false
    }

    /// Bytes that it has moved so far. A worker that moves much at once gives its core to others sooner.
    fn moved_bytes(&self) -> u64 {
        0
    }

    /// What a sleep costs the worker and the guest that ends it, as a time of spinning.
    fn sleep_costs(&self) -> Duration {
        SLEEP
    }

    /// Nothing moved: what does it wait for?
    fn ports(&mut self) -> Ports;

    /// When something is due by the clock, whatever the ports announce: no nap and no sleep is longer.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Does a port still defer something that its guest may wait for: a completion, a notice, credit, an
    /// interrupt?
    fn undelivered(&self) -> bool;

    /// Every port delivers what it deferred. What is not due yet at all stays undelivered, and the worker
    /// stays awake for it.
    fn flush_deferred(&mut self);

    /// Asks every port to announce what comes from now on; then, behind a fence, polls it once more. True if
    /// something is there already.
    fn arm(&mut self) -> bool;

    /// Has another worker handed something over that was not taken yet? That worker wakes this one
    /// ([`crate::Parking::wake`]) if it sleeps, so this is asked once more before a sleep.
    fn has_handed(&self) -> bool {
        false
    }

    /// Files that wake the worker.
    fn wake_fds<'a>(&'a self, _fds: &mut WakeFds<'a>) {}

    /// The worker is awake again, or did not sleep because something was there.
    fn woken(&mut self, _by: Woken) {}

    /// After a panic outside any port's turn: derives anew what can be derived.
    fn recover(&mut self) {}

    /// For the engine's counters.
    fn count(&mut self, event: Event);
}

/// What is counted of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It napped.
    Nap,
    /// It slept with its ports armed.
    Sleep,
    /// A panic outside any port's turn was contained.
    Panic,
}

/// What woke a worker; nothing if its time was over, or if it was notified by another thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    /// A doorbell of a port.
    pub doorbell: bool,
    /// A file with something to read.
    pub source: bool,
}

/// Files to wait for.
#[derive(Default)]
pub struct WakeFds<'a> {
    /// The worker's own, then doorbells, then sources.
    pub(crate) fds: Vec<PollFd<'a>>,
    pub(crate) sources: usize,
}

impl<'a> WakeFds<'a> {
    /// A file that a guest writes to when it announces something.
    pub fn doorbell(&mut self, fd: BorrowedFd<'a>) {
        let at = self.fds.len() - self.sources;
        self.fds.insert(at, PollFd::from_borrowed_fd(fd, PollFlags::IN));
    }

    /// A file of the kernel that is readable while there is something to read.
    pub fn source(&mut self, fd: BorrowedFd<'a>) {
        self.fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        self.sources += 1;
    }
}
