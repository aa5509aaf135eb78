//! Rests: a worker whose core others want looks again a little later, and meanwhile no guest has to announce anything.
//!
//! Where there are fewer cores than threads that want to run, a worker that has moved all there is had better leave. Armed and
//! asleep it would be woken for the next bytes, by a notice that costs the guest's driver several accesses to the device's
//! registers, three threads their turns, and the bytes are few by then. So a stream that moves much one way is not armed but
//! looked at again once its ring has had time to fill.

use std::time::{Duration, Instant};

/// The limits of a rest, and the first one. Under User Mode Linux, with both of two cores busy, one stream moved most with 100
/// to 200 us, five of them with 250 to 400.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_micros(400);
const FIRST: Duration = Duration::from_micros(100);

/// A rest that is under way.
#[derive(Clone, Copy, Debug)]
struct Rest {
    began: Instant,
    /// Bytes that the worker had moved by then.
    moved: u64,
    /// Bytes that the rings it rests for hold.
    room: u64,
}

/// How long a worker rests, by what the last rests brought.
#[derive(Debug)]
pub struct Rests {
    length: Duration,
    rest: Option<Rest>,
}

impl Default for Rests {
    fn default() -> Rests {
        Rests { length: FIRST, rest: None }
    }
}

impl Rests {
    /// How long the next one is.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// The worker has moved `moved` bytes in all and rests now, for rings that hold `room` bytes.
    pub fn begin(&mut self, now: Instant, moved: u64, room: u64) {
        self.rest = Some(Rest { began: now, moved, room });
    }

    /// The first round after a rest is over, and `moved` bytes have moved in all.
    #[inline]
    pub fn looked(&mut self, now: Instant, moved: u64) {
        if let Some(rest) = self.rest.take() {
            self.adapt(rest, now, moved);
        }
    }

    /// Rings that were full made their writers wait: too long. Rings that were not half full were not worth the look yet.
    fn adapt(&mut self, rest: Rest, now: Instant, moved: u64) {
        // Cut short by something else, a rest says nothing.
        if now.saturating_duration_since(rest.began) < self.length {
            return;
        }
        let brought = moved - rest.moved;
        if brought >= rest.room / 8 * 7 {
            self.length = (self.length * 7 / 8).max(SHORTEST);
        } else if brought > 0 && brought < rest.room / 2 {
            self.length = (self.length * 5 / 4).min(LONGEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After `rests` of their full length, each of which brought so many of 1,000 bytes.
    fn after(rests: usize, brought: u64) -> Duration {
        let (mut lengths, mut now) = (Rests::default(), Instant::now());
        for count in 0..rests as u64 {
            lengths.begin(now, count * brought, 1000);
            now += lengths.length();
            lengths.looked(now, (count + 1) * brought);
        }
        lengths.length()
    }

    #[test]
    fn a_rest_is_as_long_as_rings_take_to_fill_by_half_and_no_more() {
        assert_eq!(after(100, 400), LONGEST);
        assert_eq!(after(100, 1000), SHORTEST);
        assert_eq!(
            (after(100, 600), after(100, 0)),
            (FIRST, FIRST),
            "right as it is, and nothing to learn from"
        );
    }

    #[test]
    fn a_rest_that_was_cut_short_says_nothing() {
        let (mut rests, now) = (Rests::default(), Instant::now());
        rests.begin(now, 0, 1000);
        rests.looked(now + FIRST / 2, 1000);
        rests.looked(now + FIRST * 2, 3000);
        assert_eq!(rests.length(), FIRST);
    }
}
