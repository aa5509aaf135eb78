//! Draws the chart of README: bars of rows of the experiments, as its source names them.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;

use super::picture::{escaped, width};
use super::rows::{by_run, matching, median};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Chart {
    title: String,
    #[serde(rename = "panel")]
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Panel {
    title: String,
    rows: String,
    of: toml::Table,
    #[serde(rename = "bar")]
    bars: Vec<Bar>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bar {
    device: String,
    label: String,
    ours: bool,
}

/// What a bar shows: Gbit/s, and how the rows were made.
struct Measured {
    least: f64,
    median: f64,
    greatest: f64,
    made: [String; 2],
}

const WIDTH: i32 = 640;
const MARGIN: i32 = 16;
const LABELS: i32 = 250;
const BARS: f64 = 290.0;
const LINE: i32 = 30;
const TEXT: i32 = 19;
const TITLE: i32 = 22;
const SMALL: i32 = 16;

impl Panel {
    fn measured(&self, bar: &Bar) -> Measured {
        let mut of = self.of.clone();
        of.insert("device".into(), bar.device.clone().into());
        let rows = matching(&self.rows, &of);
        let values: Vec<f64> = by_run(&rows, "throughput_bps").into_values().map(|bps| bps / 1e9).collect();
        Measured {
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            greatest: values.iter().copied().fold(0.0, f64::max),
            made: made(&rows[0], values.len()),
            median: median(values),
        }
    }
}

/// How a row was made, in two lines.
fn made(row: &Value, runs: usize) -> [String; 2] {
    let setup = &row["setup"];
    let kib = |key: &str| row[key].as_u64().map_or_else(String::new, |bytes| format!("{} KiB", bytes >> 10));
    let date = setup["date"].as_str().and_then(|date| date.get(..10)).expect("a date");
    let seconds = setup["seconds"].as_f64().expect("seconds");
    [
        format!("messages of {}, buffers of {}, one session", kib("message_bytes"), kib("send_buffer")),
        format!(
            "medians of {runs} runs of {seconds} s; lines: least to greatest; {} processors, {date}",
            setup["cpus"]
        ),
    ]
}

fn text(svg: &mut String, class: &str, [x, y]: [i32; 2], words: &str) {
    let _ = writeln!(svg, r#"<text class="{class}" x="{x}" y="{y}">{}</text>"#, escaped(words));
}

/// A bar with its label, its value, and a line from the least run to the greatest.
fn draw(svg: &mut String, down: i32, bar: &Bar, measured: &Measured, scale: f64) {
    let left = MARGIN + LABELS;
    let at = |value: f64| (f64::from(left) + value * scale).round() as i32;
    assert!(width(&bar.label, TEXT) < LABELS, "{:?} is too long", bar.label);
    text(svg, "label", [left - 10, down + 20], &bar.label);
    let (class, wide) = (if bar.ours { "ours" } else { "other" }, at(measured.median) - left);
    let _ = writeln!(svg, r#"<rect class="{class}" x="{left}" y="{down}" width="{wide}" height="24"/>"#);
    let (from, to, middle) = (at(measured.least), at(measured.greatest), down + 12);
    let _ = writeln!(svg, r#"<path class="line" d="M{from} {middle}H{to}"/>"#);
    let beside = to.max(at(measured.median)) + 8;
    text(svg, "value", [beside, down + 20], &format!("{:.1}", measured.median));
}

/// The SVG of a chart. All panels have one scale.
pub fn svg(source: &str) -> String {
    let chart: Chart = toml::from_str(source).expect("the chart's source");
    let panels: Vec<(&Panel, Vec<Measured>)> =
        chart.panels.iter().map(|panel| (panel, panel.bars.iter().map(|bar| panel.measured(bar)).collect())).collect();
    let most = panels.iter().flat_map(|(_, bars)| bars).map(|bar| bar.greatest).fold(0.0, f64::max);
    let mut body = String::new();
    let mut down = 36;
    text(&mut body, "title", [MARGIN, down], &chart.title);
    for (panel, bars) in &panels {
        down += 38;
        text(&mut body, "panel", [MARGIN, down], &panel.title);
        down += 12;
        for (bar, measured) in panel.bars.iter().zip(bars) {
            draw(&mut body, down, bar, measured, BARS / most);
            down += LINE;
        }
    }
    let all: Vec<&Measured> = panels.iter().flat_map(|(_, bars)| bars).collect();
    assert!(all.iter().all(|bar| bar.made == all[0].made), "all bars were made alike");
    down += 12;
    for line in &all[0].made {
        down += SMALL + 4;
        assert!(width(line, SMALL) < WIDTH, "{line:?} is too long");
        text(&mut body, "small", [MARGIN, down], line);
    }
    head(&chart.title, down + 20) + &body + "</svg>\n"
}

fn head(title: &str, height: i32) -> String {
    let title = escaped(title);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{title}">
<!-- Made from docs/chart.toml and rows of experiments/ by `make picture`. -->
<style>
text {{ font-family: "Helvetica Neue", Arial, "Liberation Sans", "DejaVu Sans", sans-serif; fill: #111827 }}
.title {{ font-size: {TITLE}px; font-weight: 600 }}
.panel {{ font-size: {TEXT}px; font-weight: 600 }}
.label {{ font-size: {TEXT}px; text-anchor: end }}
.value {{ font-size: {TEXT}px }}
.small {{ font-size: {SMALL}px }}
.card {{ fill: #ffffff; stroke: #d1d5db }}
.ours {{ fill: #2563eb }}
.other {{ fill: #9ca3af }}
.line {{ stroke: #111827; stroke-width: 2 }}
@media screen and (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3 }}
.card {{ fill: #0d1117; stroke: #30363d }}
.ours {{ fill: #3b82f6 }}
.other {{ fill: #6b7280 }}
.line {{ stroke: #e6edf3 }}
}}
</style>
<rect class="card" x="0.5" y="0.5" width="{}" height="{}" rx="10"/>
"##,
        WIDTH - 1,
        height - 1
    )
}
