//! The runtime directory: made, owned by one daemon at a time, left clean.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use vmlane_access::{Trust, TrustError};
use vmlane_api::{Client, call};
use vmlane_config::paths::Paths;

/// How long a process that does not answer may hold the directory: on a busy machine, one that was killed
/// does for a moment.
const HELD_FOR: Duration = Duration::from_secs(2);

/// Why this process cannot serve in a directory.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error("{path}: {what}: {cause}")]
    Host { path: PathBuf, what: &'static str, cause: io::Error },
    #[error(
        "this user may not make {directory}: set XDG_RUNTIME_DIR, for $XDG_RUNTIME_DIR/vmlane, or name another \
         directory with --runtime-dir"
    )]
    Forbidden { directory: PathBuf },
    #[error("the daemon's directory: {0}")]
    Trust(TrustError),
    #[error(
        "another daemon (pid {pid}) serves {directory}; stop it first, or give this one another --runtime-dir"
    )]
    Taken { directory: PathBuf, pid: u32 },
    #[error(
        "another process holds {directory} and does not answer at its control socket; \
         stop it first (`fuser {directory}` names it), or give this one another --runtime-dir"
    )]
    Held { directory: PathBuf },
}

/// The right to serve in a runtime directory; ends with the process at the latest.
#[derive(Debug)]
pub struct Claim {
    directory: File,
}

/// Opens the runtime directory, if it is there: no other user than these, root and this process's own can
/// have put anything into it.
pub fn open(paths: &Paths, owners: &[u32]) -> Result<Option<File>, RuntimeError> {
    match (Trust { owners, ..Trust::default() }).open(paths.runtime()) {
        Ok(directory) => Ok(Some(directory)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(RuntimeError::Trust(error)),
    }
}

impl Claim {
    /// The runtime directory, open: the very one that is claimed, whatever becomes of its name.
    pub fn directory(&self) -> &File {
        &self.directory
    }
}

/// Makes the directory if need be and claims it. Two daemons that start at once cannot both win, because the
/// kernel grants the lock on the directory once. `owners`: users beside root and this process's own who may
/// own it.
pub fn claim(paths: &Paths, owners: &[u32]) -> Result<Claim, RuntimeError> {
    let path = paths.runtime();
    let host = |what| move |cause: io::Error| RuntimeError::Host { path: path.to_owned(), what, cause };
    let made = (Trust { owners, ..Trust::default() }).make(path, 0o700);
    let directory = made.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => RuntimeError::Forbidden { directory: path.to_owned() },
        _ if matches!(error, TrustError::Host { .. }) => {
            host("creating the runtime directory")(error.about(path))
        }
        _ => RuntimeError::Trust(error),
    })?;
    let taken = |pid| RuntimeError::Taken { directory: path.to_owned(), pid };
    if let Some(pid) = other_daemon(paths) {
        return Err(taken(pid));
    }
    let deadline = Instant::now() + HELD_FOR;
    loop {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Claim { directory }),
            // It may have been about to answer, or has just been killed.
            Err(Errno::WOULDBLOCK) => match other_daemon(paths) {
                Some(pid) => return Err(taken(pid)),
                None if Instant::now() > deadline => {
                    return Err(RuntimeError::Held { directory: path.to_owned() });
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            },
            Err(error) => return Err(host("locking the runtime directory")(error.into())),
        }
    }
}

fn other_daemon(paths: &Paths) -> Option<u32> {
    let client = Client::connect(paths.runtime()).ok()?;
    Some(client.with_timeout(Duration::from_secs(2)).call(&call::Ping {}).ok()?.pid)
}

/// Removes what a daemon that was killed left behind. The caller holds the claim.
pub fn clear(paths: &Paths) {
    for vm in fs::read_dir(paths.vms()).into_iter().flatten().flatten() {
        // Directories with anything else in them stay.
        let _ = fs::remove_file(vm.path().join("vmci.sock"));
        let _ = fs::remove_file(vm.path().join("vsock.uds"));
        remove_dead(&vm.path().join("hybrid"));
        for file in fs::read_dir(vm.path()).into_iter().flatten().flatten() {
            let name = file.file_name();
            let name = name.to_string_lossy();
            let number = name.strip_prefix("nic").and_then(|name| name.strip_suffix(".sock"));
            if number.is_some_and(|number| number.parse::<u8>().is_ok()) {
                let _ = fs::remove_file(file.path());
            }
        }
        let _ = fs::remove_dir(vm.path());
    }
    let _ = fs::remove_dir(paths.vms());
}

/// Removes the sockets of a directory that no process listens at, and the directory if nothing else is there:
/// VMMs that run stay.
fn remove_dead(directory: &Path) {
    for file in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_socket = file.file_type().is_ok_and(|kind| kind.is_socket());
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if is_socket && vmlane_host::sockets::connect(&file.path()).is_err_and(refused) {
            let _ = fs::remove_file(file.path());
        }
    }
    let _ = fs::remove_dir(directory);
}

/// Removes the name of a listening socket, and its directory if it was the last one there.
pub fn remove_socket(socket: &OwnedFd) {
    let address = rustix::net::getsockname(socket).ok();
    let address = address.and_then(|address| SocketAddrUnix::try_from(address).ok());
    let Some(path) = address.as_ref().and_then(SocketAddrUnix::path_bytes) else { return };
    let path = Path::new(OsStr::from_bytes(path));
    let _ = fs::remove_file(path);
    if let Some(directory) = path.parent() {
        let _ = fs::remove_dir(directory);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_directory_is_made_private_and_claimed_once() {
        let base = tempfile::tempdir().unwrap();
        let paths = Paths::new(&base.path().join("a/b")).unwrap();
        let first = claim(&paths, &[]).unwrap();
        assert_eq!(fs::metadata(paths.runtime()).unwrap().permissions().mode() & 0o777, 0o700);
        let error = claim(&paths, &[]).unwrap_err();
        assert!(matches!(error, RuntimeError::Held { .. }), "{error}");
        assert!(error.to_string().contains("--runtime-dir"));
        drop(first);
        // A child that another test of this process is just starting holds the lock until its exec.
        vmlane_testkit::wait_until("it can be claimed again", || claim(&paths, &[]).is_ok());
    }

    #[test]
    fn a_vmm_that_runs_keeps_its_hybrid_socket_and_dead_ones_go() {
        let base = tempfile::tempdir().unwrap();
        let paths = Paths::new(base.path()).unwrap();
        let [web, db] = ["web", "db"].map(|name| paths.hybrid(name).unwrap());
        for path in [&web, &db] {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            drop(UnixListener::bind(path.with_file_name("v.sock_5000")).unwrap());
        }
        drop(UnixListener::bind(&web).unwrap());
        let _runs = UnixListener::bind(&db).unwrap();
        clear(&paths);
        assert!(!paths.vm("web").exists());
        let left: Vec<_> = fs::read_dir(db.parent().unwrap()).unwrap().flatten().collect();
        assert_eq!((left.len(), left[0].path()), (1, db));
    }

    #[test]
    fn leftovers_go_and_what_is_not_ours_stays() {
        let base = tempfile::tempdir().unwrap();
        let paths = Paths::new(base.path()).unwrap();
        for name in ["web", "db"] {
            fs::create_dir_all(paths.vm(name)).unwrap();
            drop(UnixListener::bind(paths.vmci(name).unwrap()).unwrap());
            drop(UnixListener::bind(paths.nic(name, 1).unwrap()).unwrap());
        }
        fs::write(paths.vm("db").join("notes"), "mine").unwrap();
        clear(&paths);
        assert!(!paths.vm("web").exists());
        assert!(!paths.vmci("db").unwrap().exists() && paths.vm("db").join("notes").exists());
    }
}
