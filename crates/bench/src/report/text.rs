//! The compact table of a report.

use std::fmt::Write as _;

use super::{Ends, Report};

pub fn table(report: &Report) -> String {
    let mut out = String::new();
    let line = |out: &mut String, key: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(out, "  {key:<16}{value}"); // writing to a String cannot fail
        }
    };
    let size = match (report.request_bytes, report.response_bytes) {
        (Some(request), Some(response)) => format!("request {request} response {response}"),
        _ => format!("message {}", report.message_bytes),
    };
    let _ = writeln!(
        out,
        "{} to {}: {size} bytes, {} session{}, {:.2} s after {:.1} s warm-up",
        report.test,
        report.to,
        report.sessions,
        if report.sessions == 1 { "" } else { "s" },
        report.seconds,
        report.warmup_seconds,
    );
    if let Some(bps) = report.throughput_bps {
        let sent =
            report.sender_throughput_bps.map(|bps| format!("; sender saw {}", bits(bps))).unwrap_or_default();
        line(&mut out, "throughput", format!("{} ({} bytes{sent})", bits(bps), report.bytes));
    }
    if let (Some(rate), Some(count)) = (report.transactions_per_second, report.transactions) {
        line(&mut out, "transactions", format!("{rate:.1}/s ({count})"));
    }
    if let Some(rtt) = &report.rtt_us {
        let times = format!(
            "min {:.1}  p50 {:.1}  p90 {:.1}  p99 {:.1}  p99.9 {:.1}  max {:.1}",
            rtt.min, rtt.p50, rtt.p90, rtt.p99, rtt.p999, rtt.max
        );
        line(&mut out, "round trip us", times);
    }
    if report.sessions > 1 && report.throughput_bps.is_some() {
        let each: Vec<String> =
            report.per_session.iter().map(|session| bits(session.throughput_bps)).collect();
        line(&mut out, "each session", each.join(", "));
    }
    let size = |size: Option<u64>| size.map_or("-".to_owned(), |size| size.to_string());
    line(
        &mut out,
        "socket buffers",
        format!("send {}  receive {}", size(report.send_buffer), size(report.recv_buffer)),
    );
    line(&mut out, "CPUs busy", ends(report.cpu, "machine"));
    line(&mut out, "CPUs used", ends(report.cpu_process, "own threads"));
    line(&mut out, "service demand", ends(report.service_demand_us_per_kib, "us/KiB"));
    line(&mut out, "service demand", ends(report.service_demand_us_per_transaction, "us/transaction"));
    for note in &report.notes {
        line(&mut out, "note", note.clone());
    }
    out
}

fn ends(ends: Ends, unit: &str) -> String {
    if ends == Ends::default() {
        return String::new();
    }
    let one = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
    format!("local {}  remote {}  ({unit})", one(ends.local), one(ends.remote))
}

fn bits(bps: f64) -> String {
    match bps {
        bps if bps >= 1e9 => format!("{:.2} Gbit/s", bps / 1e9),
        bps if bps >= 1e6 => format!("{:.2} Mbit/s", bps / 1e6),
        bps => format!("{:.2} kbit/s", bps / 1e3),
    }
}
