//! Token buckets, in whole bits and nanoseconds: nothing is rounded away, at any rate.

use std::time::{Duration, Instant};

use crate::spec::Rate;

/// Tokens of a second's worth of one bit in a second: tokens are gained by multiplying nanoseconds with bits
/// in a second.
const BIT: i128 = 1_000_000_000;

/// For how long tokens add up beyond the depth of a bucket while frames wait for them: what is gained between
/// two polls of the worker is not lost because the second one comes late.
const LATENESS: Duration = Duration::from_millis(10);

/// What `peak` lets through at once, as a time: the worker polls no more often.
const PEAK_DEPTH: Duration = Duration::from_millis(1);

/// One bucket: filled at a rate up to a depth. Its tokens go below zero by one frame's, so that the longest
/// frame passes the smallest bucket and is paid for afterwards.
#[derive(Clone, Copy, Debug)]
struct Level {
    rate: i128,
    depth: i128,
    tokens: i128,
}

impl Level {
    fn new(rate: u64, depth: i128) -> Level {
        Level { rate: rate.into(), depth, tokens: depth }
    }

    fn gained(&self, time: Duration) -> i128 {
        // Times are far below 2^127 nanoseconds, and so are they by a rate of 64 bits.
        (time.as_nanos() as i128).saturating_mul(self.rate)
    }

    fn fill(&mut self, time: Duration, waited: bool) {
        let most = self.depth + if waited { self.gained(LATENESS) } else { 0 };
        self.tokens = self.tokens.saturating_add(self.gained(time)).min(most);
    }

    /// How long until there is a token.
    fn wait(&self) -> Duration {
        if self.tokens > 0 {
            return Duration::ZERO;
        }
        let nanos = (1 - self.tokens).unsigned_abs().div_ceil(self.rate.unsigned_abs().max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// What one direction of a port may still carry.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    average: Level,
    peak: Level,
    filled: Instant,
}

impl Bucket {
    /// Full.
    pub fn new(rate: Rate, now: Instant) -> Bucket {
        let Rate { average, peak, burst } = rate;
        let at_peak = (PEAK_DEPTH.as_nanos() as i128).saturating_mul(peak.into());
        Bucket {
            average: Level::new(average, i128::from(burst) * 8 * BIT),
            peak: Level::new(peak, at_peak),
            filled: now,
        }
    }

    /// Time went by. `waited`: frames waited for tokens all the time.
    pub fn fill(&mut self, now: Instant, waited: bool) {
        let time = now.saturating_duration_since(self.filled);
        self.filled = self.filled.max(now);
        self.average.fill(time, waited);
        self.peak.fill(time, waited);
    }

    /// No frame waits any more: what was gained beyond the depth is lost.
    pub fn idle(&mut self) {
        self.fill(self.filled, false);
    }

    /// May another frame pass, of any length?
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.average.tokens > 0 && self.peak.tokens > 0
    }

    /// A frame of so many bytes passed.
    #[inline]
    pub fn take(&mut self, bytes: u64) {
        let tokens = i128::from(bytes) * 8 * BIT;
        self.average.tokens -= tokens;
        self.peak.tokens -= tokens;
    }

    /// It did not pass after all.
    pub fn give_back(&mut self, bytes: u64) {
        let tokens = i128::from(bytes) * 8 * BIT;
        self.average.tokens += tokens;
        self.peak.tokens += tokens;
    }

    /// How many frames of at most so many bytes may pass; at least 1 if any may.
    pub fn frames(&self, longest: usize) -> usize {
        let tokens = self.average.tokens.min(self.peak.tokens).max(0);
        usize::try_from(tokens / (longest.max(1) as i128 * 8 * BIT)).unwrap_or(usize::MAX).max(1)
    }

    /// How long until another frame may pass.
    pub fn wait(&self) -> Duration {
        self.average.wait().max(self.peak.wait())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MTU: u64 = 1514;

    fn rate(average: u64, peak: u64, burst: u64) -> Rate {
        Rate { average, peak, burst }
    }

    /// Bytes that a sender with frames of `bytes` passes in `time`, polled every `step`.
    fn passed(bucket: &mut Bucket, from: Instant, (time, step): (Duration, Duration), bytes: u64) -> u64 {
        let (mut now, mut sum) = (from, 0);
        while now < from + time {
            now += step;
            bucket.fill(now, true);
            while bucket.is_ready() {
                bucket.take(bytes);
                sum += bytes;
            }
        }
        sum
    }

    fn near(value: u64, expected: u64, percent: u64) -> bool {
        value.abs_diff(expected) * 100 <= expected * percent
    }

    #[test]
    fn the_average_holds_at_any_rate_and_however_late_the_polls_are() {
        for average in [10_000_000, 100_000_000, 1_000_000_000, 5_000_000_000] {
            for step in [Duration::from_micros(50), Duration::from_millis(1), Duration::from_millis(8)] {
                for bytes in [60, MTU, 64 << 10] {
                    let start = Instant::now();
                    let mut bucket = Bucket::new(rate(average, average, 64 << 10), start);
                    let sum = passed(&mut bucket, start, (Duration::from_secs(10), step), bytes);
                    let expected = average / 8 * 10;
                    assert!(near(sum, expected, 3), "{sum} of {expected} at {average}, {step:?}, {bytes}");
                }
            }
        }
    }

    #[test]
    fn a_burst_has_its_bytes_and_goes_at_the_peak() {
        let start = Instant::now();
        let mut bucket = Bucket::new(rate(100_000_000, 400_000_000, 1 << 20), start);
        let step = Duration::from_micros(50);
        // The burst lasts as long as it takes to send it faster than it is filled: 28 ms.
        let during = passed(&mut bucket, start, (Duration::from_millis(25), step), MTU);
        assert!(near(during, 400_000_000 / 8 / 40, 10), "{during}");
        let rest =
            passed(&mut bucket, start + Duration::from_millis(25), (Duration::from_secs(1), step), MTU);
        let beyond = during + rest - 100_000_000 / 8 * 1025 / 1000;
        assert!(near(beyond, 1 << 20, 10), "{beyond}");
        // After silence there is another one, not two.
        bucket.idle();
        let later = start + Duration::from_secs(3600);
        bucket.fill(later, false);
        let second = passed(&mut bucket, later, (Duration::from_millis(100), step), MTU);
        let beyond = second - 100_000_000 / 80;
        assert!(near(beyond, 1 << 20, 10), "{beyond}");
    }

    #[test]
    fn a_frame_longer_than_the_burst_passes_and_is_paid_for_afterwards() {
        let start = Instant::now();
        let mut bucket = Bucket::new(rate(1_000_000, 1_000_000, 1500), start);
        assert!(bucket.is_ready());
        bucket.take(64 << 10);
        assert!(!bucket.is_ready());
        let wait = bucket.wait();
        assert!(wait > Duration::from_millis(500), "{wait:?}");
        bucket.fill(start + wait - Duration::from_micros(1), true);
        assert!(!bucket.is_ready());
        bucket.fill(start + wait, true);
        assert!(bucket.is_ready());
        assert_eq!(bucket.wait(), Duration::ZERO);
    }

    proptest! {
        /// Whatever comes when: never more than the burst, the average, one frame and what lateness may add.
        #[test]
        fn no_window_carries_more_than_it_may(
            average in 8_000_u64..10_000_000_000,
            times in 1_u64..10,
            burst in 1_u64..10_000_000,
            polls in proptest::collection::vec((0_u64..20_000_000, 0_usize..50, 1_u64..70_000), 1..200),
        ) {
            let start = Instant::now();
            let rate = rate(average, average * times, burst);
            let mut bucket = Bucket::new(rate, start);
            let (mut now, mut sum, mut longest) = (start, 0_u128, 0_u64);
            let mut wanted = false;
            for (nanos, frames, bytes) in polls {
                now += Duration::from_nanos(nanos);
                bucket.fill(now, wanted);
                wanted = false;
                for _ in 0..frames {
                    wanted = !bucket.is_ready();
                    if wanted {
                        break;
                    }
                    bucket.take(bytes);
                    (sum, longest) = (sum + u128::from(bytes), longest.max(bytes));
                }
                let within = |rate: u64, time: Duration| u128::from(rate) * time.as_nanos() / 8 / 1_000_000_000;
                let time = now - start;
                let most = u128::from(burst) + within(average, time + LATENESS) + u128::from(longest) + 1;
                prop_assert!(sum <= most, "{sum} bytes of {most}");
                let most = within(rate.peak, time + LATENESS + PEAK_DEPTH) + u128::from(longest) + 1;
                prop_assert!(sum <= most, "{sum} bytes of {most} at the peak");
            }
        }

        /// Who waits for as long as it returned may send then, and not a moment before.
        #[test]
        fn a_wait_is_as_long_as_it_has_to_be(
            average in 1_000_u64..100_000_000_000, burst in 1_u64..1 << 30, debt in 1_u64..1 << 21,
        ) {
            let start = Instant::now();
            let mut bucket = Bucket::new(rate(average, average, burst), start);
            bucket.take(burst + debt);
            let wait = bucket.wait();
            bucket.fill(start + wait.saturating_sub(Duration::from_nanos(1)), true);
            prop_assert!(!bucket.is_ready());
            bucket.fill(start + wait, true);
            prop_assert!(bucket.is_ready());
        }
    }
}
