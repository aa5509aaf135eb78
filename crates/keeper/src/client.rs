//! The daemon's side of the keeper: what is to be held, and another keeper when one dies.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use vmlane_access::Peer;
use vmlane_state::{Found, Store};

use crate::KeeperError;
use crate::protocol::{
    DROP, DROP_ALL, END, HOLD, LIST, LISTED, PUT, Packet, hold, parse_hold, receive, send,
};

/// How long a keeper may take to start, or the previous keeper's daemon to be gone.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Who starts keepers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The daemon itself.
    Daemon,
    /// A service manager, to which the keeper is a service of its own. The daemon waits for it.
    Service,
}

/// A keeper and what it was given: all of it is put again where it has to be replaced.
pub struct Keeper {
    path: PathBuf,
    origin: Origin,
    inner: Mutex<Inner>,
    /// Prefixes of names that were dropped because no daemon came in time before this one.
    dropped: Vec<String>,
}

struct Inner {
    socket: Arc<OwnedFd>,
    held: BTreeMap<String, OwnedFd>,
    /// By prefix: how long its names are held without a daemon.
    holds: BTreeMap<String, Duration>,
    ended: bool,
    /// No keeper is there, which is logged.
    is_missing: bool,
}

impl Keeper {
    /// The keeper at `path`, and what it holds. If there is none, it is started or waited for. `reached`: see
    /// [`reach`].
    pub fn connect(
        path: &Path,
        reached: Option<OwnedFd>,
        origin: Origin,
    ) -> Result<(Arc<Keeper>, Found), KeeperError> {
        let host = |what| {
            let path = path.to_owned();
            move |cause: io::Error| KeeperError::Host { path, what, cause }
        };
        let socket = match (reached.map_or_else(|| open(path), Ok), origin) {
            (Ok(socket), _) => socket,
            (Err(_), Origin::Daemon) => start(path).map_err(host("starting a keeper"))?,
            (Err(_), Origin::Service) => wait_for(path).map_err(host("waiting for a keeper"))?,
        };
        let (found, is_missing) = match (list(&socket), origin) {
            (Ok(found), _) => (found, false),
            (Err(error), Origin::Daemon) => return Err(host("asking the keeper what it holds")(error)),
            // The next one gets everything, and so the daemon after this one.
            (Err(error), Origin::Service) => {
                let path = path.display();
                tracing::error!(%path, %error, "no keeper; VMs will notice if this daemon ends before there is one");
                (Default::default(), true)
            }
        };
        let (found, dropped) = found;
        for (prefix, seconds) in &dropped {
            tracing::warn!(
                prefix,
                seconds,
                "no daemon came within this time (daemon: hold): the keeper has closed these"
            );
            let _ = send(&socket, HOLD, &hold(prefix, None), None);
        }
        let mut held = BTreeMap::new();
        for (name, fd) in &found.0 {
            held.insert(name.clone(), fd.try_clone().map_err(host("taking what the keeper holds"))?);
        }
        let (socket, holds) = (Arc::new(socket), BTreeMap::new());
        let inner = Mutex::new(Inner { socket, held, holds, ended: false, is_missing });
        let dropped = dropped.into_iter().map(|(prefix, _)| prefix).collect();
        let keeper = Arc::new(Keeper { path: path.to_owned(), origin, inner, dropped });
        let watched = Arc::downgrade(&keeper);
        std::thread::Builder::new()
            .name("keeper".into())
            .spawn(move || watch(&watched))
            .map_err(host("starting a thread"))?;
        Ok((keeper, found))
    }

    /// No daemon follows this one: the keeper ends and everything it holds is closed.
    pub fn end(&self) {
        let mut inner = self.inner.lock();
        inner.ended = true;
        inner.held.clear();
        // A keeper that does not receive it is gone already.
        let _ = send(&*inner.socket, END, "", None);
        let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(&*inner.socket, PollFlags::IN)], Some(&timeout));
    }

    /// Another keeper in place of one that died; it gets everything again.
    fn replace(&self) {
        let mut inner = self.inner.lock();
        if inner.ended {
            return;
        }
        if !inner.is_missing {
            tracing::warn!("the keeper has ended; another one gets what it held");
        }
        let next = match self.origin {
            Origin::Daemon => start(&self.path),
            Origin::Service => open(&self.path),
        };
        match next {
            Ok(socket) => {
                inner.is_missing = false;
                inner.socket = Arc::new(socket);
                for (prefix, at_most) in &inner.holds {
                    // One that is gone already is seen below, or replaced as this one is.
                    let _ = send(&*inner.socket, HOLD, &hold(prefix, Some(*at_most)), None);
                }
                let refused = inner.held.iter().find_map(|(name, fd)| {
                    Some((name, send(&*inner.socket, PUT, name, Some(fd.as_fd())).err()?))
                });
                match refused {
                    Some((name, error)) => {
                        tracing::warn!(name, %error, "a descriptor cannot be handed to the keeper");
                    }
                    None => {
                        tracing::info!(descriptors = inner.held.len(), "the new keeper has everything");
                    }
                }
            }
            Err(error) if !std::mem::replace(&mut inner.is_missing, true) => {
                tracing::error!(path = %self.path.display(), %error, "no keeper; trying again and again");
            }
            Err(_) => {}
        }
    }
}

impl Store for Keeper {
    fn put(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        let kept = fd.try_clone_to_owned()?;
        let mut inner = self.inner.lock();
        inner.held.insert(name.to_owned(), kept);
        // A keeper that is gone is replaced, and the next one gets this too.
        let _ = send(&*inner.socket, PUT, name, Some(fd));
        Ok(())
    }

    fn remove(&self, name: &str) {
        let mut inner = self.inner.lock();
        if inner.held.remove(name).is_some() {
            let _ = send(&*inner.socket, DROP, name, None);
        }
    }

    fn remove_all(&self, prefix: &str) {
        let mut inner = self.inner.lock();
        let before = inner.held.len();
        inner.held.retain(|name, _| !name.starts_with(prefix));
        if inner.held.len() != before {
            let _ = send(&*inner.socket, DROP_ALL, prefix, None);
        }
    }

    fn hold(&self, prefix: &str, at_most: Option<Duration>) {
        let mut inner = self.inner.lock();
        match at_most {
            Some(at_most) => _ = inner.holds.insert(prefix.to_owned(), at_most),
            None => _ = inner.holds.remove(prefix),
        }
        let _ = send(&*inner.socket, HOLD, &hold(prefix, at_most), None);
    }

    fn was_dropped(&self, prefix: &str) -> bool {
        self.dropped.iter().any(|dropped| dropped == prefix)
    }
}

/// Waits for the end of each keeper, as long as one is wanted.
fn watch(keeper: &Weak<Keeper>) {
    loop {
        let Some(socket) = keeper.upgrade().map(|keeper| keeper.inner.lock().socket.clone()) else { return };
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        // It never sends anything unasked: whatever comes is its end.
        let _ = poll(&mut fds, None);
        drop(socket);
        match keeper.upgrade() {
            Some(keeper) if !keeper.inner.lock().ended => keeper.replace(),
            _ => return,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Connects to a keeper that is there: to be called while this process still is who it was started as, for
/// a keeper talks to daemons of its own user and of root only.
pub fn reach(path: &Path) -> Option<OwnedFd> {
    open(path).ok()
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// A connection to a keeper that another process starts. If none comes, one that has ended.
fn wait_for(path: &Path) -> io::Result<OwnedFd> {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        if let Ok(socket) = open(path) {
            return Ok(socket);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let (socket, _) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok(socket)
}

/// Starts this very program as a keeper, in a session of its own, and connects to it.
fn start(path: &Path) -> io::Result<OwnedFd> {
    let runtime = path.parent().unwrap_or(Path::new("/"));
    let mut command = Command::new("/proc/self/exe");
    command.arg0("vmlane").arg("keeper").arg("--runtime-dir").arg(runtime);
    command.arg("--daemon").arg(std::process::id().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    // That it is ready is no notification of the daemon's.
    command.env_remove("NOTIFY_SOCKET");
    let mut child = command.spawn()?;
    let deadline = Instant::now() + TIMEOUT;
    let socket = loop {
        match open(path) {
            // One that is just ending may still listen: what it is given is lost.
            Ok(socket) if Peer::of(&socket)?.pid == child.id() as i32 => break socket,
            Ok(_) if Instant::now() > deadline => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) if Instant::now() > deadline || child.try_wait()?.is_some() => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    // Its exit status must be collected, or it stays in the process table.
    let _ = std::thread::Builder::new().name("keeper-end".into()).spawn(move || child.wait());
    Ok(socket)
}

/// What a keeper holds, and each prefix whose names it has dropped, with the seconds that it had held them
/// without a daemon.
fn list(socket: &OwnedFd) -> io::Result<(Found, Vec<(String, u64)>)> {
    let (mut found, mut dropped) = (Found::default(), Vec::new());
    each(socket, |packet| match (packet.what, packet.fd) {
        (PUT, Some(fd)) => _ = found.0.insert(packet.name, fd),
        (HOLD, _) => {
            let hold = parse_hold(&packet.name);
            dropped
                .extend(hold.map(|(prefix, time)| (prefix.to_owned(), time.unwrap_or_default().as_secs())));
        }
        _ => {}
    })?;
    Ok((found, dropped))
}

/// One packet after another of a keeper's answer.
fn each(socket: &OwnedFd, mut packet: impl FnMut(Packet)) -> io::Result<()> {
    send(socket, LIST, "", None)?;
    loop {
        match receive(socket)?.ok_or(io::ErrorKind::UnexpectedEof)? {
            listed if listed.what == LISTED => return Ok(()),
            other => packet(other),
        }
    }
}

/// What a keeper holds by this name, for a process that is no daemon. It waits until no daemon is connected.
pub fn find(path: &Path, wanted: &str) -> io::Result<Option<OwnedFd>> {
    let mut found = None;
    visit(path, |packet| {
        if packet.what == PUT && packet.name == wanted {
            found = packet.fd;
        }
    })?;
    Ok(found)
}

/// Devices whose VMMs wait for a daemon, as their names begin.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    pub held: Vec<String>,
    /// No longer held, because no daemon came in time.
    pub lost: Vec<String>,
}

/// The same of sessions.
pub fn sessions(path: &Path) -> io::Result<Sessions> {
    let mut sessions = Sessions::default();
    visit(path, |packet| match packet.what {
        PUT => sessions.held.extend(packet.name.strip_suffix("/s/sock").map(str::to_owned)),
        HOLD => {
            let prefix = parse_hold(&packet.name).and_then(|(prefix, _)| prefix.strip_suffix("/s/"));
            sessions.lost.extend(prefix.map(str::to_owned));
        }
        _ => {}
    })?;
    Ok(sessions)
}

/// Packets of a keeper's list; none where there is no keeper.
fn visit(path: &Path, packet: impl FnMut(Packet)) -> io::Result<()> {
    let socket = match open(path) {
        Ok(socket) => socket,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
    // What is not kept is closed at once: there may be more than this process may have.
    each(&socket, packet).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "it serves another process"),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use rustix::net::accept;

    use super::*;
    use crate::process::listen;

    #[test]
    fn a_keeper_in_place_of_one_that_died_is_sent_everything() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("keeper.sock");
        let next = |socket: &OwnedFd| {
            let Packet { what, name, .. } = receive(socket).unwrap().unwrap();
            (what, name)
        };
        let listener = listen(&path).unwrap();
        let first = std::thread::spawn(move || {
            let socket = accept(&listener).unwrap();
            assert_eq!(next(&socket).0, LIST);
            send(&socket, HOLD, &hold("gone/s/", Some(Duration::from_secs(7))), None).unwrap();
            send(&socket, LISTED, "", None).unwrap();
            [(); 5].map(|()| next(&socket))
        });
        let (keeper, found) = Keeper::connect(&path, None, Origin::Service).unwrap();
        assert!(found.is_empty());
        for at_most in [None, Some(Duration::from_millis(1)), Some(Duration::from_secs(30))] {
            keeper.hold("a/s/", at_most);
        }
        keeper.put("a/s/sock", listen(&base.path().join("any")).unwrap().as_fd()).unwrap();
        let owned = |packets: &[(u8, &str)]| -> Vec<(u8, String)> {
            packets.iter().map(|&(what, name)| (what, name.to_owned())).collect()
        };
        let (held, sock) = ((HOLD, "30 a/s/"), (PUT, "a/s/sock"));
        let requests = [(HOLD, "0 gone/s/"), (HOLD, "0 a/s/"), (HOLD, "1 a/s/"), held, sock];
        assert_eq!(first.join().unwrap(), *owned(&requests));
        let listener = listen(&path).unwrap();
        let socket = accept(&listener).unwrap();
        assert_eq!([(); 2].map(|()| next(&socket)), *owned(&[held, sock]));
    }
}
