//! Whether the other end of a direct port's cable is up, and who is to know.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

type Notify = Box<dyn Fn(bool) + Send + Sync>;

/// Of a port that is not direct, or whose state is not known yet: it is up.
#[derive(Default)]
pub struct Carrier {
    lost: AtomicBool,
    /// Held while it is called, so that what is passed last is so.
    notify: Mutex<Option<Notify>>,
}

impl Carrier {
    pub fn is_up(&self) -> bool {
        !self.lost.load(Ordering::Relaxed)
    }

    /// For the worker that has the port.
    pub fn set(&self, up: bool) {
        if self.is_up() == up {
            return;
        }
        self.lost.store(!up, Ordering::Relaxed);
        if let Some(notify) = &*self.notify.lock() {
            notify(self.is_up());
        }
    }

    /// Calls `notify` at once, and whenever it changes.
    pub fn follow(&self, notify: Notify) {
        let mut place = self.notify.lock();
        notify(self.is_up());
        *place = Some(notify);
    }
}

impl fmt::Debug for Carrier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Carrier({})", if self.is_up() { "up" } else { "lost" })
    }
}
