//! Naps while rings fill: a worker whose core is contended polls a little later, and meanwhile no guest has
//! to announce anything.
//!
//! Where there are fewer cores than threads that want to run, a worker that has moved all there is had better
//! leave. Armed and asleep it would be notified of the next bytes, by a notice that costs the guest's driver
//! several accesses to the device's registers, three threads their turns, and the bytes are few by then. So a
//! stream that moves much one way is not armed but polled again once its ring has had time to fill.

use std::time::{Duration, Instant};

/// The limits of a nap, and the first one. Under User Mode Linux, with both of two cores busy, one stream
/// moved most with 100 to 200 us, five of them with 250 to 400.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_micros(400);
const FIRST: Duration = Duration::from_micros(100);

/// A nap that is under way.
#[derive(Clone, Copy, Debug)]
struct Nap {
    began: Instant,
    /// Bytes that the worker had moved by then.
    moved: u64,
    /// Bytes that the rings hold that fill meanwhile.
    room: u64,
}

/// How long a worker naps, by what the last naps brought.
#[derive(Clone, Copy, Debug)]
pub struct RingNaps {
    length: Duration,
    nap: Option<Nap>,
}

impl Default for RingNaps {
    fn default() -> RingNaps {
        RingNaps { length: FIRST, nap: None }
    }
}

impl RingNaps {
    /// How long the next one is.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// The worker has moved `moved` bytes in all and naps now, for rings that hold `room` bytes.
    pub fn begin(&mut self, now: Instant, moved: u64, room: u64) {
        self.nap = Some(Nap { began: now, moved, room });
    }

    /// The first round after a nap has found nothing: there is nothing to learn from it.
    #[inline]
    pub fn found_nothing(&mut self) {
        self.nap = None;
    }

    /// The first round after a nap is over, and `moved` bytes have moved in all. Rings that were full made
    /// their writers wait: too long. Rings that were not half full were not worth the round yet.
    pub fn found(&mut self, now: Instant, moved: u64) {
        // Cut short by something else, a nap counts for nothing.
        let full_length = |nap: &Nap| now.saturating_duration_since(nap.began) >= self.length;
        let Some(nap) = self.nap.take().filter(full_length) else { return };
        let brought = moved.saturating_sub(nap.moved);
        if brought >= nap.room / 8 * 7 {
            self.length = (self.length * 7 / 8).max(SHORTEST);
        } else if brought > 0 && brought < nap.room / 2 {
            self.length = (self.length * 5 / 4).min(LONGEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After `naps` of their full length, each of which brought so many of 1,000 bytes.
    fn after(naps: usize, brought: u64) -> Duration {
        let (mut lengths, mut now) = (RingNaps::default(), Instant::now());
        for count in 0..naps as u64 {
            lengths.begin(now, count * brought, 1000);
            now += lengths.length();
            lengths.found(now, (count + 1) * brought);
        }
        lengths.length()
    }

    #[test]
    fn a_nap_is_as_long_as_rings_take_to_fill_by_half_and_no_more() {
        assert_eq!(after(100, 400), LONGEST);
        assert_eq!(after(100, 1000), SHORTEST);
        assert_eq!(
            (after(100, 600), after(100, 0)),
            (FIRST, FIRST),
            "right as it is, and nothing to learn from"
        );
    }

    #[test]
    fn a_nap_that_was_cut_short_or_found_nothing_is_not_counted() {
        let (mut naps, now) = (RingNaps::default(), Instant::now());
        naps.begin(now, 0, 1000);
        naps.found(now + FIRST / 2, 1000);
        naps.found(now + FIRST * 2, 3000);
        naps.begin(now, 3000, 1000);
        naps.found_nothing();
        naps.found(now + FIRST * 2, 6000);
        assert_eq!(naps.length(), FIRST);
    }
}
