//! The legend: beside the ends of lines where it fits there, else above the picture. Words are measured in the font
//! that draws them.

use std::fmt::Write;

use super::axis::Axis;
use super::chart::{Chart, LEFT, Series, Shape, WIDTH, text};
use super::letters::{TEXT, width};
use super::marks::Slots;

/// A row above the picture.
pub const ROW: f64 = 21.0;
/// A sample and the gap behind it.
const SAMPLE: f64 = 34.0;
/// Labels beside lines take at most this much of the picture.
const MOST_BESIDE: f64 = 230.0;
/// Between the bases of two labels beside lines.
const BESIDE_ROW: f64 = 16.0;

fn is_needed(series: &[Series]) -> bool {
    series.len() > 1 || series.iter().any(|s| !s.label.is_empty())
}

/// The room that labels beside the lines take; none where they do not fit, or there are none.
pub fn beside(chart: &Chart, plot: f64) -> Option<f64> {
    let widest = chart.series.iter().map(|s| width(&s.label, TEXT)).fold(0.0, f64::max);
    let fits = chart.shape == Shape::Lines
        && is_needed(&chart.series)
        && widest + SAMPLE <= MOST_BESIDE
        && chart.series.len() as f64 * BESIDE_ROW <= plot;
    fits.then_some(widest + SAMPLE + 8.0)
}

/// Row and x of every entry above the picture.
pub fn places(series: &[Series]) -> Vec<(usize, f64)> {
    if !is_needed(series) {
        return Vec::new();
    }
    let (mut row, mut x) = (0, LEFT);
    let place = |s: &Series| {
        let wide = SAMPLE + width(&s.label, TEXT);
        if x > LEFT && x + wide > WIDTH - 6.0 {
            (row, x) = (row + 1, LEFT);
        }
        let at = (row, x);
        x += wide + 18.0;
        at
    };
    series.iter().map(place).collect()
}

fn sample(svg: &mut String, chart: &Chart, number: usize, (x, middle): (f64, f64), bars: bool) {
    let style = chart.series[number].style;
    if chart.shape == Shape::Lines {
        let _ = writeln!(svg, "<path d=\"M{x:.1} {middle:.1}h27\" {}/>", style.line());
    }
    if bars {
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"26\" height=\"14\" {}/>",
            middle - 7.0,
            style.bar(&chart.id).replace("mark ", "")
        );
    } else {
        svg.push_str(&style.marker((x + 13.5, middle), "", ""));
    }
}

/// Draws it above the picture.
pub fn above(svg: &mut String, chart: &Chart, top: f64, bars: bool) {
    for (number, (row, x)) in places(&chart.series).into_iter().enumerate() {
        let middle = top + ROW * row as f64 + 7.0;
        sample(svg, chart, number, (x, middle), bars);
        text(svg, (x + SAMPLE, middle + 4.7), " class=\"legend\"", &chart.series[number].label);
    }
}

/// Draws it beside the ends of the lines, as near to them as there is room.
pub fn at_the_ends(svg: &mut String, chart: &Chart, axis: &Axis, slots: &Slots, (top, bottom): (f64, f64)) {
    let mut ends: Vec<(usize, f64, f64)> = chart
        .series
        .iter()
        .enumerate()
        .map(|(number, series)| {
            let last = series.values.iter().rposition(|value| value.point().is_some());
            match last.and_then(|at| Some((at, series.values[at].point()?.spread.median))) {
                Some((at, median)) => (number, slots.x(number, at), axis.y(median)),
                None => (number, slots.right, bottom),
            }
        })
        .collect();
    ends.sort_by(|a, b| a.2.total_cmp(&b.2));
    let mut places: Vec<f64> = ends.iter().map(|(.., y)| *y).collect();
    spread_out(&mut places, top, bottom);
    for ((number, x, y), place) in ends.into_iter().zip(places) {
        let from = slots.right + 4.0;
        if (y - place).abs() > 1.0 || x < slots.right - slots.group {
            let _ = writeln!(
                svg,
                "<path d=\"M{:.1} {y:.1}L{from:.1} {place:.1}\" stroke=\"currentColor\" stroke-opacity=\".3\" \
                 stroke-width=\".8\"/>",
                x + 6.0
            );
        }
        sample(svg, chart, number, (from, place), false);
        text(svg, (from + SAMPLE - 3.0, place + 4.7), " class=\"legend\"", &chart.series[number].label);
    }
}

/// Moves sorted places apart, and keeps them between two bounds.
pub fn spread_out(places: &mut [f64], top: f64, bottom: f64) {
    let mut least = top;
    for place in places.iter_mut() {
        *place = place.max(least);
        least = *place + BESIDE_ROW;
    }
    let mut most = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - BESIDE_ROW;
    }
}
