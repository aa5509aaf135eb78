//! A VMM with a hybrid Unix socket, as Firecracker's documentation describes it: the test is its guest.

use std::fs::{Permissions, set_permissions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::sockopt::Timeout;

use crate::LONGEST;

/// Listens at its socket.
#[derive(Debug)]
pub struct Vmm {
    path: PathBuf,
    listener: UnixListener,
}

impl Vmm {
    /// Starts: whatever a VMM before has left is in the way.
    pub fn start(path: &Path) -> Vmm {
        Vmm { path: path.to_owned(), listener: UnixListener::bind(path).unwrap() }
    }

    /// The same as one with umask 007, as VMMs are to be started: the daemon's user may connect.
    pub fn start_for_daemon(path: &Path) -> Vmm {
        let vmm = Vmm::start(path);
        set_permissions(path, Permissions::from_mode(0o770)).unwrap();
        vmm
    }

    /// It dies, and its socket's file stays.
    pub fn dies(self) {}

    /// A connection comes; what it asks for.
    pub fn asked(&self) -> (UnixStream, String) {
        let mut stream = self.first().unwrap();
        stream.set_read_timeout(Some(LONGEST)).unwrap();
        let mut line = Vec::new();
        let mut byte = [0];
        while line.last() != Some(&b'\n') {
            match stream.read(&mut byte) {
                Ok(1) => line.push(byte[0]),
                end => panic!("{end:?} after {line:?}"),
            }
        }
        (stream, String::from_utf8(line).unwrap())
    }

    /// A connection comes, whatever it asks for.
    pub fn first(&self) -> std::io::Result<UnixStream> {
        // As long as `accept` may wait, too.
        rustix::net::sockopt::set_socket_timeout(&self.listener, Timeout::Recv, Some(LONGEST))?;
        self.listener.accept().map(|(stream, _)| stream)
    }

    /// The guest listens on `port`, and accepts.
    pub fn accept(&self, port: u32) -> UnixStream {
        let (mut stream, line) = self.asked();
        assert_eq!(line, format!("CONNECT {port}\n"));
        stream.write_all(b"OK 1073741824\n").unwrap();
        stream
    }

    /// The guest connects to {CID 2, `port`}. An error: it gets a reset.
    pub fn connect(&self, port: u32) -> std::io::Result<UnixStream> {
        let mut path = self.path.clone().into_os_string();
        path.push(format!("_{port}"));
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(LONGEST))?;
        Ok(stream)
    }
}

/// The other end closes: its end is read, and nothing before it.
pub fn is_closed(stream: &mut UnixStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(0) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
        Ok(_) => false,
    }
}
