//! The tables of a report: numbers, round trips, notices, failures.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::experiment::Row;
use crate::experiment::summary::{Key, OURS, Spread, Summary};
use crate::experiment::table::{number, size};
use crate::figure::escape;

/// A cell: the median, and below it the range when there is one.
fn cell(spread: Option<Spread>, scale: f64) -> String {
    let Some(spread) = spread else { return "<td>failed</td>".into() };
    let n = |value: f64| number(value / scale);
    if spread.runs < 2 {
        return format!("<td>{}</td>", n(spread.median));
    }
    format!("<td>{}<small>{}–{}</small></td>", n(spread.median), n(spread.min), n(spread.max))
}

pub fn buffer(bytes: Option<u64>) -> String {
    bytes.map_or("default".into(), |bytes| size(bytes).replace('k', " KiB").replace('M', " MiB"))
}

/// `one session`, `five sessions`, `16 sessions`.
pub fn sessions(count: u32) -> String {
    match count {
        1 => "one session".into(),
        2..=9 => {
            let words = ["two", "three", "four", "five", "six", "seven", "eight", "nine"];
            format!("{} sessions", words[count as usize - 2])
        }
        _ => format!("{count} sessions"),
    }
}

/// Throughput of every combination with `count` sessions.
pub fn throughput(summary: &Summary, count: u32) -> String {
    let others: Vec<&str> = summary.others().collect();
    let mut html =
        format!("<div class=\"scroll\"><table><caption>Mbit/s with {}</caption><thead><tr>", sessions(count));
    html += "<th>buffers</th><th>message</th><th>VMCI</th>";
    for other in &others {
        let _ = write!(html, "<th>TCP, {}</th><th>VMCI / TCP</th>", escape(other));
    }
    html += "</tr></thead><tbody>\n";
    let mut before = None;
    for key in summary.keys("stream").filter(|key| key.sessions == count) {
        let first = before.replace(key.send_buffer) != Some(key.send_buffer);
        let class = if first { " class=\"first\"" } else { "" };
        let shown = if first { buffer(key.send_buffer) } else { String::new() };
        let _ = write!(html, "<tr{class}><td>{shown}</td><td>{}</td>", size(key.message_bytes));
        html += &cell(summary.get(key, OURS), 1e6);
        for other in &others {
            html += &cell(summary.get(key, other), 1e6);
            html += &ratio(summary.ratio(key, other));
        }
        html += "</tr>\n";
    }
    html + "</tbody></table></div>\n"
}

fn ratio(ratio: Option<f64>) -> String {
    format!("<td class=\"ratio\">{}</td>", ratio.map_or("–".into(), number))
}

/// Rates and times of round trips; times are the medians over the runs.
pub fn round_trips(rows: &[Row], summary: &Summary) -> String {
    let mut html = String::from(
        "<div class=\"scroll\"><table><thead><tr><th class=\"text\">transport</th><th>round trips / s</th>\
         <th>VMCI / TCP</th><th>median µs</th><th>90 % below</th><th>99 % below</th></tr></thead><tbody>\n",
    );
    for key in summary.keys("rr") {
        for device in std::iter::once(OURS).chain(summary.others()) {
            let times: Vec<_> = rows
                .iter()
                .filter(|row| row.device == device && Key::of(row) == *key && row.failed.is_none())
                .filter_map(|row| row.rtt_us)
                .collect();
            let middle = |values: Vec<f64>| Spread::of(values).map_or("–".into(), |s| number(s.median));
            let _ = write!(html, "<tr><td class=\"text\">{}</td>", escape(&transport(device)));
            html += &cell(summary.get(key, device), 1.0);
            html += &if device == OURS { "<td></td>".into() } else { ratio(summary.ratio(key, device)) };
            for values in [
                times.iter().map(|t| t.p50).collect(),
                times.iter().map(|t| t.p90).collect(),
                times.iter().map(|t| t.p99).collect(),
            ] {
                let _ = write!(html, "<td>{}</td>", middle(values));
            }
            html += "</tr>\n";
        }
    }
    html + "</tbody></table></div>\n"
}

/// What people call a device's way.
pub fn transport(device: &str) -> String {
    if device == OURS { "VMCI sockets".into() } else { format!("TCP, {device}") }
}

/// The counters of the columns: whose, and which.
const COUNTERS: [(&str, &str, &str); 6] = [
    ("a", "wrote_sent", "a says “wrote”"),
    ("b", "wrote_received", "b is told “wrote”"),
    ("b", "read_sent", "b says “read”"),
    ("a", "read_received", "a is told “read”"),
    ("a", "interrupts", "interrupts to a"),
    ("b", "interrupts", "interrupts to b"),
];

/// Notices and interrupts per MiB of VMCI streams, over all runs of a combination; empty without any.
pub fn notices(rows: &[Row]) -> String {
    let mut sums: BTreeMap<Key, (f64, [f64; 6])> = BTreeMap::new();
    let of = |row: &Row, vm: &str, name: &str| {
        row.counters.get(vm).and_then(|counters| counters.get(name)).copied().unwrap_or(0) as f64
    };
    for row in rows.iter().filter(|row| row.device == OURS && row.test == "stream" && row.failed.is_none()) {
        let (mib, counts) = sums.entry(Key::of(row)).or_default();
        *mib += of(row, "a", "stream_bytes_sent") / f64::from(1 << 20);
        for (count, (vm, name, _)) in counts.iter_mut().zip(COUNTERS) {
            *count += of(row, vm, name);
        }
    }
    sums.retain(|_, (mib, _)| *mib > 0.0);
    if sums.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<div class=\"scroll\"><table><thead><tr><th>sessions</th><th>buffers</th><th>message</th>",
    );
    for (.., title) in COUNTERS {
        let _ = write!(html, "<th>{title}</th>");
    }
    html += "<th>MiB moved</th></tr></thead><tbody>\n";
    let mut before = None;
    for (key, (mib, counts)) in &sums {
        let first = before.replace((key.sessions, key.send_buffer)) != Some((key.sessions, key.send_buffer));
        let (class, buffer) =
            if first { (" class=\"first\"", buffer(key.send_buffer)) } else { ("", String::new()) };
        let sessions = if first { key.sessions.to_string() } else { String::new() };
        let message = size(key.message_bytes);
        let _ = write!(html, "<tr{class}><td>{sessions}</td><td>{buffer}</td><td>{message}</td>");
        for count in counts {
            let _ = write!(html, "<td>{}</td>", number(count / mib));
        }
        let _ = writeln!(html, "<td>{mib:.0}</td></tr>");
    }
    html + "</tbody></table></div>\n"
}

/// The runs that failed, with the reason; empty when none did.
pub fn failures(rows: &[Row]) -> String {
    let mut html = String::new();
    for row in rows {
        let Some(why) = &row.failed else { continue };
        let _ = writeln!(
            html,
            "<li>{}, {} of {} bytes, buffers {}, {}, run {}: {}</li>",
            escape(&transport(&row.device)),
            escape(&row.test),
            row.message_bytes,
            buffer(row.send_buffer),
            sessions(row.sessions),
            row.run,
            escape(why)
        );
    }
    if html.is_empty() { html } else { format!("<ul>\n{html}</ul>\n") }
}
