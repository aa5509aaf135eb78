//! Commands of other threads to a worker: in order, bounded, and their callers are always answered.
//!
//! A caller that waits ([`CommandQueue::call`]) has a command hold its [`Answer`]. Wherever the command ends
//! (carried out, unwound by a panic, dropped with the worker's thread, refused), the answer ends with it, and
//! the caller goes on.
//!
//! Bound: commands of callers that wait take a place each, and a caller waits for a free one. Commands that
//! no one waits for ([`CommandQueue::post`]) are merged by the state that the queue guards (`S`), so that
//! there are never more of them than ports or streams.

use crate::sync::{Arc, Condvar, Mutex, lock, wait};
use crate::waiting::Parking;

/// State under the queue's lock, with which commands are merged.
pub trait Shared<C>: Default {
    /// The worker takes these commands: what comes from here on is not merged with them.
    fn taken(&mut self, _commands: &mut [C]) {}
}

impl<C> Shared<C> for () {}

/// The worker's thread has ended, or is about to: it holds nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

struct Inner<C, S> {
    commands: Vec<C>,
    shared: S,
    /// Of `commands`: those with a place.
    places: usize,
    /// The worker was asked to stop.
    stops: bool,
    /// Its thread has ended.
    closed: bool,
}

/// Commands for one worker, and the place where it sleeps.
pub struct CommandQueue<C, S = ()> {
    inner: Mutex<Inner<C, S>>,
    /// Places have become free.
    room: Condvar,
    places: usize,
    parking: Arc<Parking>,
}

/// Commands of waiting callers that a queue has place for.
const PLACES: usize = 256;

impl<C, S: Shared<C>> CommandQueue<C, S> {
    /// For the worker that sleeps in `parking`. Several queues may have the same one.
    pub fn new(parking: impl Into<Arc<Parking>>) -> Self {
        CommandQueue::with_places(parking, PLACES)
    }

    fn with_places(parking: impl Into<Arc<Parking>>, places: usize) -> Self {
        let parking = parking.into();
        let inner =
            Inner { commands: Vec::new(), shared: S::default(), places: 0, stops: false, closed: false };
        CommandQueue { inner: Mutex::new(inner), room: Condvar::new(), places, parking }
    }

    /// Where the worker sleeps.
    pub fn parking(&self) -> &Arc<Parking> {
        &self.parking
    }

    /// Queues a command that a caller waits for: it holds one of the caller's answers. Waits for a place.
    /// A worker must not call itself.
    pub fn call(&self, command: impl FnOnce(&mut S) -> Option<C>) -> Result<(), Refused> {
        let mut inner = lock(&self.inner);
        while inner.places >= self.places && !inner.closed {
            inner = wait(&self.room, inner);
        }
        if inner.closed {
            return Err(Refused);
        }
        if let Some(command) = command(&mut inner.shared) {
            inner.places += 1;
            inner.commands.push(command);
            drop(inner);
            self.parking.notify();
        }
        Ok(())
    }

    /// Queues what `command` returns, without waiting. It merges with what waits already: a state that is
    /// marked in `S` needs no second command.
    pub fn post<T>(&self, command: impl FnOnce(&mut S) -> (Option<C>, T)) -> T {
        let mut inner = lock(&self.inner);
        let (command, value) = command(&mut inner.shared);
        let Some(command) = command else { return value };
        if inner.closed {
            // Dropped without the lock: dropping it may answer a caller.
            drop(inner);
            drop(command);
            return value;
        }
        inner.commands.push(command);
        drop(inner);
        self.parking.notify();
        value
    }

    /// Runs `action` on the state that commands are merged with.
    pub fn with<T>(&self, action: impl FnOnce(&mut S) -> T) -> T {
        action(&mut lock(&self.inner).shared)
    }

    /// Asks the worker to stop after the commands so far.
    pub fn stop(&self) {
        lock(&self.inner).stops = true;
        self.parking.notify();
    }

    /// The worker takes everything that waits, to the end of `into`, which is empty: the two buffers change
    /// places, so nothing is allocated once they have grown. False if it is to stop after that. It has
    /// acknowledged the notification before ([`Parking::acknowledge`]).
    pub fn take(&self, into: &mut Vec<C>) -> bool {
        let mut inner = lock(&self.inner);
        std::mem::swap(into, &mut inner.commands);
        let Inner { shared, places, .. } = &mut *inner;
        shared.taken(into);
        if std::mem::take(places) > 0 {
            self.room.notify_all();
        }
        !inner.stops
    }

    /// The worker's thread ends: what waits is dropped, and so answered; what comes is refused.
    pub fn close(&self) {
        let mut inner = lock(&self.inner);
        inner.closed = true;
        let commands = std::mem::take(&mut inner.commands);
        self.room.notify_all();
        drop(inner);
        drop(commands);
    }
}

/// Commands that one caller waits for, together.
pub struct Calls(Arc<Outstanding>);

struct Outstanding {
    /// Answers that are still held somewhere.
    count: Mutex<usize>,
    done: Condvar,
}

/// A caller waits until this is dropped.
pub struct Answer(Arc<Outstanding>);

impl Calls {
    /// None yet.
    #[expect(clippy::new_without_default, reason = "a default that is waited for would surprise")]
    pub fn new() -> Calls {
        Calls(Arc::new(Outstanding { count: Mutex::new(0), done: Condvar::new() }))
    }

    /// One more to wait for. The command holds it.
    pub fn answer(&self) -> Answer {
        *lock(&self.0.count) += 1;
        Answer(self.0.clone())
    }

    /// Waits until all are answered.
    pub fn wait(self) {
        let mut count = lock(&self.0.count);
        while *count > 0 {
            count = wait(&self.0.done, count);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let mut count = lock(&self.0.count);
        *count -= 1;
        if *count == 0 {
            self.0.done.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
