//! Bars as SVG, written by hand: the same data always gives the same bytes, and nothing is loaded.
//!
//! Ink is `currentColor`, so that a figure follows the page into dark mode and is black on paper. The
//! two sides of a comparison differ in hue and, for grey printers, in hatching; the shades of a side
//! are its series.

#[cfg(test)]
mod tests;

use std::fmt::Write;

use crate::experiment::summary::Spread;

/// One colour family, light to dark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Ours,
    Theirs,
}

/// The bars of one legend entry.
#[derive(Clone, Debug)]
pub struct Series {
    pub label: String,
    pub side: Side,
    /// 0 is the lightest.
    pub shade: usize,
    /// One a group; none where every run failed.
    pub bars: Vec<Option<Spread>>,
}

/// Groups of bars along the x axis.
#[derive(Clone, Debug)]
pub struct Grouped {
    /// Unique in the page.
    pub id: String,
    pub title: String,
    pub x_title: String,
    pub y_title: String,
    pub groups: Vec<String>,
    pub series: Vec<Series>,
    /// What the y axis must reach, so that neighbours share a scale.
    pub reach: f64,
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 390.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 6.0;
const LEGEND_ROW: f64 = 23.0;

impl Side {
    fn colour(self, shade: usize) -> &'static str {
        let shades = match self {
            Side::Ours => ["#8fbbea", "#2b6cb0", "#123f75"],
            Side::Theirs => ["#f4cb9c", "#d0731f", "#86420a"],
        };
        shades[shade.min(shades.len() - 1)]
    }
}

impl Series {
    /// What fills its bars: plain, or the pattern that `patterns` defines.
    fn fill(&self, id: &str) -> String {
        match self.side {
            Side::Ours => self.side.colour(self.shade).to_owned(),
            Side::Theirs => format!("url(#{id}-{})", self.shade),
        }
    }
}

/// The greatest value that any bar's error bar reaches.
pub fn reach<'a>(series: impl IntoIterator<Item = &'a Series>) -> f64 {
    series.into_iter().flat_map(|s| s.bars.iter().flatten()).map(|bar| bar.max).fold(0.0, f64::max)
}

/// A distance between ticks that people count in, for at most seven of them.
fn tick(reach: f64) -> f64 {
    if reach <= 0.0 || !reach.is_finite() {
        return 1.0;
    }
    let rough = reach / 6.0;
    let power = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= rough * 0.999_999).unwrap_or(10.0 * power)
}

/// Ticks need decimals only where the distance has some.
fn tick_label(value: f64, step: f64) -> String {
    let decimals = if step >= 1.0 && step.fract() == 0.0 { 0 } else { 2 };
    format!("{value:.decimals$}")
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Three digits and the range: what a pointer over a bar, or a screen reader, gets.
fn spoken(bar: &Spread) -> String {
    let n = crate::experiment::table::number;
    match bar.runs {
        1 => n(bar.median),
        runs => format!("{} (median of {runs}; {} to {})", n(bar.median), n(bar.min), n(bar.max)),
    }
}

fn head(height: f64, label: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{}\" font-family=\"system-ui, 'Helvetica Neue', Arial, sans-serif\" font-size=\"14\" \
         fill=\"currentColor\">\n",
        escape(label)
    )
}

fn text(svg: &mut String, (x, y): (f64, f64), attributes: &str, content: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\"{attributes}>{}</text>", escape(content));
}

/// The hatched fills of the other side.
fn patterns(svg: &mut String, id: &str, series: &[Series]) {
    svg.push_str("<defs>\n");
    for s in series.iter().filter(|s| s.side == Side::Theirs) {
        let _ = writeln!(
            svg,
            "<pattern id=\"{id}-{0}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"{1}\"/>\
             <path d=\"M0 0V6\" stroke=\"#fff\" stroke-width=\"2.4\" stroke-opacity=\".55\"/></pattern>",
            s.shade,
            s.side.colour(s.shade)
        );
    }
    svg.push_str("</defs>\n");
}

/// Ours in the left column, theirs in the right; returns where it ends.
fn legend(svg: &mut String, figure: &Grouped, top: f64) -> f64 {
    let mut rows = [0, 0];
    for s in &figure.series {
        let column = usize::from(s.side == Side::Theirs);
        let (x, y) = (LEFT + column as f64 * 170.0, top + f64::from(rows[column]) * LEGEND_ROW);
        rows[column] += 1;
        let fill = s.fill(&figure.id);
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"22\" height=\"14\" fill=\"{fill}\" \
             stroke=\"currentColor\" stroke-width=\".6\"/>"
        );
        text(svg, (x + 29.0, y + 12.0), "", &s.label);
    }
    top + f64::from(rows[0].max(rows[1])) * LEGEND_ROW
}

/// Groups of bars with error bars from the least to the most.
pub fn grouped(figure: &Grouped) -> String {
    let mut svg = head(HEIGHT, &figure.title);
    patterns(&mut svg, &figure.id, &figure.series);
    text(&mut svg, (LEFT, 18.0), " font-size=\"16\" font-weight=\"600\"", &figure.title);
    let top = legend(&mut svg, figure, 32.0) + 20.0;
    let bottom = HEIGHT - 50.0;
    text(&mut svg, (LEFT - 8.0, top - 14.0), " text-anchor=\"end\"", &figure.y_title);

    let step = tick(figure.reach);
    let ticks = (figure.reach / step).ceil().max(1.0);
    let y_of = |value: f64| bottom - (bottom - top) * value / (ticks * step);
    for index in 0..=ticks as u32 {
        let (value, y) = (f64::from(index) * step, y_of(f64::from(index) * step));
        let opacity = if index == 0 { "1" } else { ".18" };
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y:.1}H{:.1}\" stroke=\"currentColor\" stroke-opacity=\"{opacity}\"/>",
            WIDTH - RIGHT
        );
        text(&mut svg, (LEFT - 8.0, y + 5.0), " text-anchor=\"end\"", &tick_label(value, step));
    }

    let group = (WIDTH - RIGHT - LEFT) / figure.groups.len().max(1) as f64;
    let bar = group * 0.84 / figure.series.len().max(1) as f64;
    for (at, label) in figure.groups.iter().enumerate() {
        let left = LEFT + group * at as f64;
        text(&mut svg, (left + group / 2.0, bottom + 19.0), " text-anchor=\"middle\"", label);
        for (number, series) in figure.series.iter().enumerate() {
            let x = left + group * 0.08 + bar * number as f64;
            let tip = format!("{}, {label}", series.label);
            column(&mut svg, (x, bar), series, &figure.id, &tip, series.bars[at].as_ref(), &y_of);
        }
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    text(&mut svg, (middle, HEIGHT - 8.0), " text-anchor=\"middle\"", &figure.x_title);
    svg + "</svg>\n"
}

/// An error bar, with a rim in the colour of the page (which the page may set): it must be seen on
/// light and on dark bars.
fn whisker(svg: &mut String, path: &str) {
    let _ = writeln!(
        svg,
        "<path class=\"rim\" d=\"{path}\" stroke=\"#fff\" stroke-width=\"3\" stroke-opacity=\".7\" fill=\"none\"/>\
         <path d=\"{path}\" stroke=\"currentColor\" stroke-width=\"1.2\" fill=\"none\"/>"
    );
}

/// One bar; a cross where there is none.
fn column(
    svg: &mut String,
    (x, width): (f64, f64),
    series: &Series,
    id: &str,
    tip: &str,
    bar: Option<&Spread>,
    y_of: &dyn Fn(f64) -> f64,
) {
    let (base, middle) = (y_of(0.0), x + width / 2.0);
    let Some(bar) = bar else {
        text(svg, (middle, base - 4.0), " text-anchor=\"middle\" font-size=\"12\"", "×");
        return;
    };
    let y = y_of(bar.median);
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\" stroke=\"currentColor\" \
         stroke-width=\".6\"><title>{}: {}</title></rect>",
        width - 1.0,
        base - y,
        series.fill(id),
        escape(tip),
        spoken(bar)
    );
    if bar.runs > 1 {
        let (low, high, cap) = (y_of(bar.min), y_of(bar.max), (width * 0.3).min(5.0));
        let (middle, from, to) = (middle - 0.5, middle - 0.5 - cap, middle - 0.5 + cap);
        let path =
            format!("M{from:.1} {high:.1}H{to:.1}M{middle:.1} {high:.1}V{low:.1}M{from:.1} {low:.1}H{to:.1}");
        whisker(svg, &path);
    }
}

/// A lying bar.
#[derive(Clone, Debug)]
pub struct Lying {
    pub label: String,
    pub side: Side,
    pub bar: Option<Spread>,
}

/// Lying bars with their numbers, for a handful of values in one unit.
pub fn lying(id: &str, title: &str, unit: &str, bars: &[Lying]) -> String {
    const ROW: f64 = 36.0;
    const LABELS: f64 = 190.0;
    const NUMBERS: f64 = 90.0;
    let series: Vec<Series> = bars
        .iter()
        .map(|b| Series { label: b.label.clone(), side: b.side, shade: 1, bars: vec![b.bar] })
        .collect();
    let reach = reach(&series).max(f64::MIN_POSITIVE);
    let mut svg = head(34.0 + ROW * bars.len() as f64, title);
    // One pattern serves all.
    patterns(&mut svg, id, series.iter().find(|s| s.side == Side::Theirs).map_or(&[], std::slice::from_ref));
    text(&mut svg, (0.0, 18.0), " font-size=\"16\" font-weight=\"600\"", title);
    for (at, series) in series.iter().enumerate() {
        let top = 34.0 + ROW * at as f64;
        text(&mut svg, (LABELS - 10.0, top + 17.0), " text-anchor=\"end\"", &series.label);
        let Some(bar) = series.bars[0] else {
            text(&mut svg, (LABELS, top + 17.0), "", "failed");
            continue;
        };
        let x_of = |value: f64| LABELS + (WIDTH - LABELS - NUMBERS) * value / reach;
        let _ = writeln!(
            svg,
            "<rect x=\"{LABELS}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"24\" fill=\"{}\" \
             stroke=\"currentColor\" stroke-width=\".6\"><title>{}: {}</title></rect>",
            x_of(bar.median) - LABELS,
            series.fill(id),
            escape(&series.label),
            spoken(&bar)
        );
        if bar.runs > 1 {
            let (low, high, y) = (x_of(bar.min), x_of(bar.max), top + 12.0);
            let end = y - 5.0;
            let path = format!("M{low:.1} {end:.1}v10M{low:.1} {y:.1}H{high:.1}M{high:.1} {end:.1}v10");
            whisker(&mut svg, &path);
        }
        let number = format!("{} {unit}", crate::experiment::table::number(bar.median));
        text(&mut svg, (x_of(bar.max) + 8.0, top + 17.0), "", &number);
    }
    svg + "</svg>\n"
}
