//! How busy the whole machine is, from /proc/stat: what netperf's service demand is made of, because
//! a guest does much of a socket's work in interrupts that no process is charged for.

use std::time::Instant;

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    at: Instant,
    busy_ticks: u64,
}

/// None where /proc is missing.
pub fn sample() -> Option<Sample> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    Some(Sample { at: Instant::now(), busy_ticks: busy_ticks(&text)? })
}

/// CPUs busy between two samples: 1.5 is one and a half CPUs.
pub fn cpus_busy(from: Option<Sample>, to: Option<Sample>) -> Option<f64> {
    let (from, to) = (from?, to?);
    let seconds = to.at.saturating_duration_since(from.at).as_secs_f64();
    let ticks = to.busy_ticks.saturating_sub(from.busy_ticks) as f64;
    (seconds > 0.0).then(|| ticks / rustix::param::clock_ticks_per_second() as f64 / seconds)
}

/// user, nice, system, irq and softirq; not idle, iowait or stolen time. Guest time is inside user.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    [0, 1, 2, 5, 6].into_iter().map(|field| ticks.get(field)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_the_busy_columns() {
        let stat = "cpu  10 20 30 4000 500 1 2 77 10 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(63));
        assert_eq!(busy_ticks("intr 5"), None);
        assert_eq!(busy_ticks("cpu 1 2"), None);
    }

    #[test]
    fn needs_both_samples() {
        assert!(cpus_busy(None, sample()).is_none());
    }
}
