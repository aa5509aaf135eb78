//! Whole measurements in one process, over TCP loopback and Unix sockets (and vsock where it loops back).

use vmlane_bench::{Address, Error, Report, Server, Spec, Test, run, server::Running};

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
            Err(error) => assert!(address.contains("::1"), "{error}"), // a host may have no IPv6
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
        for test in [Test::Stream, Test::Maerts] {
            let spec = Spec { sessions: 3, message_bytes: 5000, receive_bytes: 777, ..quick(test) };
            let report = run(address, &spec).unwrap();
            sane(&report);
            assert!(report.throughput_bps.unwrap() > 0.0 && report.sender_throughput_bps.unwrap() > 0.0);
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
fn a_chosen_data_port_is_used_and_its_clash_is_told() {
    let running = serve("tcp:127.0.0.1:0");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
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
fn a_refused_connection_says_what_to_start() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
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
    let Ok(server) = Server::bind(&["vsock:any:4294967295".parse().unwrap()]) else { return };
    let running = server.spawn().unwrap();
    let Address::Vsock { port, .. } = running.addresses()[0] else { panic!("not vsock") };
    let spec = Spec { local_buffer: Some(1 << 20), ..quick(Test::Stream) };
    match run(&Address::Vsock { cid: 1, port }, &spec) {
        Ok(report) => {
            sane(&report);
            assert_eq!((report.send_buffer, report.recv_buffer), (Some(1 << 20), Some(1 << 20)));
        }
        Err(error) => assert!(matches!(error, Error::Connect { .. }), "{error}"), // no vsock_loopback here
    }
}
