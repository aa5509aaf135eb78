//! The contract's keys and the arithmetic behind them.

use super::*;

fn tally(bytes: u64, seconds: f64) -> Tally {
    Tally { bytes, transactions: 0, seconds, cpu_seconds: seconds / 2.0 }
}

fn local(tallies: &[Tally]) -> Local {
    let sessions = tallies.iter().map(|&tally| Session { tally, round_trips: None }).collect();
    Local { sessions, machine_cpus: Some(1.5), sizes: BufferSizes { send: 111, recv: 222 } }
}

fn remote(tallies: &[Tally]) -> Outcome {
    Outcome {
        tallies: tallies.to_vec(),
        machine_cpus: Some(0.5),
        send_buffer: Some(333),
        recv_buffer: Some(444),
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
fn a_buffer_smaller_than_asked_is_told() {
    let spec = Spec { local_buffer: Some(1000), remote_buffer: Some(300), ..Spec::new(Test::Stream) };
    let told = notes(&spec, BufferSizes { send: 111, recv: 2000 }, &remote(&[]));
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("local send buffer: asked for 1000, the kernel gave 111"), "{told:?}");
}
