//! Which combinations took turns: the runs of one number then stood beside each other, and their ratio shows
//! more than that of two medians.

use std::collections::BTreeMap;

use crate::rows::Row;

/// How many rows two runs may be apart that still stand beside each other: a minute, or two.
const BESIDE: usize = 12;

/// Where each combination's rows stand, in the order in which they were made.
pub struct Turns<'r>(BTreeMap<&'r str, Vec<usize>>);

impl<'r> Turns<'r> {
    pub fn of(rows: &'r [Row]) -> Turns<'r> {
        let mut places: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (place, row) in rows.iter().enumerate() {
            places.entry(&row.id).or_default().push(place);
        }
        Turns(places)
    }

    /// Whether both stood beside each other in every round, and a round of both was over before the next one
    /// began.
    pub fn took(&self, a: &Row, b: &Row) -> bool {
        self.rounds(a, b).is_some_and(|rounds| rounds.iter().all(|(a, b)| a.abs_diff(*b) <= BESIDE))
    }

    /// Whether a round of both was over before the next one began, however long it was, and there were
    /// several.
    pub fn were_in_rounds(&self, a: &Row, b: &Row) -> bool {
        self.rounds(a, b).is_some_and(|rounds| rounds.len() > 1)
    }

    /// The places of both in each round.
    fn rounds(&self, a: &Row, b: &Row) -> Option<Vec<(usize, usize)>> {
        let (a, b) = (self.0.get(a.id.as_str())?, self.0.get(b.id.as_str())?);
        let rounds: Vec<(usize, usize)> = a.iter().copied().zip(b.iter().copied()).collect();
        let follows = |two: &[(usize, usize)]| two[0].0.max(two[0].1) < two[1].0.min(two[1].1);
        (a.len().abs_diff(b.len()) <= 1 && rounds.windows(2).all(follows)).then_some(rounds)
    }
}

/// Every two combinations of some rows, by a row of each.
pub fn pairs<'a>(rows: &[&'a Row]) -> Vec<(&'a Row, &'a Row)> {
    let mut firsts: Vec<&Row> = Vec::new();
    for row in rows {
        if !firsts.iter().any(|first| first.id == row.id) {
            firsts.push(row);
        }
    }
    firsts.iter().enumerate().flat_map(|(at, a)| firsts[..at].iter().map(move |b| (*b, *a))).collect()
}
