//! `vmlane keeper`: holds descriptors for one daemon after the other. One thread, one loop; it checks
//! nothing but names.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Resource, Rlimit, geteuid, getppid, getrlimit, setrlimit};
use vmlane_access::{Peer, Trust};

use crate::protocol::{
    DROP, DROP_ALL, END, HOLD, LIST, LISTED, PUT, Packet, hold, parse_hold, receive, send,
};

/// Descriptors held at most, and prefixes with a time; a daemon of the same host asks for them.
const MOST: usize = 65_536;
/// How often a keeper without a daemon checks that its socket can be found.
const CHECK: Duration = Duration::from_secs(2);

/// A process that is connected.
struct Client {
    socket: OwnedFd,
    /// It has sent a packet: nothing is dropped while it is connected.
    has_asked: bool,
    /// It has changed what is held, as only daemons do. Others come to see what is there, which must not
    /// prolong anything.
    is_daemon: bool,
}

/// For how long names that begin alike are held without a daemon.
struct Hold {
    at_most: Duration,
    /// It was longer than that, and they are dropped.
    is_over: bool,
}

/// What is held.
struct Holdings {
    by_name: BTreeMap<String, OwnedFd>,
    /// By prefix. A session ends by the removal of its prefix, whose time is that of the next session, too.
    holds: BTreeMap<String, Hold>,
    /// When the last daemon ended.
    left_at: Instant,
}

/// Serves in the directory `runtime` until a daemon announces that no other follows it. `starter`: the daemon
/// that started the keeper; the first connection must come from that process. Of later daemons no more is
/// known than their user: root, or the daemon's own. `ready` is called once it can be connected to.
pub fn serve(runtime: &Path, mut starter: Option<i32>, ready: impl FnOnce()) -> io::Result<()> {
    let path = &crate::socket(runtime);
    let owners = vmlane_confine::users(None, runtime, &[]);
    let trust = Trust { owners: if geteuid().is_root() { &owners } else { &[] }, ..Trust::default() };
    trust.open(runtime).map_err(|error| error.about(runtime))?;
    let limit = getrlimit(Resource::Nofile);
    // Fails only where the limit is not ours to change; then it is what it is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    // It could map what it holds, though it never does.
    vmlane_confine::no_core_dumps()?;
    let listener = listen(path)?;
    ready();
    let mut held = Holdings { by_name: BTreeMap::new(), holds: BTreeMap::new(), left_at: Instant::now() };
    let mut client: Option<Client> = None;
    loop {
        let mut fds = vec![match &client {
            Some(client) => PollFd::new(&client.socket, PollFlags::IN),
            None => PollFd::new(&listener, PollFlags::IN),
        }];
        let check = client.is_none().then_some(CHECK);
        let is_served = client.as_ref().is_some_and(|client| client.has_asked);
        let due = if is_served { None } else { held.due() };
        let timeout = check.into_iter().chain(due).min();
        match poll(&mut fds, timeout.map(timespec).as_ref()) {
            // A daemon that waits is let in first, however late it is.
            Ok(0) => {
                held.drop_overdue();
                // No daemon connects to a path that is gone.
                if client.is_none() && std::fs::symlink_metadata(path).is_err() {
                    return Ok(());
                }
                continue;
            }
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        // One daemon at a time: the next one waits in the queue until the previous one is gone, whose
        // last packets are obeyed first.
        let Some(served) = &mut client else {
            // A child whose parent dies gets another one.
            let expected = starter.filter(|pid| Pid::as_raw(getppid()) == *pid);
            client = accept(&listener, expected).map(|socket| Client {
                socket,
                has_asked: false,
                is_daemon: false,
            });
            starter = starter.filter(|_| client.is_none());
            continue;
        };
        match receive(&served.socket) {
            Ok(Some(packet)) if packet.what == END => {
                let _ = std::fs::remove_file(path);
                return Ok(());
            }
            Ok(Some(packet)) => {
                served.has_asked = true;
                served.is_daemon |= packet.what != LIST;
                held.carry_out(packet, &served.socket);
            }
            Ok(None) | Err(_) => {
                if served.is_daemon {
                    held.left_at = Instant::now();
                }
                client = None;
            }
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}

pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Before listening: until then no process can connect, whatever the umask was.
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
    rustix::net::listen(&socket, 8)?;
    Ok(socket)
}

/// A daemon: of the same user or root, and the one that is expected, if one is. Others are refused before
/// they have sent anything.
fn accept(listener: &OwnedFd, expected: Option<i32>) -> Option<OwnedFd> {
    let socket = rustix::net::accept_with(listener, SocketFlags::CLOEXEC).ok()?;
    let peer = Peer::of(&socket).ok()?;
    let trusted = peer.uid == geteuid().as_raw() || peer.uid == 0;
    (trusted && expected.is_none_or(|pid| pid == peer.pid)).then_some(socket)
}

impl Holdings {
    fn carry_out(&mut self, packet: Packet, socket: &OwnedFd) {
        let Packet { what, name, fd } = packet;
        match (what, fd) {
            (PUT, Some(fd)) if self.by_name.len() < MOST || self.by_name.contains_key(&name) => {
                self.by_name.insert(name, fd);
            }
            (DROP, _) => {
                self.by_name.remove(&name);
            }
            (DROP_ALL, _) => self.by_name.retain(|held, _| !held.starts_with(&name)),
            (HOLD, _) => match parse_hold(&name) {
                Some((prefix, Some(at_most)))
                    if self.holds.len() < MOST || self.holds.contains_key(prefix) =>
                {
                    self.holds.insert(prefix.to_owned(), Hold { at_most, is_over: false });
                }
                Some((prefix, None)) => _ = self.holds.remove(prefix),
                _ => {}
            },
            // A daemon that does not receive this is gone, which the next check shows.
            (LIST, _) => _ = self.list(socket),
            _ => {}
        }
    }

    fn list(&self, socket: &OwnedFd) -> io::Result<()> {
        for (name, fd) in &self.by_name {
            send(socket, PUT, name, Some(fd.as_fd()))?;
        }
        for (prefix, over) in self.holds.iter().filter(|(_, hold)| hold.is_over) {
            send(socket, HOLD, &hold(prefix, Some(over.at_most)), None)?;
        }
        send(socket, LISTED, "", None)
    }

    /// In how long something is to be dropped if no daemon comes.
    fn due(&self) -> Option<Duration> {
        let without = self.left_at.elapsed();
        let holds = self.holds.values().filter(|hold| !hold.is_over);
        holds.map(|hold| hold.at_most.saturating_sub(without)).min()
    }

    fn drop_overdue(&mut self) {
        let without = self.left_at.elapsed();
        let by_name = &mut self.by_name;
        // Of what was dropped the next daemon is notified; it asks again how long the rest is to be
        // held.
        self.holds.retain(|prefix, hold| {
            if hold.is_over || hold.at_most > without {
                return true;
            }
            hold.is_over = true;
            let before = by_name.len();
            by_name.retain(|name, _| !name.starts_with(prefix.as_str()));
            by_name.len() != before
        });
    }
}

#[cfg(test)]
mod tests;
