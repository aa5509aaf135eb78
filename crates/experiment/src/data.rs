//! From rows to the values that charts and claims show.

use std::collections::BTreeMap;

use crate::figure::{Chart, Point, Series, Shape, Style, Value, hue, reach};
use crate::foot::foot;
use crate::plan::{Absent, Claim, Figure, Filter, Kind, Measure, Plan, Statistic};
use crate::rows::Row;
use crate::summary::Spread;
use crate::units::{bytes, number};

/// The rows of an experiment, in its plan's order.
pub struct Data<'r> {
    rows: Vec<&'r Row>,
    named: Vec<&'static str>,
    statistic: Statistic,
    absent: Vec<Absent>,
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
        "message" => "message size",
        "buffer" => "socket buffers",
        "nics" => "cards",
        "boot" => "lab, in the order of their boots",
        "guests" => "VMs",
        "mtu" => "MTU in bytes",
        "ring" => "ring size in descriptors",
        "ip" => "IP version",
        "rate" => "an uplink in bit/s",
        "moderation" => "interrupts a second at most",
        "coalesce" => "software LRO",
        "host_offloads" => "offloads of the test host",
        other => other,
    }
}

/// A value along the axis that its factor names.
fn tick_label(factor: &str, value: &str) -> String {
    match factor {
        "test" => test_name(value).to_owned(),
        "message" | "buffer" => bytes(value),
        "nodelay" if value == "true" => "TCP_NODELAY".into(),
        "nodelay" => "gathered (Nagle)".into(),
        _ => value.to_owned(),
    }
}

/// What a test does, seen from guest a.
fn test_name(test: &str) -> &str {
    match test {
        "stream" => "sending",
        "maerts" => "receiving",
        "bidir" => "both ways at once",
        "rr" => "round trips",
        "crr" => "connections",
        other => other,
    }
}

/// A value as a label: a bare number gets its factor's name.
fn label(factor: &str, value: &str) -> String {
    match factor {
        "device" | "tool" | "profile" => value.to_owned(),
        "test" | "nodelay" => tick_label(factor, value),
        "buffer" if value == "default" => "default buffers".into(),
        "buffer" => format!("{} buffers", bytes(value)),
        "message" => format!("{} messages", bytes(value)),
        "moderation" if value == "default" => "interrupts as the device likes".into(),
        "moderation" if value == "off" => "interrupts at once".into(),
        "moderation" => format!("{value} interrupts/s at most"),
        "rate" if value == "default" => "no limit of rate".into(),
        "rate" => format!("{value}bit/s"),
        "sessions" if value == "1" => "1 session".into(),
        "sessions" => format!("{value} sessions"),
        "host" => format!("machine {value}"),
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
            absent: plan.map(|plan| plan.absent.clone()).unwrap_or_default(),
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

    /// Repeats in one number, and each of them.
    fn point(&self, rows: &[&Row], measure: Measure) -> Option<Point> {
        let spread = self.spread(rows.iter().copied(), measure)?;
        Some(Point { spread, runs: rows.iter().filter_map(|row| value(row, measure)).collect() })
    }

    /// Why a mark has no number: what the plan says of it, else what became of its runs.
    fn why_missing(&self, rows: &[&Row], pairs: &[(&str, &str)]) -> String {
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
        let shown: Vec<&Row> = picked.upper.iter().chain(&picked.lower).copied().collect();
        let foot = foot(&shown, self.statistic, ratio);
        let (unit_name, y_title) = match ratio {
            true => ("times", picked.ratio_title(figure)),
            false => (unit.name, unit.name.to_owned()),
        };
        for (number, panel) in panels.iter().enumerate() {
            let fixed: Vec<(&str, &str)> =
                figure.panels.as_deref().zip(panel.as_deref()).into_iter().collect();
            let entries = picked.legend(&figure.series, &fixed);
            let styles = picked.styles(&figure.series, &entries);
            let of_groups = picked.styles_of_groups(&groups);
            let mut series: Vec<Series> = Vec::new();
            for (entry, style) in entries.iter().zip(styles) {
                let mut cell = |group: &String| {
                    let mut pairs = fixed.clone();
                    pairs.extend(
                        figure.series.iter().map(String::as_str).zip(entry.iter().map(String::as_str)),
                    );
                    pairs.push((&figure.x, group));
                    let (value, several) = picked.cell(self, &pairs, figure.value);
                    mixed |= several;
                    scaled(value, scale)
                };
                let values = groups.iter().map(&mut cell).collect();
                let names = figure.series.iter().zip(entry).map(|(factor, value)| label(factor, value));
                series.push(Series {
                    label: names.collect::<Vec<_>>().join(", "),
                    style,
                    styles: of_groups.clone(),
                    values,
                });
            }
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
                y_title: y_title.clone(),
                unit: unit_name.to_owned(),
                groups: groups.iter().map(|group| tick_label(&figure.x, group)).collect(),
                series,
                log: figure.log,
                reach: (0.0, 0.0),
                foot: foot.clone(),
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

/// A value in the unit of its chart.
fn scaled(value: Value, scale: f64) -> Value {
    let Value::Point(Point { spread: s, runs }) = value else { return value };
    Value::Point(Point {
        spread: Spread { median: s.median / scale, min: s.min / scale, max: s.max / scale, ..s },
        runs: runs.into_iter().map(|run| run / scale).collect(),
    })
}

/// Quotients of runs of the same number; none where a number has not exactly one run on both sides.
fn by_run(upper: &[&Row], lower: &[&Row], measure: Measure) -> Vec<f64> {
    let alone = |rows: &[&Row], run: u32| {
        let mut of = rows.iter().filter(|row| row.run == run);
        let first = of.next().and_then(|row| value(row, measure));
        first.filter(|_| of.next().is_none())
    };
    let quotient =
        |row: &&Row| Some(alone(upper, row.run)? / alone(lower, row.run).filter(|base| *base > 0.0)?);
    upper.iter().filter_map(quotient).collect()
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

    /// The look of each legend entry: its device's colour, and what tells it from the others.
    fn styles(&self, factors: &[String], entries: &[Vec<String>]) -> Vec<Style> {
        let hues: Vec<usize> = entries.iter().map(|entry| self.hue_of(factors, entry)).collect();
        let several = hues.iter().any(|hue| *hue != hues[0]);
        let nth = |at: usize| hues[..at].iter().filter(|hue| **hue == hues[at]).count();
        hues.iter()
            .enumerate()
            .map(|(at, hue)| {
                let variant = nth(at);
                // Of one device alone, the markers and patterns are free for what differs.
                let shape = if several { *hue } else { variant };
                Style { hue: *hue, shape, variant: if several { variant } else { variant % 2 } }
            })
            .collect()
    }

    /// The looks of devices along the x axis; empty where the series have their own.
    fn styles_of_groups(&self, groups: &[String]) -> Vec<Style> {
        let figure = self.figure;
        if !["device", "profile"].contains(&figure.x.as_str()) || !figure.series.is_empty() {
            return Vec::new();
        }
        let x = std::slice::from_ref(&figure.x);
        let hues = groups.iter().map(|group| self.hue_of(x, std::slice::from_ref(group)));
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
    fn cell(&self, data: &Data<'_>, pairs: &[(&str, &str)], measure: Measure) -> (Value, bool) {
        let upper = self.rows(pairs, false);
        let several = |rows: &[&Row]| Data::values(rows, "id").len() > 1;
        let mixed = several(&upper);
        let missing = |rows: &[&Row]| Value::Missing(data.why_missing(rows, pairs));
        let Some(value) = data.point(&upper, measure) else { return (missing(&upper), mixed) };
        if self.figure.kind != Kind::Ratio {
            return (Value::Point(value), mixed);
        }
        let lower = self.rows(pairs, true);
        let mixed = mixed || several(&lower);
        let Some(base) = data.spread(lower.iter().copied(), measure).filter(|base| base.min > 0.0) else {
            return (missing(&lower), mixed);
        };
        let (value, median) = (value.spread, value.spread.median / base.median);
        let runs = by_run(&upper, &lower, measure);
        let spread = match Spread::of(runs.iter().copied()) {
            Some(s) if s.runs > 1 => {
                Spread { median, min: s.min.min(median), max: s.max.max(median), runs: s.runs }
            }
            _ => Spread {
                median,
                min: value.min / base.max,
                max: value.max / base.min,
                runs: value.runs.min(base.runs),
            },
        };
        (Value::Point(Point { spread, runs }), mixed)
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
