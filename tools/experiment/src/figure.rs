//! Charts as SVG, written by hand: the same data always gives the same bytes, and nothing is loaded.
//!
//! Ink is `currentColor`, so that a chart follows the page into dark mode and is black on paper. A device has
//! one colour in every chart; markers, patterns and dashes show the same without colours. Bars stand on zero;
//! a logarithmic axis has dots. Each picture's foot states where and how its numbers were measured.

mod axis;
mod chart;
mod legend;
mod letters;
mod marks;
mod published;
mod slots;
mod style;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use axis::Axis;
pub(crate) use chart::text;
pub use chart::{Chart, Point, Series, Shape, Value, WIDTH, reach};
use chart::{LEFT, PLOT, RIGHT};
use letters::{FAMILY, FOOT, GIVEN, TEXT, TITLE, wrap, wrap_bold, wrap_sentence};
pub use published::{Published, widened};
use slots::Slots;
pub use style::{NO_DEVICE, Style, dark, escape, hue};

/// Between the lines of what all marks have in common.
const GIVEN_ROW: f64 = 16.0;

/// What the pictures side by side have in common: their parts begin at the same heights.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Above the plot, and below it.
    head: f64,
    below: f64,
    label_rows: usize,
    foot_rows: usize,
    pub height: f64,
}

impl Frame {
    /// For charts that stand side by side, each with a plot of `PLOT` at least.
    pub fn of(charts: &[Chart]) -> Frame {
        let most = |of: &dyn Fn(&Chart) -> usize| charts.iter().map(of).max().unwrap_or(0);
        let titles = most(&|chart| title(chart).len());
        let legend = most(&legend::rows);
        let label_rows = most(&|chart| labels(chart).iter().map(Vec::len).max().unwrap_or(1));
        let foot_rows = most(&|chart| foot(chart).len());
        let given = most(&|chart| given(chart).len());
        let published = charts.iter().map(published::height).fold(0.0, f64::max);
        let legend = legend::ROW * legend as f64 + published;
        let head = 24.0 * titles as f64 + GIVEN_ROW * given as f64 + legend + 58.0;
        let below = 17.0 * label_rows as f64 + 30.0 + 14.0 * foot_rows as f64 + 12.0;
        Frame { head, below, label_rows, foot_rows, height: head + PLOT + below }
    }

    /// The same with the height that all pictures of a page have.
    pub fn with_height(self, height: f64) -> Frame {
        Frame { height: height.max(self.height), ..self }
    }
}

fn title(chart: &Chart) -> Vec<String> {
    wrap_bold(&chart.title, TITLE, WIDTH - 8.0)
}

/// What everything in the chart has in common.
fn given(chart: &Chart) -> Vec<String> {
    if chart.given.is_empty() { Vec::new() } else { wrap_sentence(&chart.given, GIVEN, WIDTH - 8.0) }
}

fn foot(chart: &Chart) -> Vec<String> {
    wrap_sentence(&chart.foot.join(" "), FOOT, WIDTH - 8.0)
}

/// What stands below each group.
fn labels(chart: &Chart) -> Vec<Vec<String>> {
    let group = (WIDTH - RIGHT - LEFT) / chart.groups.len().max(1) as f64;
    // Values of several factors have a line each.
    let lines = |label: &String| {
        label.split_inclusive(", ").flat_map(|part| wrap(part.trim_end(), TEXT, group - 6.0)).collect()
    };
    chart.groups.iter().map(lines).collect()
}

/// The chart as an SVG element.
pub fn svg(chart: &Chart, frame: &Frame) -> String {
    let (top, bottom) = (frame.head, frame.height - frame.below);
    let end = WIDTH - RIGHT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{}\" \
         font-family=\"{FAMILY}\" font-size=\"{TEXT}\" fill=\"currentColor\">\n",
        frame.height,
        escape(&chart.title)
    );
    let axis = chart.axis((top, bottom));
    head(&mut svg, chart, chart.has_bars(&axis));
    let logarithmic = if axis.is_linear() { "" } else { ", logarithmic scale" };
    text(&mut svg, (4.0, top - 26.0), " class=\"y-title\"", &format!("{}{logarithmic}", chart.y_title));
    grid(&mut svg, chart, &axis, end);
    let slots = Slots::new(chart, LEFT, end);
    for (at, lines) in labels(chart).iter().enumerate() {
        let middle = LEFT + slots.group * (at as f64 + 0.5);
        for (row, line) in lines.iter().enumerate() {
            text(&mut svg, (middle, bottom + 19.0 + 16.0 * row as f64), " text-anchor=\"middle\"", line);
        }
    }
    let under = bottom + 17.0 * frame.label_rows as f64 + 21.0;
    let attributes = " text-anchor=\"middle\" class=\"x-title\"";
    text(&mut svg, ((LEFT + end) / 2.0, under), attributes, &chart.x_title);
    marks::draw(&mut svg, chart, &axis, &slots);
    published::draw(&mut svg, chart, &axis, &slots);
    let first = frame.height - 14.0 * frame.foot_rows as f64;
    for (row, line) in foot(chart).iter().enumerate() {
        let attributes = " font-size=\"10.5\" fill-opacity=\".75\" class=\"foot\"";
        text(&mut svg, (4.0, first + 14.0 * row as f64 + 6.0), attributes, line);
    }
    svg + "</svg>\n"
}

/// The patterns of bars, the title, what all marks have in common, and the legend where it is above the
/// picture.
fn head(svg: &mut String, chart: &Chart, bars: bool) {
    if bars {
        svg.push_str("<defs>\n");
        let mut styles: Vec<Style> =
            chart.series.iter().flat_map(|s| s.styles.iter().chain([&s.style])).copied().collect();
        styles.sort_by_key(|style| (style.hue, style.variant));
        styles.dedup_by_key(|style| (style.hue, style.variant));
        styles.iter().for_each(|style| style.pattern(svg, &chart.id));
        svg.push_str("</defs>\n");
    }
    let titles = title(chart);
    for (row, title) in titles.iter().enumerate() {
        text(svg, (4.0, 19.0 + 22.0 * row as f64), " font-size=\"16\" font-weight=\"700\"", title);
    }
    let mut under = 24.0 * titles.len() as f64;
    for line in given(chart) {
        text(svg, (4.0, under + 13.0), " font-size=\"12\" fill-opacity=\".85\" class=\"given\"", &line);
        under += GIVEN_ROW;
    }
    legend::above(svg, chart, under + 10.0, bars);
    published::legend(svg, chart, under + 10.0 + legend::ROW * legend::rows(chart) as f64);
}

/// The lines of the ticks with their labels; of a ratio, the line at 1 is the strongest.
fn grid(svg: &mut String, chart: &Chart, axis: &Axis, end: f64) {
    for (value, label) in axis.ticks() {
        let y = axis.y(value);
        let one = chart.shape == Shape::Ratio && (value - 1.0).abs() < 1e-9;
        let (opacity, wide) = match () {
            () if one => ("1", "1.6"),
            () if y >= axis.base() - 0.5 && axis.is_linear() => ("1", "1"),
            () => (".2", "1"),
        };
        let _ = writeln!(
            svg,
            "<path class=\"{}\" d=\"M{LEFT} {y:.1}H{end:.1}\" stroke=\"currentColor\" stroke-opacity=\"{opacity}\" \
             stroke-width=\"{wide}\"/>",
            if one { "grid one" } else { "grid" }
        );
        text(svg, (LEFT - 7.0, y + 4.5), " text-anchor=\"end\" class=\"tick\"", &label);
    }
}
