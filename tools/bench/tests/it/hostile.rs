//! Peers that die, lie, stall or speak something else: the server continues, the client reports what
//! happened.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use vmlane_bench::{Address, Error, Hooks, Options, Report, Server, Spec, Test, server::Running};
use vmlane_testkit::{ran_alone, wait_until};

fn run(to: &Address, spec: &Spec) -> Result<Report, Error> {
    vmlane_bench::run(&to.clone().into(), spec, &Options::default(), &mut Hooks::default())
}

const HELLO: &str = r#"{"type":"hello","magic":"vmlane-bench","protocol":2}"#;

fn serve() -> (Running, u16) {
    let running = Server::bind(&["tcp:127.0.0.1:0".parse().unwrap()]).unwrap().spawn().unwrap();
    let Address::Tcp { port, .. } = running.addresses()[0] else { panic!("not tcp") };
    (running, port)
}

fn quick(test: Test) -> Spec {
    Spec { seconds: 0.1, warmup: 0.0, ..Spec::new(test) }
}

/// Does it still serve? A machine that has no time for a short test has some for a longer one.
fn serves(to: &Address, test: Test) -> bool {
    [0.1, 1.0, 10.0].iter().any(|&seconds| run(to, &Spec { seconds, ..quick(test) }).is_ok())
}

/// A client or server that speaks the control protocol by hand.
struct Hand(TcpStream);

impl Hand {
    fn to(port: u16) -> Hand {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Hand(stream)
    }

    fn send_json(&mut self, json: &str) {
        self.0.write_all(&(json.len() as u32).to_le_bytes()).unwrap();
        self.0.write_all(json.as_bytes()).unwrap();
    }

    /// The next message, or nothing when the other side hung up.
    fn receive(&mut self) -> Option<String> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).ok()?;
        let mut body = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut body).ok()?;
        Some(String::from_utf8(body).unwrap())
    }

    fn ask(&mut self, spec: &Spec) -> String {
        self.send_json(HELLO);
        assert!(self.receive().unwrap().contains("hello"));
        let spec = serde_json::to_string(spec).unwrap();
        self.send_json(&spec.replacen('{', r#"{"type":"test","#, 1));
        self.receive().unwrap()
    }
}

fn data_port(ready: &str) -> u16 {
    let ready: serde_json::Value = serde_json::from_str(ready).unwrap();
    ready["port"].as_u64().unwrap_or_else(|| panic!("{ready}")) as u16
}

/// Threads of this process that serve connections or sessions.
fn busy_threads() -> usize {
    let names = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("session") || name.starts_with("connection")).count()
}

#[test]
fn a_client_may_die_at_every_stage() {
    // Threads of other tests have the same names.
    if ran_alone() {
        return;
    }
    let (running, port) = serve();
    for test in [Test::Stream, Test::Maerts, Test::Bidir, Test::Rr, Test::Crr] {
        for stage in 0..6 {
            die_at(stage, test, port);
        }
    }
    // Nothing of the dead is left, and the living are served.
    wait_until("no thread is left", || busy_threads() == 0);
    assert!(serves(&running.addresses()[0], Test::Rr));
}

fn die_at(stage: u32, test: Test, port: u16) {
    let mut hand = Hand::to(port);
    if stage == 0 {
        return; // connected
    }
    if stage == 1 {
        hand.send_json(HELLO);
        return;
    }
    let ready = hand.ask(&Spec { sessions: 2, seconds: 30.0, ..quick(test) });
    let port = data_port(&ready);
    if stage == 2 {
        return; // before any data connection
    }
    let _first = TcpStream::connect(("127.0.0.1", port)).unwrap();
    if stage == 3 {
        return; // before all of them
    }
    let _second = TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert!(hand.receive().unwrap().contains("accepted"));
    if stage == 4 {
        return;
    }
    hand.send_json(r#"{"type":"start"}"#);
    assert!(hand.receive().unwrap().contains("started"));
}

#[test]
fn garbage_is_answered_with_a_good_bye() {
    let (running, port) = serve();
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x05\x00\x00\x00hello",
        b"\x02\x00\x00\x00{}",
        b"\x04\x00\x00\x00\xff\xfe\xfd\xfc",
    ] {
        let mut hand = Hand::to(port);
        hand.0.write_all(garbage).unwrap();
        let answer = hand.receive().unwrap();
        assert!(answer.contains("does not speak vmlane bench"), "{answer}");
        assert!(hand.receive().is_none());
    }
    assert!(serves(&running.addresses()[0], Test::Stream));
}

#[test]
fn wrong_turns_and_absurd_requests_are_refused() {
    let (_running, port) = serve();
    let mut hand = Hand::to(port);
    hand.send_json(r#"{"type":"start"}"#);
    assert!(hand.receive().unwrap().contains("out of turn"));

    let mut hand = Hand::to(port);
    hand.send_json(HELLO);
    hand.receive().unwrap();
    hand.send_json(r#"{"type":"finish"}"#);
    assert!(hand.receive().unwrap().contains("out of turn"));

    for (spec, part) in [
        (Spec { message_bytes: 1 << 50, ..quick(Test::Stream) }, "message bytes (-m)"),
        (Spec { sessions: 1_000_000, ..quick(Test::Stream) }, "sessions (-n)"),
        (Spec { sessions: 200, message_bytes: 16 << 20, ..quick(Test::Stream) }, "busy"),
        (Spec { seconds: 1e300, ..quick(Test::Stream) }, "seconds (-l)"),
        (Spec { data_port: Some(70_000), ..quick(Test::Stream) }, "data port (--data-port)"),
    ] {
        let answer = Hand::to(port).ask(&spec);
        assert!(answer.contains(part), "{answer}");
    }
}

#[test]
fn both_ends_send_their_versions() {
    let (_running, port) = serve();
    let mut hand = Hand::to(port);
    hand.send_json(&HELLO.replace(":2}", ":99}"));
    assert_eq!(hand.receive().unwrap(), HELLO, "a newer client must learn our version");
    assert!(hand.receive().is_none());

    let error = against(|mut hand| hand.send_json(&HELLO.replace(":2}", ":99}")));
    assert!(error.contains("speaks version 99") && error.contains("this program version 2"), "{error}");
}

/// The error of a client for a server that behaves as given.
fn against(behave: impl FnOnce(Hand) + Send) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address =
        format!("tcp:127.0.0.1:{}", listener.local_addr().unwrap().port()).parse().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut hand = Hand(listener.accept().unwrap().0);
            hand.receive().unwrap();
            behave(hand);
        });
        // Longer than any of them lives.
        run(&address, &Spec { seconds: 30.0, ..quick(Test::Rr) }).unwrap_err().to_string()
    })
}

#[test]
fn a_client_names_the_wrong_peer() {
    let error = against(|mut hand| hand.0.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap());
    assert!(error.contains("does not speak vmlane bench"), "{error}");
    let error = against(drop);
    assert!(error.contains("hung up at our greeting"), "{error}");
    let error = against(|mut hand| {
        hand.send_json(HELLO);
        hand.receive();
    });
    assert!(error.contains("closed the connection while preparing the test"), "{error}");
}

#[test]
fn a_client_gives_up_on_a_silent_peer() {
    let error = against(|mut hand| {
        while matches!(hand.0.read(&mut [0; 256]), Ok(1..)) {} // until the client has had enough
    });
    assert!(error.contains("no answer for 5 s while greeting"), "{error}");
}

#[test]
fn a_server_that_dies_in_the_middle_is_an_error() {
    let error = against(|mut hand| {
        hand.send_json(HELLO);
        hand.receive();
        let data = TcpListener::bind("127.0.0.1:0").unwrap();
        hand.send_json(&format!(r#"{{"type":"ready","port":{}}}"#, data.local_addr().unwrap().port()));
        let _session = data.accept().unwrap();
        hand.send_json(r#"{"type":"accepted","send_buffer":1,"recv_buffer":1}"#);
        hand.receive();
        hand.send_json(r#"{"type":"started"}"#);
    });
    assert!(error.contains("session 0: asking"), "{error}");
}

/// Datagrams of strangers and of clients that died must not keep a connection open.
#[test]
fn datagrams_of_strangers_are_ignored() {
    let (running, port) = serve();
    let mut hand = Hand::to(port);
    // Not over before the client dies.
    let spec = Spec {
        seconds: 30.0,
        datagrams: true,
        message_bytes: 100,
        receive_bytes: 100,
        ..quick(Test::Stream)
    };
    let ready: serde_json::Value = serde_json::from_str(&hand.ask(&spec)).unwrap();
    let data = ready["ports"][0].as_u64().unwrap_or_else(|| panic!("{ready}")) as u16;
    let token = ready["token"].as_u64().unwrap() as u32;
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.connect(("127.0.0.1", data)).unwrap();
    let mut hello = [0; 24];
    hello[20] = 4;
    for junk in [&b""[..], &b"x"[..], &[0xff; 1400][..], &hello[..]] {
        let _ = stranger.send(junk);
    }
    // The right token counts, whichever process of this machine has it.
    hello[16..20].copy_from_slice(&token.to_le_bytes());
    stranger.send(&hello).unwrap();
    assert!(hand.receive().unwrap().contains("accepted"));
    hand.send_json(r#"{"type":"start"}"#);
    assert!(hand.receive().unwrap().contains("started"));
    // A number without meaning, a hello in the middle, a header that is cut: none is counted.
    for junk in [&hello[..], &hello[..23], &[7; 24][..]] {
        stranger.send(junk).unwrap();
    }
    drop(hand);
    drop(stranger);
    assert!(serves(&running.addresses()[0], Test::Rr));
}
