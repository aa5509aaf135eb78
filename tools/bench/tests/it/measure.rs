//! Whole measurements in one process, over TCP loopback and Unix sockets (and vsock where it loops back).

use std::time::Duration;

use vmlane_bench::IpVersion;
use vmlane_bench::server::ServerLimits;
use vmlane_bench::spec::Limits;
use vmlane_bench::{
    Address, Error, Hooks, Options, Progress, Report, Secret, Server, Spec, Target, Test, server::Running,
};
use vmlane_testkit::skipped;

fn run(to: &Address, spec: &Spec) -> Result<Report, Error> {
    measured(&to.clone().into(), spec, &Options::default(), whole)
}

/// The same server, by UDP.
fn by_udp(to: &Address) -> Target {
    Target { control: to.clone(), datagrams: true }
}

fn run_udp(to: &Address, spec: &Spec) -> Result<Report, Error> {
    measured(&by_udp(to), spec, &Options::default(), whole)
}

/// Runs a short test, and longer ones where the machine had no time for it: a server that does not serve
/// fails in all of them. The last one is still within the 5 s that one of the servers below takes.
fn measured(
    to: &Target,
    spec: &Spec,
    options: &Options,
    enough: impl Fn(&Report) -> bool,
) -> Result<Report, Error> {
    let mut spec = spec.clone();
    loop {
        let outcome = vmlane_bench::run(to, &spec, options, &mut Hooks::default());
        if !thin(&outcome, &enough) || spec.seconds > 3.0 {
            return outcome;
        }
        spec.seconds *= 4.0;
    }
}

/// Whether a session had no time for anything, or all of them for too little.
fn thin(outcome: &Result<Report, Error>, enough: impl Fn(&Report) -> bool) -> bool {
    match outcome {
        Ok(report) => !enough(report),
        Err(error) => matches!(error, Error::Data { doing: "measuring", .. }),
    }
}

/// Something moved every way it should.
fn whole(report: &Report) -> bool {
    let rates = [report.sender_throughput_bps, report.to_server_bps, report.from_server_bps];
    report.bytes > 0 && report.seconds > 0.1 && !rates.contains(&Some(0.0))
}

fn serve(address: &str) -> Running {
    Server::bind(&[address.parse().unwrap()]).unwrap().spawn().unwrap()
}

fn quick(test: Test) -> Spec {
    Spec { seconds: 0.2, warmup: 0.05, ..Spec::new(test) }
}

/// A server on TCP and one on a Unix path, with the address of each.
fn everywhere(check: impl Fn(&Address)) {
    let dir = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}/bench.sock", dir.path().display());
    for address in ["tcp:127.0.0.1:0", "tcp:[::1]:0", &unix] {
        match Server::bind(&[address.parse().unwrap()]) {
            Ok(server) => {
                let running = server.spawn().unwrap();
                check(&running.addresses()[0]);
            }
            Err(_) if address.contains("::1") => skipped("the host has no IPv6"),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "sockets left behind");
}

fn sane(report: &Report) {
    assert!(report.bytes > 0 && report.seconds > 0.1, "{report:?}");
    assert_eq!(report.per_session.len(), report.sessions as usize);
    assert_eq!(report.per_session.iter().map(|session| session.bytes).sum::<u64>(), report.bytes);
    assert!(report.cpu_process.local.unwrap() >= 0.0 && report.cpu_process.remote.is_some());
    assert!(report.send_buffer.unwrap() > 0 && report.recv_buffer.unwrap() > 0);
    assert!(!report.text().is_empty());
}

#[test]
fn streams_both_ways() {
    everywhere(|address| {
        for test in [Test::Stream, Test::Maerts, Test::Bidir] {
            let spec = Spec { sessions: 3, message_bytes: 5000, receive_bytes: 777, ..quick(test) };
            let report = run(address, &spec).unwrap();
            sane(&report);
            assert!(report.throughput_bps.unwrap() > 0.0);
            match test {
                Test::Bidir => {
                    assert!(report.to_server_bps.unwrap() > 0.0 && report.from_server_bps.unwrap() > 0.0);
                }
                _ => assert!(report.sender_throughput_bps.unwrap() > 0.0),
            }
            let is_tcp = matches!(address, Address::Tcp { .. });
            assert_eq!(report.tcp.local.is_some_and(|tcp| tcp.mss > 500), is_tcp, "{:?}", report.tcp);
            assert_eq!(report.tcp.remote.is_some(), is_tcp);
            assert!(report.rtt_us.is_none() && report.transactions.is_none());
        }
    });
}

#[test]
fn questions_and_answers() {
    everywhere(|address| {
        for test in [Test::Rr, Test::Crr] {
            let spec =
                Spec { sessions: 2, request_bytes: 100, response_bytes: 3000, nodelay: true, ..quick(test) };
            let report = run(address, &spec).unwrap();
            sane(&report);
            assert_eq!(report.bytes, report.transactions.unwrap() * 3100);
            let rtt = report.rtt_us.unwrap();
            assert!(
                rtt.min > 0.0 && rtt.min <= rtt.p50 && rtt.p50 <= rtt.p99 && rtt.p99 <= rtt.max,
                "{rtt:?}"
            );
            assert_eq!(report.message_bytes, 100);
        }
    });
}

#[test]
fn buffers_are_really_set() {
    let running = serve("tcp:127.0.0.1:0");
    let spec = Spec { local_buffer: Some(32 << 10), remote_buffer: Some(48 << 10), ..quick(Test::Stream) };
    let report = run(&running.addresses()[0], &spec).unwrap();
    // Linux doubles what it is asked for, to pay for its own book-keeping.
    assert_eq!((report.send_buffer, report.recv_buffer), (Some(64 << 10), Some(96 << 10)));
    assert!(report.notes.is_empty());
    let back = run(&running.addresses()[0], &Spec { test: Test::Maerts, ..spec }).unwrap();
    assert_eq!((back.send_buffer, back.recv_buffer), (Some(96 << 10), Some(64 << 10)));
}

#[test]
fn a_chosen_data_port_is_used_and_its_clash_is_reported() {
    // An address that no other test takes ports of.
    let running = serve("tcp:127.77.0.1:0");
    let taken = std::net::TcpListener::bind("127.77.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let spec = Spec { data_port: Some(port.into()), ..quick(Test::Rr) };
    let error = run(&running.addresses()[0], &spec).unwrap_err().to_string();
    assert!(
        error.contains("something listens there already") && error.contains(&port.to_string()),
        "{error}"
    );
    drop(taken);
    sane(&run(&running.addresses()[0], &spec).unwrap());
}

#[test]
fn many_clients_at_once() {
    let running = serve("tcp:127.0.0.1:0");
    let address = &running.addresses()[0];
    std::thread::scope(|scope| {
        let clients: Vec<_> = [Test::Stream, Test::Rr, Test::Maerts, Test::Crr]
            .map(|test| scope.spawn(move || run(address, &quick(test)).unwrap()))
            .into_iter()
            .collect();
        clients.into_iter().for_each(|client| sane(&client.join().unwrap()));
    });
}

#[test]
fn a_server_keeps_to_the_limits_it_was_given() {
    let limits = Limits { seconds: 5.0, ..Limits::default() };
    let server_limits = ServerLimits { clients: 8, sessions: 2, memory: 1 << 20 };
    let server =
        Server::bind(&["tcp:127.0.0.1:0".parse().unwrap()]).unwrap().with_limits(limits, server_limits);
    let running = server.spawn().unwrap();
    let address = &running.addresses()[0];
    sane(&run(address, &Spec { sessions: 2, ..quick(Test::Stream) }).unwrap());
    for (spec, words) in [
        (Spec { seconds: 6.0, ..quick(Test::Stream) }, "seconds (-l) 6: this server takes 0.01 to 5"),
        (Spec { sessions: 3, ..quick(Test::Stream) }, "busy"),
        (Spec { message_bytes: 2 << 20, ..quick(Test::Stream) }, "busy"),
    ] {
        let error = run(address, &spec).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_refused_connection_names_the_command_to_start() {
    // Bound and not listening: no other process gets the port meanwhile.
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let held = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&held, &std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let free = std::net::SocketAddr::try_from(getsockname(&held).unwrap()).unwrap().port();
    let address = format!("tcp:127.0.0.1:{free}").parse().unwrap();
    let error = run(&address, &quick(Test::Rr)).unwrap_err().to_string();
    assert!(error.contains(&format!("vmlane bench server --listen tcp:0.0.0.0:{free}")), "{error}");
    let error = run(&"unix:/nonexistent/x".parse().unwrap(), &quick(Test::Rr)).unwrap_err().to_string();
    assert!(error.contains("unix:/nonexistent/x") && error.contains("bench server"), "{error}");
}

#[test]
fn too_much_is_a_usage_error_before_anything_is_sent() {
    let spec = Spec { sessions: 1 << 20, ..quick(Test::Stream) };
    assert!(run(&"tcp:127.0.0.1:1".parse().unwrap(), &spec).unwrap_err().is_usage());
}

#[test]
fn a_stale_path_is_taken_over_and_a_living_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap()); // leaves the path, as kill -9 does
    let address: Address = format!("unix:{}", path.display()).parse().unwrap();
    let running = Server::bind(std::slice::from_ref(&address)).unwrap().spawn().unwrap();
    assert!(matches!(Server::bind(std::slice::from_ref(&address)), Err(Error::Listen { .. })));
    sane(&run(&address, &quick(Test::Rr)).unwrap());
    drop(running);
}

#[test]
fn vsock_over_the_local_cid_where_the_kernel_loops_it_back() {
    let Ok(server) = Server::bind(&["vsock:any:4294967295".parse().unwrap()]) else {
        return skipped("the host has no vsock");
    };
    let running = server.spawn().unwrap();
    let Address::Vsock { port, .. } = running.addresses()[0] else { panic!("not vsock") };
    let spec = Spec { local_buffer: Some(1 << 20), ..quick(Test::Stream) };
    match run(&Address::Vsock { cid: 1, port }, &spec) {
        Ok(report) => {
            sane(&report);
            assert_eq!((report.send_buffer, report.recv_buffer), (Some(1 << 20), Some(1 << 20)));
        }
        Err(Error::Connect { .. }) => skipped("the kernel has no vsock_loopback"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn datagrams_are_accounted_for() {
    let running = serve("tcp:127.0.0.1:0");
    let address = &running.addresses()[0];
    for test in [Test::Stream, Test::Maerts] {
        let spec = Spec {
            sessions: 2,
            message_bytes: 1000,
            receive_bytes: 1000,
            rate_bps: Some(8_000_000),
            ..quick(test)
        };
        let sent = |report: &Report| report.datagrams.map_or(0, |counted| counted.counts.sent);
        let enough = |report: &Report| whole(report) && sent(report) > 100;
        let report = measured(&by_udp(address), &spec, &Options::default(), enough).unwrap();
        sane(&report);
        let counted = report.datagrams.unwrap();
        assert_eq!(report.transport, "udp");
        assert!(counted.counts.sent > 100 && counted.counts.received > 0, "{counted:?}");
        assert_eq!(report.bytes, counted.counts.received * 1000);
        assert_eq!(counted.lost, counted.counts.sent - counted.counts.received);
        // Each of two sessions at 8 Mbit/s, and no faster: 10 ms are caught up at most.
        let most = 2 * (1000.0 * report.seconds) as u64 + 2 * 12;
        assert!(counted.counts.sent <= most, "the pace was not kept: {counted:?} in {} s", report.seconds);
    }
    let spec = Spec { message_bytes: 1000, rate_bps: Some(20_000_000), sessions: 2, ..quick(Test::Bidir) };
    let both = run_udp(address, &spec).unwrap();
    sane(&both);
    let (there, back) = (both.to_server_bps.unwrap(), both.from_server_bps.unwrap());
    assert!(there > 0.0 && back > 0.0 && both.throughput_bps.unwrap() > there.max(back));
    let loss = both.datagrams.unwrap().counts;
    // Each end sent, and what arrived is what was counted.
    assert!(loss.received > 0 && loss.received * 1000 == both.bytes, "{loss:?}");
    assert!(loss.sent >= loss.received);
    let spec = Spec { sessions: 2, response_bytes: 200, ..quick(Test::Rr) };
    let enough = |report: &Report| report.transactions.is_some_and(|count| count > 10);
    let rr = measured(&by_udp(address), &spec, &Options::default(), enough).unwrap();
    sane(&rr);
    assert!(rr.transactions.unwrap() > 10 && rr.rtt_us.is_some() && rr.datagrams.is_some());
    for (spec, words) in [
        (Spec { test: Test::Crr, ..quick(Test::Crr) }, "crr: datagrams"),
        (Spec { message_bytes: 10, ..quick(Test::Stream) }, "takes 24 to 65507"),
    ] {
        let error = run_udp(address, &spec).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(words), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let unix = serve(&format!("unix:{}/s", dir.path().display()));
    let error =
        run_udp(&unix.addresses()[0], &Spec { message_bytes: 100, ..quick(Test::Stream) }).unwrap_err();
    assert!(error.to_string().contains("datagrams go over UDP or vsock"), "{error}");
}

#[test]
fn more_in_flight_than_the_buffers_hold() {
    everywhere(|address| {
        for (in_flight, bytes) in [(64, 20_000), (1000, 60_000)] {
            let spec = Spec {
                in_flight,
                request_bytes: bytes,
                response_bytes: bytes,
                local_buffer: Some(16 << 10),
                remote_buffer: Some(16 << 10),
                ..quick(Test::Rr)
            };
            // An asker that blocked in its requests would fail: nothing would move.
            let report = run(address, &spec).unwrap();
            sane(&report);
            assert_eq!(report.bytes, report.transactions.unwrap() * 2 * bytes);
        }
    });
}

#[test]
fn several_requests_in_flight() {
    let running = serve("tcp:127.0.0.1:0");
    let spec =
        Spec { in_flight: 16, request_bytes: 64, response_bytes: 64, nodelay: true, ..quick(Test::Rr) };
    let report = run(&running.addresses()[0], &spec).unwrap();
    sane(&report);
    assert_eq!((report.bytes, report.in_flight), (report.transactions.unwrap() * 128, Some(16)));
}

#[test]
fn the_cool_down_is_not_measured() {
    let running = serve("tcp:127.0.0.1:0");
    let to: Target = running.addresses()[0].clone().into();
    for test in [Test::Stream, Test::Maerts, Test::Rr] {
        let spec = Spec { cooldown: 0.5, ..quick(test) };
        // A window of 0.2 s, although the senders went on for another 0.5 s. A machine that stands still
        // at its end makes it longer, or leaves it empty, though hardly five times.
        let mut windows = (0..5).filter_map(|_| {
            let outcome = vmlane_bench::run(&to, &spec, &Options::default(), &mut Hooks::default());
            if thin(&outcome, |report| report.bytes > 0) {
                return None;
            }
            let report = outcome.unwrap();
            assert_eq!(report.cooldown_seconds, 0.5);
            Some(report.seconds)
        });
        assert!(windows.any(|seconds| seconds < 0.6), "{test:?}: the cool-down is measured");
    }
}

#[test]
fn an_observer_gets_every_interval() {
    let running = serve("tcp:127.0.0.1:0");
    let (mut counted, mut asked) = (Vec::<Progress>::new(), 0);
    let to: Target = running.addresses()[0].clone().into();
    let report = {
        let mut hooks = Hooks {
            before_start: Some(Box::new(|| {
                asked += 1;
                Ok(())
            })),
            every: Some((Duration::from_millis(100), Box::new(|progress| counted.push(*progress)))),
        };
        // Long enough for 30 intervals.
        let spec = Spec { seconds: 3.0, ..quick(Test::Stream) };
        vmlane_bench::run(&to, &spec, &Options::default(), &mut hooks).unwrap()
    };
    assert_eq!(asked, 1, "asked before the start");
    assert!(counted[0].from < 0.0, "the warm-up comes first: {counted:?}");
    assert!(counted.len() >= 3 && counted.iter().any(|progress| progress.bytes > 0), "{counted:?}");
    assert_eq!(report.intervals, counted);
    assert!(report.started_at_ns > 1_600_000_000_000_000_000);
}

#[test]
fn a_start_that_was_called_off_leaves_nothing() {
    let running = serve("tcp:127.0.0.1:0");
    let to: Target = running.addresses()[0].clone().into();
    let mut hooks =
        Hooks { before_start: Some(Box::new(|| Err(Error::Usage("called off".into())))), ..Hooks::default() };
    let error = vmlane_bench::run(&to, &quick(Test::Stream), &Options::default(), &mut hooks).unwrap_err();
    assert_eq!(error.to_string(), "called off");
    sane(&run(&running.addresses()[0], &quick(Test::Stream)).unwrap());
}

#[test]
fn a_server_with_a_secret_serves_those_who_know_it() {
    let file = |text: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Secret::read(file.path()).unwrap()
    };
    let server = Server::bind(&["tcp:127.0.0.1:0".parse().unwrap()]).unwrap();
    let running = server.with_secret(file("correct horse battery")).spawn().unwrap();
    let to: Target = running.addresses()[0].clone().into();
    let ask = |secret: Option<Secret>| {
        measured(&to, &quick(Test::Rr), &Options { secret, ..Options::default() }, whole)
    };
    sane(&ask(Some(file("correct horse battery\n"))).unwrap());
    let error = ask(None).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("give --secret-file"), "{error}");
    let error = ask(Some(file("wrong horse battery"))).unwrap_err().to_string();
    assert!(error.contains("not the secret of this server"), "{error}");
}

#[test]
fn a_version_of_ip_can_be_asked_for() {
    let running = serve("tcp:127.0.0.1:0");
    let to: Target = running.addresses()[0].clone().into();
    let ask = |ip| measured(&to, &quick(Test::Rr), &Options { ip: Some(ip), ..Options::default() }, whole);
    sane(&ask(IpVersion::V4).unwrap());
    let error = ask(IpVersion::V6).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("has no IPv6 address"), "{error}");
}

#[test]
fn datagrams_are_counted_as_packets_a_second() {
    let server = serve("tcp:127.0.0.1:0");
    let spec = Spec { message_bytes: 24, receive_bytes: 24, ..quick(Test::Stream) };
    let report = run_udp(&server.addresses()[0], &spec).unwrap();
    let (rate, counts) = (report.packets_per_second.unwrap(), report.datagrams.unwrap().counts);
    assert!((rate - counts.received as f64 / report.seconds).abs() < 1e-6, "{rate} {counts:?}");
    assert!((report.throughput_bps.unwrap() - rate * 24.0 * 8.0).abs() < rate, "{report:?}");
    assert!(report.text().contains("/s arrived"));
    assert_eq!(run(&server.addresses()[0], &quick(Test::Stream)).unwrap().packets_per_second, None);
}
