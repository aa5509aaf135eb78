//! Where marks stand along the x axis, and their runs beside them.

use super::chart::{Chart, Series, Shape, Value};

/// Up to so many runs, each is drawn.
const FEW_RUNS: usize = 9;
/// Of lines, up to so many at one place of the x axis: more are not told from each other there.
const FEW_AT_ONE_PLACE: usize = 18;

/// Whether every run of a point is drawn, and not only what the whiskers reach over.
pub fn shows_runs(shape: Shape, series: &[Series]) -> bool {
    let runs = |value: &Value| value.point().map_or(0, |point| point.runs.len());
    let places = series.iter().map(|of| of.values.len()).max().unwrap_or(0);
    let at = |place: usize| series.iter().filter_map(|of| of.values.get(place)).map(runs).sum::<usize>();
    let crowded = shape == Shape::Lines && (0..places).any(|place| at(place) > FEW_AT_ONE_PLACE);
    !crowded && series.iter().flat_map(|of| &of.values).all(|value| runs(value) <= FEW_RUNS)
}

/// A ring nearer than this lies on its whisker.
pub const LEAST_ASIDE: f64 = 4.0;

/// Where marks stand along the x axis.
pub struct Slots {
    pub left: f64,
    pub right: f64,
    pub group: f64,
    /// Between two series of a group.
    pub width: f64,
    pub series: usize,
}

impl Slots {
    pub fn new(chart: &Chart, left: f64, right: f64) -> Slots {
        let group = (right - left) / chart.groups.len().max(1) as f64;
        // Bars as wide as a number beside a whisker needs; lines that turn at nearly one place.
        let (part, most) = if chart.shape == Shape::Lines { (0.7, 17.0) } else { (0.86, 76.0) };
        let width = (group * part / chart.series.len().max(1) as f64).min(most);
        Slots { left, right, group, width, series: chart.series.len() }
    }

    pub fn x(&self, series: usize, at: usize) -> f64 {
        self.left
            + self.group * (at as f64 + 0.5)
            + self.width * (series as f64 - (self.series as f64 - 1.0) / 2.0)
    }

    /// Between the middle of a mark and its runs, which stand beside the whisker.
    pub fn aside(&self) -> f64 {
        if self.width >= 20.0 { 8.0 } else { (self.width * 0.45).clamp(LEAST_ASIDE, 8.0) }
    }

    /// Half a whisker's cap.
    pub fn cap(&self) -> f64 {
        (self.width * 0.22).clamp(2.0, 5.0)
    }
}
