//! How long a VM's packets wait for a receiver's buffers while it talks to others, too.
//!
//! Packets of a VM are delivered in order, so one that waits delays the next ones, to all receivers. A receiver that is
//! kept from its processor for some hundred milliseconds now and then is waited for; one that is slow all the time is not
//! waited for at the others' expense.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a packet waits if its sender talks to no other VM. A guest of a machine with more guests than processors is
/// easily kept from its own for some hundred milliseconds (Linux' vhost-vsock waits without limit).
pub const ALONE: Duration = Duration::from_secs(2);
/// So much of each wait is not counted.
const UNCOUNTED: Duration = Duration::from_millis(20);
/// What a receiver is waited for at most, beyond that, before its sender's packets to it are given up.
const MOST: Duration = Duration::from_secs(2);
/// It gains so much of the time that passes.
const REGAINED: u32 = 10;

/// A packet's wait.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    since: Instant,
    limit: Duration,
    /// Its sender talks to others, too.
    counts: bool,
}

impl Wait {
    /// Has it lasted as long as it may?
    pub fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= self.limit
    }
}

/// What is left of one receiver's time.
#[derive(Clone, Copy, Debug)]
struct Left {
    time: Duration,
    at: Instant,
}

impl Left {
    fn at(&self, now: Instant) -> Duration {
        (self.time + now.saturating_duration_since(self.at) / REGAINED).min(MOST)
    }
}

/// How long one VM has waited for others, by their CID.
#[derive(Debug, Default)]
pub struct Patience {
    /// Those with less than [`MOST`] left.
    of: HashMap<u32, Left>,
}

impl Patience {
    /// A packet to `receiver` begins to wait. `others`: its sender talks to others, too.
    pub fn begin(&mut self, receiver: u32, others: bool, now: Instant) -> Wait {
        let left = self.of.get(&receiver).map_or(MOST, |left| left.at(now));
        let limit = if others { UNCOUNTED + left } else { ALONE };
        Wait { since: now, limit, counts: others }
    }

    /// It waits no longer: it was delivered, or given up.
    pub fn end(&mut self, receiver: u32, wait: &Wait, now: Instant) {
        let length = now.saturating_duration_since(wait.since);
        if !wait.counts || length <= UNCOUNTED {
            return;
        }
        let left = self.of.get(&receiver).map_or(MOST, |left| left.at(now));
        self.of.retain(|_, left| left.at(now) < MOST);
        self.of.insert(receiver, Left { time: left.saturating_sub(length - UNCOUNTED), at: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Waits of `length`, one every second; how many until one is given up, if it comes to that.
    fn waits(length: Duration, others: bool) -> Option<usize> {
        let (mut patience, start) = (Patience::default(), Instant::now());
        (0..1000u32).position(|number| {
            let now = start + SECOND * number;
            let wait = patience.begin(7, others, now);
            let over = wait.is_over(now + length);
            patience.end(7, &wait, now + length);
            over
        })
    }

    #[test]
    fn short_waits_and_rare_long_ones_are_free_others_add_up() {
        assert_eq!(waits(Duration::from_millis(20), true), None);
        assert_eq!(waits(Duration::from_millis(110), true), None, "a tenth of the time");
        assert!(waits(Duration::from_millis(900), true).is_some_and(|number| number <= 4));
        assert_eq!(waits(Duration::from_millis(1900), false), None, "no one else is delayed");
        assert_eq!(waits(ALONE, false), Some(0));
    }

    #[test]
    fn receivers_are_counted_apart_and_forgotten_when_all_is_regained() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        let wait = patience.begin(7, true, now);
        patience.end(7, &wait, now + SECOND);
        assert!(!patience.begin(8, true, now + SECOND).is_over(now + 3 * SECOND));
        assert!(patience.begin(7, true, now + SECOND).is_over(now + 3 * SECOND));
        let late = now + 60 * SECOND;
        let wait = patience.begin(8, true, late);
        patience.end(8, &wait, late + SECOND);
        assert_eq!(patience.of.len(), 1);
    }
}
