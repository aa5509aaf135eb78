//! What is measured to see whether a change helps.

use serde::Serialize;

use crate::change::{Change, RingSide};
use crate::evidence::{Evidence, PathEnd};
use crate::text::{rate, time};

/// Connections at once where the work shall spread over queues.
const SEVERAL: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gauge {
    /// Bits per second from this end.
    Throughput { from: PathEnd, connections: u32 },
    /// Microseconds in the median.
    RoundTrips,
    /// Of the datagrams of the sender's MTU, the share that arrives.
    Datagrams { from: PathEnd },
    /// Bits per second that this machine sends while it forwards for others, whatever those are about.
    Forwarded,
}

impl Gauge {
    pub fn is_better_when_larger(self) -> bool {
        !matches!(self, Gauge::RoundTrips)
    }

    pub fn name(self, evidence: &Evidence) -> String {
        match self {
            Gauge::Throughput { from, connections: 1 } => format!("throughput {}", evidence.way(from)),
            Gauge::Throughput { from, connections } => {
                format!("throughput of {connections} connections {}", evidence.way(from))
            }
            Gauge::RoundTrips => "round trips".to_owned(),
            Gauge::Forwarded => "what this machine forwards for others".to_owned(),
            Gauge::Datagrams { from } => format!("datagrams of the MTU that arrive {}", evidence.way(from)),
        }
    }

    pub fn shown(self, value: f64) -> String {
        match self {
            Gauge::Throughput { .. } | Gauge::Forwarded => rate(value),
            Gauge::RoundTrips => time(value),
            Gauge::Datagrams { .. } => format!("{:.0} %", value * 100.0),
        }
    }
}

/// The gauges that these changes may move, each once.
pub fn all_of(changes: &[Change]) -> Vec<Gauge> {
    let mut all: Vec<Gauge> = Vec::new();
    for gauge in changes.iter().flat_map(of) {
        if !all.contains(&gauge) {
            all.push(gauge);
        }
    }
    all
}

fn of(change: &Change) -> Vec<Gauge> {
    let sends = Gauge::Throughput { from: PathEnd::Near, connections: 1 };
    let receives = Gauge::Throughput { from: PathEnd::Far, connections: 1 };
    match change {
        Change::Mtu { .. } => {
            vec![
                Gauge::Datagrams { from: PathEnd::Near },
                Gauge::Datagrams { from: PathEnd::Far },
                sends,
                receives,
            ]
        }
        // Only who forwards is asked to switch it off.
        Change::Features { features, .. } if features.get("lro") == Some(&false) => vec![Gauge::Forwarded],
        Change::Features { features, .. } => {
            let receiving =
                |name: &String| matches!(name.as_str(), "rx" | "gro" | "lro") || name.starts_with("rx-");
            let mut gauges = Vec::new();
            gauges.extend(features.keys().any(|name| !receiving(name)).then_some(sends));
            gauges.extend(features.keys().any(receiving).then_some(receives));
            gauges
        }
        Change::Ring { ring: RingSide::Tx, .. } => vec![sends],
        Change::Ring { ring: RingSide::Rx, .. } => vec![receives],
        Change::Queues { .. } | Change::Spread { .. } | Change::Affinity { .. } => {
            vec![Gauge::Throughput { from: PathEnd::Far, connections: SEVERAL }]
        }
        Change::Moderation { .. } => vec![Gauge::RoundTrips],
        Change::Sysctl { name, .. } => match name.as_str() {
            "net.ipv4.tcp_rmem" | "net.core.rmem_max" | "net.ipv4.tcp_moderate_rcvbuf" => vec![receives],
            "net.ipv4.tcp_wmem" | "net.core.wmem_max" | "net.ipv4.tcp_mtu_probing" => vec![sends],
            _ => vec![sends, receives],
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_measured_where_it_acts() {
        let eth0 = || "eth0".to_owned();
        let one = |from| Gauge::Throughput { from, connections: 1 };
        assert_eq!(of(&Change::feature("eth0", "tso", true)), [one(PathEnd::Near)]);
        assert_eq!(of(&Change::feature("eth0", "rx-gro-hw", true)), [one(PathEnd::Far)]);
        assert_eq!(of(&Change::feature("eth0", "lro", false)), [Gauge::Forwarded]);
        assert_eq!(of(&Change::feature("eth0", "lro", true)), [one(PathEnd::Far)]);
        assert_eq!(of(&Change::Moderation { interface: eth0(), rx_us: 50 }), [Gauge::RoundTrips]);
        let scaling =
            Change::Sysctl { name: "net.ipv4.tcp_window_scaling".to_owned(), value: "1".to_owned() };
        assert_eq!(of(&scaling), [one(PathEnd::Near), one(PathEnd::Far)]);
        let both = [Change::feature("eth0", "tso", true), Change::feature("eth0", "gso", true)];
        assert_eq!(all_of(&both), [one(PathEnd::Near)]);
        let mtu = of(&Change::Mtu { interface: eth0(), mtu: 9000 });
        assert!(mtu.contains(&Gauge::Datagrams { from: PathEnd::Far }), "{mtu:?}");
    }
}
