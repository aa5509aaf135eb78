//! What measurements without and with a remedy show of it.

use serde::Serialize;
use vmlane_bench::confidence::median;

use super::gauge::Gauge;

/// A remedy helps if this share of all pairs, one measurement with and one without it, are better with it
/// (the more measurements, the less may be by chance: with 4 of each and with 8 of each, one time in 35 and
/// in 40), ...
const CLEAR: f64 = 0.9;
const CLEAR_OF_MANY: f64 = 0.8;
const MANY: usize = 8;
/// ... and the median is better by so much.
const WORTH: f64 = 1.05;

/// What the measurements show of a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Helps,
    /// No difference beyond the spread.
    NoDifference,
    Worse,
    /// It could not be applied, or not be measured.
    NotTried,
}

/// What one gauge showed, without and with the remedy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    pub gauge: Gauge,
    pub before: Vec<f64>,
    pub after: Vec<f64>,
    pub verdict: Verdict,
}

impl Reading {
    pub fn new(gauge: Gauge) -> Reading {
        Reading { gauge, before: Vec::new(), after: Vec::new(), verdict: Verdict::NotTried }
    }

    pub fn judge(&mut self) {
        let larger = self.gauge.is_better_when_larger();
        let (one, other) = if larger { (&self.before, &self.after) } else { (&self.after, &self.before) };
        self.verdict = match (is_clear(one, other), is_clear(other, one)) {
            (true, _) => Verdict::Helps,
            (_, true) => Verdict::Worse,
            _ => Verdict::NoDifference,
        };
    }
}

/// Whether the larger ones are larger beyond the spread of both.
fn is_clear(small: &[f64], large: &[f64]) -> bool {
    let pairs = (small.len() * large.len()) as f64;
    let larger = small.iter().flat_map(|one| large.iter().filter(move |other| *other > one)).count();
    let clear = if small.len().min(large.len()) < MANY { CLEAR } else { CLEAR_OF_MANY };
    pairs > 0.0 && larger as f64 / pairs >= clear && median(large) >= median(small) * WORTH
}

/// What all gauges together show of a remedy.
pub fn overall(readings: &[Reading]) -> Verdict {
    let any = |verdict| readings.iter().any(|reading| reading.verdict == verdict);
    match (any(Verdict::Helps), any(Verdict::Worse)) {
        (true, _) => Verdict::Helps,
        (false, true) => Verdict::Worse,
        (false, false) => Verdict::NoDifference,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::PathEnd;

    fn reading(gauge: Gauge, before: &[f64], after: &[f64]) -> Verdict {
        let mut reading = Reading { before: before.to_vec(), after: after.to_vec(), ..Reading::new(gauge) };
        reading.judge();
        reading.verdict
    }

    #[test]
    fn only_what_is_beyond_the_spread_counts() {
        let throughput = Gauge::Throughput { from: PathEnd::Near, connections: 1 };
        assert_eq!(reading(throughput, &[1.0, 1.1, 0.9, 1.0], &[4.0, 4.2, 3.9, 4.1]), Verdict::Helps);
        assert_eq!(reading(throughput, &[4.0, 4.2, 3.9, 4.1], &[1.0, 1.1, 0.9, 1.0]), Verdict::Worse);
        // One that was disturbed is no reason to doubt the others.
        assert_eq!(
            reading(throughput, &[1.0, 1.1, 0.9, 1.0, 1.0], &[4.0, 0.95, 3.9, 4.1, 4.0]),
            Verdict::NoDifference
        );
        assert_eq!(reading(throughput, &[1.0, 1.1, 0.9, 1.0], &[4.0, 1.05, 3.9, 4.1]), Verdict::Helps);
        assert_eq!(reading(throughput, &[1.0, 2.0, 1.5, 1.2], &[1.1, 2.1, 1.6, 1.3]), Verdict::NoDifference);
        // What is only likely after few measurements is clear after many.
        let (noisy, better) =
            ([3.0, 1.0, 2.0, 1.5, 1.0, 2.5, 1.2, 1.1], [4.0, 2.2, 3.5, 2.6, 1.9, 4.1, 3.1, 2.4]);
        assert_eq!(reading(throughput, &noisy[..4], &better[..4]), Verdict::NoDifference);
        assert_eq!(reading(throughput, &noisy, &better), Verdict::Helps);
        // Clear, and not worth a change.
        assert_eq!(reading(throughput, &[1.0, 1.0, 1.0], &[1.01, 1.01, 1.01]), Verdict::NoDifference);
        assert_eq!(reading(throughput, &[0.0, 0.0, 0.0], &[1.0, 1.0, 1.0]), Verdict::Helps);
        assert_eq!(reading(throughput, &[0.0, 0.0], &[0.0, 0.0]), Verdict::NoDifference);
        assert_eq!(
            reading(Gauge::RoundTrips, &[900.0, 950.0, 920.0], &[200.0, 210.0, 190.0]),
            Verdict::Helps
        );
    }

    #[test]
    fn the_middle_one_stands_for_all() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
