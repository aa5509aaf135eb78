//! The legend, above the picture. Words are measured in the font
//! that draws them.

use std::fmt::Write;

use super::chart::{Chart, LEFT, Series, Shape, WIDTH, text};
use super::letters::{TEXT, width};

/// A row above the picture.
pub const ROW: f64 = 21.0;
/// A sample of a mark and the gap behind it.
const SAMPLE: f64 = 34.0;
/// The same of a line, long enough for the longest dashes on either side of the mark.
const LINE_SAMPLE: f64 = 62.0;

fn sample_width(chart: &Chart) -> f64 {
    if chart.shape == Shape::Lines { LINE_SAMPLE } else { SAMPLE }
}

fn is_needed(series: &[Series]) -> bool {
    series.len() > 1 || series.iter().any(|s| !s.label.is_empty())
}

/// How many rows it has.
pub fn rows(chart: &Chart) -> usize {
    places(chart).last().map_or(0, |(row, _)| row + 1)
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
