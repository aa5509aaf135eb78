//! Evidence for tests of single checks.

use vmlane_bench::Report;
use vmlane_bench::report::TcpSummary;

use crate::evidence::{Evidence, PathEnd, Run, RunKind};
use crate::facts::{Counters, Facts, Feature, Interface, Interrupt, Path, Rings, Spread, Sysctls};

fn end(host: &str, local: &str, peer: &str) -> Facts {
    let on = Feature { on: true, changeable: true };
    let features = [
        "rx-checksum",
        "rx-gro",
        "rx-lro",
        "tx-checksum-ip-generic",
        "tx-generic-segmentation",
        "tx-scatter-gather",
        "tx-tcp-segmentation",
    ];
    let card = Interface {
        name: "eth0".to_owned(),
        driver: "vmxnet3".to_owned(),
        bus: "0000:00:04.0".to_owned(),
        mac: format!("52:54:00:00:00:0{}", &local[local.len() - 1..]),
        mtu: 1500,
        is_up: true,
        addresses: vec![local.parse().unwrap()],
        features: features.map(|name| (name.to_owned(), on)).into(),
        rings: Some(Rings { rx: 1024, rx_max: 4096, tx: 512, tx_max: 4096 }),
        queues: Some((2, 2)),
        spread: Some(Spread { entries: 32, queues: 2 }),
        coalescing: Some(crate::facts::Coalescing::default()),
        interrupts: (0..2_u32)
            .map(|at| Interrupt {
                number: 30 + at,
                name: format!("eth0-rxtx-{at}"),
                may: "0-1".to_owned(),
                goes: at.to_string(),
            })
            .collect(),
        ..Interface::default()
    };
    let mut facts = Facts {
        version: crate::facts::VERSION,
        interfaces: vec![card],
        path: Some(Path {
            interface: "eth0".to_owned(),
            local: local.parse().unwrap(),
            peer: peer.parse().unwrap(),
            on_link: true,
            mtu: Some(1500),
        }),
        sysctls: Sysctls(
            [
                ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
                ("net.ipv4.tcp_wmem", "4096 16384 4194304"),
                ("net.ipv4.tcp_window_scaling", "1"),
                ("net.ipv4.tcp_sack", "1"),
                ("net.ipv4.tcp_moderate_rcvbuf", "1"),
                ("net.ipv4.ip_forward", "0"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ),
        ..Facts::default()
    };
    facts.machine.host = host.to_owned();
    facts.machine.cpus = 2;
    facts.vsock.family = true;
    facts
}

pub fn report(json: &str) -> Report {
    let mut report = serde_json::json!({
        "version": 1, "test": "stream", "transport": "tcp", "to": "tcp:b", "message_bytes": 65536, "sessions": 1, "nodelay": false,
        "seconds": 1.0, "warmup_seconds": 0.1, "bytes": 0, "cpu": {}, "cpu_process": {}, "service_demand_us_per_kib": {},
        "service_demand_us_per_transaction": {}, "per_session": [], "notes": []
    });
    let more: serde_json::Value = serde_json::from_str(json).unwrap();
    report.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(report).unwrap()
}

pub fn run(kind: RunKind, from: PathEnd, json: &str) -> Run {
    Run { kind, from, report: report(json), near: Counters::default(), far: Counters::default() }
}

/// A gigabit a second.
pub fn stream(from: PathEnd, bps: f64, tcp: TcpSummary) -> Run {
    let mut run = run(RunKind::Stream, from, "{}");
    run.report.throughput_bps = Some(bps);
    run.report.bytes = (bps / 8.0) as u64;
    let ends = &mut run.report.tcp;
    *(if from == PathEnd::Near { &mut ends.local } else { &mut ends.remote }) = Some(tcp);
    run
}

pub fn round_trips(kind: RunKind, us: f64) -> Run {
    let json = format!(
        r#"{{"rtt_us":{{"min":{us},"p50":{us},"p90":{us},"p99":{us},"p999":{us},"max":{us}}},"transactions_per_second":1000.0}}"#
    );
    run(kind, PathEnd::Near, &json)
}

pub fn probe(from: PathEnd, bytes: u32, sent: u64, lost: u64) -> Run {
    let received = sent - lost;
    let json = format!(
        r#"{{"datagrams":{{"sent":{sent},"refused":0,"received":{received},"reordered":0,"duplicated":0,"jitter_us":1.0,"lost":{lost},"lost_percent":0.0}}}}"#
    );
    run(RunKind::Probe { bytes }, from, &json)
}

/// Two machines with vmxnet3 cards, one switch apart.
pub fn healthy() -> Evidence {
    let tcp = TcpSummary {
        mss: 1448,
        rtt_us: 400.0,
        cwnd_bytes: 1 << 20,
        busy_us: 1_000_000,
        ..TcpSummary::default()
    };
    let mut runs = vec![round_trips(RunKind::RoundTrips, 200.0)];
    for from in PathEnd::BOTH {
        runs.push(stream(from, 1e9, tcp));
        runs.push(probe(from, 1500, 100, 0));
    }
    Evidence {
        to: "tcp:10.77.0.2:12900".to_owned(),
        near: end("a", "10.77.0.1", "10.77.0.2"),
        far: Some(end("b", "10.77.0.2", "10.77.0.1")),
        runs,
        loopback_near: Some(4e9),
        loopback_far: Some(4e9),
        ..Evidence::default()
    }
}

/// Writes a file below `root`, with the directories above it.
pub fn write(root: &std::path::Path, path: &str, text: &str) {
    let mut at = root.to_owned();
    let (directories, name) = path.rsplit_once('/').unwrap();
    for part in directories.split('/') {
        at.push(part);
        if !at.exists() {
            std::fs::create_dir(&at).unwrap();
        }
    }
    std::fs::write(at.join(name), text).unwrap();
}

/// The interface of the near end.
pub fn card(evidence: &mut Evidence) -> &mut Interface {
    &mut evidence.near.interfaces[0]
}

pub fn far(evidence: &mut Evidence) -> &mut Facts {
    evidence.far.as_mut().unwrap()
}
