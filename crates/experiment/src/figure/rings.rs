//! Where the rings of single runs stand: beside their whisker, and none on another as long as there is room.

use std::collections::BTreeMap;

use super::axis::Axis;
use super::chart::Chart;
use super::slots::{LEAST_ASIDE, Slots, shows_runs};
use super::style::Style;

/// Half of a mark, with a rim.
const MARK: f64 = 5.5;
/// Columns of rings beside a whisker, at most, where marks are this far apart; else there is one: rings that are further
/// away would be taken for their neighbours'.
const MOST_COLUMNS: usize = 3;
const WIDE: f64 = 15.0;

/// The places of the runs of each mark, by series and group; there are none where they are too many.
pub struct Rings(BTreeMap<(usize, usize), Vec<(f64, f64)>>);

impl Rings {
    pub fn new(chart: &Chart, axis: &Axis, slots: &Slots) -> Rings {
        let (bars, shown) = (chart.has_bars(axis), shows_runs(chart.shape, &chart.series));
        let radius = Style::run_radius(bars);
        let apart = 2.0 * radius + 0.8;
        let points: Vec<_> = (chart.series.iter().enumerate())
            .flat_map(|(series, of)| of.values.iter().enumerate().map(move |(at, value)| (series, at, value)))
            .filter_map(|(series, at, value)| Some((series, at, value.point()?)))
            .collect();
        let marks: Vec<(f64, f64)> = (points.iter())
            .filter(|_| !bars)
            .map(|(series, at, point)| (slots.x(*series, *at), axis.y(point.spread.median)))
            .collect();
        let whiskers: Vec<(f64, f64, f64)> = (points.iter())
            .filter(|(_, _, point)| point.spread.runs > 1)
            .map(|(series, at, point)| {
                (slots.x(*series, *at), axis.y(point.spread.max), axis.y(point.spread.min))
            })
            .collect();
        let mut places: BTreeMap<(usize, usize), Vec<(f64, f64)>> = BTreeMap::new();
        for (series, at, point) in points {
            if !shown || point.runs.len() < 2 {
                continue;
            }
            let middle = slots.x(series, at);
            let step = |column: usize| slots.aside() + apart * column as f64;
            // On a bar the left side is its number's, and beyond its edge is another's.
            let (right, left) = match () {
                () if slots.width < WIDE => (1, 0),
                () if bars => (((slots.width / 2.0 - slots.aside()) / apart) as usize, 0),
                () => (MOST_COLUMNS, 1),
            };
            let right = (0..right.clamp(1, MOST_COLUMNS)).map(|column| middle + step(column));
            let left = (0..left).map(|column| middle - step(column));
            let columns: Vec<f64> = right.chain(left).collect();
            let mut own: Vec<(f64, f64)> = Vec::new();
            for run in &point.runs {
                let y = axis.y(*run);
                let others = || places.values().flatten().chain(&own);
                let is_free = |x: &f64| {
                    let inside = *x > slots.left + radius && *x < slots.right - radius;
                    let on_a_ring = others().any(|other| (x - other.0).hypot(y - other.1) < apart);
                    let on_a_mark = marks.iter().any(|mark| (x - mark.0).hypot(y - mark.1) < MARK + radius);
                    let on_a_whisker = whiskers.iter().any(|(there, top, bottom)| {
                        (x - there).abs() < LEAST_ASIDE - 0.1 && (top - radius..=bottom + radius).contains(&y)
                    });
                    inside && !on_a_ring && !on_a_mark && !on_a_whisker
                };
                let x = columns.iter().copied().find(is_free).unwrap_or(columns[0]);
                own.push((x, y));
            }
            places.insert((series, at), own);
        }
        Rings(places)
    }

    pub fn of(&self, series: usize, at: usize) -> &[(f64, f64)] {
        self.0.get(&(series, at)).map_or(&[], |places| places)
    }
}
