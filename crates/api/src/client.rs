//! A client of the daemon: one connection, one call after the other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::answer::{
    Done, ErrorCode, Failure, LinkSet, Outcome, Pong, Ports, Reloaded, Reply, Stats, Status,
};
use crate::calls::Call;
use crate::capture::{CaptureLink, CaptureRequest, Captured, receive_with_file};
use crate::message::{self, LineError, LineReader};
use crate::mirror::MirrorRequest;
use crate::ovn::{OvnEntries, OvnReport};
use crate::vms::{VmAdded, VmList, VmRemoved};
use crate::{MAX_ANSWER, RUNTIME_DIR, VERSION, control_socket};

/// Bytes of the longest path that a unix socket can have.
const LONGEST_SOCKET: usize = 107;

/// What went wrong between the daemon and us, or what it said.
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
    NoAnswer { path: PathBuf, method: String, cause: LineError },
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
    let user = rustix::process::geteuid();
    if runtime_dir == Path::new(RUNTIME_DIR)
        && !user.is_root()
        && std::env::var_os("XDG_RUNTIME_DIR").is_none()
    {
        return format!(
            "XDG_RUNTIME_DIR is not set, so no daemon of this user's own was looked for: set it \
             (`export XDG_RUNTIME_DIR=/run/user/{}`), or name a directory with --runtime-dir",
            user.as_raw()
        );
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
            "XDG_RUNTIME_DIR is not set, so no daemon of this user's own was looked for: set it \
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
    answers: LineReader,
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
                let answers = LineReader::new(far, MAX_ANSWER);
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
    pub fn call<T: DeserializeOwned>(&mut self, call: &Call) -> Result<T, ClientError> {
        // A failed write is not the last word: a daemon that is busy answers first and closes then.
        let sent = message::write(&self.stream, call.to_line().as_bytes(), self.timeout);
        let line = match (self.answers.next(self.timeout), sent) {
            (Ok(line), _) => line,
            (Err(_), Err(cause)) | (Err(cause), Ok(())) => return Err(self.no_answer(call, cause)),
        };
        self.body(call, &line)
    }

    /// What an answer's line says.
    fn body<T: DeserializeOwned>(&self, call: &Call, line: &[u8]) -> Result<T, ClientError> {
        let reply: Reply<T> = serde_json::from_slice(line).map_err(|error| self.bad_answer(call, error))?;
        if reply.version != VERSION {
            let what = format!("version {}, and this program speaks {VERSION}", reply.version);
            return Err(self.bad_answer(call, what));
        }
        match reply.outcome {
            Outcome::Ok(body) => Ok(body),
            Outcome::Error(failure) => Err(failure.into()),
        }
    }

    pub fn ping(&mut self) -> Result<Pong, ClientError> {
        self.call(&Call::Ping)
    }

    pub fn status(&mut self) -> Result<Status, ClientError> {
        self.call(&Call::Status)
    }

    pub fn stats(&mut self) -> Result<Stats, ClientError> {
        self.call(&Call::Stats)
    }

    pub fn ports(&mut self) -> Result<Ports, ClientError> {
        self.call(&Call::Ports)
    }

    pub fn reload(&mut self) -> Result<Reloaded, ClientError> {
        self.call(&Call::Reload)
    }

    pub fn release(&mut self, vm: &str) -> Result<(), ClientError> {
        self.call(&Call::Release { vm: vm.to_owned() }).map(|Done {}| ())
    }

    /// Sets the link of a VM's NIC up or down.
    pub fn set_link(&mut self, vm: &str, nic: &str, up: bool) -> Result<LinkSet, ClientError> {
        self.call(&Call::Link { vm: vm.to_owned(), nic: nic.to_owned(), up })
    }

    /// Has a VM served, now and by later daemons: one table `[[vm]]` of a configuration.
    pub fn add_vm(&mut self, description: &str) -> Result<VmAdded, ClientError> {
        self.call(&Call::VmAdd { description: description.to_owned() })
    }

    /// Ends a VM that was added; with `force` also if a VMM is attached.
    pub fn remove_vm(&mut self, name: &str, force: bool) -> Result<VmRemoved, ClientError> {
        self.call(&Call::VmRemove { name: name.to_owned(), force })
    }

    /// All VMs, with where they are described.
    pub fn list_vms(&mut self) -> Result<VmList, ClientError> {
        self.call(&Call::VmList)
    }

    /// Copies what passes some ports to another one.
    pub fn add_mirror(&mut self, mirror: MirrorRequest) -> Result<(), ClientError> {
        self.call(&Call::MirrorAdd { mirror }).map(|Done {}| ())
    }

    /// Ends a mirror that was added.
    pub fn remove_mirror(&mut self, name: &str) -> Result<(), ClientError> {
        self.call(&Call::MirrorRemove { name: name.to_owned() }).map(|Done {}| ())
    }

    /// Sets the link of an uplink up or down.
    pub fn set_uplink_link(&mut self, uplink: &str, up: bool) -> Result<LinkSet, ClientError> {
        self.call(&Call::LinkUplink { uplink: uplink.to_owned(), up })
    }

    /// For the helper of OVN: tells what it has found out, and hears which ports are to be up.
    pub fn ovn(&mut self, reports: Vec<OvnReport>) -> Result<OvnEntries, ClientError> {
        self.call(&Call::Ovn { reports })
    }

    pub fn debug_panic(&mut self, vm: &str, at: Option<String>) -> Result<(), ClientError> {
        self.call(&Call::DebugPanic { vm: vm.to_owned(), at }).map(|Done {}| ())
    }

    pub fn debug_stall(&mut self, vm: &str, at: &str, milliseconds: u32) -> Result<(), ClientError> {
        let (vm, at) = (vm.to_owned(), at.to_owned());
        self.call(&Call::DebugStall { vm, at, milliseconds }).map(|Done {}| ())
    }

    pub fn debug_move(&mut self, vm: &str, at: &str, worker: u32) -> Result<(), ClientError> {
        let (vm, at) = (vm.to_owned(), at.to_owned());
        self.call(&Call::DebugMove { vm, at, worker }).map(|Done {}| ())
    }

    pub fn debug_trespass(&mut self, vm: &str, at: &str) -> Result<(), ClientError> {
        let (vm, at) = (vm.to_owned(), at.to_owned());
        self.call(&Call::DebugTrespass { vm, at }).map(|Done {}| ())
    }

    /// `impairment`: `loss` and `reorder` of 1000 frames, `delay_us` microseconds, the `longest` frame, `seed`.
    pub fn debug_impair(
        &mut self,
        vm: &str,
        at: &str,
        (loss, reorder, delay_us, longest, seed): (u16, u16, u32, Option<u32>, u64),
    ) -> Result<(), ClientError> {
        let (vm, at) = (vm.to_owned(), at.to_owned());
        self.call(&Call::DebugImpair { vm, at, loss, reorder, delay_us, longest, seed }).map(|Done {}| ())
    }

    /// Begins a capture, which takes the connection: what it captures, the file of its ring, and its end of the connection.
    pub fn capture(self, request: &CaptureRequest) -> Result<(Captured, OwnedFd, CaptureLink), ClientError> {
        let call = Call::Capture { capture: request.clone() };
        let sent = message::write(&self.stream, call.to_line().as_bytes(), self.timeout);
        let received = receive_with_file(&self.stream, MAX_ANSWER, self.timeout);
        let (line, file) = match (received, sent) {
            (Ok(received), _) => received,
            (Err(_), Err(cause)) | (Err(cause), Ok(())) => return Err(self.no_answer(&call, cause)),
        };
        let captured = self.body(&call, &line)?;
        let file = file.ok_or_else(|| self.bad_answer(&call, "no file came with the answer"))?;
        Ok((captured, file, CaptureLink::new(self.stream)))
    }

    pub fn shutdown(&mut self) -> Result<(), ClientError> {
        self.call(&Call::Shutdown).map(|Done {}| ())
    }

    /// Layout of the state that the daemon keeps for the next one.
    pub fn layout(&mut self) -> Result<u32, ClientError> {
        if let Some(layout) = self.ping()?.layout {
            return Ok(layout);
        }
        // A daemon that does not say it when asked says it when it refuses to hand over, and no daemon knows this layout.
        let call = Call::HandOver { layout: u32::MAX };
        match self.call(&call) {
            Ok(Done {}) => {
                Err(self.bad_answer(&call, "it makes room for a daemon that knows nothing of its state"))
            }
            Err(ClientError::Refused(failure)) => {
                layout_in(&failure.message).ok_or(ClientError::Refused(failure))
            }
            Err(error) => Err(error),
        }
    }

    /// Has the daemon make room for one that knows state of `layout`.
    pub fn hand_over(&mut self, layout: u32) -> Result<(), ClientError> {
        self.call(&Call::HandOver { layout }).map(|Done {}| ())
    }

    fn no_answer(&self, call: &Call, cause: LineError) -> ClientError {
        ClientError::NoAnswer { path: self.path.clone(), method: call.method().into(), cause }
    }

    fn bad_answer(&self, call: &Call, what: impl ToString) -> ClientError {
        ClientError::BadAnswer {
            path: self.path.clone(),
            method: call.method().into(),
            what: what.to_string(),
        }
    }
}

/// The layout that a refusal to hand over names.
fn layout_in(refusal: &str) -> Option<u32> {
    let (_, rest) = refusal.split_once("state has layout ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_to_hand_over_names_the_layout() {
        let table = [
            ("this daemon's state has layout 4, the one that asks knows 4294967295; this one stays", Some(4)),
            ("this daemon's state has layout 12", Some(12)),
            ("this daemon's state has layout , or none", None),
            ("this daemon's state has layout 99999999999", None),
            ("the daemon is stopping already", None),
            ("", None),
        ];
        for (refusal, layout) in table {
            assert_eq!(layout_in(refusal), layout, "{refusal}");
        }
    }
}
