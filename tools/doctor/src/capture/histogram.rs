//! How long something took, of any number of times in little memory: four buckets for each doubling.

const BUCKETS: usize = 168;

#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u32; BUCKETS]>,
    total: u64,
    least: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: Box::new([0; BUCKETS]), total: 0, least: u64::MAX }
    }
}

impl Histogram {
    pub fn add(&mut self, value: u64) {
        if let Some(count) = self.counts.get_mut(bucket(value)) {
            *count = count.saturating_add(1);
        }
        self.total += 1;
        self.least = self.least.min(value);
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn least(&self) -> Option<u64> {
        (self.total > 0).then_some(self.least)
    }

    /// The value below which this share of all is, to a fifth.
    pub fn at(&self, share: f64) -> Option<u64> {
        let wanted = (self.total as f64 * share).ceil().max(1.0) as u64;
        let mut passed = 0;
        let found = self.counts.iter().position(|count| {
            passed += u64::from(*count);
            passed >= wanted
        });
        found.filter(|_| self.total > 0).map(middle)
    }
}

fn bucket(value: u64) -> usize {
    let value = value.max(4);
    let octave = value.ilog2();
    let quarter = (value >> (octave - 2)) & 3;
    (((octave - 2) * 4) as usize + quarter as usize).min(BUCKETS - 1)
}

fn middle(bucket: usize) -> u64 {
    let width = 1_u64 << (bucket / 4);
    (4 + bucket as u64 % 4) * width + width / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_right_to_a_fifth() {
        let mut times = Histogram::default();
        assert_eq!((times.at(0.5), times.least()), (None, None));
        for value in (0..1000).map(|at| 1000 + at * 10) {
            times.add(value);
        }
        times.add(u64::MAX);
        for (share, right) in [(0.1, 2000.0), (0.5, 6000.0), (0.9, 10_000.0)] {
            let estimate = times.at(share).unwrap() as f64;
            assert!((estimate / right - 1.0).abs() < 0.2, "{share}: {estimate}");
        }
        assert_eq!(times.least(), Some(1000));
        times.add(0);
        assert_eq!(times.total(), 1002);
    }
}
