//! The control protocol over a real socket, the daemon's side and the client's.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vmlane_access::Peer;
use vmlane_api::{
    Call, CapturePoint, CaptureRequest, Captured, Client, ClientError, ErrorCode, Failure, MAX_REQUEST, May,
    Method, Pong, call,
};
use vmlane_daemon::control::{Answer, Answers, Bounds, ControlServer, Lasting};

/// Answers pings, panics on request, and has a lot to report about ports.
#[derive(Default)]
struct Fake {
    /// A capture is under way.
    captures: Arc<AtomicBool>,
}

struct Capturing(Arc<AtomicBool>);

impl Drop for Capturing {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn pong() -> Pong {
    Pong { pid: 42, daemon: "test".into(), layout: 4 }
}

impl Answers for Fake {
    fn may(&self, _: &Peer) -> Option<May> {
        Some(May::Admin)
    }

    fn answer(&self, call: Call, _: &Peer) -> Result<Answer, Failure> {
        let json = match call {
            Call::Ping(call) => call.answer(pong())?,
            Call::DebugPanic(_) => panic!("as asked for by the test"),
            Call::Ports(_) => format!("{:?}", "x".repeat(8 << 20)),
            Call::Status(_) => "malformed".into(),
            Call::Reload(_) => {
                return Err(Failure { code: ErrorCode::Forbidden, message: "not here".into() });
            }
            Call::Capture(call) => {
                let point = CapturePoint { name: "web/nic0".into(), kind: "frames".into() };
                self.captures.store(true, Ordering::Release);
                let holds = Box::new(Capturing(self.captures.clone()));
                let file = std::io::stderr().as_fd().try_clone_to_owned().unwrap();
                let json = call.answer(Captured { points: vec![point] })?;
                return Ok(Answer { json, lasting: Some(Lasting { file, holds }) });
            }
            _ => "{}".into(),
        };
        Ok(Answer { json, lasting: None })
    }
}

struct Setup {
    directory: tempfile::TempDir,
    _server: ControlServer,
}

fn setup(bounds: Bounds) -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let path = vmlane_api::control_socket(directory.path());
    let server = ControlServer::start(&path, Arc::<Fake>::default(), bounds).unwrap();
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
}

/// Asks the daemon.
fn ping(mut client: Client) -> Result<Pong, ClientError> {
    client.call(&call::Ping {})
}

const PING: &str = "{\"method\":\"io.vmlane.Control.Ping\"}\0";

/// Sends messages, returns as many answers.
fn ask(stream: &mut UnixStream, messages: &str, answers: usize) -> Vec<String> {
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
        assert_eq!(client.call(&call::Ping {}).unwrap(), pong());
        client.call(&call::Shutdown {}).unwrap();
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
    for (request, expected) in [
        ("{{{", "io.vmlane.Control.BadRequest"),
        ("", "io.vmlane.Control.BadRequest"),
        ("{\"method\":\"io.vmlane.Control.Dance\"}", "org.varlink.service.MethodNotFound"),
        (
            "{\"method\":\"io.vmlane.Control.DebugPanic\",\"parameters\":{\"vm\":\"a\"}}",
            "io.vmlane.Control.Failed",
        ),
        (
            "{\"method\":\"io.vmlane.Control.Reload\"}",
            "{\"error\":\"io.vmlane.Control.Forbidden\",\"parameters\":{\"message\":\"not here\"}}",
        ),
        ("{\"method\":\"org.varlink.service.GetInfo\",\"more\":true}", "\"vmlane daemon\""),
    ] {
        let answer = ask(&mut stream, &format!("{request}\0"), 1);
        assert!(answer[0].contains(expected), "{request}: {answer:?}");
    }
    let without_answer = "{\"method\":\"io.vmlane.Control.Shutdown\",\n\"oneway\":true}\0";
    let answer = ask(&mut stream, &[without_answer, PING].concat(), 1);
    assert_eq!(answer, ["{\"parameters\":{\"pid\":42,\"daemon\":\"test\",\"layout\":4}}"]);
}

#[test]
fn a_request_without_end_is_cut_off() {
    let setup = setup(Bounds::default());
    let mut stream = setup.raw();
    ask(&mut stream, PING, 1);
    let answer = ask(&mut stream, &"x".repeat(MAX_REQUEST), 1);
    assert!(answer[0].contains("io.vmlane.Control.TooLong") && answer[0].contains("65536"), "{answer:?}");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it is closed");
    assert!(ping(setup.client()).is_ok());
}

#[test]
fn slow_clients_lose_their_place_and_do_not_delay_others() {
    // Time enough for the one that is served.
    let setup = setup(Bounds { clients: 3, request: Duration::from_secs(3), ..QUICK });
    let mut silent = setup.raw();
    let mut trickling = setup.raw();
    trickling.write_all(b"{").unwrap();
    assert!(ping(setup.client()).is_ok(), "served beside them");
    for stream in [&mut silent, &mut trickling] {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "no answer without a request");
    }
}

#[test]
fn a_client_that_does_not_fetch_its_answer_is_dropped() {
    let setup = setup(Bounds { clients: 1, ..QUICK });
    let mut deaf = setup.raw();
    deaf.write_all(b"{\"method\":\"io.vmlane.Control.Ports\"}\0").unwrap();
    vmlane_testkit::wait_until("its place is free", || ping(setup.client()).is_ok());
}

#[test]
fn one_client_too_many_gets_a_reason() {
    let setup = setup(Bounds { request: Duration::from_secs(60), ..QUICK });
    let _holding = [setup.raw(), setup.raw()];
    let error = ping(setup.client()).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Busy), "{error}");
    assert!(error.to_string().contains("2 clients"), "{error}");
}

#[test]
fn a_stale_socket_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = vmlane_api::control_socket(directory.path());
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let _server = ControlServer::start(&path, Arc::<Fake>::default(), Bounds::default()).unwrap();
    assert!(ping(Client::connect(directory.path()).unwrap()).is_ok());
}

#[test]
fn the_client_reports_what_is_wrong_with_an_answer() {
    let setup = setup(Bounds::default());
    let text = setup.client().call(&call::Status {}).unwrap_err().to_string();
    assert!(text.contains("answered status with something else"), "{text}");

    let mute = tempfile::tempdir().unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(vmlane_api::control_socket(mute.path())).unwrap();
    let client = Client::connect(mute.path()).unwrap();
    let error = ping(client.with_timeout(Duration::from_millis(50))).unwrap_err();
    assert!(matches!(error, ClientError::NoAnswer { .. }));
    assert!(error.to_string().contains("did not answer ping"), "{error}");
}

#[test]
fn a_capture_lasts_until_its_client_closes_its_half_of_the_connection() {
    let directory = tempfile::tempdir().unwrap();
    let fake = Arc::<Fake>::default();
    let path = vmlane_api::control_socket(directory.path());
    let _server = ControlServer::start(&path, fake.clone(), Bounds::default()).unwrap();
    let begin = || Client::connect(directory.path()).unwrap().capture(CaptureRequest::default()).unwrap();
    let (captured, _file, mut link) = begin();
    assert_eq!(captured.points[0].name, "web/nic0");
    assert!(!link.closed() && fake.captures.load(Ordering::Acquire));
    assert!(link.stop(Duration::from_secs(60)));
    assert!(!fake.captures.load(Ordering::Acquire), "it has ended before that is answered");
    drop(begin());
    vmlane_testkit::wait_until("it ends with its client", || !fake.captures.load(Ordering::Acquire));
}
