//! Where the values of a paper stand in a chart.

use super::base::Unit;
use crate::figure::Published;
use crate::plan::{Figure, FigureKind, Measure, PublishedValue};

/// The chart's axes, by their values.
pub struct Places<'c> {
    pub figure: &'c Figure,
    /// The panel's factor and its value.
    pub fixed: &'c [(&'c str, &'c str)],
    /// The values of the legend's entries.
    pub entries: &'c [Vec<String>],
    /// The values along the x axis.
    pub groups: &'c [Vec<String>],
}

impl Places<'_> {
    /// The values that belong into the chart, in its unit.
    pub fn published(&self, unit: Unit, is_rate: bool) -> Vec<Published> {
        let of_panel =
            |of: &&PublishedValue| self.fixed.iter().all(|(factor, value)| is_at(of, factor, value));
        let all = self.figure.paper.iter().filter(of_panel);
        all.map(|of| self.place(of, unit, is_rate)).filter(is_somewhere).collect()
    }

    fn place(&self, of: &PublishedValue, unit: Unit, is_rate: bool) -> Published {
        let in_gbits =
            is_rate && self.figure.kind != FigureKind::Ratio && self.figure.value == Measure::Result;
        let (name, scale) = if in_gbits { ("Gbit/s", 1e9 / unit.scale) } else { (unit.name, 1.0) };
        Published {
            text: of.text.clone(),
            amount: of.value.to_string(),
            unit: name,
            value: of.value * scale,
            places: self.marks(of),
        }
    }

    /// The marks that a value is of; none where it names neither a series nor a place along the x axis.
    fn marks(&self, of: &PublishedValue) -> Option<Vec<(usize, usize)>> {
        let names = |factors: &[String]| factors.iter().any(|factor| of.at.contains_key(factor));
        if !names(&self.figure.series) && !names(&self.figure.x) {
            return None;
        }
        let series = fitting(of, &self.figure.series, self.entries);
        let groups = fitting(of, &self.figure.x, self.groups);
        Some(series.iter().flat_map(|series| groups.iter().map(move |group| (*series, *group))).collect())
    }
}

/// A value whose marks the chart does not have is left out.
fn is_somewhere(published: &Published) -> bool {
    published.places.as_ref().is_none_or(|places| !places.is_empty())
}

/// Those of a list of values that a published one is of.
fn fitting(of: &PublishedValue, factors: &[String], values: &[Vec<String>]) -> Vec<usize> {
    let fits = |values: &[String]| factors.iter().zip(values).all(|(factor, value)| is_at(of, factor, value));
    (0..).zip(values).filter(|(_, values)| fits(values)).map(|(at, _)| at).collect()
}

fn is_at(of: &PublishedValue, factor: &str, value: &str) -> bool {
    of.at.get(factor).is_none_or(|values| values.texts().iter().any(|text| text == value))
}
