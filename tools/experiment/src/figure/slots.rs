//! Where marks stand along the x axis.

use super::chart::{Chart, Shape};

/// Where marks stand along the x axis.
pub struct Slots {
    pub left: f64,
    pub group: f64,
    /// Between two series of a group.
    pub width: f64,
    pub series: usize,
}

impl Slots {
    pub fn new(chart: &Chart, left: f64, right: f64) -> Slots {
        let group = (right - left) / chart.groups.len().max(1) as f64;
        // Lines turn at nearly one place.
        let (part, most) = if chart.shape == Shape::Lines { (0.7, 17.0) } else { (0.86, 76.0) };
        let width = (group * part / chart.series.len().max(1) as f64).min(most);
        Slots { left, group, width, series: chart.series.len() }
    }

    pub fn x(&self, series: usize, at: usize) -> f64 {
        self.left
            + self.group * (at as f64 + 0.5)
            + self.width * (series as f64 - (self.series as f64 - 1.0) / 2.0)
    }

    /// Half a whisker's cap.
    pub fn cap(&self) -> f64 {
        (self.width * 0.22).clamp(2.0, 5.0)
    }
}
