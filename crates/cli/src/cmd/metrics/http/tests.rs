use super::*;

/// A server with some bounds, for as long as the test runs; its address.
fn server(bounds: Bounds) -> std::net::SocketAddr {
    server_of(Arc::new(|accept| ("text/plain", format!("for {accept:?}\n"))), bounds)
}

fn server_of(page: Arc<Page>, bounds: Bounds) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || serve(vec![listener], bounds, &page));
    address
}

/// What the server answers to some bytes, after which nothing more comes.
fn ask(address: std::net::SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    // The server may have answered, and closed, before it has read everything.
    let _ = stream.write_all(request);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn there_is_one_page_and_get_is_the_way_to_it() {
    let address = server(Bounds::default());
    let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\naCCEPT: a/b\r\n\r\n");
    assert_eq!(
        answer,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 10\r\nConnection: close\r\n\r\nfor \"a/b\"\n"
    );
    for (request, status) in [
        ("GET /metrics HTTP/1.0\r\n\r\n", "200"),
        ("GET /metrics?a=b HTTP/1.1\r\n\r\n", "200"),
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("GET /metrics/ HTTP/1.1\r\n\r\n", "404"),
        ("GET /../metrics HTTP/1.1\r\n\r\n", "404"),
        ("GET http://x/metrics HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
        ("DELETE /metrics HTTP/1.1\r\n\r\n", "405"),
        ("POST / HTTP/1.1\r\n\r\n", "404"),
        ("nonsense\r\n\r\n", "400"),
        ("GET /metrics\r\n\r\n", "400"),
        ("\0\u{1}\r\n\r\n", "400"),
    ] {
        let answer = ask(address, request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
    }
    let head = ask(address, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.contains("Content-Length: 7\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(ask(address, b"PUT /metrics HTTP/1.1\r\n\r\n").contains("\r\nAllow: GET, HEAD\r\n"));
}

#[test]
fn a_request_in_pieces_is_one_request() {
    let address = server(Bounds::default());
    let mut stream = TcpStream::connect(address).unwrap();
    for byte in b"GET /metrics HTTP/1.1\r\nAccept: x\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("for \"x\"\n"), "{answer}");
}

#[test]
fn requests_are_not_longer_than_they_may_be() {
    let bounds = Bounds::default();
    let address = server(bounds);
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(bounds.request));
    assert!(ask(address, long.as_bytes()).starts_with("HTTP/1.1 431 "));
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(HEADERS + 1));
    assert!(ask(address, many.as_bytes()).starts_with("HTTP/1.1 431 "));
    assert!(ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "), "the next one");
}

#[test]
fn a_silent_client_gets_an_error_and_is_closed_after_a_while() {
    let address = server(Bounds { time: Duration::from_millis(50), ..Bounds::default() });
    let answer = ask(address, b"GET /metrics HTT");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

/// Has the server ended a connection without a byte?
fn is_ended(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    matches!(stream.read(&mut [0]), Ok(0))
}

#[test]
fn clients_that_ask_for_nothing_keep_no_one_out() {
    let address = server(Bounds { connections: 3, time: Duration::from_secs(600), ..Bounds::default() });
    let idle = [(); 3].map(|()| TcpStream::connect(address).unwrap());
    let answer = ask(address, b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(is_ended(&idle[0]), "the oldest has made room");
    (&idle[2]).write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    (&idle[2]).read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "the youngest has its place still: {answer}");
}

#[test]
fn connections_that_are_answered_keep_their_places() {
    let gate = Arc::new(parking_lot::Mutex::new(()));
    let closed = gate.lock();
    let begun = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (within, count) = (gate.clone(), begun.clone());
    let page: Arc<Page> = Arc::new(move |_| {
        count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        drop(within.lock());
        ("text/plain", "late\n".into())
    });
    let bounds = Bounds { connections: 2, time: Duration::from_secs(600), ..Bounds::default() };
    let address = server_of(page, bounds);
    let asking = [(); 2].map(|()| std::thread::spawn(move || ask(address, b"GET /metrics HTTP/1.1\r\n\r\n")));
    vmlane_testkit::wait_until("both are answered", || begun.load(std::sync::atomic::Ordering::SeqCst) == 2);
    let answer = ask(address, b"");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    drop(closed);
    assert!(asking.into_iter().all(|asking| asking.join().unwrap().ends_with("late\n")));
    vmlane_testkit::wait_until("places come free", || {
        ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 ")
    });
}

#[test]
fn clients_that_do_not_take_their_answers_keep_no_one_out() {
    let page: Arc<Page> = Arc::new(|_| ("text/plain", "x".repeat(64 << 20)));
    let bounds = Bounds {
        connections: 1,
        time: Duration::from_secs(600),
        answer: Duration::from_millis(50),
        ..Bounds::default()
    };
    let address = server_of(page, bounds);
    let mut silent = TcpStream::connect(address).unwrap();
    silent.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    vmlane_testkit::wait_until("its place is another's", || {
        ask(address, b"HEAD /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 ")
    });
}
