//! What a worker notes of a port to know whether it looks at it: `polled.rs`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use vmlane_worker::Doorbells;

use crate::Slot;
use crate::turns::Dozing;

/// What a worker notes of a port for that.
pub struct Watch {
    /// It is looked at in each round.
    pub awake: bool,
    /// Its guest was asked to announce frames, and not told yet that it need not.
    pub armed: bool,
    /// It wants to be looked at again soon.
    pub again: bool,
    /// It dozes from now on, and this is how it is found.
    pub dozing: Option<Dozing>,
    /// Something happened to it then.
    pub busy: Instant,
    /// It dozed before, and its doorbell is among those of all that do.
    bell: Option<Bell>,
}

/// A port's doorbell among others.
struct Bell {
    /// A descriptor of its own, so that it is there until it is taken out.
    file: OwnedFd,
    bells: Arc<Doorbells>,
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.bells.remove(self.file.as_fd());
    }
}

impl Watch {
    pub fn new(now: Instant) -> Watch {
        Watch { awake: true, armed: false, again: false, dozing: None, busy: now, bell: None }
    }

    /// Its guest need not announce frames. False if it was told before.
    #[inline]
    pub fn take_armed(&mut self) -> bool {
        std::mem::take(&mut self.armed)
    }

    /// What was attached is about to be dropped.
    pub fn forget(&mut self) {
        (self.awake, self.armed) = (true, false);
        self.bell = None;
    }

    /// Its doorbell may be another one now, or is not to be heard.
    pub fn drop_bell(&mut self) {
        self.bell = None;
    }

    /// Has its doorbell among those of all. False if that cannot be.
    pub fn listen(&mut self, doorbell: BorrowedFd<'_>, bells: &Arc<Doorbells>, slot: Slot) -> bool {
        if self.bell.is_none() {
            let added = doorbell.try_clone_to_owned().and_then(|file| {
                bells.add(file.as_fd(), slot.into())?;
                Ok(Bell { file, bells: bells.clone() })
            });
            self.bell = added.ok();
        }
        self.bell.is_some()
    }
}
