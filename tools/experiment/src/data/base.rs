//! The rows of an experiment, and the values of some of them.

use std::collections::BTreeMap;

use super::turns::Turns;
use crate::figure::Point;
use crate::plan::{Absent, Filter, Measure, Plan, Statistic};
use crate::rows::Row;
use crate::summary::Spread;
use crate::words::is_transactional;

/// The rows of an experiment, in its plan's order.
pub struct Data<'r> {
    pub rows: Vec<&'r Row>,
    pub turns: Turns<'r>,
    pub named: Vec<&'static str>,
    pub statistic: Statistic,
    pub absent: Vec<Absent>,
    /// All throughput is in Gbit/s: figures of one experiment are compared.
    pub fast: bool,
}

/// What is shown of a row: the unit, and what the raw value is divided by.
#[derive(Clone, Copy)]
pub struct Unit {
    pub name: &'static str,
    pub scale: f64,
}

/// The value of a row; none when it failed, or lacks it.
pub fn value(row: &Row, measure: Measure) -> Option<f64> {
    let result = row.value()?;
    match measure {
        Measure::Result => Some(result),
        Measure::RttP50 => row.rtt_us.map(|times| times.p50),
        Measure::RttP99 => row.rtt_us.map(|times| times.p99),
        Measure::Packets => row.packets_per_second,
        Measure::Cpu => {
            // The processes ran for the warm-up and the start as well, and moved as much there.
            let rate = row.host_cpu_seconds? / row.wall_seconds;
            let per = if is_transactional(row) { result / 1e3 } else { result / 8e9 };
            (row.wall_seconds > 0.0 && per > 0.0).then(|| rate / per)
        }
    }
}

impl<'r> Data<'r> {
    /// All rows; without a plan they keep their order.
    pub fn new(rows: &'r [Row], plan: Option<&Plan>) -> Data<'r> {
        let order: BTreeMap<String, usize> = plan
            .iter()
            .flat_map(|plan| &plan.combinations)
            .enumerate()
            .map(|(at, factors)| (factors.id(), at))
            .collect();
        let turns = Turns::of(rows);
        let mut rows: Vec<&Row> = rows.iter().collect();
        rows.sort_by_key(|row| order.get(&row.id).copied().unwrap_or(usize::MAX));
        let fast = rows.iter().filter_map(|row| row.throughput_bps).any(|bps| bps >= 3e9);
        Data {
            rows,
            turns,
            fast,
            named: plan.map_or_else(|| crate::factors::NAMES.to_vec(), |plan| plan.named.clone()),
            statistic: plan.map_or(Statistic::Median, |plan| plan.statistic),
            absent: plan.map(|plan| plan.absent.clone()).unwrap_or_default(),
        }
    }

    pub fn unit(&self, rows: &[&Row], measure: Measure) -> Unit {
        let transactional = rows.first().is_some_and(|row| is_transactional(row));
        let (name, scale) = match measure {
            // The unit follows from what is counted: round trips a second.
            Measure::Result if transactional => ("", 1.0),
            Measure::Packets => ("", 1.0),
            Measure::Result if self.fast => ("Gbit/s", 1e9),
            Measure::Result => ("Mbit/s", 1e6),
            Measure::RttP50 | Measure::RttP99 => ("µs", 1.0),
            Measure::Cpu => ("s", 1.0),
        };
        Unit { name, scale }
    }

    pub fn matching(&self, filter: &Filter) -> Vec<&'r Row> {
        let filter: Vec<(&str, Vec<String>)> =
            filter.iter().map(|(name, values)| (name.as_str(), values.texts())).collect();
        let fits = |row: &&&Row| filter.iter().all(|(name, values)| values.contains(&row.factor(name)));
        self.rows.iter().filter(fits).copied().collect()
    }

    /// Repeats in one number.
    pub fn spread<'a>(&self, rows: impl IntoIterator<Item = &'a Row>, measure: Measure) -> Option<Spread> {
        self.middle(&rows.into_iter().filter_map(|row| value(row, measure)).collect::<Vec<_>>())
    }

    /// Values in one number.
    pub fn middle(&self, values: &[f64]) -> Option<Spread> {
        let mut spread = Spread::of(values.iter().copied())?;
        if self.statistic == Statistic::Mean {
            spread.median = values.iter().sum::<f64>() / values.len() as f64;
        }
        Some(spread)
    }

    /// Repeats in one number, and each of them.
    pub fn point(&self, rows: &[&Row], measure: Measure) -> Option<Point> {
        let spread = self.spread(rows.iter().copied(), measure)?;
        Some(Point { spread, runs: rows.iter().filter_map(|row| value(row, measure)).collect() })
    }

    /// Why a mark has no number: the plan's reason, else what became of its runs.
    pub fn why_missing(&self, rows: &[&Row], pairs: &[(&str, &str)]) -> String {
        let is_of = |absent: &&Absent| {
            absent.of.iter().all(|(name, values)| {
                pairs.iter().any(|(other, value)| other == name && values.texts().iter().any(|v| v == value))
            })
        };
        if let Some(absent) = self.absent.iter().find(is_of) {
            return absent.why.clone();
        }
        let failures: Vec<&str> = rows.iter().filter_map(|row| row.failed.as_deref()).collect();
        let hangs = |why: &&str| why.contains("no result in") || why.contains("did not start its client");
        match failures.len() {
            0 => "not run",
            _ if failures.iter().all(hangs) => "hangs",
            _ => "failed",
        }
        .to_owned()
    }

    /// A factor's values among some rows: numbers by size, all else in the plan's order.
    pub fn values(rows: &[&Row], factor: &str) -> Vec<String> {
        let mut values: Vec<String> = Vec::new();
        for row in rows {
            let value = row.factor(factor);
            if !values.contains(&value) {
                values.push(value);
            }
        }
        let size = |text: &String| match text.as_str() {
            "default" => Some(0),
            text => vmlane_bench::size::parse_size(text).ok(),
        };
        if values.iter().all(|value| size(value).is_some()) {
            values.sort_by_key(|value| size(value).unwrap_or(0));
        }
        values
    }
}

/// The filter of the denominators.
pub fn over(only: &Filter, over: &Filter) -> Filter {
    only.iter().chain(over).map(|(name, values)| (name.clone(), values.clone())).collect()
}
