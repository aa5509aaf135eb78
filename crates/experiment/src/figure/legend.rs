//! The legend: beside the ends of lines where it fits there, else above the picture. Words are measured in the font
//! that draws them.

use std::fmt::Write;

use super::axis::Axis;
use super::chart::{Chart, LEFT, Series, Shape, WIDTH, text};
use super::letters::{TEXT, width};
use super::numbers::Segment;
use super::slots::Slots;

/// A row above the picture.
pub const ROW: f64 = 21.0;
/// A sample of a mark and the gap behind it.
const SAMPLE: f64 = 34.0;
/// The same of a line, long enough for the longest dashes on either side of the mark.
const LINE_SAMPLE: f64 = 62.0;
/// Labels beside lines take at most this much of the picture.
const MOST_BESIDE: f64 = 262.0;
/// With more groups than this the lines need the picture's width.
const MOST_GROUPS_BESIDE: usize = 7;
/// Between the bases of two labels beside lines.
const BESIDE_ROW: f64 = 16.0;

fn sample_width(chart: &Chart) -> f64 {
    if chart.shape == Shape::Lines { LINE_SAMPLE } else { SAMPLE }
}

fn is_needed(series: &[Series]) -> bool {
    series.len() > 1 || series.iter().any(|s| !s.label.is_empty())
}

/// The room that labels beside the lines take; none where they do not fit, or there are none.
pub fn beside(chart: &Chart, plot: f64) -> Option<f64> {
    let widest = chart.series.iter().map(|s| width(&s.label, TEXT)).fold(0.0, f64::max);
    let fits = chart.shape == Shape::Lines
        && is_needed(&chart.series)
        && widest + LINE_SAMPLE <= MOST_BESIDE
        && chart.groups.len() <= MOST_GROUPS_BESIDE
        && chart.series.len() as f64 * BESIDE_ROW <= plot;
    fits.then_some(widest + LINE_SAMPLE + 8.0)
}

/// Row and x of every entry above the picture: as few rows as it takes, with as many entries in each.
pub fn places(chart: &Chart) -> Vec<(usize, f64)> {
    if !is_needed(&chart.series) {
        return Vec::new();
    }
    let count = chart.series.len();
    let greedy = in_rows(chart, count);
    let rows = greedy.last().map_or(1, |(row, _)| row + 1);
    let each = count.div_ceil(rows);
    if rows > 1
        && let Some(columns) = in_columns(chart, each)
    {
        return columns;
    }
    let even = in_rows(chart, each);
    // Long entries may take more rows then.
    if even.last().is_some_and(|(row, _)| *row < rows) { even } else { greedy }
}

/// The same with so many entries in a row, one below the other; none where they do not fit.
fn in_columns(chart: &Chart, each: usize) -> Option<Vec<(usize, f64)>> {
    let wide = |s: &Series| sample_width(chart) + width(&s.label, TEXT) + 18.0;
    let widest = |column: usize| chart.series.iter().skip(column).step_by(each).map(wide).fold(0.0, f64::max);
    let mut lefts = vec![LEFT];
    (0..each).for_each(|column| lefts.push(lefts[column] + widest(column)));
    let fits = lefts[each] - 18.0 <= WIDTH - 6.0;
    fits.then(|| (0..chart.series.len()).map(|at| (at / each, lefts[at % each])).collect())
}

/// The same with at most so many entries in a row.
fn in_rows(chart: &Chart, most: usize) -> Vec<(usize, f64)> {
    let (mut row, mut x, mut entries) = (0, LEFT, 0);
    let place = |s: &Series| {
        let wide = sample_width(chart) + width(&s.label, TEXT);
        if entries == most || (x > LEFT && x + wide > WIDTH - 6.0) {
            (row, x, entries) = (row + 1, LEFT, 0);
        }
        let at = (row, x);
        (x, entries) = (x + wide + 18.0, entries + 1);
        at
    };
    chart.series.iter().map(place).collect()
}

fn sample(svg: &mut String, chart: &Chart, number: usize, (x, middle): (f64, f64), bars: bool) {
    let style = chart.series[number].style;
    if chart.shape == Shape::Lines {
        let line = style.line().replacen("class=\"line ", "class=\"key ", 1);
        let _ = writeln!(svg, "<path d=\"M{x:.1} {middle:.1}h{:.1}\" {line}/>", LINE_SAMPLE - 7.0);
    }
    if bars {
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"26\" height=\"14\" {}/>",
            middle - 7.0,
            style.bar(&chart.id).replace("mark ", "")
        );
    } else {
        svg.push_str(&style.marker((x + (sample_width(chart) - 7.0) / 2.0, middle), "", ""));
    }
}

/// Draws it above the picture.
pub fn above(svg: &mut String, chart: &Chart, top: f64, bars: bool) {
    for (number, (row, x)) in places(chart).into_iter().enumerate() {
        let middle = top + ROW * row as f64 + 7.0;
        sample(svg, chart, number, (x, middle), bars);
        text(svg, (x + sample_width(chart), middle + 4.7), " class=\"legend\"", &chart.series[number].label);
    }
}

/// The last mark of a line, and where the line's name stands.
struct End {
    series: usize,
    mark: Option<(f64, f64)>,
    place: f64,
}

/// Places of the names beside the ends of the lines, as near to them as there is room.
fn ends(chart: &Chart, axis: &Axis, slots: &Slots, (top, bottom): (f64, f64)) -> Vec<End> {
    let last = |(number, series): (usize, &Series)| {
        let at = series.values.iter().rposition(|value| value.point().is_some());
        let mark =
            at.and_then(|at| Some((slots.x(number, at), axis.y(series.values[at].point()?.spread.median))));
        End { series: number, mark, place: mark.map_or(bottom, |(_, y)| y) }
    };
    let mut ends: Vec<End> = chart.series.iter().enumerate().map(last).collect();
    ends.sort_by(|a, b| a.place.total_cmp(&b.place));
    let mut places: Vec<f64> = ends.iter().map(|end| end.place).collect();
    spread_out(&mut places, top, bottom);
    ends.iter_mut().zip(places).for_each(|(end, place)| end.place = place);
    ends
}

/// The lines from last marks to names, with the numbers of their series.
fn from_marks(chart: &Chart, axis: &Axis, slots: &Slots, room: (f64, f64)) -> Vec<(usize, Segment)> {
    let ends = ends(chart, axis, slots, room).into_iter();
    ends.filter_map(|end| Some((end.series, [end.mark?, (slots.right + 4.0, end.place)]))).collect()
}

/// Where the lines to names are.
pub fn leader_lines(chart: &Chart, axis: &Axis, slots: &Slots, room: (f64, f64)) -> Vec<Segment> {
    from_marks(chart, axis, slots, room).into_iter().map(|(_, segment)| segment).collect()
}

/// Draws a line from each last mark, in its colour, to its name: below the marks, so that it starts at its own.
pub fn leaders(svg: &mut String, chart: &Chart, axis: &Axis, slots: &Slots, room: (f64, f64)) {
    for (series, [(x, y), (to, place)]) in from_marks(chart, axis, slots, room) {
        let style = chart.series[series].style.leader();
        let _ = writeln!(svg, "<path d=\"M{x:.1} {y:.1}L{to:.1} {place:.1}\" {style}/>");
    }
}

/// Draws it beside the ends of the lines.
pub fn at_the_ends(svg: &mut String, chart: &Chart, axis: &Axis, slots: &Slots, room: (f64, f64)) {
    for End { series, place, .. } in ends(chart, axis, slots, room) {
        let from = slots.right + 4.0;
        sample(svg, chart, series, (from, place), false);
        text(svg, (from + LINE_SAMPLE - 3.0, place + 4.7), " class=\"legend\"", &chart.series[series].label);
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
