//! What a seed draws from the grammar.

use super::super::namespaces::numbers;
use super::grammar::{Fault, Mechanism, all};

/// One of so many draws has a second fault.
const PAIRS: u64 = 5;

/// Draws of this seed, between devices of this name.
pub struct Draws<R> {
    mechanisms: Vec<&'static Mechanism>,
    random: R,
}

pub fn draws(seed: u64, device: &str) -> Draws<impl FnMut(u64) -> u64> {
    let only = std::env::var("VMLANE_FAULT").unwrap_or_default();
    let mechanisms = all().filter(|one| one.suits(device) && one.name.contains(&only)).collect();
    // Seeds next to each other begin alike.
    let mut random = numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for _ in 0..8 {
        random(2);
    }
    Draws { mechanisms, random }
}

impl<R: FnMut(u64) -> u64> Draws<R> {
    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[(self.random)(all.len() as u64) as usize]
    }

    fn of(&mut self, mechanism: &'static Mechanism) -> Fault {
        let place = self.one_of(mechanism.places);
        Fault { mechanism, place, strength: self.one_of(mechanism.strengths()) }
    }

    /// One fault, or two that go with each other.
    pub fn draw(&mut self) -> Vec<Fault> {
        let mechanisms = self.mechanisms.clone();
        let first = self.one_of(&mechanisms);
        let first = self.of(first);
        if (self.random)(PAIRS) > 0 {
            return vec![first];
        }
        let others: Vec<Fault> = mechanisms.iter().map(|other| self.of(other)).collect();
        let others: Vec<Fault> = others.into_iter().filter(|other| other.goes_with(&first)).collect();
        if others.is_empty() { vec![first] } else { vec![first, self.one_of(&others)] }
    }

    /// Each mechanism once, at a place and with a strength that are drawn.
    pub fn each(&mut self) -> Vec<Vec<Fault>> {
        self.mechanisms.clone().into_iter().map(|mechanism| vec![self.of(mechanism)]).collect()
    }
}
