//! What happens to the next frame, by chance.

use std::time::Duration;

use fastrand::Rng;

use super::Impairment;

const MILLION: u32 = 1_000_000;

/// What was decided about a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lot {
    pub lost: bool,
    pub duplicated: bool,
    pub corrupted: bool,
    /// It does not wait.
    pub early: bool,
}

/// Numbers that depend on a seed only.
pub struct Dice {
    random: Rng,
    /// The last frame was lost.
    losing: bool,
}

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice { random: Rng::with_seed(seed), losing: false }
    }

    pub fn throw(&mut self, of: &Impairment) -> Lot {
        Lot {
            lost: self.loses(of),
            duplicated: self.hits(of.duplicate),
            corrupted: self.hits(of.corrupt),
            early: self.hits(of.reorder),
        }
    }

    fn hits(&mut self, of_a_million: u32) -> bool {
        of_a_million > 0 && self.random.u32(..MILLION) < of_a_million
    }

    /// Two states, after Gilbert ("Capacity of a burst-noise channel", 1960): all is lost in the one, nothing
    /// in the other. How often they change follows from the part that is lost and the length of bursts.
    fn loses(&mut self, of: &Impairment) -> bool {
        if of.loss == 0 {
            return false;
        }
        let (loss, burst) = (f64::from(of.loss) / f64::from(MILLION), f64::from(of.loss_burst));
        let chance = match self.losing {
            _ if of.loss_burst <= 1 => loss,
            true => 1.0 - 1.0 / burst,
            false => loss / (burst * (1.0 - loss)),
        };
        self.losing = self.random.f64() < chance;
        self.losing
    }

    pub fn delay(&mut self, of: &Impairment) -> Duration {
        let (delay, jitter) = (of.delay, of.jitter.min(of.delay));
        if jitter.is_zero() {
            return delay;
        }
        let range = (jitter.as_nanos() as u64).saturating_mul(2);
        delay - jitter + Duration::from_nanos(self.random.u64(..=range))
    }

    /// A number from `begin` on and below `end`, which is greater.
    pub fn between(&mut self, begin: usize, end: usize) -> usize {
        self.random.usize(begin..end)
    }
}
