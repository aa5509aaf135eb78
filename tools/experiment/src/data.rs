//! From rows to the values that charts and claims show.

mod base;
mod boots;
mod picked;
mod published;
mod ratios;
mod turns;

use crate::figure::{Chart, Point, Series, Shape, Value, reach, widened};
use crate::foot::{Labs, Marks, foot};
use crate::plan::{Answer, Claim, Figure, FigureKind, Filter, Measure, Plan};
use crate::rows::Row;
use crate::summary::Spread;
use crate::units::{amount, number};
use crate::words::{axis_title, in_common, is_transactional, label, quantity, sides, sum, tick};
pub use base::Data;
use base::{Unit, over};
use picked::Picked;
use published::Places;

/// The charts of one figure, and the remarks that they need.
pub struct Drawn {
    pub charts: Vec<Chart>,
    /// Rows of several combinations fell into one mark.
    pub mixed: bool,
    /// Factors that differ between marks and that the figure does not name.
    pub unnamed: Vec<&'static str>,
    pub labs: Labs,
}

impl<'r> Data<'r> {
    /// The charts of a figure: one, or one for each panel, on one scale.
    pub fn draw(&self, figure: &Figure, id: &str) -> Drawn {
        let picked = Picked::new(self, figure);
        let panels: Vec<Option<String>> = match &figure.panels {
            Some(factor) => picked.values(factor).into_iter().map(Some).collect(),
            None => vec![None],
        };
        let mut mixed = false;
        let mut charts: Vec<Chart> = Vec::new();
        for (number, panel) in panels.iter().enumerate() {
            let fixed: Vec<(&str, &str)> =
                figure.panels.as_deref().zip(panel.as_deref()).into_iter().collect();
            charts.push(self.chart(&picked, format!("{id}p{number}"), &fixed, &mut mixed));
        }
        let scale = reach(charts.iter().flat_map(|chart| &chart.series));
        let log = figure.log || figure.kind == FigureKind::Ratio;
        let scale = widened(scale, log, charts.iter().flat_map(|chart| &chart.published));
        charts.iter_mut().for_each(|chart| chart.reach = scale);
        let labs = self.labs(&picked.rows_of(&[]), &picked.shown());
        Drawn { charts, mixed, unnamed: picked.unnamed(&self.named), labs }
    }

    /// The chart of one panel, whose factor is `fixed`.
    fn chart(&self, picked: &Picked<'_, 'r>, id: String, fixed: &[(&str, &str)], mixed: &mut bool) -> Chart {
        let figure = picked.figure;
        let groups = picked.groups(fixed);
        let entries = picked.legend(&figure.series, fixed);
        let styles = picked.styles(&figure.series, &entries);
        let of_groups = picked.styles_of_groups(&groups);
        let ratio = figure.kind == FigureKind::Ratio;
        let unit =
            if ratio { Unit { name: "times", scale: 1.0 } } else { self.unit(&picked.upper, figure.value) };
        let mut series: Vec<Series> = Vec::new();
        for (entry, style) in entries.iter().zip(styles) {
            let mut cell = |group: &Vec<String>| {
                let mut pairs = fixed.to_vec();
                for (factors, values) in [(&figure.series, entry), (&figure.x, group)] {
                    pairs.extend(factors.iter().map(String::as_str).zip(values.iter().map(String::as_str)));
                }
                let (value, several) = picked.cell(self, &pairs, figure.value);
                *mixed |= several;
                scaled(value, unit.scale)
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
        let rows = picked.rows_of(fixed);
        let suffix =
            fixed.first().map_or(String::new(), |(factor, value)| format!(": {}", label(factor, value)));
        let sum = if ratio { String::new() } else { sum(&rows, figure.value) };
        let quantity = quantity(&picked.upper, figure.value) + &sum;
        let marks = if ratio { Marks::of_ratios(&series) } else { Marks::Values };
        let titles: Vec<&str> = figure.x.iter().map(|factor| axis_title(factor, &rows)).collect();
        let shape = match figure.kind {
            FigureKind::Bars => Shape::Bars,
            FigureKind::Lines => Shape::Lines,
            FigureKind::Ratio => Shape::Ratio,
        };
        let places = Places { figure, fixed, entries: &entries, groups: &groups };
        let is_rate = !rows.iter().any(|row| is_transactional(row));
        let published = places.published(unit, is_rate);
        let labs = self.labs(&rows, &picked.shown());
        let foot = foot(&rows, self.statistic, marks, &labs);
        Chart {
            id,
            title: format!("{}{suffix}", figure.title),
            given: in_common(&rows, &self.named, &picked.shown()),
            shape,
            x_title: titles.join(", "),
            y_title: match unit.name {
                "times" => format!("{}: {quantity}", picked.sides()),
                "" => quantity,
                unit => format!("{quantity} in {unit}"),
            },
            unit: unit.name.to_owned(),
            groups: groups.iter().map(|group| group_label(&figure.x, group)).collect(),
            series,
            published,
            log: figure.log,
            reach: (0.0, 0.0),
            foot,
        }
    }

    /// What was measured about a claim, in words: of what, and divided by what. None when nothing was.
    pub fn measured(&self, claim: &Claim) -> Option<String> {
        let rows = self.matching(&claim.of);
        let ids = Self::values(&rows, "id");
        let of = |id: &String| rows.iter().copied().filter(|row| row.id == *id).collect::<Vec<_>>();
        let mut what = quantity(&rows, claim.value);
        if let Some(first) = what.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        if claim.over.is_empty() {
            let unit = self.unit(&rows, claim.value);
            let all = Spread::of(ids.iter().filter_map(|id| Some(self.spread(of(id), claim.value)?.median)))?;
            let (low, high) = (number(all.min / unit.scale), number(all.max / unit.scale));
            let range = if low == high { low } else { format!("{low} to {high}") };
            return Some(format!("{what}: {range} {}", unit.name).trim_end().to_owned());
        }
        let lower = self.matching(&over(&claim.of, &claim.over));
        let sides = sides(claim.over.iter().map(|(name, values)| {
            let upper = claim.of.get(name).map_or_else(|| Self::values(&rows, name), |of| of.texts());
            (name, upper, values.texts())
        }));
        let ratio = |id: &String| {
            let mine = of(id);
            let like: Vec<&Row> = lower
                .iter()
                .copied()
                .filter(|other| self.is_counterpart(mine[0], other, &claim.over))
                .collect();
            Some(self.ratio(&mine, &like, claim.value)?.spread.median)
        };
        let all = Spread::of(ids.iter().filter_map(ratio).filter(|ratio| ratio.is_finite()))?;
        Some(match all.runs {
            1 => format!("{what}, {sides}: {} times", number(all.median)),
            count => format!(
                "{what}, {sides}: {} to {} times, in the middle {} ({count} combinations)",
                number(all.min),
                number(all.max),
                number(all.median)
            ),
        })
    }

    /// The sentences that a report begins with, but for those about what was not measured.
    pub fn answers(&self, plan: &Plan) -> Vec<String> {
        plan.answers.iter().filter_map(|answer| self.answer(answer)).collect()
    }

    fn answer(&self, answer: &Answer) -> Option<String> {
        let rows = self.matching(&answer.of);
        let value = self.spread(rows.iter().copied(), Measure::Result)?.median;
        let text = answer.text.replace("{value}", &amount(value, is_transactional(rows.first()?)));
        if answer.over.is_empty() {
            return Some(text);
        }
        let others = self.matching(&over(&answer.of, &answer.over));
        let of = |device: &String| {
            let its = others.iter().copied().filter(|row| row.device == *device);
            Some((self.spread(its, Measure::Result)?.median, device.clone()))
        };
        let devices = Self::values(&others, "device");
        let (most, best) = devices.iter().filter_map(of).max_by(|a, b| a.0.total_cmp(&b.0))?;
        (most > 0.0).then(|| text.replace("{ratio}", &number(value / most)).replace("{best}", &best))
    }

    /// Whether two rows differ in nothing but the factors of `over`.
    fn is_counterpart(&self, row: &Row, other: &Row, over: &Filter) -> bool {
        // The device's name carries its profile and queues.
        let device = over.contains_key("profile") || over.contains_key("queues");
        let apart = |name: &str| over.contains_key(name) || (device && name == "device");
        self.named.iter().filter(|name| !apart(name)).all(|name| row.factor(name) == other.factor(name))
    }
}

/// What stands below the marks of a group: values of one factor, which the axis names, or of several.
fn group_label(factors: &[String], values: &[String]) -> String {
    match (factors, values) {
        ([factor], [value]) => tick(factor, value),
        _ => {
            factors.iter().zip(values).map(|(name, value)| label(name, value)).collect::<Vec<_>>().join(", ")
        }
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
