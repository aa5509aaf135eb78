//! A port of the host that VMs connect to.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;

use vmlane_wire::host::{FLAG_RING, Op, PORT_ANY, Request};

use crate::request::{self, Host};
use crate::stream::{Address, Stream};

/// Any free port, for [`Listener::bind`].
pub const ANY: u32 = PORT_ANY;

/// Takes connections of VMs to {CID 2, port}. Its descriptor polls readable when one waits.
pub struct Listener {
    socket: UnixStream,
    local: Address,
}

impl Listener {
    /// Listens at `port` of the host, or [`ANY`], through the daemon of [`Host::default`]. EADDRINUSE:
    /// another program listens there; EACCES: not allowed (ports below 1024 need a permission of their own).
    pub fn bind(port: u32) -> io::Result<Listener> {
        Listener::bind_by(&Host::default(), port)
    }

    /// The same through another daemon.
    pub fn bind_by(host: &Host, port: u32) -> io::Result<Listener> {
        let (socket, answer) = host.ask(Request::new(Op::Listen, 0, port, 0, FLAG_RING))?;
        Ok(Listener { socket, local: Address { cid: answer.cid, port: answer.port } })
    }

    pub fn local_addr(&self) -> Address {
        self.local
    }

    /// Waits for a connection.
    pub fn accept(&self) -> io::Result<(Stream, Address)> {
        let answer = request::receive(&self.socket)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::ConnectionReset, "the daemon is gone"))?;
        let stream = Stream::accepted(answer, self.local)?;
        let peer = stream.peer_addr();
        Ok((stream, peer))
    }

    /// [`Self::accept`] fails with `WouldBlock` after so long.
    pub fn set_timeout(&self, timeout: Option<std::time::Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(timeout)
    }

    /// [`Self::accept`] fails with `WouldBlock` when no connection waits.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.socket.set_nonblocking(nonblocking)
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
