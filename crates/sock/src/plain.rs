//! Streams whose bytes go through a Unix socket: an ordinary descriptor, which can be passed on to
//! code that reads and writes descriptors. The daemon pumps; [`crate::Stream`] is faster.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use vmlane_wire::host::{Op, Request};

use crate::request::{self, Host};
use crate::stream::Address;

/// Connects like [`crate::Stream::connect_by`]. Returns the socket and this end's address.
pub fn connect(host: &Host, cid: u32, port: u32, timeout: Duration) -> io::Result<(UnixStream, Address)> {
    let millis = timeout.as_millis().clamp(1, 60_000) as u32;
    let (socket, answer) = host.ask(Request::new(Op::Connect, cid, port, millis, 0))?;
    Ok((socket, Address { cid: answer.cid, port: answer.port }))
}

/// Takes connections as Unix sockets.
pub struct Listener {
    socket: UnixStream,
    local: Address,
}

impl Listener {
    pub fn bind(host: &Host, port: u32) -> io::Result<Listener> {
        let (socket, answer) = host.ask(Request::new(Op::Listen, 0, port, 0, 0))?;
        Ok(Listener { socket, local: Address { cid: answer.cid, port: answer.port } })
    }

    pub fn local_addr(&self) -> Address {
        self.local
    }

    pub fn accept(&self) -> io::Result<(UnixStream, Address)> {
        let gone = || io::Error::new(io::ErrorKind::ConnectionReset, "the daemon is gone");
        let mut answer = request::receive(&self.socket)?.ok_or_else(gone)?;
        let socket = answer.fds.pop().ok_or_else(gone)?;
        Ok((socket.into(), Address { cid: answer.cid, port: answer.port }))
    }
}
