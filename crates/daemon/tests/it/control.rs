//! The control protocol over a real socket, the daemon's side and the client's.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vmlane_access::Peer;
use vmlane_api::{Call, Client, ClientError, Done, ErrorCode, Failure, MAX_REQUEST, Pong};
use vmlane_daemon::config::May;
use vmlane_daemon::control::{Answer, Answers, Bounds, ControlServer};

/// Answers pings, panics when told to, and has a lot to say about ports.
struct Fake;

impl Answers for Fake {
    fn may(&self, _: &Peer) -> Option<May> {
        Some(May::Admin)
    }

    fn answer(&self, call: Call, _: &Peer) -> Answer {
        match call {
            Call::Ping => Ok(Pong { pid: 42, daemon: "test".into(), layout: Some(4) }).into(),
            Call::DebugPanic { .. } => panic!("as asked for by the test"),
            Call::Ports => Ok("x".repeat(8 << 20)).into(),
            Call::Status => Answer::Body(Ok("nonsense".into())),
            Call::Reload => {
                Answer::Body(Err(Failure { code: ErrorCode::Forbidden, message: "not here".into() }))
            }
            _ => Ok(Done {}).into(),
        }
    }
}

struct Setup {
    directory: tempfile::TempDir,
    _server: ControlServer,
}

fn setup(bounds: Bounds) -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let path = vmlane_api::control_socket(directory.path());
    let server = ControlServer::start(&path, Arc::new(Fake), bounds).unwrap();
    Setup { directory, _server: server }
}

impl Setup {
    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn client(&self) -> Client {
        Client::connect(self.path()).unwrap()
    }

    fn raw(&self) -> UnixStream {
        UnixStream::connect(vmlane_api::control_socket(self.path())).unwrap()
    }

    /// Sends text, returns the answer's line.
    fn ask(&self, text: &str) -> String {
        let mut stream = self.raw();
        stream.write_all(text.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line
    }
}

const QUICK: Bounds = Bounds {
    clients: 2,
    others: 1,
    of_user: 1,
    request: Duration::from_millis(200),
    answer: Duration::from_millis(200),
};

#[test]
fn a_connection_carries_many_requests() {
    let setup = setup(Bounds::default());
    let mut client = setup.client();
    for _ in 0..3 {
        assert_eq!(client.ping().unwrap(), Pong { pid: 42, daemon: "test".into(), layout: Some(4) });
        client.shutdown().unwrap();
    }
}

#[test]
fn the_socket_is_its_owners_and_goes_with_the_server() {
    let setup = setup(Bounds::default());
    let path = vmlane_api::control_socket(setup.path());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let Setup { directory, _server } = setup;
    drop(_server);
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    let error = Client::connect(directory.path()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ClientError::NoDaemon { .. }));
    for word in ["no daemon answers at", "control.sock", "vmlane daemon --runtime-dir"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn bad_requests_get_an_error_and_the_connection_goes_on() {
    let setup = setup(Bounds::default());
    let mut stream = setup.raw();
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    for (request, code) in [
        ("{{{", "bad_request"),
        ("", "bad_request"),
        ("{\"version\":2,\"method\":\"ping\"}", "wrong_version"),
        ("{\"version\":1,\"method\":\"dance\"}", "unknown_method"),
        ("{\"version\":1,\"method\":\"debug_panic\",\"vm\":\"a\"}", "failed"),
    ] {
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        lines.read_line(&mut answer).unwrap();
        assert!(answer.contains(&format!("\"code\":\"{code}\"")), "{request}: {answer}");
    }
    stream.write_all(Call::Ping.to_line().as_bytes()).unwrap();
    let mut answer = String::new();
    lines.read_line(&mut answer).unwrap();
    assert_eq!(answer, "{\"version\":1,\"ok\":{\"pid\":42,\"daemon\":\"test\",\"layout\":4}}\n");
}

#[test]
fn a_request_without_end_is_cut_off() {
    let setup = setup(Bounds::default());
    let answer = setup.ask(&"x".repeat(MAX_REQUEST));
    assert!(answer.contains("too_long") && answer.contains("65536"), "{answer}");
    assert!(setup.client().ping().is_ok());
}

#[test]
fn slow_clients_lose_their_place_and_do_not_delay_others() {
    // Time enough for the one that is served.
    let setup = setup(Bounds { clients: 3, request: Duration::from_secs(3), ..QUICK });
    let mut silent = setup.raw();
    let mut trickling = setup.raw();
    trickling.write_all(b"{").unwrap();
    assert!(setup.client().ping().is_ok(), "served beside them");
    for stream in [&mut silent, &mut trickling] {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("timed_out"), "{rest}");
    }
}

#[test]
fn a_client_that_does_not_fetch_its_answer_is_dropped() {
    let setup = setup(Bounds { clients: 1, ..QUICK });
    let mut deaf = setup.raw();
    deaf.write_all(Call::Ports.to_line().as_bytes()).unwrap();
    vmlane_testkit::wait_until("its place is free", || setup.client().ping().is_ok());
}

#[test]
fn one_client_too_many_is_told_so() {
    let setup = setup(Bounds { request: Duration::from_secs(60), ..QUICK });
    let _holding = [setup.raw(), setup.raw()];
    let error = setup.client().ping().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Busy), "{error}");
    assert!(error.to_string().contains("2 clients"), "{error}");
}

#[test]
fn a_stale_socket_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = vmlane_api::control_socket(directory.path());
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let _server = ControlServer::start(&path, Arc::new(Fake), Bounds::default()).unwrap();
    assert!(Client::connect(directory.path()).unwrap().ping().is_ok());
}

#[test]
fn the_client_says_what_is_wrong_with_an_answer() {
    let setup = setup(Bounds::default());
    let text = setup.client().status().unwrap_err().to_string();
    assert!(text.contains("answered status with something else"), "{text}");

    let newer = tempfile::tempdir().unwrap();
    let listener = std::os::unix::net::UnixListener::bind(vmlane_api::control_socket(newer.path())).unwrap();
    let client = Client::connect(newer.path()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"{\"version\":9,\"ok\":{\"pid\":1,\"daemon\":\"9\"}}\n").unwrap();
    let text = client.with_timeout(Duration::from_secs(60)).ping().unwrap_err().to_string();
    assert!(text.contains("version 9") && text.contains("speaks 1"), "{text}");

    let mute = tempfile::tempdir().unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(vmlane_api::control_socket(mute.path())).unwrap();
    let client = Client::connect(mute.path()).unwrap();
    let error = client.with_timeout(Duration::from_millis(50)).ping().unwrap_err();
    assert!(matches!(error, ClientError::NoAnswer { .. }));
    assert!(error.to_string().contains("did not answer ping"), "{error}");
}

/// Sends messages of Varlink, returns as many answers.
fn varlink(stream: &mut UnixStream, messages: &str, answers: usize) -> Vec<String> {
    stream.write_all(messages.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let answer = |_| {
        let mut bytes = Vec::new();
        reader.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "{bytes:?}");
        String::from_utf8(bytes).unwrap()
    };
    (0..answers).map(answer).collect()
}

#[test]
fn a_message_that_ends_with_a_zero_byte_is_answered_likewise() {
    let setup = setup(Bounds::default());
    let mut stream = setup.raw();
    let answers = varlink(
        &mut stream,
        "{\"method\":\"io.vmlane.Control.Ping\"}\0{\"method\":\"io.vmlane.Control.Shutdown\",\n\"oneway\":true}\0\
         {\"method\":\"io.vmlane.Control.Reload\"}\0{\"method\":\"io.vmlane.Control.DebugPanic\",\"parameters\":{\"vm\":\"a\"}}\0{{{\0\
         {\"method\":\"org.varlink.service.GetInfo\",\"more\":true}\0",
        5,
    );
    assert_eq!(answers[0], "{\"parameters\":{\"pid\":42,\"daemon\":\"test\",\"layout\":4}}");
    for (answer, expected) in answers[1..].iter().zip([
        "{\"error\":\"io.vmlane.Control.Forbidden\",\"parameters\":{\"message\":\"not here\"}}",
        "io.vmlane.Control.Failed",
        "io.vmlane.Control.BadRequest",
        "\"interfaces\":[\"org.varlink.service\",\"io.vmlane.Control\"]",
    ]) {
        assert!(answer.contains(expected), "{answer}");
    }
    // Another connection speaks as ever.
    assert!(setup.client().ping().is_ok());
}

#[test]
fn a_varlink_client_is_bounded_as_others_are() {
    let setup = setup(Bounds { request: Duration::from_secs(3), ..QUICK });
    let mut stream = setup.raw();
    let ping = "{\"method\":\"io.vmlane.Control.Ping\"}\0";
    varlink(&mut stream, ping, 1);
    let answers = varlink(&mut stream, &"x".repeat(MAX_REQUEST), 1);
    assert!(answers[0].contains("io.vmlane.Control.TooLong"), "{answers:?}");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it is closed");
    let mut silent = setup.raw();
    varlink(&mut silent, ping, 1);
    assert_eq!(silent.read(&mut [0]).unwrap(), 0, "it is closed without an answer that has no request");
}
