//! How often to repeat a test: until the mean is known well enough, as netperf's `-I` and `-i` do.
//!
//! The true mean lies within `width` percent of the result (half of it on either side) with the given level of
//! confidence, by Student's t distribution over the runs.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// `--confidence LEVEL,WIDTH`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfidenceTarget {
    level: Level,
    /// Percent of the mean, both sides together.
    width: f64,
}

/// How sure to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    P95,
    P99,
}

impl Level {
    pub fn percent(self) -> f64 {
        match self {
            Level::P95 => 95.0,
            Level::P99 => 99.0,
        }
    }

    /// Two-sided quantile of Student's t for `freedom` degrees of freedom; beyond the table the last one, which
    /// is a little on the safe side.
    pub fn quantile(self, freedom: usize) -> f64 {
        let table = match self {
            Level::P95 => &T95,
            Level::P99 => &T99,
        };
        let [.., last] = *table;
        table.get(freedom.saturating_sub(1)).copied().unwrap_or(last)
    }
}

/// Fewer runs tell nothing about their spread.
pub const LEAST_RUNS: u32 = 3;
/// netperf's own bound.
pub const MOST_RUNS: u32 = 30;

impl FromStr for ConfidenceTarget {
    type Err = Error;

    fn from_str(text: &str) -> Result<ConfidenceTarget, Error> {
        let bad = || {
            Error::Usage(format!(
                "\"{text}\" is no confidence: write 95,5 or 99,10 (level 95 or 99, width in percent)"
            ))
        };
        let (level, width) = text.split_once(',').unwrap_or((text, "5"));
        let level = match level {
            "95" => Level::P95,
            "99" => Level::P99,
            _ => return Err(bad()),
        };
        let width: f64 = width.parse().map_err(|_| bad())?;
        if (0.1..=100.0).contains(&width) { Ok(ConfidenceTarget { level, width }) } else { Err(bad()) }
    }
}

/// What the runs amount to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Confidence {
    pub level_percent: f64,
    pub asked_width_percent: f64,
    /// None with too few runs, or a mean of 0.
    pub reached_width_percent: Option<f64>,
    pub reached: bool,
    /// The result of each run.
    pub values: Vec<f64>,
}

impl ConfidenceTarget {
    /// The mean to within `percent` on either side, with 95 % confidence.
    pub fn within(percent: f64) -> ConfidenceTarget {
        ConfidenceTarget { level: Level::P95, width: 2.0 * percent }
    }

    pub fn judge(&self, values: &[f64]) -> Confidence {
        let reached_width_percent = self.width_of(values);
        Confidence {
            level_percent: self.level.percent(),
            asked_width_percent: self.width,
            reached_width_percent,
            reached: reached_width_percent.is_some_and(|width| width <= self.width),
            values: values.to_vec(),
        }
    }

    /// Width of the interval in percent of the mean.
    fn width_of(&self, values: &[f64]) -> Option<f64> {
        if values.len() < LEAST_RUNS as usize {
            return None;
        }
        let mean = mean(values);
        let count = values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let half = self.level.quantile(values.len() - 1) * (variance / count).sqrt();
        (mean > 0.0).then(|| 200.0 * half / mean)
    }
}

/// The middle of some values, or between the two that are in the middle; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |place: usize| sorted.get(place).copied().unwrap_or(0.0);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { at(middle) } else { f64::midpoint(at(middle.saturating_sub(1)), at(middle)) }
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// For 1 to 29 degrees of freedom.
const T95: [f64; 29] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
];
const T99: [f64; 29] = [
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947,
    2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked() {
        assert_eq!(
            "95,5".parse::<ConfidenceTarget>().unwrap(),
            ConfidenceTarget { level: Level::P95, width: 5.0 }
        );
        assert_eq!(
            "99".parse::<ConfidenceTarget>().unwrap(),
            ConfidenceTarget { level: Level::P99, width: 5.0 }
        );
        for text in ["", "90,5", "95,", "95,0", "95,-1", "95,NaN", "95,5,5"] {
            assert!(
                text.parse::<ConfidenceTarget>().unwrap_err().to_string().contains("95,5 or 99,10"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_interval_of_a_known_sample() {
        // Mean 10, standard deviation 1, five values: half width 2.776 / sqrt(5) = 1.2415.
        let values = [9.0, 9.0, 10.0, 11.0, 11.0];
        let judged = "95,30".parse::<ConfidenceTarget>().unwrap().judge(&values);
        let width = judged.reached_width_percent.unwrap();
        assert!((24.82..24.84).contains(&width), "{width}");
        assert!(judged.reached);
        assert!(!"95,20".parse::<ConfidenceTarget>().unwrap().judge(&values).reached);
        let wider =
            "99,30".parse::<ConfidenceTarget>().unwrap().judge(&values).reached_width_percent.unwrap();
        assert!((41.1..41.3).contains(&wider), "{wider}");
    }

    #[test]
    fn too_few_runs_and_nothing_at_all_reach_nothing() {
        let target = "95,5".parse::<ConfidenceTarget>().unwrap();
        assert!(!target.judge(&[1.0, 1.0]).reached && !target.judge(&[]).reached);
        assert!(!target.judge(&[0.0, 0.0, 0.0]).reached);
        assert!(target.judge(&[1.0; 100]).reached);
    }
}
