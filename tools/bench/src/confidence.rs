//! How well the mean of some runs is known, by Student's t distribution over them; and their median.

/// Fewer runs show nothing about their spread.
pub const LEAST_RUNS: u32 = 3;

/// Whether the true mean lies within `percent` of that of the runs, on either side, with 95 % confidence.
pub fn is_known(values: &[f64], percent: f64) -> bool {
    if values.len() < LEAST_RUNS as usize {
        return false;
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    // Beyond the table its last entry, which is a little on the safe side.
    let [.., last] = T95;
    let quantile = T95.get(values.len() - 2).copied().unwrap_or(last);
    mean > 0.0 && quantile * (variance / count).sqrt() <= percent / 100.0 * mean
}

/// The middle of some values, or between the two that are in the middle; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |place: usize| sorted.get(place).copied().unwrap_or(0.0);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { at(middle) } else { f64::midpoint(at(middle.saturating_sub(1)), at(middle)) }
}

/// Two-sided 95 % quantiles of Student's t for 1 to 29 degrees of freedom.
const T95: [f64; 29] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_known_sample() {
        // Mean 10, standard deviation 1, five values: half width 2.776 / sqrt(5) = 1.2415.
        let values = [9.0, 9.0, 10.0, 11.0, 11.0];
        assert!(is_known(&values, 12.42) && !is_known(&values, 12.41));
        assert!(is_known(&[1.0; 100], 0.1));
    }

    #[test]
    fn of_too_few_runs_and_of_nothing_no_mean_is_known() {
        for values in [&[1.0, 1.0][..], &[], &[0.0, 0.0, 0.0]] {
            assert!(!is_known(values, 50.0), "{values:?}");
        }
    }
}
