//! How a process asks the daemon: one record there, one record back.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use vmlane_wire::host::{MAGIC, REPLY, Reply, Request};
use zerocopy::{FromBytes, IntoBytes};

/// Names another runtime directory than the daemon's default.
pub const RUNTIME_DIR_VARIABLE: &str = "VMLANE_RUNTIME_DIR";
const RUNTIME_DIR: &str = "/run/vmlane";
const HOST_SOCKET: &str = "host.sock";

/// The runtime directory of the daemon to ask: the one of `VMLANE_RUNTIME_DIR`, else that of a daemon of the
/// user's own, else `/run/vmlane`.
pub fn runtime_dir() -> PathBuf {
    named().unwrap_or_else(|| {
        let own = own().filter(|own| own.join(HOST_SOCKET).exists());
        own.unwrap_or_else(|| PathBuf::from(RUNTIME_DIR))
    })
}

/// The runtime directory of a daemon that this user starts: the one of `VMLANE_RUNTIME_DIR`, else of
/// `$XDG_RUNTIME_DIR/vmlane` for who is not root, else `/run/vmlane`.
pub fn new_runtime_dir() -> PathBuf {
    named().or_else(own).unwrap_or_else(|| PathBuf::from(RUNTIME_DIR))
}

fn named() -> Option<PathBuf> {
    variable(RUNTIME_DIR_VARIABLE)
}

/// Where a daemon of a user who is not root has its sockets.
fn own() -> Option<PathBuf> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return None;
    }
    let base = variable("XDG_RUNTIME_DIR").or_else(|| {
        // Where systemd makes it, for sessions that were begun without the variable (su, cron).
        let usual = PathBuf::from(format!("/run/user/{}", user.as_raw()));
        std::fs::metadata(&usual).is_ok_and(|of| of.is_dir() && of.uid() == user.as_raw()).then_some(usual)
    });
    Some(base?.join("vmlane"))
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Where the daemon is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    path: PathBuf,
}

impl Default for Host {
    /// The one of [`runtime_dir`].
    fn default() -> Host {
        Host::at(&runtime_dir())
    }
}

/// A record that came, with what was attached to it.
pub(crate) struct Answer {
    pub cid: u32,
    pub port: u32,
    pub fds: Vec<OwnedFd>,
}

impl Host {
    /// The daemon whose runtime directory is `directory`.
    pub fn at(directory: &Path) -> Host {
        Host { path: directory.join(HOST_SOCKET) }
    }

    /// Is there a daemon's socket, whether or not a daemon serves it?
    pub fn is_there(&self) -> bool {
        self.path.exists()
    }

    /// Sends a request and waits for the answer.
    pub(crate) fn ask(&self, request: Request) -> io::Result<(UnixStream, Answer)> {
        let stream = UnixStream::connect(&self.path).map_err(|error| self.explain(error))?;
        let sent = rustix::net::send(&stream, request.as_bytes(), rustix::net::SendFlags::NOSIGNAL)?;
        if sent != request.as_bytes().len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let answer = receive(&stream)?.ok_or_else(gone)?;
        Ok((stream, answer))
    }

    fn explain(&self, error: io::Error) -> io::Error {
        let path = self.path.display();
        let text = match error.kind() {
            io::ErrorKind::NotFound => format!(
                "{path} does not exist: start the daemon (`vmlane daemon`), or name its runtime directory \
                 in {RUNTIME_DIR_VARIABLE}"
            ),
            io::ErrorKind::ConnectionRefused => {
                format!("no daemon serves {path}: the one that created it is gone; start it again")
            }
            io::ErrorKind::PermissionDenied => format!(
                "{path}: permission denied; add a [[host]] rule for this user to the daemon's configuration"
            ),
            io::ErrorKind::InvalidInput => format!("{path}: a unix socket path may have 107 bytes"),
            _ => format!("{path}: {error}"),
        };
        io::Error::new(error.kind(), text)
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the daemon closed the connection")
}

/// One record; `None` at the end. An error in the record is an error.
pub(crate) fn receive(socket: &UnixStream) -> io::Result<Option<Answer>> {
    let mut bytes = [0; REPLY];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let parts = &mut [io::IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let fds = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    if message.bytes == 0 {
        return Ok(None);
    }
    let reply = Reply::read_from_bytes(&bytes)
        .ok()
        .filter(|reply| message.bytes == REPLY && reply.magic.get() == MAGIC);
    let reply = reply
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the daemon speaks another version"))?;
    match reply.error.get() {
        0 => Ok(Some(Answer { cid: reply.cid.get(), port: reply.port.get(), fds })),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
