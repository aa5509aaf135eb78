//! The control socket: a thread per client, a bound on everything.
//!
//! Clients are the operator's programs, but a hung one must not keep another from asking, nor the
//! daemon from working: there are so many at once, a request must arrive and an answer be taken
//! within a time, and a fault while answering ends in an error answer.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::Shutdown;
use vmlane_api::line::{self, LineError, LineReader};
use vmlane_api::{Call, ErrorCode, Failure, MAX_REQUEST, Reply};

/// Carries out requests; each on a thread of its own, so it may take its time.
pub trait Answers: Send + Sync + 'static {
    /// The answer as a line, newline included.
    fn answer(&self, call: Call) -> String;
}

/// Bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Clients at once.
    pub clients: usize,
    /// How long a request may take to arrive, and a client may stay silent.
    pub request: Duration,
    /// How long a client may take to fetch an answer.
    pub answer: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { clients: 32, request: Duration::from_secs(10), answer: Duration::from_secs(5) }
    }
}

/// The socket on offer. Dropping it ends the accepting thread and removes the socket; requests
/// under way may still be answered.
pub struct ControlServer {
    path: PathBuf,
    listener: Arc<UnixListener>,
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Binds `path`, whatever is there: the caller knows that no other daemon serves it.
    pub fn start(path: &Path, answers: Arc<dyn Answers>, bounds: Bounds) -> io::Result<ControlServer> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = Arc::new(bind_private(path)?);
        let closed = Arc::new(AtomicBool::new(false));
        let server = Server { answers, bounds, clients: Arc::default() };
        let accepting = {
            let (listener, closed) = (listener.clone(), closed.clone());
            std::thread::Builder::new()
                .name("control".into())
                .spawn(move || accept(&listener, &closed, &server))?
        };
        Ok(ControlServer { path: path.to_owned(), listener, closed, thread: Some(accepting) })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // Wakes the accepting thread.
        let _ = rustix::net::shutdown(&*self.listener, Shutdown::Both);
        let _ = std::fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Binds a socket that only its owner can connect to from the first moment on: it gets its mode
/// under another name.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&temporary)?;
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&temporary, path)?;
    Ok(listener)
}

fn accept(listener: &UnixListener, closed: &AtomicBool, server: &Server) {
    for stream in listener.incoming() {
        if closed.load(Ordering::Acquire) {
            return;
        }
        match stream {
            Ok(stream) => server.welcome(stream),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!(%error, "accepting a control client");
                // Out of descriptors, most likely: others must finish first.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

struct Server {
    answers: Arc<dyn Answers>,
    bounds: Bounds,
    clients: Arc<AtomicUsize>,
}

/// One of the places for clients; free again when dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Server {
    fn welcome(&self, stream: UnixStream) {
        let place = Place(self.clients.clone());
        if self.clients.fetch_add(1, Ordering::AcqRel) >= self.bounds.clients {
            return turn_away(&stream, self.bounds.clients);
        }
        let (answers, bounds) = (self.answers.clone(), self.bounds);
        let serving = std::thread::Builder::new().name("control-client".into());
        let spawned = serving.spawn(move || {
            let _place = place;
            serve(&stream, &*answers, bounds);
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread for a control client");
        }
    }
}

/// Tells a client that there is no place; it fits the socket's buffer, so nothing waits here.
fn turn_away(stream: &UnixStream, clients: usize) {
    let message = format!("{clients} clients are being served already; try again");
    let busy = Reply::error(Failure { code: ErrorCode::Busy, message });
    let _ = line::write(stream, busy.to_line().as_bytes(), Duration::from_secs(1));
}

fn serve(stream: &UnixStream, answers: &dyn Answers, bounds: Bounds) {
    let Ok(far) = stream.try_clone() else { return };
    let mut requests = LineReader::new(far, MAX_REQUEST);
    loop {
        let (answer, last) = match requests.next(bounds.request) {
            Ok(line) => (carry_out(&line, answers), false),
            Err(LineError::TooLong { .. }) => (Reply::error(Failure::request_too_long()).to_line(), true),
            Err(error @ LineError::TimedOut { .. }) => {
                let failure = Failure { code: ErrorCode::TimedOut, message: error.to_string() };
                (Reply::error(failure).to_line(), true)
            }
            Err(_) => return,
        };
        if line::write(stream, answer.as_bytes(), bounds.answer).is_err() || last {
            return;
        }
    }
}

fn carry_out(line: &[u8], answers: &dyn Answers) -> String {
    match Call::from_line(line) {
        Err(failure) => Reply::error(failure).to_line(),
        Ok(call) => catch_unwind(AssertUnwindSafe(|| answers.answer(call))).unwrap_or_else(|_| {
            Reply::error(Failure::internal("the daemon failed while answering; see its log".into())).to_line()
        }),
    }
}
