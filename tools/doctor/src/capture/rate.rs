//! How much was delivered and lost in the course of a connection, in a fixed number of pieces of time that
//! grow with it.

const PIECES: usize = 64;
/// Nanoseconds of a piece at first.
const SHORTEST: i64 = 10_000_000;

#[derive(Clone, Debug)]
pub struct Rate {
    began: Option<i64>,
    piece: i64,
    pieces: Vec<(u64, u32)>,
}

impl Default for Rate {
    fn default() -> Rate {
        Rate { began: None, piece: SHORTEST, pieces: Vec::new() }
    }
}

impl Rate {
    pub fn delivered(&mut self, time: i64, bytes: u64) {
        if let Some(piece) = self.at(time) {
            piece.0 = piece.0.saturating_add(bytes);
        }
    }

    pub fn lost(&mut self, time: i64) {
        if let Some(piece) = self.at(time) {
            piece.1 = piece.1.saturating_add(1);
        }
    }

    fn at(&mut self, time: i64) -> Option<&mut (u64, u32)> {
        let since = time.saturating_sub(*self.began.get_or_insert(time)).max(0);
        while since / self.piece >= PIECES as i64 {
            self.piece = self.piece.saturating_mul(2);
            let pairs = self.pieces.chunks(2);
            let sum = |pair: &[(u64, u32)]| {
                pair.iter().fold((0_u64, 0_u32), |sum, one| {
                    (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1))
                })
            };
            self.pieces = pairs.map(sum).collect();
        }
        let at = (since / self.piece) as usize;
        if self.pieces.len() <= at {
            self.pieces.resize(at + 1, (0, 0));
        }
        self.pieces.get_mut(at)
    }

    /// The mean and the relative deviation of the rate, in bytes a second, and in which share of the pieces
    /// something was lost; without the first quarter, in which TCP searches for its rate, and the last piece,
    /// which is not full.
    pub fn steady(&self) -> Option<(f64, f64, f64)> {
        let count = self.pieces.len();
        let middle = self.pieces.get(count / 4..count.checked_sub(1)?)?;
        if middle.len() < 8 {
            return None;
        }
        let seconds = self.piece as f64 / 1e9;
        let rates: Vec<f64> = middle.iter().map(|(bytes, _)| *bytes as f64 / seconds).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let square = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / rates.len() as f64;
        let losing = middle.iter().filter(|(_, lost)| *lost > 0).count() as f64 / middle.len() as f64;
        (mean > 0.0).then(|| (mean, square.sqrt() / mean, losing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_time_fits_into_few_pieces() {
        let mut rate = Rate::default();
        for at in 0..2000 {
            rate.delivered(at * 10_000_000, 1000);
        }
        let (mean, deviation, losing) = rate.steady().unwrap();
        assert!((mean - 100_000.0).abs() < 1.0 && deviation < 0.01 && losing == 0.0, "{mean} {deviation}");
        rate.lost(i64::MAX);
        rate.delivered(i64::MIN, 1);
        assert!(rate.pieces.len() <= PIECES);
        assert!(Rate::default().steady().is_none());
    }
}
