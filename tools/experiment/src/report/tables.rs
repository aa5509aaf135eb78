//! The tables of a report: numbers, notices, failures, what is missing.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::figure::escape;
use crate::plan::Plan;
use crate::rows::Row;
use crate::summary::Spread;
use crate::units::{bytes, number, size, unit};
use crate::words::{tick, title};

/// A cell of a table: HTML, and whether it is text, which stands to the left.
pub type Cell = (bool, String);

pub fn text(of: &str) -> Cell {
    (true, escape(of))
}

pub fn plain(html: impl Into<String>) -> Cell {
    (false, html.into())
}

/// A table of a report; `class` is an attribute of it, or nothing.
pub fn table(class: &str, heads: &[Cell], rows: &[Vec<Cell>]) -> String {
    let line = |kind: &str, cells: &[Cell]| {
        let cell = |(is_text, html): &Cell| {
            format!("<{kind}{}>{html}</{kind}>", if *is_text { " class=\"text\"" } else { "" })
        };
        format!("<tr>{}</tr>", cells.iter().map(cell).collect::<String>())
    };
    let body: String = rows.iter().map(|row| line("td", row) + "\n").collect();
    let head = line("th", heads);
    format!(
        "<div class=\"scroll\"><table{class}><thead>{head}</thead><tbody>\n{body}</tbody></table></div>\n"
    )
}

/// A cell with the median, and below it the range when there is one.
pub fn spread_cell(spread: Option<Spread>, scale: f64) -> Cell {
    let Some(spread) = spread else { return plain("–") };
    let n = |value: f64| number(value / scale);
    let range = match spread.runs {
        0 | 1 => String::new(),
        _ => format!("<small>{}–{}</small>", n(spread.min), n(spread.max)),
    };
    plain(n(spread.median) + &range)
}

/// The factors that differ between rows. A device's name carries its profile: where that alone differs, it
/// stands once.
pub fn varying<'n>(rows: &[Row], named: &[&'n str]) -> Vec<&'n str> {
    let first = |name: &str| rows.first().map(|row| row.factor(name));
    let mut factors: Vec<&str> = named.to_vec();
    factors.retain(|name| rows.iter().any(|row| Some(row.factor(name)) != first(name)));
    let base = |row: &Row| row.device.split(':').next().map(str::to_owned);
    if factors.contains(&"profile") && rows.iter().all(|row| base(row) == base(&rows[0])) {
        factors.retain(|name| *name != "device");
    }
    factors
}

/// Every combination: the factors that differ, and what was measured.
pub fn numbers(rows: &[Row], plan: Option<&Plan>) -> String {
    let named: Vec<&str> =
        plan.map_or(vec!["device", "test", "message", "buffer", "sessions"], |plan| plan.named.clone());
    let factors = varying(rows, &named);
    let mut ids: Vec<&str> = Vec::new();
    for row in rows {
        if !ids.contains(&row.id.as_str()) {
            ids.push(&row.id);
        }
    }
    let order: Vec<String> =
        plan.iter().flat_map(|plan| &plan.combinations).map(|factors| factors.id()).collect();
    ids.sort_by_key(|id| order.iter().position(|other| other == id).unwrap_or(usize::MAX));
    let mut heads: Vec<Cell> = factors.iter().map(|name| text(title(name))).collect();
    heads.extend([plain("result"), text("unit")]);
    heads.extend(["runs", "median µs", "99 % µs", "CPU s", "skew ms"].map(plain));
    let line = |id: &str| {
        let of: Vec<&Row> = rows.iter().filter(|row| row.id == id).collect();
        let row = of.first()?;
        let (name, scale) = unit(&row.test);
        let good = || of.iter().filter(|row| row.failed.is_none());
        let spread = |value: fn(&Row) -> Option<f64>| Spread::of(good().filter_map(|row| value(row)));
        let mut cells: Vec<Cell> =
            factors.iter().map(|factor| text(&tick(factor, &row.factor(factor)))).collect();
        cells.extend([spread_cell(spread(Row::value), scale), text(name), plain(good().count().to_string())]);
        for value in [
            (|row| row.rtt_us.map(|times| times.p50)) as fn(&Row) -> Option<f64>,
            |row| row.rtt_us.map(|times| times.p99),
            |row| row.host_cpu_seconds,
            |row| row.skew_ms.filter(|_| row.guests > 2),
        ] {
            cells.push(plain(spread(value).map_or("–".into(), |spread| number(spread.median))));
        }
        Some(cells)
    };
    let lines: Vec<Vec<Cell>> = ids.into_iter().filter_map(line).collect();
    format!(
        "<p>Medians, with the least and the most of the runs below them.</p>\n{}<p><small>CPU s: seconds of the daemon and all \
         VMs' processes during a run, start and warm-up included.</small></p>\n",
        table("", &heads, &lines)
    )
}

fn bytes_of(count: u64) -> String {
    bytes(&size(count))
}

fn buffer(bytes: Option<u64>) -> String {
    bytes.map_or("default".into(), bytes_of)
}

/// The counters of the columns: whose, and which.
const COUNTERS: [(&str, &str, &str); 6] = [
    ("a", "wrote_sent", "a sends “wrote”"),
    ("b", "wrote_received", "b gets “wrote”"),
    ("b", "read_sent", "b sends “read”"),
    ("a", "read_received", "a gets “read”"),
    ("a", "interrupts", "interrupts to a"),
    ("b", "interrupts", "interrupts to b"),
];

/// Notices and interrupts per MiB of VMCI streams, over all runs of a combination; empty without any.
pub fn notices(rows: &[Row]) -> String {
    /// Sessions, socket buffer, message bytes.
    type Combination = (u32, Option<u64>, u64);
    let mut sums: BTreeMap<Combination, (f64, [f64; COUNTERS.len()])> = BTreeMap::new();
    let of = |row: &Row, vm: &str, name: &str| {
        row.counters.get(vm).and_then(|counters| counters.get(name)).copied().unwrap_or(0) as f64
    };
    for row in rows.iter().filter(|row| row.device == "vmci" && row.test == "stream" && row.failed.is_none())
    {
        let (mib, counts) = sums.entry((row.sessions, row.send_buffer, row.message_bytes)).or_default();
        *mib += of(row, "a", "stream_bytes_sent") / f64::from(1 << 20);
        for (count, (vm, name, _)) in counts.iter_mut().zip(COUNTERS) {
            *count += of(row, vm, name);
        }
    }
    sums.retain(|_, (mib, _)| *mib > 0.0);
    if sums.is_empty() {
        return String::new();
    }
    let heads = ["sessions", "buffers", "message"].into_iter().chain(COUNTERS.map(|(.., title)| title));
    let heads: Vec<Cell> = heads.chain(["MiB moved"]).map(plain).collect();
    let line =
        |((sessions, bytes, message), (mib, counts)): (&Combination, &(f64, [f64; COUNTERS.len()]))| {
            let mut cells = vec![sessions.to_string(), buffer(*bytes), bytes_of(*message)];
            cells.extend(counts.iter().map(|count| number(count / mib)));
            cells.push(format!("{mib:.0}"));
            cells.into_iter().map(plain).collect()
        };
    table("", &heads, &sums.iter().map(line).collect::<Vec<_>>())
}

/// The runs that failed, with the reason and the log; empty when none did.
pub fn failures(rows: &[Row]) -> String {
    let mut html = String::new();
    for row in rows {
        let Some(why) = &row.failed else { continue };
        let _ = write!(html, "<li>{}, run {}: {}", escape(&row.id), row.run, escape(why));
        if let Some(log) = &row.log {
            let _ = write!(
                html,
                "<details><summary>the end of its log</summary><pre>{}</pre></details>",
                escape(log)
            );
        }
        html += "</li>\n";
    }
    if html.is_empty() { html } else { format!("<ul>\n{html}</ul>\n") }
}

/// Combinations without all of their rows.
pub fn missing(list: &[(String, u32, u32)]) -> String {
    let mut html =
        String::from("<p>The plan has these runs, and the results have no rows for them.</p>\n<ul>\n");
    for (id, lacks, runs) in list {
        let _ = writeln!(html, "<li>{}: {lacks} of {runs} runs</li>", escape(id));
    }
    html + "</ul>\n"
}
