//! Calls that are repeated for guests that may sleep through them ([`Lines::may_lose_calls`]).

use std::time::{Duration, Instant};

use super::vhost::Lines;

/// Repeated after this time, then after twice as long, and so on. A guest of User Mode Linux that was not
/// polling after 30 us was at work on the call in most cases, and round trips over virtio-vsock were 1.4
/// times as long.
pub const FIRST: Duration = Duration::from_micros(80);
/// So often, within 1.3 ms. The guest's own clock wakes it later.
const TIMES: u32 = 5;

/// The last call of a device, and how often it was repeated, while it may have to be once more.
#[derive(Debug)]
pub struct Recall {
    lossy: bool,
    called: Option<(Instant, u32)>,
}

impl Recall {
    /// Of a device whose rings begin to run.
    pub fn new(lines: &dyn Lines) -> Recall {
        Recall { lossy: lines.may_lose_calls(), called: None }
    }

    /// The guest was called.
    #[inline]
    pub fn called(&mut self, now: Instant) {
        if self.lossy {
            self.called = Some((now, 0));
        }
    }

    /// May the guest have to be called again?
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.called.is_some()
    }

    /// Is the guest to be called again now? `notified`: it is known to have polled.
    #[cold]
    pub fn take_due(&mut self, now: Instant, notified: bool) -> bool {
        let Some((at, times)) = self.called else { return false };
        if notified || times == TIMES {
            self.called = None;
            return false;
        }
        let due = now.saturating_duration_since(at) >= FIRST * (1 << times);
        if due {
            self.called = Some((at, times + 1));
        }
        due
    }
}
