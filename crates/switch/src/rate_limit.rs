//! How much of what is costly for others a port may send.
//!
//! A frame to several costs every guest of the segment an interrupt and a parse; one that is dropped for its
//! sender's own fault costs the worker's time. What a single guest can send without effort would keep all
//! others busy.

use std::time::{Duration, Instant};

/// Frames that may come at once, as a part of those of a second.
const BURST: u32 = 4;

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    left: u32,
    filled: Instant,
}

impl Bucket {
    /// Full, whatever the rate will be.
    pub fn new(now: Instant) -> Bucket {
        Bucket { left: u32::MAX, filled: now }
    }

    /// May another frame pass, at `rate` a second?
    pub fn take(&mut self, rate: u32, now: Instant) -> bool {
        let burst = (rate / BURST).max(1);
        self.left = self.left.min(burst);
        if self.left == 0 {
            let nanos = now.saturating_duration_since(self.filled).as_nanos();
            let gained =
                (nanos * u128::from(rate) / Duration::from_secs(1).as_nanos()).min(u128::from(burst));
            if gained == 0 {
                return false;
            }
            self.left = gained as u32;
            self.filled = now;
        }
        self.left -= 1;
        true
    }
}

/// How long nothing is taken from a port that sends too much that is dropped for its own fault.
const PAUSE: Duration = Duration::from_millis(5);

/// What one sender may still do.
#[derive(Debug)]
pub struct SenderLimits {
    /// Frames to several.
    floods: Bucket,
    /// Frames that are dropped for its own fault.
    faults: Bucket,
    /// It sent too many of those: until then nothing is taken from it.
    paused_until: Option<Instant>,
}

impl SenderLimits {
    pub fn new(now: Instant) -> SenderLimits {
        SenderLimits { floods: Bucket::new(now), faults: Bucket::new(now), paused_until: None }
    }

    /// May another frame go to several? 0: any number a second.
    pub fn may_flood(&mut self, rate: u32, now: Instant) -> bool {
        rate == 0 || self.floods.take(rate, now)
    }

    /// A frame was dropped for its sender's fault. Beyond `rate` a second, the sender is paused for a while.
    pub fn fault(&mut self, rate: u32, now: Instant) {
        if rate > 0 && !self.faults.take(rate, now) {
            self.paused_until = Some(now + PAUSE);
        }
    }

    #[inline]
    pub fn is_paused(&self) -> bool {
        self.paused_until.is_some()
    }

    /// The sender's turn has come. True if it is paused still.
    #[inline]
    pub fn still_paused(&mut self, now: Instant) -> bool {
        self.paused_until = self.paused_until.filter(|&until| now < until);
        self.is_paused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames that pass in `seconds` of those that come every `gap`.
    fn passed(rate: u32, gap: Duration, seconds: u32) -> u32 {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        let count = (Duration::from_secs(seconds.into()).as_nanos() / gap.as_nanos()) as u32;
        (0..count).map(|frame| u32::from(bucket.take(rate, start + gap * frame))).sum()
    }

    #[test]
    fn the_rate_holds_and_slower_senders_lose_nothing() {
        let flood = passed(4000, Duration::from_micros(10), 10);
        assert!((40_000..=41_000).contains(&flood), "{flood}");
        assert_eq!(passed(4000, Duration::from_micros(500), 10), 20_000);
        let slow = passed(1, Duration::from_millis(1), 10);
        assert!((10..=11).contains(&slow), "{slow}");
    }

    #[test]
    fn a_burst_is_bounded_after_silence() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        let burst = |bucket: &mut Bucket, now| (0..100_000).filter(|_| bucket.take(4000, now)).count();
        assert_eq!(burst(&mut bucket, start), 1000);
        assert_eq!(burst(&mut bucket, start + Duration::from_secs(3600)), 1000);
        // A clock that stands still or goes back gives nothing.
        assert_eq!(burst(&mut bucket, start), 0);
    }
}
