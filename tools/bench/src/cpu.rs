//! How busy the whole machine is, from /proc/stat: what netperf's service demand is made of, because
//! a guest does much of a socket's work in interrupts that no process is charged for.

use std::time::Instant;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    at: Instant,
    ticks: Ticks,
}

/// What a whole machine's CPUs did, in CPUs: 1.5 is one and a half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// user and nice; guests of this machine are in it.
    pub user: f64,
    /// system, irq and softirq.
    pub system: f64,
    /// Wanted, and given to other guests by a hypervisor below this machine. No part of the load.
    pub steal: f64,
}

impl Machine {
    /// CPUs busy.
    pub fn busy(&self) -> f64 {
        self.user + self.system
    }
}

/// Ticks of all CPUs together since the machine was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    pub user: u64,
    pub system: u64,
    pub steal: u64,
}

/// None where /proc is missing.
pub fn sample() -> Option<Sample> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    Some(Sample { at: Instant::now(), ticks: ticks(&text)? })
}

/// What the CPUs did between two samples.
pub fn between(from: Option<Sample>, to: Option<Sample>) -> Option<Machine> {
    let (from, to) = (from?, to?);
    let seconds = to.at.saturating_duration_since(from.at).as_secs_f64();
    let cpus = |from: u64, to: u64| {
        to.saturating_sub(from) as f64 / rustix::param::clock_ticks_per_second() as f64 / seconds
    };
    (seconds > 0.0).then(|| Machine {
        user: cpus(from.ticks.user, to.ticks.user),
        system: cpus(from.ticks.system, to.ticks.system),
        steal: cpus(from.ticks.steal, to.ticks.steal),
    })
}

/// From a /proc/stat. Columns of proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal.
pub fn ticks(stat: &str) -> Option<Ticks> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let sum = |fields: &[usize]| fields.iter().map(|&field| ticks.get(field)).sum::<Option<u64>>();
    Some(Ticks { user: sum(&[0, 1])?, system: sum(&[2, 5, 6])?, steal: ticks.get(7).copied().unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_the_busy_columns() {
        let stat = "cpu  10 20 30 4000 500 1 2 77 10 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(ticks(stat), Some(Ticks { user: 30, system: 33, steal: 77 }));
        assert_eq!(ticks("intr 5"), None);
        assert_eq!(ticks("cpu 1 2"), None);
    }

    #[test]
    fn needs_both_samples() {
        assert!(between(None, sample()).is_none());
    }
}
