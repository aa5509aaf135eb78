//! From rows to the values that charts and claims show.

use std::collections::BTreeMap;

use crate::figure::{Chart, Series, Shape, reach};
use crate::plan::{Claim, Figure, Filter, Kind, Measure, Plan, Statistic};
use crate::rows::Row;
use crate::summary::Spread;
use crate::units::number;

/// The rows of an experiment, in its plan's order.
pub struct Data<'r> {
    rows: Vec<&'r Row>,
    named: Vec<&'static str>,
    statistic: Statistic,
}

/// What is shown of a row: the unit, and what the raw value is divided by.
#[derive(Clone, Copy)]
struct Unit {
    name: &'static str,
    scale: f64,
}

/// The charts of one figure, and what must be said about them.
pub struct Drawn {
    pub charts: Vec<Chart>,
    /// Rows of several combinations fell into one mark.
    pub mixed: bool,
}

fn is_transactional(row: &Row) -> bool {
    row.transactions_per_second.is_some() || ["rr", "crr"].contains(&row.test.as_str())
}

/// The value of a row; none when it failed, or lacks it.
fn value(row: &Row, measure: Measure) -> Option<f64> {
    let result = row.value()?;
    match measure {
        Measure::Result => Some(result),
        Measure::RttP50 => row.rtt_us.map(|times| times.p50),
        Measure::RttP99 => row.rtt_us.map(|times| times.p99),
        Measure::Cpu => {
            // The processes ran for the warm-up and the start as well, and moved as much there.
            let rate = row.host_cpu_seconds? / row.wall_seconds;
            let per = if is_transactional(row) { result / 1e3 } else { result / 8e9 };
            (row.wall_seconds > 0.0 && per > 0.0).then(|| rate / per)
        }
    }
}

fn unit(rows: &[&Row], measure: Measure) -> Unit {
    let transactional = rows.first().is_some_and(|row| is_transactional(row));
    let most = rows.iter().filter_map(|row| value(row, measure)).fold(0.0, f64::max);
    let (name, scale) = match measure {
        Measure::Result if transactional => ("transactions / s", 1.0),
        Measure::Result if most >= 3e9 => ("Gbit/s", 1e9),
        Measure::Result => ("Mbit/s", 1e6),
        Measure::RttP50 | Measure::RttP99 => ("µs", 1.0),
        Measure::Cpu if transactional => ("CPU s / 1000 transactions", 1.0),
        Measure::Cpu => ("CPU s / GB", 1.0),
    };
    Unit { name, scale }
}

/// How a factor is called along an axis or in a legend.
pub fn title(factor: &str) -> &str {
    match factor {
        "message" => "message size in bytes",
        "buffer" => "socket buffers in bytes",
        "nics" => "cards",
        "ring" => "ring size in descriptors",
        "ip" => "IP version",
        "rate" => "an uplink in bit/s",
        "coalesce" => "software LRO",
        "host_offloads" => "offloads of the test host",
        other => other,
    }
}

/// A value as a label: a bare number gets its factor's name.
fn label(factor: &str, value: &str) -> String {
    match factor {
        "device" | "test" | "tool" | "profile" => value.to_owned(),
        "sessions" if value == "1" => "1 session".into(),
        "sessions" => format!("{value} sessions"),
        "offloads" if value == "default" => "offloads on".into(),
        "ip" => format!("IPv{value}"),
        _ => format!("{factor} {value}"),
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
        let mut rows: Vec<&Row> = rows.iter().collect();
        rows.sort_by_key(|row| order.get(&row.id).copied().unwrap_or(usize::MAX));
        Data {
            rows,
            named: plan.map_or_else(|| crate::factors::NAMES.to_vec(), |plan| plan.named.clone()),
            statistic: plan.map_or(Statistic::Median, |plan| plan.statistic),
        }
    }

    fn matching(&self, filter: &Filter) -> Vec<&'r Row> {
        let filter: Vec<(&str, Vec<String>)> =
            filter.iter().map(|(name, values)| (name.as_str(), values.texts())).collect();
        let fits = |row: &&&Row| filter.iter().all(|(name, values)| values.contains(&row.factor(name)));
        self.rows.iter().filter(fits).copied().collect()
    }

    /// Repeats in one number.
    fn spread<'a>(&self, rows: impl IntoIterator<Item = &'a Row>, measure: Measure) -> Option<Spread> {
        let values: Vec<f64> = rows.into_iter().filter_map(|row| value(row, measure)).collect();
        let mut spread = Spread::of(values.iter().copied())?;
        if self.statistic == Statistic::Mean {
            spread.median = values.iter().sum::<f64>() / values.len() as f64;
        }
        Some(spread)
    }

    /// A factor's values among some rows: numbers by size, all else in the plan's order.
    fn values(rows: &[&Row], factor: &str) -> Vec<String> {
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

    /// The charts of a figure: one, or one for each panel, on one scale.
    pub fn draw(&self, figure: &Figure, id: &str) -> Drawn {
        let picked = Picked::new(self, figure);
        let groups = picked.values(&figure.x);
        let panels: Vec<Option<String>> = match &figure.panels {
            Some(factor) => picked.values(factor).into_iter().map(Some).collect(),
            None => vec![None],
        };
        let unit = unit(&picked.upper, figure.value);
        let ratio = figure.kind == Kind::Ratio;
        let scale = if ratio { 1.0 } else { unit.scale };
        let mut mixed = false;
        let mut charts: Vec<Chart> = Vec::new();
        for (number, panel) in panels.iter().enumerate() {
            let fixed: Vec<(&str, &str)> =
                figure.panels.as_deref().zip(panel.as_deref()).into_iter().collect();
            let series: Vec<Series> = picked
                .legend(&figure.series, &fixed)
                .into_iter()
                .map(|entry| {
                    let of = |group: &String| {
                        let mut pairs = fixed.clone();
                        pairs.extend(
                            figure.series.iter().map(String::as_str).zip(entry.iter().map(String::as_str)),
                        );
                        pairs.push((&figure.x, group));
                        let (spread, several) = picked.cell(self, &pairs, figure.value);
                        mixed |= several;
                        spread.map(|s| Spread {
                            median: s.median / scale,
                            min: s.min / scale,
                            max: s.max / scale,
                            ..s
                        })
                    };
                    let names = figure.series.iter().zip(&entry).map(|(factor, value)| label(factor, value));
                    Series {
                        label: names.collect::<Vec<_>>().join(", "),
                        values: groups.iter().map(of).collect(),
                    }
                })
                .collect();
            let suffix =
                fixed.first().map_or(String::new(), |(factor, value)| format!(": {}", label(factor, value)));
            charts.push(Chart {
                id: format!("{id}p{number}"),
                title: format!("{}{suffix}", figure.title),
                shape: match figure.kind {
                    Kind::Bars => Shape::Bars,
                    Kind::Lines => Shape::Lines,
                    Kind::Ratio => Shape::Ratio,
                },
                x_title: title(&figure.x).to_owned(),
                y_title: if ratio { picked.ratio_title(figure) } else { unit.name.to_owned() },
                groups: groups.clone(),
                series,
                log: figure.log,
                reach: (0.0, 0.0),
            });
        }
        let scale = reach(charts.iter().flat_map(|chart| &chart.series));
        charts.iter_mut().for_each(|chart| chart.reach = scale);
        Drawn { charts, mixed }
    }

    /// What was measured about a claim, in words; none when nothing was.
    pub fn measured(&self, claim: &Claim) -> Option<String> {
        let rows = self.matching(&claim.of);
        let ids = Self::values(&rows, "id");
        let of = |id: &String| rows.iter().copied().filter(|row| row.id == *id).collect::<Vec<_>>();
        if claim.over.is_empty() {
            let unit = unit(&rows, claim.value);
            let all = Spread::of(ids.iter().filter_map(|id| Some(self.spread(of(id), claim.value)?.median)))?;
            let (low, high) = (number(all.min / unit.scale), number(all.max / unit.scale));
            return Some(if low == high {
                format!("{low} {}", unit.name)
            } else {
                format!("{low} to {high} {}", unit.name)
            });
        }
        let lower = self.matching(&over(&claim.of, &claim.over));
        let ratio = |id: &String| {
            let mine = of(id);
            let like: Vec<&Row> = lower
                .iter()
                .copied()
                .filter(|other| self.is_counterpart(mine[0], other, &claim.over))
                .collect();
            Some(self.spread(mine, claim.value)?.median / self.spread(like, claim.value)?.median)
        };
        let all = Spread::of(ids.iter().filter_map(ratio).filter(|ratio| ratio.is_finite()))?;
        Some(match all.runs {
            1 => format!("{} times", number(all.median)),
            count => format!(
                "{} to {} times, in the middle {} ({count} combinations)",
                number(all.min),
                number(all.max),
                number(all.median)
            ),
        })
    }

    /// Whether two rows differ in nothing but the factors of `over`.
    fn is_counterpart(&self, row: &Row, other: &Row, over: &Filter) -> bool {
        // The device's name carries its profile and queues.
        let device = over.contains_key("profile") || over.contains_key("queues");
        let apart = |name: &str| over.contains_key(name) || (device && name == "device");
        self.named.iter().filter(|name| !apart(name)).all(|name| row.factor(name) == other.factor(name))
    }
}

/// The filter of the denominators.
fn over(only: &Filter, over: &Filter) -> Filter {
    only.iter().chain(over).map(|(name, values)| (name.clone(), values.clone())).collect()
}

/// The rows that a figure shows, and for a ratio those that it divides by.
struct Picked<'f, 'r> {
    upper: Vec<&'r Row>,
    lower: Vec<&'r Row>,
    figure: &'f Figure,
}

impl<'f, 'r> Picked<'f, 'r> {
    fn new(data: &Data<'r>, figure: &'f Figure) -> Self {
        let lower = if figure.kind == Kind::Ratio {
            data.matching(&over(&figure.only, &figure.over))
        } else {
            Vec::new()
        };
        Picked { upper: data.matching(&figure.only), lower, figure }
    }

    /// Whether a factor's values are those of the denominators: there are several of them.
    fn is_lower(&self, factor: &str) -> bool {
        self.figure.kind == Kind::Ratio
            && self.figure.over.get(factor).is_some_and(|values| values.texts().len() > 1)
    }

    fn values(&self, factor: &str) -> Vec<String> {
        Data::values(if self.is_lower(factor) { &self.lower } else { &self.upper }, factor)
    }

    /// The legend's entries: combinations of values that have rows.
    fn legend(&self, factors: &[String], fixed: &[(&str, &str)]) -> Vec<Vec<String>> {
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

    /// The value of one mark, and whether several combinations fell into it.
    fn cell(&self, data: &Data<'_>, pairs: &[(&str, &str)], measure: Measure) -> (Option<Spread>, bool) {
        let upper = self.rows(pairs, false);
        let several = |rows: &[&Row]| Data::values(rows, "id").len() > 1;
        let mixed = several(&upper);
        let Some(value) = data.spread(upper, measure) else { return (None, mixed) };
        if self.figure.kind != Kind::Ratio {
            return (Some(value), mixed);
        }
        let lower = self.rows(pairs, true);
        let mixed = mixed || several(&lower);
        let Some(base) = data.spread(lower, measure).filter(|base| base.min > 0.0) else {
            return (None, mixed);
        };
        let ratio = Spread {
            median: value.median / base.median,
            min: value.min / base.max,
            max: value.max / base.min,
            runs: value.runs.min(base.runs),
        };
        (Some(ratio), mixed)
    }

    fn ratio_title(&self, figure: &Figure) -> String {
        let over: Vec<String> = figure
            .over
            .iter()
            .map(|(name, values)| (name, values.texts()))
            .map(
                |(name, values)| {
                    if values.len() == 1 { label(name, &values[0]) } else { format!("each {name}") }
                },
            )
            .collect();
        let only: Vec<String> = figure
            .over
            .keys()
            .filter_map(|name| Some(label(name, figure.only.get(name)?.texts().first()?)))
            .collect();
        match only.is_empty() {
            true => format!("times {}", over.join(", ")),
            false => format!("{} / {}", only.join(", "), over.join(", ")),
        }
    }
}
