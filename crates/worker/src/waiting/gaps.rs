//! How long it is worth to spin: what the last gaps would have cost with one window or another.
//!
//! A spin costs its time. A sleep costs the wake-up: who waits for the worker waits for that, the guest's
//! notice is an exit, and arming and waking take both CPUs some time. So a window is worth its time where
//! most gaps end within it, and where they are longer, the shortest one is. Where there are so few gaps that
//! even a long window is a small part of the time, latency counts alone: that is the request after a pause,
//! whose answer is to be polled for.

use std::time::Duration;

/// What a sleep costs where a guest's notice is an event fd, as a time of spinning. A wake-up across CPUs
/// takes 20 to 60 us, and the notice some 10 us more.
pub const SLEEP: Duration = Duration::from_micros(100);
/// The part of the time that may be spent on spinning whatever it saves.
const BUDGET: f32 = 0.02;
/// Windows to choose from: the longest one, and half of each for the next.
const WINDOWS: usize = 7;
/// After so many gaps a window is chosen anew.
const CHOSEN_EVERY: u32 = 16;

/// How long the last gaps were, and the window that would have cost least.
#[derive(Clone, Copy, Debug)]
pub struct Gaps {
    longest: Duration,
    /// What a sleep costs.
    sleep: Duration,
    /// The one that is in force.
    window: Duration,
    /// Gaps that were no longer than a window, but than the next one; then those that were longer than all.
    /// Halved whenever a window is chosen.
    counts: [f32; WINDOWS],
    longer: f32,
    /// Seconds of all gaps together, halved with them.
    time: f32,
    until_chosen: u32,
}

impl Gaps {
    /// Begins with the longest window; a sleep costs as much as so much spinning.
    pub fn new(longest: Duration, sleep: Duration) -> Gaps {
        Gaps {
            longest,
            sleep,
            window: longest,
            counts: [0.0; WINDOWS],
            longer: 0.0,
            time: 0.0,
            until_chosen: CHOSEN_EVERY,
        }
    }

    /// The window that is in force.
    #[inline]
    pub fn window(&self) -> Duration {
        self.window
    }

    fn length(&self, index: usize) -> Duration {
        self.longest / (1 << index)
    }

    /// Something moved, so long after what had moved before.
    #[inline]
    pub fn add(&mut self, gap: Duration) {
        let times = self.longest.as_nanos() as u64 / (gap.as_nanos() as u64).max(1);
        let within = times.checked_ilog2().map(|index| (index as usize).min(WINDOWS - 1));
        match within.and_then(|index| self.counts.get_mut(index)) {
            Some(count) => *count += 1.0,
            None => self.longer += 1.0,
        }
        self.time += gap.as_secs_f32();
        self.until_chosen -= 1;
        if self.until_chosen == 0 {
            self.until_chosen = CHOSEN_EVERY;
            self.choose();
        }
    }

    fn choose(&mut self) {
        let cheap = (0..WINDOWS).find(|&window| self.cost(window, 0.0) <= BUDGET * self.time);
        let costs = (0..WINDOWS).map(|window| self.cost(window, self.sleep.as_secs_f32()));
        // Of equal ones the longest.
        let best = costs.enumerate().reduce(|best, next| if next.1 < best.1 { next } else { best });
        self.window = self.length(cheap.or(best.map(|(window, _)| window)).unwrap_or(0));
        self.counts.iter_mut().for_each(|count| *count /= 2.0);
        self.longer /= 2.0;
        self.time /= 2.0;
    }

    /// Seconds that these gaps would have cost with a window, if a sleep costs so many.
    fn cost(&self, window: usize, sleep: f32) -> f32 {
        let length = |index: usize| self.length(index).as_secs_f32();
        let missed = length(window) + sleep;
        let counts = self.counts.iter().enumerate();
        let of = |(index, count): (usize, &f32)| {
            // In the middle of what is counted there.
            let caught = 0.75 * length(index);
            count * if index >= window { caught } else { missed }
        };
        counts.map(of).sum::<f32>() + self.longer * missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(512);

    /// The window after many gaps of these lengths in turns, in microseconds.
    fn after(gaps: &[u64]) -> u64 {
        let mut all = Gaps::new(LONGEST, SLEEP);
        let gaps = gaps.iter().cycle().take(1000);
        gaps.for_each(|&gap| all.add(Duration::from_micros(gap)));
        all.window().as_micros() as u64
    }

    #[test]
    fn it_spins_as_long_as_that_costs_less_than_a_sleep() {
        assert_eq!(Gaps::new(LONGEST, SLEEP).window(), LONGEST);
        for (gaps, window) in [
            (&[1][..], 512),
            // Each is caught.
            (&[30, 40, 60], 512),
            (&[100], 512),
            // A core for 3,000 frames a second.
            (&[333], 8),
            (&[2_000], 32),
            // Little of the time, whatever it is for.
            (&[10_000], 128),
            (&[1_000_000], 512),
            // An answer comes soon, the next question does not.
            (&[30, 5_000], 64),
            (&[30, 30_000], 512),
            // Hardly anything comes soon.
            (&[30, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000], 16),
        ] {
            assert_eq!(after(gaps), window, "{gaps:?}");
        }
    }

    #[test]
    fn a_sleep_that_costs_more_is_worth_a_longer_window() {
        for (sleep, window) in [(SLEEP, 8), (3 * SLEEP, 512)] {
            let mut gaps = Gaps::new(LONGEST, sleep);
            (0..1000).for_each(|_| gaps.add(Duration::from_micros(170)));
            assert_eq!(gaps.window().as_micros(), window, "{sleep:?}");
        }
    }

    #[test]
    fn what_was_long_ago_does_not_count() {
        let mut gaps = Gaps::new(LONGEST, SLEEP);
        (0..10_000).for_each(|_| gaps.add(Duration::from_millis(1)));
        assert_eq!(gaps.window(), Duration::from_micros(16));
        (0..200).for_each(|_| gaps.add(Duration::from_micros(20)));
        assert!(gaps.window() >= Duration::from_micros(32));
    }

    #[test]
    fn without_a_window_there_is_none() {
        let mut gaps = Gaps::new(Duration::ZERO, SLEEP);
        (0..100).for_each(|gap| gaps.add(Duration::from_micros(gap)));
        assert_eq!(gaps.window(), Duration::ZERO);
    }
}
