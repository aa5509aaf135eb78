//! A sweep as one page that needs nothing else: what was measured, where, figures, tables.
//!
//! Drawn from the raw rows alone, so the same rows always give the same bytes, and an old result can be
//! drawn again. The figures are arranged as figures 1 (one session) and 3 (five sessions) of VMware's
//! paper "VMCI Socket Performance" (2009) are, because that is what readers will hold beside them.

mod tables;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::experiment::rows::{self, Row, Setup};
use crate::experiment::summary::{Key, OURS, Spread, Summary};
use crate::experiment::table::{number, size};
use crate::figure::{self, Grouped, Lying, Series, Side, escape};

/// The file of a result directory.
pub const FILE: &str = "report.html";

/// Draws `DIR/report.html` from `DIR/results.jsonl` and returns its path.
pub fn draw(dir: &Path) -> Result<PathBuf> {
    let rows = rows::read(dir)?;
    if rows.is_empty() {
        bail!("{} has no rows; measure first, for example with vmlane demo", dir.join(rows::FILE).display());
    }
    let path = dir.join(FILE);
    std::fs::write(&path, html(&rows)).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// The whole page.
pub fn html(rows: &[Row]) -> String {
    let summary = Summary::of(rows);
    let title = "VMCI sockets against TCP, between two VMs on one host";
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n",
        include_str!("report/style.css")
    );
    page += &lead(rows, &summary);
    page += &facts(rows);
    page += &how_to_read(rows);
    let mut counts: Vec<u32> = summary.keys("stream").map(|key| key.sessions).collect();
    counts.dedup();
    for (number, count) in (1..).zip(&counts) {
        page += &throughput(&summary, number, *count);
    }
    if !counts.is_empty() {
        page += "<h2>The numbers</h2>\n<p>Medians, with the least and the most of the runs below them.</p>\n";
        for count in &counts {
            page += &tables::throughput(&summary, *count);
        }
    }
    if summary.keys("rr").next().is_some() {
        page += &round_trips(rows, &summary, counts.len() + 1);
    }
    page += &notices(rows);
    let failures = tables::failures(rows);
    if !failures.is_empty() {
        let _ = write!(page, "<h2>Runs that failed</h2>\n{failures}");
    }
    let _ = write!(
        page,
        "<h2>Raw rows</h2>\n<p>Everything here was drawn from the {} rows of <code>{}</code>, a line of JSON for \
         each run, in the order in which they were made. <code>vmlane lab draw DIR</code> draws it \
         again.</p>\n</body>\n</html>\n",
        rows.len(),
        rows::FILE
    );
    page
}

/// The result in a sentence for each baseline.
fn lead(rows: &[Row], summary: &Summary) -> String {
    let mut html = String::from("<p class=\"lead\">");
    for other in summary.others() {
        let Some((low, high)) = summary.ratios("stream", other) else { continue };
        let (low, high, other) = (number(low), number(high), escape(other));
        let _ = write!(html, "VMCI sockets moved {low} to {high} times the bytes of TCP over {other}. ");
    }
    let round_trips: Vec<String> = summary
        .others()
        .filter_map(|other| Some((other, summary.ratios("rr", other)?.0)))
        .map(|(other, ratio)| format!("{} times as many as TCP over {}", number(ratio), escape(other)))
        .collect();
    if !round_trips.is_empty() {
        let _ = write!(html, "Round trips per second: {}. ", round_trips.join(", "));
    }
    let failed = rows.iter().filter(|row| row.failed.is_some()).count();
    if failed > 0 {
        let _ = write!(html, "{failed} of {} runs failed; they are listed below.", rows.len());
    }
    html.trim_end().to_owned() + "</p>\n"
}

/// Distinct values of the rows, in their order: a result file may be put together from several.
fn distinct(rows: &[Row], of: impl Fn(&Row) -> String) -> String {
    let mut values: Vec<String> = Vec::new();
    for row in rows {
        let value = of(row);
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values.join("; ")
}

fn facts(rows: &[Row]) -> String {
    let setup = |of: fn(&Setup) -> String| distinct(rows, |row| of(&row.setup));
    let facts = [
        ("Date", setup(|s| s.date.clone())),
        ("Processor", setup(|s| s.cpu_model.clone())),
        (
            "CPUs, memory",
            setup(|s| format!("{}, {:.1} GiB", s.cpus, s.memory_bytes as f64 / f64::from(1 << 30))),
        ),
        ("Host kernel", setup(|s| s.host_kernel.clone())),
        ("QEMU, accelerator", distinct(rows, |row| format!("{}, {}", row.setup.qemu, row.accelerator))),
        (
            "Guests",
            distinct(rows, |row| {
                let s = &row.setup;
                let (kernel, mib) = (&s.guest_kernel, s.guest_memory_mib);
                format!("{} with {} CPU and {mib} MiB each, kernel {kernel}", row.guests, s.guest_cpus)
            }),
        ),
        ("vmlane", setup(|s| format!("{}, commit {}", s.vmlane, s.commit.as_deref().unwrap_or("unknown")))),
        ("Measured with", distinct(rows, |row| row.tool.clone())),
        ("Pinned to CPUs", setup(|s| s.pinned.clone())),
        (
            "Runs",
            setup(|s| {
                let (runs, seconds, warmup) = (s.runs, s.seconds, s.warmup_seconds);
                format!("{runs} of each, {seconds} s after {warmup} s of warm-up ({} plan)", s.plan)
            }),
        ),
    ];
    let mut html = String::from("<dl>\n");
    for (name, value) in facts {
        let _ = writeln!(html, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    }
    html + "</dl>\n"
}

fn how_to_read(rows: &[Row]) -> String {
    let mut html = String::from(
        "<h2>How to read it</h2>\n<ul>\n\
         <li>Guest a sends as fast as it can, guest b counts what arrives. A <b>message</b> is what one send \
         hands over; <b>sessions</b> are connections at the same time, with a thread each.</li>\n\
         <li><b>Buffers</b> are the socket buffers asked for at both ends. For VMCI that is the size of the \
         ring in each direction; for TCP, Linux sets aside twice as much, half of it for its own needs.</li>\n\
         <li>A bar is the median of the runs, its whisker reaches from the least to the most. Plain blue is \
         VMCI, hatched orange TCP; lighter is the smaller buffer. A cross: every run failed.</li>\n\
         <li>The transports took turns within every combination, every second round backwards, in the same \
         two guests.</li>\n</ul>\n",
    );
    if rows.iter().any(|row| row.accelerator == "tcg") {
        html += "<p class=\"care\">The accelerator was tcg: guests' instructions were emulated. Work inside a \
                 guest costs many times what it costs on hardware virtualization, so neither the numbers nor the \
                 ratios say what KVM would show.</p>\n";
    }
    let busy: Vec<f64> = rows
        .iter()
        .filter(|row| row.wall_seconds > 0.0)
        .filter_map(|row| Some(row.host_other_cpu_seconds? / row.wall_seconds))
        .collect();
    let cpus = rows.first().map_or(1, |row| row.setup.cpus.max(1));
    if let Some(other) = Spread::of(busy).map(|s| s.median) {
        let class = if other > 0.1 * cpus as f64 { " class=\"care\"" } else { "" };
        let advice = if class.is_empty() { "" } else { " Numbers to quote need a quieter host." };
        let _ = writeln!(
            html,
            "<p{class}>While runs were made, programs that have no part in them used {other:.2} of the host's \
             {cpus} CPUs (median).{advice}</p>"
        );
    }
    html
}

/// One figure a number of sessions, one panel a baseline, all panels on one scale.
fn throughput(summary: &Summary, figure: usize, count: u32) -> String {
    let keys: Vec<&Key> = summary.keys("stream").filter(|key| key.sessions == count).collect();
    let mut sizes: Vec<u64> = keys.iter().map(|key| key.message_bytes).collect();
    sizes.sort();
    sizes.dedup();
    let mut buffers: Vec<Option<u64>> = keys.iter().map(|key| key.send_buffer).collect();
    buffers.dedup();
    let series = |device: &str, side, name: &str| -> Vec<Series> {
        let one = |(shade, buffer): (usize, &Option<u64>)| {
            let bar = |size: &u64| {
                let key = keys.iter().find(|k| k.send_buffer == *buffer && k.message_bytes == *size)?;
                let bps = summary.get(key, device)?;
                let mbit = |bps: f64| bps / 1e6;
                Some(Spread { median: mbit(bps.median), min: mbit(bps.min), max: mbit(bps.max), ..bps })
            };
            let label = format!("{name}, {}", tables::buffer(*buffer));
            Series { label, side, shade, bars: sizes.iter().map(bar).collect() }
        };
        buffers.iter().enumerate().map(one).collect()
    };
    let ours = series(OURS, Side::Ours, "VMCI");
    let panels: Vec<(&str, Vec<Series>)> = summary
        .others()
        .map(|other| (other, ours.iter().cloned().chain(series(other, Side::Theirs, "TCP")).collect()))
        .collect();
    let reach = figure::reach(panels.iter().flat_map(|(_, series)| series));
    let sessions = tables::sessions(count);
    let mut html = format!("<h2>Figure {figure}: {sessions}</h2>\n<figure>\n<div class=\"panels\">\n");
    for (panel, (other, series)) in panels.into_iter().enumerate() {
        html += &figure::grouped(&Grouped {
            id: format!("f{figure}p{panel}"),
            title: format!("VMCI and TCP over {other}, {sessions}"),
            x_title: "message size in bytes".into(),
            y_title: "Mbit/s".into(),
            groups: sizes.iter().map(|bytes| size(*bytes)).collect(),
            series,
            reach,
        });
    }
    let paper = match count {
        1 => " Arranged as figure 1 of “VMCI Socket Performance”.",
        5 => " Arranged as figure 3 of “VMCI Socket Performance”.",
        _ => "",
    };
    let _ = write!(
        html,
        "</div>\n<figcaption>Throughput from guest a to guest b by message size, with {sessions}. All panels of \
         this figure have one scale.{paper}</figcaption>\n</figure>\n"
    );
    html
}

fn round_trips(rows: &[Row], summary: &Summary, figure: usize) -> String {
    let Some(key) = summary.keys("rr").next() else { return String::new() };
    let bars: Vec<Lying> = std::iter::once(OURS)
        .chain(summary.others())
        .map(|device| Lying {
            label: tables::transport(device),
            side: if device == OURS { Side::Ours } else { Side::Theirs },
            bar: summary.get(key, device),
        })
        .collect();
    format!(
        "<h2>Figure {figure}: round trips</h2>\n<figure class=\"narrow\">\n{}<figcaption>Round trips per second of \
         {} byte each way, over one connection with the kernels' default buffers; the next begins when the one \
         before is back.</figcaption>\n</figure>\n{}",
        figure::lying("rr", "Round trips per second", "/s", &bars),
        key.message_bytes,
        tables::round_trips(rows, summary)
    )
}

fn notices(rows: &[Row]) -> String {
    let table = tables::notices(rows);
    if table.is_empty() {
        return String::new();
    }
    format!(
        "<h2>What VMCI needed beside the bytes</h2>\n<p>Notices and interrupts per MiB, counted by the daemon over \
         all runs of a combination, set-up included. Every notice costs an exit or an interrupt; a daemon that \
         stays awake needs few.</p>\n{table}"
    )
}
