//! Charts as SVG, written by hand: the same data always gives the same bytes, and nothing is loaded.
//!
//! Ink is `currentColor`, so that a chart follows the page into dark mode and is black on paper. Series differ
//! in lightness and pattern (bars), or in marker and dashes (lines), before they differ in hue: a grey printer
//! loses nothing. `png.rs` makes pixels of the very same SVG.

mod axis;
mod style;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use crate::summary::Spread;
use crate::units::number;
use axis::Axis;
pub use style::escape;
use style::{fill, line_style, marker, patterns};

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Bars,
    Lines,
    /// Bars with a line at 1.
    Ratio,
}

/// One legend entry: a bar or a point for each group, none where nothing was measured.
#[derive(Clone, Debug)]
pub struct Series {
    pub label: String,
    pub values: Vec<Option<Spread>>,
}

/// One chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Unique in the page.
    pub id: String,
    pub title: String,
    pub shape: Shape,
    pub x_title: String,
    pub y_title: String,
    pub groups: Vec<String>,
    pub series: Vec<Series>,
    pub log: bool,
    /// The least and the most that the y axis must show, so that neighbours share a scale.
    pub reach: (f64, f64),
}

const WIDTH: f64 = 640.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 10.0;
const PLOT: f64 = 250.0;
const ROW: f64 = 22.0;
/// A letter of the labels, about.
const LETTER: f64 = 7.4;
/// With more bars than this their numbers would touch.
const MOST_NUMBERS: usize = 14;

/// The least and the most of all values, with what their error bars reach.
pub fn reach<'a>(series: impl IntoIterator<Item = &'a Series>) -> (f64, f64) {
    let all: Vec<Spread> = series.into_iter().flat_map(|s| s.values.iter().flatten().copied()).collect();
    let least = all.iter().map(|s| s.min).fold(f64::INFINITY, f64::min);
    let most = all.iter().map(|s| s.max).fold(0.0, f64::max);
    if all.is_empty() { (0.0, 0.0) } else { (least, most) }
}

/// The value and the range: what a pointer over a mark, or a screen reader, gets.
fn spoken(value: &Spread) -> String {
    match value.runs {
        1 => number(value.median),
        runs => {
            format!("{} ({runs} runs, {} to {})", number(value.median), number(value.min), number(value.max))
        }
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), attributes: &str, content: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\"{attributes}>{}</text>", escape(content));
}

/// The chart as an SVG element.
pub fn svg(chart: &Chart) -> String {
    let titles = wrap(&chart.title, 68);
    let legend = legend_places(&chart.series);
    let legend_rows = legend.last().map_or(0, |(row, _)| row + 1);
    let top = 24.0 * titles.len() as f64 + ROW * legend_rows as f64 + 40.0;
    let bottom = top + PLOT;
    let group = (WIDTH - RIGHT - LEFT) / chart.groups.len().max(1) as f64;
    let labels: Vec<Vec<String>> =
        chart.groups.iter().map(|label| wrap(label, ((group - 4.0) / LETTER).max(3.0) as usize)).collect();
    let label_rows = labels.iter().map(Vec::len).max().unwrap_or(1);
    let height = bottom + 17.0 * label_rows as f64 + 34.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
         aria-label=\"{}\" font-family=\"system-ui, 'DejaVu Sans', 'Helvetica Neue', Arial, sans-serif\" \
         font-size=\"13.5\" fill=\"currentColor\">\n",
        escape(&chart.title)
    );
    if chart.shape != Shape::Lines {
        patterns(&mut svg, &chart.id, chart.series.len());
    }
    for (row, title) in titles.iter().enumerate() {
        text(&mut svg, (4.0, 19.0 + 22.0 * row as f64), " font-size=\"16\" font-weight=\"600\"", title);
    }
    draw_legend(&mut svg, chart, &legend, 24.0 * titles.len() as f64 + 10.0);
    let axis = Axis::new(chart.reach, chart.log, top, bottom, chart.shape == Shape::Ratio);
    text(&mut svg, (4.0, top - 14.0), " class=\"y-title\"", &chart.y_title);
    for (value, label) in axis.ticks() {
        let y = axis.y(value);
        let opacity = if y >= bottom - 0.5 { "1" } else { ".2" };
        let end = WIDTH - RIGHT;
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y:.1}H{end}\" stroke=\"currentColor\" stroke-opacity=\"{opacity}\"/>"
        );
        text(&mut svg, (LEFT - 7.0, y + 4.5), " text-anchor=\"end\"", &label);
    }
    if chart.shape == Shape::Ratio {
        let (y, end) = (axis.y(1.0), WIDTH - RIGHT);
        let _ =
            writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{end}\" stroke=\"currentColor\" stroke-width=\"1.6\"/>");
    }
    for (at, lines) in labels.iter().enumerate() {
        let middle = LEFT + group * (at as f64 + 0.5);
        for (row, line) in lines.iter().enumerate() {
            text(&mut svg, (middle, bottom + 18.0 + 16.0 * row as f64), " text-anchor=\"middle\"", line);
        }
    }
    text(
        &mut svg,
        ((LEFT + WIDTH - RIGHT) / 2.0, height - 9.0),
        " text-anchor=\"middle\" class=\"x-title\"",
        &chart.x_title,
    );
    match chart.shape {
        Shape::Lines => lines(&mut svg, chart, &axis, group),
        Shape::Bars | Shape::Ratio => bars(&mut svg, chart, &axis, group),
    }
    svg + "</svg>\n"
}

/// Lines of at most `most` letters, broken after what joins words.
fn wrap(label: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for piece in label.split_inclusive([' ', '-', ':', ',', '=']) {
        let last = lines.last_mut().expect("there is always one");
        if !last.is_empty() && last.chars().count() + piece.trim_end().chars().count() > most {
            lines.push(piece.to_owned());
        } else {
            last.push_str(piece);
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// Row and x of every legend entry; nothing for a single series without a name.
fn legend_places(series: &[Series]) -> Vec<(usize, f64)> {
    if series.len() == 1 && series[0].label.is_empty() {
        return Vec::new();
    }
    let (mut row, mut x) = (0, LEFT);
    let place = |s: &Series| {
        let width = 36.0 + LETTER * s.label.chars().count() as f64 + 16.0;
        if x > LEFT && x + width > WIDTH - RIGHT {
            (row, x) = (row + 1, LEFT);
        }
        let at = (row, x);
        x += width;
        at
    };
    series.iter().map(place).collect()
}

fn draw_legend(svg: &mut String, chart: &Chart, places: &[(usize, f64)], top: f64) {
    for ((number, series), (row, x)) in chart.series.iter().enumerate().zip(places) {
        let y = top + ROW * *row as f64;
        if chart.shape == Shape::Lines {
            let _ = writeln!(svg, "<path d=\"M{x:.1} {:.1}h28\" {}/>", y + 7.0, line_style(number));
            svg.push_str(&marker(number, (x + 14.0, y + 7.0), "", ""));
        } else {
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"26\" height=\"14\" fill=\"{}\" stroke=\"currentColor\" \
                 stroke-width=\".8\"/>",
                fill(&chart.id, number)
            );
        }
        text(svg, (x + 34.0, y + 12.0), "", &series.label);
    }
}

/// An error bar, with a rim in the colour of the page (which the page may set): it must be seen on light and on
/// dark bars.
fn whisker(svg: &mut String, middle: f64, (low, high): (f64, f64), cap: f64) {
    let (from, to) = (middle - cap, middle + cap);
    let path =
        format!("M{from:.1} {high:.1}H{to:.1}M{middle:.1} {high:.1}V{low:.1}M{from:.1} {low:.1}H{to:.1}");
    let _ = writeln!(
        svg,
        "<path class=\"rim\" d=\"{path}\" stroke=\"#fff\" stroke-width=\"3\" stroke-opacity=\".8\" fill=\"none\"/>\
         <path d=\"{path}\" stroke=\"currentColor\" stroke-width=\"1.2\" fill=\"none\"/>"
    );
}

fn tip(series: &Series, group: &str, value: &Spread) -> String {
    let name = if series.label.is_empty() { String::new() } else { format!("{}, ", series.label) };
    escape(&format!("{name}{group}: {}", spoken(value)))
}

fn bars(svg: &mut String, chart: &Chart, axis: &Axis, group: f64) {
    let width = (group * 0.84 / chart.series.len().max(1) as f64).min(70.0);
    let numbers = chart.groups.len() * chart.series.len() <= MOST_NUMBERS;
    // What is divided stands on 1, above or below.
    let base = if chart.shape == Shape::Ratio { axis.y(1.0) } else { axis.base() };
    for (at, label) in chart.groups.iter().enumerate() {
        let left = LEFT + group * (at as f64 + 0.5) - width * chart.series.len() as f64 / 2.0;
        for (index, series) in chart.series.iter().enumerate() {
            let (x, middle) = (left + width * index as f64, left + width * (index as f64 + 0.5));
            let Some(value) = series.values.get(at).copied().flatten() else {
                text(svg, (middle, base - 5.0), " text-anchor=\"middle\" class=\"missing\"", "×");
                continue;
            };
            let y = axis.y(value.median);
            let _ = writeln!(
                svg,
                "<rect class=\"mark\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\" \
                 stroke=\"currentColor\" stroke-width=\".8\"><title>{}</title></rect>",
                x + 0.8,
                y.min(base),
                width - 1.6,
                (base - y).abs().max(0.5),
                fill(&chart.id, index),
                tip(series, label, &value)
            );
            if value.runs > 1 {
                whisker(svg, middle, (axis.y(value.min), axis.y(value.max)), (width * 0.25).min(5.0));
            }
            if numbers {
                let above = axis.y(if value.runs > 1 { value.max } else { value.median }) - 5.0;
                text(svg, (middle, above), " text-anchor=\"middle\" font-size=\"12\"", &number(value.median));
            }
        }
    }
}

fn lines(svg: &mut String, chart: &Chart, axis: &Axis, group: f64) {
    for (index, series) in chart.series.iter().enumerate() {
        // Side by side, so that error bars of equal values do not cover each other.
        let shift = (index as f64 - (chart.series.len() as f64 - 1.0) / 2.0) * 3.0;
        let x = |at: usize| LEFT + group * (at as f64 + 0.5) + shift;
        let (mut path, mut open) = (String::new(), false);
        for (at, value) in series.values.iter().enumerate() {
            // A gap where nothing was measured.
            let Some(value) = value else {
                open = false;
                continue;
            };
            let _ = write!(path, "{}{:.1} {:.1}", if open { "L" } else { "M" }, x(at), axis.y(value.median));
            open = true;
        }
        if !path.is_empty() {
            let _ = writeln!(svg, "<path d=\"{path}\" {}/>", line_style(index));
        }
        for (at, label) in chart.groups.iter().enumerate() {
            let Some(value) = series.values.get(at).copied().flatten() else {
                text(svg, (x(at), axis.base() - 5.0), " text-anchor=\"middle\" class=\"missing\"", "×");
                continue;
            };
            if value.runs > 1 {
                whisker(svg, x(at), (axis.y(value.min), axis.y(value.max)), 3.5);
            }
            let tip = tip(series, label, &value);
            svg.push_str(&marker(index, (x(at), axis.y(value.median)), " class=\"mark\"", &tip));
        }
    }
}
