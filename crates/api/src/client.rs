//! A client of the daemon: one connection, one call after the other.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::answer::{ErrorCode, Failure};
use crate::calls::{Method, call};
use crate::capture::{CaptureRequest, Captured};
use crate::message::{self, MessageError, MessageReader};
use crate::varlink::{self, Answered};
use crate::{MAX_ANSWER, RUNTIME_DIR, control_socket};

/// Bytes of the longest path that a unix socket can have.
const LONGEST_SOCKET: usize = 107;

/// What went wrong between the daemon and us, or the daemon's error.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no daemon answers at {path}: {cause}; {}", way_out(runtime_dir))]
    NoDaemon { path: PathBuf, runtime_dir: PathBuf, cause: io::Error },
    #[error(
        "{path}: {cause}; root may ask it, the user who runs it, and others that its configuration names: \
             [[control]] uid = NUMBER, may = \"observe\"{}",
        of_no_own_daemon(path)
    )]
    Denied { path: PathBuf, cause: io::Error },
    #[error("the daemon at {path} did not answer {method}: {cause}")]
    NoAnswer { path: PathBuf, method: String, cause: MessageError },
    #[error("the daemon at {path} answered {method} with something else: {what}")]
    BadAnswer { path: PathBuf, method: String, what: String },
    /// The daemon refused.
    #[error(transparent)]
    Refused(#[from] Failure),
}

impl ClientError {
    /// The kind of refusal, if the daemon refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            ClientError::Refused(failure) => Some(failure.code),
            _ => None,
        }
    }
}

/// What to do about a daemon that is not there.
fn way_out(runtime_dir: &Path) -> String {
    if let Some(hint) = no_own_daemon(runtime_dir) {
        return hint;
    }
    if control_socket(runtime_dir).as_os_str().len() > LONGEST_SOCKET {
        return format!("a unix socket path may have {LONGEST_SOCKET} bytes; use a shorter --runtime-dir");
    }
    format!(
        "start one with `vmlane daemon --runtime-dir {}`, or name the directory of a running one with --runtime-dir",
        runtime_dir.display()
    )
}

/// Why no daemon of a user's own was asked, if that may be what was meant.
fn no_own_daemon(runtime_dir: &Path) -> Option<String> {
    let user = rustix::process::geteuid();
    let is_set = std::env::var_os("XDG_RUNTIME_DIR").is_some();
    (runtime_dir == Path::new(RUNTIME_DIR) && !user.is_root() && !is_set).then(|| {
        format!(
            "XDG_RUNTIME_DIR is not set, so no daemon of this user's own was tried: set it \
             (`export XDG_RUNTIME_DIR=/run/user/{}`), or name a directory with --runtime-dir",
            user.as_raw()
        )
    })
}

/// The same behind another message, about a control socket.
fn of_no_own_daemon(control: &Path) -> String {
    let hint = control.parent().and_then(no_own_daemon);
    hint.map(|hint| format!("; {hint}")).unwrap_or_default()
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: UnixStream,
    answers: MessageReader,
    timeout: Duration,
}

impl AsFd for Client {
    /// The connection: the kernel knows which process is at its other end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Client {
    /// How long an answer may take.
    pub const TIMEOUT: Duration = Duration::from_secs(10);

    /// Connects to the daemon of a runtime directory.
    pub fn connect(runtime_dir: &Path) -> Result<Client, ClientError> {
        let path = control_socket(runtime_dir);
        let connected = UnixStream::connect(&path).and_then(|stream| Ok((stream.try_clone()?, stream)));
        match connected {
            Ok((stream, far)) => {
                let answers = MessageReader::with_files(far, MAX_ANSWER);
                Ok(Client { path, stream, answers, timeout: Client::TIMEOUT })
            }
            Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => {
                Err(ClientError::Denied { path, cause })
            }
            Err(cause) => Err(ClientError::NoDaemon { path, runtime_dir: runtime_dir.to_owned(), cause }),
        }
    }

    /// Changes how long an answer may take.
    pub fn with_timeout(mut self, timeout: Duration) -> Client {
        self.timeout = timeout;
        self
    }

    /// Asks and waits for the answer, which must have the form that belongs to the method.
    pub fn call<M: Method>(&mut self, call: &M) -> Result<M::Answer, ClientError> {
        let (path, method) = (self.path.clone(), M::ROW.plain_name());
        // A failed write is not the last word: a daemon that is busy answers first and closes then.
        let sent = message::write(&self.stream, &varlink::request(call), self.timeout);
        let answer = match (self.answers.next(self.timeout), sent) {
            (Ok(answer), _) => answer,
            (Err(_), Err(cause)) | (Err(cause), Ok(())) => {
                return Err(ClientError::NoAnswer { path, method, cause });
            }
        };
        match varlink::answered(&answer) {
            Answered::Ok(answer) => Ok(answer),
            Answered::Refused(failure) => Err(failure.into()),
            Answered::Otherwise(what) => Err(ClientError::BadAnswer { path, method, what }),
        }
    }

    /// Begins a capture, which takes the connection: what it captures, the file of its ring, and its end of
    /// the connection.
    pub fn capture(
        mut self,
        capture: CaptureRequest,
    ) -> Result<(Captured, OwnedFd, CaptureLink), ClientError> {
        let captured = self.call(&call::Capture { capture })?;
        let Some(file) = self.answers.take_file() else {
            let (path, method) = (self.path, call::Capture::ROW.plain_name());
            return Err(ClientError::BadAnswer { path, method, what: "no file came with the answer".into() });
        };
        Ok((captured, file, CaptureLink(self)))
    }
}

/// The client's end of a capture's connection.
#[derive(Debug)]
pub struct CaptureLink(Client);

impl CaptureLink {
    /// Has the daemon ended?
    pub fn closed(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut files = [PollFd::new(&self.0, PollFlags::IN)];
        // The daemon sends nothing unasked: whatever comes is its end.
        poll(&mut files, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Ends the capture and waits until nothing is added to the ring any more. False: the daemon has ended.
    pub fn stop(&mut self, timeout: Duration) -> bool {
        self.0.stream.shutdown(Shutdown::Write).is_ok() && self.0.answers.next(timeout).is_ok()
    }
}
