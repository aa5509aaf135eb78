//! The rows of one figure: which marks they make, and the style of these.

use super::base::{Data, over};
use crate::figure::{Style, Value, hue};
use crate::plan::{Figure, FigureKind, Measure};
use crate::rows::Row;
use crate::words::sides;

/// The rows that a figure shows, and for a ratio those that it divides by.
pub struct Picked<'f, 'r> {
    pub upper: Vec<&'r Row>,
    lower: Vec<&'r Row>,
    pub figure: &'f Figure,
}

impl<'f, 'r> Picked<'f, 'r> {
    pub fn new(data: &Data<'r>, figure: &'f Figure) -> Self {
        let lower = if figure.kind == FigureKind::Ratio {
            data.matching(&over(&figure.only, &figure.over))
        } else {
            Vec::new()
        };
        Picked { upper: data.matching(&figure.only), lower, figure }
    }

    /// Whether a factor's values are those of the denominators: there are several of them.
    fn is_lower(&self, factor: &str) -> bool {
        self.figure.kind == FigureKind::Ratio
            && self.figure.over.get(factor).is_some_and(|values| values.texts().len() > 1)
    }

    pub fn values(&self, factor: &str) -> Vec<String> {
        Data::values(if self.is_lower(factor) { &self.lower } else { &self.upper }, factor)
    }

    /// The legend's entries: combinations of values that have rows.
    pub fn legend(&self, factors: &[String], fixed: &[(&str, &str)]) -> Vec<Vec<String>> {
        let mut entries = vec![Vec::new()];
        for factor in factors {
            let values = self.values(factor);
            entries = entries
                .into_iter()
                .flat_map(|entry: Vec<String>| {
                    values.iter().map(move |value| [&entry[..], std::slice::from_ref(value)].concat())
                })
                .collect();
        }
        entries.retain(|entry| {
            let pairs: Vec<(&str, &str)> = fixed
                .iter()
                .copied()
                .chain(factors.iter().map(String::as_str).zip(entry.iter().map(String::as_str)))
                .collect();
            !self.rows(&pairs, false).is_empty()
        });
        entries
    }

    /// The rows of one mark.
    fn rows(&self, pairs: &[(&str, &str)], lower: bool) -> Vec<&'r Row> {
        let counts = |name: &str| {
            if lower {
                self.is_lower(name) || !self.figure.over.contains_key(name)
            } else {
                !self.is_lower(name)
            }
        };
        let fits =
            |row: &&&Row| pairs.iter().all(|(name, value)| !counts(name) || row.factor(name) == *value);
        (if lower { &self.lower } else { &self.upper }).iter().filter(fits).copied().collect()
    }

    /// The style of each legend entry: its device's colour, and what distinguishes it from the others.
    pub fn styles(&self, factors: &[String], entries: &[Vec<String>]) -> Vec<Style> {
        let hues: Vec<usize> = entries.iter().map(|entry| self.hue_of(factors, entry)).collect();
        let several = hues.iter().any(|hue| *hue != hues[0]);
        let nth = |at: usize| hues[..at].iter().filter(|hue| **hue == hues[at]).count();
        hues.iter()
            .enumerate()
            .map(|(at, hue)| {
                let variant = nth(at);
                // Of one device alone, the markers are free for what differs: from the first on, so that they
                // mean the same in the next figure, of another device.
                Style { hue: *hue, shape: if several { *hue } else { variant }, variant }
            })
            .collect()
    }

    /// The styles of devices along the x axis; empty where the series have their own.
    pub fn styles_of_groups(&self, groups: &[Vec<String>]) -> Vec<Style> {
        let figure = self.figure;
        let devices = figure.x.iter().any(|factor| ["device", "profile"].contains(&factor.as_str()));
        if !devices || !figure.series.is_empty() {
            return Vec::new();
        }
        let hues = groups.iter().map(|group| self.hue_of(&figure.x, group));
        hues.map(|hue| Style { hue, shape: hue, variant: 0 }).collect()
    }

    fn hue_of(&self, factors: &[String], entry: &[String]) -> usize {
        let pairs: Vec<(&str, &str)> =
            factors.iter().map(String::as_str).zip(entry.iter().map(String::as_str)).collect();
        // What is divided by several devices has their colours.
        let lower = factors.iter().any(|factor| factor == "device" && self.is_lower(factor));
        let mut hues: Vec<usize> = self.rows(&pairs, lower).iter().map(|row| hue(&row.device)).collect();
        hues.sort_unstable();
        hues.dedup();
        // Several devices in one series have none of their colours.
        if let [hue] = hues[..] { hue } else { crate::figure::NO_DEVICE }
    }

    /// The value of one mark, and whether several combinations fell into it.
    pub fn cell(&self, data: &Data<'_>, pairs: &[(&str, &str)], measure: Measure) -> (Value, bool) {
        let upper = self.rows(pairs, false);
        let several = |rows: &[&Row]| Data::values(rows, "id").len() > 1;
        let mixed = several(&upper);
        let missing = |rows: &[&Row]| Value::Missing(data.why_missing(rows, pairs));
        let Some(value) = data.point(&upper, measure) else { return (missing(&upper), mixed) };
        if self.figure.kind != FigureKind::Ratio {
            return (Value::Point(value), mixed);
        }
        let lower = self.rows(pairs, true);
        let mixed = mixed || several(&lower);
        match data.ratio(&upper, &lower, measure) {
            Some(ratio) => (Value::Point(ratio), mixed),
            None => (missing(&lower), mixed),
        }
    }

    /// What the figure's ratios divide by what.
    pub fn sides(&self) -> String {
        sides(self.figure.over.iter().map(|(name, values)| {
            let upper =
                self.figure.only.get(name).map_or_else(|| Data::values(&self.upper, name), |of| of.texts());
            (name, upper, values.texts())
        }))
    }

    /// The factors that the figure's own words name.
    pub fn shown(&self) -> Vec<&'f str> {
        let figure = self.figure;
        let all = figure.x.iter().chain(&figure.series).chain(&figure.panels).chain(figure.over.keys());
        all.map(String::as_str).collect()
    }

    /// The factors that differ between its rows and that nothing names.
    pub fn unnamed(&self, named: &[&'static str]) -> Vec<&'static str> {
        let shown = self.shown();
        // A device's name carries its profile and queues.
        let is_named = |name: &str| {
            shown.contains(&name)
                || (name == "device" && shown.iter().any(|f| ["profile", "queues"].contains(f)))
        };
        let differs = |name: &&&str| Data::values(&self.upper, name).len() > 1;
        named.iter().filter(|name| !is_named(name)).filter(differs).copied().collect()
    }

    /// All rows of a panel, those that a ratio divides by included.
    pub fn rows_of(&self, fixed: &[(&str, &str)]) -> Vec<&'r Row> {
        let mut rows = self.rows(fixed, false);
        rows.extend(self.rows(fixed, true));
        rows
    }

    /// The groups along the x axis: values of its factors that go together. Panels share them, unless they
    /// are devices, of which a panel has its own.
    pub fn groups(&self, fixed: &[(&str, &str)]) -> Vec<Vec<String>> {
        let devices = self.figure.x.iter().any(|factor| factor == "device");
        self.legend(&self.figure.x, if devices { fixed } else { &[] })
    }
}
