//! The compact table of a report.

use std::fmt::Write as _;

use super::{Ends, Loss, Report, TcpSummary};
use crate::cpu::Machine;

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
    if let (Some(to), Some(from)) = (report.to_server_bps, report.from_server_bps) {
        line(&mut out, "each way", format!("to the server {}, from it {}", bits(to), bits(from)));
    }
    if let Some(loss) = &report.datagrams {
        line(&mut out, "datagrams", datagrams(loss));
    }
    if let Some(rate) = report.packets_per_second {
        line(&mut out, "packets", format!("{rate:.0}/s arrived"));
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
    line(&mut out, "  in parts", parts(report.machine.local, report.machine.remote));
    line(&mut out, "CPUs used", ends(report.cpu_process, "own threads"));
    line(&mut out, "service demand", ends(report.service_demand_us_per_kib, "us/KiB"));
    line(&mut out, "service demand", ends(report.service_demand_us_per_transaction, "us/transaction"));
    line(&mut out, "TCP", tcp(report.tcp.local, report.tcp.remote));
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

fn datagrams(loss: &Loss) -> String {
    let counts = &loss.counts;
    let mut text = format!(
        "sent {}  received {}  lost {} ({:.2} %)",
        counts.sent, counts.received, loss.lost, loss.lost_percent
    );
    let more =
        [("out of order", counts.reordered), ("twice", counts.duplicated), ("refused", counts.refused)];
    for (what, count) in more.into_iter().filter(|(_, count)| *count > 0) {
        let _ = write!(text, "  {what} {count}");
    }
    if counts.jitter_us > 0.0 {
        let _ = write!(text, "  jitter {:.1} us", counts.jitter_us);
    }
    text
}

fn parts(local: Option<Machine>, remote: Option<Machine>) -> String {
    let one = |machine: Option<Machine>| {
        machine.map_or("-".to_owned(), |machine| {
            format!("user {:.2} system {:.2} stolen {:.2}", machine.user, machine.system, machine.steal)
        })
    };
    if local.is_none() && remote.is_none() {
        return String::new();
    }
    format!("local {};  remote {}", one(local), one(remote))
}

fn tcp(local: Option<TcpSummary>, remote: Option<TcpSummary>) -> String {
    let one = |which: &str, tcp: Option<TcpSummary>| {
        tcp.map(|tcp| {
            format!(
                "{which} retransmits {} cwnd {} MSS {} rtt {:.0} us",
                tcp.retransmits, tcp.cwnd_bytes, tcp.mss, tcp.rtt_us
            )
        })
    };
    let lines: Vec<String> = [one("local", local), one("remote", remote)].into_iter().flatten().collect();
    lines.join(";  ")
}

/// A line of an interval, as it is printed while the test runs.
pub fn interval(progress: &crate::progress::Progress) -> String {
    let warm = if progress.to <= 0.0 { "  (warm-up)" } else { "" };
    let rate = if progress.transactions > 0 {
        format!("{:10.1} transactions/s", progress.transactions_per_second)
    } else {
        format!("{:>16}  {:12} bytes", bits(progress.throughput_bps), progress.bytes)
    };
    format!("{:8.2} to {:6.2} s  {rate}{warm}", progress.from, progress.to)
}

fn bits(bps: f64) -> String {
    match bps {
        bps if bps >= 1e9 => format!("{:.2} Gbit/s", bps / 1e9),
        bps if bps >= 1e6 => format!("{:.2} Mbit/s", bps / 1e6),
        bps => format!("{:.2} kbit/s", bps / 1e3),
    }
}
