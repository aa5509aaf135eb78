//! What stands in the picture for numbers: bars from zero, dots with intervals, lines.

use std::fmt::Write;

use super::axis::Axis;
use super::chart::{Chart, Point, Series, Shape, Value, text};
use super::letters::{SMALL, TEXT, width};
use super::slots::Slots;
use super::style::escape;
use crate::units::number;

fn tip(chart: &Chart, series: &Series, group: &str, point: &Point) -> String {
    let name = if series.label.is_empty() { String::new() } else { format!("{}, ", series.label) };
    let spread = point.spread;
    let range = match spread.runs {
        1 => String::new(),
        runs => format!(" ({runs} runs, {} to {})", number(spread.min), number(spread.max)),
    };
    escape(&format!("{name}{group}: {} {}{range}", number(spread.median), chart.unit))
}

/// An interval, with a rim in the colour of the page (which the page may set): it must be seen on bars and
/// lines.
fn interval(svg: &mut String, style: &str, middle: f64, (low, high): (f64, f64), cap: f64) {
    let (from, to) = (middle - cap, middle + cap);
    let path =
        format!("M{from:.1} {high:.1}H{to:.1}M{middle:.1} {high:.1}V{low:.1}M{from:.1} {low:.1}H{to:.1}");
    let _ = writeln!(
        svg,
        "<path class=\"rim\" d=\"{path}\" stroke=\"#fff\" stroke-width=\"4.4\" stroke-opacity=\".9\" fill=\"none\"/>\
         <path d=\"{path}\" {style}/>"
    );
}

/// A word where there is no number: why there is none.
fn missing(svg: &mut String, (x, base): (f64, f64), room: f64, why: &str) {
    let y = base - 5.0;
    if width(why, SMALL) <= room {
        text(svg, (x, y), " text-anchor=\"middle\" font-size=\"11.5\" class=\"missing\"", why);
    } else {
        let turned =
            format!(" transform=\"rotate(-90 {:.1} {y:.1})\" font-size=\"11.5\" class=\"missing\"", x + 4.0);
        text(svg, (x + 4.0, y), &turned, why);
    }
}

/// All whiskers lie on all bars and lines, and the marks on top: none is hidden.
pub fn draw(svg: &mut String, chart: &Chart, axis: &Axis, slots: &Slots) {
    if chart.shape == Shape::Lines {
        for (index, series) in chart.series.iter().enumerate() {
            line(svg, series, index, axis, slots);
        }
    }
    let bars = chart.has_bars(axis);
    let room = if slots.series == 1 { slots.group } else { slots.width } - 2.0;
    let mut points = Vec::new();
    for (index, series) in chart.series.iter().enumerate() {
        for (at, value) in series.values.iter().enumerate().take(chart.groups.len()) {
            match value {
                Value::Point(point) => points.push((index, at, point)),
                Value::Missing(why) => {
                    missing(svg, (slots.x(index, at), axis.base()), room.max(TEXT), why);
                }
            }
        }
    }
    let style = |index: usize, at: usize| chart.series[index].style_at(at);
    let tip =
        |index: usize, at: usize, point: &Point| tip(chart, &chart.series[index], &chart.groups[at], point);
    for (index, at, point) in points.iter().copied().filter(|_| bars) {
        let y = axis.y(point.spread.median);
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" {}><title>{}</title></rect>",
            slots.x(index, at) - slots.width / 2.0 + 0.8,
            slots.width - 1.6,
            (axis.base() - y).max(0.5),
            style(index, at).bar(&chart.id),
            tip(index, at, point)
        );
    }
    for (index, at, point) in points.iter().copied().filter(|(_, _, point)| point.spread.runs > 1) {
        let range = (axis.y(point.spread.min), axis.y(point.spread.max));
        let ink = "stroke=\"currentColor\" stroke-width=\"1.2\" fill=\"none\"";
        let stroke = if bars { ink.to_owned() } else { style(index, at).interval() };
        interval(svg, &stroke, slots.x(index, at), range, slots.cap());
    }
    for (index, at, point) in points.into_iter().filter(|_| !bars) {
        let place = (slots.x(index, at), axis.y(point.spread.median));
        svg.push_str(&style(index, at).marker(place, "mark ", &tip(index, at, point)));
    }
}

fn line(svg: &mut String, series: &Series, index: usize, axis: &Axis, slots: &Slots) {
    let (mut path, mut open) = (String::new(), false);
    for (at, value) in series.values.iter().enumerate() {
        // A gap where nothing was measured.
        let Some(point) = value.point() else {
            open = false;
            continue;
        };
        let to = if open { "L" } else { "M" };
        let _ = write!(path, "{to}{:.1} {:.1}", slots.x(index, at), axis.y(point.spread.median));
        open = true;
    }
    if !path.is_empty() {
        let _ = writeln!(svg, "<path d=\"{path}\" {}/>", series.style.line());
    }
}
