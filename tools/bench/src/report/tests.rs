//! The contract's keys and the arithmetic behind them.

use super::*;

fn tally(bytes: u64, seconds: f64) -> Tally {
    Tally { bytes, transactions: 0, seconds, cpu_seconds: seconds / 2.0 }
}

fn local(tallies: &[Tally]) -> Local {
    let sessions = tallies.iter().map(|&tally| Session { tally, ..Session::default() }).collect();
    Local {
        sessions,
        machine: Some(Machine { user: 1.0, system: 0.5, steal: 7.0 }),
        tcp: None,
        sizes: BufferSizes { send: 111, recv: 222 },
        intervals: Vec::new(),
        started_at_ns: 1,
    }
}

fn remote(tallies: &[Tally]) -> Outcome {
    Outcome {
        tallies: tallies.to_vec(),
        machine: Some(Machine { user: 0.25, system: 0.25, steal: 0.0 }),
        send_buffer: Some(333),
        recv_buffer: Some(444),
        ..Outcome::default()
    }
}

fn report(test: Test, local: &Local, remote: &Outcome) -> Result<Report, Error> {
    let spec = Spec { sessions: local.sessions.len() as u32, ..Spec::new(test) };
    Report::new(&"vsock:4".parse().unwrap(), &spec, local, remote)
}

#[test]
fn every_key_of_the_contract_is_there() {
    let stream =
        report(Test::Stream, &local(&[tally(1 << 20, 2.0)]), &remote(&[tally(1 << 20, 2.0)])).unwrap();
    let json = serde_json::to_value(&stream).unwrap();
    for key in [
        "version",
        "test",
        "transport",
        "message_bytes",
        "send_buffer",
        "recv_buffer",
        "sessions",
        "seconds",
        "bytes",
        "throughput_bps",
        "transactions_per_second",
        "rtt_us",
        "cpu",
        "service_demand_us_per_kib",
    ] {
        assert!(json.get(key).is_some(), "{key}");
    }
    assert_eq!(
        (&json["version"], &json["test"], &json["transport"]),
        (&1.into(), &"stream".into(), &"vsock".into())
    );
    assert!(json["rtt_us"].is_null() && json["transactions_per_second"].is_null());
    assert_eq!(json["cpu"], serde_json::json!({"local": 1.5, "remote": 0.5}));
}

#[test]
fn a_stream_is_counted_where_it_arrives() {
    let (here, there) = ([tally(4096, 1.0), tally(4096, 1.0)], [tally(1024, 1.0), tally(3072, 2.0)]);
    let stream = report(Test::Stream, &local(&here), &remote(&there)).unwrap();
    assert_eq!((stream.bytes, stream.seconds, stream.throughput_bps), (4096, 2.0, Some(16384.0)));
    assert_eq!((stream.send_buffer, stream.recv_buffer), (Some(111), Some(444)));
    // 1.5 CPUs for 2 s over 4 KiB, in microseconds.
    assert_eq!(stream.service_demand_us_per_kib.local, Some(1.5 * 2.0 * 1e6 / 4.0));

    let maerts = report(Test::Maerts, &local(&here), &remote(&there)).unwrap();
    assert_eq!((maerts.bytes, maerts.seconds), (8192, 1.0));
    assert_eq!((maerts.send_buffer, maerts.recv_buffer), (Some(333), Some(222)));
}

#[test]
fn transactions_have_a_rate_and_round_trips() {
    let mut here = local(&[Tally { bytes: 200, transactions: 100, seconds: 2.0, cpu_seconds: 0.1 }]);
    let mut times = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
    (1..=1000).for_each(|us| times.record(us * 1000).unwrap());
    here.sessions[0].round_trips = Some(times);
    let rr = report(Test::Rr, &here, &remote(&[tally(200, 2.0)])).unwrap();
    assert_eq!((rr.transactions_per_second, rr.throughput_bps), (Some(50.0), None));
    let rtt = rr.rtt_us.unwrap();
    assert!(
        (499.0..502.0).contains(&rtt.p50) && (989.0..992.0).contains(&rtt.p99) && rtt.max >= 1000.0,
        "{rtt:?}"
    );
    assert_eq!(rr.service_demand_us_per_transaction.local, Some(1.5 * 2.0 * 1e6 / 100.0));
    assert!(rr.text().contains("transactions"));
}

#[test]
fn an_empty_window_is_a_failure_not_a_zero() {
    let error = report(Test::Stream, &local(&[tally(1, 1.0)]), &remote(&[Tally::default()])).unwrap_err();
    assert!(error.to_string().contains("longer -l"), "{error}");
    assert!(report(Test::Stream, &local(&[tally(1, 1.0)]), &remote(&[])).is_err());
}

#[test]
fn a_buffer_smaller_than_requested_is_reported() {
    let spec = Spec { local_buffer: Some(1000), remote_buffer: Some(150), ..Spec::new(Test::Stream) };
    let sizes = BufferSizes { send: 500, recv: 2000 };
    // What is read back is twice what was granted.
    let notes_of = notes(&spec, "tcp", sizes, &remote(&[]));
    assert_eq!(
        notes_of,
        ["local send buffer: asked for 1000, the kernel gave 250: sysctl net.core.wmem_max cuts it"]
    );
    let notes_of = notes(&spec, "vsock", sizes, &remote(&[]));
    assert_eq!(
        notes_of,
        ["local send buffer: asked for 1000, the kernel gave 500: the other end allows no more"]
    );
}

#[test]
fn both_ways_add_up() {
    let both = report(Test::Bidir, &local(&[tally(4096, 1.0)]), &remote(&[tally(1024, 2.0)])).unwrap();
    assert_eq!((both.bytes, both.seconds, both.throughput_bps), (5120, 2.0, Some(20480.0)));
    assert_eq!((both.to_server_bps, both.from_server_bps), (Some(4096.0), Some(32768.0)));
    assert!(both.text().contains("to the server 4.10 kbit/s, from it 32.77 kbit/s"), "{}", both.text());
}

#[test]
fn lost_datagrams_are_reported() {
    let mut here = local(&[tally(1000, 1.0)]);
    here.sessions[0].datagrams = Some(Datagrams { sent: 10, refused: 1, ..Datagrams::default() });
    let mut there = remote(&[tally(800, 1.0)]);
    there.datagrams =
        vec![Datagrams { received: 8, reordered: 2, duplicated: 1, jitter_us: 12.0, ..Datagrams::default() }];
    let udp = report(Test::Stream, &here, &there).unwrap();
    let loss = udp.datagrams.unwrap();
    assert_eq!((loss.lost, loss.lost_percent, loss.counts.reordered), (2, 20.0, 2));
    let json = serde_json::to_value(&udp).unwrap();
    assert_eq!((&json["datagrams"]["sent"], &json["datagrams"]["lost"]), (&10.into(), &2.into()));
    assert!(udp.text().contains("lost 2 (20.00 %)  out of order 2  twice 1  refused 1"), "{}", udp.text());
}

#[test]
fn the_page_about_the_json_names_every_key() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/bench-json.md"))
            .unwrap();
    let notes_of =
        |key: &str| assert!(page.contains(&format!("`{key}`")), "docs/guide/bench-json.md lacks `{key}`");
    let tally = tally(1 << 20, 2.0);
    let mut report = report(Test::Stream, &local(&[tally]), &remote(&[tally])).unwrap();
    report.rtt_us = Some(RoundTrips { min: 1.0, p50: 1.0, p90: 1.0, p99: 1.0, p999: 1.0, max: 1.0 });
    report.datagrams = Some(Loss { counts: Datagrams::default(), lost: 0, lost_percent: 0.0 });
    let json = serde_json::to_value(&report).unwrap();
    for (key, value) in json.as_object().unwrap() {
        notes_of(key);
        // What TCP reports depends on the kernel, and is named in part.
        let inner = if value.is_array() { &value[0] } else { value };
        let ends =
            ["cpu", "cpu_process", "machine", "tcp"].contains(&key.as_str()) || key.starts_with("service");
        inner.as_object().into_iter().flatten().filter(|_| !ends).for_each(|(key, _)| notes_of(key));
    }
    json["machine"]["local"].as_object().unwrap().keys().for_each(|key| notes_of(key));
}
