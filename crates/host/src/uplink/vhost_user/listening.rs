//! Sockets where peers connect. The other switch is the socket's client then; it is the back end all the
//! same.
//!
//! The socket's directory may be the other switch's, so no name in it is believed: the mode is given before
//! the name, and rights to the file itself.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, fchmod, fcntl_getfl, fcntl_setfl, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen as start_listening,
    socket_with,
};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use vmlane_access::acl::{AclError, Right, grant_open};
use vmlane_access::{Owner, Peer};

use super::connect;

/// Peers that may wait to be accepted.
const WAITING: i32 = 4;

/// Why there is no socket for peers.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Its directory may come.
    #[error("its directory does not exist")]
    Missing,
    #[error("there is something else than a socket of this name; remove it, or use another path")]
    NotSocket,
    #[error("another process listens there; end that one, or use another path")]
    InUse,
    #[error(
        "user {0} may not make it there; let that user write to its directory (setfacl -m u:{0}:rwx DIRECTORY), or use a path \
         in the daemon's runtime directory"
    )]
    Refused(u32),
    #[error(transparent)]
    Rights(#[from] AclError),
    #[error("{what}: {cause}")]
    Host { what: &'static str, cause: io::Error },
}

/// The name of a socket, and by what it is known that it still is that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketName {
    pub path: PathBuf,
    pub file: SocketFile,
}

/// By what a file is known. Some file systems give a number to the next file as soon as it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketFile {
    device: u64,
    inode: u64,
    /// None: the file system has no such time.
    made: Option<SystemTime>,
}

impl From<Metadata> for SocketFile {
    fn from(metadata: Metadata) -> SocketFile {
        SocketFile { device: metadata.dev(), inode: metadata.ino(), made: metadata.created().ok() }
    }
}

impl SocketName {
    /// False if the path leads to another file, or to none.
    pub fn is_there(&self) -> bool {
        match std::fs::symlink_metadata(&self.path) {
            Ok(metadata) => self.file == metadata.into(),
            // One that this process may not inspect may well be there.
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        }
    }

    /// Removes it, unless it is another file's by now.
    pub fn remove(&self) {
        if self.is_there() {
            // One that cannot be removed is of no harm: nothing listens behind it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A socket at `path` that root, this process's user and `owner` can connect to. A socket that nothing
/// listens at is replaced.
pub fn listen(path: &Path, owner: Option<Owner>) -> Result<(OwnedFd, SocketName), ListenError> {
    listen_with(path, owner, WAITING)
}

/// The same; so many connections may wait to be accepted.
pub fn listen_with(
    path: &Path,
    owner: Option<Owner>,
    waiting: i32,
) -> Result<(OwnedFd, SocketName), ListenError> {
    let host = |what| move |cause: Errno| ListenError::Host { what, cause: cause.into() };
    let address = SocketAddrUnix::new(path).map_err(host("using it as an address"))?;
    remove_stale(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(host("creating a socket"))?;
    // The file gets the socket's mode, so at no time others can connect.
    fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(host("setting its mode"))?;
    bind(&socket, &address).map_err(|error| match error {
        Errno::NOENT | Errno::NOTDIR => ListenError::Missing,
        Errno::ACCESS | Errno::PERM => ListenError::Refused(geteuid().as_raw()),
        Errno::ADDRINUSE => ListenError::InUse,
        error => host("binding")(error),
    })?;
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        .map_err(host("opening it"))?;
    let file = File::from(file);
    let found = file.metadata().map_err(|cause| ListenError::Host { what: "inspecting it", cause })?;
    if !found.file_type().is_socket() || found.uid() != geteuid().as_raw() || found.nlink() != 1 {
        return Err(ListenError::NotSocket);
    }
    if let Some(owner) = owner {
        grant_open(&file, path, 0o600, Right::Connect, &[owner])?;
    }
    start_listening(&socket, waiting).map_err(host("listening"))?;
    Ok((socket, SocketName { path: path.to_owned(), file: found.into() }))
}

/// A socket's file outlives the process that listened. It is removed, but nothing else.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotSocket);
    }
    match connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        // Its queue of connections is full.
        Ok(_) => return Err(ListenError::InUse),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(ListenError::InUse),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => {
            return Err(ListenError::Host { what: "finding out whether a process listens there", cause });
        }
    }
    std::fs::remove_file(path)
        .map_err(|cause| ListenError::Host { what: "removing a socket of no use", cause })
}

/// What comes of waiting for a peer.
pub enum Arrival {
    Peer(OwnedFd),
    /// The uplink is to end.
    Stop,
    /// No peer could be accepted.
    Failed(String),
}

/// A socket where peers connect, and who may.
#[derive(Debug)]
pub struct Entrance {
    socket: OwnedFd,
    /// This process's.
    user: u32,
    owner: Option<Owner>,
}

impl Entrance {
    /// `socket` listens. Root, this process's user and `owner` may connect.
    pub fn new(socket: OwnedFd, owner: Option<Owner>) -> io::Result<Entrance> {
        // A connection may be gone before it is accepted.
        fcntl_setfl(&socket, fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
        Ok(Entrance { socket, user: geteuid().as_raw(), owner })
    }

    /// Waits for a peer, or until `stop` is readable.
    pub fn wait(&self, stop: BorrowedFd<'_>) -> Arrival {
        loop {
            let mut files =
                [PollFd::new(&self.socket, PollFlags::IN), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
            match poll(&mut files, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Arrival::Failed(io::Error::from(error).to_string()),
            }
            let [_, stop] = files.map(|file| !file.revents().is_empty());
            if stop {
                return Arrival::Stop;
            }
            match self.accept() {
                Ok(Some(peer)) => return Arrival::Peer(peer),
                Ok(None) => {}
                Err(why) => return Arrival::Failed(why),
            }
        }
    }

    /// Closes a connection that came while another one is served. True if there was one.
    pub fn turn_away(&self) -> bool {
        accept_with(&self.socket, SocketFlags::CLOEXEC).is_ok()
    }

    /// The next one that waits, if there is one. An error has the reason why it is not served.
    fn accept(&self) -> Result<Option<OwnedFd>, String> {
        let peer = match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(peer) => peer,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
            Err(error) => return Err(format!("accepting a connection: {}", io::Error::from(error))),
        };
        let Peer { pid, uid, .. } = match Peer::of(&peer) {
            Ok(who) if self.admits(&who) => return Ok(Some(peer)),
            Ok(who) => who,
            Err(error) => return Err(format!("the peer's user cannot be read ({error})")),
        };
        Err(format!(
            "process {pid} of user {uid} has connected, who may not; owner = {uid} in the configuration lets that user in"
        ))
    }

    fn admits(&self, who: &Peer) -> bool {
        who.uid == 0 || who.uid == self.user || self.owner.is_some_and(|owner| owner.includes(who))
    }
}

impl AsFd for Entrance {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    use vmlane_testkit::skipped;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_socket_that_nothing_listens_at_is_replaced_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lan.sock");
        let (socket, name) = listen(&path, None).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert!(name.is_there());
        assert!(matches!(listen(&path, None), Err(ListenError::InUse)));
        // No process accepts: its queue fills up, and it is in use all the same.
        let waiting: Vec<_> = std::iter::from_fn(|| connect(&path).ok()).take(64).collect();
        assert!(waiting.len() < 64);
        assert!(matches!(listen(&path, None), Err(ListenError::InUse)));
        drop((socket, waiting));
        // Files are made at times that differ.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let (_socket, second) = listen(&path, None).unwrap();
        assert!(second.is_there() && !name.is_there());
        // The first one's name is another's by now.
        name.remove();
        assert!(second.is_there());
        second.remove();
        assert!(!path.exists());

        for make in [
            (|path: &Path| std::fs::write(path, "").unwrap()) as fn(&Path),
            |path| std::fs::create_dir(path).unwrap(),
            |path| std::os::unix::fs::symlink("/nowhere", path).unwrap(),
        ] {
            make(&path);
            assert!(matches!(listen(&path, None), Err(ListenError::NotSocket)));
            std::fs::symlink_metadata(&path).unwrap();
            let _ = std::fs::remove_file(&path);
            let _ = std::fs::remove_dir(&path);
        }
        let _datagrams = UnixDatagram::bind(&path).unwrap();
        let error = listen(&path, None).unwrap_err();
        assert!(matches!(error, ListenError::Host { .. }), "{error}");
        assert!(path.exists());
        let none = folder.path().join("none/lan.sock");
        assert!(matches!(listen(&none, None), Err(ListenError::Missing)));
    }

    #[test]
    fn an_owner_may_connect_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lan.sock");
        let owner = Owner { uid: Some(20_001), gid: None };
        let (socket, _) = match listen(&path, Some(owner)) {
            Err(ListenError::Rights(AclError::Unsupported { .. })) => {
                return skipped(&format!("no POSIX ACLs on {}", path.display()));
            }
            listening => listening.unwrap(),
        };
        // With a list, the group's bits are its limit.
        assert_eq!(mode(&path), 0o660);
        let entrance = Entrance::new(socket, Some(owner)).unwrap();
        let who = |uid| Peer { pid: 1, uid, gid: uid, groups: Vec::new() };
        assert!([0, entrance.user, 20_001].map(who).iter().all(|who| entrance.admits(who)));
        assert!(!entrance.admits(&who(20_002)));
    }

    #[test]
    fn a_process_of_another_user_is_not_served() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lan.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let mut entrance = Entrance::new(listener.into(), None).unwrap();
        let (stop, _end) = rustix::pipe::pipe().unwrap();
        let first = UnixStream::connect(&path).unwrap();
        assert!(matches!(entrance.wait(stop.as_fd()), Arrival::Peer(_)));
        drop(first);
        let own = std::mem::replace(&mut entrance.user, u32::MAX);
        if own == 0 {
            return skipped("root is served in any case");
        }
        let _second = UnixStream::connect(&path).unwrap();
        let Arrival::Failed(why) = entrance.wait(stop.as_fd()) else { panic!("it was served") };
        assert!(why.contains(&format!("user {own}")) && why.contains(&format!("owner = {own}")), "{why}");
    }
}
