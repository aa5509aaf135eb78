//! What other threads ask of the worker: commands in order, and a file that wakes it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use vmlane_port::{FramePort, PortId, PortStats};

use crate::port::PortState;
use crate::spec::PortSpec;

pub enum Request {
    Add {
        id: PortId,
        spec: PortSpec,
        stats: Arc<PortStats>,
        state: Arc<PortState>,
    },
    Update {
        id: PortId,
        spec: PortSpec,
    },
    Remove {
        id: PortId,
    },
    Attach {
        id: PortId,
        end: Box<dyn FramePort>,
    },
    Detach {
        id: PortId,
    },
    Refresh {
        id: PortId,
    },
    /// Nothing may be attached from now on, or something may again.
    Shut {
        id: PortId,
        shut: bool,
    },
    Stop,
}

/// A request; whoever made it waits until `done` is dropped.
pub struct Command {
    pub request: Request,
    pub done: Option<SyncSender<()>>,
}

/// The worker's in-tray. Locked for a few instructions at a time.
pub struct Queue {
    commands: Mutex<Vec<Command>>,
    /// There are commands, or somebody announced something.
    waiting: AtomicBool,
    asleep: AtomicBool,
    bell: OwnedFd,
}

impl Queue {
    pub fn new() -> io::Result<Queue> {
        Ok(Queue {
            commands: Mutex::default(),
            waiting: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub fn send(&self, command: Command) {
        self.commands.lock().push(command);
        self.kick();
    }

    /// Wakes the worker if it sleeps.
    #[inline]
    pub fn kick(&self) {
        if !self.waiting.swap(true, Ordering::SeqCst) && self.asleep.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        // Fails only when the counter is full: then it is readable, too.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Is there anything to look at? One relaxed load, for every round.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The worker takes everything that waits.
    pub fn take(&self) -> Vec<Command> {
        self.waiting.store(false, Ordering::SeqCst);
        std::mem::take(&mut *self.commands.lock())
    }

    /// The worker is about to sleep. False if something came meanwhile.
    pub fn lie_down(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        !self.waiting.load(Ordering::SeqCst)
    }

    /// The worker is awake.
    pub fn get_up(&self, rung: bool) {
        self.asleep.store(false, Ordering::SeqCst);
        if rung {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.bell, &mut count);
        }
    }

    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
