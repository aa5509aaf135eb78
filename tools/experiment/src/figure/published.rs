//! What a paper measured, beside the marks: a dashed line where the scale reaches it, and always an entry
//! below the legend.

use std::fmt::Write;

use super::axis::Axis;
use super::chart::{Chart, LEFT, RIGHT, WIDTH, text};
use super::letters::{TEXT, wrap_sentence};
use super::slots::Slots;
use super::style::escape;

/// Between two lines of entries.
const ROW: f64 = 19.0;
/// A dash and the gap behind it.
const SAMPLE: f64 = 34.0;
/// The least width of a line over one mark.
const SHORTEST: f64 = 18.0;
/// A linear axis grows by no more than this for a published value, as a factor: its own marks must stay
/// readable.
const GROWTH: f64 = 2.5;

const INK: &str = "stroke=\"currentColor\" stroke-width=\"1.7\" stroke-dasharray=\"7 3\" fill=\"none\"";

/// One value of a paper.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// Before the value in its entry; values with one text share an entry.
    pub text: String,
    /// As it was published, with its unit.
    pub amount: String,
    pub unit: &'static str,
    /// In the unit of the chart.
    pub value: f64,
    /// Series and groups that it is of; none: of the whole chart.
    pub places: Option<Vec<(usize, usize)>>,
}

/// The scale that shows these values, too, where they are near enough to those measured here.
pub fn widened<'p>(
    (least, most): (f64, f64),
    log: bool,
    published: impl IntoIterator<Item = &'p Published>,
) -> (f64, f64) {
    // A logarithmic axis may grow by half its length.
    let growth = if log && least > 0.0 { (most / least).sqrt().max(GROWTH) } else { GROWTH };
    let near = |value: &f64| *value <= most * growth && (!log || *value >= least / growth);
    let values = published.into_iter().map(|published| published.value).filter(near);
    values.fold((least, most), |(least, most), value| (least.min(value), most.max(value)))
}

/// The lines of the entries below the legend, each with whether it begins an entry that has a line in the
/// picture.
pub fn entries(chart: &Chart) -> Vec<(String, bool)> {
    let axis = chart.axis((0.0, 1.0));
    let mut texts: Vec<&str> = Vec::new();
    for published in &chart.published {
        if !texts.contains(&published.text.as_str()) {
            texts.push(&published.text);
        }
    }
    texts.iter().flat_map(|text| entry(chart, &axis, text)).collect()
}

fn entry(chart: &Chart, axis: &Axis, text: &str) -> Vec<(String, bool)> {
    let of: Vec<&Published> = chart.published.iter().filter(|published| published.text == text).collect();
    let ways: Vec<&str> = of.iter().map(|published| way(axis, published)).collect();
    // What holds for all values stands once, behind the unit.
    let (each, all) = match &ways[..] {
        [first, rest @ ..] if rest.iter().all(|way| way == first) => (false, *first),
        _ => (true, ""),
    };
    let amount = |(published, way): (&&Published, &&str)| {
        format!("{}{}", published.amount, if each { way } else { "" })
    };
    let amounts: Vec<String> = of.iter().zip(&ways).map(amount).collect();
    let unit = of.first().map_or("", |published| published.unit);
    let whole = format!("{text} {} {unit}", amounts.join(", ")).trim_end().to_owned() + all;
    let is_drawn = ways.contains(&"");
    let lines = wrap_sentence(&whole, TEXT, WIDTH - RIGHT - LEFT - SAMPLE);
    lines.into_iter().enumerate().map(|(at, line)| (line, is_drawn && at == 0)).collect()
}

/// Where a value lies that the scale does not reach.
fn way(axis: &Axis, published: &Published) -> &'static str {
    match axis.shows(published.value) {
        true => "",
        // Heights count from the top.
        false if axis.y(published.value) < 0.5 => " (above this scale)",
        false => " (below this scale)",
    }
}

/// The height of all entries.
pub fn height(chart: &Chart) -> f64 {
    ROW * entries(chart).len() as f64
}

/// Draws the entries, the first at a height.
pub fn legend(svg: &mut String, chart: &Chart, top: f64) {
    for (row, (line, is_drawn)) in entries(chart).into_iter().enumerate() {
        let middle = top + ROW * row as f64 + 7.0;
        if is_drawn {
            let _ = writeln!(svg, "<path class=\"published-key\" d=\"M{LEFT} {middle:.1}h26\" {INK}/>");
        }
        text(svg, (LEFT + SAMPLE, middle + 4.7), " class=\"published\"", &line);
    }
}

/// Draws the lines of the values that the scale reaches.
pub fn draw(svg: &mut String, chart: &Chart, axis: &Axis, slots: &Slots) {
    for published in chart.published.iter().filter(|published| axis.shows(published.value)) {
        let y = axis.y(published.value);
        let all = || format!("M{LEFT} {y:.1}H{:.1}", WIDTH - RIGHT);
        let path = published.places.as_ref().map_or_else(all, |places| over_marks(slots, places, y));
        let tip = format!("{} {} {}", published.text, published.amount, published.unit);
        let _ = writeln!(
            svg,
            "<path class=\"published-line\" d=\"{path}\" {INK}><title>{}</title></path>",
            escape(tip.trim_end())
        );
    }
}

/// A line over each of some marks.
fn over_marks(slots: &Slots, places: &[(usize, usize)], y: f64) -> String {
    let wide = slots.width.max(SHORTEST);
    let line = |&(series, group): &(usize, usize)| {
        format!("M{:.1} {y:.1}h{wide:.1}", slots.x(series, group) - wide / 2.0)
    };
    places.iter().map(line).collect()
}
