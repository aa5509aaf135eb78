//! How long it is worth to spin: what the last gaps would have cost with one window or another.
//!
//! A spin costs its time. A sleep costs the wake-up: who waits for the worker waits for that, the guest's
//! notice is an exit, and arming and waking take both CPUs some time. So a window is worth its time where
//! most gaps end within it, and where they are longer, the shortest one is.

use std::time::Duration;

/// What a sleep costs, as a time of spinning. A wake-up across CPUs takes 20 to 60 us, and a guest's notice
/// some 10 us more.
const SLEEP: Duration = Duration::from_micros(100);
/// Windows to choose from: the longest one, and half of each for the next.
const WINDOWS: usize = 7;
/// After so many gaps a window is chosen anew.
const CHOSEN_EVERY: u32 = 16;

/// How long the last gaps were, and the window that would have cost least.
#[derive(Clone, Copy, Debug)]
pub struct Gaps {
    longest: Duration,
    /// The one that is in force.
    window: Duration,
    /// Gaps that were no longer than a window, but than the next one; then those that were longer than all.
    /// Halved whenever a window is chosen.
    counts: [f32; WINDOWS],
    longer: f32,
    until_chosen: u32,
}

impl Gaps {
    /// Begins with the longest window.
    pub fn new(longest: Duration) -> Gaps {
        Gaps { longest, window: longest, counts: [0.0; WINDOWS], longer: 0.0, until_chosen: CHOSEN_EVERY }
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
        self.until_chosen -= 1;
        if self.until_chosen == 0 {
            self.until_chosen = CHOSEN_EVERY;
            self.choose();
        }
    }

    fn choose(&mut self) {
        let costs = (0..WINDOWS).map(|index| self.cost(index));
        // Of equal ones the longest.
        let best = costs.enumerate().reduce(|best, next| if next.1 < best.1 { next } else { best });
        self.window = self.length(best.map_or(0, |(index, _)| index));
        self.counts.iter_mut().for_each(|count| *count /= 2.0);
        self.longer /= 2.0;
    }

    /// Seconds that these gaps would have cost with a window.
    fn cost(&self, window: usize) -> f32 {
        let length = |index: usize| self.length(index).as_secs_f32();
        let missed = length(window) + SLEEP.as_secs_f32();
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
        let mut all = Gaps::new(LONGEST);
        let gaps = gaps.iter().cycle().take(1000);
        gaps.for_each(|&gap| all.add(Duration::from_micros(gap)));
        all.window().as_micros() as u64
    }

    #[test]
    fn it_spins_as_long_as_that_costs_less_than_a_sleep() {
        assert_eq!(Gaps::new(LONGEST).window(), LONGEST);
        for (gaps, window) in [
            (&[1][..], 512),
            // Each is caught.
            (&[30, 40, 60], 512),
            (&[100], 512),
            // A core for 3,000 frames a second.
            (&[333], 8),
            (&[1_000_000], 8),
            // An answer comes soon, the next question does not.
            (&[30, 10_000], 32),
            // Hardly anything comes soon.
            (&[30, 10_000, 10_000, 10_000, 10_000, 10_000, 10_000, 10_000], 8),
        ] {
            assert_eq!(after(gaps), window, "{gaps:?}");
        }
    }

    #[test]
    fn what_was_long_ago_does_not_count() {
        let mut gaps = Gaps::new(LONGEST);
        (0..10_000).for_each(|_| gaps.add(Duration::from_millis(1)));
        (0..200).for_each(|_| gaps.add(Duration::from_micros(20)));
        assert!(gaps.window() >= Duration::from_micros(32));
    }

    #[test]
    fn without_a_window_there_is_none() {
        let mut gaps = Gaps::new(Duration::ZERO);
        (0..100).for_each(|gap| gaps.add(Duration::from_micros(gap)));
        assert_eq!(gaps.window(), Duration::ZERO);
    }
}
