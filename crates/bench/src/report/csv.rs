//! A report as one line of comma-separated values (RFC 4180), for spreadsheets. What a test does not have is
//! empty.

use super::Report;

type Column = (&'static str, fn(&Report) -> String);

fn text<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

const COLUMNS: [Column; 33] = [
    ("test", |r| r.test.clone()),
    ("transport", |r| r.transport.clone()),
    ("to", |r| r.to.clone()),
    ("message_bytes", |r| r.message_bytes.to_string()),
    ("response_bytes", |r| text(r.response_bytes)),
    ("send_buffer", |r| text(r.send_buffer)),
    ("recv_buffer", |r| text(r.recv_buffer)),
    ("sessions", |r| r.sessions.to_string()),
    ("in_flight", |r| text(r.in_flight)),
    ("seconds", |r| r.seconds.to_string()),
    ("bytes", |r| r.bytes.to_string()),
    ("throughput_bps", |r| text(r.throughput_bps)),
    ("transactions_per_second", |r| text(r.transactions_per_second)),
    ("rtt_min_us", |r| text(r.rtt_us.map(|rtt| rtt.min))),
    ("rtt_p50_us", |r| text(r.rtt_us.map(|rtt| rtt.p50))),
    ("rtt_p90_us", |r| text(r.rtt_us.map(|rtt| rtt.p90))),
    ("rtt_p99_us", |r| text(r.rtt_us.map(|rtt| rtt.p99))),
    ("rtt_p999_us", |r| text(r.rtt_us.map(|rtt| rtt.p999))),
    ("rtt_max_us", |r| text(r.rtt_us.map(|rtt| rtt.max))),
    ("cpu_local", |r| text(r.cpu.local)),
    ("cpu_remote", |r| text(r.cpu.remote)),
    ("cpu_process_local", |r| text(r.cpu_process.local)),
    ("cpu_process_remote", |r| text(r.cpu_process.remote)),
    ("service_demand_us_per_kib_local", |r| text(r.service_demand_us_per_kib.local)),
    ("service_demand_us_per_kib_remote", |r| text(r.service_demand_us_per_kib.remote)),
    ("service_demand_us_per_transaction_local", |r| text(r.service_demand_us_per_transaction.local)),
    ("service_demand_us_per_transaction_remote", |r| text(r.service_demand_us_per_transaction.remote)),
    ("datagrams_sent", |r| text(r.datagrams.map(|told| told.counts.sent))),
    ("datagrams_lost", |r| text(r.datagrams.map(|told| told.lost))),
    ("jitter_us", |r| text(r.datagrams.map(|told| told.counts.jitter_us))),
    ("retransmits_local", |r| text(r.tcp.local.map(|tcp| tcp.retransmits))),
    ("retransmits_remote", |r| text(r.tcp.remote.map(|tcp| tcp.retransmits))),
    ("runs", |r| text(r.confidence.as_ref().map(|told| told.values.len()))),
];

pub fn header() -> String {
    COLUMNS.map(|(name, _)| name).join(",")
}

pub fn row(report: &Report) -> String {
    COLUMNS.map(|(_, value)| quoted(value(report))).join(",")
}

fn quoted(field: String) -> String {
    if field.contains([',', '"', '\n', '\r']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_need_quotes_have_them() {
        assert_eq!(quoted("plain".into()), "plain");
        assert_eq!(quoted("a,\"b\"".into()), "\"a,\"\"b\"\"\"");
        assert_eq!(header().split(',').count(), COLUMNS.len());
    }
}
