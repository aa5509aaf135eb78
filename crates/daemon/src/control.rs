//! The control socket: a thread per client, a bound on everything.
//!
//! Clients are the operator's programs, but a hung one must not keep another from asking, nor the daemon from
//! working: there are so many at once, a request must arrive and an answer be taken within a time, and a
//! fault while answering ends in an error answer. Users who may not change anything get a part of the places,
//! each of them a few: they keep no administrator out.

use std::any::Any;
use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::Shutdown;
use vmlane_access::Peer;
use vmlane_api::message::{self, MessageError, MessageReader};
use vmlane_api::varlink::{self, Understood};
use vmlane_api::{Call, ErrorCode, Failure, MAX_REQUEST};

pub use crate::access::May;
use crate::access::stranger;

/// Carries out requests; each on a thread of its own, so it may take its time.
pub trait Answers: Send + Sync + 'static {
    /// What a process may, if anything. May change while it is connected.
    fn may(&self, peer: &Peer) -> Option<May>;

    /// The answer to a process.
    fn answer(&self, call: Call, peer: &Peer) -> Result<Answer, Failure>;
}

/// An answer.
pub struct Answer {
    pub json: String,
    pub lasting: Option<Lasting>,
}

/// What lasts until the client closes its half of the connection, or sends anything.
pub struct Lasting {
    /// Goes with the answer.
    pub file: OwnedFd,
    /// Ends it when dropped. Then the client gets the answer again.
    pub holds: Box<dyn Any + Send>,
}

/// Bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Clients at once.
    pub clients: usize,
    /// Of those, clients at once that are no administrators, and of one user of them.
    pub others: usize,
    pub of_user: usize,
    /// How long a request may take to arrive, and a client may stay silent.
    pub request: Duration,
    /// How long a client may take to fetch an answer.
    pub answer: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            clients: 32,
            others: 16,
            of_user: 4,
            request: Duration::from_secs(10),
            answer: Duration::from_secs(5),
        }
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
        let server = Server { answers, bounds, places: Arc::default() };
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
                tracing::warn!(%error, "a control client cannot be accepted");
                // Out of descriptors, most likely: others must finish first.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

struct Server {
    answers: Arc<dyn Answers>,
    bounds: Bounds,
    places: Arc<Mutex<Places>>,
}

/// Places taken.
#[derive(Default)]
struct Places {
    all: usize,
    /// By users who are no administrators.
    others: HashMap<u32, usize>,
}

/// One of the places for clients; free again when dropped.
struct Place {
    places: Arc<Mutex<Places>>,
    /// The user, if it is no administrator's.
    other: Option<u32>,
}

impl Place {
    fn take(places: &Arc<Mutex<Places>>, other: Option<u32>, bounds: Bounds) -> Option<Place> {
        let mut taken = places.lock();
        let of_others = taken.others.values().sum::<usize>();
        let of_user = |uid| taken.others.get(&uid).copied().unwrap_or(0);
        if taken.all >= bounds.clients
            || other.is_some_and(|uid| of_others >= bounds.others || of_user(uid) >= bounds.of_user)
        {
            return None;
        }
        taken.all += 1;
        if let Some(uid) = other {
            *taken.others.entry(uid).or_default() += 1;
        }
        Some(Place { places: places.clone(), other })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.all -= 1;
        if let Some(uid) = self.other
            && let Some(count) = taken.others.get_mut(&uid)
        {
            *count -= 1;
            if *count == 0 {
                taken.others.remove(&uid);
            }
        }
    }
}

impl Server {
    fn welcome(&self, stream: UnixStream) {
        let peer = match Peer::of(&stream) {
            Ok(peer) => peer,
            Err(error) => return tracing::warn!(%error, "a control client's user is unknown"),
        };
        let Some(may) = self.answers.may(&peer) else { return turn_away(&stream, stranger(&peer)) };
        let other = (may != May::Admin).then_some(peer.uid);
        let Some(place) = Place::take(&self.places, other, self.bounds) else {
            let message = match other {
                None => format!("{} clients are being served already; try again", self.bounds.clients),
                Some(uid) => {
                    format!("too many clients of user {uid}, or of all users, are served; try again")
                }
            };
            return turn_away(&stream, Failure { code: ErrorCode::Busy, message });
        };
        let (answers, bounds) = (self.answers.clone(), self.bounds);
        let serving = std::thread::Builder::new().name("control-client".into());
        let spawned = serving.spawn(move || {
            let _place = place;
            serve(&stream, &peer, &*answers, bounds);
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "a thread for a control client cannot be started; its connection is closed");
        }
    }
}

/// Answers a client, whatever it asks, why it is not served; that fits the socket's buffer, so nothing waits
/// here.
fn turn_away(stream: &UnixStream, why: Failure) {
    let _ = message::write(stream, &varlink::failed(&why), Duration::from_secs(1));
}

/// One client's connection, until it ends. Public for the fuzzer.
#[doc(hidden)]
pub fn serve(stream: &UnixStream, peer: &Peer, answers: &dyn Answers, bounds: Bounds) {
    let Ok(far) = stream.try_clone() else { return };
    let mut requests = MessageReader::new(far, MAX_REQUEST);
    loop {
        let message = match requests.next(bounds.request) {
            Ok(message) => message,
            Err(MessageError::TooLong { .. }) => {
                let answer = varlink::failed(&Failure::request_too_long());
                let _ = message::write(stream, &answer, bounds.answer);
                return;
            }
            // Varlink has no answers without a request.
            Err(_) => return,
        };
        let Understood { oneway, call } = varlink::understand(&message, env!("CARGO_PKG_VERSION"));
        let answer = match call.map(|call| carry_out(call, peer, answers)) {
            Ok(Ok(Answer { json, lasting: None })) => varlink::succeeded(&json, false),
            Ok(Ok(Answer { json, lasting: Some(lasting) })) => return hold(stream, &json, lasting, bounds),
            Ok(Err(failure)) => varlink::failed(&failure),
            Err(answer) => answer,
        };
        if !oneway && message::write(stream, &answer, bounds.answer).is_err() {
            return;
        }
    }
}

/// Sends what lasts, and waits for its end. However many a client began, each has its place among the
/// clients.
fn hold(mut stream: &UnixStream, json: &str, Lasting { file, holds }: Lasting, bounds: Bounds) {
    let answer = varlink::succeeded(json, true);
    let sent = message::write_with_file(stream, &answer, file.as_fd(), bounds.answer);
    if sent.is_err() || stream.set_read_timeout(None).is_err() {
        return;
    }
    drop(file);
    while stream.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {}
    drop(holds);
    let _ = message::write(stream, &varlink::succeeded(json, false), bounds.answer);
}

fn carry_out(call: Call, peer: &Peer, answers: &dyn Answers) -> Result<Answer, Failure> {
    catch_unwind(AssertUnwindSafe(|| answers.answer(call, peer)))
        .unwrap_or_else(|_| Err(Failure::internal("the daemon failed while answering; see its log".into())))
}
