//! `vmlane keeper`: holds descriptors for one daemon after the other. One thread, one loop; it looks at
//! nothing but names.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Resource, Rlimit, geteuid, getppid, getrlimit, setrlimit};
use vmlane_access::{Peer, Trust};

use crate::protocol::{DROP, DROP_ALL, END, LIST, LISTED, PUT, Packet, receive, send};

/// Descriptors held at most; a daemon of the same host asks for them.
const MOST: usize = 65_536;

/// Serves in the directory `runtime` until a daemon says that no other follows it. `starter`: the daemon that started the keeper; the first
/// connection must come from that process. Of later daemons no more is known than their user: root, or the daemon's own. `ready` is
/// called once it can be connected to.
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
    let mut held: BTreeMap<String, OwnedFd> = BTreeMap::new();
    let mut daemon: Option<OwnedFd> = None;
    loop {
        let mut fds = vec![match &daemon {
            Some(daemon) => PollFd::new(daemon, PollFlags::IN),
            None => PollFd::new(&listener, PollFlags::IN),
        }];
        let look = Timespec { tv_sec: 2, tv_nsec: 0 };
        match poll(&mut fds, daemon.is_none().then_some(&look)) {
            // No daemon connects to a path that is gone.
            Ok(0) if std::fs::symlink_metadata(path).is_err() => return Ok(()),
            Ok(0) => continue,
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        // One daemon at a time: the next one waits in the queue until the previous one is gone, whose
        // last packets are obeyed first.
        let Some(socket) = &daemon else {
            // A child whose parent dies gets another one.
            let expected = starter.filter(|pid| Pid::as_raw(getppid()) == *pid);
            daemon = accept(&listener, expected);
            starter = starter.filter(|_| daemon.is_none());
            continue;
        };
        match receive(socket) {
            Ok(Some(packet)) if packet.what == END => {
                let _ = std::fs::remove_file(path);
                return Ok(());
            }
            Ok(Some(packet)) => carry_out(packet, socket, &mut held),
            Ok(None) | Err(_) => daemon = None,
        }
    }
}

fn listen(path: &Path) -> io::Result<OwnedFd> {
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

/// A daemon: of the same user or root, and the one that is expected, if one is. Others are refused before they have said
/// anything.
fn accept(listener: &OwnedFd, expected: Option<i32>) -> Option<OwnedFd> {
    let socket = rustix::net::accept_with(listener, SocketFlags::CLOEXEC).ok()?;
    let peer = Peer::of(&socket).ok()?;
    let trusted = peer.uid == geteuid().as_raw() || peer.uid == 0;
    (trusted && expected.is_none_or(|pid| pid == peer.pid)).then_some(socket)
}

fn carry_out(packet: Packet, socket: &OwnedFd, held: &mut BTreeMap<String, OwnedFd>) {
    let Packet { what, name, fd } = packet;
    match (what, fd) {
        (PUT, Some(fd)) if held.len() < MOST || held.contains_key(&name) => {
            held.insert(name, fd);
        }
        (DROP, _) => {
            held.remove(&name);
        }
        (DROP_ALL, _) => held.retain(|held, _| !held.starts_with(&name)),
        (LIST, _) => {
            for (name, fd) in held.iter() {
                if send(socket, PUT, name, Some(fd.as_fd())).is_err() {
                    return;
                }
            }
            // A daemon that does not hear this is gone, which the next look shows.
            let _ = send(socket, LISTED, "", None);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(path: &Path) -> OwnedFd {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    }

    #[test]
    fn the_first_daemon_is_the_one_that_started_it() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("keeper.sock");
        let listener = listen(&path).unwrap();
        let own = std::process::id() as i32;
        let early = connect(&path);
        assert!(accept(&listener, Some(own + 1)).is_none(), "another process of the same user");
        assert!(receive(&early).unwrap().is_none(), "closed, and nothing said");
        let _right = connect(&path);
        assert!(accept(&listener, Some(own)).is_some());
        let _next = connect(&path);
        assert!(accept(&listener, None).is_some(), "the next daemon's number is not known");
    }
}
