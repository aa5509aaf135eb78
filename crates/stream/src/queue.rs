//! What other threads ask of a worker: commands in order, kicks at most once a lane.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread::Thread;

use parking_lot::Mutex;
use vmlane_port::{Resumed, Shutdown, Side, StreamEnd};

pub enum Command {
    Join { slot: usize, ends: [StreamEnd; 2] },
    Resume { slot: usize, lane: Box<Resumed> },
    Kick { slot: usize },
    Shutdown { slot: usize, side: Side, what: Shutdown },
    Reset { slot: usize, side: Side },
    Leave { slot: usize, side: Side, done: SyncSender<()> },
    Stop,
}

#[derive(Default)]
struct Inner {
    commands: Vec<Command>,
    /// By slot: a kick is waiting in `commands`.
    kicked: Vec<bool>,
    /// By slot: how often it was given out, so that a late caller cannot reach a newer lane.
    generation: Vec<u32>,
    free: Vec<usize>,
}

/// The worker's in-tray. Locked for a few instructions at a time.
#[derive(Default)]
pub struct Queue {
    inner: Mutex<Inner>,
    waiting: AtomicBool,
    parked: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

/// `number` of a lane id: generation in the upper half, slot in the lower.
fn split(number: u64) -> (u32, usize) {
    ((number >> 32) as u32, (number & 0xffff_ffff) as usize)
}

impl Queue {
    /// Gives out a slot and queues the join. Returns the lane's number.
    pub fn join(&self, ends: [StreamEnd; 2]) -> u64 {
        self.begin(|slot| Command::Join { slot, ends })
    }

    /// The same for a predecessor's lane.
    pub fn resume(&self, lane: Resumed) -> u64 {
        self.begin(|slot| Command::Resume { slot, lane: Box::new(lane) })
    }

    fn begin(&self, command: impl FnOnce(usize) -> Command) -> u64 {
        let mut inner = self.inner.lock();
        let slot = inner.free.pop().unwrap_or_else(|| {
            inner.kicked.push(false);
            inner.generation.push(0);
            inner.kicked.len() - 1
        });
        inner.commands.push(command(slot));
        let number = u64::from(inner.generation[slot]) << 32 | slot as u64;
        drop(inner);
        self.wake();
        number
    }

    /// Queues a kick unless one is waiting already.
    pub fn kick(&self, number: u64) {
        let (generation, slot) = split(number);
        let mut inner = self.inner.lock();
        if inner.generation.get(slot) != Some(&generation) || inner.kicked[slot] {
            return;
        }
        inner.kicked[slot] = true;
        inner.commands.push(Command::Kick { slot });
        drop(inner);
        self.wake();
    }

    /// Queues what `command` makes of the slot. False if the lane is gone.
    pub fn send(&self, number: u64, command: impl FnOnce(usize) -> Command) -> bool {
        let (generation, slot) = split(number);
        let mut inner = self.inner.lock();
        if inner.generation.get(slot) != Some(&generation) {
            return false;
        }
        inner.commands.push(command(slot));
        drop(inner);
        self.wake();
        true
    }

    pub fn stop(&self) {
        self.inner.lock().commands.push(Command::Stop);
        self.wake();
    }

    fn wake(&self) {
        self.waiting.store(true, Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst)
            && let Some(thread) = &*self.thread.lock()
        {
            thread.unpark();
        }
    }

    /// Is there anything to take? One relaxed load, for every round of a worker.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The worker takes everything that waits. `into` is emptied first; the two buffers change
    /// places, so nothing is allocated once they have grown.
    #[inline]
    pub fn take(&self, into: &mut Vec<Command>) -> bool {
        if !self.is_waiting() {
            return false;
        }
        self.waiting.store(false, Ordering::SeqCst);
        into.clear();
        let mut inner = self.inner.lock();
        std::mem::swap(into, &mut inner.commands);
        for command in into.iter() {
            if let Command::Kick { slot } = command {
                inner.kicked[*slot] = false;
            }
        }
        true
    }

    /// The worker gives a slot back; ids of its lane mean nothing from here on.
    pub fn free(&self, slot: usize) {
        let mut inner = self.inner.lock();
        inner.generation[slot] = inner.generation[slot].wrapping_add(1);
        inner.free.push(slot);
    }

    /// Called by the worker's thread when it starts.
    pub fn adopt(&self) {
        *self.thread.lock() = Some(std::thread::current());
    }

    /// Sleeps until something is queued or `timeout` has passed.
    pub fn park(&self, timeout: Option<std::time::Duration>) {
        self.parked.store(true, Ordering::SeqCst);
        if !self.waiting.load(Ordering::SeqCst) {
            match timeout {
                Some(timeout) => std::thread::park_timeout(timeout),
                None => std::thread::park(),
            }
        }
        self.parked.store(false, Ordering::SeqCst);
    }
}
