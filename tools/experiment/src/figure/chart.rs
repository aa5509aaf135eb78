//! What a chart is made of, before it is drawn.

use std::fmt::Write;

use super::axis::Axis;
use super::published::Published;
use super::style::{Style, escape};
use crate::summary::Spread;

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Bars from zero; dots where the axis is logarithmic.
    Bars,
    Lines,
    /// Dots, and a line at 1.
    Ratio,
}

/// Repeats of one combination: what they come to, and each of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub spread: Spread,
    pub runs: Vec<f64>,
}

/// What a mark shows, or a word or two why there is none.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Point(Point),
    Missing(String),
}

impl Value {
    pub fn point(&self) -> Option<&Point> {
        match self {
            Value::Point(point) => Some(point),
            Value::Missing(_) => None,
        }
    }
}

/// One legend entry, with a value for each group.
#[derive(Clone, Debug)]
pub struct Series {
    pub label: String,
    pub style: Style,
    /// Of each group, where the groups are devices; else empty.
    pub styles: Vec<Style>,
    pub values: Vec<Value>,
}

impl Series {
    pub fn style_at(&self, group: usize) -> Style {
        self.styles.get(group).copied().unwrap_or(self.style)
    }
}

/// One chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Unique in the page.
    pub id: String,
    pub title: String,
    /// What everything in it has in common, in words: devices, test, sizes.
    pub given: String,
    pub shape: Shape,
    pub x_title: String,
    pub y_title: String,
    /// Of every value in it.
    pub unit: String,
    pub groups: Vec<String>,
    pub series: Vec<Series>,
    /// What a paper measured.
    pub published: Vec<Published>,
    pub log: bool,
    /// The least and the most that the y axis must show, so that neighbours share a scale.
    pub reach: (f64, f64),
    /// Where and how it was measured, in sentences.
    pub foot: Vec<String>,
}

impl Chart {
    pub fn has_bars(&self, axis: &Axis) -> bool {
        self.shape == Shape::Bars && axis.is_linear()
    }

    pub fn axis(&self, (top, bottom): (f64, f64)) -> Axis {
        let ratio = self.shape == Shape::Ratio;
        // Half and twice are as far from 1.
        Axis::new(self.reach, self.log || ratio, top, bottom, ratio)
    }
}

/// The width of every picture.
pub const WIDTH: f64 = 720.0;
pub const LEFT: f64 = 66.0;
pub const RIGHT: f64 = 12.0;
/// The height of what is measured, in the tightest picture of a page.
pub const PLOT: f64 = 260.0;

/// The least and the most of all values, with what their intervals reach.
pub fn reach<'a>(series: impl IntoIterator<Item = &'a Series>) -> (f64, f64) {
    let points = series.into_iter().flat_map(|s| s.values.iter().filter_map(Value::point));
    let all: Vec<Spread> = points.map(|point| point.spread).collect();
    let least = all.iter().map(|s| s.min).fold(f64::INFINITY, f64::min);
    let most = all.iter().map(|s| s.max).fold(0.0, f64::max);
    if all.is_empty() { (0.0, 0.0) } else { (least, most) }
}

pub fn text(svg: &mut String, (x, y): (f64, f64), attributes: &str, content: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\"{attributes}>{}</text>", escape(content));
}
